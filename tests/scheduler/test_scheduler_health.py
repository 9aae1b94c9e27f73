"""A source that fails leaves service, comes back by one real task, and is never given up altogether."""

from __future__ import annotations

from math import inf
from random import Random

from qreward.scheduler.health import FIRST_OPEN, IN_A_ROW, LONGEST_OPEN, Health

LIMIT = 8


class Middle(Random):
    """Jitter of exactly one."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def health() -> Health:
    return Health(Middle())


def fail(health: Health, now: float, task: int, *, last: bool = False) -> bool:
    return health.failed(now, now, task, last=last)


def opened(times: int = 1, *, last: bool = False) -> tuple[Health, float]:
    """A source that was opened so many times in a row, and when."""
    sick, now = health(), 0.0
    for task in range(IN_A_ROW):
        fail(sick, now, task, last=last)
    for _ in range(times - 1):
        now = sick.open_until
        sick.sent(now)
        fail(sick, now, 99, last=last)
    return sick, now


def test_five_failures_in_a_row_of_distinct_tasks_open_it() -> None:
    """Not one task that fails again and again, nor failures with an answer between them, nor a tenth of all."""
    sick, well = health(), health()
    assert [fail(sick, 1.0, task) for task in range(5)] == [False, False, False, False, True]
    assert sick.open_until == 1.0 + FIRST_OPEN
    assert not sick.in_service
    assert not any(fail(well, now, task=7) for now in range(100))
    well = health()
    for task in range(4):
        fail(well, 0.0, task)
    well.ok(0.0, 0.0, LIMIT)
    assert not any(fail(well, 1.0, task) for task in range(10, 12))
    for number in range(1000):
        assert not fail(well, 2.0, number)
        for _ in range(9):
            well.ok(2.0, 2.0, LIMIT)
    assert well.in_service


def test_more_failures_than_answers_of_three_distinct_tasks_open_it() -> None:
    sick, failures = health(), 0
    while sick.in_service and failures < 100:
        for _ in range(3):
            failures += 1
            if fail(sick, 0.0, failures):
                break
        sick.ok(0.0, 0.0, LIMIT)
    assert failures < 30
    assert not sick.in_service


def test_a_last_source_is_not_opened_for_a_bad_rate_of_answers_while_any_succeed() -> None:
    well = health()
    for number in range(200):
        assert not any(fail(well, 0.0, 4 * number + task, last=True) for task in range(4))
        well.ok(0.0, 0.0, LIMIT)
    assert well.in_service


def test_the_open_time_doubles_up_to_five_seconds_but_not_for_the_last_source() -> None:
    times, last = [], []
    for count in range(1, 9):
        sick, now = opened(count)
        times.append(sick.open_until - now)
        sick, now = opened(count, last=True)
        last.append(sick.open_until - now)
    assert times == [2.0, 4.0, *[LONGEST_OPEN] * 6]
    assert last == [FIRST_OPEN] * 8
    assert (FIRST_OPEN, LONGEST_OPEN) == (2.0, 5.0)


def test_it_is_jittered() -> None:
    times = set()
    for seed in range(20):
        sick = Health(Random(seed))
        for task in range(5):
            fail(sick, 0.0, task)
        times.add(sick.open_until)
    assert len(times) == 20
    assert all(0.5 * FIRST_OPEN <= time <= 1.5 * FIRST_OPEN for time in times)


def test_it_comes_back_by_one_real_task_and_one_more_for_each_answer_until_its_window_is_in_use() -> None:
    """Which doubles what is in flight with each round of answers. A request sent earlier does not begin the way back."""
    for limit, expected in ((LIMIT, [1, 2, 3, 4, 5, 6, 7, inf]), (1, [1, inf]), (2, [1, inf]), (3, [1, 2, inf])):
        back, _ = opened()
        back.sent(back.open_until - 0.1)
        assert not back.in_service
        assert back.half_open_limit == 1
        back.sent(back.open_until)
        assert back.in_service
        allowed = [back.half_open_limit]
        while back.half_open_limit < inf:
            back.ok(back.since, back.since, limit)
            allowed.append(back.half_open_limit)
        assert allowed == expected, limit


def test_a_first_task_that_fails_opens_it_again_for_longer() -> None:
    back, now = opened()
    now = back.open_until
    back.sent(now)
    assert fail(back, now + 1, task=1)
    assert back.open_until == now + 1 + 4.0
    assert back.half_open_limit == 1


def test_a_failure_later_on_the_way_back_takes_back_one_step() -> None:
    back, now = opened()
    now = back.open_until
    back.sent(now)
    back.ok(now, now, LIMIT)
    back.ok(now, now, LIMIT)
    assert not fail(back, now + 1, task=1)
    assert back.half_open_limit == 2


def test_a_source_with_ordinary_faults_comes_back() -> None:
    for share in (0.1, 0.2, 0.3):
        rng = Random(7)
        back, now = opened()
        for task in range(2000):
            if not back.in_service:
                now = back.open_until
                back.sent(now)
            if rng.random() < share:
                fail(back, now, task)
            else:
                back.ok(now, now, 64)
            if back.half_open_limit == inf:
                break
        assert back.half_open_limit == inf, f"with {share} faults, after 2,000 tasks"


def test_once_back_it_starts_with_a_clean_record() -> None:
    back, now = opened(5)
    now = back.open_until
    back.sent(now)
    for _ in range(7):
        back.ok(now, now, LIMIT)
    assert back.half_open_limit == inf
    assert [fail(back, now, task) for task in range(5)] == [False, False, False, False, True]
    assert back.open_until == now + FIRST_OPEN, "the open time starts anew as well"


def test_it_serves_again_from_the_first_answer_after_it_was_out_of_service_however_it_came_back() -> None:
    back, _ = opened()
    assert back.serving_since == -inf
    back.sent(back.open_until)
    back.ok(20.0, back.since, LIMIT)
    back.ok(21.0, back.since, LIMIT)
    assert back.serving_since == 20.0
    silent = health()
    silent.stall(30.0)
    silent.ok(31.0, 1.0, LIMIT)
    assert silent.serving_since == 31.0
    restored, _ = opened()
    restored.restore()
    assert not restored.clean, "its next answer is noted"
    restored.ok(40.0, 39.0, LIMIT)
    assert restored.serving_since == 40.0
    assert restored.clean


def test_each_change_between_in_service_back_and_neither_is_told_once() -> None:
    told: list[tuple[int, int]] = []
    watched = Health(Middle(), lambda in_service, is_back: told.append((in_service, is_back)))
    for task in range(5):
        fail(watched, 0.0, task)
    watched.sent(watched.open_until)
    watched.ok(5.0, watched.since, LIMIT)
    watched.mark_unhealthy()
    watched.mark_unhealthy()
    watched.restore()
    assert told == [(-1, -1), (1, 0), (0, 1), (-1, -1), (1, 1)]


def test_what_was_sent_before_it_opened_says_nothing_of_the_present() -> None:
    back, _ = opened()
    now = back.open_until + 1
    assert not back.failed(now - 0.5, 0.0, 77, last=False)
    back.ok(0.0, 0.0, LIMIT)
    back.sent(now)
    back.ok(0.0, 0.0, LIMIT)
    assert back.half_open_limit == 1
    assert not back.failed(now, 0.0, 78, last=False)
    assert back.in_service


def test_an_operator_takes_it_out_and_brings_it_back_with_a_clean_record() -> None:
    sick, _ = opened(4)
    sick.mark_unhealthy()
    assert not sick.in_service
    sick.restore()
    assert sick.in_service
    assert sick.half_open_limit == inf
    for task in range(5):
        fail(sick, 100.0, task)
    assert sick.open_until == 100.0 + FIRST_OPEN
    sick.eject(110.0, 300.0)
    assert sick.open_until == 410.0
    assert not sick.in_service
    assert sick.half_open_limit == 1
