"""An engine that probes its endpoints, on virtual time: when, by whom, until when, and what its callers notice of it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from itertools import pairwise
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest
from engine_tools import MODEL, FakeWire, chat, client_of, now

from qreward import Endpoint, Limits, QRewardClient
from qreward.engine.driver import LoopDriver
from qreward.engine.probing import TIMEOUT, ProbingEngine
from qreward.errors import ConnectionFailed
from qreward.scheduler.outcome import Failure, FailureKind, ProbeResult
from qreward.scheduler.scheduler import Scheduler
from qreward.scheduler.source import make_source
from qreward.settings.policies import Retry
from qreward.testing.virtual_time import VirtualTimeLoop

CALLER: ContextVar[str] = ContextVar("CALLER", default="none")


class ProbedWire(FakeWire):
    """Servers that are there or not, and can be looked at; notes when."""

    def __init__(self, look: Callable[[str], Awaitable[ProbeResult]] | None = None) -> None:
        super().__init__(self.answer)
        self.gone: set[str] = set()
        self.looks: list[tuple[str, float]] = []
        self._look = look

    async def answer(self, name: str, _: str) -> Any:
        if name in self.gone:
            return Failure(FailureKind.UNREACHABLE, ConnectionFailed("the connection was refused"))
        await asyncio.sleep(0.1)
        return "yes"

    async def look(self, endpoint: Any) -> ProbeResult:
        self.looks.append((endpoint.name, round(asyncio.get_running_loop().time(), 2)))
        assert (self.closed, CALLER.get()) == (0, "none"), "a probe does not run in the context of a caller"
        if self._look is not None:
            return await self._look(endpoint.name)
        return ProbeResult(ready=endpoint.name not in self.gone)


def endpoint(name: str, probe: float | None = None, **settings: Any) -> Endpoint:
    limits = Limits(max_concurrency=8, adaptive=False)
    return Endpoint(f"http://{name}.example/v1", name=name, probe=probe, limits=limits, **settings)


async def ask(client: QRewardClient) -> Any:
    CALLER.set("a caller")
    return await client.chat_completion(chat("?"), MODEL)


async def test_an_endpoint_is_looked_at_every_so_many_seconds_from_the_first_call_until_the_client_is_closed() -> None:
    wire = ProbedWire()
    client = client_of(wire, [endpoint("a", 2.0), endpoint("b", 5.0), endpoint("c")], timeout=60)
    await asyncio.sleep(1.0)
    assert wire.looks == []
    await ask(client)
    await asyncio.sleep(10.5)
    assert [at for name, at in wire.looks if name == "a"] == [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]
    assert [at for name, at in wire.looks if name == "b"] == [1.0, 6.0, 11.0]
    assert {name for name, _ in wire.looks} == {"a", "b"}
    await client.aclose()
    count = len(wire.looks)
    await asyncio.sleep(60)
    assert len(wire.looks) == count


async def test_a_change_that_is_heard_of_after_the_client_was_closed_begins_no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be made by another thread at the same moment."""
    wire, late = ProbedWire(), []
    client = client_of(wire, [endpoint("a", 2.0)], timeout=60)
    await ask(client)
    with monkeypatch.context() as patch:
        patch.setattr(LoopDriver, "later", lambda _, work: late.append(work))
        client.add_endpoint(endpoint("b", 2.0))
    await client.aclose()
    count = len(wire.looks)
    for work in late:
        work()
    await asyncio.sleep(60)
    assert len(wire.looks) == count


async def test_without_probes_there_is_no_task_and_no_timer() -> None:
    wire = ProbedWire()
    client = client_of(wire, [endpoint("a")], timeout=60)
    await ask(client)
    loop: Any = asyncio.get_running_loop()
    assert len(asyncio.all_tasks()) == 1
    assert not [timer for timer in loop.timers() if "_begin" in repr(timer)]
    await client.aclose()
    assert wire.looks == []


async def fails(_: str) -> ProbeResult:
    raise RuntimeError("a look that breaks")


async def hangs(_: str) -> ProbeResult:
    await asyncio.Event().wait()
    raise AssertionError


async def test_probes_that_fail_or_hang_hurt_no_call_go_on_and_end_with_the_client() -> None:
    for trouble, least, most in ((fails, 1.0, 1.0), (hangs, TIMEOUT, TIMEOUT + 1.0)):
        wire = ProbedWire(trouble)
        async with client_of(wire, [endpoint("a", 1.0)], timeout=60) as client:
            for _ in range(30):
                assert await ask(client) == "yes"
                await asyncio.sleep(1.0)
        apart = [after - before for (_, before), (_, after) in pairwise(wire.looks)]
        assert least - 0.1 <= min(apart) <= max(apart) <= most + 0.1, trouble
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1, trouble


