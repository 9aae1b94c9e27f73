"""The connection to one endpoint: its transport, how requests are sent and replies become outcomes, and the probes of its server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qreward.codecs import rate_limit_headers
from qreward.codecs.base import EmbeddedError, Malformed, Reply, TransportError, Unfinished, WireRequest, with_priority
from qreward.codecs.decisions import DecisionReply
from qreward.codecs.dialects import Decide
from qreward.codecs.rewards.registry import kind_of, server_root
from qreward.codecs.rewards.server_info import MODELS, Load, read_load
from qreward.errors import BadRequest, ClientClosed, ConfigError, RequestError
from qreward.scheduler.outcome import Answer, Failure, FailureKind, ProbeResult
from qreward.settings.api_key import ApiKey
from qreward.settings.local import LocalFunction
from qreward.settings.policies import BATCH_KIND, Endpoint
from qreward.transport import connection_settings
from qreward.transport.aiohttp_transport import AiohttpTransport
from qreward.transport.base import HttpTransport
from qreward.transport.error_mapping import failure_from_body, failure_from_reply, failure_from_transport, shorten
from qreward.transport.httpx_transport import HttpxTransport
from qreward.transport.keyed import KeyedTransport
from qreward.transport.local import LocalTransport
from qreward.transport.redaction import Secrets, secrets_of

SHAREABLE = frozenset(
    {"weight", "price", "models", "probe", "refresh", "send_priority", "limits", "timeouts", "decisions", "decision_labels"}
)
"""Names of settings on which an endpoint's connections do not depend, apart from some members of ``limits`` and ``timeouts``."""
PASSING = frozenset({408, 425, 429})
"""Temporary HTTP statuses. Such a status does not show whether the endpoint's settings are correct."""


