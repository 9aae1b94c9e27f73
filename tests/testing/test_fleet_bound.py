"""The lower bound of a bulk: cases that can be worked out by hand, and that no schedule ever beats it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

import pytest
from fakes.lower_bound import Resource, fluid, lower_bound
from fleet_tools import user
from hypothesis import given
from hypothesis import strategies as st

from qreward.testing import FakeEndpoint, Latency, Phase
from qreward.testing.bodies import digest_of

SECOND = Latency(base=1)


def endpoint(cap: int | None = None, latency: Latency = SECOND, **settings: Any) -> FakeEndpoint:
    return FakeEndpoint("a", max_concurrency=cap, latency=latency, **settings)


def phase(behaviour: Any, start: float, end: float | None = None, factor: float = 10) -> Phase:
    return Phase(behaviour=behaviour, start=start, end=end, factor=factor)


CASES: list[tuple[str, list[FakeEndpoint], int, float]] = [
    ("two rounds of four slots", [endpoint(4)], 8, 2),
    ("three slots", [endpoint(2), endpoint(1)], 9, 3),
    ("one twice as fast as the other", [endpoint(1, Latency(per_token=0.01, tokens=50)), endpoint(1)], 9, 3),
    ("no limit at all: one service time", [endpoint()], 1000, 1),
    ("a single request goes to the fastest", [endpoint(1), endpoint(1, Latency(base=100))], 1, 1),
    ("a rate after its burst", [endpoint(rpm=600, burst=10, latency=Latency())], 110, 10),
    ("the last one that is admitted still has to be served", [endpoint(rpm=600, burst=10)], 110, 11),
    ("by default a minute's worth at once", [endpoint(rpm=600, latency=Latency())], 600, 0),
    ("the slots are scarcer than the rate", [endpoint(4, rpm=600, burst=10)], 40, 10),
    ("tokens after their burst", [endpoint(tpm=6000, latency=Latency(tokens=100))], 90, 30),
    ("dead for two seconds", [endpoint(1, phases=[phase("dead", 1, 3)])], 4, 6),
    ("hung for two seconds", [endpoint(1, phases=[phase("hang", 1, 3)])], 4, 6),
    ("failing at first", [endpoint(1, phases=[phase("error_503", 0, 3)])], 4, 7),
    ("ten times slower for a second", [endpoint(1, phases=[phase("slow", 1, 2)])], 3, 3.9),
    ("one is slow for good", [endpoint(1, phases=[phase("slow", 2)]), endpoint(1)], 15, 12),
    ("the larger one dies", [endpoint(3, phases=[phase("dead", 2)]), endpoint(1)], 10, 4),
    ("alone and dead at first", [endpoint(phases=[phase("dead", 0, 5)])], 1, 6),
    ("its bucket fills while it is dead", [endpoint(rpm=60, burst=4, latency=Latency(), phases=[phase("dead", 1, 3)])], 7, 3),
    ("dead for good", [endpoint(phases=[phase("dead", 0)])], 1, math.inf),
    ("it dies too soon", [endpoint(1, phases=[phase("dead", 3)])], 4, math.inf),
    ("nothing to do", [endpoint(1)], 0, 0),
]


def test_the_bound_is_what_can_be_worked_out_by_hand() -> None:
    found = {case: lower_bound(endpoints, requests) for case, endpoints, requests, _ in CASES}
    assert found == {case: pytest.approx(seconds, rel=1e-6, abs=1e-6) for case, *_, seconds in CASES}


def test_of_real_conversations_the_longest_single_counts_when_it_is_longer() -> None:
    latency = Latency(per_token=0.01, tokens=100, sigma=1, seed=5)
    work = [user(str(number)) for number in range(50)]
    tokens = [latency.draw(digest_of(messages)) for messages in work]
    assert lower_bound([endpoint(50, latency)], work) == pytest.approx(max(tokens) * 0.01)
    assert lower_bound([endpoint(2, latency)], work) == pytest.approx(sum(tokens) * 0.01 / 2)


def source(base: float, per_token: float, tokens: list[int]) -> list[Resource]:
    """One slot."""
    return [Resource(lambda until: until, [base + per_token * each for each in tokens])]


def test_work_that_suits_one_endpoint_better_is_not_priced_as_if_it_were_spread_evenly() -> None:
    # Short ones take 1 s on the first and 0.1 s on the second, long ones 1 s and 10 s. At best all short ones and 9/11 of a long
    # one go to the second: 1 + 10 * 9/11 = 10 - 9/11. Spread evenly it would be 10 / (1/1 + 1/5.05) * 2 = 16.7.
    tokens = [10] * 10 + [1000] * 10
    best = 10 - 9 / 11
    bound = fluid([source(1, 0, tokens), source(0, 0.01, tokens)], 1)
    assert 0.97 * best <= bound <= best * (1 + 1e-9)


def test_a_rate_limited_endpoint_is_credited_with_the_longest_requests() -> None:
    # The first admits one request a second whatever its length, the second works off 100 tokens a second. At best the first takes
    # the n longest in n seconds: 8 of the 10 long ones, while the second does 2 long and 10 short ones in 8.1 s.
    tokens = [10] * 10 + [360] * 10
    first = [Resource(lambda until: until, [1.0] * 20)]
    # T longest on the first, the rest on the second: (10 - T) * 3.6 + 1 = T.
    best = 37 / 4.6
    bound = fluid([first, source(0, 0.01, tokens)], 1)
    assert 0.97 * best <= bound <= best * (1 + 1e-9)


def greedy(endpoints: list[FakeEndpoint], work: list[Any], order: Callable[[float], float]) -> float:
    """The makespan of a real schedule: whichever endpoint has a slot and a rate token first takes the next request."""
    requests = sorted((digest_of(messages) for messages in work), key=lambda digest: order(digest[0]))
    slots = [(0.0, number, slot) for number, spec in enumerate(endpoints) for slot in range(spec.max_concurrency or len(work))]
    heapq.heapify(slots)
    admitted = [0] * len(endpoints)
    makespan = 0.0
    for digest in requests:
        free, number, slot = heapq.heappop(slots)
        spec = endpoints[number]
        allowed = 0.0 if spec.rpm is None else max(0.0, (admitted[number] + 1 - spec.request_burst) * 60 / spec.rpm)
        admitted[number] += 1
        end = max(free, allowed) + spec.latency.seconds(spec.latency.draw(digest))
        makespan = max(makespan, end)
        heapq.heappush(slots, (end, number, slot))
    return makespan


endpoints_drawn = st.builds(
    lambda cap, base, per_token, tokens, sigma, rate: endpoint(
        cap, Latency(base=base, per_token=per_token, tokens=tokens, sigma=sigma), **({} if rate is None else {"rpm": rate, "burst": 2})
    ),
    st.integers(1, 6) | st.none(),
    st.floats(0, 2),
    st.floats(0, 0.05),
    st.integers(1, 300),
    st.sampled_from([0, 0.8]),
    st.floats(5, 1000) | st.none(),
)


@given(st.lists(endpoints_drawn, min_size=1, max_size=4), st.integers(1, 60), st.sampled_from([-1, 1]))
def test_no_schedule_beats_the_bound(endpoints: list[FakeEndpoint], count: int, sign: int) -> None:
    work = [user(str(number)) for number in range(count)]
    assert lower_bound(endpoints, work) <= greedy(endpoints, work, lambda key: sign * key) * (1 + 1e-9) + 1e-9
