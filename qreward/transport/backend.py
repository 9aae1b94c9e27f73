"""The backend that the engine uses: ``HttpBackend.send`` sends a request to an endpoint and returns an ``Answer`` or a ``Failure``.

This module knows codecs, transports and failures. It must not know queues, retries or limits. An ``HttpBackend`` belongs to one event
loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from qreward.codecs import rate_limit_headers
from qreward.codecs.base import EmbeddedError, Malformed, Reply, TransportError, Unfinished, WireRequest
from qreward.codecs.embeddings import EMBEDDINGS
from qreward.codecs.rewards.base import Listing
from qreward.codecs.rewards.registry import bound, embeddings_place, server_root
from qreward.codecs.rewards.server_info import Load
from qreward.errors import BadRequest, ClientClosed, ConfigError, RequestError
from qreward.observers import with_carried
from qreward.scheduler.outcome import Answer, Failure, FailureKind, ProbeResult
from qreward.settings.policies import Endpoint
from qreward.transport import connection_settings, probes
from qreward.transport.aiohttp_backend import AiohttpTransport
from qreward.transport.base import HttpTransport
from qreward.transport.error_mapping import (
    failure_from_embedded,
    failure_from_malformed,
    failure_from_reply,
    failure_from_transport,
    failure_from_unfinished,
    shorten,
)
from qreward.transport.httpx_backend import HttpxTransport
from qreward.transport.redaction import Secrets, secrets_of
from qreward.transport.stream import ChatStream, open_stream

NOT_OF_CONNECTIONS = frozenset({"weight", "price", "models", "probe", "limits", "timeouts"})
"""Settings of an endpoint on which its connections do not depend, except some of the limits and timeouts; see ``_of_connections``."""


class EndpointConnection:
    """An endpoint with the objects that are created once for it: its transport, the names of its models, its secrets.

    Attributes:
        info: the server information that changes only when the server restarts; None until it was fetched.
        users: number of requests in flight.
        retired: True if it accepts no new requests and is closed when the last request has ended.
    """

    __slots__ = ("_beside", "endpoint", "info", "name", "renamed", "retired", "secrets", "takes_stream_options", "transport", "users")

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint  # referenced, so that no other object gets its id
        self.name = endpoint.name
        self.renamed = endpoint.model_names
        self.transport = open_transport(endpoint)
        self.secrets = secrets_of(endpoint)
        self.takes_stream_options = True  # until the server rejects them
        self.info: Load | None = None
        self.users = 0
        self.retired = False
        self._beside: HttpTransport | None = None

    def serves(self, endpoint: Endpoint) -> bool:
        """Return True if ``endpoint`` can use these connections: no setting on which they depend differs."""
        return _of_connections(self.endpoint) == _of_connections(endpoint)

    def beside(self) -> HttpTransport:
        """Return the transport for the server's own routes, which are outside its ``/v1``."""
        if self._beside is None:
            root = server_root(self.endpoint.base_url)
            rooted = self.endpoint.model_copy(update={"base_url": root})
            self._beside = self.transport if root == self.endpoint.base_url else open_transport(rooted)
        return self._beside

    async def aclose(self) -> None:
        await self.transport.aclose()
        if self._beside is not None:
            await self._beside.aclose()


