"""Attempts that hang are copied, overdue ones stopped, and a clock that is late is held against no source."""

from __future__ import annotations

from scheduler_driver import Driver
from scheduler_warm import HANGS_ONLY, PACE, TOKENS, copy, live, warm, warm_all

from qreward.scheduler.outcome import Answer, FailureKind
from qreward.scheduler.task import Task, TaskState
from qreward.settings.policies import Hedge, Retry

K = FailureKind
HUNG = 1.25
"""Seconds after which an attempt is suspected where answers take one: 1.3 times, as exactly as lengths are known."""
STALL = 0.1
"""Seconds by which a tick may be late before nothing is held against anybody, and for which it then is not."""


def hang(driver: Driver, name: str) -> Task:
    """A task that was sent to a source, which is not going to answer."""
    others = [other for other in driver.sources if other != name and not driver[other].health.marked_unhealthy]
    for other in others:
        driver.mark(other, down=True)
    task = driver.submit()
    for other in others:
        driver.mark(other, down=False)
    assert driver.where(task) == name
    return task


# attempts that hang


SUSPECTS: dict[str, tuple[dict[str, float | None], list[int], str, float, float]] = {
    "at a usual source": ({"a": PACE, "b": 3 * PACE}, [TOKENS], "a", 0.95 * HUNG, HUNG + 0.3),
    "at a slow source": ({"a": PACE, "b": 3 * PACE}, [TOKENS], "b", 0.95 * 3 * HUNG, 3 * HUNG + 0.3),
    "an item of a bulk": ({"a": PACE, "b": 3 * PACE}, [TOKENS], "a", 0.95 * HUNG, HUNG + 0.3),
    "where one in a hundred is long": ({"a": PACE, "b": PACE}, [TOKENS] * 127 + [5 * TOKENS], "a", 1.1 * 5.0, 1.6 * 5.0),
    "at one that never answered": ({"a": PACE, "b": 2 * PACE, "c": None}, [TOKENS], "c", 8 * HUNG - 0.2, 8 * HUNG + 2.4),
}
"""Paces of the sources, None for one that never answered; lengths of answers; where an attempt hangs; after which seconds it is not copied
yet, and after which it is. It is the length that one in a thousand exceeds that counts; the pace of an unknown source is taken for four
times the slowest."""


def test_an_attempt_far_longer_than_the_longest_answers_at_its_sources_pace_is_copied() -> None:
    for what, (paces, lengths, name, early, late) in SUSPECTS.items():
        driver = Driver(dict.fromkeys(paces, 8), hedge=HANGS_ONLY)
        for source, pace in paces.items():
            if pace is not None:
                warm(driver, source, pace, lengths)
        if what == "an item of a bulk":
            driver.feed(1)
            task = driver.at(name)[0].task
        else:
            task = hang(driver, name)
        driver.wait(early)
        assert task.copy is None, what
        driver.wait(late - early)
        assert copy(task).source.name != name, what
        assert task.suspected == 1, what
        driver.ok(copy(task))
        assert isinstance(driver.outcome(task), Answer), what
    known = warm_all(Driver({"a": 4, "b": 4}, hedge=HANGS_ONLY), answers=48)
    task = hang(known, "a")
    known.wait(4.5)
    assert task.copy is None, "little is known, so only what takes four times as long as the longest answer is suspected"
    known.wait(1.5)
    assert copy(task).source.name == "b"
    unknown = warm_all(Driver({"a": 4, "b": 4}, hedge=HANGS_ONLY), answers=8)
    task = hang(unknown, "a")
    unknown.wait(9.0)
    assert task.copy is None, "too little is known to suspect anything"


def test_what_seems_to_hang_goes_ahead_of_work_that_waits() -> None:
    driver = warm_all(Driver({"a": 1, "b": 1}, hedge=HANGS_ONLY))
    hung = hang(driver, "a")
    driver.wait(0.5)
    other = hang(driver, "b")
    waiting = [driver.submit() for _ in range(3)]
    driver.feed(3)
    driver.wait(1.0)
    assert hung.state is TaskState.QUEUED
    assert other.copy is None
    driver.ok(live(other), after=0.0)
    assert copy(hung).source.name == "b"
    assert all(task.attempt is None for task in waiting)


def test_an_attempt_past_its_time_limit_is_cancelled_and_not_its_copy_which_has_done_less() -> None:
    driver = Driver(hedge=Hedge(after=9.0))
    for name in "ab":
        driver.add(name, attempt_timeout=10.0)
    task = driver.submit()
    first = live(task)
    driver.wait(10.2)
    assert driver.is_cancelled(first)
    assert not driver.is_cancelled(copy(task))


def test_what_seems_to_hang_waits_for_a_quick_source_rather_than_go_to_one_that_is_slow() -> None:
    driver = Driver({"a": 4, "quick": 1, "slow": 1}, hedge=HANGS_ONLY)
    for name, pace, answers in (("a", PACE, 128), ("quick", PACE, 128), ("slow", 20 * PACE, 4)):
        warm(driver, name, pace, answers=answers)
    busy, task = hang(driver, "quick"), hang(driver, "a")
    driver.wait(1.1 * HUNG)
    assert (task.state, task.copy) == (TaskState.QUEUED, None)
    driver.ok(live(busy), after=0.0)
    assert copy(task).source.name == "quick"


