"""``ScheduleConfig``: the parameters of ``@schedule``, their validation, and their changes while the function is in use."""

from __future__ import annotations

import copy
import logging
import re
import threading
from collections.abc import Callable, Hashable, Iterator
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainValidator, PrivateAttr, TypeAdapter, field_validator, model_validator

from qreward.callables import NOT_GIVEN, Code, FunctionKind, kind_of
from qreward.engine import background
from qreward.settings import files
from qreward.settings.base import Count, Many, NotNegative, Policy, Portion, Seconds, default, with_faults
from qreward.settings.policies import Level, Priority

_PERCENTILE = re.compile(r"p([0-9]+(?:\.[0-9]+)?)")
_above_zero = TypeAdapter(Seconds).validate_python


def check_exceptions(value: object) -> object:
    """Return the value if it is an exception class, a tuple of exception classes, or a function of the exception; else raise an error."""
    if not isinstance(value, type | tuple):
        if not callable(value):
            raise ValueError("must be an exception class, a tuple of such classes, or a function of the exception; it is set in code")
        return check_plain(value)
    if value == ():
        raise ValueError("is an empty tuple, so no exception would be a failure; name at least one class, or leave it out")
    for kind in value if isinstance(value, tuple) else (value,):
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise ValueError("must name exception classes, such as (ConnectionError, TimeoutError)")
        if not issubclass(kind, Exception):
            raise ValueError(f"{kind.__name__} cannot be retried: it ends tasks and programs; use Exception, or subclasses of it")
    return value


def check_plain(value: Any) -> Any:
    if value is not None and kind_of(value) is not FunctionKind.THREADED:
        raise ValueError("must be a plain function, not async: it is called and not awaited")
    return value


def check_hedge_time(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, str) and (found := _PERCENTILE.fullmatch(value)):
        if not 0 < float(found[1]) / 100 < 1:
            raise ValueError("a percentile must be above p0 and below p100, such as 'p95'")
        return value
    try:
        return _above_zero(value)
    except ValueError:
        raise ValueError("must be a positive number of seconds, a percentile such as 'p95', or None") from None


def _none_is_off(value: object) -> object:
    if isinstance(value, int | float | str) and value in (0, "0"):
        raise ValueError("0 does not switch it off; use None to switch it off")
    return value


_NOT_ZERO = BeforeValidator(_none_is_off)


def check_exporter(value: Any) -> Any:
    if value is not None and not callable(getattr(value, "export", None)):
        raise ValueError("must be an object with a method export(metrics), or None")
    return value


Failures = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool | float]

logger = logging.getLogger("qreward.schedule")

_changing = threading.RLock()  # held while a configuration is changed


def _replace_lock(_: object) -> object:
    """Replace the lock in a forked child, where the thread that held it may not exist."""
    global _changing
    inherited, _changing = _changing, threading.RLock()
    return inherited


read_settings = partial(files.read_settings, empty="write {} if nothing is to be set")
"""Reads settings from a file, and their location. An empty file is an error, because it may be in the middle of being written."""

FIXED = frozenset({"key_func", "pool"})
"""Parameters that cannot be changed while the function is in use, because calls already wait in the pool, and each key already has
counters."""


