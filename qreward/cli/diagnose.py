"""Examines one endpoint, and derives the problems of its configuration.

``examine`` sends GET requests to the status routes of all kinds of server and makes a TLS handshake. ``call`` sends one small model
request. API keys are sent as in normal requests, and are never shown. The handshake reads the TLS version and the expiry of the
certificate without verifying the certificate; verification is up to the transport.

``problems`` and ``notes`` turn the findings into sentences that say what to change. A problem makes calls fail; a note does not.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from time import perf_counter
from urllib.parse import urlsplit

import msgspec

from qreward.codecs.base import Reply, TransportError, WireRequest
from qreward.codecs.chat import CHAT
from qreward.codecs.rewards.registry import SCORE, kind_of
from qreward.codecs.rewards.server_info import MODELS, Load, read_load
from qreward.errors import ConfigError, QRewardError
from qreward.scheduler.outcome import Failure
from qreward.scheduler.routing import is_glob, matches
from qreward.settings.client import ClientConfig, without_effect
from qreward.settings.policies import Endpoint
from qreward.spelling import closest
from qreward.transport.backend import HttpBackend
from qreward.transport.base import HttpTransport
from qreward.transport.connection import EndpointConnection
from qreward.transport.connection_settings import proxy_of

_UTC_TIME = 0x17
_VERSION = 0xA0


class Tls(msgspec.Struct, frozen=True):
    """The result of a TLS handshake.

    Attributes:
        version: TLS version, such as ``TLSv1.3``.
        expires: expiry of the certificate; None if it cannot be read.
    """

    version: str
    expires: datetime | None

    def days(self, now: datetime) -> float | None:
        """Days until the certificate expires; negative after that; None if unknown."""
        return None if self.expires is None else (self.expires - now).total_seconds() / 86400


async def shake_hands(host: str, port: int) -> Tls | None:
    """Connect once, without verifying the certificate or sending a request; None if there is no TLS server."""
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=_unverified(), server_hostname=host)
    except (OSError, ValueError):  # ssl.SSLError is an OSError; an invalid host name raises ValueError
        return None
    try:
        line: ssl.SSLObject = writer.get_extra_info("ssl_object")
        return Tls(line.version() or "?", _expiry(line.getpeercert(binary_form=True)))
    finally:
        writer.transport.abort()


def expiry(certificate: bytes) -> datetime:
    """``notAfter`` of an X.509 certificate in DER (RFC 5280, section 4.1). Raises ``ValueError`` or ``IndexError`` for other data."""
    _, start, _ = _element(certificate, 0)
    _, at, _ = _element(certificate, start)
    if certificate[at] == _VERSION:
        at = _element(certificate, at)[2]
    for _ in ("serial number", "signature", "issuer"):
        at = _element(certificate, at)[2]
    _, begins, _ = _element(certificate, at)
    tag, start, end = _element(certificate, _element(certificate, begins)[2])
    text = certificate[start:end].decode("ascii")
    if tag == _UTC_TIME:  # has two-digit years
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """The tag of the element at an offset, and the start and end of its content."""
    tag, length, start = der[at], der[at + 1], at + 2
    if length >= 0x80:
        size = length & 0x7F
        length, start = int.from_bytes(der[start : start + size], "big"), start + size
    if start + length > len(der):
        raise ValueError("the certificate is cut off")
    return tag, start, start + length


def _expiry(certificate: bytes | None) -> datetime | None:
    try:
        return expiry(certificate or b"")
    except (ValueError, IndexError):
        return None


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


API_MODELS = "the list of models under base_url"
_NIM_READY = "/v1/health/ready"
BESIDE = ("/health", "/metrics", "/info", "/v1/loads", "/get_load", _NIM_READY)


class Examined(msgspec.Struct):
    """The findings of an examination.

    Attributes:
        statuses: requested path -> HTTP status of the response; paths without a response are missing.
        trouble: reason why there was no response, or a misconfigured scheme; else None.
        seconds: time of the fastest response.
        seems: kind of server that the responses indicate; None if unknown.
        load: readiness, load, limits and models, joined from all responses.
        listed: whether the server lists its models.
        tls: result of the TLS handshake; None without https, behind a proxy, or if the handshake failed.
    """

    statuses: dict[str, int] = {}
    trouble: str | None = None
    seconds: float | None = None
    seems: str | None = None
    load: Load = Load()
    listed: bool = False
    tls: Tls | None = None

    @property
    def reachable(self) -> bool:
        return bool(self.statuses)


async def examine(endpoint: Endpoint, seconds: float) -> Examined:
    """Send all GET requests and the handshake within ``seconds``; later responses are ignored. Raises only on cancellation."""
    try:
        line = EndpointConnection(endpoint)
    except ConfigError as error:
        return Examined(trouble=str(error))
    found = Examined()
    answers: dict[str, Reply] = {}
    try:
        async with asyncio.timeout(seconds):
            tls, _ = await asyncio.gather(_tls(endpoint), _ask_all(line, found, answers))
            found.tls = tls
            if endpoint.base_url.startswith("http://") and set(found.statuses.values()) <= {400} and await _speaks_tls(endpoint):
                found.trouble = "the server speaks TLS at this port; write base_url with https://"
    except TimeoutError:
        if not found.reachable:
            found.trouble = f"no answer within {seconds:g} s; check base_url, and that the server is up and not overloaded"
    finally:
        await line.aclose()
    _read(endpoint.kind, found, answers)
    return found


async def _ask_all(line: EndpointConnection, found: Examined, answers: dict[str, Reply]) -> None:
    """Send one request alone, so that an unreachable server gets a single one, and then all others concurrently."""
    first = (*kind_of(line.endpoint.kind).probe, "/health")[0]
    await _ask(line, first, found, answers)
    if found.trouble is None:
        lists = (MODELS,) if line.endpoint.base_url.endswith("/v1") else (API_MODELS, MODELS)
        await asyncio.gather(*(_ask(line, path, found, answers) for path in (*lists, *BESIDE) if path != first))


async def _ask(line: EndpointConnection, path: str, found: Examined, answers: dict[str, Reply]) -> None:
    transport: HttpTransport = line.transport if path == API_MODELS else line.root_transport()
    began = perf_counter()
    try:
        reply = await transport.get("/models" if path == API_MODELS else path)
    except TransportError as error:
        if not found.reachable:
            found.trouble = line.secrets.hide(str(error))
        return
    took = perf_counter() - began
    found.trouble, found.seconds = None, min(took, found.seconds or took)
    found.statuses[path], answers[path] = reply.status, reply


def _read(kind: str, found: Examined, answers: dict[str, Reply]) -> None:
    words, known = set(), kind_of(kind)
    for path, reply in answers.items():
        listing = path in (API_MODELS, MODELS)
        load = read_load(MODELS if listing else path, reply.status, reply.body, known.readers)
        if not listing and load.ready is not None and (load.ready or path in known.probe):  # a proxy may return 502 for an unknown path
            words.add(load.ready)
        found.load = found.load.joined(load)
        found.listed = found.listed or (listing and bool(load.models))
    found.load = msgspec.structs.replace(found.load, ready=min(words, default=None))
    found.seems = _seems(answers)


def _seems(answers: dict[str, Reply]) -> str | None:
    """The kind of server, by content that is unique to it. A status alone proves nothing: some servers return 200 for any path."""
    loads = {path: read_load(path, reply.status, reply.body) for path, reply in answers.items() if path != API_MODELS}
    metrics = b"\n" + answers["/metrics"].body if "/metrics" in answers else b""
    owners = b"".join(answers[path].body for path in (API_MODELS, MODELS) if path in answers).replace(b" ", b"")
    if ("/info" in loads and loads["/info"].limits.items is not None) or b"\nte_queue_size" in metrics:
        return "tei"
    if b"\nsglang:" in metrics or b'"owned_by":"sglang"' in owners or ("/v1/loads" in loads and loads["/v1/loads"].running is not None):
        return "sglang"
    if b"\nvllm:" in metrics or b'"owned_by":"vllm"' in owners:
        return "vllm"
    ready = answers.get(_NIM_READY)
    return "nim" if ready is not None and ready.status == 200 and not ready.body.lstrip().startswith(b"<") else None


async def _tls(endpoint: Endpoint) -> Tls | None:
    return await _handshake(endpoint) if endpoint.base_url.startswith("https://") else None


async def _speaks_tls(endpoint: Endpoint) -> bool:
    return await _handshake(endpoint) is not None


async def _handshake(endpoint: Endpoint) -> Tls | None:
    """A TLS handshake at the endpoint's port; None if there is no TLS server, or if the endpoint has a proxy."""
    parts = urlsplit(endpoint.base_url)
    if proxy_of(endpoint) is not None:
        return None
    return await shake_hands(parts.hostname or "", parts.port or 443)


