"""The backend that the engine uses: ``HttpBackend.send`` sends a request to an endpoint and returns an ``Answer`` or a ``Failure``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, cast

from msgspec.structs import replace

from qreward.codecs import rate_limit_headers
from qreward.codecs.base import EmbeddedError, Ignored, Malformed, Reply, TransportError, Unbound, Unfinished, WireRequest, hash_of_group
from qreward.codecs.chat import ChatCodec, count_of
from qreward.codecs.chat_stream import ChatChunk, Event, EventTooLong, Parser, StreamAccumulator, read_chunk
from qreward.codecs.decisions import NO_SUCH_PATH, OTHER_BODY, PROBE, DecisionCodec, Dialect, refuses_body, status_of
from qreward.codecs.rewards.kinds import bound, kind_of, server_root
from qreward.codecs.rewards.server_info import MODELS, Load, read_load
from qreward.errors import BadRequest, ClientClosed, ConfigError, RequestError
from qreward.observers import CARRIED, with_carried
from qreward.scheduler.outcome import CANCELLED, Answer, Cancelled, Failure, FailureKind, ProbeResult
from qreward.settings.local import LocalFunction
from qreward.settings.policies import BATCH_KIND, ApiKey, Endpoint
from qreward.transport.aiohttp_transport import AiohttpTransport
from qreward.transport.base import ByteStream, HttpTransport, KeyedTransport, too_long
from qreward.transport.connection_settings import Secrets, check_call_headers, secrets_of
from qreward.transport.error_mapping import FailedReply, failure_from_transport, shorten
from qreward.transport.httpx_transport import HttpxTransport
from qreward.transport.local import LocalTransport


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
        connection: EndpointConnection | None = None
        try:
            connection = self._connections.get(id(endpoint)) or self._connect(endpoint)
            connection.in_flight += 1
            if isinstance(call.codec, Unbound):
                if isinstance(call.codec, DecisionCodec):
                    return await _decided(call.codec, connection, endpoint, call)
                call = bound(call, endpoint)
            return connection.outcome_of(await connection.transport.post(*connection.encoded(call)), call)  # as ``attempt``, faster
        except Exception as error:
            return failure_of(error, endpoint, call, connection)
        finally:
            if self._dismissed:
                self._leave(connection)
            elif connection is not None:
                connection.in_flight -= 1

    async def stream(self, endpoint: Endpoint, call: WireRequest) -> ChatStream | Failure:
        """Make one streamed attempt. Returns an open stream as soon as the server has answered 2xx. Raises only ``CancelledError``."""
        connection: EndpointConnection | None = None
        opened: ChatStream | Failure | None = None
        try:
            connection = self._connections.get(id(endpoint)) or self._connect(endpoint)
            connection.in_flight += 1
            opened = await open_stream(connection, call)
        except Exception as error:
            opened = failure_of(error, endpoint, call, connection)
        finally:
            if isinstance(opened, ChatStream):
                opened.on_close = partial(self._leave, connection)
            else:
                self._leave(connection)
        return opened

    def withheld(self, endpoint: Endpoint, call: WireRequest) -> Failure | None:
        """Return a failure for a stream that another endpoint should be sent, because this one seems to end no stream of the model."""
        connection, model = self._connections.get(id(endpoint)), call.model
        count, trial = (0, 0.0) if connection is None else connection.unended.get(model, (0, 0.0))
        if connection is None or count < MOST_UNENDED or not cast("ChatCodec", call.codec).failures:
            return None
        if (now := monotonic()) >= trial:
            connection.unended[model] = count, now + TRIAL_AFTER
            return None
        failure = connection.failed(Reply(200, {}, b""), call).by_body(Ignored(_UNENDED))
        failure.hurts_health = False
        return failure

    async def look(self, endpoint: Endpoint) -> ProbeResult:
        """Probe a server, to learn whether it is ready and how loaded it is. Raises only ``CancelledError``."""
        connection: EndpointConnection | None = None
        try:
            connection = self._connections.get(id(endpoint)) or self._connect(endpoint)
            connection.in_flight += 1
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
                self._dismissed[connection] = None
                connection.in_flight += 1
                self._leave(connection)

    async def aclose(self) -> None:
        self._closed = True
        connections, self._connections, self._dismissed = [*self._connections.values(), *self._dismissed], {}, {}
        for connection in connections:
            await connection.transport.aclose()

    def _connect(self, endpoint: Endpoint) -> EndpointConnection:
        if self._closed:
            raise ClientClosed("the client was closed before the request was sent; make a new one")
        connection = EndpointConnection(endpoint, self._transport)
        if self._kept is None or id(endpoint) in self._kept:
            self._connections[id(endpoint)] = connection
        else:
            self._dismissed[connection] = None
        return connection

    def _leave(self, connection: EndpointConnection | None) -> None:
        if connection is None:  # the connection could not be made
            return
        connection.in_flight -= 1
        if not connection.in_flight and connection in self._dismissed:
            closing = self._dismissed[connection] = asyncio.get_running_loop().create_task(connection.transport.aclose())
            closing.add_done_callback(lambda _: self._dismissed.pop(connection, None))


async def _decided(codec: DecisionCodec, connection: EndpointConnection, endpoint: Endpoint, call: WireRequest) -> Answer | Failure:
    """Make an attempt of a decision. An endpoint that has not answered yet, or whose path is gone, is asked in one dialect after the other.
    If no dialect is left, the outcome is the first refusal by a server that has the path, or else the last."""
    model, failures = call.model, dict[Dialect, Failure]()
    dialect: Dialect | None = codec.dialect_at(endpoint, model)
    while dialect is not None:
        outcome = await connection.attempt(replace(call, codec=dialect))
        if isinstance(outcome, Answer):
            codec.answered(endpoint, model, dialect, failures)
            for fault in outcome.response.found:
                if isinstance(fault, RequestError):
                    fault.endpoint, fault.args = connection.name, (f"endpoint {connection.name!r}, model {fault.model!r}: {fault}",)
            return outcome
        failures[dialect] = outcome
        if refuses_body(outcome.error) and not codec.is_certain(endpoint, model) and call.inputs is not PROBE:
            shown = await connection.attempt(WireRequest(dialect, model, PROBE, {}, call.headers))
            if isinstance(shown, Answer):
                codec.answered(endpoint, model, dialect, {})  # the request is wrong, and not the dialect
        dialect = codec.next_dialect(endpoint, model, {each: failure.error for each, failure in failures.items()})
    sent, failure = [*failures.items()][-1]
    if status_of(failure.error) in OTHER_BODY | NO_SUCH_PATH:
        sent, failure = next((each for each in failures.items() if status_of(each[1].error) in OTHER_BODY), (sent, failure))
    failure.error.args = (f"{failure.error}{codec.advice(endpoint, model, sent, failure.error)}",)
    return failure


SHAREABLE = frozenset(
    {"weight", "price", "models", "probe", "refresh", "send_priority", "limits", "timeouts", "decisions", "decision_labels"}
)
"""Names of settings on which an endpoint's connections do not depend, apart from some members of ``limits`` and ``timeouts``."""
PASSING = frozenset({408, 425, 429})
"""Temporary HTTP statuses. Such a status does not show whether the endpoint's settings are correct."""


