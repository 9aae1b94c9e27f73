"""``schedule`` of QReward 0.1.7 and the classes around it. They translate old parameters and then use ``qreward.schedule``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import inf
from threading import Event, RLock
from time import monotonic
from typing import Any

from opentelemetry import trace

from qreward.compat import PAGE
from qreward.errors import CircuitOpen, ConfigError
from qreward.functions.config import FunctionOptions, ScheduleConfig
from qreward.functions.function import ScheduleMetrics, decorate
from qreward.functions.watcher import ConfigWatcher
from qreward.settings.policies import Priority
from qreward.telemetry import TelemetryExporter

PARAMETERS = (
    "timeout", "hedged_request_time", "hedged_request_proportion", "hedged_request_max_times", "speed_up_max_multiply", "retry_times",
    "retry_interval", "limit_size", "limit_window", "key_func", "exception_types", "default_result", "debug", "metrics_callback",
    "circuit_breaker_threshold", "circuit_breaker_recovery", "adaptive_limit", "adaptive_limit_min", "adaptive_limit_max",
    "adaptive_error_threshold", "adaptive_latency_threshold", "adaptive_window_seconds", "priority", "telemetry_exporter",
)  # fmt: skip
"""The parameters of ``schedule`` in 0.1.7, in their order."""

_ZERO_MEANT = {  # parameter -> what its 0 did in 0.1.7, as a value of today
    "timeout": None,
    "hedged_request_time": None,
    "limit_size": None,
    "circuit_breaker_threshold": None,
    "circuit_breaker_recovery": 1e-6,  # the next call is let through
    "adaptive_limit_min": 1,
    "speed_up_max_multiply": 1,
}
_OLD_DEFAULTS = {  # parameter -> its default in 0.1.7, if that has changed, and the parameter without which it has no effect
    "hedged_request_max_times": (2, "hedged_request_time"),
    "speed_up_max_multiply": (5, "retry_times"),
    "adaptive_latency_threshold": (5.0, "adaptive_limit"),
}


def new_settings(old: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of ``qreward.ScheduleConfig`` that correspond to settings of 0.1.7."""
    new = {name: value for name, value in old.items() if name != "adaptive_window_seconds"}
    new |= {name: meaning for name, meaning in _ZERO_MEANT.items() if _is_zero(new.get(name))}
    if "exception_types" in new:
        types = _types(new["exception_types"])
        named = tuple(kind for kind in types if not isinstance(kind, type) or issubclass(kind, Exception))
        new["exception_types"] = Exception if Exception in types or BaseException in types else named or Exception
    return new


def _is_zero(value: Any) -> bool:
    """Return True also for a text, as in the environment."""
    try:
        return float(value) == 0
    except (TypeError, ValueError, OverflowError):
        return False


def _types(types: Any) -> tuple[Any, ...]:
    return types if isinstance(types, tuple) else (BaseException if types is None else types,)


