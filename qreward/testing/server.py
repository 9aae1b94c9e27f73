"""One fake judge on its port: open, shut, killed, revived, and following its phases.

Lives in one running loop; whoever calls it from elsewhere must come through that loop.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

from aiohttp import web

from qreward.testing.delivery import Incoming, abort
from qreward.testing.door import Door
from qreward.testing.handler import Handler
from qreward.testing.seen import Seen
from qreward.testing.spec import FakeEndpoint
from qreward.testing.state import State

_MOST_BODY = 64 * 1024 * 1024
_TURNS_TO_SETTLE = 3  # of the loop, after which an accepted connection has its protocol


class FakeServer:
    """An endpoint that listens. Raises ``OSError`` if its port is taken, ``ConfigError`` for a bad responder."""

    def __init__(self, spec: FakeEndpoint) -> None:
        self._state = State(spec)
        self._handler = Handler(self._state, self._follow_phases)
        self._web = web.Server(
            self._handler,  # type: ignore[arg-type] # it gets the requests that the factory makes
            request_factory=_make_request,
            handler_cancellation=True,
            access_log=None,
            lingering_time=0,
        )
        self._door = Door(self._web, spec.port)
        self._timer: asyncio.TimerHandle | None = None
        self._follow_phases()

    @property
    def port(self) -> int:
        return self._door.port

    def seen(self) -> Seen:
        return self._state.seen()

    def configure(self, spec: FakeEndpoint) -> None:
        self._state.configure(spec)
        self._follow_phases()

    def reset(self) -> None:
        self._state.reset()
        self._follow_phases()

    def kill(self) -> None:
        self._state.killed = True
        self._follow_phases()

    def revive(self) -> None:
        self._state.killed = False
        self._follow_phases()

    async def aclose(self) -> None:
        """Stop listening, drop every connection, and wait until no task is left."""
        if self._timer is not None:
            self._timer.cancel()
        await self._door.aclose()
        settle = _TURNS_TO_SETTLE
        while settle or self._web.connections:
            self._drop_connections()
            await asyncio.sleep(0)
            settle = max(0, settle - 1)

    def _follow_phases(self) -> None:
        """Open or shut the door as the present phase has it, and come back when the next one begins."""
        phase = self._state.phase()
        if phase is not None and phase.behaviour == "dead":
            self._die()
        else:
            self._door.open()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = time.monotonic()
        change = self._state.timeline.next_change(now)
        if change < math.inf:
            self._timer = asyncio.get_running_loop().call_later(change - now, self._follow_phases)

    def _die(self) -> None:
        self._door.shut()
        for request in self._handler.under_way:
            if not request.dropped:
                self._state.counters.ended_in("dead")
        self._drop_connections()

    def _drop_connections(self) -> None:
        for request in self._handler.under_way:
            request.dropped = True
        for connection in self._web.connections:
            abort(connection.transport)


def _make_request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> Incoming:
    return Incoming(message, payload, protocol, writer, task, asyncio.get_running_loop(), client_max_size=_MOST_BODY)
