"""Parsers of responses in which servers report whether they are ready, their load and their limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import Malformed

MODELS = "/v1/models"
SLOTS = "/slots"
LIMITS = ("items", "concurrency", "input_tokens", "batch_tokens", "cache_tokens")


class Load(msgspec.Struct, frozen=True):
    """Holds the state and the limits that a server reports. A value that the server does not report is None."""

    ready: bool | None = None
    running: float | None = None
    waiting: float | None = None
    models: tuple[str, ...] = ()
    items: int | None = None
    concurrency: int | None = None
    input_tokens: int | None = None
    batch_tokens: int | None = None
    cache_tokens: int | None = None

    @property
    def list_items(self) -> int | None:
        """The maximum number of items in a list that the server accepts: the smaller one of ``items`` and ``concurrency``."""
        return self.items if self.items is None or self.concurrency is None else min(self.items, self.concurrency)

    @property
    def limits(self) -> dict[str, int]:
        return {name: value for name in LIMITS if (value := getattr(self, name)) is not None}

    def joined(self, other: Load) -> Load:
        later = {name: value for name, value in msgspec.structs.asdict(other).items() if value not in (None, ())}
        return msgspec.structs.replace(self, **later)


def read_load(path: str, status: int, body: bytes, readers: Mapping[str, Callable[[bytes], Load]] | None = None) -> Load:
    read = (readers or {}).get(path) or READERS.get(path)
    if read is None:
        return Load(ready=True if 200 <= status < 300 else False if status >= 500 else None)
    load = read(body) if 200 <= status < 300 else Load()
    if path == MODELS and (status >= 500 or 200 <= status < 300):  # servers that are probed at this path have no route for readiness
        load = load.joined(Load(ready=status < 300))
    return load


_METRICS = {
    **dict.fromkeys((b"vllm:num_requests_running", b"sglang:num_running_reqs"), "running"),
    **dict.fromkeys((b"vllm:num_requests_waiting", b"sglang:num_queue_reqs", b"te_queue_size"), "waiting"),
}
"""Name of a metric -> field of ``Load`` to which the samples of this metric are added."""
_CACHE = b"vllm:cache_config_info{"
"""Beginning of the lines whose labels are the settings of the prefix cache. A server has one such line for each of its engines."""
_NAMES = (*_METRICS, _CACHE)
_SIZES = re.compile(rb'[{,](block_size|num_gpu_blocks)="(\d{1,12})"')
_SAMPLE = re.compile(rb'([A-Za-z_:][\w:]*)(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?[ \t]+(\S+)')


def _of_metrics(body: bytes) -> Load:
    found: dict[str, float] = {}
    cached = 0
    for line in body.split(b"\n"):
        if not line.startswith(_NAMES):
            continue
        if line.startswith(_CACHE):
            sizes = dict(_SIZES.findall(line))
            cached += int(sizes.get(b"block_size", 0)) * int(sizes.get(b"num_gpu_blocks", 0))
        elif (match := _SAMPLE.match(line)) and (value := jsonio.finite(match[2])) is not None:
            count = _METRICS.get(match[1], "")
            found[count] = found.get(count, 0.0) + value
    return Load(running=found.get("running"), waiting=found.get("waiting"), cache_tokens=cached or None)


def _of_loads(body: bytes) -> Load:
    """Parse SGLang's ``/v1/loads``, which has one entry per replica, or the array that older versions send at ``/get_load``."""
    document = _document(body)
    rows = _rows(document.get("loads") if isinstance(document, dict) else document)
    running, waiting, both = (_sum(rows, name) for name in ("num_running_reqs", "num_waiting_reqs", "num_reqs"))
    if running is None and both is not None:  # the num_reqs of /get_load includes waiting requests
        running = max(0.0, both - (waiting or 0.0))
    most = _sum(rows, "max_running_requests")
    return Load(running=running, waiting=waiting, concurrency=int(most or 0) or None)


def _of_info(body: bytes) -> Load:
    document = _object(body)
    names = ("max_client_batch_size", "max_concurrent_requests", "max_input_length", "max_batch_tokens")
    items, concurrency, length, tokens = (int(_amount(document, name) or 0) or None for name in names)
    model = document.get("model_id")
    models = (model,) if isinstance(model, str) and model else ()
    return Load(models=models, items=items, concurrency=concurrency, input_tokens=length, batch_tokens=tokens)


def _of_models(body: bytes) -> Load:
    return Load(models=tuple(name for row in _rows(_object(body).get("data")) if isinstance(name := row.get("id"), str)))


def _of_slots(body: bytes) -> Load:
    """Parse the list of llama.cpp's slots."""
    slots = [row for row in _rows(_document(body)) if "is_processing" in row]
    sizes = [int(size) for row in slots if (size := _amount(row, "n_ctx"))]
    running = float(sum(row["is_processing"] is True for row in slots)) if slots else None
    return Load(running=running, concurrency=len(slots) or None, input_tokens=min(sizes, default=None))


READERS: dict[str, Callable[[bytes], Load]] = {
    "/metrics": _of_metrics,
    "/v1/loads": _of_loads,
    "/get_load": _of_loads,
    "/info": _of_info,
    MODELS: _of_models,
    SLOTS: _of_slots,
}


def _document(body: bytes) -> Any:
    try:
        return jsonio.read_leniently(body)
    except Malformed:
        return None


def _object(body: bytes) -> dict[str, Any]:
    document = _document(body)
    return document if isinstance(document, dict) else {}


def _rows(rows: object) -> list[dict[str, Any]]:
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _amount(document: dict[str, Any], name: str) -> float | None:
    raw = document.get(name)
    value = jsonio.finite(raw) if type(raw) in (int, float) else None
    return value if value is not None and value >= 0 else None


def _sum(rows: list[dict[str, Any]], name: str) -> float | None:
    known = [amount for row in rows if (amount := _amount(row, name)) is not None]
    return sum(known) if known else None
