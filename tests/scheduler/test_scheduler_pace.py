"""Pacing never lets more through than a rate and its burst allow, and says exactly when the next one may go."""

from __future__ import annotations

from itertools import accumulate, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qreward.scheduler.limits.rate import BURST, Gcra

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
def test_a_sender_who_goes_exactly_when_told_gets_the_whole_rate(rate: float, burst: float, count: int) -> None:
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