async def call(endpoint: Endpoint, model: str, seconds: float) -> str | None:
    """Send one small model request; None on success, else the reason of the failure, without secrets."""
    scores = endpoint.reward is not None or not kind_of(endpoint.kind).chat
    asked = WireRequest(SCORE, model, [SCORE.item(("Say yes.", "yes"))], {}, None) if scores else _chat(model)
    wire = HttpBackend()
    try:
        async with asyncio.timeout(seconds):
            outcome = await wire.send(endpoint, asked)
        return str(outcome.error) if isinstance(outcome, Failure) else None
    except TimeoutError:
        return f"endpoint {endpoint.name!r}, model {model!r}: no answer within {seconds:g} s; give it more with --timeout"
    except QRewardError as error:
        return str(error)
    finally:
        await wire.aclose()


def _chat(model: str) -> WireRequest:
    return WireRequest(CHAT, model, CHAT.validate([{"role": "user", "content": "Say yes."}]), {"max_tokens": 1}, None)


NOT_ALIKE = ("vllm", "sglang", "tei", "openrlhf", "nim")
"""Kinds of server of which none looks like another. ``openai``, and a kind that a user has registered, may be any server's API."""
SOON = 14
"""Days before its expiry from which a certificate gets a note."""
SHOWN = 6
"""Most names that a message lists."""
GUARDED = (API_MODELS, MODELS, "/info", "/v1/loads")
"""Routes for which a server with authentication requires a key."""
ANY_NAME = "any"
_REMEDY = "change models or the route, or map names with model_names"


