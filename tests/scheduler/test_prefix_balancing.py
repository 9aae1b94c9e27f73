"""Where a single call is placed at once: at the source with its prefix if that is expected to answer first."""

from __future__ import annotations

from collections import Counter

from scheduler_driver import Driver
from scheduler_warm import live

from qreward.scheduler.outcome import FailureKind
from qreward.scheduler.prefixes import Prefix
from qreward.scheduler.task import Task
from qreward.settings.policies import Hedge, Limits


def submit(driver: Driver, key: int | None, share: float = 0.9) -> Task:
    """Submit a task whose group makes up this share of its prompt."""
    return driver.submit(prefix=None if key is None else Prefix((key,), (10_000.0 * share,), 10_000.0, named=True))


def placed(driver: Driver, *keys: int | None) -> list[str | None]:
    return [driver.where(submit(driver, key)) for key in keys]


def answered(driver: Driver, seconds: float) -> None:
    """Every source answers one call in so many seconds."""
    for _ in driver.sources:
        submit(driver, None)
    driver.wait(seconds)
    for attempt in list(driver.watch.live):
        driver.ok(attempt, after=0.0)


def test_a_call_goes_where_its_prefix_is_unless_that_source_is_much_busier() -> None:
    for known in (False, True):
        driver = Driver(dict.fromkeys("abcd", 16))
        if known:
            answered(driver, 1.0)
        homes = placed(driver, 1, 2, 1, 1, 2, 2)
        assert homes[0] == homes[2] == homes[3] != homes[1] == homes[4] == homes[5]
        assert len(set(placed(driver, *[1] * 40))) > 1, "one source does not take them all"


def test_a_quick_source_is_not_left_for_a_slow_one_with_the_prefix() -> None:
    driver = Driver({"a": 8, "b": 8})
    tasks = [submit(driver, key) for key in (1, 2, 1, 2, 1, 2, 1, 2)]
    there, elsewhere = tasks[::2], tasks[1::2]
    home = driver.where(there[0])
    assert {driver.where(task) for task in there} == {home}
    driver.wait(1.0)
    for task in elsewhere:
        driver.ok(live(task), after=0.0)
    driver.wait(9.0)
    for task in there:
        driver.ok(live(task), after=0.0)
    assert driver.where(submit(driver, 1)) != home


def test_a_source_that_has_not_answered_yet_counts_as_quick_as_the_others() -> None:
    """So a call goes where its prefix is, and a call without a prefix to the new source as soon as the other has work."""
    driver = Driver({"a": 8})
    answered(driver, 1.0)
    driver.ok(live(submit(driver, 1)))
    driver.add("new", Limits(max_concurrency=8))
    assert placed(driver, 1, None) == ["a", "new"]


def test_a_source_with_the_prefix_and_no_free_slot_or_one_to_be_avoided_is_passed_over() -> None:
    driver = Driver({"a": 4, "b": 4, "c": 4})
    answered(driver, 1.0)
    first = submit(driver, 1)
    home = driver.where(first)
    driver[str(home)].window.limit = 1
    assert placed(driver, 1)[0] not in {home, None}
    driver[str(home)].window.limit = 4
    driver.fail(live(first), FailureKind.TRANSIENT)
    driver.wait(2.0)
    assert driver.where(first) not in {home, None}, "an equal source is expected to answer it sooner than the one at which it failed"


def test_with_little_of_its_prompt_cached_a_call_is_balanced_as_any_other() -> None:
    driver = Driver(dict.fromkeys("ab", 16))
    answered(driver, 1.0)
    where = Counter(driver.where(submit(driver, 1, share=0.01)) for _ in range(16))
    assert max(where.values()) <= 10


def test_copies_go_elsewhere_although_the_prefix_is_not_there() -> None:
    driver = Driver(dict.fromkeys("abc", 4), hedge=Hedge(after=1.0, budget=1.0))
    answered(driver, 0.1)
    driver.ok(submit(driver, 1).attempt, after=0.1)  # type: ignore[arg-type]
    task = submit(driver, 1)
    assert task.attempt is not None
    assert task.attempt.cached.tokens > 0
    driver.wait(2.0)
    assert task.copy is not None
    assert task.copy.source is not task.attempt.source
    assert task.copy.cached.tokens == 0