class EndpointConnection:
    """Holds what a backend keeps for an endpoint: transport, names of models, secrets, what its answers have shown. It opens no socket."""

    def __init__(self, endpoint: Endpoint, transport: Any = "aiohttp") -> None:
        self.endpoint = endpoint  # this reference keeps the object alive, so that no other object gets the same id
        self.name = endpoint.name
        self.renamed = endpoint.model_names
        self.transport = open_transport(endpoint, transport)
        self._secrets = secrets_of(endpoint)
        self._hidden: tuple[str, ...] = ()  # the keys that ``_secrets`` hides beside the settings
        self.takes_stream_options = True  # False after the server has rejected stream_options
        self.unended: dict[str, tuple[int, float]] = {}
        """Model -> number of streams, each begun after the one before, that ended with ``[DONE]`` alone, and the time from which one more
        stream of a model without endings is sent."""
        self.info: Load | None = None
        self.in_flight = 0
        root = server_root(endpoint.base_url)
        self.root = "" if root == endpoint.base_url else root  # precedes the paths outside ``/v1``

    @property
    def secrets(self) -> Secrets:
        key = self.endpoint.api_key
        if isinstance(key, ApiKey) and self._hidden != key.known:
            self._secrets, self._hidden = secrets_of(self.endpoint), key.known
        return self._secrets

    def encoded(self, call: WireRequest) -> tuple[str, bytes, Mapping[str, str] | None]:
        """Return the path, the body and the additional headers of a request. Raises ``BadRequest``."""
        endpoint, codec, headers = self.endpoint, call.codec, call.headers
        path = self.root + codec.path if codec.native else codec.path
        body = codec.encode(call, self.renamed.get(call.model, call.model))
        if endpoint.send_priority and call.level is not None and "priority" not in call.params:
            body = b'%b,"priority":%d}' % (body[:-1], call.level)
        if headers is not None:
            check_call_headers(headers, call.model)
        if CARRIED.get() is not None:
            headers = with_carried(headers)
        if endpoint.group_header is not None and call.group is not None:
            headers = {**(headers or {}), endpoint.group_header: f"{hash_of_group(call.group):08x}"}
        return path, body, headers

    async def attempt(self, call: WireRequest) -> Answer | Failure:
        """Send a request and return its outcome. Raises ``TransportError`` and ``BadRequest``."""
        return self.outcome_of(await self.transport.post(*self.encoded(call)), call)

    def outcome_of(self, reply: Reply, call: WireRequest) -> Answer | Failure:
        """Decode a reply. Returns an ``Answer``, or a ``Failure`` if the reply is an error or malformed."""
        if not 200 <= reply.status < 300:
            return self.failed(reply, call).by_status()
        try:
            value = call.codec.decode(reply.body, call)
        except (Malformed, EmbeddedError, Unfinished) as error:
            return self.failed(reply, call).by_body(error)
        usage, headers = value.usage, reply.headers
        limits = rate_limit_headers.read(headers)
        if usage is None:
            return Answer(value, limits=limits)
        return Answer(value, usage.prompt_tokens, usage.completion_tokens, limits, usage.cached_tokens)

    def failed(self, reply: Reply, call: WireRequest) -> FailedReply:
        endpoint = self.endpoint
        keyless = endpoint.api_key is None and not endpoint.headers and not call.headers and endpoint.http_client is None
        return FailedReply(reply, self.name, call.model, self.secrets.and_headers(call.headers), keyless)

    async def probe(self) -> ProbeResult:
        """Probe the server. If no connection opens, it is not ready; after a timeout or a broken connection, that is unknown."""
        kind = kind_of(self.endpoint.kind)
        load, statuses = Load(), dict[str, int]()
        try:
            for path in kind.probe:
                reply = await self.get(path)
                load = load.joined(read_load(path, reply.status, reply.body, kind.readers))
                statuses[path] = reply.status
                if load.ready is False:
                    self.info = None
                    break
        except TransportError as error:
            self.info = None
            return ProbeResult(ready=False if not (error.sent or error.timeout or error.local) else None)
        if kind.info is not None and self.info is None and load.ready is not False:
            with suppress(TransportError):  # the next probe tries again
                reply = await self.get(kind.info)
                self.info = read_load(kind.info, reply.status, reply.body, kind.readers)
        items = None if self.info is None else self.info.list_items
        trouble = None
        if not statuses:
            trouble = f"a server of kind {kind.name!r} has no route for probes; leave probe out"
        elif load == Load() and not any(status < 300 or status >= 500 or status in PASSING for status in statuses.values()):
            answers = ", ".join(f"GET {path} was answered with {status}" for path, status in statuses.items())
            trouble = f"{answers}; check that it is a server of kind {kind.name!r}, its base_url and its api_key, or leave probe out"
        return ProbeResult(load.ready, load.running, load.waiting, load.concurrency, items, load.cache_tokens, trouble)

    async def get(self, path: str) -> Reply:
        """GET a path under the root of the server. With OpenAI's API, the list of models is fetched under ``base_url`` instead."""
        if path == MODELS and self.endpoint.kind in ("openai", BATCH_KIND):
            return await self.transport.get("/models")
        return await self.transport.get(self.root + path)


