"""Clients in virtual time that share by a ledger in this process; what would be a thread is a task of the loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # also where a script is run
sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
import engine_tools
from engine_tools import FakeWire, client_of

from qreward import Endpoint, Limits, QRewardClient
from qreward.quota import renewal
from qreward.quota.file_ledger import key_of
from qreward.quota.ledger import Ledger, RenewReply, RenewRequest
from qreward.testing.virtual_time import VirtualTimeLoop, run_in_virtual_time


class PlayedTransport:
    """A transport to a ledger that may be away, slow to say so, or lost."""

    def __init__(self) -> None:
        self.ledgers: dict[str, Ledger] = {}
        self.away = False
        self.forgets = False  # a member that leaves gets an error
        self.made = 0  # times that it was created
        self.seconds = 0.0  # in which it answers a renewal
        self.renewals = 0
        self.asked: list[float] = []  # when a renewal was asked for, also while it is away
        self.leaves = 0
        self.trace: list[tuple[float, str, float, float]] = []  # of each renewal: when, whose, slots that it held and that it got
        self.left: list[str] = []
        self.closed = 0

    def renew(self, key: str, member: str, ask: RenewRequest) -> RenewReply:
        self.renewals += 1
        self.asked.append(now())
        if self.away:
            raise OSError("nobody is there")
        reply = self.ledger(key).renew(now(), member, ask)
        let_pass(self.seconds)
        if ask.permits is not None and reply.permits is not None:
            self.trace.append((now(), member, ask.permits.hold, reply.permits.hold))
        return reply

    def leave(self, key: str, member: str, ask: RenewRequest) -> None:
        self.leaves += 1
        if self.away or self.forgets:
            raise OSError("nobody is there")
        self.left.append(member)
        self.ledger(key).leave(now(), member, ask)

    def close(self) -> None:
        self.closed += 1

    def ledger(self, key: str) -> Ledger:
        return self.ledgers.setdefault(key, Ledger())

    def lose(self) -> None:
        """Others begin, which know nothing."""
        self.ledgers = {key: Ledger(now()) for key in self.ledgers}

    @property
    def only(self) -> Ledger:
        (ledger,) = self.ledgers.values()
        return ledger


class Turns:
    """In the place of a sharing's thread and of its event."""

    def __init__(self, client: QRewardClient) -> None:
        self.sharing = client._runtime._sharing
        self.rung = asyncio.Event()
        self.asleep = False  # stopped, as by a debugger
        client._runtime._sharing._wake = client._runtime._sharing._thread = self  # type: ignore[assignment]
        client._runtime._sharing.aclose = self.aclose  # type: ignore[method-assign]
        self.task = asyncio.ensure_future(self.keep())

    def set(self) -> None:
        self.rung.set()

    async def aclose(self) -> None:
        """As the sharing's own, without a thread to wait for."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.sharing._end()

    async def keep(self) -> None:
        while True:
            seconds = None if self.asleep else self.sharing.turn()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.rung.wait(), seconds)
            self.rung.clear()


class Processes:
    """Clients that share, each in the place of a process."""

    def __init__(self, transport: PlayedTransport, caplog: pytest.LogCaptureFixture) -> None:
        self.transport = transport
        self.caplog = caplog
        self.clients: list[QRewardClient] = []
        self.turns: dict[QRewardClient, Turns] = {}

    def client(self, wire: FakeWire | None = None, **limits: Any) -> tuple[QRewardClient, FakeWire]:
        wire = wire or FakeWire(seconds=0.1)
        client = client_of(wire, [self.endpoint(**limits)])
        self.clients.append(client)
        self.turns[client] = Turns(client)
        return client, wire

    @staticmethod
    def endpoint(name: str = "a", **limits: Any) -> Endpoint:
        return Endpoint(
            f"http://{name}.example/v1", name=name, api_key="k", limits=Limits(**{"shared": "local", "adaptive": False, **limits})
        )

    def logged(self, words: str = "") -> list[str]:
        """What the library has logged, with these words in it."""
        return [record.getMessage() for record in self.caplog.records if words in record.getMessage()]

    async def close(self) -> None:
        for client in self.clients:
            await client.aclose()


call = engine_tools.ask
"""A single call of a client."""


def now() -> float:
    return asyncio.get_running_loop().time()


def let_pass(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.let_pass(seconds)


def shared(test: Callable[..., Any]) -> Callable[..., None]:
    """Run a test's coroutine in virtual time, with clients that share."""

    @wraps(test)
    def run(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        transport = PlayedTransport()

        def make(endpoint: Endpoint) -> Any:
            key, transport.made = key_of(endpoint), transport.made + 1
            return SimpleNamespace(renew=partial(transport.renew, key), leave=partial(transport.leave, key), close=transport.close)

        monkeypatch.setattr(renewal, "make_transport", make)

        async def play() -> None:
            processes = Processes(transport, caplog)
            try:
                await test(processes)
            finally:
                await processes.close()

        run_in_virtual_time(play())

    del run.__wrapped__  # type: ignore[attr-defined] # pytest looks at the parameters
    return run


def endless() -> Iterator[list[dict[str, str]]]:
    number = 0
    while True:
        number += 1
        yield [{"role": "user", "content": str(number)}]


def sharing(client: QRewardClient) -> str:
    state = client.stats()["a"].state
    assert state is not None
    assert state.sharing is not None
    return state.sharing


def busy(client: QRewardClient) -> asyncio.Task[Any]:
    """Give it work without end."""
    return asyncio.ensure_future(client.batch_chat_completion(endless(), "m", keep_results=False))


async def stop(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