class HttpBackend:
    """Sends requests to endpoints, from one event loop.

    Example:
        backend = HttpBackend()
        outcome = await backend.send(endpoint, WireRequest(CHAT, "judge-7b", messages, {"temperature": 0}, None))
        await backend.aclose()
    """

    def __init__(self) -> None:
        self._lines: dict[int, EndpointConnection] = {}
        self._dismissed: dict[EndpointConnection, asyncio.Task[None] | None] = {}  # -> the task that closes it
        self._kept: dict[int, Endpoint] | None = None  # None: any endpoint
        self._closed = False

    async def send(self, endpoint: Endpoint, call: WireRequest) -> Answer | Failure:
        """Make one attempt. Raises only ``CancelledError``; when cancelled, the connection is closed."""
        line = self._lines.get(id(endpoint))
        try:
            if line is None:
                line = self._open(endpoint)
            line.users += 1
            codec, model, path, beside = call.codec, call.model, call.codec.path, False
            if isinstance(codec, Listing):
                call, codec = bound(call, endpoint)
                path, beside = codec.path, codec.native
            elif codec is EMBEDDINGS:
                path, beside = embeddings_place(endpoint.kind)
            transport = line.beside() if beside else line.transport
            body = codec.encode(call, line.renamed.get(model, model))
            if call.headers is not None:
                connection_settings.check_call_headers(call.headers, model)
            reply = await transport.post(path, body, with_carried(call.headers))
            if reply.status != 200:
                return _read_other(line, call, reply)
            return _read(line, call, reply)
        except Exception as error:
            return _failure_of(error, line, endpoint, call)
        finally:
            if line is not None:
                self._leave(line)

    async def stream(self, endpoint: Endpoint, call: WireRequest) -> ChatStream | Failure:
        """Make one streamed attempt. Returns an open stream once the server has answered 2xx; see ``qreward.transport.stream``.

        Raises only ``CancelledError``; when cancelled, the connection is closed.
        """
        line = self._lines.get(id(endpoint))
        try:
            if line is None:
                line = self._open(endpoint)
            line.users += 1
            opened = await open_stream(line, call, partial(_concluded, line, endpoint, call))
        except Exception as error:
            opened = _failure_of(error, line, endpoint, call)
        except BaseException:
            if line is not None:
                self._leave(line)
            raise
        if line is not None:
            if isinstance(opened, ChatStream):
                opened.on_close = partial(self._leave, line)
            else:
                self._leave(line)
        return opened

    async def look(self, endpoint: Endpoint) -> ProbeResult:
        """Probe a server: whether it is ready, and its load. Raises only ``CancelledError``.

        A probe that fails returns an empty result, or one whose ``trouble`` says why probes of this server cannot work.
        """
        line = self._lines.get(id(endpoint))
        try:
            if line is None:
                line = self._open(endpoint)
            line.users += 1
            return await probes.look(line)
        except ClientClosed:
            return ProbeResult()
        except ConfigError as error:
            return ProbeResult(trouble=str(error))
        except Exception as error:
            return ProbeResult(trouble=f"unexpected {type(error).__name__}: {shorten(secrets_of(endpoint), str(error), 300)}")
        finally:
            if line is not None:
                self._leave(line)

    def keep(self, endpoints: Iterable[Endpoint]) -> None:
        """Keep the connections of these endpoints, and close all others, each when its last request has ended.

        Must be called in the event loop. A new ``Endpoint`` object with the name of an old one takes over its connections, unless a
        setting on which they depend has changed. A later request to an endpoint that is not among these gets a connection of its own,
        which is closed after the request.
        """
        kept = self._kept = {id(endpoint): endpoint for endpoint in endpoints}
        fresh = {endpoint.name: endpoint for key, endpoint in kept.items() if key not in self._lines}
        for key in [key for key in self._lines if key not in kept]:
            line = self._lines.pop(key)
            heir = fresh.get(line.name)
            if heir is not None and line.serves(heir):
                line.endpoint = fresh.pop(line.name)
                self._lines[id(heir)] = line
            else:
                self._dismiss(line)

    async def aclose(self) -> None:
        """Close all connections. Later requests fail with ``ClientClosed``."""
        self._closed = True
        lines, self._lines, self._dismissed = [*self._lines.values(), *self._dismissed], {}, {}
        for line in lines:
            line.retired = False  # so that its last request does not close it again
            await line.aclose()

    def _open(self, endpoint: Endpoint) -> EndpointConnection:
        if self._closed:
            raise ClientClosed("the client was closed before the request was sent; make a new one")
        line = EndpointConnection(endpoint)
        if self._kept is None or id(endpoint) in self._kept:
            self._lines[id(endpoint)] = line
        else:
            line.retired = True
            self._dismissed[line] = None
        return line

    def _dismiss(self, line: EndpointConnection) -> None:
        line.retired = True
        self._dismissed[line] = None
        if not line.users:
            self._end(line)

    def _leave(self, line: EndpointConnection) -> None:
        """Count a request that has ended, and close a retired connection after its last request."""
        line.users -= 1
        if line.retired and not line.users:
            self._end(line)

    def _end(self, line: EndpointConnection) -> None:
        closing = self._dismissed[line] = asyncio.get_running_loop().create_task(line.aclose())
        closing.add_done_callback(lambda _: self._dismissed.pop(line, None))


