"""Rates: a pace that is set is never exceeded, one that is learned from rejects is raised and taken back."""

from __future__ import annotations

from itertools import accumulate, combinations, pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qreward.scheduler.limits.rate import BURST, CUT, FIRST_RAISE, MINUTE, SHARE, SPACED, UNRAISED, Gcra, LearnedRate, MinuteLimit

rates = st.floats(0.01, 1000)
bursts = st.sampled_from([0.0, BURST, 1.0, 60.0])
gaps = st.lists(st.one_of(st.just(0.0), st.floats(0, 0.01), st.floats(0, 100)), min_size=2, max_size=30)


@given(rates, bursts, gaps)
def test_in_no_interval_more_is_sent_than_the_rate_and_its_burst_allow(rate: float, burst: float, gaps: list[float]) -> None:
    """R(t - s) + burst + 1 for every pair of sends, whether the sender is greedy, idle, or asleep for minutes."""
    pace, sends = Gcra(rate, burst), []
    for now in accumulate(gaps):
        if pace.ready_at <= now:
            pace.take(now)
            sends.append(now)
    for (first, start), (last, end) in combinations(enumerate(sends), 2):
        assert last - first + 1 <= rate * (end - start) + rate * burst + 1 + 1e-6


@given(rates, bursts, st.integers(2, 50))
def test_a_sender_that_sends_as_soon_as_it_may_gets_the_whole_rate(rate: float, burst: float, count: int) -> None:
    pace, now = Gcra(rate, burst), 0.0
    for _ in range(count):
        now = max(now, pace.ready_at)
        pace.take(now)
    assert now <= (count - 1) / rate + 1e-6
    assert now >= (count - 1) / rate - burst - 1e-6


def test_a_cost_above_the_burst_is_let_through_and_paid_off_before_the_next() -> None:
    pace = Gcra(rate=100.0, burst=0.1)
    assert pace.ready_at <= 0.0
    pace.take(0.0, cost=1000.0)
    assert pace.ready_at == pytest.approx(10.0 - 0.1)


def test_what_was_not_used_comes_back_but_is_not_saved_up_and_what_was_used_beyond_is_paid() -> None:
    pace = Gcra(rate=10.0, burst=0.0)
    pace.take(0.0, cost=100.0)
    pace.give_back(60.0)
    assert pace.ready_at == pytest.approx(4.0)
    pace.give_back(-20.0)
    assert pace.ready_at == pytest.approx(6.0)
    pace.give_back(10_000.0)
    pace.take(50.0, cost=10.0)
    assert pace.ready_at == pytest.approx(51.0)


@given(st.integers(1, 50), st.lists(st.floats(0, 40), min_size=2, max_size=60), st.sets(st.integers(0, 59), max_size=2))
def test_in_no_minute_more_is_sent_than_a_configured_limit_allows_and_all_of_it_at_once(
    most: int, gaps: list[float], rejects: set[int]
) -> None:
    limit, sends = MinuteLimit(most), []
    for place, now in enumerate(accumulate(gaps)):
        while limit.ready_at <= now:
            limit.take(now)
            sends.append(now)
        if place in rejects:
            limit.rejected(now)
    assert len([each for each in sends if each == sends[0]]) == most
    assert all(later - now >= 60 for now, later in zip(sends, sends[most:], strict=False))


def test_a_sender_that_sends_as_soon_as_it_may_gets_a_configured_limit_every_minute() -> None:
    limit, now = MinuteLimit(600), 0.0
    for _ in range(6000):
        now = max(now, limit.ready_at)
        limit.take(now)
    assert now == pytest.approx(9 * MINUTE, abs=0.5)


def test_after_a_reject_requests_are_spaced_evenly_for_a_time() -> None:
    limit = MinuteLimit(600)
    for _ in range(20):
        limit.take(0.0)
    limit.rejected(0.0)
    now, sends = 0.0, []
    while now < SPACED - 1:
        now = max(now, limit.ready_at)
        limit.take(now)
        sends.append(now)
    assert all(later - then >= 0.9 for then, later in zip(sends, sends[11:], strict=False)), "the rate, and its burst"
    limit.take(SPACED + 100.0)
    assert limit.ready_at <= SPACED + 100.0


def test_tokens_that_a_request_did_not_use_come_back_to_the_time_at_which_it_was_sent() -> None:
    limit = MinuteLimit(1000)
    limit.take(0.0, 900.0)
    limit.take(30.0, 90.0)
    assert limit.ready_at == pytest.approx(MINUTE), "room for 5 % is kept"
    limit.settle(90.0, 10.0, 30.0)
    assert limit.ready_at <= 30.0
    limit.settle(900.0, 990.0, 0.0)
    limit.take(MINUTE, 900.0)
    assert limit.ready_at <= MINUTE, "only the second one still counts"


def busy(pace: LearnedRate, start: float, seconds: int, per_second: int) -> float:
    for second in range(seconds):
        for number in range(per_second):
            pace.sent(start + second + number / per_second)
    pace.ok(start + seconds)
    return start + seconds


def test_the_second_hint_sets_just_less_than_what_was_accepted_in_the_last_minute() -> None:
    for hint in (1.0, 5.0):
        pace = LearnedRate()
        now = busy(pace, 0.0, 120, 10)
        pace.sent(now)
        pace.rejected(now)
        pace.hinted(now, hint)
        assert pace.rate == inf, "the concurrency limit may be the cause"
        pace.hinted(now + hint, hint)
        assert pace.rate == inf, "of a request that was in flight"
        now = busy(pace, now + hint, 60, 10)
        pace.hinted(now, hint)
        assert pace.rate == pytest.approx(SHARE * 10, rel=0.03), hint


