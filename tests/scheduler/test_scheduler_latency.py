"""Mean and quantiles of answer times: close to the truth, fading, and in constant memory."""

from __future__ import annotations

from math import ceil, inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_memory import bytes_left_by

from qreward.scheduler.stats import LatencyStats, OutputLengths, Quantiles

seconds = st.floats(2e-4, 1e5)


@given(st.lists(seconds, min_size=1, max_size=300), st.sampled_from([0.01, 0.5, 0.9, 0.95, 0.99, 1.0]))
def test_a_quantile_is_the_sorted_lists_within_its_promise(values: list[float], quantile: float) -> None:
    quantiles = Quantiles()
    for value in values:
        quantiles.add(value)
    exact = sorted(values)[ceil(quantile * len(values) - 1e-9) - 1]
    assert quantiles.at(quantile) == pytest.approx(exact, rel=0.055)


def test_nothing_is_known_before_the_first_answer() -> None:
    assert Quantiles().at(0.5) is LatencyStats().at(0.99) is LatencyStats().p99 is None
    assert LatencyStats().mean == 0.0
    lengths = OutputLengths()
    assert lengths.p99 == lengths.p999 == inf
    assert lengths.at(0.5) is None
    assert lengths.seconds_per_token(LatencyStats()) == 0.0
    assert lengths.mean == 1.0


def test_times_beyond_the_scale_are_counted_at_its_ends() -> None:
    for value in (0.0, 1e-12, 1e9):
        quantiles = Quantiles()
        quantiles.add(value)
        assert quantiles.count == 1
        assert quantiles.at(0.5) is not None


def test_the_mean_starts_at_the_first_answer_and_follows() -> None:
    latency = LatencyStats()
    latency.add(4.0)
    assert latency.mean == 4.0
    latency.add(2.0)
    assert latency.mean == pytest.approx(3.0)
    for _ in range(100):
        latency.add(1.0)
    assert latency.mean == pytest.approx(1.0, abs=0.01)


def test_the_slow_answer_is_known_after_twenty_and_follows_a_change_within_a_few_thousand() -> None:
    latency, rng = LatencyStats(), Random(0)
    for _ in range(19):
        latency.add(1.0)
    assert latency.p99 is None
    latency.add(1.0)
    assert latency.p99 == pytest.approx(1.0, rel=0.06)
    for _ in range(4000):
        latency.add(rng.uniform(9.0, 10.0))
    assert latency.p99 == pytest.approx(10.0, rel=0.1)


def test_memory_does_not_grow_with_the_answers() -> None:
    latency = LatencyStats()

    def work() -> None:
        for number in range(20_000):
            latency.add(1.0 + number % 97)

    assert bytes_left_by(work) < 20_000
