"""Any order of inputs, sensible or not: hypothesis plays against the scheduler, and ``Watch`` checks the rules after every move."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from scale import SCALE
from scheduler_driver import Driver, failure

from qreward.scheduler.outcome import CANCELLED, Answer, FailureKind, Outcome
from qreward.scheduler.prefixes import Prefix
from qreward.scheduler.task import Attempt, Task
from qreward.settings.policies import Hedge, Limits, LoadBalanceStrategy, Retry

NAMES = ("a", "b", "c", "d")
MOST_WAKES = 5_000

picks = st.integers(0, 1000)
levels = st.one_of(st.just(5), st.integers(0, 9))
prefixes = st.sampled_from(
    [
        None,
        *(Prefix((key,), (2000.0,), 2400.0, named=True) for key in (1, 2, 3)),
        *(Prefix((9, 10 * key, 10 * key + key), (500.0, 1000.0, 2000.0), 2400.0) for key in (4, 5)),
    ]
)
seconds = st.sampled_from([0.0, 0.001, 0.01, 1 / 64, 0.1, 0.5, 2.0, 15.0, 200.0])
limits = st.builds(Limits, max_concurrency=st.integers(1, 3), rpm=st.sampled_from([None, None, 60.0, 6000.0]))
strategies = st.sampled_from(list(LoadBalanceStrategy))
hedges = st.sampled_from([None, Hedge(after=0.5, budget=1.0), Hedge()])
answers = st.builds(Answer, st.just("yes"), st.sampled_from([None, 5]), st.sampled_from([None, 7]))
failures = st.builds(
    failure,
    st.sampled_from(FailureKind),
    retry_after=st.sampled_from([None, None, 0.0, 0.3, 5.0]),
    should_retry=st.sampled_from([None, None, None, True, False]),
    misconfigured=st.booleans(),
)
outcomes = st.one_of(answers, failures, failures, st.just(CANCELLED))


class Machine(RuleBasedStateMachine):
    """Two pools that share sources, single tasks and bulks, every kind of end, operators who change everything while it runs."""

    @initialize(seed=st.integers(0, 3), attempts=st.integers(1, 4), hedge=hedges, first=strategies, second=strategies, told=limits)
    def begin(
        self, seed: int, attempts: int, hedge: Hedge | None, first: LoadBalanceStrategy, second: LoadBalanceStrategy, told: Limits
    ) -> None:
        self.driver = Driver(retry=Retry(attempts=attempts), seed=seed, hedge=hedge, strategy=first, refill=False)
        self.pools = [self.driver.pool, self.driver.new_pool("second", second)]
        self.over: list[Attempt] = []
        self.driver.add("a", told, pools=self.pools)

    # callers

    @rule(pick=picks, level=levels, timeout=st.sampled_from([None, 0.01, 1.0, 30.0]), prefix=prefixes)
    def submit(self, pick: int, level: int, timeout: float | None, prefix: Prefix | None) -> None:
        self.driver.submit(level, timeout, self.pools[pick % 2], prefix=prefix)

    @rule(pick=picks, timeout=st.sampled_from([None, 1.0]), many=st.lists(prefixes, min_size=4, max_size=12))
    def submit_many(self, pick: int, timeout: float | None, many: list[Prefix | None]) -> None:
        for prefix in many:
            self.driver.submit(timeout=timeout, pool=self.pools[pick % 2], prefix=prefix)

    @rule(
        pick=picks, level=levels, timeout=st.sampled_from([None, 1.0, 30.0]), size=st.integers(0, 40), mixed=st.lists(prefixes, min_size=1)
    )
    def open_feed(self, pick: int, level: int, timeout: float | None, size: int, mixed: list[Prefix | None]) -> None:
        self.driver.feed(size, level, timeout, self.pools[pick % 2], prefixes=mixed)

    @precondition(lambda self: self.driver.watch.asked)
    @rule(pick=picks, most=st.integers(1, 12))
    def read_input(self, pick: int, most: int) -> None:
        self.driver.serve(_one(self.driver.watch.asked, pick), most)

    @precondition(lambda self: self.driver.watch.feeds)
    @rule(pick=picks)
    def close_feed(self, pick: int) -> None:
        self.driver.withdraw(*self.driver.close_feed(_one(self.driver.watch.feeds, pick)))

    @rule(pick=picks, among_the_done=st.booleans())
    def withdraw(self, pick: int, among_the_done: bool) -> None:
        tasks: Any = self.driver.watch.finished if among_the_done else self.driver.watch.open
        if tasks:
            task: Task = _one(tasks, pick)
            self.driver.withdraw(task)

    # servers

    @precondition(lambda self: self.driver.watch.live)
    @rule(pick=picks, outcome=outcomes, after=seconds)
    def end(self, pick: int, outcome: Outcome, after: float) -> None:
        attempt = _one(self.driver.watch.live, pick)
        self.over.append(attempt)
        self.driver.end(attempt, outcome, after)

    @precondition(lambda self: self.driver.watch.live)
    @rule(outcome=failures, most=st.integers(2, 8))
    def fail_many(self, outcome: Outcome, most: int) -> None:
        for attempt in list(self.driver.watch.live)[:most]:
            self.over.append(attempt)
            self.driver.report(attempt, outcome)

    @precondition(lambda self: self.over)
    @rule(pick=picks, outcome=outcomes)
    def report_an_end_again(self, pick: int, outcome: Outcome) -> None:
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

    # operators

    @rule(pick=picks, what=limits, pools=st.integers(1, 3))
    def add_or_remove(self, pick: int, what: Limits, pools: int) -> None:
        name = NAMES[pick % len(NAMES)]
        if name in self.driver.sources:
            self.driver.remove(name)
            del self.driver.sources[name]
        else:
            self.driver.add(name, what, pools=[pool for number, pool in enumerate(self.pools) if pools & 1 << number])

    @precondition(lambda self: self.driver.sources)
    @rule(pick=picks, first=st.booleans())
    def join_or_leave(self, pick: int, first: bool) -> None:
        source = _one(dict.fromkeys(self.driver.sources.values()), pick)
        pool = self.pools[first]
        if pool in source.pools:
            self.driver.leave(source.name, pool)
        else:
            self.driver.join(source.name, pool)

    @precondition(lambda self: self.driver.sources)
    @rule(pick=picks, down=st.booleans())
    def mark(self, pick: int, down: bool) -> None:
        self.driver.mark(_one(dict.fromkeys(self.driver.sources), pick), down=down)

    @rule(names=st.lists(st.sampled_from(NAMES), min_size=1, unique=True), first=st.booleans(), strategy=strategies)
    def reroute(self, names: list[str], first: bool, strategy: LoadBalanceStrategy) -> None:
        known = [name for name in names if name in self.driver.sources]
        if known:
            waiting = [task for task in self.driver.watch.open if task.attempt is None and task.pool is self.pools[first]]
            self.driver.reroute(known, self.pools[first], strategy)
            if any(not self.driver[name].health.marked_unhealthy for name in known):
                early = [task for task in waiting if task.deadline > self.driver.now]
                assert all(task in self.driver.watch.open or task.unfit for task in early), "a new route failed what waits"

    # the end

    def teardown(self) -> None:
        """Once all is well again, everything that was asked for is done."""
        if not hasattr(self, "driver"):
            return
        driver = self.driver
        for name in driver.sources:
            driver.mark(name, down=False)
        for _ in range(MOST_WAKES):
            while driver.watch.asked:
                driver.serve(_one(driver.watch.asked, 0))
            for attempt in list(driver.watch.live):
                driver.end(attempt, CANCELLED if driver.is_cancelled(attempt) else Answer("yes", 1, 1))
            wake = driver.scheduler.next_wake()
            if wake is not None:
                driver.until(max(wake, driver.now))
            elif not driver.watch.live and not driver.watch.asked:
                driver.watch.check_all_over()
                return
        raise AssertionError("no end")


def _one(things: dict[Any, None], pick: int) -> Any:
    return list(things)[pick % len(things)]


Machine.TestCase.settings = settings(max_examples=30 * SCALE, stateful_step_count=40, deadline=None)
TestAnyOrderOfInputs = Machine.TestCase