def patterns_of(endpoint: Endpoint, config: ClientConfig) -> list[str]:
    """The model patterns for which the endpoint is used: those of its routes and its own, exact names first."""
    routed = [route.pattern for route in config.routes if endpoint.name in route.endpoints]
    return sorted(dict.fromkeys((*routed, *endpoint.models)), key=is_glob)


def model_to_ask(endpoint: Endpoint, config: ClientConfig, told: Iterable[str]) -> str | None:
    """A model name for which the endpoint is used; None if none is known."""
    patterns = patterns_of(endpoint, config)
    known = [*(pattern for pattern in patterns if not is_glob(pattern)), *endpoint.model_names, *_called(endpoint.model_names, told)]
    named = next((name for name in known if any(matches(pattern, name) for pattern in patterns)), None)
    return named if named is not None or kind_of(endpoint.kind).lists_models else ANY_NAME


def auth_of(endpoint: Endpoint, found: Examined) -> str:
    """The state of authentication, in a word or two."""
    has_key = endpoint.api_key is not None or bool(endpoint.headers)
    seen = [found.statuses[path] for path in GUARDED if path in found.statuses]
    if refused := next((status for status in seen if status in (401, 403)), None):
        return f"refused ({refused})" if has_key else f"wanted ({refused})"
    if any(200 <= status < 300 for status in seen):
        return "accepted" if has_key else "not needed"
    return "?"


def problems(
    endpoint: Endpoint, config: ClientConfig, found: Examined, failed: str | None = None, *, answered: bool = False
) -> Iterator[str]:
    """The problems, most important first.

    Args:
        endpoint: the examined endpoint.
        config: the configuration that contains it.
        found: the findings.
        failed: reason for which the request of ``--call`` failed; None if it succeeded or was not sent.
        answered: whether the request of ``--call`` succeeded.
    """
    if found.trouble is not None:
        yield found.trouble
        return
    yield from _of_answers(endpoint, found, answered=answered)
    yield from _of_key(endpoint, found)
    yield from _of_kind(endpoint, found)
    yield from _of_models(endpoint, config, found)
    if (days := _days(found)) is not None and days < 0:
        yield f"its certificate has expired {-days:.0f} days ago; renew it"
    if failed is not None:
        yield f"a call failed: {failed}"


