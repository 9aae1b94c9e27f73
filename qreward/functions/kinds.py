"""The kinds of values that only functions are configured with: what is a failure, when to hedge, how urgent, no value at all.

Knows no configuration; a check returns the value or raises ``ValueError`` saying what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from inspect import iscoroutinefunction
from math import isfinite
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainValidator

from qreward.policy import Number

_PERCENTILE = re.compile(r"p([0-9]+(?:\.[0-9]+)?)")


class Unset(Enum):
    """The kind of ``UNSET``. It stays the same one when it is copied or pickled."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return self.value


UNSET = Unset.UNSET
"""No value was given, not even None."""


def check_exceptions(value: object) -> object:
    """An exception class, a tuple of them, or a function of the exception."""
    if isinstance(value, type):
        return _exception(value)
    if isinstance(value, tuple):
        if not value:
            raise ValueError("is an empty tuple, by which nothing would ever be a failure; name at least one class, or leave it out")
        return tuple(_exception(each) for each in value)
    if not callable(value):
        raise ValueError("must be an exception class, a tuple of such classes, or a function of the exception; it is set in code")
    return check_plain(value)


def _exception(value: object) -> object:
    if not isinstance(value, type) or not issubclass(value, BaseException):
        raise ValueError("must name exception classes, such as (ConnectionError, TimeoutError)")
    if not issubclass(value, Exception):
        raise ValueError(f"{value.__name__} cannot be retried: it ends tasks and programs; use Exception, or subclasses of it")
    return value


def check_plain(value: Any) -> Any:
    """A function that gives its answer at once, or None."""
    if value is not None and (not callable(value) or iscoroutinefunction(value)):
        raise ValueError("must be a plain function, not async: it is called and not awaited")
    return value


def check_hedge_time(value: object) -> object:
    """Seconds, a percentile, or None."""
    if isinstance(value, str) and (found := _PERCENTILE.fullmatch(value)):
        if not 0 < float(found[1]) / 100 < 1:
            raise ValueError("a percentile lies between p0 and p100, both excluded, such as 'p95'")
        return value
    try:
        seconds = None if value is None or isinstance(value, bool) else float(value)  # type: ignore[arg-type] # texts of numbers too
    except (TypeError, ValueError, OverflowError):
        seconds = None
    if seconds is None and value is None:
        return None
    if seconds is None or not isfinite(seconds) or seconds <= 0:
        raise ValueError("must be a positive number of seconds, a percentile such as 'p95', or None")
    return seconds


def quantile_of(time: float | str | None) -> float | None:
    """The share of tries that are quicker than a percentile says; None for anything else.

    Example:
        >>> quantile_of("p95"), quantile_of(2.0)
        (0.95, None)
    """
    return float(time[1:]) / 100 if isinstance(time, str) else None


def check_exporter(value: Any) -> Any:
    """Something that has a method ``export``, or None."""
    if value is not None and not callable(getattr(value, "export", None)):
        raise ValueError("must be an object with a method export(metrics), or None")
    return value


Failures = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool | float]
ExceptionTypes = Annotated[Failures, PlainValidator(check_exceptions)]
HedgeTime = Annotated[float | str | None, PlainValidator(check_hedge_time)]
Portion = Annotated[float, BeforeValidator(Number(above=0, most=1))]
Exporter = Annotated[Any, PlainValidator(check_exporter)]
