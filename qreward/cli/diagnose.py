"""A thorough look at one endpoint: everything that a server of any kind tells by GET, and one tiny request if that is wanted.

Says what was found, in facts; what is wrong with it others decide. Sends the endpoint's key as calls do, and shows none.

What a TLS server shows of itself, valid or not: the version it speaks, and how long its certificate lasts.

Whether the certificate is to be trusted is not decided here: the transport does that.

From what was found of an endpoint to what is wrong with its configuration: each problem a sentence that says what to change.

A problem is what makes calls fail. A note is worth knowing, and no more.
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
from qreward.codecs.rewards.registry import SCORE
from qreward.codecs.rewards.server_info import PROBES, Load
from qreward.errors import ConfigError, QRewardError
from qreward.scheduler.outcome import Failure
from qreward.scheduler.routing import is_glob, matches
from qreward.settings.client import ClientConfig, without_effect
from qreward.settings.policies import Endpoint
from qreward.spelling import closest
from qreward.transport.backend import EndpointConnection, HttpBackend
from qreward.transport.base import Transport
from qreward.transport.connection_settings import proxy_of
from qreward.transport.probes import MODELS, told

_UTC_TIME = 0x17
_VERSION = 0xA0


class Tls(msgspec.Struct, frozen=True):
    """One handshake.

    Attributes:
        version: such as ``TLSv1.3``.
        expires: when the certificate ends, or None if it cannot be read.
    """

    version: str
    expires: datetime | None

    def days(self, now: datetime) -> float | None:
        """Days that are left; negative once it has expired."""
        return None if self.expires is None else (self.expires - now).total_seconds() / 86400


async def shake_hands(host: str, port: int) -> Tls | None:
    """Connect once, verify nothing, send nothing; None if there is no TLS server."""
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=_unverified(), server_hostname=host)
    except (OSError, ValueError):  # ssl.SSLError is the first, a host that cannot be one the second
        return None
    try:
        line: ssl.SSLObject = writer.get_extra_info("ssl_object")
        return Tls(line.version() or "?", _expiry(line.getpeercert(binary_form=True)))
    finally:
        writer.transport.abort()


def expiry(certificate: bytes) -> datetime:
    """``notAfter`` of an X.509 certificate in DER (RFC 5280, section 4.1). Raises ``ValueError`` or ``IndexError`` for what is none."""
    _, start, _ = _element(certificate, 0)
    _, at, _ = _element(certificate, start)
    if certificate[at] == _VERSION:
        at = _element(certificate, at)[2]
    for _ in ("serial number", "signature", "issuer"):
        at = _element(certificate, at)[2]
    _, begins, _ = _element(certificate, at)
    tag, start, end = _element(certificate, _element(certificate, begins)[2])
    text = certificate[start:end].decode("ascii")
    if tag == _UTC_TIME:  # whose years have two digits
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Tag of the element that begins there, and where its content begins and ends."""
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
SCORES = ("tei", "openrlhf", "nim")
"""Kinds that are asked for a score, not for a chat."""


class Examined(msgspec.Struct):
    """What was found.

    Attributes:
        statuses: what was asked for -> HTTP status of the answer; what got none is missing.
        trouble: why nothing was answered, or None.
        seconds: the quickest answer.
        seems: the kind of server that it gives itself away as, or None.
        load: all that it tells.
        listed: it has a list of models.
        tls: of a handshake without a proxy.
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
    """Look at everything, in ``seconds`` at most; what has not come by then is left out. Raises nothing but cancellation."""
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
    """One question alone, so that a dead server is asked once, and then all others at once."""
    beside = PROBES[line.endpoint.kind] or ("/health",)
    first = beside[0]
    await _ask(line, first, found, answers)
    if found.trouble is None:
        lists = (MODELS,) if line.endpoint.base_url.endswith("/v1") else (API_MODELS, MODELS)
        await asyncio.gather(*(_ask(line, path, found, answers) for path in (*lists, *BESIDE) if path != first))


async def _ask(line: EndpointConnection, path: str, found: Examined, answers: dict[str, Reply]) -> None:
    transport: Transport = line.transport if path == API_MODELS else line.beside()
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
    words: set[bool] = set()
    for path, reply in answers.items():
        listing = path in (API_MODELS, MODELS)
        load = told(MODELS if listing else path, reply)
        if not listing and load.ready is not None and (load.ready or path in PROBES[kind]):  # a proxy answers 502 for what it does not know
            words.add(load.ready)
        found.load = found.load.joined(load)
        found.listed = found.listed or (listing and bool(load.models))
    found.load = msgspec.structs.replace(found.load, ready=min(words, default=None))
    found.seems = _seems(answers)


def _seems(answers: dict[str, Reply]) -> str | None:
    """By what only one kind of server says. A status alone shows nothing: some answer 200 to any path."""
    loads = {path: told(path, reply) for path, reply in answers.items() if path != API_MODELS}
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
    """A handshake at the endpoint's port; None if there is no TLS server, or it is behind a proxy."""
    parts = urlsplit(endpoint.base_url)
    if proxy_of(endpoint) is not None:
        return None
    return await shake_hands(parts.hostname or "", parts.port or 443)


