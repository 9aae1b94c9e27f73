"""What each kind of failure costs, how long a retry waits, and how many there may be."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_desk import failure

from qreward.scheduler.failure_policy import RULES, Budget, backoff, rule_for
from qreward.scheduler.outcome import FailureKind
from qreward.settings.policies import Retry

K = FailureKind


def test_every_kind_of_failure_has_a_rule_and_what_an_endpoint_says_of_a_retry_goes_before_it() -> None:
    assert set(RULES) == set(FailureKind)
    for kind in FailureKind:
        assert not rule_for(failure(kind, should_retry=False)).retryable, kind
        assert rule_for(failure(kind, should_retry=True)) == RULES[K.TRANSIENT if kind is K.REFUSED else kind], kind
    assert not rule_for(failure(K.UNSENDABLE, should_retry=True)).retryable, "it would fail in the same way"


@given(st.integers(1, 60) | st.sampled_from([1025, 1026, 10_000]), st.floats(0.01, 5), st.floats(0.01, 60), st.integers(0, 2**32))
def test_the_wait_is_between_nothing_and_a_doubling_longest_wait(tries: int, base: float, cap: float, seed: int) -> None:
    wait = backoff(Retry(base=base, cap=cap), tries, Random(seed))
    assert 0 <= wait <= min(cap, base * 2 ** min(100, tries - 1))


def test_the_wait_has_full_jitter() -> None:
    rng = Random(7)
    waits = [backoff(Retry(base=1.0, cap=8.0), 3, rng) for _ in range(4000)]
    for quarter in range(4):
        assert sum(quarter <= wait < quarter + 1 for wait in waits) == pytest.approx(1000, rel=0.15)


def spent(budget: Budget, now: float, most: int = 100_000) -> int:
    """How many retries can be had at once."""
    count = 0
    while count < most and budget.withdraw(now):
        count += 1
    return count


def test_the_reserve_covers_ten_seconds_of_the_floor_and_all_that_can_be_in_flight_and_refills_at_the_floor() -> None:
    budget = Budget(Retry(budget_floor=10.0))
    budget.capacity = 64
    assert spent(budget, 0.0) == 10 * 10 + 64
    budget.capacity = 0
    assert spent(budget, 1.0) == 10
    assert spent(budget, 1.05) == 0
    assert spent(budget, 1000.0) == 100
    assert spent(budget, 1000.0 + budget.wait()) == 1


def test_requests_earn_a_share_of_retries_that_fades_after_ten_seconds() -> None:
    budget = Budget(Retry(budget=0.2, budget_floor=0.001))
    spent(budget, 0.0)
    for _ in range(1000):
        budget.deposit()
    assert spent(budget, 0.0) == pytest.approx(200, abs=1)
    for _ in range(1000):
        budget.deposit()
    assert spent(budget, 10.0) == pytest.approx(200 / 2.718, abs=2)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 3)), max_size=300), st.floats(0, 1), st.floats(0.1, 20), st.integers(0, 30))
def test_no_more_is_had_than_the_share_the_floor_and_the_reserve(
    moves: list[tuple[bool, float]], share: float, floor: float, capacity: int
) -> None:
    budget = Budget(Retry(budget=share, budget_floor=floor))
    budget.capacity = capacity
    now, requests, retries = 0.0, 0, 0
    for is_request, passed in moves:
        now += passed
        if is_request:
            budget.deposit()
            requests += 1
        else:
            retries += budget.withdraw(now)
    assert retries <= share * requests + floor * (now + Budget.TTL) + capacity + 1e-6