async def test_an_endpoint_that_is_gone_is_not_sent_to_and_its_return_is_noticed_within_one_probe() -> None:
    wire = ProbedWire()
    async with client_of(wire, [endpoint("a", 0.5), endpoint("b")], timeout=60) as client:

        async def requests_to_a(seconds: float) -> list[float]:
            count, until = len(wire.sent), now() + seconds
            while now() < until:
                await asyncio.gather(*(ask(client) for _ in range(12)))
            return [at for name, _, at in wire.sent[count:] if name == "a"]

        assert await requests_to_a(3)
        wire.gone.add("a")
        await requests_to_a(2)
        assert await requests_to_a(3) == []
        wire.gone.clear()
        back = now()
        assert min(await requests_to_a(3)) - back <= 0.5 + 0.11


def test_event_loops_that_were_just_closed_do_not_pile_up_with_their_probes() -> None:
    loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
    client = client_of(ProbedWire, [endpoint("a", 60.0)], timeout=60)
    for _ in range(5):
        loop = asyncio.new_event_loop()
        loops.add(loop)
        assert loop.run_until_complete(ask(client)) == "yes"
        loop.close()  # and nobody shut down its asynchronous generators
    del loop
    gc.collect()
    assert len(loops) <= 2, "only the one that made the last probe, and the one that was closed last"
    asyncio.run(client.aclose())


def noted_client() -> tuple[QRewardClient, list[ProbedWire]]:
    """A client with one endpoint that is probed each second, and its connections, one for each event loop, in the order of their use."""
    wires: list[ProbedWire] = []

    class Noted(ProbedWire):
        def __init__(self) -> None:
            super().__init__()
            wires.append(self)

    return client_of(Noted, [endpoint("a", 1.0)], timeout=60), wires


def test_one_event_loop_makes_the_probes_and_another_takes_over_when_it_has_ended_or_stands_still() -> None:
    client, wires = noted_client()

    async def asks() -> None:
        await ask(client)
        await asyncio.sleep(2.5)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as idle:
        idle.run(asks())
        for _ in range(2):
            with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
                runner.run(asks())
        assert [len(each.looks) for each in wires] == [3, 3, 3]
        idle.run(asks())
        assert [len(each.looks) for each in wires] == [6, 3, 3]
        idle.run(client.aclose())


def test_a_loop_in_use_takes_the_probes_over_from_one_that_was_closed_without_shutting_down_its_generators() -> None:
    client, wires = noted_client()
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as used:
        used.run(ask(client))
        closed = VirtualTimeLoop()
        closed.run_until_complete(ask(client))
        closed.close()
        assert [len(each.looks) for each in wires] == [1, 1]
        used.run(ask(client))
        used.run(asyncio.sleep(60))
        assert len(wires[0].looks) > 50
        used.run(client.aclose())


def test_the_scheduler_hears_once_that_a_source_was_lost_and_that_it_is_back() -> None:
    now, source = [0.0], make_source("a", Random(0), Limits())
    source.endpoint = endpoint("a", 1.0)
    scheduler: Any = Scheduler(Retry(), Random(0))
    scheduler.on_source_lost, scheduler.changed = Mock(), Mock()
    engine = ProbingEngine(scheduler, FakeWire, clock=lambda: now[0])
    engine.watch_over(lambda: [source])
    heard = []
    engine.probed()
    for ready in (True, False, False, True):
        now[0] += 1.0
        engine.seen(source, ProbeResult(ready=ready))
        heard.append((scheduler.on_source_lost.call_count, scheduler.changed.call_count))
    assert heard == [(0, 0), (1, 1), (1, 1), (2, 2)]


def test_a_probe_sets_the_size_of_a_prefix_cache_unless_it_is_configured() -> None:
    sizes, source = [], make_source("a", Random(0), Limits())
    source.endpoint = endpoint("a", 1.0)
    engine = ProbingEngine(Scheduler(Retry(), Random(0)), FakeWire)
    engine.watch_over(lambda: [source])
    engine.probed()
    for at, configured in enumerate([None, None, 5_000]):
        if configured:
            source.prefix_cache.set_capacity(configured)
        engine.seen(source, ProbeResult(ready=True, cache_tokens=300_000 - 100_000 * at))
        sizes.append(source.prefix_cache.capacity)
    assert sizes == [300_000, 200_000, 5_000]


async def test_an_endpoint_added_or_changed_live_is_looked_at_from_then_on() -> None:
    wire = ProbedWire()
    async with client_of(wire, [endpoint("a")], timeout=60) as client:
        await ask(client)
        client.add_endpoint(endpoint("b", 1.0))
        await asyncio.sleep(2.5)
        assert [name for name, _ in wire.looks] == ["b"] * 3
        learned = client._runtime.fleet.source("a")
        client.reload(client.config.model_copy(update={"endpoints": (endpoint("a", 1.0),)}))
        assert client._runtime.fleet.source("a") is learned, "nothing that was learned is lost by it"
        wire.looks.clear()
        await asyncio.sleep(2.5)
        assert {name for name, _ in wire.looks} == {"a"}
        client.reload(client.config.model_copy(update={"endpoints": (endpoint("a"),)}))
        wire.looks.clear()
        await asyncio.sleep(5.0)
        assert wire.looks == []
