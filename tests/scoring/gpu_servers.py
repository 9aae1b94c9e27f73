"""Servers with one GPU that score lists, on the time of the running loop, and clients with lists of one length beside ours.

    python tests/scoring/gpu_servers.py 200

prints for 200 random fleets how long our client takes, as a multiple of the best client with fixed lists.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import ceil
from random import Random
from statistics import mean
from typing import Any
from unittest.mock import patch

from qreward import Endpoint, Limits, QRewardClient
from qreward.errors import RateLimited
from qreward.testing.virtual_time import VirtualTimeLoop

FAILS_AFTER = 0.02
"""Seconds after which a request that fails is answered."""


@dataclass(eq=False)
class Gpu:
    """A server that needs ``fixed`` seconds for a request and ``each`` seconds for each of its items.

    Args:
        slots: requests that it works on at once.
        forward: if given, it computes this many items of all its requests at once, as a server with dynamic batching, and ``fixed`` is for
            each of these batches.
        longest: maximum number of items of a request.
        full: requests at once above which it rejects more.
        errors: share of requests that fail at once.
        rpm: requests a minute, which the client is told.
    """

    fixed: float
    each: float
    slots: int = 1
    forward: int | None = None
    longest: int = 256
    full: int | None = None
    errors: float = 0.0
    rpm: int | None = None
    name: str = "gpu"
    _rng: Random = field(default_factory=lambda: Random(1), repr=False)
    _inside: int = field(default=0, repr=False)
    _slot: asyncio.Semaphore | None = field(default=None, repr=False)
    _queue: deque[tuple[list[int], asyncio.Future[None]]] = field(default_factory=deque, repr=False)
    _worker: asyncio.Task[None] | None = field(default=None, repr=False)

    async def score(self, items: int) -> None:
        assert items <= self.longest, "the list is too long"
        if self.full is not None and self._inside >= self.full:
            raise RateLimited("the server is full")
        if self._rng.random() < self.errors:
            await asyncio.sleep(FAILS_AFTER)
            raise RuntimeError("CUDA error")
        self._inside += 1
        try:
            await (self._one(items) if self.forward is None else self._many(items))
        finally:
            self._inside -= 1

    async def _one(self, items: int) -> None:
        self._slot = self._slot or asyncio.Semaphore(self.slots)
        async with self._slot:
            await asyncio.sleep(self._seconds(items))

    async def _many(self, items: int) -> None:
        done = asyncio.get_running_loop().create_future()
        self._queue.append(([items], done))
        self._worker = self._worker or asyncio.create_task(self._work())
        await done

    async def _work(self) -> None:
        assert self.forward is not None
        while self._queue:
            room, ended = self.forward, []
            while self._queue and room:
                left, done = self._queue[0]
                taken = min(room, left[0])
                room, left[0] = room - taken, left[0] - taken
                if not left[0]:
                    ended.append(done)
                    self._queue.popleft()
            await asyncio.sleep(self._seconds(self.forward - room))
            for done in ended:
                if not done.done():
                    done.set_result(None)
        self._worker = None

    def _seconds(self, items: int) -> float:
        return (self.fixed + self.each * items) * self._rng.uniform(0.9, 1.1)


Batch = Callable[[int], Awaitable[None]]
One = Callable[[], Awaitable[None]]


async def _batch(batch: Batch, _: One) -> None:
    await batch(4000)


async def _steps(batch: Batch, _: One) -> None:
    for _step in range(10):
        await batch(128)


async def _calls(_: Batch, one: One) -> None:
    async def caller() -> None:
        for _call in range(30):
            await one()

    await asyncio.gather(*(caller() for _ in range(64)))


async def _at_once(_: Batch, one: One) -> None:
    for _step in range(6):
        await asyncio.gather(*(one() for _ in range(200)))


WORK = {"batch": _batch, "steps": _steps, "calls": _calls, "at once": _at_once}
"""A batch of 4,000 items; ten batches of 128 one after the other; 64 callers with 30 calls each; six times 200 calls at once."""


def ours(servers: Sequence[Gpu], how: str, *, sized: bool = True) -> float:
    """Return the seconds in which our client does the work. ``sized``: the length of the input is known."""

    async def main() -> float:
        loop, lost = asyncio.get_running_loop(), 0

        async def batch(items: int) -> None:
            nonlocal lost
            texts = [f"text {number}" for number in range(items)]
            lost += len((await client.batch_score(texts if sized else iter(texts), "rm")).errors)

        async def one() -> None:
            await client.score("text", model="rm")

        with patch("qreward.runtime.Random", partial(Random, 1)):  # otherwise each run has its own waits before retries
            client = QRewardClient([_endpoint(each) for each in servers], clock=loop.time, timeout=600)
        async with client:
            await WORK[how](batch, one)
            seconds = loop.time()
        assert not lost
        return seconds

    return _run(main())


def fixed_lists(servers: Sequence[Gpu], how: str, items: int, workers: int) -> float:
    """Return the seconds of a client with some workers per server, which take lists of this many items from one queue. Calls take turns."""

    async def send(server: Gpu, most: int) -> None:
        for start in range(0, most, server.longest):
            for tries in count():
                try:
                    await server.score(min(server.longest, most - start))
                    break
                except (RateLimited, RuntimeError):
                    await asyncio.sleep(min(2.0, 0.1 * 2**tries))

    async def main() -> float:
        turns, places = count(), [asyncio.Semaphore(workers) for _ in servers]

        async def batch(left: int) -> None:
            async def work(server: Gpu) -> None:
                nonlocal left
                while left:
                    taken = min(items, left)
                    left -= taken
                    await send(server, taken)

            await asyncio.gather(*(work(server) for server in servers for _ in range(workers)))

        async def one() -> None:
            turn = next(turns) % len(servers)
            async with places[turn]:
                await send(servers[turn], 1)

        await WORK[how](batch, one)
        return asyncio.get_running_loop().time()

    return _run(main())


def best_of_fixed(servers: Callable[[], Sequence[Gpu]], how: str) -> float:
    """Return the seconds of the best of several clients with fixed lists: of 8 to 128 items in batches, of one item for calls."""
    tuned = [(8, 4), (32, 2), (32, 8), (128, 2)] if how in ("batch", "steps") else [(1, 4), (1, 16), (1, 64)]
    return min(fixed_lists(servers(), how, items, workers) for items, workers in tuned)


def random_servers(seed: int) -> list[Gpu]:
    rng, servers = Random(seed), list[Gpu]()
    for number in range(rng.choice([1, 2, 2, 2, 3])):
        kind = rng.choice(["one", "several", "dynamic"])
        server = Gpu(
            rng.choice([0.005, 0.02, 0.05, 0.1, 0.3]),
            rng.choice([0.0005, 0.002, 0.005, 0.02]),
            slots=rng.choice([2, 4, 8]) if kind == "several" else 1,
            forward=rng.choice([8, 32, 64]) if kind == "dynamic" else None,
            longest=rng.choice([256, 256, 8, 32, 64]),
            full=rng.choice([None, None, None, 8, 32]),
            errors=rng.choice([0.0, 0.0, 0.0, 0.02, 0.05]),
            name=f"gpu-{number}",
            _rng=Random(10 * seed + number),
        )
        if servers and rng.random() < 0.35:  # equal to the first one
            first = servers[0]
            server.fixed, server.each, server.slots, server.forward = first.fixed, first.each, first.slots, first.forward
        servers.append(server)
    return servers


def _endpoint(server: Gpu) -> Endpoint:
    async def score(items: list[str]) -> list[float]:
        await server.score(len(items))
        return [1.0] * len(items)

    return Endpoint.local(score, name=server.name, models=["rm"], max_batch_size=server.longest, limits=Limits(rpm=server.rpm))


def _run(main: Any) -> float:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return float(runner.run(main))


def bound(servers: Sequence[Gpu], items: int) -> float:
    """Return the seconds that a client needs who knows everything and keeps all servers busy with lists as long as they take."""
    rates = []
    for server in servers:
        most = server.longest if server.forward is None else server.forward
        rates.append((1 - server.errors) * server.slots * most / (server.fixed + server.each * most))
    return ceil(items) / sum(rates)


if __name__ == "__main__":
    for name in WORK:
        fleets = range(5000, 5000 + int(sys.argv[1]))
        found = sorted(
            ours(random_servers(seed), name, sized=seed % 2 == 0) / best_of_fixed(partial(random_servers, seed), name) for seed in fleets
        )
        print(f"{name}: {mean(found):.2f} on average, median {found[len(found) // 2]:.2f}, worst {found[-1]:.1f}")
