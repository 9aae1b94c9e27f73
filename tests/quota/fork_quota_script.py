"""Run by a test: a client that shares is inherited by a forked child; both go on with it, as two members."""

from __future__ import annotations

import asyncio
import os
import threading
import time

from quota_tools import FakeWire, Processes, call

from qreward import QRewardClient

client = QRewardClient([Processes.endpoint(max_concurrency=8)], backend_factory=lambda: FakeWire(seconds=0.01))


def sharing() -> str:
    state = client.stats()["a"].state
    assert state is not None
    return str(state.sharing)


async def use(until: str) -> None:
    """Call until we are told that we share, or that we do not any more."""
    deadline = time.monotonic() + 20
    while until not in sharing():
        await call(client, "hello")
        assert time.monotonic() < deadline, sharing()


def in_child() -> None:
    asyncio.events._set_running_loop(None)
    assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
    asyncio.run(use("one of 2 processes"))
    os._exit(0)


async def parent() -> None:
    await use("the only process")
    if (child := os.fork()) == 0:
        in_child()
    await use("one of 2 processes")
    while os.waitpid(child, os.WNOHANG) == (0, 0):  # noqa: ASYNC222 - it does not block
        await call(client, "hello")
    await use("the only process")
    await client.aclose()
    print("well", [thread.name for thread in threading.enumerate()])


asyncio.run(parent())