class EndpointConnection:
    """Holds what is made once for an endpoint: the transport, the names of the models, and the secrets."""

    __slots__ = (
        "_hidden", "_secrets", "endpoint", "in_flight", "info", "name", "renamed", "retired", "root", "takes_stream_options", "transport",
    )  # fmt: skip

    def __init__(self, endpoint: Endpoint, transport: Any = "aiohttp") -> None:
        self.endpoint = endpoint  # this reference keeps the object alive, so that no other object gets the same id
        self.name = endpoint.name
        self.renamed = endpoint.model_names
        self.transport = open_transport(endpoint, transport)
        self._secrets = secrets_of(endpoint)
        self._hidden: tuple[str, ...] = ()  # the keys that ``_secrets`` hides beside the settings
        self.takes_stream_options = True  # False after the server has rejected stream_options
        self.info: Load | None = None
        self.in_flight = 0
        self.retired = False
        root = server_root(endpoint.base_url)
        self.root = "" if root == endpoint.base_url else root  # precedes the paths outside ``/v1``

    @property
    def secrets(self) -> Secrets:
        """What errors must not show: the secrets of the settings, and the latest keys of an ``ApiKey``."""
        key = self.endpoint.api_key
        if isinstance(key, ApiKey) and self._hidden != key.known:
            self._secrets, self._hidden = secrets_of(self.endpoint), key.known
        return self._secrets

    async def aclose(self) -> None:
        await self.transport.aclose()

    def encoded(self, call: WireRequest, whole: WireRequest) -> tuple[bytes, Mapping[str, str] | None]:
        """Return the body and the additional headers of a request. Raises ``BadRequest``.

        ``whole`` is the request before it was bound to the endpoint: the scheduler sets its level when it is sent.
        """
        endpoint = self.endpoint
        body = call.codec.encode(call, self.renamed.get(call.model, call.model))
        if endpoint.send_priority:
            body = with_priority(body, whole)
        if call.headers is not None:
            connection_settings.check_call_headers(call.headers, call.model)
        return body, connection_settings.call_headers(endpoint, call)

    async def ask(self, call: WireRequest, path: str, native: bool, whole: WireRequest) -> Answer | Failure:
        """Send a request and return its outcome. A ``native`` path is outside ``/v1``. Raises ``TransportError`` and ``BadRequest``."""
        return self.outcome_of(await self.transport.post(self.root + path if native else path, *self.encoded(call, whole)), call)

    def outcome_of(self, reply: Reply, call: WireRequest) -> Answer | Failure:
        """Decode a reply. Returns an ``Answer``, or a ``Failure`` if the reply is an error or malformed."""
        if not 200 <= reply.status < 300:
            return self.failure_from_reply(reply, call)
        try:
            value = call.codec.decode(reply.body, call)
        except (Malformed, EmbeddedError, Unfinished) as error:
            return self.failure_from_body(error, reply, call)
        if isinstance(value, DecisionReply):
            for fault in value.table.errors.values():
                if isinstance(fault, RequestError):
                    fault.endpoint, fault.args = self.name, (f"endpoint {self.name!r}, model {fault.model!r}: {fault}",)
        usage, limits = value.usage, rate_limit_headers.read(reply.headers)
        if usage is None:
            return Answer(value, limits=limits)
        return Answer(value, usage.prompt_tokens, usage.completion_tokens, limits, usage.cached_tokens)

    def failure_from_reply(self, reply: Reply, call: WireRequest) -> Failure:
        secrets = self.secrets.and_headers(call.headers)
        return failure_from_reply(reply, self.name, call.model, secrets, keyless=self._is_keyless(call))

    def failure_from_body(self, error: Malformed | EmbeddedError | Unfinished, reply: Reply, call: WireRequest) -> Failure:
        secrets = self.secrets.and_headers(call.headers)
        return failure_from_body(error, reply, self.name, call.model, secrets, keyless=self._is_keyless(call))

    def _is_keyless(self, call: WireRequest) -> bool:
        endpoint = self.endpoint
        return endpoint.api_key is None and not endpoint.headers and not call.headers and endpoint.http_client is None

    async def probe(self) -> ProbeResult:
        """Probe the server. If no connection opens, it is not ready; after a timeout or a broken connection, that is unknown."""
        kind = kind_of(self.endpoint.kind)
        load, statuses = Load(), {}
        for path in kind.probe:
            try:
                reply = await self.get(path)
            except TransportError as error:
                self.info = None
                unreachable = not (error.sent or error.timeout or error.local)
                return ProbeResult(ready=False if unreachable else None)
            load = load.joined(read_load(path, reply.status, reply.body, kind.readers))
            statuses[path] = reply.status
            if load.ready is False:
                self.info = None
                break
        else:
            if kind.info is not None and self.info is None:
                try:
                    reply = await self.get(kind.info)
                    self.info = read_load(kind.info, reply.status, reply.body, kind.readers)
                except TransportError:  # the next probe tries again
                    pass
        items = None if self.info is None else self.info.limits.list_items
        trouble, limits = _trouble(kind.name, load, statuses), load.limits
        return ProbeResult(load.ready, load.running, load.waiting, limits.concurrency, items, limits.cache_tokens, trouble)

    async def get(self, path: str) -> Reply:
        """GET a path under the root of the server. With OpenAI's API, the list of models is fetched under ``base_url`` instead."""
        if path == MODELS and self.endpoint.kind in ("openai", BATCH_KIND):
            return await self.transport.get("/models")
        return await self.transport.get(self.root + path)


def open_transport(endpoint: Endpoint, transport: Any = "aiohttp") -> HttpTransport:
    """Return the transport for an endpoint: for its ``compute`` or ``http_client``, or else the client's ``transport``."""
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
        case BadRequest() if isinstance(call.codec, Decide):  # more questions or options than this server takes
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
    """Return the settings on which the connections of an endpoint depend."""
    timeouts = endpoint.timeouts
    rest = [getattr(endpoint, name) for name in Endpoint.model_fields if name not in SHAREABLE]
    threads = endpoint.limits.max_concurrency if endpoint.compute is not None else None
    return [timeouts.connect, timeouts.read, threads, *rest]


def _trouble(kind: str, load: Load, statuses: dict[str, int]) -> str | None:
    if not statuses:
        return f"a server of kind {kind!r} has no route for probes; leave probe out"
    if load != Load() or any(status < 300 or status >= 500 or status in PASSING for status in statuses.values()):
        return None
    answers = ", ".join(f"GET {path} was answered with {status}" for path, status in statuses.items())
    return f"{answers}; check that it is a server of kind {kind!r}, its base_url and its api_key, or leave probe out"
