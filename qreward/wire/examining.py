"""A thorough look at one endpoint: everything that a server of any kind tells by GET, and one tiny request if that is wanted.

Says what was found, in facts; what is wrong with it others decide. Sends the endpoint's key as calls do, and shows none.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from urllib.parse import urlsplit

import msgspec

from qreward.core.outcome import Failure
from qreward.errors import ConfigError, QRewardError
from qreward.policies import Endpoint
from qreward.wire.address import proxy_of
from qreward.wire.base import Call, Reply, Transport, TransportError
from qreward.wire.certificates import Tls, shake_hands
from qreward.wire.chat import CHAT
from qreward.wire.probes import MODELS, told
from qreward.wire.rewards.dialects import SCORE
from qreward.wire.rewards.load import PROBES, Load
from qreward.wire.sender import Line, Wire

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
        line = Line(endpoint)
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


async def _ask_all(line: Line, found: Examined, answers: dict[str, Reply]) -> None:
    """One question alone, so that a dead server is asked once, and then all others at once."""
    beside = PROBES[line.endpoint.kind] or ("/health",)
    first = beside[0]
    await _ask(line, first, found, answers)
    if found.trouble is None:
        lists = (MODELS,) if line.endpoint.base_url.endswith("/v1") else (API_MODELS, MODELS)
        await asyncio.gather(*(_ask(line, path, found, answers) for path in (*lists, *BESIDE) if path != first))


async def _ask(line: Line, path: str, found: Examined, answers: dict[str, Reply]) -> None:
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
    asked = Call(SCORE, model, [SCORE.item(("Say yes.", "yes"))], {}, None) if scores else _chat(model)
    wire = Wire()
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


def _chat(model: str) -> Call:
    return Call(CHAT, model, CHAT.validate([{"role": "user", "content": "Say yes."}]), {"max_tokens": 1}, None)