def schedule(*args: Any, **settings: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator with the parameters of 0.1.7. The warning contains the equivalent decorator with the parameters of today."""
    if len(args) > len(PARAMETERS):
        raise ConfigError(f"schedule() takes at most {len(PARAMETERS)} settings, not {len(args)}; {PAGE}")
    given = {**dict(zip(PARAMETERS, args, strict=False)), **settings}
    old = {**given, "adaptive_limit": bool(given.get("adaptive_limit") and given.get("limit_size"))}
    for name, (value, needed) in _OLD_DEFAULTS.items():
        if old.get(needed):
            old.setdefault(name, value)
    if old.get("retry_times"):
        old["retry_max_interval"] = old.get("retry_interval", 1) or 60.0  # in 0.1.7 the wait did not grow
    config = ScheduleConfig(**new_settings(old))
    form = repr(config).removeprefix("ScheduleConfig")
    ignored = "; adaptive_window_seconds has no effect any more" if "adaptive_window_seconds" in given else ""
    text = f"qreward.utils.schedule is deprecated: write from qreward import schedule, and @schedule{form}{ignored}; {PAGE}"
    warnings.warn(text, DeprecationWarning, stacklevel=2)
    receive = config.metrics_callback
    if receive is not None:
        config = ScheduleConfig(**{**config.snapshot(), "metrics_callback": lambda metrics: receive(OldScheduleMetrics.of(metrics))})
    return partial(decorate, config=config, options_of=partial(OldOptions, _types(given.get("exception_types"))))


class OldOptions(FunctionOptions):
    """The options of a function of 0.1.7. It also retries exceptions that are not an ``Exception``, and has the default of other errors."""

    def __init__(self, types: tuple[type[BaseException], ...], config: ScheduleConfig) -> None:
        super().__init__(config)
        self.exception_types = types

    def default_for(self, error: BaseException, *, covered: bool) -> Any:
        return super().default_for(error, covered=not isinstance(error, CircuitOpen) and (covered or isinstance(error, Exception)))


@dataclass
class OldScheduleMetrics:
    """The metrics of 0.1.7 for one finished call. A try that was cancelled because another try succeeded counts as failed."""

    total_calls: int
    success_count: int
    failure_count: int
    retry_count: int
    total_latency_ms: float
    avg_latency_ms: float

    def export_to_otel(self, exporter: Any = None) -> None:
        if exporter is not None:
            exporter.record(self)

    @classmethod
    def of(cls, metrics: ScheduleMetrics) -> OldScheduleMetrics:
        milliseconds = metrics.latency * 1000
        failures = metrics.tries - metrics.ok
        return cls(metrics.tries, int(metrics.ok), failures, metrics.retries, milliseconds, milliseconds / max(metrics.tries, 1))


class OldScheduleConfig(ScheduleConfig):
    """A configuration in which 0 switches a setting off, as in 0.1.7. The value of such a setting is then None."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**new_settings(settings))

    def on_change(self, callback: Callable[[Any], object]) -> Callable[[], object]:  # type: ignore[override]
        return super().on_change(lambda config, _: callback(config))

    @property
    def hedged_request_multiply(self) -> float:
        """Calls per hedge, minus 1; 0 without hedges."""
        return 1 / self.hedged_request_proportion - 1 if self.hedged_request_time else 0

    def adjust_wait_time(self, basic_wait_time: float, has_wait_time: float, max_wait_time: float) -> float:
        """Return the seconds to wait: ``basic_wait_time``, or less, if ``max_wait_time`` (0: no limit) allows less."""
        wait = 0.01 if basic_wait_time < 0 else basic_wait_time
        left = max_wait_time - has_wait_time if max_wait_time > 0 else inf
        return 0.01 if left < 0 else min(wait, left)

    def get_max_wait_time(self, basic_wait_time: float, has_wait_time: float, max_wait_time: float) -> float:
        warnings.warn("get_max_wait_time is deprecated, use adjust_wait_time instead", DeprecationWarning, stacklevel=2)
        return self.adjust_wait_time(basic_wait_time, has_wait_time, max_wait_time)


def _environment() -> dict[str, str]:
    found = {name: os.environ.get(f"QREWARD_SCHEDULE_{name.upper()}") for name in ScheduleConfig.model_fields}
    return {name: value for name, value in found.items() if value}


class OldConfigWatcher(ConfigWatcher):
    """A watcher with the parameters of 0.1.7. ``cooldown`` is the minimum number of seconds between two changes."""

    def __init__(
        self,
        config: Any,
        source: str = "callback",
        file_path: str | None = None,
        callback: Callable[[], dict[str, Any]] | None = None,
        poll_interval: float = 5.0,
        cooldown: float = 5.0,
    ) -> None:
        if source not in ("file", "env", "callback"):
            raise ConfigError(f"source must be 'file', 'env' or 'callback', not {source!r}")
        ask = {"file": None, "env": _environment, "callback": callback}[source]
        super().__init__(config, file=file_path if source == "file" else None, callback=ask, poll_interval=poll_interval)
        self._in_code = {}  # a parameter that the source no longer sets keeps its value
        self._cooldown, self._changed_at = cooldown, -inf

    def _check(self, stopping: Event | None) -> bool:
        if monotonic() - self._changed_at < self._cooldown:
            return False
        changed = super()._check(stopping)
        if changed:
            self._changed_at = monotonic()
        return changed

    @property
    def is_running(self) -> bool:
        return self.running


class OldTelemetryExporter(TelemetryExporter):
    """An exporter with the span methods of 0.1.7. It records calls in the metrics of today, such as ``qreward.schedule.duration``."""

    def __init__(self, meter_name: str = "", tracer_name: str = "qreward.scheduler") -> None:  # noqa: ARG002 - metrics have one scope now
        super().__init__()
        self._tracer = trace.get_tracer(tracer_name)
        self._enabled = self.is_available()

    @classmethod
    def is_available(cls) -> bool:
        return os.environ.get("QREWARD_OTEL_ENABLED", "true").lower() not in ("false", "0", "no", "off")

    def export(self, metrics: ScheduleMetrics) -> None:
        if self._enabled:
            super().export(metrics)

    def record(self, *_: object) -> None:
        if self._enabled:
            raise ConfigError(f"TelemetryExporter.record() was dropped: @schedule(telemetry_exporter=...) records every call; {PAGE}")

    def start_span(self, name: str, attributes: dict[str, Any] | None = None) -> trace.Span:
        return self._tracer.start_span(name, attributes=attributes) if self._enabled else trace.INVALID_SPAN

    def end_span(self, span: trace.Span, metrics: OldScheduleMetrics) -> None:
        if not self._enabled:
            return
        for name in ("total_calls", "success_count", "failure_count", "retry_count", "total_latency_ms"):
            span.set_attribute(f"qreward.{name}", getattr(metrics, name))
        span.end()


class PriorityTaskQueue:
    """A queue that is ordered by priority, lowest number first. An item that has waited for the threshold has the priority 0.

    Any thread may use it.
    """

    def __init__(self, starvation_threshold: float = 60.0) -> None:
        if starvation_threshold < 0:
            raise ConfigError("starvation_threshold must be >= 0")
        self._threshold = starvation_threshold or inf
        self._numbers = count()
        self._waiting: dict[int, tuple[int, float, Any]] = {}
        self._lock = RLock()

    def put(self, item: Any, priority: int = Priority.NORMAL) -> None:
        if not 0 <= priority <= 9:
            raise ConfigError(f"priority must be in [0, 9], got {priority}")
        with self._lock:
            self._waiting[next(self._numbers)] = (priority, monotonic(), item)

    def _ranks(self) -> list[tuple[int, int, float]]:
        """Return for each waiting item its priority now, its number, and the seconds it has waited. The smallest is next."""
        now = monotonic()
        ages = [(level, number, now - since) for number, (level, since, _) in self._waiting.items()]
        return [(0 if age >= self._threshold else level, number, age) for level, number, age in ages]

    def get(self) -> Any:
        """Remove and return the first item; None if the queue is empty."""
        with self._lock:
            return self._waiting.pop(min(self._ranks())[1])[2] if self._waiting else None

    def peek(self) -> Any:
        with self._lock:
            return self._waiting[min(self._ranks())[1]][2] if self._waiting else None

    @property
    def queue_size(self) -> int:
        return len(self._waiting)

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def clear(self) -> None:
        with self._lock:
            self._waiting.clear()

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the waiting items in their order, without the items themselves. ``wait_seconds`` is how long an item has waited."""
        with self._lock:
            ranks = sorted(self._ranks())
        return [{"priority": rank, "sequence": number, "wait_seconds": round(age, 3), "cancelled": False} for rank, number, age in ranks]