def notes(endpoint: Endpoint, config: ClientConfig, found: Examined) -> Iterator[str]:
    """The notes: findings that do not make calls fail."""
    if endpoint.kind == "openai" and found.seems is not None:
        yield f"it seems to be a server of kind {found.seems!r}; with kind: {found.seems} it can be asked for scores and for its load"
    lists = kind_of(endpoint.kind).lists_models
    if found.reachable and not found.listed and lists and auth_of(endpoint, found) in ("accepted", "not needed", "?"):
        yield "it does not list its models, so that their names could not be checked; see what a call says with --call"
    if endpoint.probe is not None and not kind_of(endpoint.kind).probe:
        yield f"probe has no effect: a server of kind {endpoint.kind!r} has nothing to ask for"
    if endpoint.base_url.startswith("https") and endpoint.verify is False:
        yield "its certificate is not verified; give verify the path of its CA bundle instead of false"
    if (days := _days(found)) is not None and 0 <= days < SOON:
        yield f"its certificate ends in {days:.0f} days; renew it"
    yield from (text for name, text in without_effect(config) if name == endpoint.name)


def _of_answers(endpoint: Endpoint, found: Examined, *, answered: bool) -> Iterator[str]:
    if found.load.ready is False:
        yield "it answers that it is not ready; wait until it has loaded its model, or look into its log"
    if moved := next((path for path, status in found.statuses.items() if 300 <= status < 400), None):
        yield f"it redirects ({found.statuses[moved]} for {_named(moved)}); redirects are not followed; set base_url to the final one"
    if answered:
        return
    if found.statuses.get(API_MODELS) == 404 and found.statuses.get(MODELS) == 200 and endpoint.reward is None:
        yield f"its API is one level below base_url; set base_url: {endpoint.base_url}/v1"
    elif set(found.statuses.values()) <= {404} and kind_of(endpoint.kind).probe:
        yield "it answers 404 to every request; check the host, the port and the path of base_url"


def _of_key(endpoint: Endpoint, found: Examined) -> Iterator[str]:
    auth = auth_of(endpoint, found)
    if auth.startswith("refused"):
        yield f"it rejects the key ({auth[9:-1]}); check api_key, or headers if it is sent there"
    if auth.startswith("wanted"):
        yield f"it requires a key ({auth[8:-1]}); set api_key, such as api_key: ${{JUDGE_KEY}}"


def _of_kind(endpoint: Endpoint, found: Examined) -> Iterator[str]:
    if found.seems not in (None, endpoint.kind) and endpoint.kind in NOT_ALIKE:
        yield f"it seems to be a server of kind {found.seems!r}, not {endpoint.kind!r}; set kind: {found.seems}"


def _of_models(endpoint: Endpoint, config: ClientConfig, found: Examined) -> Iterator[str]:
    told = found.load.models
    if not kind_of(endpoint.kind).lists_models or not found.listed:
        return
    renamed = endpoint.model_names
    for name, there in renamed.items():
        if there not in told:
            yield f"model_names maps {name!r} to {there!r}, but it serves {_served(there, told)}; correct model_names"
    for pattern in patterns_of(endpoint, config):
        if is_glob(pattern):
            if not any(matches(pattern, name) for name in _called(renamed, told)):
                yield f"it serves {_served(pattern, told)}, none of which matches {pattern!r}; {_REMEDY}"
        elif pattern not in renamed and pattern not in told:
            yield f"it does not serve {pattern!r}, but {_served(pattern, told)}; {_REMEDY}"


def _called(renamed: Mapping[str, str], told: Iterable[str]) -> list[str]:
    """The names under which callers request the models of the server, after ``model_names``."""
    there = list(told)
    return [*(name for name, target in renamed.items() if target in there), *(name for name in there if name not in renamed.values())]


def _served(name: str, told: tuple[str, ...]) -> str:
    """The names of the served models, most similar to ``name`` first."""
    names = list(dict.fromkeys((*closest(name, told, most=SHOWN), *told)))
    return ", ".join(map(repr, names[:SHOWN])) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _named(path: str) -> str:
    return "/models" if path == API_MODELS else path


def _days(found: Examined) -> float | None:
    return None if found.tls is None else found.tls.days(datetime.now(UTC))