def _of_connections(endpoint: Endpoint) -> list[object]:
    timeouts, limits = endpoint.timeouts, endpoint.limits
    rest = [getattr(endpoint, name) for name in Endpoint.model_fields if name not in NOT_OF_CONNECTIONS]
    return [timeouts.connect, timeouts.read, limits.connects_per_second, *rest]


def open_transport(endpoint: Endpoint) -> HttpTransport:
    """Return the transport for an endpoint: the user's ``http_client`` if there is one, else aiohttp. Raises ``ConfigError``."""
    return AiohttpTransport(endpoint) if endpoint.http_client is None else HttpxTransport(endpoint)


def _read(line: EndpointConnection, call: WireRequest, reply: Reply) -> Answer | Failure:
    """Decode a reply with a success status: an answer, unless its body is an error or malformed."""
    try:
        value = call.codec.decode(reply.body, call)
    except Malformed as error:
        return failure_from_malformed(error, reply, line.name, call.model, _secrets(line, call))
    except EmbeddedError as error:
        return failure_from_embedded(error.body, reply, line.name, call.model, _secrets(line, call))
    except Unfinished as error:
        return failure_from_unfinished(error, reply, line.name, call.model, _secrets(line, call))
    usage, limits = value.usage, rate_limit_headers.read(reply.headers)
    if usage is None:
        return Answer(value, limits=limits)
    return Answer(value, usage.prompt_tokens, usage.completion_tokens, limits)


def _concluded(line: EndpointConnection, endpoint: Endpoint, call: WireRequest, how: Reply | Exception) -> Answer | Failure:
    """Return the outcome of a stream request that the server answered without a stream, or whose stream broke."""
    return _read(line, call, how) if isinstance(how, Reply) else _failure_of(how, line, endpoint, call)


def _read_other(line: EndpointConnection, call: WireRequest, reply: Reply) -> Answer | Failure:
    if 200 < reply.status < 300:
        return _read(line, call, reply)
    return failure_from_reply(reply, line.name, call.model, _secrets(line, call))


def _failure_of(error: Exception, line: EndpointConnection | None, endpoint: Endpoint, call: WireRequest) -> Failure:
    match error:
        case TransportError() if line is not None:
            return failure_from_transport(error, line.name, call.model, _secrets(line, call))
        case BadRequest():
            error.model = error.model or call.model
            return Failure(FailureKind.UNSENDABLE, error)
        case ClientClosed():
            return Failure(FailureKind.UNSENDABLE, error)
        case ConfigError():
            return Failure(FailureKind.UNSUITABLE, error, misconfigured=True)
    return _unexpected(error, endpoint, call)


def _unexpected(error: Exception, endpoint: Endpoint, call: WireRequest) -> Failure:
    """Return the failure for an unexpected exception, such as one of the user's own ``http_client``."""
    secrets = secrets_of(endpoint).and_headers(call.headers)
    said = shorten(secrets, str(error), 300)
    message = f"endpoint {endpoint.name!r}, model {call.model!r}: unexpected {type(error).__name__}: {said}; nothing more is tried"
    failure = RequestError(message, endpoint=endpoint.name, model=call.model)
    if secrets.hide(repr(error)) == repr(error):
        failure.__cause__ = error
    return Failure(FailureKind.UNSENDABLE, failure)


def _secrets(line: EndpointConnection, call: WireRequest) -> Secrets:
    return line.secrets.and_headers(call.headers)
