"""The small parts by themselves: how long a list should be, when items are too late, how a refused list teaches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qreward import Endpoint, Limits
from qreward.codecs.base import WireRequest
from qreward.codecs.embeddings import EMBEDDINGS
from qreward.codecs.rewards.base import MergeLimits
from qreward.codecs.rewards.kinds import SCORE
from qreward.scheduler.pool import ExpectedFinish, Pool
from qreward.scheduler.queue import Queue
from qreward.scheduler.source import make_source
from qreward.scheduler.task import RequestOptions
from qreward.scoring import sizing
from qreward.scoring.merge_spec import EmbeddingsSpec, MergeSpec
from qreward.scoring.merger import MergedItem, MergedRequest, RequestMerger
from qreward.scoring.sizing import LearnedLimits
from qreward.settings.client import ClientConfig


def pool_of(*limits: Limits) -> Pool:
    sources = [make_source(f"s{number}", Random(1), each) for number, each in enumerate(limits)]
    return Pool("'*'", sources, ExpectedFinish(), Queue())


def fixed(slots: int, **settings: Any) -> Limits:
    return Limits(max_concurrency=slots, adaptive=False, **settings)


LINES: dict[str, tuple[Callable[[int], float], int, int]] = {
    "20 ms + 1.5 ms": (lambda n: 0.02 + 0.0015 * n, 14, 224),
    "flat": (lambda n: 0.1, sizing.MOST, sizing.MOST),
    "in proportion": (lambda n: 0.01 * n, 1, 32),
    "shorter when longer": (lambda n: 1 / n, sizing.MOST, sizing.MOST),
}


def test_a_list_has_at_least_the_items_that_take_as_long_as_its_fixed_part_and_not_far_more() -> None:
    for name, (seconds, least, ample) in LINES.items():
        service = sizing.ServiceTimeModel()
        for items in (3, 80, 20, 200, 50, 120):
            service.add(0.0, items, seconds(items))
        assert service.bounds() == (pytest.approx(least, abs=1), pytest.approx(ample, abs=16), sizing.MOST), name


def test_while_lists_of_one_length_teach_nothing_of_what_a_list_costs_longer_ones_are_tried() -> None:
    service = sizing.ServiceTimeModel()
    for _ in range(50):
        service.add(0.0, 32, 1.0)
    assert service.bounds() == (4 * 32, 4 * 32, 4 * 32)


def test_the_throughput_counts_the_time_in_which_an_endpoint_works() -> None:
    service = sizing.ServiceTimeModel()
    assert service.pace == 0.0
    for number in range(1, 30):  # four at once, one after the other
        service.add(10.0 + number, 10, min(4.0, number))
    assert service.pace == pytest.approx(0.1)
    service.add(1000.0, 10, 1.0)  # after a long rest
    assert service.pace == pytest.approx(0.1)


@given(st.lists(st.tuples(st.integers(1, 10_000), st.floats(0, 1e6)), min_size=1, max_size=60))
def test_whatever_lists_take_their_length_is_within_its_bounds(lists: list[tuple[int, float]]) -> None:
    service = sizing.ServiceTimeModel()
    for items, seconds in lists:
        service.add(0.0, items, seconds)
    least, ample, most = service.bounds()
    assert 1 <= least <= ample <= most <= sizing.MOST


def test_calls_for_embeddings_count_by_their_inputs() -> None:
    listing = EmbeddingsSpec("m", {}, None, None)
    calls = [WireRequest(EMBEDDINGS, "m", inputs, {}, None) for inputs in (["a", "b"], "c", [1, 2, 3], [[1], [2], [3]])]
    assert [listing.fitting(MergeLimits(items=most), calls) for most in (1, 2, 3, 4, 6, 7)] == [1, 1, 2, 3, 3, 4]
    assert listing.merged(calls[2:]).inputs == [[1, 2, 3], [1], [2], [3]]
    assert listing.merged(calls[:1]) is calls[0]


def test_an_item_whose_time_has_passed_is_not_taken_though_the_timer_was_not_there_yet() -> None:
    pool = pool_of(fixed(1))
    source = pool.sources[0]
    source.endpoint = Endpoint("http://a.example/v1", name="a", kind="vllm")
    spec = MergeSpec(SCORE, "m", {}, None, None)
    engine = SimpleNamespace(lock=nullcontext(), clock=lambda: 0.0)
    driver: Any = SimpleNamespace(
        engine=engine, watch=None, waiters={}, loop=SimpleNamespace(call_soon=lambda _: None, is_closed=lambda: False)
    )
    merger = RequestMerger(driver, pool, spec, None, LearnedLimits(), config=ClientConfig.model_construct, idle=lambda: None)
    made = [
        MergedItem(WireRequest(SCORE, "m", [f"x {index}"], {}, None), pool, RequestOptions(5, 1.0 + index), None, index)
        for index in range(3)
    ]
    merger.add(made)
    request = MergedRequest(made[0].key, merger)
    assert merger.fill(2.5, request, source)
    assert [member.index for member in request.members] == [2]
    assert merger._collector.due(2.5) == made[:2]
    assert not merger.fill(9.0, MergedRequest(made[0].key, merger), source)