def open_transport(endpoint: Endpoint, transport: Any = "aiohttp") -> HttpTransport:
    if isinstance(endpoint.compute, LocalFunction):
        return LocalTransport(endpoint, endpoint.compute)
    plain = endpoint.compute is None and endpoint.http_client is None and transport == "aiohttp"
    opened = AiohttpTransport(endpoint) if plain else HttpxTransport(endpoint, transport)
    return KeyedTransport(opened, endpoint.api_key) if isinstance(endpoint.api_key, ApiKey) else opened


def failure_of(error: Exception, endpoint: Endpoint, call: WireRequest, connection: EndpointConnection | None) -> Failure:
    """Return the failure for an exception of an attempt. ``connection`` is None if no ``EndpointConnection`` could be created."""
    match error:
        case TransportError() if connection is not None:
            return failure_from_transport(error, connection.name, call.model, connection.secrets.and_headers(call.headers))
        case BadRequest() if isinstance(call.codec, DecisionCodec):  # more questions or options than this server takes
            error.endpoint, error.model = endpoint.name, call.model
            return Failure(FailureKind.UNSUITABLE, error)
        case BadRequest():
            error.model = error.model or call.model
            return Failure(FailureKind.UNSENDABLE, error)
        case ClientClosed():
            return Failure(FailureKind.UNSENDABLE, error)
        case ConfigError():
            return Failure(FailureKind.UNSUITABLE, error, misconfigured=True)
    secrets = secrets_of(endpoint).and_headers(call.headers)  # the exception is unexpected; for example, the user's http_client raised it
    text = f"unexpected {type(error).__name__}: {shorten(secrets, str(error), 300)}"
    failure = RequestError(
        f"endpoint {endpoint.name!r}, model {call.model!r}: {text}; nothing more is tried", endpoint=endpoint.name, model=call.model
    )
    if secrets.hide(repr(error)) == repr(error):
        failure.__cause__ = error
    return Failure(FailureKind.UNSENDABLE, failure)