class ScheduleConfig(Policy):
    """The configuration of a function: the parameters of ``@schedule``, and the type of ``function.config``.

    A *try* is one run of the function. ``None`` switches a feature off. A parameter marked "with x" has no effect while the parameter x is
    off. Configurations can change, so they are not hashable. Copies and pickles do not contain the ``on_change`` callbacks.

    Args:
        timeout: maximum number of seconds for a whole call, including waiting, retries and hedges.
        retry_times: maximum number of retries of one call.
        retry_interval: maximum number of seconds before the first retry. The maximum doubles with each retry. Each wait is random between 0
            and the maximum ("full jitter": Brooker, "Exponential Backoff And Jitter", AWS 2015). With 0, retries do not wait.
        retry_max_interval: maximum number of seconds before any retry.
        exception_types: which exceptions are retried and count as failures: a class, a tuple of classes, or a function of the exception
            that returns True, False, or the seconds to wait before the retry. An exception that is not an ``Exception``
            (``CancelledError``, ``KeyboardInterrupt``) is never retried and never counts.
        limit_size: rate limit: maximum number of tries per key that begin in any ``limit_window`` seconds.
        limit_window: length of the window in seconds; with ``limit_size``.
        key_func: function that receives the arguments of a call and returns the key of the call. Each key has its own rate limit and
            circuit breaker. With None, all calls share one rate limit and one circuit breaker. Errors show a key only if it is a
            number or a short word, because it may be an API key. ``key_func`` cannot be changed.
        max_concurrency: maximum number of tries running at once.
        hedged_request_time: seconds after which a hedge (a second try) is started while the first try still runs (Dean and Barroso, "The
            Tail at Scale", CACM 2013). A percentile such as ``"p95"`` is computed from the times of the function's own tries.
        hedged_request_max_times: maximum number of hedges per call; with ``hedged_request_time``.
        hedged_request_proportion: maximum number of hedges of all calls divided by the number of calls, above 0 and up to 1; with
            ``hedged_request_time``.
        speed_up_max_multiply: maximum number of tries of one call that run at once after a failure; with ``retry_times``.
        default_result: a value that is returned instead of an exception, or a function of the call's arguments that returns this value.
            The first replaced exception of each class is logged as a warning. If it is not given, the exception is raised.
        circuit_breaker_threshold: number of consecutive failures after which calls are rejected with ``CircuitOpen``.
        circuit_breaker_recovery: seconds for which calls are rejected. After this time, one call is let through; with
            ``circuit_breaker_threshold``.
        adaptive_limit: True adapts a limit to the results of the tries. The adapted limit is the rate limit if ``limit_size`` is set, and
            otherwise the concurrency limit.
        adaptive_limit_min: lower bound of the adaptive limit, in tries; with ``adaptive_limit``.
        adaptive_limit_max: upper bound of the adaptive limit, in tries; with ``adaptive_limit``.
        adaptive_error_threshold: share (0 to 1) of failed tries above which the limit is lowered; with ``adaptive_limit``.
        adaptive_latency_threshold: mean seconds of a try above which the limit is lowered; with ``adaptive_limit``.
        priority: 0 (most urgent) to 9, a :class:`~qreward.settings.policies.Priority`, or the name of a priority.
        pool: name of a pool. Functions with the same pool share ``max_concurrency`` (the lowest applies) and the adaptive limit. The pool
            cannot be changed.
        metrics_callback: function that is called with a ``ScheduleMetrics`` for each finished call.
        telemetry_exporter: an object with a method ``export(metrics)``.
        debug: True logs each decision about a call.

    Raises:
        ConfigError: a setting is unknown or invalid. The message names the setting and says what to write. It never contains the text of a
            value, because the value may be an API key.

    Example:
        >>> config = ScheduleConfig(timeout=30, retry_times=2, hedged_request_time="p95")
        >>> sorted(config.update(timeout=None, retry_times=3))
        ['retry_times', 'timeout']
        >>> config
        ScheduleConfig(retry_times=3, hedged_request_time='p95')
    """

    timeout: Annotated[Seconds | None, _NOT_ZERO] = None
    retry_times: Many = 0
    retry_interval: NotNegative = 1.0
    retry_max_interval: Seconds = 60.0
    exception_types: Annotated[Failures, PlainValidator(check_exceptions)] = Exception
    limit_size: Annotated[Count | None, _NOT_ZERO] = None
    limit_window: Seconds = 1.0
    key_func: Annotated[Callable[..., Hashable] | None, PlainValidator(check_plain)] = None
    max_concurrency: Annotated[Count | None, _NOT_ZERO] = None
    hedged_request_time: Annotated[float | str | None, PlainValidator(check_hedge_time), _NOT_ZERO] = None
    hedged_request_max_times: Count = 1
    hedged_request_proportion: Portion = 0.05
    speed_up_max_multiply: Count = 1
    default_result: Any = NOT_GIVEN
    circuit_breaker_threshold: Annotated[Count | None, _NOT_ZERO] = None
    circuit_breaker_recovery: Seconds = 30.0
    adaptive_limit: bool = False
    adaptive_limit_min: Count = 10
    adaptive_limit_max: Count = 500
    adaptive_error_threshold: Portion = 0.3
    adaptive_latency_threshold: Annotated[Seconds | None, _NOT_ZERO] = None
    priority: Annotated[Level, AfterValidator(lambda level: Priority(level) if level in list(Priority) else level)] = default(
        Priority.NORMAL
    )
    pool: str | None = None
    metrics_callback: Annotated[Callable[..., object] | None, AfterValidator(check_plain)] = None
    telemetry_exporter: Annotated[Any, PlainValidator(check_exporter)] = None
    debug: bool = False

    _callbacks: dict[object, Callable[[Any, frozenset[str]], object]] = PrivateAttr(default_factory=dict)
    __hash__ = None  # type: ignore[assignment] # its values can change

    @field_validator("pool")
    @classmethod
    def _readable_name(cls, value: str | None) -> str | None:
        if value is not None and (not value or value != value.strip() or not value.isprintable()):
            raise ValueError("must be a name without leading or trailing blanks; None gives the function a pool of its own")
        return value

    @model_validator(mode="after")
    def _limits_in_order(self) -> ScheduleConfig:
        if self.adaptive_limit_min > self.adaptive_limit_max:
            raise ValueError("adaptive_limit_min is larger than adaptive_limit_max; set both at once if both are to change")
        return self

    @classmethod
    def from_file(cls, path: str | Path) -> ScheduleConfig:
        """Read a configuration from a YAML, JSON or TOML file that maps parameters to values. ``${VAR}`` is replaced from the environment.

        Raises:
            ConfigError: the file cannot be read or a setting is invalid. The message names the file, the position and what to change.
        """
        settings, place = read_settings(path)
        return place.validated(cls, settings)

    def update(self, /, **changes: Any) -> frozenset[str]:
        """Change parameters while the function is in use, from any thread. Returns the names of those whose values differ from before.

        Raises:
            ConfigError: a name or a value is invalid, or ``pool`` or ``key_func`` would change. Nothing is changed.
        """
        with _changing:
            before = self.__dict__
            after = type(self)(**{**before, **changes}).__dict__
            changed = frozenset(name for name in after if not same(before[name], after[name]))
            if stuck := sorted(changed & FIXED):
                text = f"{stuck[0]}: cannot be changed while the function is in use; set it in code"
                raise with_faults([((stuck[0],), text)], lambda _: f"{type(self).__name__}: ")
            if changed:
                object.__setattr__(self, "__dict__", after)
                self.model_fields_set.update(changed)
                for token, callback in list(self._callbacks.items()):
                    if token in self._callbacks:  # not removed by an earlier callback
                        try:
                            callback(self, changed)
                        except Exception:
                            logger.exception("an on_change callback raised; the change of %s stands", ", ".join(sorted(changed)))
        return changed

    def on_change(self, callback: Callable[[ScheduleConfig, frozenset[str]], object]) -> Callable[[], object]:
        """Call ``callback(config, names)`` after each update that changes a value. Returns a function that removes the callback.

        The callback runs in the thread that makes the change. Changes are reported one at a time, in order, so the callback must not wait
        for another thread that changes a configuration. If the callback raises, the error is logged and the change is kept.
        """
        token = object()
        self._callbacks[token] = callback
        return partial(self._callbacks.pop, token, None)

    def snapshot(self) -> dict[str, Any]:
        """Return a new dict of all values at one moment."""
        return dict(self.__dict__)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ScheduleConfig):
            return NotImplemented
        mine, theirs = self.__dict__, other.__dict__
        return mine.keys() == theirs.keys() and all(same(value, theirs[name]) for name, value in mine.items())

    def __copy__(self) -> ScheduleConfig:
        return type(self)(**self.snapshot())

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> ScheduleConfig:
        return type(self)(**copy.deepcopy(self.snapshot(), memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self.snapshot()), ()

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """Yield the values that differ from their defaults. An object is shown by its name only, because it may hold secrets."""
        fields = type(self).model_fields
        return ((name, Code(_shown(value))) for name, value in self.snapshot().items() if not same(value, fields[name].default))


background.watch(ScheduleConfig, _replace_lock)


def same(one: object, other: object) -> bool:
    """Return True if two values are equal. Values that cannot be compared, such as arrays, are equal only if they are the same object."""
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:
        return False


def _shown(value: Any) -> str:
    """Return a value as ``repr`` of the configuration shows it. None, numbers, strings and enum members are shown as code."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))}{',' if len(value) == 1 else ''})"
    return str(getattr(value, "__qualname__", f"<{type(value).__name__}>"))


class FunctionOptions:
    """The settings of a configuration at one moment, as attributes. A change of the configuration makes another object."""

    default_result: Any

    def __init__(self, config: ScheduleConfig) -> None:
        values = config.snapshot()
        for name, value in values.items():  # reading is faster than if ``__dict__`` was set
            setattr(self, name, value)
        exporter = values["telemetry_exporter"]
        export = None if exporter is None else lambda metrics: exporter.export(metrics)  # noqa: PLW0108 - programs may replace the method
        receivers = {"metrics_callback": values["metrics_callback"], "telemetry_exporter": export}
        self.receivers = [(name, receiver) for name, receiver in receivers.items() if receiver is not None]
        limits = values["timeout"], values["hedged_request_time"]
        self.needs_thread = limits != (None, None) or values["speed_up_max_multiply"] > 1

    def default_for(self, _error: BaseException, *, covered: bool) -> Any:
        """Return what replaces an error, or ``NOT_GIVEN``. ``covered``: ``exception_types`` names the error, or the scheduler raised it."""
        return self.default_result if covered else NOT_GIVEN
