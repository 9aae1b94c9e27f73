"""A look at a server: what it is asked by GET, and what its answers come to. What each of them means is in ``scoring.load``.

A look is short: readiness and load. ``asked`` takes one answer, for those that want to know more. Raises nothing but
``TransportError`` and cancellation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qreward.codecs.base import Reply, TransportError
from qreward.codecs.rewards.server_info import Load, read_load
from qreward.scheduler.outcome import ProbeResult

if TYPE_CHECKING:
    from qreward.transport.backend import EndpointConnection

MODELS = "/v1/models"
LOOKS: dict[str, tuple[str, ...]] = {
    "openai": (MODELS,),
    "vllm": ("/health", "/metrics"),
    "sglang": ("/health", "/v1/loads"),
    "tei": ("/health", "/metrics"),
    "openrlhf": (),
    "nim": ("/v1/health/ready",),
}
"""Kind -> what a look asks for: of ``PROBES`` what changes. OpenRLHF's server has nothing to ask for."""
INFO: dict[str, str] = {"tei": "/info"}
"""Kind -> what is asked for once, by the first look at a server and by the first after it was away: it changes with a restart only."""
PASSING = frozenset({408, 425, 429})
"""Statuses that say nothing of the settings."""
_TOLD = (b"vllm:num_requests_", b"vllm:kv_cache", b"vllm:gpu_cache", b"sglang:num_", b"sglang:token_usage", b"te_queue_size")


async def look(line: EndpointConnection) -> ProbeResult:
    """How a server stands. Nobody there is not ready; silence, or a line that breaks, says nothing."""
    load, kind, statuses = Load(), line.endpoint.kind, {}
    for path in LOOKS[kind]:
        try:
            reply = await asked(line, path)
        except TransportError as error:
            line.info = None
            nobody = not (error.sent or error.timeout or error.local)
            return ProbeResult(ready=False if nobody else None)
        load = load.joined(told(path, reply))
        statuses[path] = reply.status
        if load.ready is False:
            line.info = None
            break
    else:
        await _ask_info(line)
    items = None if line.info is None else line.info.limits.list_items
    return ProbeResult(load.ready, load.running, load.waiting, load.limits.concurrency, items, _trouble(kind, load, statuses))


def _trouble(kind: str, load: Load, statuses: dict[str, int]) -> str | None:
    """Why a server never says anything, if it looks so."""
    if not statuses:
        return f"a server of kind {kind!r} says nothing of itself; leave probe out"
    if load != Load() or any(status < 300 or status >= 500 or status in PASSING for status in statuses.values()):
        return None
    answers = ", ".join(f"GET {path} was answered with {status}" for path, status in statuses.items())
    return f"{answers}; check that it is a server of kind {kind!r}, its base_url and its api_key, or leave probe out"


async def _ask_info(line: EndpointConnection) -> None:
    path = INFO.get(line.endpoint.kind)
    if path is not None and line.info is None:
        try:
            line.info = told(path, await asked(line, path))
        except TransportError:  # asked again by the next look
            line.info = None


async def asked(line: EndpointConnection, path: str) -> Reply:
    """The answer to a GET, under the server's root; the list of models is the API's, wherever that is."""
    if path == MODELS and line.endpoint.kind == "openai":
        return await line.transport.get("/models")
    return await line.beside().get(path)


def told(path: str, reply: Reply) -> Load:
    """What an answer tells. Of the metrics only what is of use is read: a server's are some hundred kilobytes, read once a look."""
    body = b"\n".join(row for row in reply.body.split(b"\n") if row.startswith(_TOLD)) if path == "/metrics" else reply.body
    load = read_load(path, reply.status, body)
    if path == MODELS and (reply.status >= 500 or 200 <= reply.status < 300):  # of a server that has no route for it
        load = load.joined(Load(ready=reply.status < 300))
    return load
