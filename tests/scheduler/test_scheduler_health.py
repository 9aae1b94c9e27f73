"""A source that fails leaves service and comes back by one real task; one that says "too much" is left alone as long as it asked."""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_driver import Driver

from qreward.scheduler.health import FIRST, FIRST_OPEN, IN_A_ROW, LONGEST, LONGEST_OPEN, Cooldown, Health
from qreward.scheduler.outcome import FailureKind
from qreward.settings.policies import Retry

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


def test_each_change_between_in_service_back_and_neither_is_reported_once() -> None:
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


def cooldown() -> Cooldown:
    return Cooldown(Middle())


def send(cooldown: Cooldown, now: float) -> None:
    """As a source does: an open cooldown need not be told."""
    assert cooldown.opens_at <= now
    if cooldown.closed:
        cooldown.sent(now)


def reject(cooldown: Cooldown, now: float, sent_at: float, hint: float | None = None) -> None:
    cooldown.rejected(now, sent_at, hint)


def test_without_a_hint_it_closes_for_a_quarter_second_doubling_up_to_the_longest_until_there_is_an_answer() -> None:
    closed, now, pauses = cooldown(), 0.0, []
    for number in range(9):
        send(closed, now)
        if number == 7:
            closed.ok(now)
            assert closed.opens_at <= now
        else:
            reject(closed, now + 0.01, now)
            pauses.append(closed.opens_at - now - 0.01)
        now = max(now, closed.opens_at) + 1.0
    assert pauses == pytest.approx([FIRST, 0.5, 1.0, 2.0, LONGEST, LONGEST, LONGEST, FIRST])
    assert (FIRST, LONGEST) == (0.25, 3.2)


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_jitter_is_at_most_half_of_the_pause(seed: int, rejects: int) -> None:
    closed, now = Cooldown(Random(seed)), 0.0
    for number in range(rejects):
        send(closed, now)
        reject(closed, now, now)
        pause = min(LONGEST, FIRST * 2.0**number)
        assert 0.5 * pause <= closed.opens_at - now <= 1.5 * pause
        now = closed.opens_at + 0.001


def test_a_burst_of_rejects_closes_once() -> None:
    closed = cooldown()
    for _ in range(5):
        send(closed, 0.0)
    reject(closed, 0.03, 0.0)
    until = closed.opens_at
    for late in (0.04, 0.05, 0.2):
        reject(closed, late, 0.0)
    assert closed.opens_at == until
    send(closed, until)
    reject(closed, until + 0.01, until)
    assert closed.opens_at == pytest.approx(until + 0.01 + 0.5), "the burst counted as one closing"


def test_a_hint_is_obeyed_to_the_letter_and_the_longest_of_several_counts() -> None:
    closed = cooldown()
    reject(closed, 1.0, 0.0, hint=2.0)
    assert closed.opens_at == 3.0
    reject(closed, 1.1, 0.0, hint=5.0)
    reject(closed, 1.2, 0.0, hint=1.0)
    reject(closed, 1.3, 1.2)
    assert closed.opens_at == pytest.approx(6.1)


def test_after_the_pause_one_probe_goes_and_the_rest_waits_for_its_answer_but_not_for_long() -> None:
    """A long answer proves by its silence that there was room."""
    for answered in (True, False):
        closed = cooldown()
        reject(closed, 0.0, 0.0, hint=1.0)
        send(closed, 1.0)
        assert closed.opens_at == pytest.approx(1.0 + FIRST)
        if answered:
            closed.ok(1.0)
            assert closed.opens_at <= 1.0
        else:
            send(closed, 1.3)
            assert closed.opens_at <= 1.3


def test_the_rest_waits_three_times_as_long_as_a_reject_takes() -> None:
    slow = cooldown()
    for now in range(0, 300, 10):
        send(slow, now)
        reject(slow, now + 2.0, now, hint=1.0)
    send(slow, 400.0)
    assert slow.opens_at == pytest.approx(400.0 + 3 * 2.0, rel=0.01)