def test_the_time_doubles_with_each_suspicion_of_the_same_task() -> None:
    driver = warm_all(Driver({"a": 4, "b": 4, "c": 4}, hedge=HANGS_ONLY, retry=Retry(attempts=9)))
    task = hang(driver, "a")
    began = driver.now
    for number in range(3):
        limit = HUNG * 2**number
        driver.until(began + 0.95 * limit)
        assert task.suspected == number
        driver.until(began + limit + 0.4)
        assert task.suspected == number + 1
        driver.fail(copy(task), K.OVERLOADED)


def test_a_task_that_hangs_is_copied_as_long_as_a_try_is_left_for_the_copy() -> None:
    for attempts, fails in ((1, 0), (2, 1), (3, 2), (2, 0)):
        driver = warm_all(Driver({"a": 4, "b": 4}, hedge=HANGS_ONLY, retry=Retry(attempts=attempts, base=0.01)))
        task = driver.submit()
        for _ in range(fails):
            driver.fail(live(task), K.TRANSIENT)
            driver.wait(0.1)
        driver.wait(2.0 if attempts > fails + 1 else 8.0)
        assert len(driver.path(task)) == 1 + fails + (attempts > fails + 1), (attempts, fails)


def test_a_suspicion_is_held_until_a_source_is_there_costs_nothing_before_and_stays_within_the_budget() -> None:
    driver = warm_all(Driver({"a": 4, "b": 4}, hedge=Hedge(after=1000.0, reserve=1, budget=0.0)))
    task, other = hang(driver, "a"), hang(driver, "a")
    driver.mark("b", down=True)
    driver.wait(3.0)
    assert task.suspected == 0
    assert task.state is TaskState.SENT
    driver.mark("b", down=False)
    driver.wait(5.0)
    assert copy(task).source.name == "b"
    assert other.copy is None
    assert other.suspected == 0


# time limits


def test_a_time_limit_that_an_operator_has_set_holds_for_copies_too() -> None:
    driver = Driver({"a": 4}, hedge=Hedge(after=2.0))
    driver.add("b", attempt_timeout=3.0)
    task = hang(driver, "a")
    driver.wait(2.5)
    second = copy(task)
    driver.until(second.sent_at + 2.9)
    assert not driver.is_cancelled(second)
    driver.wait(0.5)
    assert driver.is_cancelled(second)
    driver.cancelled(second)
    assert driver.where(task) == "a"


# a clock that comes late


def late(driver: Driver, seconds: float) -> None:
    """The loop was busy: a tick comes so much later than it was asked for."""
    wake = driver.scheduler.next_wake()
    assert wake is not None
    driver.now = wake + seconds
    driver.tick()


def test_after_a_stall_nothing_is_held_against_an_attempt_until_answers_could_be_read() -> None:
    """Neither overdue, nor suspected, nor hedged. A little late is no stall."""
    for hedge, seconds in ((None, 60.0), (Hedge(), 5.0)):
        driver = warm_all(Driver({"a": 4, "b": 4}, hedge=hedge))
        task = hang(driver, "a")
        late(driver, seconds)
        driver.wait(STALL - 0.02)
        assert not driver.is_cancelled(live(task))
        assert task.copy is None
        driver.wait(0.05)
        assert driver.is_cancelled(live(task)) if hedge is None else task.copy is not None
    driver = Driver({"a": 4, "b": 4}, hedge=Hedge(after=2.0))
    task = hang(driver, "a")
    late(driver, 0.9 * STALL)
    assert task.copy is not None
    driver = warm_all(Driver({"slow": 4, "quick": 4}, hedge=Hedge(after=1000.0)), slow=0.2)
    driver.mark("quick", down=True)
    driver.feed(1)
    [attempt] = driver.at("slow")
    driver.mark("quick", down=False)
    late(driver, 1.0)
    assert attempt.task.copy is None, "nor copied at the end of a bulk"


def test_tail_copies_leave_the_slots_that_are_kept_for_single_calls_while_another_bulk_waits() -> None:
    driver = warm_all(Driver({"a": 10, "b": 10}, hedge=Hedge(after=1000.0)), lengths=[40])
    driver.ok(live(driver.submit()), after=0.0)
    driver.feed(2)
    last = [attempt.task for attempt in driver.watch.live]
    assert len(last) == 2
    other = driver.feed(100)
    while driver.now < live(last[0]).sent_at + 2.2:  # longer than one percent, less than what a hang takes
        for attempt in list(driver.watch.live):
            if attempt.task not in last and driver.now - attempt.sent_at >= 1.0:
                driver.report(attempt, Answer("yes", 10, 20))
        driver.wait(0.1)
    assert other.buffer
    assert all(task.copy is None for task in last)


def test_a_loop_that_is_always_late_still_ends_what_is_overdue() -> None:
    driver = warm_all(Driver({"a": 4}))
    task = driver.submit()
    for _ in range(300):
        late(driver, 0.15)
    assert driver.is_cancelled(live(task)), f"an attempt of {driver.now - live(task).sent_at:.0f} s"
