"""The limit of one key, exact in any window."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from qreward.scheduler.functions.limits import SlidingWindowLimit

gaps = st.lists(st.one_of(st.just(0.0), st.floats(0.0, 3.0)), max_size=60)


@given(st.integers(1, 5), st.sampled_from([0.1, 0.3, 1.0, 7.0]), st.sampled_from([0.0, 1e6 / 3, 2e9 / 7]), gaps)
def test_in_no_half_open_window_are_more_than_size_and_nobody_waits_longer_than_for_that(
    size: int, window: float, start: float, waits: list[float]
) -> None:
    ration, now = SlidingWindowLimit(size, window), start
    assert ration.clear_at == ration.ready_at == -inf
    starts: list[float] = []
    for wait in waits:
        now += wait
        now = max(now, ration.ready_at)
        fewer = len(starts) < size
        assert now >= ration.ready_at
        assert fewer or starts[-size] + window <= now, "one too many"
        assert fewer or ration.ready_at in (-inf, starts[-size] + window), "later than need be"
        ration.take(now)
        starts.append(now)
        assert ration.clear_at == now + window
        assert len(ration._starts) <= size, "more is remembered than is needed"
