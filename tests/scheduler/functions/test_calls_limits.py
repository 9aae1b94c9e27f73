"""The limits of a function by themselves: the one that moves, and the rate of a key, exact in any window."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from qreward.functions.config import ScheduleConfig
from qreward.scheduler.function_limits import LEAST_ROUND, AimdLimit, KeyState, adapted


class Terms(NamedTuple):
    adaptive_limit_min: int
    adaptive_limit_max: int
    adaptive_error_threshold: float
    adaptive_latency_threshold: float | None


TERMS = Terms(2, 100, 0.3, None)


def rounds(limit: AimdLimit, count: int, *, failing: float = 0.0, seconds: float = 0.1, wanted: bool = True, now: float = 0.0) -> float:
    """So many rounds of tries, each begun after the one before was over; the time after them."""
    for _ in range(count):
        size = max(LEAST_ROUND, limit.limit)
        for number in range(size):
            limit.wanted |= wanted
            if number < failing * size:
                limit.ended(now + 1, now, None)
            else:
                limit.ended(now + 1, now, seconds)
        now += 1
    return now


def test_it_rises_a_tenth_a_round_while_a_call_waits_and_falls_by_half_when_too_much_fails_or_is_slow() -> None:
    """Terms, limit at first, rounds, share that fails, seconds of those that do not, whether a call waits -> the limit."""
    slow = TERMS._replace(adaptive_latency_threshold=1.0)
    found = {}
    for terms, start, count, failing, seconds, wanted, expected in (
        (TERMS, 50, 1, 0.0, 9.0, True, 55),
        (TERMS, 50, 21, 0.0, 9.0, True, 100),
        (TERMS, 2, 1, 0.0, 9.0, True, 3),
        (TERMS, 50, 50, 0.0, 9.0, False, 50),  # unused it does not rise
        (TERMS, 40, 5, 0.2, 9.0, True, 40),  # some may fail
        (TERMS, 40, 1, 0.15, 9.0, True, 44),
        (TERMS, 40, 1, 0.3, 9.0, True, 40),
        (TERMS, 40, 1, 0.5, 9.0, True, 20),
        (TERMS, 40, 11, 0.5, 9.0, True, 2),
        (slow, 40, 1, 0.0, 1.1, True, 20),
        (slow, 40, 1, 0.0, 1.0, False, 40),
        (slow, 40, 1, 0.25, 1.2, True, 20),  # tries that fail do not make the others pass for quick
        (slow._replace(adaptive_error_threshold=1.0), 40, 1, 1.0, 9.0, True, 40),
    ):
        limit = AimdLimit(start, terms)
        rounds(limit, count, failing=failing, seconds=seconds, wanted=wanted)
        if limit.limit != expected:
            found[terms, start, count, failing, seconds, wanted] = limit.limit
    assert not found


def test_new_settings_apply_from_the_next_try_on_even_if_the_bounds_are_as_before() -> None:
    limit = AimdLimit(40, TERMS)
    limit.follow(TERMS._replace(adaptive_error_threshold=0.9))
    rounds(limit, 1, failing=0.5)
    assert limit.limit == 40
    limit.follow(TERMS._replace(adaptive_error_threshold=0.1), most=1.0)
    assert limit.limit == 1, "the least limit does not exceed what else is allowed"


def after_each(limit: AimdLimit, count: int, now: float, sent_at: float, seconds: float | None) -> list[float]:
    """The limit after each of so many equal ends of a try."""
    found = []
    for _ in range(count):
        limit.ended(now, sent_at, seconds)
        found.append(limit.limit)
    return found


def test_what_began_under_another_limit_says_nothing_of_this_one() -> None:
    limit = AimdLimit(32, TERMS)
    assert after_each(limit, 32, 1.0, 0.0, None) == [32] * 31 + [16]
    assert after_each(limit, 100, 1.5, 0.9, None) == [16] * 100
    for _ in range(100):
        limit.wanted = True
        assert after_each(limit, 1, 1.5, 0.9, 0.1) == [16]
    for _ in range(16):
        limit.ended(1.5, 1.0, None)
    assert limit.limit == 8, "what began at the same moment counts"
    limit.wanted = True
    assert after_each(limit, 8, 2.0, 1.5, 0.1) == [8] * 7 + [9]
    for _ in range(9):
        limit.ended(3.0, 2.0, 0.1)
    assert limit.limit == 9
    for _ in range(9):
        limit.ended(3.5, 2.5, None)
    assert limit.limit == 4, "a round without a change begins no other limit"


def test_being_turned_away_makes_it_fall_at_once_and_once() -> None:
    limit = AimdLimit(32, TERMS)
    limit.ended(1.0, 0.5, None, overloaded=True)
    assert limit.limit == 16
    limit.ended(1.1, 0.9, None, overloaded=True)
    assert limit.limit == 16
    limit.ended(2.0, 1.0, None, overloaded=True)
    assert limit.limit == 8, "what began at the same moment counts"
    limit.wanted = True
    for _ in range(8):
        limit.ended(3.0, 2.5, 0.1)
    assert limit.limit == 9
    limit.ended(3.5, 2.5, None, overloaded=True)
    assert limit.limit == 4, "what began under a lower limit counts even more"


def test_it_never_goes_above_what_is_set() -> None:
    """Else it would rise where it has no effect, and have to fall as far before it has one."""
    for most, limit in ((4, 4), (inf, 10)):
        adaptive = AimdLimit(4, Terms(10, 100, 0.3, None), most)
        assert adaptive.limit == limit
        rounds(adaptive, 100)
        assert adaptive.limit == min(most, 100)


def test_other_terms_keep_what_was_found_as_far_as_they_allow() -> None:
    limit = AimdLimit(32, TERMS)
    for _ in range(16):
        limit.ended(1.0, 0.0, None)
    assert adapted(limit, TERMS, 99.0, inf) is limit
    for _ in range(16):
        limit.ended(1.0, 0.0, None)
    assert limit.limit == 16, "the same terms begin nothing anew"
    limit = AimdLimit(32, TERMS)
    assert adapted(limit, TERMS._replace(adaptive_limit_max=20), 99.0, inf) is limit
    assert limit.limit == 20
    adapted(limit, TERMS, 99.0, 7.0)
    assert limit.limit == 7
    assert adapted(limit, None, 99.0, inf) is None
    assert adapted(None, TERMS, 12.0, inf).limit == 12  # type: ignore[union-attr]


def rate_limited(size: int, window: float) -> KeyState:
    return KeyState(ScheduleConfig(limit_size=size, limit_window=window))


def ready_at(key: KeyState) -> float:
    return key.ready_at(SimpleNamespace(paced=True))


gaps = st.lists(st.one_of(st.just(0.0), st.floats(0.0, 3.0)), max_size=60)


@given(st.integers(1, 5), st.sampled_from([0.1, 0.3, 1.0, 7.0]), st.sampled_from([0.0, 1e6 / 3, 2e9 / 7]), gaps)
def test_in_no_half_open_window_are_more_than_size_starts_and_none_is_later_than_need_be(
    size: int, window: float, start: float, waits: list[float]
) -> None:
    key, now = rate_limited(size, window), start
    assert key.clear_at() == ready_at(key) == -inf
    starts: list[float] = []
    for wait in waits:
        now += wait
        now = max(now, ready_at(key))
        fewer = len(starts) < size
        assert now >= ready_at(key)
        assert fewer or starts[-size] + window <= now, "one too many"
        assert fewer or ready_at(key) in (-inf, starts[-size] + window), "later than need be"
        key.begin(now)
        key.inflight -= 1
        starts.append(now)
        assert key.clear_at() == now + window
        assert key.starts is not None
        assert len(key.starts) <= size, "more is remembered than is needed"


def test_another_size_counts_the_past_starts() -> None:
    """Starts at 0, 1, 2 and 3 s of at most four in ten seconds; the new size -> when the next try may start."""
    ready = {}
    for size in (6, 5, 4, 3, 2, 1):
        key = rate_limited(4, 10.0)
        for now in (0.0, 1.0, 2.0, 3.0):
            key.begin(now)
        key.follow(ScheduleConfig(limit_size=size, limit_window=10.0))
        ready[size] = ready_at(key)
    assert ready == {6: -inf, 5: -inf, 4: 10.0, 3: 11.0, 2: 12.0, 1: 13.0}
