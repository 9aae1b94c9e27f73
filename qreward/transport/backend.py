"""The backend that the engine uses: ``HttpBackend.send`` sends a request to an endpoint and returns an ``Answer`` or a ``Failure``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

from qreward.codecs.base import WireRequest
from qreward.codecs.decisions import Dialect
from qreward.codecs.dialects import NO_SUCH_PATH, OTHER_BODY, PROBE, Decide, refuses_body, status_of
from qreward.codecs.rewards.registry import bound
from qreward.errors import ClientClosed, ConfigError
from qreward.scheduler.outcome import Answer, Failure, ProbeResult
from qreward.settings.policies import Endpoint
from qreward.transport.connection import EndpointConnection, connection_key, failure_of
from qreward.transport.error_mapping import shorten
from qreward.transport.redaction import secrets_of
from qreward.transport.stream import ChatStream, open_stream


class HttpBackend:
    """Sends requests to endpoints, from one event loop. ``transport`` is the setting of :class:`~qreward.settings.client.ClientConfig`."""

    def __init__(self, transport: Any = "aiohttp") -> None:
        self._transport = transport
        self._connections: dict[int, EndpointConnection] = {}
        self._dismissed: dict[EndpointConnection, asyncio.Task[None] | None] = {}  # connection -> the task that closes it
        self._kept: dict[int, Endpoint] | None = None  # endpoints whose connections are kept; None for all
        self._closed = False

    async def send(self, endpoint: Endpoint, call: WireRequest) -> Answer | Failure:
        """Make one attempt. Raises only ``CancelledError``, and closes the connection of the attempt first."""
        connection = self._connections.get(id(endpoint))
        try:
            if connection is None:
                connection = self._enter(endpoint)
            else:
                connection.in_flight += 1  # the usual case of ``_enter``, without a function call
            if isinstance(call.codec, Decide):
                return await _decided(call.codec, connection, endpoint, call)
            whole, (call, path, native) = call, bound(call, endpoint)
            return await connection.ask(call, path, native, whole)
        except Exception as error:
            return failure_of(error, endpoint, call, connection)
        finally:
            self._leave(connection)

    async def stream(self, endpoint: Endpoint, call: WireRequest) -> ChatStream | Failure:
        """Make one streamed attempt. Returns an open stream as soon as the server has answered 2xx. Raises only ``CancelledError``."""
        connection, opened = None, None
        try:
            connection = self._enter(endpoint)
            opened = await open_stream(connection, call)
        except Exception as error:
            opened = failure_of(error, endpoint, call, connection)
        finally:
            if isinstance(opened, ChatStream):
                opened.on_close = partial(self._leave, connection)
            else:
                self._leave(connection)
        return opened

    async def look(self, endpoint: Endpoint) -> ProbeResult:
        """Probe a server, to learn whether it is ready and how loaded it is. Raises only ``CancelledError``."""
        connection = None
        try:
            connection = self._enter(endpoint)
            return await connection.probe()
        except ClientClosed:
            return ProbeResult()
        except Exception as error:
            text = shorten(secrets_of(endpoint), str(error), 300)
            return ProbeResult(trouble=text if isinstance(error, ConfigError) else f"unexpected {type(error).__name__}: {text}")
        finally:
            self._leave(connection)

    def keep(self, endpoints: Iterable[Endpoint]) -> None:
        """Keep the connections of these endpoints, and close the others after their last request. A new version takes them over."""
        kept = self._kept = {id(endpoint): endpoint for endpoint in endpoints}
        fresh = {endpoint.name: endpoint for key, endpoint in kept.items() if key not in self._connections}
        for key in [key for key in self._connections if key not in kept]:
            connection = self._connections.pop(key)
            heir = fresh.get(connection.name)
            if heir is not None and connection_key(connection.endpoint) == connection_key(heir):
                connection.endpoint = fresh.pop(connection.name)
                self._connections[id(heir)] = connection
            else:
                connection.retired = True
                self._dismissed[connection] = None
                connection.in_flight += 1
                self._leave(connection)

    async def aclose(self) -> None:
        self._closed = True
        connections, self._connections, self._dismissed = [*self._connections.values(), *self._dismissed], {}, {}
        for connection in connections:
            connection.retired = False  # otherwise the last request of the connection would close it again
            await connection.aclose()

    def _enter(self, endpoint: Endpoint) -> EndpointConnection:
        connection = self._connections.get(id(endpoint))
        if connection is None:
            if self._closed:
                raise ClientClosed("the client was closed before the request was sent; make a new one")
            connection = EndpointConnection(endpoint, self._transport)
            if self._kept is None or id(endpoint) in self._kept:
                self._connections[id(endpoint)] = connection
            else:
                connection.retired = True
                self._dismissed[connection] = None
        connection.in_flight += 1
        return connection

    def _leave(self, connection: EndpointConnection | None) -> None:
        if connection is None:  # the connection could not be made
            return
        connection.in_flight -= 1
        if connection.retired and not connection.in_flight:
            closing = self._dismissed[connection] = asyncio.get_running_loop().create_task(connection.aclose())
            closing.add_done_callback(lambda _: self._dismissed.pop(connection, None))


async def _decided(decide: Decide, connection: EndpointConnection, endpoint: Endpoint, call: WireRequest) -> Answer | Failure:
    """Make an attempt of a decision. An endpoint that has not answered yet, or whose path is gone, is asked in one dialect after the other.
    If no dialect is left, the outcome is the first refusal by a server that has the path, or else the last."""
    model, tried = call.model, dict[Dialect, Exception]()
    dialect: Dialect | None = decide.dialect_at(endpoint, model)
    refusals = list[tuple[Dialect, Failure]]()
    while dialect is not None:
        asked = WireRequest(dialect, model, call.inputs, call.params, call.headers, call.group)
        outcome = await connection.ask(asked, dialect.path, dialect.native, call)
        if isinstance(outcome, Answer):
            decide.answered(endpoint, model, dialect, tried)
            return outcome
        if refuses_body(outcome.error) and not decide.is_certain(endpoint, model) and call.inputs is not PROBE:
            probe = WireRequest(dialect, model, PROBE, {}, call.headers)
            if isinstance(await connection.ask(probe, dialect.path, dialect.native, probe), Answer):
                decide.answered(endpoint, model, dialect, {})  # the request is wrong, and not the dialect
        tried[dialect] = outcome.error
        refusals.append((dialect, outcome))
        dialect = decide.next_dialect(endpoint, model, tried)
    sent, failure = refusals[-1]
    if status_of(failure.error) in OTHER_BODY | NO_SUCH_PATH:
        sent, failure = next((each for each in refusals if status_of(each[1].error) in OTHER_BODY), refusals[-1])
    failure.error.args = (f"{failure.error}{decide.advice(endpoint, model, sent, failure.error)}",)
    return failure
