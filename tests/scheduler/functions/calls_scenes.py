"""Random scenes: functions with their troubles, callers with their whims, users who change settings. All follows from one seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from calls_driver import AT_ONCE, Adapting, Breaking, Broken, Driver, Hedging, Pause, Rate
from simulator import EventLoop

from qreward.scheduler.functions.state import CallFailure, Function
from qreward.scheduler.outcome import CANCELLED, Answer
from qreward.scheduler.state import Attempt

LONG = 300.0
BUSY = 30.0
"""Seconds in which calls come."""


@dataclass
class Body:
    """What a function really does.

    Attributes:
        mean: seconds it takes; ``spread`` is the sigma of its logarithm.
        thread: it cannot be stopped.
        cap: tries it does at once; it turns more away, with ``hint`` seconds to wait or None.
        faults, fatal, hangs: share of tries that fail, that fail for good, and that take ``LONG``.
        down: from, to: all fail.
    """

    mean: float
    spread: float
    thread: bool
    cap: int | None
    hint: float | None
    faults: float
    fatal: float
    hangs: float
    down: tuple[float, float]
    busy: int = 0

    def reply(self, now: float, rng: Random) -> tuple[float, Any]:
        """Seconds and outcome of a try that begins now."""
        chance, error = rng.random(), Broken("no")
        if self.cap is not None and self.busy > self.cap:
            return rng.choice([0.0, 0.01]), CallFailure(error, wait=self.hint, overloaded=True)
        if self.down[0] <= now < self.down[1] or chance < self.faults:
            return rng.random() * self.mean, CallFailure(error, wait=rng.choice([None, None, None, 0.2, 3.0]))
        if chance < self.faults + self.fatal:
            return 0.01, CallFailure(error, again=False)
        if chance < self.faults + self.fatal + self.hangs:
            return LONG, Answer("late")
        return self.mean * rng.lognormvariate(0.0, self.spread), Answer("yes")


class Scene(EventLoop):
    """Functions, what their callers do and when, and a clock that jumps from event to event."""

    def __init__(self, seed: int) -> None:
        rng = Random(seed)
        super().__init__(Driver(Random(seed)), rng, rng.choice([0.0, 0.0, 0.0, 0.3]))
        self.bodies: dict[Function, Body] = {}
        self._seen = 0  # sends that functions know of
        self._stopping: set[Attempt] = set()
        for number in range(rng.randint(1, 4)):
            function = self.driver.function(f"f{number}", keyed=rng.random() < 0.5, **_terms(rng))
            self.bodies[function] = _body(rng)
            self._callers(function)
        if rng.random() < 0.5:
            self._users()

    def _callers(self, function: Function) -> None:
        rng, keys = self.rng, self.rng.choice([1, 3, 50]) if function.keyed else 1
        for _ in range(rng.randint(5, 60)):
            key, level = rng.randrange(keys) if function.keyed else None, rng.choice([function.options.level, rng.randrange(10)])
            self.plan(rng.uniform(0, BUSY), partial(self.driver.call, function, key, level=level, timeout=function.options.timeout))
        for _ in range(rng.choice([0, 0, 3])):
            self.plan(rng.uniform(0, BUSY), partial(self._withdraw_some, rng.choice([0.1, 1.0])))

    def _withdraw_some(self, share: float) -> None:
        self.driver.withdraw(*[call for call in self.driver.watch.open if self.rng.random() < share])

    def _users(self) -> None:
        rng = self.rng
        for function in self.bodies:
            for _ in range(rng.randint(0, 3)):
                self.plan(rng.uniform(0, BUSY), partial(self.driver.change, function, **_terms(rng)))
            if rng.random() < 0.2:
                self.plan(rng.uniform(0, BUSY), partial(self.driver.reset, function))

    # the functions

    def _listen(self) -> None:
        watch = self.driver.watch
        while self._seen < len(watch.sends):
            self._begin(watch.sends[self._seen][1])
            self._seen += 1
        for attempt in watch.cancels:
            if attempt not in self._stopping:
                self._stopping.add(attempt)
                if not self._body(attempt).thread:
                    self.plan(self.driver.now + self.rng.random() * 0.02, partial(self._end, attempt, CANCELLED))

    def _begin(self, attempt: Attempt) -> None:
        body = self._body(attempt)
        body.busy += 1
        seconds, outcome = body.reply(self.driver.now, self.rng)
        self.plan(self.driver.now + seconds, partial(self._end, attempt, outcome))

    def _end(self, attempt: Attempt, outcome: Any) -> None:
        """The first report counts; an answer that crosses our cancellation comes as a second one, and is to be ignored."""
        if not attempt.ended:
            self._body(attempt).busy -= 1
        self.driver.report(attempt, outcome)
        self._stopping.discard(attempt)

    def _body(self, attempt: Attempt) -> Body:
        return self.bodies[attempt.task.function]  # type: ignore[attr-defined]


def _terms(rng: Random) -> dict[str, Any]:
    """Settings as users mix them."""
    quantile = Hedging(None, 0.9, 1, 0.5)
    return {
        "level": rng.choice([5, 5, 0, 9]),
        "timeout": rng.choice([None, 0.5, 5.0, 60.0]),
        "retries": rng.choice([0, 1, 3, 8]),
        "pause": rng.choice([AT_ONCE, Pause(0.1, 1.0), Pause(1.0, 60.0)]),
        "parallel_tries": rng.choice([1, 1, 1, 3]),
        "most": rng.choice([None, None, 1, 4, 16]),
        "rate": rng.choice([None, None, Rate(1, 0.1), Rate(5, 1.0), Rate(20, 10.0)]),
        "hedging": rng.choice([None, None, Hedging(0.3, 0.0, 1, 0.2), Hedging(1.0, 0.0, 3, 1.0), quantile]),
        "breaking": rng.choice([None, None, Breaking(3, 2.0), Breaking(5, 20.0)]),
        "adapting": rng.choice([None, None, None, Adapting(1, 32, 0.3, None), Adapting(2, 8, 0.2, 1.0)]),
        "noted": rng.random() < 0.2,
    }


def _body(rng: Random) -> Body:
    down = rng.uniform(0, BUSY)
    return Body(
        mean=rng.choice([0.02, 0.3, 2.0]),
        spread=rng.choice([0.0, 0.5, 1.0]),
        thread=rng.random() < 0.5,
        cap=rng.choice([None, None, 1, 6]),
        hint=rng.choice([None, 0.0, 0.3, 5.0]),
        faults=rng.choice([0.0, 0.05, 0.4]),
        fatal=rng.choice([0.0, 0.05]),
        hangs=rng.choice([0.0, 0.0, 0.05]),
        down=(down, down + rng.choice([0.0, 0.0, 3.0, 20.0])),
    )
