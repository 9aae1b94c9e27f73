"""A scheduler of calls with a hand on the clock: every input goes through here, and every invariant is checked after each."""

from __future__ import annotations

from collections.abc import Hashable
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from calls_watch import Watch

from qreward.functions.config import ScheduleConfig
from qreward.scheduler.functions import Call, CallFailure, CallScheduler, Function, Try
from qreward.scheduler.outcome import CANCELLED, Answer
from qreward.scheduler.task import Attempt

__all__ = ["AT_ONCE", "Adapting", "Breaking", "Broken", "Driver", "FunctionOptions", "Hedging", "Longest", "Pause", "Rate", "Shortest"]


class Pause(NamedTuple):
    base: float
    cap: float


class Rate(NamedTuple):
    size: int
    window: float


class Hedging(NamedTuple):
    after: float | None  # None: the quantile
    quantile: float
    most: int
    share: float


class Breaking(NamedTuple):
    threshold: int
    recovery: float


class Adapting(NamedTuple):
    least: int
    most: int
    errors: float
    seconds: float | None


class FunctionOptions(NamedTuple):
    """The settings of a function in groups, with short names."""

    level: int = 5
    timeout: float | None = None
    retries: int = 0
    pause: Pause = Pause(1.0, 60.0)
    parallel_tries: int = 1
    most: int | None = None
    rate: Rate | None = None
    hedging: Hedging | None = None
    breaking: Breaking | None = None
    adapting: Adapting | None = None
    paced: bool = True
    noted: bool = False
    keyed: bool = False

    def settings(self) -> SimpleNamespace:
        """The same with the names of ``ScheduleConfig``, and as ``groups``."""
        found: dict[str, Any] = {"priority": self.level, "timeout": self.timeout, "retry_times": self.retries, "debug": self.noted}
        found |= {"retry_interval": self.pause.base, "retry_max_interval": self.pause.cap, "speed_up_max_multiply": self.parallel_tries}
        found |= {"max_concurrency": self.most, "key_func": len if self.keyed else None, "adaptive_limit": self.adapting is not None}
        if self.rate is not None:
            found |= {"limit_size": self.rate.size, "limit_window": self.rate.window}
        if self.hedging is not None:
            after = f"p{100 * self.hedging.quantile:g}" if self.hedging.after is None else self.hedging.after
            found |= {"hedged_request_time": after, "hedged_request_max_times": self.hedging.most}
            found |= {"hedged_request_proportion": self.hedging.share}
        if self.breaking is not None:
            found |= {"circuit_breaker_threshold": self.breaking.threshold, "circuit_breaker_recovery": self.breaking.recovery}
        if self.adapting is not None:
            least, most, errors, seconds = self.adapting
            found |= {"adaptive_limit_min": least, "adaptive_limit_max": most}
            found |= {"adaptive_error_threshold": errors, "adaptive_latency_threshold": seconds}
        return SimpleNamespace(**ScheduleConfig().snapshot() | found, groups=self)


AT_ONCE = Pause(0.0, 0.0)
TOO_MANY_TICKS = 1000


class Broken(Exception):
    """What functions raise here."""


class Longest(Random):
    """Chance always chooses the longest pause."""

    def uniform(self, a: float, b: float) -> float:
        return b


class Shortest(Random):
    """Chance always chooses the shortest pause."""

    def uniform(self, a: float, b: float) -> float:
        return a


class Driver:
    """One scheduler, its functions, and the time."""

    def __init__(self, rng: Random | None = None) -> None:
        self.now = 0.0
        self.scheduler = CallScheduler(rng or Longest())
        self.watch = Watch(self.scheduler)

    def function(self, name: str = "f", *, keyed: bool = False, **options: Any) -> Function:
        """A function of the pool, with these options."""
        function = Function(name, FunctionOptions(**options, keyed=keyed).settings())
        self.scheduler.add(function)
        self.watch.functions.append(function)
        return function

    # what callers do

    def call(self, function: Function, key: Hashable = None, **options: Any) -> Call:
        """Call a function with its options, of which some are replaced."""
        groups = function.options.groups._replace(**options)
        call = Call(function, key, groups.settings(), None, paced=groups.paced)
        self.watch.submit(call)
        self.scheduler.submit(self.now, call)
        self._after()
        return call

    def calls(self, count: int, function: Function, key: Hashable = None, **options: Any) -> list[Call]:
        return [self.call(function, key, **options) for _ in range(count)]

    def withdraw(self, *calls: Call) -> None:
        for call in calls:
            self.watch.withdraw(call)
        self.scheduler.withdraw(self.now, list(calls))
        self._after()

    def change(self, function: Function, **options: Any) -> None:
        """Set other options while it is in use."""
        rate = function.options.groups.rate
        function.options = function.options.groups._replace(**options).settings()
        self.watch.changed(self.now, function, 0.0 if rate is None else rate.window)
        self.scheduler.changed(self.now, function)
        self._after()

    def reset(self, function: Function) -> None:
        self.watch.reset(function)
        self.scheduler.reset(self.now, function)
        self._after()

    # what functions do

    def report(self, attempt: Attempt, outcome: Any) -> None:
        """Report a try's end at this very moment, even if something else is overdue."""
        assert isinstance(attempt, Try)
        self.watch.event(self.now, attempt, outcome)
        self.scheduler.event(self.now, attempt, outcome)
        self._after()

    def ok(self, call: Call | Attempt, after: float = 0.0) -> None:
        """A try returns; of a call, its oldest."""
        self._let_pass(after)
        self.report(self._try(call), Answer("yes"))

    def fail(self, call: Call | Attempt, after: float = 0.0, **how: Any) -> Exception:
        """A try raises; of a call, its oldest."""
        self._let_pass(after)
        error = Broken("no")
        self.report(self._try(call), CallFailure(error, **how))
        return error

    def stopped(self, call: Call | Attempt) -> None:
        self.report(self._try(call), CANCELLED)

    def _let_pass(self, after: float) -> None:
        if after:  # else what is overdue stays so
            self.wait(after)

    def _try(self, what: Call | Attempt) -> Attempt:
        return self.tries(what)[0] if isinstance(what, Call) else what

    # time

    def tick(self) -> None:
        self.scheduler.tick(self.now)
        self._after()

    def wait(self, seconds: float) -> None:
        """Let time pass, and tick whenever the scheduler asked for it."""
        self.until(self.now + seconds)

    def until(self, then: float) -> None:
        ticks = 0
        while (wake := self.scheduler.next_wake()) is not None and wake <= then:
            ticks = 0 if wake > self.now else ticks + 1
            assert ticks < TOO_MANY_TICKS, "the clock stands still"
            self.now = max(self.now, wake)
            self.tick()
        self.now = max(self.now, then)

    # what is to be seen

    def tries(self, call: Call) -> list[Attempt]:
        """Tries under way, oldest first."""
        return [attempt for attempt in self.watch.live if attempt.task is call]

    def under_way(self) -> list[Call]:
        """Calls with a try under way that is wanted, in the order in which the tries began."""
        return [attempt.task for attempt in self.watch.live if attempt not in self.watch.cancels]  # type: ignore[misc]

    def begun(self, call: Call) -> list[float]:
        """When its tries began."""
        return [at for at, attempt in self.watch.sends if attempt.task is call]

    def outcome(self, call: Call) -> Any:
        """What it ended with, or None."""
        return self.watch.finished.get(call)

    def is_ok(self, call: Call) -> bool:
        return isinstance(self.outcome(call), Answer)

    def _after(self) -> None:
        self.watch.after(self.now)
