"""``ScheduleConfig``: all that may be set of a function, each parameter written once, and changed while the function is in use.

Knows what is valid; knows nothing of how a call is made. What only functions are configured with is in ``kinds``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, PlainValidator, PrivateAttr, field_validator, model_validator

from qreward.errors import ConfigError
from qreward.functions.changes import Changes
from qreward.functions.kinds import UNSET, ExceptionTypes, Exporter, HedgeTime, Portion, check_plain, quantile_of
from qreward.functions.reading import read_with_place
from qreward.policies import Level, Priority
from qreward.policy import Count, Many, Policy, Seconds, SomeSeconds, with_faults

__all__ = ["FIXED", "UNSET", "ScheduleConfig"]

FIXED = frozenset({"key_func", "pool"})
"""What cannot be changed: a function belongs to its pool, and what it counts belongs to the keys it has given."""


def _priority(level: int) -> int:
    return Priority(level) if level in list(Priority) else level


class ScheduleConfig(Policy):
    """How the calls of a function are made. The parameters of ``@schedule``, and what ``function.config`` is.

    A *try* is one run of the function. ``None`` switches a thing off. What says "with x" has no effect while x is off, so that
    both may be set in any order. Configurations are equal if all their values are, and are no keys of a dict, for they change.
    They are copied and pickled without their callbacks.

    Args:
        timeout: seconds a call may take in all: waiting, retries and hedges included.
        retry_times: tries beyond the first, of one call.
        retry_interval: longest first wait in seconds; it doubles with each retry, and the wait is drawn from 0 to that
            ("full jitter": Brooker, "Exponential Backoff And Jitter", AWS 2015). 0 retries at once.
        retry_max_interval: longest wait in seconds.
        exception_types: what is retried and counts as a failure: a class, a tuple of classes, or a function of the exception that
            says True, False, or the seconds to wait. What is no ``Exception`` (``CancelledError``, ``KeyboardInterrupt``) never is.
        limit_size: most tries that begin in any ``limit_window``, per key.
        limit_window: seconds; with ``limit_size``.
        key_func: called with the call's arguments; each key has its own ``limit_size`` and circuit breaker. None is one key
            for all. It cannot be changed.
        max_concurrency: most tries in flight.
        hedged_request_time: seconds after which a try gets a second one beside it (Dean and Barroso, "The Tail at Scale",
            CACM 2013), or a percentile of the function's own times, such as ``"p95"``.
        hedged_request_max_times: hedges per call; with ``hedged_request_time``.
        hedged_request_proportion: hedges allowed per call, over all calls, above 0 and up to 1; with ``hedged_request_time``.
        speed_up_max_multiply: most tries of one call at once while it is being retried; with ``retry_times``.
        default_result: returned instead of an exception: a value, or a function of the call's arguments. ``UNSET`` raises.
        circuit_breaker_threshold: failures in a row after which calls are refused with ``CircuitOpen``.
        circuit_breaker_recovery: seconds until one is let through again; with ``circuit_breaker_threshold``.
        adaptive_limit: a limit follows what tries show: that of the rate if there is a ``limit_size``, else that of tries in flight.
        adaptive_limit_min: tries to which the limit falls at least; with ``adaptive_limit``.
        adaptive_limit_max: tries to which the limit rises at most; with ``adaptive_limit``.
        adaptive_error_threshold: share of failures above which the limit falls; with ``adaptive_limit``.
        adaptive_latency_threshold: mean seconds of a try above which the limit falls; with ``adaptive_limit``.
        priority: 0 (most urgent) to 9, or a :class:`~qreward.policies.Priority` or its name.
        pool: functions that name the same one share ``max_concurrency`` and the adaptive limit. It cannot be changed.
        metrics_callback: called with what each call was like.
        telemetry_exporter: an object with a method ``export(metrics)``.
        debug: note what is decided.

    Raises:
        ConfigError: a setting is unknown or wrong; the message says which and what to write, never a text that may be a key.

    Example:
        >>> config = ScheduleConfig(timeout=30, retry_times=2, hedged_request_time="p95")
        >>> sorted(config.update(timeout=None, retry_times=3))
        ['retry_times', 'timeout']
        >>> config
        ScheduleConfig(retry_times=3, hedged_request_time='p95')
    """

    timeout: Seconds | None = None
    retry_times: Many = 0
    retry_interval: SomeSeconds = 1.0
    retry_max_interval: Seconds = 60.0
    exception_types: ExceptionTypes = Exception
    limit_size: Count | None = None
    limit_window: Seconds = 1.0
    key_func: Annotated[Callable[..., Hashable] | None, PlainValidator(check_plain)] = None
    max_concurrency: Count | None = None
    hedged_request_time: HedgeTime = None
    hedged_request_max_times: Count = 1
    hedged_request_proportion: Portion = 0.05
    speed_up_max_multiply: Count = 1
    default_result: Any = UNSET
    circuit_breaker_threshold: Count | None = None
    circuit_breaker_recovery: Seconds = 30.0
    adaptive_limit: bool = False
    adaptive_limit_min: Count = 10
    adaptive_limit_max: Count = 500
    adaptive_error_threshold: Portion = 0.3
    adaptive_latency_threshold: Seconds | None = None
    priority: Annotated[Level, AfterValidator(_priority)] = Priority.NORMAL
    pool: str | None = None
    metrics_callback: Callable[..., object] | None = None
    telemetry_exporter: Exporter = None
    debug: bool = False

    _changes: Changes = PrivateAttr(default_factory=Changes)
    __hash__ = None  # type: ignore[assignment] # its values change

    @field_validator(
        "timeout",
        "limit_size",
        "max_concurrency",
        "hedged_request_time",
        "circuit_breaker_threshold",
        "adaptive_latency_threshold",
        mode="before",
    )
    @classmethod
    def _none_is_off(cls, value: object) -> object:
        if isinstance(value, int | float | str) and value in (0, "0"):
            raise ValueError("0 does not switch it off; use None to switch it off")
        return value

    @field_validator("pool")
    @classmethod
    def _readable_name(cls, value: str | None) -> str | None:
        if value is not None and (not value or value != value.strip() or not value.isprintable()):
            raise ValueError("must be a name without blanks around it; None is a pool of the function's own")
        return value

    @model_validator(mode="after")
    def _limits_in_order(self) -> ScheduleConfig:
        if self.adaptive_limit_min > self.adaptive_limit_max:
            raise ValueError("adaptive_limit_min is larger than adaptive_limit_max; set both at once if both are to change")
        return self

    @classmethod
    def from_file(cls, path: str | Path) -> ScheduleConfig:
        """A configuration from a YAML, JSON or TOML file that maps parameters to values. ``${VAR}`` is read from the environment.

        Raises:
            ConfigError: with the file, the place, and what to change.
        """
        settings, place = read_with_place(path)
        try:
            return cls(**settings)
        except ConfigError as error:
            raise place.named(error) from None

    @property
    def hedged_request_quantile(self) -> float | None:
        """The share of tries that are quicker than ``hedged_request_time``, if that is a percentile: 0.95 for ``"p95"``."""
        return quantile_of(self.hedged_request_time)

    def update(self, /, **changes: Any) -> frozenset[str]:
        """Change parameters while the function is in use: all of them or, if one is wrong, none.

        May be called from any thread. Who reads one parameter gets the old or the new value; who needs several that belong
        together takes a :meth:`snapshot`.

        Args:
            changes: parameter to new value.

        Returns:
            The names of the parameters that really changed.

        Raises:
            ConfigError: a name or a value is wrong, or ``pool`` or ``key_func`` would change; nothing has changed.
        """
        with self._changes.lock:
            before = self.__dict__
            after = type(self)(**{**before, **changes}).__dict__
            changed = frozenset(name for name in changes if not same(before[name], after[name]))
            if stuck := sorted(changed & FIXED):
                text = f"{stuck[0]}: cannot be changed while the function is in use; set it in code"
                raise with_faults([((stuck[0],), text)], lambda _: f"{type(self).__name__}: ")
            if changed:
                object.__setattr__(self, "__dict__", after)
                self.model_fields_set.update(changed)
                self._changes.tell(self, changed)
        return changed

    def on_change(self, callback: Callable[[ScheduleConfig, frozenset[str]], object]) -> Callable[[], None]:
        """Have ``callback(config, names)`` called after each change that really changes something.

        It is called in the thread that makes the change, one change after the other, in their order; so it should be quick, and
        must not wait for another thread that changes this configuration. One that raises is logged and hinders nobody.

        Returns:
            A function that removes the callback.
        """
        return self._changes.add(callback)

    def snapshot(self) -> dict[str, Any]:
        """All values, as they were together at one time; the dict is the caller's."""
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
        return _restored, (type(self), self.snapshot())

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """Only what differs from the defaults, and of what may hold secrets only what it is."""
        fields = type(self).model_fields
        return ((name, _Shown(value)) for name, value in self.snapshot().items() if not same(value, fields[name].default))


def same(one: object, other: object) -> bool:
    """Whether a value is as it was. What cannot be compared, such as an array, is the same only if it is the same object."""
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:
        return False


def _restored(kind: type[ScheduleConfig], settings: dict[str, Any]) -> ScheduleConfig:
    return kind(**settings)


class _Shown:
    """A value as ``repr`` shows it: numbers and texts as they are, of all else the name."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        value = self._value
        if isinstance(value, Enum):
            return f"{type(value).__name__}.{value.name}"
        if value is None or isinstance(value, bool | int | float | str):
            return repr(value)
        if isinstance(value, tuple):
            return f"({', '.join(repr(_Shown(each)) for each in value)}{',' if len(value) == 1 else ''})"
        return str(getattr(value, "__qualname__", f"<{type(value).__name__}>"))
