"""Answer times and lengths of answers: close to the truth, fading, in constant memory, the same at sources of any pace."""

from __future__ import annotations

from math import ceil, exp, inf, log
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scale import seeds
from scheduler_memory import bytes_left_by

from qreward.scheduler.stats import CAPACITY, ENOUGH, LONG, REFRESH, STRETCH, LatencyStats, OutputLengths, Quantiles

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


def test_the_latency_at_another_load_is_proportional_far_above_the_capacity_and_equal_far_below() -> None:
    for limit, capacity in ((4, 4), (1000, CAPACITY)):
        for load in (0, capacity, 50 * capacity):
            latency = LatencyStats()
            for _ in range(20):
                latency.add(6.0, None, load)
            measured = capacity + load
            for others in (0, load, 100 * capacity):
                assert latency.at_load(others, limit) == pytest.approx(6.0 * (capacity + others) / measured), (limit, load, others)
    assert LatencyStats().at_load(5, 10) == 0.0


def test_the_latency_at_a_load_is_a_mean_of_as_many_answers_as_were_in_flight() -> None:
    latency = LatencyStats()
    for number in range(300):
        latency.add(2.0 if number % 2 else 14.0, None, 300)
    for _ in range(10):
        latency.add(14.0, None, 300)
    assert latency.mean > 11.0
    assert latency.at_load(300, 1000) == pytest.approx(8.0, rel=0.05)


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


WIDTH = exp(0.1)
"""Quotient of the limits of a bucket: what is told is right to about half of it."""


def told(lengths: OutputLengths, tokens: list[int], pace: float = 0.05, latency: LatencyStats | None = None) -> OutputLengths:
    """Let a source give answers of these lengths."""
    latency = latency or LatencyStats()
    for count in tokens:
        latency.add(count * pace, count)
        lengths.add(count * pace, count, latency)
    return lengths


def spread(count: int, seed: int = 0) -> list[int]:
    rng = Random(seed)
    return [max(1, round(rng.lognormvariate(5.0, 0.8))) for _ in range(count)]


def test_nothing_is_called_rare_before_a_hundred_answers() -> None:
    lengths, latency = OutputLengths(), LatencyStats()
    told(lengths, [20] * (ENOUGH - 1), latency=latency)
    assert lengths.p99 == lengths.p999 == inf
    told(lengths, [20] * REFRESH, latency=latency)
    assert lengths.p99 == pytest.approx(20, rel=0.06)
    assert lengths.p999 == pytest.approx(20, rel=0.06)


def test_rare_and_extreme_are_what_one_in_a_hundred_and_one_in_a_thousand_exceeds() -> None:
    for seed in seeds(1):
        sizes = spread(3008, seed)
        lengths = told(OutputLengths(), sizes)
        exact = sorted(sizes)
        assert lengths.p99 == pytest.approx(exact[ceil(0.99 * len(exact)) - 1], rel=0.06), f"seed {seed}"
        assert lengths.p999 == pytest.approx(exact[ceil(0.999 * len(exact)) - 1], rel=0.06), f"seed {seed}"


def test_lengths_do_not_depend_on_how_fast_the_sources_are() -> None:
    sizes = spread(640)
    alone, mixed = told(OutputLengths(), sizes), OutputLengths()
    quick, slow = LatencyStats(), LatencyStats()
    for number, size in enumerate(sizes):
        told(mixed, [size], *((0.01, quick) if number % 2 else (1.0, slow)))
    assert mixed.p999 == alone.p999
    assert mixed.long(0.0) == alone.long(0.0)
    assert mixed.seconds_per_token(quick) == pytest.approx(0.01)
    assert mixed.seconds_per_token(slow) == pytest.approx(1.0)


def test_what_was_long_ago_fades() -> None:
    lengths, latency = OutputLengths(), LatencyStats()
    told(lengths, [1000] * 500, latency=latency)
    told(lengths, [10] * 40_000, latency=latency)
    assert lengths.p99 < 12
    assert lengths.mean == pytest.approx(10, rel=0.01)


def test_a_source_that_tells_no_tokens_is_taken_to_give_answers_of_the_mean_length() -> None:
    lengths = told(OutputLengths(), [40] * 128)
    silent, rng = LatencyStats(), Random(0)
    for _ in range(256):
        seconds = rng.uniform(1.0, 3.0)
        silent.add(seconds)
        lengths.add(seconds, None, silent)
    assert lengths.mean == 40
    assert lengths.seconds_per_token(silent) == pytest.approx(2.0 / 40, rel=0.2)
    assert lengths.p99 == pytest.approx(60, rel=0.25), "one that takes 3 s of a usual 2 s is half as long again"


def test_answers_from_before_a_source_told_tokens_do_not_count_in_its_seconds_per_token() -> None:
    latency = LatencyStats()
    for _ in range(20):
        latency.add(2.0)
    assert latency.seconds_per_token == pytest.approx(2.0)
    latency.add(2.0, 100)
    assert latency.seconds_per_token == pytest.approx(0.02)


def test_where_no_source_tells_tokens_a_length_is_a_multiple_of_the_usual_time() -> None:
    for tokens in (None, 0):
        lengths, latency, rng = OutputLengths(), LatencyStats(), Random(1)
        for _ in range(640):
            seconds = 10.0 if rng.random() < 0.02 else 2.0
            latency.add(seconds, tokens)
            lengths.add(seconds, tokens, latency)
        assert lengths.mean == 1.0
        assert lengths.p99 * lengths.seconds_per_token(latency) == pytest.approx(10.0, rel=0.4)
        assert lengths.at(0.5) == pytest.approx(1.0, rel=0.3)


@settings(deadline=None)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=200), st.floats(0.0, 6000.0))
def test_a_long_answer_is_one_that_a_small_share_of_the_longer_ones_exceeds(sizes: list[int], least: float) -> None:
    found = told(OutputLengths(), sizes).long(least)
    assert found >= STRETCH * least
    longer = sorted(size for size in sizes if _bucket(size) > _bucket(least))
    if not longer:
        assert found == STRETCH * least
        return
    exact = longer[ceil((1 - LONG) * len(longer) - 1e-9) - 1]
    assert found == pytest.approx(max(exact, STRETCH * least), rel=0.06)


def test_the_longer_it_has_taken_the_longer_it_is_expected_to_be() -> None:
    lengths = told(OutputLengths(), spread(2000))
    expected = [lengths.long(least) for least in (0.0, 50.0, 200.0, 800.0, 3200.0, 12800.0)]
    assert expected == sorted(expected)
    assert expected[-1] == STRETCH * 12800.0


def test_what_is_said_of_long_answers_follows_within_a_few_answers() -> None:
    lengths, latency = OutputLengths(), LatencyStats()
    told(lengths, [20] * 128, latency=latency)
    assert lengths.long(0.0) == pytest.approx(20, rel=0.06)
    told(lengths, [500] * 2 * REFRESH, latency=latency)
    assert lengths.long(0.0) == pytest.approx(500, rel=0.06)


def _bucket(value: float) -> int:
    return int(log(value) / log(WIDTH) + 92) if value > 1e-4 else 0
