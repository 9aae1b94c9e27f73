"""Parsers of what servers report about themselves: whether they are ready, their load and their limits. No I/O.

``read_load`` parses the response to one of ``PROBES``. Missing or invalid members are None, and nothing is raised. ``Load.joined`` combines
several responses. ``of_headers`` reads the headers of an ordinary response.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs import rate_limit_headers
from qreward.codecs.base import Malformed

PROBES: dict[str, tuple[str, ...]] = {
    "openai": ("/v1/models",),
    "vllm": ("/health", "/metrics", "/load", "/v1/models"),
    "sglang": ("/health", "/v1/loads", "/get_load", "/metrics", "/v1/models"),
    "tei": ("/health", "/info", "/metrics"),
    "openrlhf": (),
    "nim": ("/v1/health/ready", "/v1/models"),
}
"""Kind -> paths of GET requests, relative to the root of the server. Older versions of SGLang have ``/get_load``. ``/load`` of vLLM stays 0
unless the server was started with ``--enable-server-load-tracking``, and counts HTTP requests, while ``/metrics`` counts their items."""


class ServerLimits(msgspec.Struct, frozen=True):
    """The limits that a server reports; None for a limit it does not report.

    Attributes:
        items: items in one request.
        concurrency: requests in flight; for TEI, items in flight.
        input_tokens: tokens of one item.
        batch_tokens: tokens processed at once.
    """

    items: int | None = None
    concurrency: int | None = None
    input_tokens: int | None = None
    batch_tokens: int | None = None

    @property
    def list_items(self) -> int | None:
        """Largest number of items in a list that the server can accept.

        A server that limits ``items`` needs one unit of ``concurrency`` per item, so it rejects any list with more items than that.
        """
        if self.items is None or self.concurrency is None:
            return self.items
        return min(self.items, self.concurrency)


class Load(msgspec.Struct, frozen=True):
    """The state that a server reports; None for a value it does not report.

    Attributes:
        ready: whether it accepts requests.
        running: items in processing.
        waiting: items in its queue.
        used: share of its cache in use, 0 to 1.
        requests: HTTP requests in processing.
        queue_seconds: seconds that the request of this response waited in the server.
        compute_tokens: tokens that the request of this response used.
        models: names of its models.
        limits: its limits.
    """

    ready: bool | None = None
    running: float | None = None
    waiting: float | None = None
    used: float | None = None
    requests: float | None = None
    queue_seconds: float | None = None
    compute_tokens: int | None = None
    models: tuple[str, ...] = ()
    limits: ServerLimits = ServerLimits()

    def joined(self, other: Load) -> Load:
        """Return both combined. Values of ``other`` take precedence; values it does not report are kept."""
        limits = ServerLimits(*(_latest(self.limits, other.limits, name) for name in ServerLimits.__struct_fields__))
        told = {name: _latest(self, other, name) for name in Load.__struct_fields__}
        return Load(**{**told, "models": other.models or self.models, "limits": limits})


def read_load(path: str, status: int, body: bytes) -> Load:
    """Parse the response to a probe. Raises nothing. A missing health route (404) does not mean that the server is not ready.

    Example:
        >>> read_load("/load", 200, b'{"server_load": 3}').requests
        3.0
    """
    if path in _HEALTH:
        return Load(ready=True if 200 <= status < 300 else False if status >= 500 else None)
    read = _READERS.get(path)
    return read(body) if read is not None and 200 <= status < 300 else Load()


def of_headers(headers: Mapping[str, str]) -> Load:
    """Read the headers that TEI adds to each response: ``x-queue-time`` in milliseconds, and ``x-compute-tokens``."""
    queued, tokens = rate_limit_headers.number(headers.get("x-queue-time")), rate_limit_headers.number(headers.get("x-compute-tokens"))
    return Load(queue_seconds=None if queued is None else queued / 1000, compute_tokens=None if tokens is None else int(tokens))


def samples(text: str) -> dict[str, list[float]]:
    """Return the finite samples of a Prometheus text by name, without their labels.

    Example:
        >>> samples('# TYPE up gauge\\nup{a="1"} 1\\nup{a="2"} 0\\n')
        {'up': [1.0, 0.0]}
    """
    found: dict[str, list[float]] = {}
    for match in _SAMPLE.finditer(text):
        value = _finite(match[2])
        if value is not None:
            found.setdefault(match[1], []).append(value)
    return found


_SAMPLE = re.compile(r'^([A-Za-z_:][\w:]*)(?:\{(?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*\})?[ \t]+(\S+)', re.MULTILINE)
_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "te_queue_size")
_USED = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")


def _of_metrics(body: bytes) -> Load:
    found = samples(body.decode("utf-8", "replace"))

    def summed(names: tuple[str, ...]) -> float | None:
        return next((math.fsum(found[name]) for name in names if name in found), None)

    used = next((max(found[name]) for name in _USED if name in found), None)
    return Load(running=summed(_RUNNING), waiting=summed(_WAITING), used=used)


def _of_server_load(body: bytes) -> Load:
    return Load(requests=_amount(_document(body), "server_load"))


def _of_loads(body: bytes) -> Load:
    """Parse SGLang's ``/v1/loads``, or the array of ``/get_load``, with one entry per replica."""
    document = _document(body)
    rows = document.get("loads") if isinstance(document, dict) else document
    rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    if not rows and isinstance(document, dict):
        return Load(running=_amount(document, "load"))
    used = [share for row in rows if (share := _amount(row, "token_usage")) is not None]
    running = [_running(row) for row in rows]
    most = [_amount(row, "max_running_requests") for row in rows]
    return Load(
        running=_sum(running),
        waiting=_sum([_amount(row, "num_waiting_reqs") for row in rows]),
        used=max(used, default=None),
        limits=ServerLimits(concurrency=_count(_sum(most)) or None),
    )


