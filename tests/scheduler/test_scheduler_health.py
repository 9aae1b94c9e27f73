"""A source that fails leaves service and comes back by one real task; one that says "too much" is left alone as long as it asked."""

from __future__ import annotations

from functools import partial
from itertools import product
from math import comb, inf
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scale import seeds
from scheduler_driver import Driver

from qreward.scheduler.health import CHANCE, FIRST, LEAST_FAILURES, LONGEST, OPEN, WINDOW, Cooldown, Health
from qreward.scheduler.outcome import FailureKind
from qreward.settings.policies import Retry


class Middle(Random):
    """Jitter of exactly one."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


class Asked(Health):
    """Counts the requests that are sent to it, as its source does."""

    asked = 0

    def send(self, now: float) -> int:
        self.asked += 1
        self.sent(now, self.asked)
        return self.asked

    def answer(self, now: float, sent_at: float | None = None) -> None:
        self.asked += 1
        self.ok(now, now if sent_at is None else sent_at)


def fail(health: Asked, now: float, task: int, *, dead: bool = False) -> bool:
    """A request is sent and fails at once."""
    health.asked += 1
    return health.failed(now, now, health.asked, task, dead=dead)


def opened(times: int = 1) -> tuple[Asked, float]:
    """A source that was opened so many times in a row, and when."""
    sick, now = Asked(Middle()), 0.0
    for task in range(5):
        fail(sick, now, task)
    for _ in range(times - 1):
        now = sick.open_until
        sick.send(now)
        fail(sick, now, 99)
    return sick, now


def test_it_opens_if_the_share_of_failures_among_the_last_requests_is_credibly_above_one_half() -> None:
    """The numbers of tasks that fail, None for an answer; at most how many outcomes it takes."""
    scenes: dict[str, tuple[list[int | None], float]] = {
        "five in a row": ([0, 1, 2, 3, 4], 5),
        "four in a row": ([0, 1, 2, 3], inf),
        "one task again and again": ([7] * 100, inf),
        "two tasks again and again": ([7, 8] * 50, inf),
        "one task, when two others are long ago": ([1, 2, *[None] * 200, *[7] * 100], inf),
        "six of seven": ([0, 1, 2, None, 10, 11, 12], inf),
        "eight of nine": ([None, *range(8)], 9),
        "a tenth of all": ([each for number in range(1000) for each in (number, *[None] * 9)], inf),
        "half of all": ([each for number in range(1000) for each in (number, None)], inf),
        "three of four": ([each for number in range(99) for each in (3 * number, 3 * number + 1, 3 * number + 2, None)], 40),
        "three of four, each task three times": ([each for task in range(99) for each in (task, task, task, None)], inf),
        "fifteen after many answers": ([*[None] * 500, *range(15)], 515),
    }
    wrong = {}
    for name, (outcomes, most) in scenes.items():
        sick, seen = Asked(Middle()), 0
        for task in outcomes:
            if task is None:
                sick.answer(0.0)
            elif fail(sick, 0.0, task):
                assert (sick.in_service, sick.open_until) == (False, OPEN)
                break
            seen += 1
        if (seen == len(outcomes)) != (most == inf) or (most < inf and seen >= most):
            wrong[name] = seen
    assert not wrong


def test_the_numbers_of_failures_that_open_it_are_those_of_the_binomial_test() -> None:
    def chance(failed: int, sent: int) -> float:
        return sum(comb(sent, each) for each in range(failed, sent + 1)) / 2**sent

    assert len(LEAST_FAILURES) == WINDOW + 1
    assert [LEAST_FAILURES[sent] for sent in (4, 5, 10, 20)] == [5, 5, 9, 15], "four of four are not enough"
    for sent, failed in enumerate(LEAST_FAILURES):
        assert chance(failed, sent) <= CHANCE < chance(failed - 1, sent), sent


def test_a_burst_whose_errors_return_before_its_answers_is_not_a_row_of_failures() -> None:
    """Of requests that are sent at once, the failed ones are reported first, in any order."""
    for seed, share in product(seeds(20), (0.03, 0.05)):
        rng, well = Random(seed), Asked(Middle())
        failing = [order for order in range(1, 257) if order > 5 and rng.random() < share]
        rng.shuffle(failing)
        assert not any(well.failed(0.1, 0.0, order, order) for order in failing), (seed, share)
    for seed in seeds(20):
        rng, sick = Random(seed), Asked(Middle())
        returned = sorted(range(1, 257), key=lambda order: order + rng.uniform(0, 20))
        assert any(sick.failed(0.1, 0.0, order, order) for order in returned[:20]), f"all of them fail, some earlier than others {seed}"


def test_one_sign_of_death_is_enough() -> None:
    dead = Asked(Middle())
    for _ in range(100):
        dead.answer(0.0)
    assert fail(dead, 1.0, 1, dead=True)
    assert (dead.in_service, dead.open_until) == (False, 1.0 + OPEN)


def test_after_a_failure_and_many_answers_its_record_is_clean() -> None:
    well = Asked(Middle())
    fail(well, 0.0, 1)
    for _ in range(400):
        well.answer(0.0)
    assert well.clean
    well.send(1.0)
    assert (well.in_service, well.half_open) == (True, False), "sending changes nothing while it is in service"


def test_the_open_time_is_two_seconds_with_jitter_however_often_it_opened() -> None:
    for count in range(1, 9):
        sick, now = opened(count)
        assert sick.open_until - now == OPEN
    jittered = set()
    for seed in range(20):
        sick = Asked(Random(seed))
        for task in range(5):
            fail(sick, 0.0, task)
        jittered.add(sick.open_until)
    assert len(jittered) == 20
    assert all(0.5 * OPEN <= time <= 1.5 * OPEN for time in jittered)


def test_it_comes_back_by_one_real_task_that_is_answered() -> None:
    """A request sent earlier does not begin the way back."""
    back, _ = opened()
    back.send(back.open_until - 0.1)
    assert (back.in_service, back.half_open) == (False, True)
    back.send(back.open_until)
    assert (back.in_service, back.is_back, back.half_open) == (True, False, True)
    back.ok(back.since, back.since)
    assert (back.is_back, back.half_open) == (True, False)


def test_a_first_task_that_fails_opens_it_again_and_a_later_failure_does_not() -> None:
    for answers, opens in ((0, True), (1, False)):
        back, _ = opened()
        now = back.open_until
        back.send(now)
        for _ in range(answers):
            back.ok(now, now)
        assert fail(back, now + 1, task=1) is opens
        assert (back.open_until, back.half_open) == ((now + 1 + OPEN, True) if opens else (-inf, False))


def test_a_source_that_comes_back_is_not_judged_by_the_answers_and_stalls_before() -> None:
    back = Asked(Middle())
    back.answer(0.0)
    while not fail(back, 0.0, back.asked):
        pass
    now = back.open_until
    back.send(now)
    back.ok(now, now)
    assert not fail(back, now, 4), "most attempts failed, but before"
    stalled = Asked(Middle())
    stalled.stall(0.0)
    stalled.eject(1.0, 300.0)
    stalled.ok(2.0, 0.0)
    assert not stalled.in_service, "it is out of service for another reason now"


def test_once_back_it_starts_with_a_clean_record() -> None:
    back, now = opened(5)
    now = back.open_until
    back.send(now)
    back.ok(now, now)
    for _ in range(WINDOW):
        back.answer(now)
    assert [fail(back, now, task) for task in range(5)] == [*[False] * 4, True]
    assert back.open_until == now + OPEN, "the open time starts anew as well"


def test_it_serves_again_from_the_first_answer_after_it_was_out_of_service_however_it_came_back() -> None:
    back, _ = opened()
    assert back.serving_since == -inf
    back.send(back.open_until)
    back.ok(20.0, back.since)
    back.ok(21.0, back.since)
    assert back.serving_since == 20.0
    silent = Asked(Middle())
    silent.stall(30.0)
    silent.ok(31.0, 1.0)
    assert silent.serving_since == 31.0
    restored, _ = opened()
    restored.restore()
    assert not restored.clean, "its next answer is noted"
    restored.ok(40.0, 39.0)
    assert (restored.serving_since, restored.clean) == (40.0, True)


def test_a_source_that_stalled_and_is_tried_again_comes_back_by_the_answer_to_that() -> None:
    back = Asked(Middle())
    back.stall(30.0)
    now = back.open_until
    back.send(now)
    back.ok(now, 1.0)
    assert back.half_open, "an answer to an earlier request"
    back.ok(now, now)
    assert not back.half_open


def test_what_was_sent_before_it_opened_says_nothing_of_the_present() -> None:
    back, _ = opened()
    now = back.open_until + 1
    assert not back.failed(now - 0.5, 0.0, 5, 77)
    back.ok(0.0, 0.0)
    assert (back.in_service, back.half_open) == (False, True)
    back.send(now)
    back.ok(0.0, 0.0)
    assert back.half_open
    assert not back.failed(now, 0.0, 5, 78)
    assert back.in_service


def test_an_operator_takes_it_out_and_brings_it_back_with_a_clean_record() -> None:
    sick, _ = opened(4)
    sick.mark_unhealthy()
    assert not sick.in_service
    sick.restore()
    assert (sick.in_service, sick.half_open) == (True, False)
    assert not any(fail(sick, 100.0, task) for task in range(4))
    assert any(fail(sick, 100.0, task) for task in range(4, 15))
    assert sick.open_until == 100.0 + OPEN
    sick.eject(110.0, 300.0)
    assert (sick.in_service, sick.open_until, sick.half_open) == (False, 410.0, True)


def cooldown() -> Cooldown:
    return Cooldown(Middle())


def send(cooldown: Cooldown, now: float) -> None:
    """As a source does: an open cooldown need not be told."""
    assert cooldown.opens_at <= now
    if cooldown.pauses:
        cooldown.sent(now)


def test_without_a_hint_it_closes_for_a_quarter_second_doubling_up_to_the_longest_until_there_is_an_answer() -> None:
    closed, now, pauses = cooldown(), 0.0, []
    for number in range(9):
        send(closed, now)
        if number == 7:
            closed.ok(now)
            assert closed.opens_at <= now
        else:
            closed.rejected(now + 0.01, now, None)
            pauses.append(closed.opens_at - now - 0.01)
        now = max(now, closed.opens_at) + 1.0
    assert pauses == pytest.approx([FIRST, 0.5, 1.0, LONGEST, LONGEST, LONGEST, LONGEST, FIRST])


BURST = [("send", 0.0)] * 5 + [("reject", now, 0.0, None) for now in (0.03, 0.04, 0.05, 0.2)]
HINTS = [("reject", 1.0, 0.0, 2.0), ("reject", 1.1, 0.0, 5.0), ("reject", 1.2, 0.0, 1.0), ("reject", 1.3, 1.2, None)]
PROBE = [("reject", 0.0, 0.0, 1.0), ("send", 1.0)]
EARLY = [("send", 0.0), ("send", 0.0), ("reject", 0.5, 0.0, 10.0), ("ok", 0.0)]
CROSSING = [("send", 0.0), ("send", 0.0), ("reject", 0.1, 0.0, None), ("send", 0.35), ("reject", 0.45, 0.0, 10.0), ("ok", 0.35)]
COOLDOWNS: dict[str, tuple[list[tuple[Any, ...]], float]] = {
    "a burst of rejects closes once": (BURST, 0.03 + FIRST),
    "and counts as one closing": ([*BURST, ("send", 0.28), ("reject", 0.29, 0.28, None)], 0.29 + 2 * FIRST),
    "a hint is obeyed to the letter": (HINTS[:1], 3.0),
    "and the longest of several counts": (HINTS, 6.1),
    "one probe goes first": (PROBE, 1.0 + FIRST),
    "its answer opens": ([*PROBE, ("ok", 1.0)], -inf),
    "its silence proves that there was room": ([*PROBE, ("send", 1.3)], -inf),
    "an answer to what was sent before does not open": (EARLY, 10.5),
    "nor while the probe is under way": ([*EARLY, ("send", 10.5), ("ok", 0.0)], 10.5 + 3 * 0.1),
    "a hint that comes while the probe is under way outlasts the probe's answer": (CROSSING, 10.45),
    "and one probe goes first after it, too": ([*CROSSING, ("send", 10.45)], 10.45 + 3 * 0.106),
}
"""What happens (a reject: when, when it was sent, its hint), and until when nothing may be sent then. A probe is waited for three times as
long as a reject takes on average."""


def test_how_long_a_source_is_left_alone_after_rejects() -> None:
    wrong = {}
    for name, (events, opens_at) in COOLDOWNS.items():
        closed = cooldown()
        happens: dict[str, Any] = {"send": partial(send, closed), "ok": closed.ok, "reject": closed.rejected}
        for what, *arguments in events:
            happens[what](*arguments)
        if closed.opens_at != pytest.approx(opens_at):
            wrong[name] = closed.opens_at
    assert not wrong


def test_the_rest_waits_three_times_as_long_as_a_reject_takes_and_pauses_are_jittered_by_half() -> None:
    slow = cooldown()
    for now in range(0, 300, 10):
        send(slow, now)
        slow.rejected(now + 2.0, now, 1.0)
    send(slow, 400.0)
    assert slow.opens_at == pytest.approx(400.0 + 3 * 2.0, rel=0.01)
    pauses = []
    for seed in range(50):
        closed = Cooldown(Random(seed))
        closed.rejected(0.0, 0.0, None)
        pauses.append(closed.opens_at)
    assert 0.5 * FIRST <= min(pauses) < 0.6 * FIRST
    assert 1.4 * FIRST < max(pauses) <= 1.5 * FIRST


def test_a_server_that_is_not_ready_is_left_alone_and_one_with_room_is_tried_at_once_but_never_before_its_hint() -> None:
    """``hold`` and ``ease``, which probes call."""
    held = cooldown()
    held.hold(10.0, 5.0)
    assert held.opens_at == 15.0
    held.hold(11.0, 2.0)
    assert (held.opens_at, held.pauses) == (15.0, 1), "the longer one holds"
    assert held.ease(12.0)
    assert held.opens_at == 12.0
    assert not held.ease(12.5), "it is open already"
    held.sent(12.5)
    assert not held.ease(12.6), "one request finds out"
    held.ok(12.5)
    assert not cooldown().ease(1.0)
    hinted = cooldown()
    hinted.rejected(1.0, 0.0, 9.0)
    assert not hinted.ease(2.0)
    hinted.hold(2.0, 30.0)
    assert hinted.ease(3.0)
    assert hinted.opens_at == 10.0
    hinted.sent(10.0)
    hinted.ok(10.0)
    hinted.hold(11.0, 30.0)
    assert hinted.ease(11.5)
    assert hinted.opens_at == 11.5, "the hint was that of another cooldown"


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
                closed.rejected(now, sent_at, hint)


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
