"""What a process with Ray Serve adds to a batched function, shown with a stand-in for Ray, and the accessors."""

from __future__ import annotations

import asyncio
import sys
import time
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import pytest
from batching_tools import Noted, start, turns

from qreward.batching import BatchQueue, batch, worker
from qreward.errors import InvalidResponse

REQUEST: ContextVar[Any] = ContextVar("request")
BATCH: ContextVar[Any] = ContextVar("batch", default=())


class Metric:
    """A histogram, gauge or counter: notes its name and what it is given."""

    seen: list[tuple[str, float, dict[str, str]]]

    def __init__(self, name: str, **_: Any) -> None:
        self.name = name

    def observe(self, value: float, tags: dict[str, str]) -> None:
        self.seen.append((self.name, value, tags))

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.seen.append((self.name, value, tags))

    def inc(self, tags: dict[str, str]) -> None:
        self.seen.append((self.name, 1, tags))


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The parts of Ray Serve that are used, in a replica that receives 100 requests at once."""
    context: Any = SimpleNamespace(
        replica=SimpleNamespace(_deployment_config=SimpleNamespace(max_ongoing_requests=100)),
        _get_internal_replica_context=lambda: context.replica,
        _get_serve_request_context=lambda: REQUEST.get(SimpleNamespace(request_id="", multiplexed_model_id="")),
        _set_batch_request_context=BATCH.set,
    )
    exceptions = SimpleNamespace(RayServeException=type("RayServeException", (Exception,), {}))
    numbers: Any = type("Numbers", (Metric,), {"seen": []})
    for name, module in {
        "context": context,
        "exceptions": exceptions,
        "metrics": SimpleNamespace(Histogram=numbers, Gauge=numbers, Counter=numbers, seen=numbers.seen),
    }.items():
        monkeypatch.setitem(sys.modules, f"ray.serve.{name}", module)
    worker._metrics.cache_clear()
    return SimpleNamespace(context=context, exceptions=exceptions, seen=numbers.seen)


def called(function: Any, item: Any, model: str = "") -> asyncio.Task[Any]:
    """A call within the context of a request of its own."""

    async def call() -> Any:
        REQUEST.set(SimpleNamespace(request_id=f"r{item}", multiplexed_model_id=model))
        if hasattr(function, "stream"):
            return [piece async for piece in function.stream(item)]
        return await function(item)

    return asyncio.ensure_future(call())


@pytest.mark.real_time
async def test_a_batch_sees_the_request_contexts_of_its_items_and_the_next_only_its_own(serve: SimpleNamespace) -> None:
    seen: list[list[str]] = []

    def note() -> None:
        seen.append([context.request_id for context in BATCH.get()])

    @batch(max_batch_size=2)
    async def awaited(items: list[int]) -> list[int]:
        note()
        return items

    @batch(max_batch_size=2)
    def threaded(items: list[int]) -> list[int]:
        note()
        return items

    async def pieces(items: list[int]) -> Any:
        note()
        yield items

    stream = SimpleNamespace(stream=BatchQueue(pieces, max_batch_size=2).stream)
    for function in (awaited, threaded, stream):
        await asyncio.gather(*(called(function, item) for item in range(3)))
        assert sorted(seen) == [["r0", "r1"], ["r2"]]
        seen.clear()
    assert BATCH.get() == ()


async def test_different_models_are_not_mixed_in_one_batch(serve: SimpleNamespace) -> None:
    models: list[set[str]] = []

    class Scorer:
        @batch(max_batch_size=8)
        async def score(self, items: list[int]) -> list[int]:
            models.append({context.multiplexed_model_id for context in BATCH.get()})
            return items

    scorer = Scorer()
    assert await asyncio.gather(*(called(scorer.score, item, "ab"[item % 2]) for item in range(8))) == list(range(8))
    assert sorted(map(sorted, models)) == [["a"], ["b"]]


async def test_a_replica_records_the_metrics_of_ray_serve_for_each_batch(serve: SimpleNamespace) -> None:
    @batch(max_batch_size=4)
    async def score(items: list[int]) -> list[int]:
        await asyncio.sleep(2)
        return items

    await asyncio.gather(*start(score, 1, 2, 3))
    await turns()
    found = {name: (round(value, 3), tags["function_name"]) for name, value, tags in serve.seen}
    assert found == {
        "serve_actual_batch_size": (3, "score"),
        "serve_batch_utilization_percent": (75, "score"),
        "serve_batch_wait_time_ms": (0, "score"),
        "serve_batch_execution_time_ms": (2000, "score"),
        "serve_batch_queue_length": (0, "score"),
        "serve_batches_processed": (1, "score"),
    }
    serve.seen.clear()
    serve.context.replica = None  # the driver has imported Ray Serve, but is no replica
    await score(1)
    assert serve.seen == []


async def test_a_replica_that_receives_too_few_requests_at_once_is_warned_of(
    serve: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    queue = BatchQueue(Noted(), max_batch_size=60, max_concurrent_batches=2)
    assert "max_ongoing_requests" not in caplog.text, "not before it is used"
    await queue.submit(1)
    assert "`max_batch_size` (60) * `max_concurrent_batches` (2) is larger than `max_ongoing_requests` (100)" in caplog.text
    caplog.clear()
    queue.set_max_batch_size(50)
    assert caplog.text == ""
    queue.set_max_batch_size(51)
    assert "`max_ongoing_requests` to at least 102" in caplog.text


async def test_a_list_of_the_wrong_length_is_an_error_of_ray_serve_as_well(serve: SimpleNamespace) -> None:
    @batch
    async def score(items: list[int]) -> list[int]:
        return []

    for expected in (serve.exceptions.RayServeException, InvalidResponse):
        with pytest.raises(expected, match="doesn't preserve batch size"):
            await score(1)


async def test_the_accessors_of_ray_serve_tell_of_settings_and_running_batches() -> None:
    class Scorer:
        @batch(None, 2, 1000)
        async def score(self, items: list[int]) -> list[int]:
            await asyncio.sleep(5)
            return items

    scorer: Any = Scorer()
    score = scorer.score
    assert (score._get_max_batch_size(), score._get_batch_wait_timeout_s()) == (2, 1000)
    score.set_max_batch_size(3)
    score.set_batch_wait_timeout_s(0.5)
    assert (score._get_max_batch_size(), score._get_batch_wait_timeout_s()) == (3, 0.5)
    idle = score._get_curr_iteration_start_times()
    assert (idle.num_requests, idle.min_start_time, idle.mean_start_time, idle.max_start_time) == (0, None, None, None)
    calls = start(score, 1, 2, 3)
    await asyncio.sleep(1)
    running = score._get_curr_iteration_start_times()
    assert running.num_requests == len(running.start_times) == 1
    assert running.min_start_time == running.mean_start_time == running.max_start_time < time.time()
    assert "carry_out" in await score._get_handling_task_stack()
    await asyncio.gather(*calls)
    assert await score._get_handling_task_stack() == ""
    assert await score._is_batching_task_alive()
    await score.close()
    assert not await score._is_batching_task_alive()


def test_settings_may_be_given_by_position_in_the_order_of_ray_serve() -> None:
    decorated: Any = batch(None, 16, 0.5, 2, len)

    @decorated
    async def score(items: list[int]) -> list[int]:
        return items

    assert (score._get_max_batch_size(), score._get_batch_wait_timeout_s()) == (16, 0.5)
    settings = score.change.__self__.settings
    assert (settings.max_concurrent_batches, settings.batch_size_fn) == (2, len)
    for wrong in (lambda: batch(None, 1, 0.0, 1, None, 1), lambda: batch(None, 16, max_batch_size=3)):
        with pytest.raises(TypeError, match="by position"):
            wrong()