def connection_key(endpoint: Endpoint) -> list[object]:
    timeouts = endpoint.timeouts
    rest = [getattr(endpoint, name) for name in Endpoint.model_fields if name not in SHAREABLE]
    threads = endpoint.limits.max_concurrency if endpoint.compute is not None else None
    return [timeouts.connect, timeouts.read, threads, *rest]


DRAIN = 0.1
"""Maximum number of seconds to wait for the end of a body after ``[DONE]``. If the body ends in this time, its connection can be reused.
The openai SDK waits equally long."""

MOST_UNENDED = 2
"""Number of streams one after the other that end with ``[DONE]`` alone, from which a server that has never sent a ``finish_reason`` for the
model is taken to send none. Streams at the same time count once, because those that a gateway cuts and closes with ``[DONE]`` end first."""
ENDS = -1
"""Stands in ``unended`` for a model whose streams had a ``finish_reason``."""
TRIAL_AFTER = 60.0
"""Seconds between two streams of a model that an endpoint is sent although it seems to send no ``finish_reason`` for it and others could be
sent them: each is paid and fails."""
MOST_MODELS = 1000
"""Maximum number of models in ``unended``. The number is bounded, because the names come from callers."""

_UNENDED = "[DONE] came without a finish_reason, so the answer may be cut; do not stream from a server that never sends one"
_OPTIONS = "stream_options"
_DONE = b"[DONE]"
_BEFORE_DONE = b' \t"'  # some servers send two blanks before [DONE], or quote it
_NO_STREAM = (b"{", b"[", b"<")  # first bytes of JSON or HTML; no line of an event starts with them
_BLANKS = b" \t\r\n\xef\xbb\xbf"  # whitespace, and the bytes of a byte order mark
_LOOKED_AT = 8192  # bytes of the beginning of the body, from which a stream is recognised; an error about a malformed response shows them


