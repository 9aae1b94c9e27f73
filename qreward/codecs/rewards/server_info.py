"""What a server says of itself: whether it is ready, how much it has to do, what it takes at most. Parsers only, no I/O.

``read_load`` takes the answer to one of ``PROBES`` and gives what it tells; members that are missing or odd are None, and nothing is
raised. Several answers are put together by ``Load.joined``. An answer of an ordinary request tells something too: ``of_headers``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs import rate_limit_headers as hints
from qreward.codecs.base import Malformed

PROBES: dict[str, tuple[str, ...]] = {
    "openai": ("/v1/models",),
    "vllm": ("/health", "/metrics", "/load", "/v1/models"),
    "sglang": ("/health", "/v1/loads", "/get_load", "/metrics", "/v1/models"),
    "tei": ("/health", "/info", "/metrics"),
    "openrlhf": (),
    "nim": ("/v1/health/ready", "/v1/models"),
}
"""Kind -> what may be asked by GET, under the server's root. ``/get_load`` is the older SGLang's; ``/load`` of vLLM stays 0 unless it was
started with ``--enable-server-load-tracking``, and counts HTTP requests, where ``/metrics`` counts their elements."""


class ServerLimits(msgspec.Struct, frozen=True):
    """What a server takes at most; None where it does not say.

    Attributes:
        items: in one request.
        concurrency: at once. For TEI these are items, not requests.
        input_tokens: of one item.
        batch_tokens: that it works on at once.
    """

    items: int | None = None
    concurrency: int | None = None
    input_tokens: int | None = None
    batch_tokens: int | None = None

    @property
    def list_items(self) -> int | None:
        """Items of a list that the server can let in. Who limits lists has a place for each item: more items than places never go in."""
        if self.items is None or self.concurrency is None:
            return self.items
        return min(self.items, self.concurrency)


class Load(msgspec.Struct, frozen=True):
    """How a server stands; None where it does not say.

    Attributes:
        ready: it serves.
        running: elements that are being worked on.
        waiting: elements that wait for it.
        used: share of its cache that is in use, 0 to 1.
        requests: HTTP requests it is answering.
        queue_seconds: how long the request of this answer waited inside.
        compute_tokens: tokens the request of this answer took.
        models: their names.
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
        """Both together: what the other does not say stays."""
        limits = ServerLimits(*(_latest(self.limits, other.limits, name) for name in ServerLimits.__struct_fields__))
        told = {name: _latest(self, other, name) for name in Load.__struct_fields__}
        return Load(**{**told, "models": other.models or self.models, "limits": limits})


def read_load(path: str, status: int, body: bytes) -> Load:
    """What the answer to a probe tells. Raises nothing. A health route that is missing (404) says nothing of health.

    Example:
        >>> read_load("/load", 200, b'{"server_load": 3}').requests
        3.0
    """
    if path in _HEALTH:
        return Load(ready=True if 200 <= status < 300 else False if status >= 500 else None)
    read = _READERS.get(path)
    return read(body) if read is not None and 200 <= status < 300 else Load()


def of_headers(headers: Mapping[str, str]) -> Load:
    """What TEI adds to each answer: ``x-queue-time`` in milliseconds, and ``x-compute-tokens``."""
    queued, tokens = hints.number(headers.get("x-queue-time")), hints.number(headers.get("x-compute-tokens"))
    return Load(queue_seconds=None if queued is None else queued / 1000, compute_tokens=None if tokens is None else int(tokens))


def samples(text: str) -> dict[str, list[float]]:
    """Finite samples by name, out of Prometheus text; their labels are not kept.

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
    """SGLang's ``/v1/loads``, or the array of ``/get_load``: one entry a replica."""
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
    """``/get_load`` counts in ``num_reqs`` those that wait as well."""
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
    """A member that is a finite number, not negative."""
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
