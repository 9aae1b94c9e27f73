"""Validation of the arguments of clients and calls. Everything here runs before anything is sent."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sized
from functools import lru_cache, partial
from inspect import iscoroutinefunction
from math import isfinite
from typing import TYPE_CHECKING, Any, TypedDict

from qreward.codecs import json as jsonio
from qreward.codecs.base import Codec, WireRequest
from qreward.engine.snapshots import load_of
from qreward.errors import ConfigError
from qreward.progress import Progress, start_progress
from qreward.scheduler.pool import Pool
from qreward.scheduler.request import RequestOptions
from qreward.settings.policies import Endpoint, priority_level
from qreward.spelling import TYPO, closest
from qreward.transport import connection_settings

if TYPE_CHECKING:
    from qreward.telemetry import Telemetry

DEFAULT: Any = object()
"""Marks an argument that was not passed, where None has a meaning of its own: no timeout, or a missing response."""


class Watching(TypedDict, total=False):
    """Telemetry and observers of a client; see :class:`~qreward.client.QRewardClient`."""

    telemetry: Telemetry | None
    observers: Iterable[object]


OPTIONS = frozenset(
    {
        *("timeout", "deadline", "priority", "hedge", "tenant", "on_result", "progress", "keep_results"),
        *("on_interrupt", "on_stream_error", "max_concurrent_streams", "extra_headers", "extra_body"),
    }
)
"""The options of all calls. Each method takes some of them as arguments. None of them is sent to a server as a parameter."""
_OWN = frozenset({"model", "messages", "input"})


def preparer(
    codec: Codec,
    model: str,
    params: Mapping[str, Any],
    headers: Mapping[str, str] | None,
    body: Mapping[str, Any] | None,
) -> Callable[[Any], WireRequest]:
    """Return a function that makes a ``WireRequest`` of one item. What the items of a batch share is checked here, once.

    Raises:
        ConfigError: the model, the parameters, the headers or the body are invalid.
    """
    if not isinstance(model, str) or not model:
        raise ConfigError(f"model must be the name of a model, not {model!r}")
    if body is not None and not isinstance(body, Mapping):
        raise ConfigError(f"extra_body must be a mapping, not a {type(body).__name__}")
    if headers is not None and not isinstance(headers, Mapping):
        raise ConfigError(f"extra_headers must be a mapping, not a {type(headers).__name__}")
    check_params(params)
    merged = {**params, **body} if body else params
    if merged.get("stream"):
        raise ConfigError(
            "stream=True cannot be used in this call; for tokens as they come, call stream_chat_completion or batch_stream_chat_completion"
        )
    if not _OWN.isdisjoint(merged):
        name = min(_OWN & set(merged))
        raise ConfigError(f"{name!r} cannot be set in extra_body; pass it as the argument {name}=")
    for name, value in merged.items():
        jsonio.check(value, name)
    if headers is not None:
        connection_settings.check_call_headers(headers, model)
    validate = codec.validate
    return lambda inputs: WireRequest(codec, model, validate(inputs), merged, headers)


def check_params(params: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for a parameter that is an option of another call, or a misspelled option.

    It would go into the JSON body, where most servers ignore it. ``extra_body`` accepts any name.
    """
    for name in params:
        if fault := _fault_of(name):
            raise ConfigError(fault)


@lru_cache(maxsize=1024)  # comparing names is the slowest part of a call, and a program uses few names
def _fault_of(name: str) -> str | None:
    to_server = f"A parameter of the server with this name goes into extra_body={{{name!r}: ...}}"
    if name in OPTIONS:
        batches = "; only batches have a deadline, one call has timeout=" if name == "deadline" else ""
        return f"{name!r} is an option of other calls, not of this one{batches}. {to_server}"
    if near := closest(name, OPTIONS, cutoff=TYPO):
        return f"{name!r} is not an option of this call; did you mean {near[0]!r}? {to_server}"
    return "extra_query is not supported; put parameters of the server into extra_body" if name == "extra_query" else None


