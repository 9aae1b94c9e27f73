"""When a second source gets a copy: hedges of single calls, the tail of a bulk, and the budget that both draw on."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scale import SCALE
from scheduler_driver import Driver
from scheduler_warm import PACE, copy, live, warm, warm_all

from qreward.scheduler.hedging import KEPT, HedgingPolicy
from qreward.scheduler.outcome import CANCELLED, Answer, FailureKind
from qreward.scheduler.stats import AnswerLengths, StreamTiming
from qreward.scheduler.task import BatchFeed, CancelReason, Task
from qreward.settings.policies import Hedge, Retry

K = FailureKind
AFTER_2 = Hedge(after=2.0)
TAIL_ONLY = Hedge(after=1000.0)


def two_at_work() -> tuple[Driver, Task]:
    """A task that has been copied."""
    driver = Driver({"a": 4, "b": 4}, hedge=AFTER_2)
    task = driver.submit()
    driver.wait(1.95)
    assert task.copy is None
    driver.wait(0.15)
    assert {live(task).source.name, copy(task).source.name} == {"a", "b"}
    assert copy(task).sent_at == pytest.approx(2.0, abs=0.05)
    return driver, task


# hedges of single calls


def test_the_first_answer_ends_both_attempts_and_a_later_one_is_ignored() -> None:
    for copy_wins, late in product((False, True), (False, True)):
        driver, task = two_at_work()
        first, second = live(task), copy(task)
        winner, loser = (second, first) if copy_wins else (first, second)
        driver.add("c")
        driver.wait(20.0)
        assert len(driver.path(task)) == 2, "once, however many sources there are"
        driver.ok(winner, after=0.5)
        told = driver.outcome(task)
        assert isinstance(told, Answer)
        assert driver.is_cancelled(loser)
        assert loser.cancel_reason is CancelReason.BEATEN
        assert task.trail is not None
        [record] = task.trail
        assert (record.endpoint, record.outcome, record.hedge) == (loser.source.name, "cancelled", not copy_wins)
        assert winner.source.name in record.detail
        if late:
            driver.ok(loser, after=0.1)
        else:
            driver.cancelled(loser, after=0.1)
        assert driver.outcome(task) is told
        driver.watch.check_all_over()
        assert task.tries == 0
        assert driver["a"].health.in_service
        assert driver["b"].health.in_service


@pytest.mark.parametrize(("quantile", "seconds"), [(0.95, 3.0), (0.8, 1.0)])
def test_without_a_time_given_it_is_what_a_share_of_the_sources_own_answers_take(quantile: float, seconds: float) -> None:
    early = warm_all(Driver({"a": 4, "b": 4}, hedge=Hedge(quantile=quantile)), answers=19)
    unknown = early.submit()
    early.wait(3.5)
    assert unknown.copy is None, "nineteen answers tell nothing of a quantile"
    early.wait(1.5)
    assert unknown.copy is not None, "but others have shown theirs, and it takes more than four times as long"
    driver = warm_all(Driver({"a": 8, "b": 8}, hedge=Hedge(quantile=quantile)), lengths=[20] * 14 + [60] * 2, b=0.02)
    driver.mark("b", down=True)
    task = driver.submit()
    driver.mark("b", down=False)
    driver.wait(0.9 * seconds)
    assert task.copy is None
    driver.wait(0.3 * seconds)
    assert copy(task).sent_at - live(task).sent_at == pytest.approx(seconds, rel=0.15)
    assert task.suspected == 0


def test_a_stream_is_hedged_by_the_time_of_first_tokens_and_another_call_by_that_of_whole_answers() -> None:
    """At the source whole answers take 10 s and first tokens 1 s; the other one is quicker or slower."""
    seen = {}
    for streamed, first, whole in ((True, 1.0, 10.0), (True, 5.0, 10.0), (False, 1.0, 0.5), (False, 1.0, 30.0)):
        driver = Driver({"a": 4, "b": 4}, hedge=Hedge(quantile=0.9))
        for source, begins, ends in zip(driver.sources.values(), (1.0, first), (10.0, whole), strict=True):
            source.stream_timing = StreamTiming()
            for _ in range(100):
                source.latency.add(ends)
                source.stream_timing.began(begins)
        driver.scheduler.check_attempts_again(0.0, list(driver.sources.values()))
        task = driver.task()
        task.streamed = streamed
        driver.mark("b", down=True)
        driver.scheduler.submit(0.0, task)
        driver.mark("b", down=False)
        assert driver.where(task) == "a"
        while task.copy is None and driver.now < 60.0:
            driver.wait(0.1)
        seen[streamed, first, whole] = driver.now
    expected = {(True, 1.0, 10.0): 1.2, (True, 5.0, 10.0): 5.2, (False, 1.0, 0.5): 10.5, (False, 1.0, 30.0): 30.5}
    assert seen == pytest.approx(expected, abs=0.6)


def test_there_is_no_hedge_while_no_other_source_has_a_free_slot_and_there_is_one_when_it_has() -> None:
    """The one that is not made costs no budget."""
    driver = Driver({"a": 1, "b": 1}, hedge=Hedge(after=2.0, budget=0.0, reserve=1))
    first, second = driver.submit(), driver.submit()
    driver.wait(10.0)
    assert len(driver.watch.sends) == 2
    driver.ok(live(second), after=0.0)
    driver.wait(0.3)
    assert first.copy is not None, "it is looked for again within a quarter of a second"
    driver.watch.sends.clear()
    driver.submit()
    assert not driver.watch.sends, "a hedge takes a slot like any other"


def call_of_mixed_lengths(pace: float, others: float) -> bool:
    """Whether a call is copied that takes twice as long as usual, at a source of this pace beside one of another, of free slots."""
    driver = warm_all(Driver({"a": 4, "b": 4}, hedge=Hedge(quantile=0.5, tail=False)), lengths=[10] * 9 + [100], a=pace, b=others)
    driver.mark("b", down=True)
    task = driver.submit()
    driver.mark("b", down=False)
    driver.wait(60 * pace)
    return task.copy is not None


def test_a_call_whose_answer_may_just_be_long_is_copied_only_to_a_source_that_is_much_faster() -> None:
    assert not call_of_mixed_lengths(PACE, PACE)
    assert call_of_mixed_lengths(8 * PACE, PACE)


def test_a_call_is_not_copied_without_a_policy_if_it_must_not_be_or_if_it_is_an_item_of_a_bulk() -> None:
    for hedge, allowed, copied in ((AFTER_2, True, True), (None, True, False), (AFTER_2, False, False)):
        driver = warm_all(Driver({"a": 4, "b": 4}, hedge=hedge))
        sends = len(driver.watch.sends)
        task = driver.submit()
        task.hedge = allowed
        if hedge is not None:
            driver.pool.common.lengths = AnswerLengths()  # of which nothing is known: no item is among the longest
        driver.feed(2)
        driver.wait(9.0)
        assert [attempt.task for _, attempt in driver.watch.sends[sends + 3 :]] == [task] * copied


def test_the_last_attempt_that_a_task_may_make_is_not_copied() -> None:
    for attempts, failures, copied in ((1, 0, False), (2, 0, True), (2, 1, False), (3, 1, True)):
        driver = Driver(dict.fromkeys("abc", 4), hedge=AFTER_2, retry=Retry(attempts=attempts, base=0.01))
        task = driver.submit()
        for _ in range(failures):
            driver.fail(live(task), K.TRANSIENT)
            driver.wait(0.1)
        driver.wait(3.0)
        assert (task.copy is not None) is copied, (attempts, failures)


# the budget


def test_the_reserve_allows_so_many_copies_and_the_budget_a_share_of_the_requests_not_counting_retries() -> None:
    driver = Driver({"a": 50, "b": 50}, hedge=Hedge(after=2.0, budget=0.25, reserve=3), retry=Retry(attempts=10, base=0.01))
    tasks = [driver.submit() for _ in range(20)]
    for _ in range(4):
        driver.fail(live(tasks[0]), K.TRANSIENT, after=0.0)
        driver.wait(0.1)
    driver.wait(30.0)
    assert sum(task.copies for task in tasks) == 3 + 20 // 4


kinds = st.sampled_from(["submit", "submit", "bulk", "wait", "wait", "ok", "fail", "refuse", "full"])
moves = st.lists(st.tuples(kinds, st.integers(0, 99)), min_size=20, max_size=60)


@settings(deadline=None, max_examples=30 * SCALE)
@given(moves, st.sampled_from([0.0, 0.05, 0.5]), st.integers(0, 4), st.booleans())
def test_copies_never_exceed_the_budget_nor_is_a_task_ever_more_than_twice_under_way(
    moves: list[tuple[str, int]], budget: float, reserve: int, known: bool
) -> None:
    """Two slots a source: none holds enough to be called silent, whose copies are not budgeted."""
    driver = Driver({"a": 2, "b": 2, "c": 2}, hedge=Hedge(after=1.0, budget=budget, reserve=reserve))
    if known:
        warm_all(driver)
    for what, number in moves:
        _move(driver, what, number)
        held: dict[Task, set[str]] = {}
        for attempt in driver.watch.live:
            if attempt.cancel_reason is None:
                names = held.setdefault(attempt.task, set())
                assert attempt.source.name not in names, "twice at one source"
                names.add(attempt.source.name)
        assert all(len(names) <= 2 for names in held.values())
        copies = sum(source.tally.hedged for source in driver.sources.values())
        requests = len({attempt.task for _, attempt in driver.watch.sends})
        assert copies <= reserve + budget * requests + 1e-9
    for attempt in list(driver.watch.live):
        driver.end(attempt, CANCELLED)


def _move(driver: Driver, what: str, number: int) -> None:
    running = list(driver.watch.live)
    if what == "submit":
        driver.submit()
    elif what == "bulk":
        driver.feed(number % 7)
    elif what == "wait":
        driver.wait(number / 10)
    elif running:
        attempt = running[number % len(running)]
        if what == "ok":
            driver.ok(attempt, after=0.1)
        else:
            driver.fail(attempt, {"fail": K.TRANSIENT, "refuse": K.REFUSED, "full": K.OVERLOADED}[what])


# the tail of a bulk


def bulk_at(driver: Driver, name: str, count: int = 1) -> list[Task]:
    """A bulk, all of it under way at one source."""
    others = [other for other in driver.sources if other != name]
    for other in others:
        driver.mark(other, down=True)
    before = set(driver.at(name))
    driver.feed(count)
    for other in others:
        driver.mark(other, down=False)
    tasks = [attempt.task for attempt in driver.at(name) if attempt not in before]
    assert len(tasks) == count
    return tasks


def test_the_last_items_of_a_bulk_are_copied_to_an_idle_source_that_would_be_done_sooner() -> None:
    """Unless that is not wanted, or the other is hardly quicker."""
    no_tail = Hedge(after=1000.0, tail=False)
    for pace, hedge, copied in (
        (0.2, TAIL_ONLY, True),
        (None, TAIL_ONLY, True),  # it has not answered yet
        (0.06, TAIL_ONLY, False),
        (0.2, no_tail, False),
    ):
        driver = Driver({"slow": 4, "quick": 4}, hedge=hedge)
        for name, seconds in (("quick", PACE), ("slow", pace)):
            if seconds is not None:
                warm(driver, name, seconds)
        [task] = bulk_at(driver, "slow")
        driver.wait(0.6)
        assert (task.copy is not None) == copied, (pace, hedge)
        if task.copy is not None:
            assert task.copy.source.name == "quick"
            assert task.copy.sent_at - live(task).sent_at < 0.3
            driver.ok(task.copy)
            assert isinstance(driver.outcome(task), Answer)


def test_the_item_with_most_to_go_is_copied_first() -> None:
    driver = warm_all(Driver({"slow": 2, "quick": 1}, hedge=TAIL_ONLY), slow=0.2)
    driver.mark("quick", down=True)
    driver.feed(1)
    driver.wait(0.5)
    driver.feed(1)
    older, younger = (attempt.task for attempt in driver.at("slow"))
    driver.mark("quick", down=False)
    driver.wait(0.3)
    assert younger.copy is not None
    assert older.copy is None, "there was room for one"
    driver.ok(copy(younger), after=0.2)
    driver.wait(0.3)
    assert older.copy is not None


def test_no_tail_copy_goes_to_a_source_much_slower_than_the_quickest() -> None:
    driver = warm_all(Driver({"slow": 1, "middling": 4, "quick": 1}, hedge=TAIL_ONLY), slow=0.4, middling=0.1)
    busy = bulk_at(driver, "quick")
    [task] = bulk_at(driver, "slow")
    driver.wait(0.9)
    assert task.copy is None
    driver.ok(live(busy[0]), after=0.0)
    driver.wait(0.3)
    assert copy(task).source.name == "quick"


def test_when_the_fastest_source_has_no_slot_left_the_next_copy_goes_to_the_second_fastest() -> None:
    driver = warm_all(Driver({"slow": 2, "fast": 1, "second": 1}, hedge=TAIL_ONLY), slow=0.4, second=1.2 * PACE)
    tasks = bulk_at(driver, "slow", 2)
    driver.wait(0.9)
    assert {copy(task).source.name for task in tasks} == {"fast", "second"}
    assert len({copy(task).sent_at for task in tasks}) == 1


def test_no_tail_copy_is_made_while_items_of_any_bulk_wait_or_more_of_its_own_may_come() -> None:
    driver = warm_all(Driver({"slow": 1, "quick": 1}, hedge=TAIL_ONLY), slow=0.4)
    [last] = bulk_at(driver, "slow")
    other = driver.feed(4)
    for _ in range(4):
        assert last.copy is None
        driver.ok(driver.at("quick")[0], after=0.3)
    assert not other.buffer
    assert last.feed is not None
    last.feed.ended = False
    driver.wait(1.0)
    assert last.copy is None
    last.feed.ended = True
    driver.wait(0.3)
    assert last.copy is not None


def test_tail_copies_leave_half_of_the_reserve_to_requests_that_hang() -> None:
    driver = warm_all(Driver({"slow": 5, "quick": 10}, hedge=Hedge(after=1000.0, reserve=4, budget=0.0)), slow=0.2)
    tasks = bulk_at(driver, "slow", 5)
    driver.wait(3.0)
    assert sum(task.copy is not None for task in tasks) == 2
    driver.wait(4.0)
    assert sum(task.suspected for task in tasks) == 2
    assert sum(task.copy is not None for task in tasks) == 4


def test_the_last_requests_may_use_the_whole_budget_once_it_is_enough_for_all_of_them() -> None:
    driver = warm_all(Driver({"slow": 4, "quick": 8}, hedge=Hedge(after=1000.0, reserve=4, budget=0.0)), slow=0.2)
    tasks = bulk_at(driver, "slow", 4)
    driver.wait(3.0)
    assert all(task.copy is not None for task in tasks)


def test_an_item_is_not_copied_to_a_source_of_another_pool() -> None:
    driver = warm_all(Driver({"slow": 2, "quick": 4}, hedge=TAIL_ONLY), slow=0.2)
    other = driver.new_pool("other")
    driver.join("slow", other)
    driver.feed(1, pool=other)
    [task] = bulk_at(driver, "slow")
    foreign = driver.at("slow")[0].task
    driver.wait(3.0)
    assert task.copy is not None
    assert foreign.pool is other
    assert foreign.copy is None


@pytest.mark.parametrize("tail", [False, True])
def test_in_the_tail_an_answer_among_the_longest_percent_goes_to_an_equal_source_too(tail: bool) -> None:
    driver = warm_all(Driver({"a": 2, "b": 2}, hedge=Hedge(after=1000.0, tail=tail)), lengths=[40])
    [task] = bulk_at(driver, "a")
    driver.wait(1.8)
    assert task.copy is None
    driver.wait(0.5)
    assert (task.copy is not None) is tail
    assert task.suspected == 0


# what is looked at, and when


def test_a_feed_that_has_ended_leaves_no_clock_running() -> None:
    driver = warm_all(Driver({"a": 2, "b": 2}, hedge=Hedge()))
    feed: BatchFeed = driver.feed(3)
    for attempt in list(driver.watch.live):
        driver.ok(attempt, after=0.05)
    assert not feed.buffer
    assert driver.scheduler.next_wake() is None


def test_a_million_requests_do_not_save_up_a_budget_of_thousands_of_copies() -> None:
    policy = HedgingPolicy(Hedge(budget=0.05, reserve=32), tries=4)
    policy.sends = 1_000_000
    copies = 0
    while policy.withdraw():
        copies += 1
    assert copies == 32 + 0.05 * KEPT
    assert KEPT == 10_000
