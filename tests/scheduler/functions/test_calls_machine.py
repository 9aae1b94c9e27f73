"""Any order of inputs, sensible or not: hypothesis plays against the scheduler, and ``Watch`` checks the rules after every move."""

from __future__ import annotations

from random import Random
from typing import Any

from calls_driver import AT_ONCE, Adapting, Breaking, Broken, Driver, FunctionOptions, Hedging, Pause, Rate
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from scale import SCALE

from qreward.scheduler.functions import CallFailure
from qreward.scheduler.outcome import CANCELLED, Answer
from qreward.scheduler.task import Attempt

MOST_WAKES = 5_000
KEYS = ("a", "b", "c")

picks = st.integers(0, 1000)
seconds = st.sampled_from([0.0, 0.001, 1 / 64, 0.1, 0.5, 1.0, 3.0, 20.0, 200.0])
waits = st.sampled_from([None, None, None, 0.0, 0.3, 5.0])
options = st.builds(
    FunctionOptions,
    level=st.integers(0, 9),
    timeout=st.sampled_from([None, 0.01, 1.0, 30.0]),
    retries=st.integers(0, 3),
    pause=st.sampled_from([AT_ONCE, Pause(0.2, 1.0), Pause(2.0, 60.0)]),
    parallel_tries=st.sampled_from([1, 1, 2, 4]),
    most=st.sampled_from([None, 1, 2, 5]),
    rate=st.sampled_from([None, None, Rate(1, 0.3), Rate(3, 1.0), Rate(2, 100.0)]),
    hedging=st.sampled_from([None, Hedging(0.1, 0.0, 1, 0.5), Hedging(0.4, 0.0, 2, 0.1), Hedging(None, 0.5, 1, 0.3)]),
    breaking=st.sampled_from([None, Breaking(1, 0.5), Breaking(3, 10.0)]),
    adapting=st.sampled_from([None, None, Adapting(1, 4, 0.3, None), Adapting(2, 50, 0.5, 0.4)]),
    paced=st.sampled_from([True, True, True, False]),
    noted=st.booleans(),
)
outcomes = st.one_of(
    st.builds(Answer, st.just("yes")),
    st.builds(CallFailure, st.builds(Broken), again=st.sampled_from([True, True, True, False]), wait=waits, overloaded=st.booleans()),
    st.builds(CallFailure, st.builds(Broken)),
    st.just(CANCELLED),
)


class Machine(RuleBasedStateMachine):
    """Two functions of one pool, one with keys, every kind of end, settings that change while it runs."""

    @initialize(seed=st.integers(0, 3), first=options, second=options)
    def begin(self, seed: int, first: FunctionOptions, second: FunctionOptions) -> None:
        self.driver = Driver(Random(seed))
        self.over: list[Attempt] = []
        self.functions = [
            self.driver.function("one", **first._asdict()),
            self.driver.function("many", **second._asdict() | {"keyed": True}),
        ]

    # callers

    @rule(pick=picks, count=st.sampled_from([1, 1, 1, 3, 8]))
    def call(self, pick: int, count: int) -> None:
        function = self.functions[pick % 2]
        self.driver.calls(count, function, KEYS[pick % len(KEYS)] if function.keyed else None)

    @rule(pick=picks, level=st.integers(0, 9))
    def call_with_another_priority(self, pick: int, level: int) -> None:
        function = self.functions[pick % 2]
        self.driver.call(function, KEYS[pick % len(KEYS)] if function.keyed else None, level=level)

    @rule(pick=picks, among_the_done=st.booleans())
    def withdraw(self, pick: int, among_the_done: bool) -> None:
        calls: Any = self.driver.watch.finished if among_the_done else self.driver.watch.open
        if calls:
            self.driver.withdraw(_one(calls, pick))

    # functions

    @precondition(lambda self: self.driver.watch.live)
    @rule(pick=picks, outcome=outcomes, after=seconds)
    def end(self, pick: int, outcome: Any, after: float) -> None:
        attempt = _one(self.driver.watch.live, pick)
        self.over.append(attempt)
        self.driver.wait(after)
        self.driver.report(attempt, outcome)

    @precondition(lambda self: self.driver.watch.live)
    @rule(outcome=outcomes, most=st.integers(2, 8))
    def end_many(self, outcome: Any, most: int) -> None:
        for attempt in list(self.driver.watch.live)[:most]:
            self.over.append(attempt)
            self.driver.report(attempt, outcome)

    @precondition(lambda self: self.over)
    @rule(pick=picks, outcome=outcomes)
    def report_an_end_again(self, pick: int, outcome: Any) -> None:
        before = list(self.driver.watch.trace)
        self.driver.report(_one(dict.fromkeys(self.over), pick), outcome)
        assert self.driver.watch.trace == before, "a second report changed something"

    # time

    @rule(after=seconds)
    def let_time_pass(self, after: float) -> None:
        self.driver.wait(after)

    @rule(after=seconds)
    def stall(self, after: float) -> None:
        """Time passes and nobody ticks: the loop was busy, or the machine asleep."""
        self.driver.now += after

    @rule()
    def tick_too_early(self) -> None:
        self.driver.tick()

    # users who change their minds

    @rule(first=st.booleans(), other=options)
    def change(self, first: bool, other: FunctionOptions) -> None:
        function = self.functions[first]
        self.driver.change(function, **other._asdict() | {"keyed": function.keyed})

    @rule(first=st.booleans())
    def reset(self, first: bool) -> None:
        self.driver.reset(self.functions[first])

    # the end

    def teardown(self) -> None:
        """Once all goes well, every call comes to its end."""
        if not hasattr(self, "driver"):
            return
        driver = self.driver
        for _ in range(MOST_WAKES):
            for attempt in list(driver.watch.live):
                driver.report(attempt, CANCELLED if attempt in driver.watch.cancels else Answer("yes"))
            wake = driver.scheduler.next_wake()
            if wake is not None:
                driver.until(max(wake, driver.now))
            elif not driver.watch.live:
                driver.watch.check_all_over()
                return
        raise AssertionError("no end")


def _one(things: dict[Any, None], pick: int) -> Any:
    return list(things)[pick % len(things)]


Machine.TestCase.settings = settings(max_examples=40 * SCALE, stateful_step_count=40, deadline=None)
TestAnyOrderOfInputs = Machine.TestCase