class ChatStream:
    """An open stream of one chat completion. One task reads it, and any may close it; only ``CancelledError`` is raised."""

    def __init__(self, body: ByteStream, connection: EndpointConnection, call: WireRequest, unended: int) -> None:
        self.headers: Mapping[str, str] = body.headers
        self.limits = rate_limit_headers.read(body.headers)
        self.outcome: Answer | Failure | Cancelled | None = None
        self.on_close: Callable[[], object] | None = None
        self._body = body
        self._connection = connection
        self._unended = unended  # the connection's for this model, when the request was sent
        self._call = call
        self._parser = Parser()
        self._assembly = StreamAccumulator(call.model)
        self._known = False  # True if it is known whether the response is a stream
        self._beginning = b""
        self._whole: bytearray | None = None  # the body of a response that is not a stream
        self._done = False

    async def read(self) -> list[ChatChunk] | None:
        """Wait for at least one byte, and return the chunks that have arrived; None once the stream has its outcome."""
        if self.outcome is not None:
            return None
        chunks: list[ChatChunk] = []
        try:
            data = await self._body.read()
            chunks = self._take(data) if data else self._end()
        except Exception as error:
            whole = isinstance(error, TransportError) and self._finished()  # an answer that was already complete remains valid
            self._settle(self._ended(well=True) if whole else self._failure_of(error))
        except BaseException:
            self.end()
            raise
        return chunks if chunks or self.outcome is None else None

    @property
    def whole(self) -> bool:
        """True while the stream is open and its answer has ended."""
        return self.outcome is None and self._finished()

    def end(self) -> Answer | Failure | Cancelled:
        """Return the outcome. An open stream gets that of its answer if the answer has ended; otherwise it is cancelled."""
        self._settle(self._ended(well=True) if self.whole else CANCELLED)
        assert self.outcome is not None
        return self.outcome

    def text(self) -> str:
        return self.outcome.response.text() if isinstance(self.outcome, Answer) else self._assembly.text()

    async def aclose(self) -> None:
        """Close the stream and its connection. After ``[DONE]``, keep the connection if the body ends within ``DRAIN`` seconds."""
        self.end()
        done, self._done = self._done, False
        try:
            if done:
                await self._body.drain(DRAIN)
            else:
                await self._body.aclose()
        finally:
            on_close, self.on_close = self.on_close, None
            if on_close is not None:
                on_close()

    def _settle(self, outcome: Answer | Failure | Cancelled) -> None:
        if self.outcome is None:
            self.outcome = outcome

    def _take(self, data: bytes) -> list[ChatChunk]:
        if not self._known:
            data = self._beginning + data
            self._beginning = data[:_LOOKED_AT]
            first = data.lstrip(_BLANKS)[:1]
            self._known = bool(first) or len(data) >= _LOOKED_AT
            if first in _NO_STREAM:
                self._whole = bytearray()
            if not self._known:
                return []
        if self._whole is None:
            return self._chunks(self._parser.feed(data))
        self._whole += data
        cap = self._connection.endpoint.max_response_bytes
        if len(self._whole) > cap:
            raise too_long(cap)
        return []

    def _chunks(self, events: Iterator[Event]) -> list[ChatChunk]:
        chunks, data = [], self._beginning
        assembly, model, cap = self._assembly, self._call.model, self._connection.endpoint.max_response_bytes
        try:
            for event in events:
                data = event.data
                if data.lstrip(_BEFORE_DONE).startswith(_DONE):
                    self._done = True
                    self._settle(self._ended(well=True))
                    break
                chunk = read_chunk(event, model)
                if chunk is not None:
                    assembly.add(chunk)
                    if assembly.size > cap:
                        self._settle(self._failure_of(too_long(cap)))
                        break
                    chunks.append(chunk)
        except EmbeddedError as error:
            self._settle(self._failure(error, data))
        except (Malformed, EventTooLong, RecursionError) as error:
            self._settle(self._failure(Malformed(str(error)), data))
        return chunks

    def _end(self) -> list[ChatChunk]:
        if self._whole is not None:
            reply = Reply(self._body.status, self.headers, bytes(self._whole))
            outcome = self._connection.outcome_of(reply, self._call)
            self._settle(outcome)
            chunk = read_chunk(Event(reply.body), self._call.model) if isinstance(outcome, Answer) else None
            return [] if chunk is None else [chunk]
        chunks = self._chunks(self._parser.finish())
        if self.outcome is None:
            # without a length, a cut and the end of the body look alike
            delimited = "transfer-encoding" in self.headers or "content-length" in self.headers
            self._settle(self._ended(well=self._assembly.ended and delimited))
        return chunks

    def _ended(self, *, well: bool) -> Answer | Failure:
        """Return the outcome of a stream that has ended. ``well`` is True if nothing more can come, as after ``[DONE]``."""
        assembly, codec, connection = self._assembly, cast("ChatCodec", self._call.codec), self._connection
        if not assembly.count:
            return self._failure(Malformed("the stream has no chunk with a choice"), self._beginning)
        if any(assembly.endings()):
            self._learn(ENDS)
        if not (assembly.ended or not codec.failures if well else self._finished()):
            if self._done:
                unended, _ = connection.unended.get(self._call.model, (0, 0.0))
                if unended != ENDS:
                    unended = self._learn(max(unended, self._unended + 1))
                failure = self._failure(Ignored(_UNENDED) if unended >= MOST_UNENDED else Malformed(_UNENDED), b"")
                failure.hurts_health = unended == ENDS  # it may be the way of this model, while the endpoint serves others well
                return failure
            what = "too few choices" if assembly.ended else "no finish_reason"
            what = "output followed a finish_reason, and no [DONE] came" if assembly.goes_on else what
            return self._failure_of(TransportError(f"the stream ended before the answer did ({what})"))
        try:
            for ending in assembly.endings():
                codec.check_ending(ending)
            codec.check_count(assembly.count, self._call.params)
        except (Malformed, Unfinished) as error:
            return self._failure(error, b"")
        usage = assembly.usage
        if usage is None:
            return Answer(assembly)
        return Answer(assembly, usage.prompt_tokens, usage.completion_tokens, cached_tokens=usage.cached_tokens)

    def _learn(self, unended: int) -> int:
        known, model = self._connection.unended, self._call.model
        if model not in known and len(known) >= MOST_MODELS:
            del known[next(iter(known))]
        known[model] = unended, monotonic() + TRIAL_AFTER
        return unended

    def _finished(self) -> bool:
        return self._assembly.finished(count_of(self._call.params))

    def _failure_of(self, error: Exception) -> Failure:
        return failure_of(error, self._connection.endpoint, self._call, self._connection)

    def _failure(self, error: Malformed | EmbeddedError | Unfinished, data: bytes) -> Failure:
        return self._connection.failed(Reply(self._body.status, self.headers, data), self._call).by_body(error)


async def open_stream(connection: EndpointConnection, call: WireRequest) -> ChatStream | Failure:
    """Send a streamed request. Raises ``TransportError``, or ``BadRequest`` if the request cannot be sent."""
    unended, _ = connection.unended.get(call.model, (0, 0.0))
    ours = _OPTIONS not in call.params and connection.takes_stream_options
    for options in ({_OPTIONS: {"include_usage": True}}, {}) if ours else ({},):
        request = replace(call, params={**call.params, "stream": True, **options})
        body = await connection.transport.begin("POST", *connection.encoded(request))
        if 200 <= body.status < 300:
            if ours and not options:
                connection.takes_stream_options = False  # the second request succeeded, so the options were the reason
            return ChatStream(body, connection, call, unended)
        reply = await body.read_whole(connection.endpoint.max_response_bytes)
        if body.status not in OTHER_BODY or _OPTIONS.encode() not in reply.body:
            break
    return connection.failed(reply, call).by_status()
