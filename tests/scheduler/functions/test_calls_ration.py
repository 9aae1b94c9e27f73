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
        assert len(ration._starts) <= size, "more is remembered than is needed"


def test_the_moment_at_which_the_window_ends_is_free() -> None:
    ration = SlidingWindowLimit(2, 1.0)
    ration.take(0.0)
    assert ration.ready_at == -inf
    ration.take(0.5)
    assert ration.ready_at == 1.0
    ration.take(1.0)
    assert ration.ready_at == 1.5
    assert ration.clear_at == 2.0


def test_what_started_counts_under_another_limit() -> None:
    ration = SlidingWindowLimit(3, 1.0)
    for now in (0.0, 0.2, 0.4):
        ration.take(now)
    ration.size = 2
    assert ration.ready_at == 1.2
    ration.size = 4
    assert ration.ready_at == -inf
    ration.size, ration.window = 3, 5.0
    assert ration.ready_at == 5.0


def test_a_ration_that_was_never_used_is_clear() -> None:
    assert SlidingWindowLimit(1, 1.0).clear_at == -inf
    assert SlidingWindowLimit(1, 1.0).ready_at == -inf
