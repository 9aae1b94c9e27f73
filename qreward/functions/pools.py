"""What functions share that name one pool: an engine of their own, and how many tries may be in flight."""

from __future__ import annotations

import threading
from random import Random
from typing import NoReturn
from weakref import WeakSet, WeakValueDictionary

from qreward.core.calls.scheduler import CallScheduler
from qreward.engine import forks
from qreward.engine.calls.blocking import Desk
from qreward.engine.shell import Engine
from qreward.functions.clock import CLOCK
from qreward.functions.member import Member


class Pool:
    """An engine, and where its blocking callers stand.

    Attributes:
        members: the functions that use it.
    """

    def __init__(self) -> None:
        self.members: WeakSet[Member] = WeakSet()
        self._begin()
        forks.watch(self, Pool._begin_again)

    def _begin(self) -> None:
        rng = Random()  # noqa: S311 - jitter, not secrets
        self.engine = Engine(CallScheduler(rng), NoWire, clock=CLOCK.now)
        _ENGINES.add(self.engine)
        self.desk = Desk(self.engine, CLOCK)

    def _begin_again(self) -> object:
        inherited = self.engine, self.desk
        self._begin()
        for member in self.members:
            member.attach()
        return inherited


class NoWire:
    """There are no connections: functions do what they do."""

    async def send(self, endpoint: object, call: object) -> NoReturn:
        """Never called: calls have a way of their own."""
        raise AssertionError(f"a function was sent over a wire: {endpoint}, {call}")

    async def aclose(self) -> None:
        """Nothing is open."""


_ENGINES: WeakSet[Engine[CallScheduler]] = WeakSet()
"""Not the pools: a timer of a loop may outlive the last function of a pool, and holds the engine."""
_POOLS: WeakValueDictionary[str, Pool] = WeakValueDictionary()
_naming = threading.Lock()


def pool_named(name: str | None) -> Pool:
    """The pool of a name, one of its own without a name. It lasts as long as a function uses it."""
    if name is None:
        return Pool()
    with _naming:
        pool = _POOLS.get(name)
        if pool is None:
            pool = _POOLS[name] = Pool()
        return pool


async def leave_loop() -> None:
    """End what decorated functions hold in the running loop: their timers. They may be called in it again."""
    for engine in list(_ENGINES):
        await engine.leave()