def _running(row: dict[str, Any]) -> float | None:
    """Return the running requests of an entry. The ``num_reqs`` of ``/get_load`` includes waiting requests."""
    if (named := _amount(row, "num_running_reqs")) is not None:
        return named
    whole, waiting = _amount(row, "num_reqs"), _amount(row, "num_waiting_reqs")
    return None if whole is None else max(0.0, whole - (waiting or 0.0))


def _of_info(body: bytes) -> Load:
    document = _document(body)
    names = ("max_client_batch_size", "max_concurrent_requests", "max_input_length", "max_batch_tokens")
    model = document.get("model_id") if isinstance(document, dict) else None
    limits = ServerLimits(*(_count(_amount(document, name)) or None for name in names))
    return Load(models=(model,) if isinstance(model, str) and model else (), limits=limits)


def _of_models(body: bytes) -> Load:
    document = _document(body)
    rows = document.get("data") if isinstance(document, dict) else None
    names = [row.get("id") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return Load(models=tuple(name for name in names if isinstance(name, str)))


_HEALTH = frozenset({"/health", "/health_generate", "/ready", "/v1/health/ready", "/liveness"})
_READERS: dict[str, Callable[[bytes], Load]] = {
    "/metrics": _of_metrics,
    "/load": _of_server_load,
    "/v1/loads": _of_loads,
    "/get_load": _of_loads,
    "/info": _of_info,
    "/v1/models": _of_models,
}


def _document(body: bytes) -> Any:
    try:
        return jsonio.read_leniently(body)
    except Malformed:
        return None


def _amount(document: Any, name: str) -> float | None:
    """Return a member that is a finite, non-negative number, or None."""
    raw = document.get(name) if isinstance(document, dict) else None
    value = _finite(raw) if type(raw) in (int, float) else None
    return value if value is not None and value >= 0 else None


def _finite(raw: Any) -> float | None:
    try:
        value = float(raw)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def _sum(amounts: list[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


def _count(amount: float | None) -> int | None:
    return None if amount is None else int(amount)


def _latest(first: Any, then: Any, name: str) -> Any:
    told = getattr(then, name)
    return getattr(first, name) if told is None else told
