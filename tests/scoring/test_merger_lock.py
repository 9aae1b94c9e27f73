"""What waits to be merged is touched under the engine's lock only, for a list may be filled by another loop's thread."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from inspect import isfunction
from typing import Any

import pytest
from merge_tools import MODEL, ListBackend, broken, client_of, endpoint, leftovers, overloaded, refused, texts

from qreward import QRewardClient, Retry
from qreward.batching.collector import Collector
from qreward.errors import ClientClosed
from qreward.scoring import sizing
from qreward.scoring.merger import RequestMerger

DATA = {"_unfilled", "_feeds", "_limits", "_unread", "_sent_at"}


def guard(patch: pytest.MonkeyPatch, client: QRewardClient, faults: list[str]) -> None:
    """Note each use of a queue, or of what was learned of lists, that is made without the lock."""
    lock = client._runtime.engine.lock

    def checked(kind: type[Any], name: str) -> None:
        method = getattr(kind, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if not lock.locked():
                faults.append(f"{kind.__name__}.{name}()")
            return method(*args, **kwargs)

        patch.setattr(kind, name, call)

    def read(self: object, name: str) -> Any:
        if name in DATA and not lock.locked():
            faults.append(f"RequestMerger.{name}")
        return object.__getattribute__(self, name)

    patch.setattr(RequestMerger, "__getattribute__", read, raising=False)
    for kind in (Collector, sizing.LearnedLimits):
        methods = [name for name, member in vars(kind).items() if isfunction(member) and not name.startswith("_")]
        assert methods
        for name in methods:
            checked(kind, name)


async def test_what_waits_is_used_under_the_lock_only(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: deque[Any] = deque([refused(422), broken(), overloaded(), None, overloaded(0.1), broken(), broken(424), None] * 3)

    async def work(_name: str, _items: list[Any]) -> Any:
        await asyncio.sleep(0.1)
        return outcomes.popleft() if outcomes else None

    faults: list[str] = []
    client = client_of(ListBackend(work), endpoint("tei", 2, "tei"), endpoint("vllm", 1), retry=Retry(base=0.01, cap=0.02), max_queued=900)
    with monkeypatch.context() as patch:
        async with client:
            guard(patch, client, faults)
            batch = asyncio.ensure_future(client.batch_score(texts(300), MODEL))
            late = [asyncio.ensure_future(client.score(text, model=MODEL, timeout=0.15)) for text in texts(40)]
            await asyncio.gather(*late, return_exceptions=True)
            await batch
            assert leftovers(client) == {}
            left = asyncio.ensure_future(client.batch_score(texts(300), MODEL))
            await asyncio.sleep(0.05)
            left.cancel()
            await asyncio.wait([left])
            ended = [asyncio.ensure_future(client.score(text, model=MODEL)) for text in texts(40)]
            await asyncio.sleep(0.05)
        assert {type(error) for error in await asyncio.gather(*ended, return_exceptions=True)} == {ClientClosed}
    assert sorted(set(faults)) == []


def test_a_batch_of_a_closed_event_loop_is_thrown_away_amid_our_own_work() -> None:
    client = QRewardClient([endpoint("vllm", 1)], backend_factory=ListBackend)
    loop = asyncio.new_event_loop()
    left = loop.create_task(client.batch_score(texts(300), MODEL))
    loop.run_until_complete(asyncio.sleep(0))
    left._log_destroy_pending = False  # type: ignore[attr-defined]  # on purpose here
    loop.close()
    del left

    async def again() -> None:
        async with client:
            assert (await client.batch_score(texts(3), MODEL)).stats.ok == 3
            with client._runtime.engine.lock:  # as the garbage collector may do
                gc.collect()
            assert leftovers(client) == {}

    asyncio.run(again())
