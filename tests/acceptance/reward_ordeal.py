"""A bulk and single calls through two reward servers, of which one is killed and one drained in the midst; and what became of each item."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from acceptance_tools import in_flight, resident
from reward_servers import MODEL, RewardProcess, is_poison, pair

from qreward import BadRequest, QRewardClient, QRewardError, Result, ServerError

SAMPLES = 40
"""Looks at the memory in one bulk."""


@dataclass
class Ordeal:
    """What became of everything."""

    count: int
    told: bytearray  # how often each item of the bulk had an outcome
    wrong: dict[int, Any] = field(default_factory=dict)  # items whose outcome was not theirs, with it
    called: int = 0  # single calls
    scored_by: Counter[str | None] = field(default_factory=Counter)
    unsure: int = 0  # items whose server could not know whether they are to blame themselves
    singles: Counter[str] = field(default_factory=Counter)  # ``right``, ``poison``, ``cancelled``, or what else it was
    memory: list[int] = field(default_factory=list)  # bytes of this process, at equal steps of the bulk
    drained: int | None = None  # exit code of the server that was drained
    left: list[Any] = field(default_factory=list)  # what the client still had at its end
    served: dict[str, float] = field(default_factory=dict)  # completions that were scored after both had come back, by server

    def on_result(self, result: Result[Any]) -> None:
        self.told[result.index] += 1
        self.scored_by[result.endpoint] += result.ok
        self.unsure += isinstance(result.error, ServerError)
        if not is_right(result.index, result.error if result.error is not None else result.value):
            self.wrong[result.index] = result.error or result.value
        if result.index % (self.count // SAMPLES) == 0:
            self.memory.append(resident())

    @property
    def growth(self) -> int:
        """Bytes that the second half of the bulk took more than the first."""
        half = len(self.memory) // 2
        return max(self.memory[half:]) - max(self.memory[:half])


def is_right(number: int, outcome: Any) -> bool:
    """Whether it is what this item must come to.

    A completion without an answer is to blame itself. Its server cannot know that if it has scored nothing else just before: the first that
    a new server sees, and those that come one after another when the bulk ends. Such a completion ends with the server's error 500.
    """
    if is_poison(number):
        known = isinstance(outcome, BadRequest) or (isinstance(outcome, ServerError) and outcome.status_code == 500)
        return known and "ValueError: no answer" in str(outcome)
    return isinstance(outcome, float) and outcome == -number


async def undergo(count: int, kinds: tuple[str, str], seconds: float, seed: int) -> Ordeal:
    """Score ``count`` items; the first server is killed and the second drained on the way, and both come back."""
    found, chance = Ordeal(count, bytearray(count)), random.Random(seed)
    first, second = (RewardProcess(seconds) for _ in kinds)
    try:
        await asyncio.gather(first.start(), second.start())
        fleet = [server.endpoint(kind, name=name) for server, kind, name in zip((first, second), kinds, "ab", strict=True)]
        async with QRewardClient(fleet) as client:
            beside = asyncio.ensure_future(call_singly(client, found, chance))
            gc.collect()
            items = read(count, found, first, second)
            batch = await client.batch_score(items, MODEL, on_result=found.on_result, keep_results=False)
            assert (batch.stats.items, len(batch)) == (len(found.told), 0)
            beside.cancel()
            await asyncio.wait([beside])
            found.left = [client._runtime._mergers, in_flight(client)]
        for name, server in (("a", first), ("b", second)):
            metrics = await server.metrics()
            found.served[name] = metrics['qreward_server_completions_total{outcome="scored"}']
            found.left += [metrics["qreward_server_active_requests"], metrics["qreward_server_pending_bytes"]]
    finally:
        await asyncio.gather(first.kill(), second.kill())
    return found


async def read(count: int, found: Ordeal, first: RewardProcess, second: RewardProcess) -> AsyncIterator[tuple[str, str]]:
    """The items. With a fifth of them the first server dies, and with three fifths the second is drained; the others come to what is left
    of them, until there are two again. After ``count`` items the input goes on until both servers have scored some since their return."""

    async def drain_and_start() -> None:
        found.drained = await second.drain()
        await second.start()

    async def kill_and_start() -> None:
        await first.kill()
        await first.start()

    for number in range(count):
        if number == count // 5:
            back = asyncio.ensure_future(kill_and_start())
        elif number == 3 * count // 5:
            back = asyncio.ensure_future(drain_and_start())
        elif number in (2 * count // 5, 4 * count // 5):
            await back
            before = found.scored_by.copy()
        yield pair(number)
    while any(found.scored_by[name] == before[name] for name in "ab"):
        for _ in range(50):
            found.told.append(0)
            yield pair(len(found.told) - 1)
        await asyncio.sleep(0.1)  # the other takes all of them until the first is tried again


async def call_singly(client: QRewardClient, found: Ordeal, chance: random.Random) -> None:
    """Single calls beside the bulk, until this is cancelled: one in three is cancelled, some at once, some under way."""
    calls: set[asyncio.Task[None]] = set()

    def ended(call: asyncio.Task[None]) -> None:
        calls.discard(call)
        if call.cancelled():
            found.singles["cancelled"] += 1

    try:
        while True:
            call = asyncio.ensure_future(one(client, found, chance.randrange(10**6)))
            found.called += 1
            calls.add(call)
            call.add_done_callback(ended)
            if chance.random() < 1 / 3:
                asyncio.get_running_loop().call_later(chance.choice([0, 0.002, 0.05, 0.2]), call.cancel)
            await asyncio.sleep(0.005)
    finally:
        while calls:
            await asyncio.wait(calls)


async def one(client: QRewardClient, found: Ordeal, number: int) -> None:
    try:
        outcome: Any = await client.score(*pair(number), model=MODEL)
    except QRewardError as error:
        outcome = error
    right = "poison" if is_poison(number) else "right"
    found.singles[right if is_right(number, outcome) else repr(outcome)] += 1


def check(found: Ordeal, memory: int) -> None:
    """Each item has one outcome, its own; nothing is left; the memory was bounded."""
    assert set(found.told) == {1}, Counter(found.told)
    assert not found.wrong, (len(found.wrong), Counter(map(repr, found.wrong.values())).most_common(5))
    poison = sum(map(is_poison, range(len(found.told))))
    assert found.unsure < max(10, poison / 20), (found.unsure, poison)
    assert set(found.singles) <= {"right", "poison", "cancelled"}, found.singles
    assert found.singles.total() == found.called
    assert min(found.singles["right"], found.singles["cancelled"]) > 20, found.singles
    assert found.drained == 0
    assert found.left == [{}, 0, 0, 0, 0, 0]
    assert min(found.served.values()) > 0, "one that has come back is not used"
    assert found.growth < memory, found.memory
