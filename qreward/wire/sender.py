"""The one thing the engine calls: ``Wire.send`` takes a call to an endpoint and says in the core's words how it ended.

Knows codecs, transports and failures; knows nothing of queues, retries or limits. A ``Wire`` belongs to one event loop.
"""

from __future__ import annotations

from functools import partial

from qreward.core.outcome import Answer, Failure, FailureKind, Look
from qreward.errors import BadRequest, ClientClosed, ConfigError, RequestError
from qreward.observe import with_carried
from qreward.policies import Endpoint
from qreward.wire import address, probes, ratelimits
from qreward.wire.aiohttp_transport import AiohttpTransport
from qreward.wire.base import Call, EmbeddedError, Malformed, Reply, Transport, TransportError, Unfinished
from qreward.wire.failures import (
    failure_from_embedded,
    failure_from_malformed,
    failure_from_reply,
    failure_from_transport,
    failure_from_unfinished,
    shorten,
)
from qreward.wire.httpx_transport import HttpxTransport
from qreward.wire.rewards.base import Listing
from qreward.wire.rewards.dialects import bound, server_root
from qreward.wire.secrets import Secrets, secrets_of
from qreward.wire.streams import ChatStream, open_stream


class Line:
    """An endpoint with what is made of it once: its transport, the names of its models, its secrets."""

    __slots__ = ("_beside", "endpoint", "name", "renamed", "secrets", "takes_stream_options", "transport")

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint  # held, so that its id stays its own
        self.name = endpoint.name
        self.renamed = endpoint.model_names
        self.transport = open_transport(endpoint)
        self.secrets = secrets_of(endpoint)
        self.takes_stream_options = True  # until it refuses them
        self._beside: Transport | None = None

    def beside(self) -> Transport:
        """To the server's own routes, which lie beside its ``/v1``."""
        if self._beside is None:
            root = server_root(self.endpoint.base_url)
            rooted = self.endpoint.model_copy(update={"base_url": root})
            self._beside = self.transport if root == self.endpoint.base_url else open_transport(rooted)
        return self._beside

    async def aclose(self) -> None:
        await self.transport.aclose()
        if self._beside is not None:
            await self._beside.aclose()


class Wire:
    """Sends calls to endpoints, from one event loop.

    Example:
        wire = Wire()
        outcome = await wire.send(endpoint, Call(CHAT, "judge-7b", messages, {"temperature": 0}, None))
        await wire.aclose()
    """

    def __init__(self) -> None:
        self._lines: dict[int, Line] = {}
        self._closed = False

    async def send(self, endpoint: Endpoint, call: Call) -> Answer | Failure:
        """One attempt. Raises nothing but ``CancelledError``; when cancelled, the connection is closed."""
        line = self._lines.get(id(endpoint))
        try:
            if line is None:
                line = self._open(endpoint)
            codec, model, transport = call.codec, call.model, line.transport
            if isinstance(codec, Listing):
                call, codec = bound(call, endpoint)
                transport = line.beside() if codec.native else transport
            body = codec.encode(call, line.renamed.get(model, model))
            if call.headers is not None:
                address.check_call_headers(call.headers, model)
            reply = await transport.post(codec.path, body, with_carried(call.headers))
            if reply.status != 200:
                return _read_other(line, call, reply)
            return _read(line, call, reply)
        except Exception as error:
            return _failure_of(error, line, endpoint, call)

    async def stream(self, endpoint: Endpoint, call: Call) -> ChatStream | Failure:
        """One streamed attempt: an open stream once the server has answered 2xx; see ``qreward.wire.streams`` for how it is driven.

        Raises nothing but ``CancelledError``; when cancelled, the connection is closed.
        """
        line = self._lines.get(id(endpoint))
        try:
            if line is None:
                line = self._open(endpoint)
            return await open_stream(line, call, partial(_concluded, line, endpoint, call))
        except Exception as error:
            return _failure_of(error, line, endpoint, call)

    async def look(self, endpoint: Endpoint) -> Look:
        """What the server says of itself. Raises nothing but ``CancelledError``; a look that fails says nothing."""
        try:
            return await probes.look(self._lines.get(id(endpoint)) or self._open(endpoint))
        except Exception:
            return Look()

    async def drop(self, endpoint: Endpoint) -> None:
        """Close the connections of one endpoint; it may be used again."""
        line = self._lines.pop(id(endpoint), None)
        if line is not None:
            await line.aclose()

    async def aclose(self) -> None:
        """Close all connections. What is sent afterwards fails with ``ClientClosed``."""
        self._closed = True
        while self._lines:
            _, line = self._lines.popitem()
            await line.aclose()

    def _open(self, endpoint: Endpoint) -> Line:
        if self._closed:
            raise ClientClosed("the client was closed before the request was sent; make a new one")
        line = self._lines[id(endpoint)] = Line(endpoint)
        return line


def open_transport(endpoint: Endpoint) -> Transport:
    """The engine for an endpoint: the user's ``http_client`` if there is one, else aiohttp. Raises ``ConfigError``."""
    return AiohttpTransport(endpoint) if endpoint.http_client is None else HttpxTransport(endpoint)


def _read(line: Line, call: Call, reply: Reply) -> Answer | Failure:
    """A reply that claims success: an answer, unless its body says otherwise."""
    try:
        value = call.codec.decode(reply.body, call)
    except Malformed as error:
        return failure_from_malformed(error, reply, line.name, call.model, _secrets(line, call))
    except EmbeddedError as error:
        return failure_from_embedded(error.body, reply, line.name, call.model, _secrets(line, call))
    except Unfinished as error:
        return failure_from_unfinished(error, reply, line.name, call.model, _secrets(line, call))
    usage, limits = value.usage, ratelimits.read(reply.headers)
    if usage is None:
        return Answer(value, limits=limits)
    return Answer(value, usage.prompt_tokens, usage.completion_tokens, limits)


def _concluded(line: Line, endpoint: Endpoint, call: Call, how: Reply | Exception) -> Answer | Failure:
    """What a stream comes to that was none, or that broke."""
    return _read(line, call, how) if isinstance(how, Reply) else _failure_of(how, line, endpoint, call)


def _read_other(line: Line, call: Call, reply: Reply) -> Answer | Failure:
    if 200 < reply.status < 300:
        return _read(line, call, reply)
    return failure_from_reply(reply, line.name, call.model, _secrets(line, call))


def _failure_of(error: Exception, line: Line | None, endpoint: Endpoint, call: Call) -> Failure:
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


def _unexpected(error: Exception, endpoint: Endpoint, call: Call) -> Failure:
    """The end of an attempt that hit something nobody thought of, such as an exception of the user's own ``http_client``."""
    secrets = secrets_of(endpoint).and_headers(call.headers)
    said = shorten(secrets, str(error), 300)
    message = f"endpoint {endpoint.name!r}, model {call.model!r}: unexpected {type(error).__name__}: {said}; nothing more is tried"
    failure = RequestError(message, endpoint=endpoint.name, model=call.model)
    if secrets.hide(repr(error)) == repr(error):
        failure.__cause__ = error
    return Failure(FailureKind.UNSENDABLE, failure)


def _secrets(line: Line, call: Call) -> Secrets:
    return line.secrets.and_headers(call.headers)
