"""The four ways to choose among sources with room, played through the scheduler, and their details."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_driver import Driver
from scheduler_warm import PACE, warm_all

from qreward.scheduler.pool import (
    BALANCERS,
    Balancer,
    Pool,
)
from qreward.scheduler.queue import Queue
from qreward.scheduler.source import Source
from qreward.scheduler.task import Task
from qreward.settings.policies import Limits, LoadBalanceStrategy

S = LoadBalanceStrategy


def one_at_a_time(driver: Driver, count: int) -> list[str]:
    """Submit a task and answer it, again and again: who got them."""
    names = []
    for _ in range(count):
        task = driver.submit()
        name = driver.where(task)
        assert name is not None
        assert task.attempt is not None
        names.append(name)
        driver.ok(task.attempt)
    return names


def placed(driver: Driver, count: int) -> list[str | None]:
    """Submit tasks without answering: who got them."""
    return [driver.where(driver.submit()) for _ in range(count)]


def test_round_robin_goes_round_whatever_the_weights() -> None:
    driver = Driver(dict.fromkeys("abc", 10), strategy=S.ROUND_ROBIN, weights={"a": 5.0})
    assert one_at_a_time(driver, 9) == list("abcabcabc")
    assert placed(driver, 6) == list("abcabc")


@given(st.lists(st.integers(1, 8), min_size=1, max_size=5), st.integers(1, 2))
def test_weights_are_kept_in_exact_proportion_and_evenly_spread(weights: list[int], rounds: int) -> None:
    """After each whole round the shares are exact, and at no time is anyone more than one ahead or behind."""
    names = [f"s{number}" for number in range(len(weights))]
    driver = Driver(dict.fromkeys(names, 4), strategy=S.WEIGHTED_ROUND_ROBIN, weights=dict(zip(names, map(float, weights), strict=True)))
    total, got = sum(weights), Counter(dict.fromkeys(names, 0))
    for number, name in enumerate(one_at_a_time(driver, total * rounds), 1):
        got[name] += 1
        for other, weight in zip(names, weights, strict=True):
            assert abs(got[other] - Fraction(number * weight, total)) <= 1 + Fraction(len(weights), 4)
        if number % total == 0:
            assert [got[other] for other in names] == [weight * number // total for weight in weights]


def test_a_routes_weights_go_over_the_sources_own() -> None:
    driver = Driver(strategy=S.WEIGHTED_ROUND_ROBIN, weights={"a": 1.0})
    driver.add("a", weight=100.0)
    driver.add("b", weight=3.0)
    assert Counter(one_at_a_time(driver, 40)) == {"a": 10, "b": 30}


def test_a_source_that_was_away_does_not_make_up_for_it() -> None:
    driver = Driver({"a": 9, "b": 9}, strategy=S.WEIGHTED_ROUND_ROBIN)
    driver.mark("a", down=True)
    assert set(one_at_a_time(driver, 50)) == {"b"}
    driver.mark("a", down=False)
    names = one_at_a_time(driver, 20)
    assert Counter(names) == {"a": 10, "b": 10}
    assert Counter(names[:4]) == {"a": 2, "b": 2}


def test_least_connections_are_really_the_least_for_each_ones_weight() -> None:
    weights = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 3.0}
    driver = Driver(strategy=S.LEAST_CONNECTIONS, weights={"a": 1.0}, seed=3)
    for name, weight in weights.items():
        driver.add(name, Limits(max_concurrency=40), weight=100.0 if name == "a" else weight)
    for _ in range(300):
        if driver.watch.live and driver.rng.random() < 0.45:
            driver.ok(driver.rng.choice(list(driver.watch.live)), after=0.01)
        elif len(driver.watch.live) < 60:
            before = {name: len(driver.at(name)) / weight for name, weight in weights.items()}
            assert before[str(driver.where(driver.submit()))] == min(before.values())


def test_expected_finish_prefers_the_fast_one_and_spreads_as_it_fills() -> None:
    driver = Driver({"fast": 8, "middle": 8, "slow": 8})
    warm_all(driver, answers=12, fast=PACE, middle=1.4 * PACE, slow=8 * PACE)
    names = placed(driver, 24)
    assert names[0] == "fast"
    assert "middle" in names[:8], "one as fast as this is better than a full one"
    count = Counter(names)
    assert (count["fast"], count["middle"]) == (8, 8)
    assert count["slow"] <= 1, "eight times as slow is worse than to wait for the others"
    assert "slow" in placed(driver, 100), "until so many wait that the others are not sooner"
    driver.add("new", Limits(max_concurrency=8))
    assert len(driver.at("new")) == 8, "it may be quicker than any"


def test_batches_below_the_limits_are_shared_by_equal_servers_that_queue_whatever_they_served_before() -> None:
    """Each server serves 16 requests at a time, for a random time, and lets the others wait. Its limit is far above."""
    driver, rng = Driver({"a": 1000, "b": 1000}, thorough=False), Random(1)
    driver.wait(1.0)
    for number in range(12):
        for _ in range(400 if number != 3 else 3):  # after a pause, which tells nothing of a batch
            driver.submit()
        most = max(len(driver.at(name)) for name in "ab")
        assert number == 3 or most <= 260, (number, most)
        due = {attempt: rng.lognormvariate(0, 0.5) for name in "ab" for attempt in driver.at(name)}
        while driver.watch.live:
            serving = [attempt for name in "ab" for attempt in driver.at(name)[:16]]
            first = min(serving, key=due.__getitem__)
            step = due[first]
            for attempt in serving:
                due[attempt] -= step
            driver.ok(first, after=step)
        driver.wait(5.0)


@pytest.mark.parametrize("strategy", S)
def test_no_source_with_a_free_slot_is_left_idle_and_when_all_are_full_the_first_with_a_free_slot_pulls(strategy: S) -> None:
    driver = Driver({"a": 1, "b": 3, "c": 5}, strategy=strategy, weights={"a": 100.0})
    assert Counter(placed(driver, 9)) == {"a": 1, "b": 3, "c": 5}
    waiting = [driver.submit() for _ in range(4)]
    for name, task in zip("cbbc", waiting, strict=True):
        assert driver.where(task) is None
        driver.ok(driver.at(name)[0])
        assert driver.where(task) == name


@given(st.sampled_from(S), st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["offer", "take", "forget", "load"])), max_size=60))
def test_a_balancer_hands_out_each_offered_source_once_and_never_one_to_avoid(strategy: S, moves: list[tuple[int, str]]) -> None:
    balancer: Balancer = BALANCERS[strategy]()
    sources = [Source(str(number), Random(0), Limits(max_concurrency=9)) for number in range(5)]
    pool = Pool("p", sources, balancer, Queue())
    task = Task(None, pool, 5, None, None, 0)
    offered: set[Source] = set()
    for pick, what in moves:
        source = sources[pick]
        if what == "offer":
            balancer.offer(source)
            offered.add(source)
        elif what == "load":
            source.inflight = (source.inflight + 4) % 9
        elif what == "forget":
            balancer.forget(source)
            offered.discard(source)
        else:
            taken = balancer.take(0.0, pool, (source,), task)
            assert (taken is None) == (not offered - {source})
            if taken is not None:
                assert taken in offered - {source}
                offered.remove(taken)
                balancer.sent(taken)