def test_an_answer_to_what_was_sent_before_the_closing_does_not_open_it() -> None:
    closed = cooldown()
    send(closed, 0.0)
    send(closed, 0.0)
    reject(closed, 0.5, 0.0, hint=10.0)
    closed.ok(0.0)
    assert closed.opens_at == 10.5
    send(closed, 10.5)
    closed.ok(0.0)
    assert closed.opens_at > 10.5, "only the probe's own answer opens"


def test_a_hint_that_comes_while_the_probe_is_under_way_outlasts_the_probes_answer() -> None:
    """Two were sent; the first is turned away at once, the second only later, and with a hint."""
    closed = cooldown()
    send(closed, 0.0)
    send(closed, 0.0)
    reject(closed, 0.1, 0.0)
    probe = closed.opens_at
    send(closed, probe)
    reject(closed, probe + 0.1, 0.0, hint=10.0)
    closed.ok(probe)
    assert closed.opens_at == probe + 0.1 + 10.0
    send(closed, closed.opens_at)
    assert closed.opens_at >= probe + 10.1 + FIRST, "one probe goes first after a hint, too"


moves = st.lists(
    st.tuples(st.sampled_from(["send", "ok", "reject"]), st.integers(0, 9), st.floats(0, 2), st.sampled_from([None, 0.5, 5.0])), max_size=40
)


@given(moves)
def test_whatever_happens_nothing_is_allowed_before_a_hint_has_passed(moves: list[tuple[str, int, float, float | None]]) -> None:
    closed, now, under_way, stay_away = cooldown(), 0.0, [], 0.0
    for what, pick, passed, hint in moves:
        now += passed
        if what == "send":
            if closed.opens_at <= now:
                assert now >= stay_away
                send(closed, now)
                under_way.append(now)
        elif under_way:
            sent_at = under_way.pop(pick % len(under_way))
            if what == "ok":
                closed.ok(sent_at)
            else:
                stay_away = max(stay_away, now + (hint or 0.0))
                reject(closed, now, sent_at, hint)


PATIENT = Retry(attempts=1000)


def serve(driver: Driver, dead: set[str], seconds: float) -> None:
    """Keep a bulk under way: requests at a dead source fail at once, all others are answered after a tenth of a second."""
    end = driver.now + seconds
    while driver.now < end:
        for attempt in driver.at("a") + driver.at("b"):
            if attempt.source.name in dead:
                driver.fail(attempt, FailureKind.UNREACHABLE, after=0.0)
            else:
                driver.ok(attempt, after=0.0)
        driver.wait(0.1)


def test_a_source_that_dies_and_returns_is_reported_once_each_with_the_reason_and_the_seconds() -> None:
    driver = Driver({"a": 4, "b": 4}, retry=PATIENT)
    driver.feed(5000)
    serve(driver, dead=set(), seconds=2.0)
    assert driver.scheduler.health_changes == []
    serve(driver, dead={"a"}, seconds=30.0)
    (gone,) = driver.scheduler.health_changes
    assert (gone.source, gone.seconds) == ("a", 0.0)
    assert "ConnectionFailed" in gone.reason
    assert driver["a"].down_since is not None
    serve(driver, dead=set(), seconds=30.0)
    _, back = driver.scheduler.health_changes
    assert (back.source, back.reason) == ("a", "")
    assert 25.0 < back.seconds < 40.0
    assert driver["a"].down_since is None


def test_what_an_operator_brings_back_is_reported_when_it_fails_again() -> None:
    driver = Driver({"a": 4, "b": 4}, retry=PATIENT)
    driver.feed(5000)
    serve(driver, dead={"a"}, seconds=5.0)
    assert [change.source for change in driver.scheduler.health_changes] == ["a"]
    driver.mark("a", down=False)
    driver["a"].down_since = None
    serve(driver, dead={"a"}, seconds=5.0)
    assert [change.source for change in driver.scheduler.health_changes] == ["a", "a"]
