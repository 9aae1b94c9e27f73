"""Probes of a server: the GET requests of each kind of server, and the result of their responses.

A probe fetches only readiness and load. ``asked`` fetches any single path, for callers that need more. The responses are parsed by
``qreward.codecs.rewards.server_info``. Only ``TransportError`` and cancellation are raised.
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
"""Kind of server -> paths of a probe: the paths of ``PROBES`` whose responses change. OpenRLHF's server has no such path."""
INFO: dict[str, str] = {"tei": "/info"}
"""Kind of server -> path whose response changes only at a restart. It is fetched by the first probe, and again after an outage."""
PASSING = frozenset({408, 425, 429})
"""Temporary statuses, which say nothing about the endpoint's settings."""
_TOLD = (b"vllm:num_requests_", b"vllm:kv_cache", b"vllm:gpu_cache", b"sglang:num_", b"sglang:token_usage", b"te_queue_size")


async def look(line: EndpointConnection) -> ProbeResult:
    """Probe a server. It is not ready if no connection can be opened; a timeout or a broken connection leaves readiness unknown."""
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
    """Return why probes of this server apparently never work, or None."""
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
        except TransportError:  # the next probe tries again
            line.info = None


async def asked(line: EndpointConnection, path: str) -> Reply:
    """GET a path under the server's root. For kind ``openai``, the list of models is fetched under the endpoint's ``base_url`` instead."""
    if path == MODELS and line.endpoint.kind == "openai":
        return await line.transport.get("/models")
    return await line.beside().get(path)


def told(path: str, reply: Reply) -> Load:
    """Parse a response. Only the used lines of ``/metrics`` are parsed, because it may have several hundred kilobytes in each probe."""
    body = b"\n".join(row for row in reply.body.split(b"\n") if row.startswith(_TOLD)) if path == "/metrics" else reply.body
    load = read_load(path, reply.status, body)
    if path == MODELS and (reply.status >= 500 or 200 <= reply.status < 300):  # the server has no route for readiness
        load = load.joined(Load(ready=reply.status < 300))
    return load