async def call(endpoint: Endpoint, model: str, seconds: float) -> str | None:
    """Send one tiny request; None if it was answered, else why not, without secrets."""
    scores = endpoint.reward is not None or endpoint.kind in SCORES
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


SOON = 14
"""Days before its end from which a certificate is worth a note."""
SHOWN = 6
"""Names that are listed at most."""
GUARDED = (API_MODELS, MODELS, "/info", "/v1/loads")
"""What a server that wants a key asks one for."""
LISTS = ("openai", "vllm", "nim")
"""Kinds that refuse a model which is not in their list; the others serve the one that they have under any name."""
ANY_NAME = "any"
_REMEDY = "change models or the route, or map names with model_names"


def patterns_of(endpoint: Endpoint, config: ClientConfig) -> list[str]:
    """What callers may ask of it: the patterns of its routes, most telling first, and its own."""
    routed = [route.pattern for route in config.routes if endpoint.name in route.endpoints]
    return sorted(dict.fromkeys((*routed, *endpoint.models)), key=is_glob)


def model_to_ask(endpoint: Endpoint, config: ClientConfig, told: Iterable[str]) -> str | None:
    """A name that callers may give; None if none is known."""
    patterns = patterns_of(endpoint, config)
    known = [*(pattern for pattern in patterns if not is_glob(pattern)), *endpoint.model_names, *_called(endpoint.model_names, told)]
    named = next((name for name in known if any(matches(pattern, name) for pattern in patterns)), None)
    return named if named is not None or endpoint.kind in LISTS else ANY_NAME


def auth_of(endpoint: Endpoint, found: Examined) -> str:
    """Whether the key is taken, in a word or two."""
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
    """What is wrong, most important first. A call ``failed`` for that reason, or was ``answered``, if there was one."""
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
    """What is worth knowing."""
    if endpoint.kind == "openai" and found.seems is not None:
        yield f"it seems to be a server of kind {found.seems!r}; with kind: {found.seems} it can be asked for scores and for its load"
    if found.reachable and not found.listed and endpoint.kind in LISTS and auth_of(endpoint, found) in ("accepted", "not needed", "?"):
        yield "it does not list its models, so that their names could not be checked; see what a call says with --call"
    if endpoint.probe is not None and endpoint.kind == "openrlhf":
        yield "probe has no effect: a server of kind 'openrlhf' has nothing to ask for"
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
    elif set(found.statuses.values()) <= {404} and endpoint.kind != "openrlhf":
        yield "it answers 404 to every request; check the host, the port and the path of base_url"


def _of_key(endpoint: Endpoint, found: Examined) -> Iterator[str]:
    auth = auth_of(endpoint, found)
    if auth.startswith("refused"):
        yield f"it rejects the key ({auth[9:-1]}); check api_key, or headers if it is sent there"
    if auth.startswith("wanted"):
        yield f"it requires a key ({auth[8:-1]}); set api_key, such as api_key: ${{JUDGE_KEY}}"


def _of_kind(endpoint: Endpoint, found: Examined) -> Iterator[str]:
    if found.seems not in (None, endpoint.kind) and endpoint.kind != "openai":
        yield f"it seems to be a server of kind {found.seems!r}, not {endpoint.kind!r}; set kind: {found.seems}"


def _of_models(endpoint: Endpoint, config: ClientConfig, found: Examined) -> Iterator[str]:
    told = found.load.models
    if endpoint.kind not in LISTS or not found.listed:
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
    """What callers call the models that there are."""
    there = list(told)
    return [*(name for name, target in renamed.items() if target in there), *(name for name in there if name not in renamed.values())]


def _served(name: str, told: tuple[str, ...]) -> str:
    """What it serves, what is most like that name first."""
    names = list(dict.fromkeys((*closest(name, told, most=SHOWN), *told)))
    return ", ".join(map(repr, names[:SHOWN])) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _named(path: str) -> str:
    return "/models" if path == API_MODELS else path


def _days(found: Examined) -> float | None:
    return None if found.tls is None else found.tls.days(datetime.now(UTC))
