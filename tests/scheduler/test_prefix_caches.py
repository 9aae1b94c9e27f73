"""What a source is expected to have in its prefix cache: until it is evicted, as far as answers tell; and who has a prefix."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_driver import failure

from qreward.scheduler import prefixes
from qreward.scheduler.outcome import CANCELLED, Answer, Cancelled, Failure, FailureKind
from qreward.scheduler.prefixes import CAPACITY, COLD, IDLE, MOST_HOLDERS, REMEMBERED, SWEEP, Holders, PredictedCache, Prefix
from qreward.scheduler.source import Source


def prefix(*keys: int, characters: float = 400.0, rest: float = 0.0) -> Prefix:
    """Nested prefixes of so many characters each, and the rest of the prompt."""
    return Prefix(keys, tuple(characters * place for place in range(1, len(keys) + 1)), characters * len(keys) + rest, named=True)


def test_a_prefix_is_expected_until_as_much_was_computed_as_the_cache_holds() -> None:
    cache = PredictedCache(capacity=1000)
    assert cache.use(0.0, prefix(1, 2)).tokens == 0.0
    assert cache.use(0.0, prefix(1, 3)).tokens == 100.0
    assert cache.use(0.0, prefix(1, 2, 9)).tokens == 200.0
    for number in range(10, 18):
        cache.use(0.0, prefix(number))
    assert cache.is_warm(2)
    cache.use(0.0, prefix(1, 4))
    cache.use(0.0, prefix(20))
    assert not cache.is_warm(2)
    expected = cache.use(0.0, prefix(1, 2, 9))
    assert expected.tokens == 100.0, "the outer prefix was used since"
    for output, cached in ((950, True), (60, False)):
        cache.answered(prefix(1, 2, 9), expected, Answer("", 300, output), 1.0)
        assert cache.is_warm(9) is cached, "output is cached too"


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), max_size=60), st.integers(100, 2000))
def test_an_inner_prefix_never_outlives_an_outer_one(paths: list[list[int]], capacity: int) -> None:
    cache, seen = PredictedCache(capacity), []
    for path in paths:
        keys = tuple(hash(tuple(path[: place + 1])) for place in range(len(path)))
        cache.use(0.0, prefix(*keys, rest=100.0))
        seen.append(keys)
        for each in seen:
            warm = [cache.is_warm(key) for key in each]
            assert warm == sorted(warm, reverse=True)


def test_a_request_without_an_answer_leaves_only_what_others_have_used() -> None:
    cache = PredictedCache()
    first = cache.use(0.0, prefix(1, 2, rest=100.0))
    cache.use(0.0, prefix(1, 3, rest=100.0))
    cache.failed(prefix(1, 2, rest=100.0), first, CANCELLED)
    assert [cache.is_warm(key) for key in (1, 2, 3)] == [True, False, True]
    later = cache.use(0.0, prefix(1, 3, 4, 5, rest=100.0))
    cache.failed(prefix(1, 3, 4, 5, rest=100.0), later, CANCELLED)
    assert [cache.is_warm(key) for key in (1, 3, 4, 5)] == [True, True, False, False], "what was cached before remains"
    cache = PredictedCache(capacity=250)
    for path in ((1, 2), (1, 3), (4,), (1, 5)):
        cache.use(0.0, prefix(*path))
    again = cache.use(0.0, prefix(1, 2))
    assert (again.known, again.warm) == (2, 1)
    cache.failed(prefix(1, 2), again, CANCELLED)
    assert [cache.is_warm(key) for key in (1, 2)] == [True, False], "what was evicted before is not cached either"


def test_only_a_request_that_a_server_may_have_computed_ages_what_is_cached() -> None:
    outcomes: list[tuple[Failure | Cancelled, bool]] = [
        (CANCELLED, True),
        *((failure(kind), kind in (FailureKind.TRANSIENT, FailureKind.TIMEOUT)) for kind in FailureKind),
    ]
    for outcome, computed in outcomes:
        cache = PredictedCache(capacity=1000)
        cache.use(0.0, prefix(1))
        for number in range(2, 22):
            cache.failed(prefix(number), cache.use(0.0, prefix(number)), outcome)
        assert cache.is_warm(1) is not computed, outcome


def test_it_is_forgotten_after_a_long_silence() -> None:
    cache = PredictedCache()
    cache.use(0.0, prefix(1))
    assert cache.use(IDLE, prefix(1)).tokens == 100.0
    assert cache.use(2 * IDLE, prefix(1)).tokens == 100.0
    assert cache.use(3 * IDLE + 1, prefix(1)).tokens == 0.0


@pytest.mark.parametrize("real", [30_000, 2_000_000])
def test_the_capacity_is_learned_from_the_cached_tokens_of_answers(real: int) -> None:
    """A server that evicts after ``real`` tokens, and prompts that come again after a random time."""
    rng, cache, clock = Random(1), PredictedCache(), 0.0
    assert cache.capacity == CAPACITY
    used: dict[int, float] = {}
    reported = 0
    groups = 4 * real // 1000
    for number in range(40_000):
        key = groups + number if rng.random() < 0.3 else int(groups * rng.random() ** 2)
        found = 1000 if clock - used.get(key, -1e12) < real else 0
        clock += 1000 - found
        used[key] = clock
        reported += found
        expected = cache.use(0.0, prefix(key, characters=4000.0))
        cache.answered(prefix(key, characters=4000.0), expected, Answer("", 1000, 0, cached_tokens=found), 1.0)
    assert 0.8 * real < cache.capacity < 1.25 * real
    assert cache.predicted_tokens == pytest.approx(reported, rel=0.1)


def test_a_learned_capacity_moves_towards_the_age_that_contradicts_it_and_a_given_one_stays() -> None:
    """Age as a share of the capacity, whether the prefix was found, and how many times as large the capacity is then."""
    for told, age, cached, factor in (
        (None, 0.05, 0, 1.0),  # it was perhaps still being computed
        (None, 0.5, 0, 0.95),
        (None, 0.5, 100, 1.0),
        (None, 0.95, 100, 1.05),
        (None, 2.0, 100, 1.1),
        (None, 2.0, 0, 1.0),
        (50_000.0, 0.5, 0, 1.0),
    ):
        cache = PredictedCache(told)
        before = cache.capacity
        cache.use(0.0, prefix(1))
        cache.use(0.0, prefix(2, characters=4 * age * before))
        expected = cache.use(0.0, prefix(1))
        cache.answered(prefix(1), expected, Answer("", 100, 0, cached_tokens=cached), 1.0)
        assert cache.capacity / before == pytest.approx(factor, abs=0.002), (told, age, cached)


def test_the_reported_capacity_applies_again_when_a_configured_one_is_given_up() -> None:
    cache = PredictedCache()
    for configured in (None, 5_000, None):
        cache.set_capacity(configured)
        cache.report_capacity(300_000)
        assert cache.capacity == (configured or 300_000)


def test_a_reported_capacity_has_the_bounds_of_a_learned_one() -> None:
    cache = PredictedCache()
    for reported, kept in ((10.0**24, prefixes.MOST), (1.0, prefixes.LEAST), (-5.0, prefixes.LEAST), (math.nan, prefixes.LEAST)):
        cache.report_capacity(reported)
        assert cache.capacity == kept, reported


def test_what_was_learned_stays_if_the_same_capacity_is_reported_again_and_keeps_to_its_bounds() -> None:
    for reported, learned in ((300_000.0, 285_000.0), (prefixes.LEAST, prefixes.LEAST)):
        cache = PredictedCache()
        cache.report_capacity(reported)
        cache.use(0.0, prefix(1))
        cache.use(0.0, prefix(2, characters=4 * 0.5 * reported))
        cache.answered(prefix(1), cache.use(0.0, prefix(1)), Answer("", 100, 0, cached_tokens=0), 1.0)
        cache.report_capacity(reported)
        assert cache.capacity == pytest.approx(learned, rel=0.002)


def test_tokens_are_counted_by_what_the_server_says_of_the_prompt() -> None:
    cache = PredictedCache()
    for _ in range(100):
        cache.answered(prefix(1), COLD, Answer("", 200, 5), 1.0)
    assert cache.characters == pytest.approx(2.0, rel=0.01)
    cache.use(0.0, prefix(1))
    assert cache.use(0.0, prefix(1)).tokens == pytest.approx(200, rel=0.01)


def test_an_answer_with_a_cached_prefix_is_known_to_be_quicker() -> None:
    cache = PredictedCache()
    cold, warm = cache.use(0.0, prefix(1)), cache.use(0.0, prefix(1))
    assert cache.warm_share() == prefixes.UNKNOWN
    cache.answered(prefix(1), cold, Answer("", 100, 5), 4.0)
    cache.answered(prefix(1), warm, Answer("", 100, 5), 1.0)
    assert cache.warm_share() == 0.25
    assert cache.predicted_tokens == 0.0, "the answers do not say how much was cached"
    cache.answered(prefix(1), warm, Answer("", 100, 5, cached_tokens=96), 5.0)
    assert cache.predicted_tokens == 100.0
    assert cache.warm_share() == pytest.approx(1.4 / 4)
    cache.answered(prefix(1), cold, Answer("", 100, 5), 8.0)
    assert cache.warm_share() == pytest.approx(1.4 / 4.4)
    cache.answered(prefix(1), warm, Answer("", 100, 5), 400.0)
    assert cache.warm_share() == prefixes.WARM, "it is preferred even if it is no quicker"


def test_memory_is_bounded_by_what_is_cached() -> None:
    cache, holders = PredictedCache(10_000), Holders()
    source = Source("a", Random(0))
    source.prefix_cache = cache
    for number in range(3 * REMEMBERED):
        cache.use(0.0, prefix(number))
        holders.add(prefix(number), source)
    assert len(cache._used) <= SWEEP + 1000
    assert len(holders._recent) + len(holders._before) <= 2 * REMEMBERED + 2


def test_holders_are_the_sources_that_still_have_a_prefix_and_a_bounded_number_of_them() -> None:
    sources = [Source(str(number), Random(0)) for number in range(MOST_HOLDERS + 10)]
    holders: Holders = Holders()
    for source in sources:
        source.prefix_cache.use(0.0, prefix(1))
        holders.add(prefix(1), source)
    assert holders.of(1) == tuple(sources[-MOST_HOLDERS:])
    sources[-1].prefix_cache.forget()
    assert holders.of(1) == tuple(sources[-MOST_HOLDERS:-1])
    assert holders.of(2) == ()


def test_what_prompts_share_is_remembered_for_as_long_as_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "REMEMBERED", 100)
    monkeypatch.setattr(prefixes, "IN_VAIN", 20)
    holders, homes = Holders(), [Source(str(number), Random(0)) for number in range(5)]
    for number in range(1000, 2000):
        home = number % 5
        rubric, conversation = prefix(1, 10 + home, 20 + home, number), prefix(30 + home, *range(10_000 * home, 10_000 * home + number, 50))
        for each in (rubric, conversation):
            homes[home].prefix_cache.use(0.0, each)
            holders.add(each, homes[home])
            assert holders.is_affinity_useful()
        assert all(holders.of(20 + other) == (homes[other],) for other in range(5 if number > 1004 else 0))
