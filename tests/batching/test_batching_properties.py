"""Whatever callers, functions and loops do: each item has one outcome, nothing is sent twice, no limit is exceeded, and order holds."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

from batching_tools import turns
from hypothesis import given, settings
from hypothesis import strategies as st
from scale import SCALE

from qreward.batching import BatchQueue
from qreward.errors import ClientClosed, QueueFull, RequestTimeout
from qreward.testing.virtual_time import run_in_virtual_time

TIMES = st.integers(0, 40).map(lambda tenths: tenths / 10)


@dataclass(frozen=True)
class Caller:
    number: int
    at: float
    cost: int
    level: int
    timeout: float | None
    leaves: float | None
    bad: bool


@dataclass(frozen=True)
class World:
    callers: list[Caller]
    size: int
    slots: int
    linger: float
    room: int | None
    keys: int
    body: float
    breaks: bool
    sized: bool
    closes: float | None


CALLERS = st.lists(
    st.builds(
        Caller,
        st.just(0),
        at=TIMES,
        cost=st.integers(1, 4),
        level=st.sampled_from([5, 5, 5, 0, 9]),
        timeout=st.none() | TIMES.map(lambda seconds: seconds + 0.05),
        leaves=st.none() | TIMES,
        bad=st.sampled_from([False, False, False, True]),
    ),
    max_size=40,
).map(lambda callers: [Caller(number, *list(vars(caller).values())[1:]) for number, caller in enumerate(callers)])
WORLDS = st.builds(
    World,
    callers=CALLERS,
    size=st.integers(4, 12),
    slots=st.integers(1, 3),
    linger=st.sampled_from([0.0, 0.0, 0.7]),
    room=st.sampled_from([None, None, 5]),
    keys=st.sampled_from([1, 1, 3]),
    body=st.sampled_from([0.0, 0.1, 0.3, 1.0]),
    breaks=st.booleans(),
    sized=st.booleans(),
    closes=st.none() | TIMES,
)


class Watch:
    """The batch function of a world: notes what it is given and breaks now and then."""

    __qualname__ = "watch"

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent: list[list[Caller]] = []
        self.running = 0

    async def __call__(self, callers: list[Caller]) -> list[Any]:
        world = self.world
        self.sent.append(list(callers))
        self.running += 1
        assert self.running <= world.slots
        assert (sum(c.cost for c in callers) if world.sized else len(callers)) <= world.size
        assert len({c.number % world.keys for c in callers}) == 1
        try:
            await asyncio.sleep(world.body)
        finally:
            self.running -= 1
        if world.breaks and len(self.sent) % 5 == 2:
            raise OSError("the batch broke")
        if world.breaks and len(self.sent) % 5 == 4:
            raise MemoryError
        return [ValueError(c.number) if c.bad else c.number for c in callers]


async def play(world: World) -> None:
    watch = Watch(world)
    queue: BatchQueue[Caller, int] = BatchQueue(
        watch,
        max_batch_size=world.size,
        max_concurrent_batches=world.slots,
        batch_wait_timeout_s=world.linger,
        max_queue_size=world.room,
        batch_size_fn=(lambda callers: sum(c.cost for c in callers)) if world.sized else None,
        batch_key_fn=(lambda caller: caller.number % world.keys) if world.keys > 1 else None,
    )
    order: list[int] = []

    async def call(caller: Caller) -> Any:
        await asyncio.sleep(caller.at)
        order.append(caller.number)
        async with asyncio.timeout(caller.leaves):
            return await queue.submit(caller, priority=caller.level, timeout=caller.timeout)

    tasks = [asyncio.ensure_future(call(caller)) for caller in world.callers]
    if world.closes is not None:
        await asyncio.sleep(world.closes)
        await queue.close(drain=len(tasks) % 2 == 0)
    found = await asyncio.gather(*tasks, return_exceptions=True)
    check(world, watch, order, found)
    await turns()
    stats = queue.stats()
    assert (stats.waiting, stats.in_flight, watch.running) == (0, 0, 0)
    assert stats.items == sum(map(len, watch.sent))


def check(world: World, watch: Watch, order: list[int], found: list[Any]) -> None:
    sent = [caller.number for callers in watch.sent for caller in callers]
    assert max(Counter(sent).values(), default=1) == 1
    for caller, outcome in zip(world.callers, found, strict=True):
        if isinstance(outcome, int):
            assert outcome == caller.number
            assert not caller.bad
            assert caller.number in sent
        elif isinstance(outcome, ValueError):
            assert caller.bad
        elif isinstance(outcome, RequestTimeout):
            assert caller.timeout is not None
        elif isinstance(outcome, QueueFull):
            assert world.room is not None
            assert caller.number not in sent
        elif isinstance(outcome, ClientClosed):
            assert world.closes is not None
        elif isinstance(outcome, OSError | MemoryError) and not isinstance(outcome, TimeoutError):
            assert world.breaks
        else:
            assert isinstance(outcome, TimeoutError)
            assert caller.leaves is not None
    came = {number: position for position, number in enumerate(order)}
    for key in range(world.keys):
        for level in (0, 5, 9):
            mine = [came[n] for n in sent if n % world.keys == key and world.callers[n].level == level]
            assert mine == sorted(mine)


@given(WORLDS)
@settings(max_examples=60 * SCALE)
def test_each_item_has_exactly_one_outcome_and_every_limit_holds(world: World) -> None:
    run_in_virtual_time(play(world))


def test_several_loops_at_once_share_a_queue_and_each_item_has_its_outcome() -> None:
    async def function(items: list[tuple[int, int]]) -> list[tuple[int, int]]:
        assert len({loop for loop, _ in items}) == 1
        assert len(items) <= 7
        await asyncio.sleep(0)
        return items

    queue = BatchQueue(function, max_batch_size=7, max_concurrent_batches=2)
    found: dict[int, list[Any]] = {}

    async def one(loop: int) -> list[Any]:
        random = Random(loop)
        tasks = [asyncio.ensure_future(queue.submit((loop, number))) for number in range(300)]
        for _ in range(30):
            await asyncio.sleep(0)
            random.choice(tasks).cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    threads = [threading.Thread(target=lambda n=number: found.update({n: asyncio.run(one(n))})) for number in range(4)]
    for thread in threads:
        thread.start()
    queue.set_max_batch_size(6)
    for thread in threads:
        thread.join()
    assert sorted(found) == [0, 1, 2, 3]
    for loop, outcomes in found.items():
        assert len(outcomes) == 300
        for number, outcome in enumerate(outcomes):
            assert outcome == (loop, number) or isinstance(outcome, asyncio.CancelledError)