def items(name: str, given: object) -> Iterable[Any] | AsyncIterable[Any]:
    """Return the input of a batch: any iterable or async iterable except strings, bytes and mappings."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable | AsyncIterable):
        raise ConfigError(f"{name} must be a list, an iterator or an async iterator of items, not a {type(given).__name__}")
    return given


def callback(name: str, given: Callable[..., object] | None) -> Callable[..., object] | None:
    """Return a function that is called and not awaited, or None."""
    if given is not None and (not callable(given) or iscoroutinefunction(given)):
        raise ConfigError(f"{name} must be a plain function, not {given!r}")
    return given


def watching(telemetry: Any = DEFAULT, observers: Any = ()) -> tuple[Any, Any, list[object]]:
    """Return the telemetry or None, its watcher or None, and a list of the observers."""
    if isinstance(observers, str) or not isinstance(observers, Iterable):
        raise ConfigError(f"observers must be a list of observers, such as [MyObserver()], not {type(observers).__name__}")
    if telemetry is None:
        return None, None, list(observers)
    from qreward.telemetry.telemetry import Telemetry  # noqa: PLC0415 - OpenTelemetry takes a while to import

    found = Telemetry() if telemetry is DEFAULT else telemetry
    if not isinstance(found, Telemetry):
        raise ConfigError(f"telemetry must be a Telemetry, or None for none, not {type(found).__name__}")
    return found, found.watcher, list(observers)


def endpoints(given: object) -> tuple[Endpoint, ...]:
    """Return several endpoints, each from any form that :func:`endpoint` accepts."""
    if isinstance(given, str | Mapping | Endpoint) or not isinstance(given, Iterable):
        raise ConfigError("endpoints must be a list, such as [Endpoint('http://gpu-0:8000/v1')]")
    return tuple(map(endpoint, given))


def endpoint(given: Endpoint | Mapping[str, Any] | str) -> Endpoint:
    """Return an endpoint from an ``Endpoint``, a mapping of its settings, or its URL."""
    if isinstance(given, Endpoint):
        return given
    if isinstance(given, str):
        return Endpoint(given)
    if isinstance(given, Mapping):
        return Endpoint(**given)
    raise ConfigError(f"an endpoint must be an Endpoint, a mapping or a URL, not a {type(given).__name__}")


def seconds(name: str, value: float | None) -> float | None:
    """Return a positive number of seconds, or None for no limit."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value <= 0:
        raise ConfigError(f"{name} must be a positive number of seconds, or None for none, not {value!r}")
    return float(value)


def count(name: str, value: int) -> int:
    """Return a non-negative integer; 0 means no limit."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(f"{name} must be a whole number, 0 for no limit, not {value!r}")
    return value


def terms(timeout: float | None, priority: int | str, hedge: bool, tenant: str | None) -> RequestOptions:
    """Return the scheduling options of the requests of one call."""
    if not isinstance(hedge, bool):
        raise ConfigError(f"hedge must be True or False here, not {hedge!r}; how requests are hedged is set by the client's Hedge(...)")
    if tenant is not None and (not isinstance(tenant, str) or not tenant):
        raise ConfigError(f"tenant must be a name, or None, not {tenant!r}")
    return RequestOptions(level(priority), timeout, hedge, tenant)


def level(priority: int | str) -> int:
    """Return a priority as a number from 0 to 9. A name is that of a :class:`~qreward.settings.policies.Priority`."""
    try:
        return priority_level(priority)
    except ValueError as error:
        raise ConfigError(f"priority {error}") from None


def reporting(
    wanted: bool | Callable[[Progress], object] | None,
    pool: Pool,
    items: object,
    model: str,
    prices: Mapping[str, tuple[float, float]],
    clock: Callable[[], float],
) -> dict[str, Any]:
    """Return the ``progress`` and ``prices`` arguments of a batch.

    The prices are those of all endpoints, including endpoints added later. They are empty if no endpoint of the pool has a price.
    """
    total = len(items) if isinstance(items, Sized) else None
    told = prices if any(source.name in prices for source in pool.sources) else {}
    meter = start_progress(wanted, total, title=model, load=partial(load_of, pool), prices=told, clock=clock)
    return {"progress": meter, "prices": told}


def tokens_of(call: WireRequest) -> tuple[float, float]:
    """Return a rough estimate of the (prompt, maximum output) tokens of a call."""
    return call.codec.estimate_tokens(call)
