"""What is expected of a source is pulled towards its pool, forgets with age, and is not made by one answer."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scale import seeds

from qreward.scheduler.estimate import (
    CALM,
    CAPACITY,
    FAILURES_HALF_LIFE,
    FIT_EVERY,
    HALF_LIFE,
    IDLE,
    LOAD,
    MEMORY,
    MOST_FAILURES,
    MOST_OVERHEAD,
    PRIOR,
    CommonService,
    SourceService,
)
from qreward.scheduler.pool import ExpectedFinish, Pool
from qreward.scheduler.queue import Queue
from qreward.scheduler.source import Source
from qreward.settings.policies import Limits

MANY = 400


def answer(common: CommonService, service: SourceService, now: float, seconds: float, tokens: int | None, load: float = 0.0) -> None:
    """An answer at a source, as ``Source.answered`` records it, and counted at once."""
    common.answered(now, service, seconds, tokens, load, CAPACITY)
    common.count(now)


def played(*answers: tuple[float, int | None], common: CommonService | None = None) -> tuple[CommonService, SourceService]:
    """A source that has given these answers, of so many seconds and tokens, all at once."""
    common, service = common or CommonService(), SourceService()
    for seconds, tokens in answers:
        answer(common, service, 0.0, seconds, tokens)
    return common, service


def alone(service: SourceService, now: float, seconds: float, load: float = 0.0) -> None:
    """An answer of which its pool learns nothing."""
    answer(usual(1.0), service, now, seconds * (1 + load / CAPACITY), None, load)


def usual(seconds: float = 1.0, tokens: int | None = None) -> CommonService:
    """A pool whose sources have given many answers of so many seconds."""
    return played(*[(seconds, tokens)] * MANY)[0]


def test_with_few_answers_the_pace_is_pulled_towards_the_common_pace_and_with_many_it_is_the_sources_own() -> None:
    """A source that needs five times as long as the pool: answers -> expected seconds."""
    common, wrong = usual(1.0), {}
    for answers, pace in (
        (0, 1.0),
        (1, (5 + PRIOR) / (1 + PRIOR)),
        (2, (10 + PRIOR) / (2 + PRIOR)),
        (MANY, (5 * MEMORY + PRIOR) / (MEMORY + PRIOR)),
    ):
        service = SourceService()
        for _ in range(answers):
            alone(service, 0.0, 5.0)
        if service.pace(0.0, common) != pytest.approx(pace, rel=0.01):
            wrong[answers] = service.pace(0.0, common)
    assert not wrong


def test_a_source_that_has_not_answered_counts_like_the_common_pace_and_before_any_answer_nothing_is_known() -> None:
    assert SourceService().pace(0.0, CommonService()) == 0.0
    for tokens in (None, 100):
        common = usual(3.0, tokens)
        assert SourceService().pace(1e6, common) == pytest.approx(common.pace)
        assert common.pace * common.typical == pytest.approx(3.0)


def test_what_is_known_of_a_source_loses_half_of_its_weight_in_half_a_minute_of_idleness_and_none_while_it_answers() -> None:
    common = usual(1.0)
    _, service = played(*[(5.0, None)] * MANY)
    known = service.pace(0.0, common)
    assert service.pace(IDLE / 2, common) == known
    for half_lives in (1, 2, 5):
        weight = MEMORY * 0.5**half_lives
        assert service.pace(half_lives * HALF_LIFE, common) == pytest.approx((5 * weight + PRIOR) / (weight + PRIOR), rel=1e-3), half_lives
    assert service.pace(20 * HALF_LIFE, common) == pytest.approx(1.0, rel=0.01), "an idle source is expected to be like the others again"
    now = 0.0
    for _ in range(MANY):
        now += 0.4 * HALF_LIFE
        alone(service, now, 5.0)
    assert service.pace(now, common) > 2.5, "it answers now and then, and is still slow"


def test_failures_are_forgotten_with_age_as_well() -> None:
    flaky = SourceService()
    for _ in range(MANY):
        flaky.failed(0.0)
    assert flaky.tries(0.0) == pytest.approx(1 / (1 - 20 / (20 + CALM)))
    expected = [flaky.tries(age * HALF_LIFE) for age in range(12)]
    assert expected == sorted(expected, reverse=True)
    assert expected[-1] == pytest.approx(1.0, abs=0.01)
    alone(flaky, 12 * HALF_LIFE, 1.0)
    assert flaky.tries(12 * HALF_LIFE) == pytest.approx(1.0, abs=0.01)


def test_the_expected_tries_follow_from_the_share_of_failures() -> None:
    """Every how many sends one fails -> expected sends until an answer. A single failure weighs little."""
    wrong, one = {}, SourceService()
    one.failed(0.0)
    assert one.tries(0.0) == pytest.approx(1 / (1 - 1 / (1 + CALM)))
    for every in (2, 5, 10, 20):
        service, seen = SourceService(), []
        for number in range(MANY):
            if number % every == 0:
                service.failed(0.0)
            else:
                alone(service, 0.0, 1.0)
            seen.append(service.tries(0.0))
        mean = sum(seen[-20 * every :]) / (20 * every)
        share = 20 / every / (20 + CALM)
        if mean != pytest.approx(1 / (1 - share), rel=0.05):
            wrong[every] = mean
    assert not wrong
    never = SourceService()
    alone(never, 0.0, 1.0)
    assert never.tries(0.0) == 1.0


def test_a_source_that_nothing_is_known_of_is_expected_to_fail_as_often_as_the_others() -> None:
    common, proven, new = CommonService(), SourceService(), SourceService()
    for _ in range(MANY):
        alone(proven, 0.0, 1.0)
        common.failed(0.0)
    share = common.failure_share
    assert share == pytest.approx(MANY / (MANY + CALM))
    assert new.tries(0.0, share) == pytest.approx(1 / (1 - min(share, MOST_FAILURES)))
    assert proven.tries(0.0, share) < 1.3, "it has answered all of its own"
    common.failed(12 * FAILURES_HALF_LIFE)
    assert common.failure_share == pytest.approx(1 / (1 + CALM), abs=0.02), "and that is forgotten"


def test_one_long_answer_does_not_make_a_source_slow() -> None:
    """The first of all answers is thirty times as long as the others, in seconds and in tokens; or in seconds only, and then it passes."""
    common, service = CommonService(), SourceService()
    other = SourceService()
    answer(common, service, 0.0, 30.0, 3000)
    assert common.pace * common.typical == pytest.approx(30.0)
    assert service.pace(0.0, common) == pytest.approx(other.pace(0.0, common)), "its equal is expected to need as long"
    for _ in range(30):
        answer(common, other, 0.1, 1.0, 100)
    assert service.pace(0.1, common) / other.pace(0.1, common) == pytest.approx(1.0, rel=0.01), "the seconds of a token are the same"
    for answers, most in ((0, 11.0), (10, 4.0), (60, 1.5)):
        common, service = usual(1.0), SourceService()
        alone(service, 0.0, 30.0)
        for _ in range(answers):
            alone(service, 0.0, 1.0)
        assert service.pace(0.0, common) < most, answers


def lengths(seed: int, number: int = MANY) -> list[int]:
    rng = Random(seed)
    return [max(4, min(2000, round(rng.lognormvariate(4.2, 1.0)))) for _ in range(number)]


def test_the_overhead_of_an_answer_is_learned_so_that_short_answers_do_not_make_a_source_slow() -> None:
    """Seconds of an answer without tokens -> the same in tokens. One of two equal sources got only answers of a few tokens."""
    for seed, overhead in ((seed, overhead) for seed in seeds(3) for overhead in (0.0, 0.4, 4.0)):
        common, short, other, rng = CommonService(), SourceService(), SourceService(), Random(seed)
        for tokens in lengths(seed):
            answer(common, other, 0.0, overhead + 0.01 * tokens * rng.uniform(0.7, 1.3), tokens)
            answer(common, short, 0.0, overhead + 0.05, 5)
        assert common.overhead == pytest.approx(overhead / 0.01, rel=0.5, abs=12.0), (seed, overhead)
        assert short.pace(0.0, common) / other.pace(0.0, common) == pytest.approx(1.0, rel=0.35), (seed, overhead)


def test_answers_of_one_length_tell_nothing_of_the_overhead() -> None:
    common, _ = played(*[(2.0, 100)] * MANY)
    assert (common.overhead, common.pace) == (0.0, pytest.approx(0.02))


def test_what_was_learned_before_the_overhead_was_known_counts_in_the_same_unit() -> None:
    """An equal source that gave only short answers before would seem slow for as long as it gets no more of them."""
    common, one, other = CommonService(), SourceService(), SourceService()
    answer(common, one, 0.0, 2.7, 1200)
    for _ in range(12):
        answer(common, other, 1.0, 0.3, 8)
    for _ in range(60):  # all of them go to the one source
        answer(common, one, 1.0, 0.3, 8)
    assert common.overhead > 20
    assert other.pace(1.0, common) == pytest.approx(one.pace(1.0, common), rel=0.2)


def test_equal_sources_share_short_answers_soon_after_one_of_them_has_given_a_long_answer() -> None:
    """An answer takes 0.25 s at least, and longer with each other one in flight. Each round has 24 calls."""
    common, one, other = CommonService(), SourceService(), SourceService()
    answer(common, one, 3.0, 2.7, 1200)
    counts, shares = {one: 12, other: 12}, []
    for number in range(6):
        now = 3.5 + number
        for service, count in counts.items():
            for _ in range(count):
                answer(common, service, now, 0.25 + 0.008 * count, 8, count - 1.0)
        counts = {one: 0, other: 0}
        for _ in range(24):
            counts[min(counts, key=lambda each: each.pace(now, common) * (1 + counts[each] / 32))] += 1
        shares.append(counts[one])
    assert shares[0] < 22, shares
    assert all(10 <= share <= 14 for share in shares[2:]), shares


def test_a_few_answers_that_take_very_long_hardly_change_the_overhead() -> None:
    common, service, rng = CommonService(), SourceService(), Random(0)
    for number, tokens in enumerate(lengths(0, 2000)):
        answer(common, service, 0.0, (0.4 + 0.01 * tokens) * (40.0 if rng.random() < 0.01 and number > 100 else 1.0), tokens)
    assert common.overhead < 120, "the true value is 40"


@given(
    st.lists(st.tuples(st.floats(1e-3, 1e3), st.none() | st.integers(0, 5000), st.booleans(), st.floats(0, 100)), max_size=4 * FIT_EVERY)
)
def test_whatever_is_answered_the_estimate_is_positive_finite_and_between_the_source_and_the_pool(
    events: list[tuple[float, int | None, bool, float]],
) -> None:
    common, services, now = CommonService(), (SourceService(), SourceService()), 0.0
    for seconds, tokens, first, passed in events:
        now += passed
        answer(common, services[first], now, seconds, tokens)
        if tokens is None:
            services[first].failed(now)
        assert 0 <= common.overhead <= MOST_OVERHEAD * 5000
        assert 0 < common.pace < 1e3 + 1
        assert common.typical > 0
        for service in services:
            work = common.overhead * service._answers + service._tokens
            own = service._seconds / work if work else common.pace
            low, high = sorted((own, common.pace))
            assert low * (1 - 1e-9) <= service.pace(now, common) <= high * (1 + 1e-9)
            assert 1.0 <= service.tries(now) <= 1 / (1 - MOST_FAILURES) + 1e-9
            idle = service.pace(now + 1e4, common)
            assert idle == pytest.approx(common.pace, rel=0.01)


@given(st.lists(st.booleans(), max_size=100), st.booleans())
def test_a_failure_never_makes_the_expected_tries_fewer_and_an_answer_never_makes_them_more(outcomes: list[bool], last: bool) -> None:
    service = SourceService()
    for ok in (*outcomes, last):
        before = service.tries(0.0)
        if ok:
            alone(service, 0.0, 1.0)
            assert service.tries(0.0) <= before + 1e-12
        else:
            service.failed(0.0)
            assert service.tries(0.0) >= before - 1e-12


def test_load_raises_the_time_until_an_answer_in_proportion_to_the_requests_in_flight_over_the_capacity() -> None:
    """Limit, and the number of others in flight with which the load is one."""
    for limit, capacity in ((4, 4), (1000, CAPACITY)):
        source = Source("a", Random(0), Limits(max_concurrency=limit))
        pool = Pool("p", [source], ExpectedFinish(), Queue())
        alone = source.answers_in(0.0, pool)
        assert alone == 1.0, "only the load is known before the first answer"
        pool.common = usual(3.0)
        for inflight, factor in ((0, 1.0), (capacity, 1 + LOAD), (3 * capacity, 1 + 3 * LOAD)):
            source.inflight = inflight
            assert source.answers_in(0.0, pool) == pytest.approx(3.0 * factor), (limit, inflight)
        source.failed(0.0)
        source.inflight = 0
        assert source.answers_in(0.0, pool) == pytest.approx(3.0 * source.service.tries(0.0, pool.common.failure_share)), (
            "and so do failures"
        )


def test_a_pace_covers_as_many_answers_as_are_in_flight_together() -> None:
    """A mean over fewer would describe only the end of a batch, when few requests are left."""
    common, service = usual(8.0), SourceService()
    for number in range(300):
        alone(service, 0.0, 2.0 if number % 2 else 14.0, 299.0)
    for _ in range(10):
        alone(service, 0.0, 14.0, 299.0)
    assert service.pace(0.0, common) == pytest.approx(8.0, rel=0.06)


def lengths_seen(*sources: tuple[float, int | None]) -> list[float]:
    """The lengths that are told or inferred when sources of such seconds and tokens an answer take turns."""
    common, services, seen = CommonService(), [SourceService() for _ in sources], list[float]()
    common.lengths.add = seen.extend  # type: ignore[assignment, method-assign]
    for _ in range(MANY):
        for service, (seconds, tokens) in zip(services, sources, strict=True):
            answer(common, service, 0.0, seconds, tokens)
    return seen


def test_the_length_of_an_answer_is_what_the_source_tells_or_its_time_by_the_pace_of_the_source() -> None:
    assert set(lengths_seen((0.2, 20), (20.0, 20))) == {20}, "however fast the sources are"
    assert lengths_seen((2.0, None), (9.0, None))[-2:] == pytest.approx([1.0, 1.0], rel=0.3), "a multiple of the usual time"
    assert lengths_seen((2.0, 40), (3.0, None))[-1] == pytest.approx(40, rel=0.3), "the mean of the pool"


def test_the_recent_seconds_per_token_are_those_of_the_last_answers_at_their_load() -> None:
    common, service = usual(1.0, 100), SourceService()
    assert service.recent() == 0.0
    for seconds in (2.0, 6.0):
        answer(common, service, 0.0, seconds, 100, load=50.0)
    assert service.recent() == pytest.approx((0.95 * 2.0 + 6.0) / 195)