def test_a_young_source_counts_the_wait_that_it_asked_for_but_one_request_a_minute_is_the_least() -> None:
    for requests, hint, rate in ((30, 9.5, SHARE * 30 / 30), (5, 3600.0, 1 / 60)):
        pace = LearnedRate()
        pace.sent(80.0)
        pace.ok(80.1)
        pace.hinted(80.1, 2.0)
        for _ in range(requests - 1):
            pace.sent(100.0)
        pace.ok(100.4)
        pace.hinted(100.5, hint)
        assert pace.rate == pytest.approx(rate), requests


def learned() -> tuple[LearnedRate, float]:
    """Return a rate that was learned from ten requests a second, and the time at which it was learned."""
    pace = LearnedRate()
    now = busy(pace, 0.0, 60, 10)
    pace.hinted(now, 1.0)
    now = busy(pace, now + 1.0, 60, 10)
    pace.hinted(now, 1.0)
    return pace, now


def paced(pace: LearnedRate, start: float, seconds: float) -> float:
    """Send as soon as the rate allows, and answer each request after a hundredth of a second."""
    at = max(start, pace.ready_at)
    while at < start + seconds:
        pace.sent(at)
        pace.ok(at + 0.01)
        at = pace.ready_at
    return start + seconds


def test_a_rate_that_delays_requests_is_raised_after_the_wait_of_its_reject_the_raises_double_and_a_reject_takes_back_the_last() -> None:
    pace, now = learned()
    rate = pace.rate
    pace.ok(now + 0.5)
    pace.hinted(now + 0.9, 1.0)
    assert pace.rate == rate < inf, "rejects within a second count once"
    for calm in (1.0, 2.0, 4.0):
        rates, times = [pace.rate], [now]
        while len(rates) < 7:
            now = paced(pace, now, 0.1)
            if pace.rate != rates[-1]:
                rates.append(pace.rate)
                times.append(now)
        assert [after / before - 1 for before, after in pairwise(rates)] == pytest.approx([FIRST_RAISE, 0.04, 0.08, 0.16, 0.30, 0.30])
        assert [after - before for before, after in pairwise(times)] == pytest.approx([calm] * 6, abs=0.3)
        pace.hinted(now, 1.0)
        assert pace.rate == pytest.approx(rates[-2]), "takes back the last raise"


def test_sends_at_a_learned_rate_are_spread_and_it_is_not_raised_while_it_delays_nothing() -> None:
    pace, now = learned()
    rate = pace.rate
    pace.ok(now + 30.0)
    assert pace.rate == rate
    sent, at = 0, now
    while at < now + 60:
        at = max(at, pace.ready_at)
        pace.sent(at)
        sent += 1
    assert sent == pytest.approx(60 * pace.rate, rel=0.03)


def test_a_reject_of_a_rate_that_was_not_raised_lowers_it() -> None:
    pace, now = learned()
    now = busy(pace, now + 1.0, 15, 8)
    pace.hinted(now, 0.1)
    assert pace.rate == pytest.approx(SHARE * 8, rel=0.03)


def test_stray_rejects_start_no_limit_and_end_one_that_does_not_stop_them() -> None:
    pace = LearnedRate()
    now = busy(pace, 0.0, 60, 10)
    pace.hinted(now, 1.0, stray=True)
    assert pace.rate == inf
    pace.hinted(now, 20.0)
    now = busy(pace, now + 20.0, 60, 10)
    pace.hinted(now, 20.0)
    learned = pace.rate
    pace.ok(now + 1.0)
    now += 10.0
    pace.hinted(now, 20.0, stray=True)
    assert pace.rate == learned < inf, "it delayed nothing, so it was not the cause"
    for number in range(1, UNRAISED + 1):
        now = paced(pace, now, 2.0)
        pace.hinted(now, 1.0, stray=True)
        assert pace.rate == pytest.approx(CUT**number * learned)
    now = paced(pace, now, 2.0)
    pace.hinted(now, 1.0, stray=True)
    assert pace.rate == inf
    assert pace.ready_at == -inf


def test_a_source_that_accepts_nothing_any_more_is_away_not_slow() -> None:
    pace = LearnedRate()
    now = busy(pace, 0.0, 60, 10)
    for later in range(0, 50, 5):
        pace.hinted(now + later, 5.0)
    assert pace.rate == inf
    now = busy(pace, now + 50.0, 60, 10)
    for later in range(0, 50, 5):
        pace.hinted(now + later, 5.0)
    assert pace.rate == pytest.approx(SHARE * 10, rel=0.03), "one cut for the whole outage"


def test_without_a_hint_and_after_a_few_requests_nothing_is_limited() -> None:
    pace = LearnedRate()
    busy(pace, 0.0, 10, 100)
    busy(pace, 10.0, 1000, 1)
    assert len(pace._accepted) <= 62, "no more is kept than a minute"
    assert pace.rate == inf
    assert pace.ready_at == -inf
    pace = LearnedRate()
    pace.sent(0.0)
    pace.ok(0.5)
    pace.sent(1.0)
    pace.rejected(1.0)
    pace.hinted(1.1, 1.0)
    assert pace.rate == inf
