"""What ``@serve.batch`` promises in a deployment, asked of Ray's decorator and of ours in the same words."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import httpx
import pytest

from qreward import batch as ours

pytestmark = [pytest.mark.timeout(300), pytest.mark.real_time(240), pytest.mark.filterwarnings("ignore")]  # what Ray warns of is not ours
Deploy = Callable[..., Any]
SIZES = {
    "items with a size": (100, lambda items: sum(item["size"] for item in items), [{"size": size} for size in (30, 40, 20, 25)]),
    "graphs": (100, lambda graphs: sum(len(graph) for graph in graphs), [[0] * nodes for nodes in (30, 40, 35, 50)]),
    "tokens": (
        1000,
        lambda texts: sum(len(text.split()) for text in texts),
        ["a short text", "a text of six words here", "one", "A B C D"],
    ),
    "items that wait for the next batch": (10, sum, [6, 6, 3, 4]),
    "small and large items": (100, sum, [10, 20, 50, 15, 90, 5]),
    "no size function": (5, None, list(range(10))),
}
"""What is measured -> max_batch_size, batch_size_fn, items."""


@pytest.fixture(params=["ray", "qreward"])
def deploy(request: pytest.FixtureRequest, serving: Any) -> Iterator[Deploy]:
    """Deploys ``made(batch)``, a class, and returns its handle."""
    name = "batches"

    def run(made: Callable[[Any], Any], most: int = 100) -> Any:
        deployed = serving.deployment(max_ongoing_requests=most, ray_actor_options={"num_cpus": 0.1})(
            made(serving.batch if request.param == "ray" else ours)
        )
        return serving.run(deployed.bind(), name=name, route_prefix="/batches")

    yield run
    serving.delete(name)


def counting(batch: Any) -> Any:
    class Counting:
        def __init__(self) -> None:
            self.batches = self.running = self.items = 0

        @batch(max_batch_size=5, batch_wait_timeout_s=1)
        async def number(self, items: list[int]) -> list[int]:
            self.batches += 1
            return [self.batches] * len(items)

        @batch(max_batch_size=5, batch_wait_timeout_s=1, max_concurrent_batches=2)
        async def meet(self, items: list[int]) -> list[tuple[int, int, int]]:
            self.running += 1
            self.items += len(items)
            await asyncio.sleep(0.5)
            found = [(item, self.running, self.items) for item in items]
            await asyncio.sleep(0.5)
            self.running -= 1
            self.items -= len(items)
            return found

        @batch(max_batch_size=5)
        async def no_list(self, items: list[int]) -> Any:
            return len(items)

        async def __call__(self, name: str, item: int) -> Any:
            return await getattr(self, name)(item)

    return Counting


async def test_batches_are_merged_run_side_by_side_and_must_return_lists(deploy: Deploy) -> None:
    handle = deploy(counting)

    async def ask(name: str) -> list[Any]:
        return list(await asyncio.gather(*(handle.remote(name, item) for item in range(20))))

    assert max(await ask("number")) < 20
    assert sorted(await ask("meet")) == [(item, 2, 10) for item in range(20)]
    with pytest.raises(TypeError):
        await handle.remote("no_list", 1)


def over_http(batch: Any) -> Any:
    class OverHTTP:
        @batch(max_batch_size=5)
        async def slow(self, items: list[Any]) -> list[str]:
            await asyncio.sleep(0.2)
            return ["answer"] * len(items)

        @batch(max_batch_size=3)
        async def slow_pieces(self, items: list[Any]) -> Any:
            await asyncio.sleep(0.2)
            for number in range(10):
                yield [str(number)] * len(items)

        @batch(max_batch_size=4, batch_wait_timeout_s=1000)
        async def pieces(self, items: list[str]) -> Any:
            for _ in range(10):
                yield [{"value": item} for item in items]

        @batch(max_batch_size=10, batch_wait_timeout_s=0.5, batch_size_fn=sum)
        async def measured(self, items: list[int]) -> list[str]:
            return [str(item) for item in items]

        async def __call__(self, request: Any) -> Any:
            from starlette.responses import StreamingResponse

            name, item = request.query_params["name"], request.query_params["item"]
            if name == "slow_pieces":
                return StreamingResponse(self.slow_pieces(item))
            if name == "pieces":
                return StreamingResponse(piece["value"] async for piece in self.pieces(item))
            return await getattr(self, name)(int(item))

    return OverHTTP


async def test_clients_get_streams_and_errors_and_those_that_hang_up_do_no_harm_to_the_next(deploy: Deploy, serving: Any) -> None:
    deploy(over_http)
    async with httpx.AsyncClient(base_url=serving.url, timeout=20) as client:

        async def get(name: str, item: object, **options: Any) -> tuple[int, str]:
            response = await client.get("/batches", params={"name": name, "item": item}, **options)
            return response.status_code, response.text

        assert await get("measured", 10) == (200, "10")
        assert await asyncio.gather(*(get("pieces", f"hi{item}") for item in range(4))) == [(200, f"hi{item}" * 10) for item in range(4)]
        for name, answer in (("slow", "answer"), ("slow_pieces", "0123456789")):
            for _ in range(3):
                with pytest.raises((httpx.ReadTimeout, httpx.ConnectError)):
                    await get(name, 1, timeout=0.02)
            assert await get(name, 1) == (200, answer)
        assert (await get("measured", 15))[0] == 500


def inspected(size: int, slots: int) -> Callable[[Any], Any]:
    def made(batch: Any) -> Any:
        class Inspected:
            def __init__(self) -> None:
                self.free = asyncio.Event()

            @batch(max_batch_size=size, max_concurrent_batches=slots, batch_wait_timeout_s=0.1)
            async def held(self, items: list[Any]) -> list[int]:
                await self.free.wait()
                return [0] * len(items)

            async def __call__(self, item: int) -> int:
                return await self.held(item)

            async def let(self, go: bool) -> None:
                (self.free.set if go else self.free.clear)()

            async def look(self) -> tuple[list[float], float | None, float | None, bool, str | None]:
                times = self.held._get_curr_iteration_start_times()
                alive, stack = await self.held._is_batching_task_alive(), await self.held._get_handling_task_stack()
                return list(times.start_times), times.min_start_time, times.max_start_time, alive, stack

        return Inspected

    return made


@pytest.mark.parametrize(("size", "slots"), [(1, 1), (1, 10), (10, 1), (10, 10)])
async def test_the_accessors_tell_when_the_running_batches_began(deploy: Deploy, size: int, slots: int) -> None:
    handle = deploy(inspected(size, slots))
    latest = 0.0
    for requests, _ in product((1, 10), range(2)):
        await handle.let.remote(False)
        calls = [handle.remote(item) for item in range(requests)]
        batches = min(math.ceil(requests / size), slots)
        for _ in range(100):
            started, earliest, last, alive, stack = await handle.look.remote()
            if len(started) >= batches:
                break
            await asyncio.sleep(0.05)
        assert len(started) >= batches
        assert latest < earliest <= last, "later than all batches before"
        assert (alive, isinstance(stack, str)) == (True, True)
        latest = last
        await handle.let.remote(True)
        assert await asyncio.gather(*calls) == [0] * requests


def with_contexts(batch: Any) -> Any:
    class WithContexts:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        @batch(max_batch_size=3, batch_wait_timeout_s=2.0, max_concurrent_batches=2)
        async def note(self, items: list[Any]) -> list[str]:
            from ray.serve import context

            own = context._get_serve_request_context()
            requests = [request.request_id for request in context._get_serve_batch_request_context()]
            self.seen.append((len(items), requests, [own.request_id, own.route, own.app_name, own.multiplexed_model_id]))
            return ["ok"] * len(items)

        async def __call__(self, request: Any) -> str:
            return await self.note(1)

        async def noted(self) -> list[Any]:
            return self.seen

    return WithContexts


async def test_a_batch_has_the_contexts_of_its_requests_and_none_of_its_own(deploy: Deploy, serving: Any) -> None:
    handle = deploy(with_contexts)
    async with httpx.AsyncClient(base_url=serving.url, timeout=20) as client:
        answers = await asyncio.gather(*(client.post("/batches") for _ in range(6)))
    assert [answer.text for answer in answers] == ["ok"] * 6
    seen = await handle.noted.remote()
    assert [(size, len(requests), own) for size, requests, own in seen] == [(3, 3, ["", "", "", ""])] * 2
    assert len({request for _, requests, _ in seen for request in requests}) == 6


def with_models(batch: Any) -> Any:
    class WithModels:
        @batch(max_batch_size=4, batch_wait_timeout_s=0.2)
        async def note(self, items: list[int]) -> list[tuple[int, str]]:
            from ray import serve

            return [(item, serve.get_multiplexed_model_id()) for item in items]

        @batch(max_batch_size=4, batch_wait_timeout_s=0.2)
        async def pieces(self, items: list[int]) -> Any:
            from ray import serve

            for number in range(2):
                yield [(item, serve.get_multiplexed_model_id(), number) for item in items]

        async def __call__(self, item: int) -> tuple[int, str]:
            return await self.note(item)

        async def read(self, item: int) -> list[Any]:
            return [piece async for piece in self.pieces(item)]

    return WithModels


async def test_each_item_of_a_batch_or_a_stream_runs_with_the_model_of_its_request(deploy: Deploy) -> None:
    handle = deploy(with_models)
    models = ["a", "b", ""] * 3
    asked = [(handle.options(multiplexed_model_id=model), item, model) for item, model in enumerate(models)]
    assert await asyncio.gather(*(each.remote(item) for each, item, _ in asked)) == [(item, model) for _, item, model in asked]
    streams = await asyncio.wait_for(asyncio.gather(*(each.read.remote(item) for each, item, _ in asked)), 60)
    assert streams == [[(item, model, number) for number in range(2)] for _, item, model in asked]


def measured(size: int, measure: Any) -> Callable[[Any], Any]:
    def made(batch: Any) -> Any:
        class Measured:
            def __init__(self) -> None:
                self.batches: list[list[Any]] = []

            @batch(max_batch_size=size, batch_wait_timeout_s=0.2, batch_size_fn=measure)
            async def note(self, items: list[Any]) -> list[Any]:
                self.batches.append(items)
                return [[item] for item in items]

            async def __call__(self, item: Any) -> Any:
                return await self.note(item)

            async def noted(self) -> list[list[Any]]:
                return self.batches

        return Measured

    return made


async def test_no_batch_is_larger_than_its_size_function_allows_and_no_item_is_lost(deploy: Deploy) -> None:
    for what, (size, measure, items) in SIZES.items():
        handle = deploy(measured(size, measure))
        found = await asyncio.wait_for(asyncio.gather(*(handle.remote(item) for item in items)), 30)
        assert found == [[item] for item in items], what
        batches = await handle.noted.remote()
        assert max(map(measure or len, batches)) <= size, what
        assert sorted(map(str, sum(batches, []))) == sorted(map(str, items)), what  # noqa: RUF017 - a few items
