"""The six ways to choose among sources with room, played through the scheduler, and their details."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_driver import Driver
from scheduler_memory import bytes_left_by
from scheduler_warm import PACE, warm_all

from qreward.scheduler.load_balancing import (
    Balancer,
    ConsistentHash,
    ExpectedFinish,
    LeastConnections,
    PowerOfTwo,
    WeightedRoundRobin,
    make_balancer,
)
from qreward.scheduler.prefixes import Prefix
from qreward.scheduler.state import Source
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


def test_round_robin_passes_over_a_full_source_and_does_not_make_up_for_it() -> None:
    driver = Driver({"a": 1, "b": 9, "c": 9}, strategy=S.ROUND_ROBIN)
    assert placed(driver, 7) == list("abcbcbc")
    driver.ok(driver.at("a")[0])
    assert Counter(one_at_a_time(driver, 6)) == {"a": 2, "b": 2, "c": 2}


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
    driver = Driver(dict.fromkeys("abcd", 40), strategy=S.LEAST_CONNECTIONS, weights=weights, seed=3)
    for _ in range(300):
        if driver.watch.live and driver.rng.random() < 0.45:
            driver.ok(driver.rng.choice(list(driver.watch.live)), after=0.01)
        elif len(driver.watch.live) < 60:
            before = {name: len(driver.at(name)) / weight for name, weight in weights.items()}
            assert before[str(driver.where(driver.submit()))] == min(before.values())


class Dice(Random):
    """Throws what it was told to."""

    def __init__(self, throws: list[int]) -> None:
        super().__init__(0)
        self.throws = throws

    def randrange(self, start: Any, stop: Any = None, step: Any = 1) -> int:
        return self.throws.pop(0)


def test_power_of_two_picks_the_less_loaded_of_the_two_it_looked_at() -> None:
    for throws, winner in (([0, 1], 1), ([1, 0], 1), ([1, 2], 1), ([0, 2], 2), ([0, 0], 0)):
        sources = [Source(name, Random(0), Limits(max_concurrency=10)) for name in "abc"]
        balancer = PowerOfTwo(Dice(list(throws)))
        for source, inflight in zip(sources, (8, 1, 4), strict=True):
            source.inflight = inflight
            balancer.offer(source)
        assert balancer.take(()) is sources[winner], throws


def test_power_of_two_weighs_the_share_of_the_window_by_the_time_an_answer_takes() -> None:
    slow, fast = (Source(name, Random(0), Limits(max_concurrency=10)) for name in "sf")
    slow.latency.add(10.0)
    fast.latency.add(1.0)
    fast.inflight = 5
    balancer = PowerOfTwo(Dice([0, 1]))
    balancer.offer(slow)
    balancer.offer(fast)
    assert balancer.take(()) is fast


def test_expected_finish_prefers_the_fast_one_and_spreads_as_it_fills() -> None:
    driver = Driver({"fast": 8, "middle": 8, "slow": 8})
    warm_all(driver, answers=12, fast=PACE, middle=1.4 * PACE, slow=5 * PACE)
    names = placed(driver, 24)
    assert names[0] == "fast"
    assert "middle" in names[:8], "one as fast as this is better than a full one"
    assert "slow" not in names[:15], "five times as slow is worse than full"
    assert Counter(names) == {"fast": 8, "middle": 8, "slow": 8}, "but all is better than waiting"


def test_expected_finish_tries_a_source_that_has_not_answered_yet() -> None:
    driver = Driver({"known": 8})
    warm_all(driver, answers=12)
    driver.add("new", Limits(max_concurrency=8))
    assert driver.where(driver.submit()) == "new"


def test_sources_of_equal_worth_share_the_work() -> None:
    driver = Driver(dict.fromkeys("abcd", 16))
    warm_all(driver, answers=12)
    assert Counter(placed(driver, 32)).total() == 32
    assert all(len(driver.at(name)) == pytest.approx(8, abs=2) for name in "abcd")


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
    balancer: Balancer = make_balancer(strategy, {}, Random(0))
    sources = [Source(str(number), Random(0), Limits(max_concurrency=9)) for number in range(5)]
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
            taken = balancer.take((source,))
            assert (taken is None) == (not offered - {source})
            if taken is not None:
                assert taken in offered - {source}
                offered.remove(taken)
                balancer.sent(taken)


def group(number: int) -> Prefix:
    return Prefix((number,), (2000.0,), 2400.0, named=True)


def homes(driver: Driver, groups: int) -> list[str | None]:
    """Submit a task of each group and answer it: who got them."""
    found = []
    for number in range(groups):
        task = driver.submit(prefix=group(number))
        found.append(driver.where(task))
        assert task.attempt is not None
        driver.ok(task.attempt)
    return found


def test_consistent_hashing_spreads_groups_over_the_sources_and_moves_only_those_of_a_source_that_leaves() -> None:
    driver = Driver(dict.fromkeys("abcd", 9), strategy=S.CONSISTENT_HASH)
    before = homes(driver, 200)
    assert homes(driver, 200) == before
    assert all(30 <= count <= 70 for count in Counter(before).values())
    driver.remove("d")
    after = homes(driver, 200)
    assert [new for old, new in zip(before, after, strict=True) if old != "d"] == [old for old in before if old != "d"]
    moved = Counter(new for old, new in zip(before, after, strict=True) if old == "d")
    assert moved.keys() == set("abc"), "not all to the same one"


def test_consistent_hashing_uses_the_only_source_with_a_free_slot_however_busy_it_is() -> None:
    driver = Driver({"a": 50, "b": 1, "c": 1}, strategy=S.CONSISTENT_HASH)
    names = [driver.where(driver.submit(prefix=group(number))) for number in range(30)]
    assert Counter(names) == {"a": 28, "b": 1, "c": 1}


def test_offering_sources_again_and_again_does_not_fill_the_memory() -> None:
    for strategy in S:
        balancer = make_balancer(strategy, {}, Random(0))
        sources = [Source(str(number), Random(0)) for number in range(3)]

        def offer(balancer: Balancer = balancer, sources: list[Source] = sources) -> None:
            for number in range(5000):
                sources[number % 3].inflight = number % 50
                balancer.offer(sources[number % 3])

        assert bytes_left_by(offer) < 50_000, strategy


def test_each_strategy_has_its_balancer() -> None:
    kinds: dict[S, type[Any]] = {
        S.EXPECTED_FINISH: ExpectedFinish,
        S.LEAST_CONNECTIONS: LeastConnections,
        S.ROUND_ROBIN: WeightedRoundRobin,
        S.WEIGHTED_ROUND_ROBIN: WeightedRoundRobin,
        S.POWER_OF_TWO: PowerOfTwo,
        S.CONSISTENT_HASH: ConsistentHash,
    }
    assert {strategy: type(make_balancer(strategy, {}, Random(0))) for strategy in S} == kinds
