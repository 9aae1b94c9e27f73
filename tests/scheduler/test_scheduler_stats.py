"""Answer times and lengths of answers: close to the truth, fading, in constant memory, the same at sources of any pace."""

from __future__ import annotations

from math import ceil, exp, inf, log
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scale import seeds

from qreward.scheduler.stats import ENOUGH, FORGOTTEN, KNOWN, LONG, REFRESH, STRETCH, AnswerLengths, LatencyStats, Quantiles, StreamTiming

seconds = st.floats(2e-4, 1e5)


@given(st.lists(seconds, min_size=1, max_size=300), st.sampled_from([0.01, 0.5, 0.9, 0.95, 0.99, 1.0]))
def test_a_quantile_is_the_sorted_lists_within_its_promise(values: list[float], quantile: float) -> None:
    quantiles = Quantiles()
    for value in values:
        quantiles.add(value)
    exact = sorted(values)[ceil(quantile * len(values) - 1e-9) - 1]
    assert quantiles.at(quantile) == pytest.approx(exact, rel=0.055)


def test_times_beyond_the_scale_are_counted_at_its_ends_and_old_ones_lose_weight() -> None:
    for value, ends in ((0.0, (0.0, 2e-4)), (1e-12, (0.0, 2e-4)), (1e9, (1e6, 1e8))):
        quantiles = Quantiles()
        quantiles.add(value)
        assert quantiles.count == 1
        found = quantiles.at(0.5)
        assert found is not None
        assert ends[0] < found < ends[1], value
        assert quantiles.bucket(value) == (255 if value > 1 else 0)
    fading = Quantiles(fade_after=100)
    for _ in range(99):
        fading.add(10.0)
    assert fading.count == 99
    fading.add(10.0)
    assert fading.count == 50
    for _ in range(60):
        fading.add(1.0)
    assert fading.at(0.5) == pytest.approx(1.0, rel=0.06)


def test_latencies_begin_at_the_first_answer_and_follow_a_change() -> None:
    latency = LatencyStats()
    assert (latency.mean, latency.p99, latency.at(0.99)) == (0.0, None, None)
    means = []
    for seconds in (4.0, 2.0, 3.0, *[3.0] * 7, 14.0, 14.0):
        latency.add(seconds)
        means.append(latency.mean)
    assert means[:3] == pytest.approx([4.0, 3.0, 3.0])
    assert means[-2:] == pytest.approx([4.0, 5.0]), "a plain mean of eleven, and then a moving one"
    for _ in range(7):
        latency.add(3.0)
    assert latency.p99 is None
    latency.add(3.0)
    assert (latency.p99, latency.p5) == (pytest.approx(14.0, rel=0.06), pytest.approx(2.0, rel=0.06))
    rng = Random(0)
    for _ in range(4000):
        latency.add(rng.uniform(9.0, 10.0))
    assert latency.p99 == pytest.approx(10.0, rel=0.1)
    assert latency.p5 == pytest.approx(9.0, rel=0.1)


def test_the_time_limits_of_a_stream_follow_from_its_slowest_first_tokens_and_gaps() -> None:
    """Seconds of first tokens and gaps -> limits of a first token after 0, 1 and 9 limits that were exceeded, and of a gap."""
    wrong = {}
    for seconds, first, gap in ((0.1, (5.0, 10.0, 40.0), 5.0), (2.0, (8.0, 16.0, 64.0), 40.0), (10.0, (40.0, 80.0, 120.0), 60.0)):
        timing = StreamTiming()
        for _ in range(KNOWN - 1):
            timing.began(seconds)
        timing.went_on([seconds] * (KNOWN - 1))
        assert (timing.first(0.5), timing.first_limit(0), timing.gap_limit()) == (None, None, 60.0)
        timing.began(seconds)
        timing.went_on([seconds])
        found = (*(timing.first_limit(overdue) for overdue in (0, 1, 9)), timing.gap_limit())
        if found != pytest.approx((*first, gap), rel=0.06) or timing.first(0.5) != pytest.approx(seconds, rel=0.06):
            wrong[seconds] = found
    assert not wrong


def test_the_longest_time_of_an_answer_or_of_a_cut_attempt_is_forgotten_slowly() -> None:
    latency = LatencyStats()
    latency.add(9.0)
    latency.cut(5.0)
    assert latency.longest == 9.0
    latency.cut(12.0)
    for _ in range(500):
        latency.add(1.0)
    assert latency.longest == pytest.approx(12.0 * FORGOTTEN**500)
    for _ in range(5000):
        latency.add(1.0)
    assert latency.longest == 1.0


WIDTH = exp(0.1)
"""Quotient of the limits of a bucket: what is told is right to about half of it."""


def told(lengths: AnswerLengths, sizes: list[int]) -> AnswerLengths:
    """Let a pool give answers of these lengths."""
    for size in sizes:
        lengths.add([size])
    return lengths


def spread(count: int, seed: int = 0) -> list[int]:
    rng = Random(seed)
    return [max(1, round(rng.lognormvariate(5.0, 0.8))) for _ in range(count)]


def test_nothing_is_called_rare_before_twenty_answers_and_before_a_hundred_only_four_times_as_much_is_extreme() -> None:
    lengths = AnswerLengths()
    assert lengths.p99 == lengths.p999 == inf
    assert lengths.at(0.5) is None
    told(lengths, [20] * (KNOWN - 1))
    assert lengths.p99 == lengths.p999 == inf
    told(lengths, [20])
    assert lengths.p99 == pytest.approx(20, rel=0.06)
    told(lengths, [20] * (ENOUGH - KNOWN - 1))
    assert lengths.p999 == pytest.approx(80, rel=0.06)
    told(lengths, [20] * REFRESH)
    assert lengths.p99 == pytest.approx(20, rel=0.06)
    assert lengths.p999 == pytest.approx(20, rel=0.06)


def test_rare_and_extreme_are_what_one_in_a_hundred_and_one_in_a_thousand_exceeds() -> None:
    for seed in seeds(1):
        sizes = spread(3008, seed)
        lengths = told(AnswerLengths(), sizes)
        exact = sorted(sizes)
        assert lengths.p99 == pytest.approx(exact[ceil(0.99 * len(exact)) - 1], rel=0.06), f"seed {seed}"
        assert lengths.p999 == pytest.approx(exact[ceil(0.999 * len(exact)) - 1], rel=0.06), f"seed {seed}"


@settings(deadline=None)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=200), st.floats(0.0, 6000.0))
def test_a_long_answer_is_one_that_a_small_share_of_the_longer_ones_exceeds(sizes: list[int], least: float) -> None:
    found = told(AnswerLengths(), sizes).long(least)
    assert found >= STRETCH * least
    longer = sorted(size for size in sizes if _bucket(size) > _bucket(least))
    if not longer:
        assert found == STRETCH * least
        return
    exact = longer[ceil((1 - LONG) * len(longer) - 1e-9) - 1]
    assert found == pytest.approx(max(exact, STRETCH * least), rel=0.06)


def test_what_is_said_of_long_answers_follows_within_a_few_answers_and_what_was_long_ago_fades() -> None:
    lengths = AnswerLengths()
    told(lengths, [20] * 128)
    assert lengths.long(0.0) == pytest.approx(20, rel=0.06)
    told(lengths, [500] * 2 * REFRESH)
    assert lengths.long(0.0) == pytest.approx(500, rel=0.06)
    told(lengths, [10] * 40_000)
    assert lengths.p99 < 12


def _bucket(value: float) -> int:
    return int(log(value) / log(WIDTH) + 92) if value > 1e-4 else 0
