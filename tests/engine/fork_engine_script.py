"""Run by a test: a client with work in flight is inherited by a forked child; both go on with it."""

from __future__ import annotations

import asyncio
import os
from math import inf
from typing import Any

from engine_tools import MODEL, FakeWire, chats, endpoints, leftovers

from qreward import QRewardClient

WIRES: list[FakeWire] = []


def make_wire() -> FakeWire:
    WIRES.append(FakeWire(seconds=0.005))
    return WIRES[-1]


def report(who: str, answered: int) -> None:
    peaks = max(wire.peak["a"] for wire in WIRES)
    print(f"{who} answered {answered}, a peak {peaks}", flush=True)


def allow_slow_steps() -> None:
    """Let no step of the running loop be reported as slow, which it may be on a busy machine."""
    asyncio.get_running_loop().slow_callback_duration = inf


async def use() -> int:
    allow_slow_steps()
    batch = await client.batch_chat_completion(chats(20), MODEL, timeout=20)
    assert leftovers(client) == {}
    return batch.stats.ok


def in_child() -> None:
    asyncio.events._set_running_loop(None)  # as multiprocessing does; the parent's loop is not ours
    for who in ("child", "child again"):
        WIRES.clear()
        report(who, asyncio.run(use()))
    assert client.stats()["a"].sent == 40
    os._exit(0)


async def parent() -> None:
    allow_slow_steps()
    batch: Any = asyncio.ensure_future(client.batch_chat_completion(chats(20), MODEL))
    await asyncio.sleep(0.01)
    assert client.stats()["a"].sent > 0
    if (child := os.fork()) == 0:
        in_child()
    answered = (await batch).stats.ok + await use()
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert status == 0, status
    report("parent", answered)
    await client.aclose()


client = QRewardClient(endpoints({"a": 2}), backend_factory=make_wire)
asyncio.run(parent())
