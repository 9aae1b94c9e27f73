"""``@batch`` in a deployment, where ``@serve.batch`` was: contexts, models, accessors, setters, metrics, warnings, streams, cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from qreward import batch

pytestmark = [pytest.mark.timeout(300), pytest.mark.real_time(240), pytest.mark.filterwarnings("ignore")]  # what Ray warns of is not ours


def model_class() -> type[Any]:  # noqa: C901 - one class with all that is tried
    """A class that no other process can import."""

    class Model:
        cancelled = 0

        @batch(None, 4, 0.5)
        async def score(self, items: list[Any]) -> list[Any]:
            from ray import serve

            contexts = serve.context._get_serve_batch_request_context()
            model = serve.get_multiplexed_model_id()
            return [(item, len(items), model, context.request_id) for item, context in zip(items, contexts, strict=True)]

        @batch(max_batch_size=2, batch_wait_timeout_s=0.5)
        async def pieces(self, items: list[Any]) -> Any:
            from ray import serve

            for number in range(3):
                yield [(item, number, serve.get_multiplexed_model_id()) for item in items]

        @batch(max_batch_size=2, batch_wait_timeout_s=0.1)
        async def hang(self, items: list[Any]) -> list[Any]:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            return items

        @batch
        async def short(self, items: list[Any]) -> list[Any]:
            return items[:-1]

        async def __call__(self, item: Any) -> Any:
            return await self.score(item)

        async def read(self, item: Any) -> Any:
            async for piece in self.pieces(item):
                yield piece

        async def wait(self, item: Any) -> Any:
            return await self.hang(item)

        async def fail(self, item: Any) -> str:
            from ray.serve.exceptions import RayServeException

            try:
                await self.short(item)
            except RayServeException as error:
                return str(error)
            return "no error"

    return Model


def inspected_class() -> type[Any]:
    """The same with what the tests ask of it."""

    class Inspected(model_class()):  # type: ignore[misc]
        def __init__(self) -> None:
            self.warnings: list[str] = []
            self.note_warnings()

        def note_warnings(self) -> None:
            import logging

            handler = logging.Handler()
            handler.emit = lambda record: self.warnings.append(record.getMessage())  # type: ignore[method-assign]
            logging.getLogger("qreward").addHandler(handler)

        async def set_size(self, size: int, seconds: float) -> tuple[int, float]:
            self.score.set_max_batch_size(size)
            self.score.set_batch_wait_timeout_s(seconds)
            return self.score._get_max_batch_size(), self.score._get_batch_wait_timeout_s()

        async def inspect(self) -> tuple[int, bool, str, int]:
            running = self.hang._get_curr_iteration_start_times().num_requests
            return running, await self.hang._is_batching_task_alive(), await self.hang._get_handling_task_stack(), self.cancelled

        async def metrics(self) -> list[str]:
            from qreward.batching import worker

            return [metric.info["name"] for metric in worker._metrics()]

        async def warned(self) -> list[str]:
            return self.warnings

    return Inspected


@pytest.fixture
def handle(serving: Any) -> Iterator[Any]:
    deployed = serving.deployment(max_ongoing_requests=20, ray_actor_options={"num_cpus": 0.1})(inspected_class())
    yield serving.run(deployed.bind(), name="contexts", route_prefix=None)
    serving.delete("contexts")


async def test_each_item_of_a_batch_has_its_request_and_models_are_not_mixed(handle: Any) -> None:
    found = await asyncio.gather(*(handle.options(multiplexed_model_id="ab"[item % 2]).remote(item) for item in range(8)))
    assert [(item, model) for item, _, model, _ in found] == [(item, "ab"[item % 2]) for item in range(8)]
    assert {size for _, size, _, _ in found} == {4}
    assert len({request for *_, request in found} - {""}) == 8
    assert set(await handle.metrics.remote()) == {
        "serve_actual_batch_size",
        "serve_batch_utilization_percent",
        "serve_batch_wait_time_ms",
        "serve_batch_execution_time_ms",
        "serve_batch_queue_length",
        "serve_batches_processed",
    }


async def test_the_setters_count_for_the_next_batch_and_a_size_beyond_the_ongoing_requests_is_warned_of(handle: Any) -> None:
    assert await handle.set_size.remote(2, 60.0) == (2, 60.0)
    assert {size for _, size, *_ in await asyncio.gather(*(handle.remote(item) for item in range(4)))} == {2}
    assert await handle.warned.remote() == []
    assert await handle.set_size.remote(21, 0.0) == (21, 0.0)
    (warning,) = await handle.warned.remote()
    assert "larger than `max_ongoing_requests` (20)" in warning


async def test_a_stream_has_the_model_of_its_callers(handle: Any) -> None:
    async def read(item: int) -> list[Any]:
        return [piece async for piece in handle.options(stream=True, multiplexed_model_id="m").read.remote(item)]

    assert await asyncio.gather(read(1), read(2)) == [[(item, number, "m") for number in range(3)] for item in (1, 2)]


async def test_a_batch_whose_callers_are_all_cancelled_ends_and_a_list_of_the_wrong_length_is_an_error_of_serve(handle: Any) -> None:
    calls = [handle.wait.remote(item) for item in range(2)]
    for _ in range(100):
        running, alive, stack, cancelled = await handle.inspect.remote()
        if running:
            break
        await asyncio.sleep(0.1)
    assert (running, alive, "carry_out" in stack, cancelled) == (1, True, True, 0)
    for call in calls:
        call.cancel()
    for _ in range(100):
        running, _, _, cancelled = await handle.inspect.remote()
        if cancelled:
            break
        await asyncio.sleep(0.1)
    assert (running, cancelled) == (0, 1)
    assert "preserve batch size" in await handle.fail.remote(1)
