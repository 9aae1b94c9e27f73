"""What may be set of a queue, each written once; and what is said if it is wrong, in Ray Serve's words where it has them.

Pure. ``None`` is off, durations are seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextvars import Context
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Any, SupportsIndex, TypedDict

from qreward.errors import ConfigError
from qreward.spelling import did_you_mean


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """What ``on_batch`` is told of a batch that ended.

    Args:
        name: of the batch function.
        items: how many were in it.
        size: the same, in what ``batch_size_fn`` counts.
        limit: the largest size it could have had.
        waits: how long each item waited, in seconds.
        seconds: how long the function took.
        waiting: items that are waiting now.
        error: what the function raised, or what was wrong with what it returned.
        contexts: what was current where each item was submitted; empty without ``carry_contexts``.
    """

    name: str
    items: int
    size: float
    limit: float
    waits: tuple[float, ...]
    seconds: float
    waiting: int
    error: BaseException | None
    contexts: tuple[Context, ...]


class Options(TypedDict, total=False):
    """The settings as keyword arguments; :class:`Settings` says what they mean."""

    max_batch_size: int
    batch_wait_timeout_s: float
    max_concurrent_batches: int
    batch_size_fn: Callable[[list[Any]], float] | None
    batch_key_fn: Callable[[Any], Hashable] | None
    max_queue_size: int | None
    adaptive_batch_size: bool
    timeout: float | None
    stream_timeout: float | None
    clock: Callable[[], float] | None
    carry_contexts: bool
    on_batch: Callable[[BatchRecord], object] | None


@dataclass(frozen=True)
class Settings:
    """All that may be set.

    Args:
        max_batch_size: most items in a batch; with ``batch_size_fn``, most of what that counts.
        batch_wait_timeout_s: seconds for which a batch that is not full waits for more, from when its first item came, although
            it could go. 0 waits for nothing but a free slot.
        max_concurrent_batches: batches under way at once, in each event loop.
        batch_size_fn: size of a list of items, such as their tokens; it is given the first argument of each. A longer list
            must not be smaller.
        batch_key_fn: from an item (the first argument) to a key; only items of equal keys share a batch, such as those for one model.
        max_queue_size: most items waiting, in each event loop; one more is refused with ``QueueFull``. None is no limit.
        adaptive_batch_size: find out how large batches should be, up to ``max_batch_size``: larger while that brings more items
            a second, smaller by a tenth when one fails for its size (``MemoryError``, out of memory on a GPU, ``TimeoutError``,
            status 413).
        timeout: seconds for one item, from submission to answer; after it ``RequestTimeout``. None is no limit.
        stream_timeout: seconds for which a stream that is not read may hold up the others of its batch and the slot; after it
            ``RequestTimeout``. None is no limit.
        clock: gives the time in seconds; the event loop's by default.
        carry_contexts: keep the context of each submission, for :func:`~qreward.batching.batch_contexts`.
        on_batch: called with a :class:`BatchRecord` when a batch has ended.

    Raises:
        TypeError: a value is of the wrong kind.
        ConfigError: a value is out of range (a ``ValueError``).
    """

    max_batch_size: int = 10
    batch_wait_timeout_s: float = 0.0
    max_concurrent_batches: int = 1
    batch_size_fn: Callable[[list[Any]], float] | None = None
    batch_key_fn: Callable[[Any], Hashable] | None = None
    max_queue_size: int | None = None
    adaptive_batch_size: bool = False
    timeout: float | None = None
    stream_timeout: float | None = 60.0
    clock: Callable[[], float] | None = None
    carry_contexts: bool = False
    on_batch: Callable[[BatchRecord], object] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_batch_size", _size(self.max_batch_size))
        _linger(self.batch_wait_timeout_s)
        _concurrency(self.max_concurrent_batches)
        for name in ("batch_size_fn", "batch_key_fn", "clock", "on_batch"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TypeError(f"{name} must be a callable or None, got {type(value)}")
        for name in ("adaptive_batch_size", "carry_contexts"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        _room(self.max_queue_size)
        for name in ("timeout", "stream_timeout"):
            if getattr(self, name) is not None:
                budget(getattr(self, name), name)

    def changed(self, **changes: Any) -> Settings:
        """The same with some values changed and checked."""
        return replace(self, **changes)

    def never_full(self) -> str | None:
        """A sentence if the queue has no room for one full batch, else None."""
        room = self.max_queue_size
        if room is None or self.batch_size_fn is not None or room >= self.max_batch_size:
            return None
        return (
            f"max_batch_size ({self.max_batch_size}) is larger than max_queue_size ({room}): while a batch is under way, the next "
            f"will never reach max_batch_size. Let max_queue_size be >= max_batch_size"
        )


def checked(options: Options) -> Settings:
    """Settings of keyword arguments; a name that is unknown is a ``TypeError`` that offers the nearest right one."""
    known = [field.name for field in fields(Settings)]
    for name in options:
        if name not in known:
            raise TypeError(f"unknown setting {name!r}; {did_you_mean(name, known, otherwise='the settings are')}")
    return Settings(**options)


def budget(seconds: Any, name: str = "timeout") -> float:
    """A time budget of one item."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{name} must be a number of seconds or None, got {seconds!r}")
    if not (isfinite(seconds) and seconds > 0):
        raise ConfigError(f"{name} must be a positive number of seconds, got {seconds!r}")
    return seconds


def _size(size: Any) -> int:
    if isinstance(size, float) and size.is_integer():
        size = int(size)
    if isinstance(size, bool) or not isinstance(size, SupportsIndex):
        raise TypeError(f"max_batch_size must be integer >= 1, got {size}")
    if size.__index__() < 1:
        raise ConfigError(f"max_batch_size must be an integer >= 1, got {size}")
    return size.__index__()


def _linger(seconds: Any) -> None:
    message = f"batch_wait_timeout_s must be a float >= 0, got {seconds}"
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(message)
    if not (isfinite(seconds) and seconds >= 0):
        raise ConfigError(message)


def _concurrency(batches: Any) -> None:
    message = f"max_concurrent_batches must be an integer >= 1, got {batches}"
    if isinstance(batches, bool) or not isinstance(batches, int):
        raise TypeError(message)
    if batches < 1:
        raise ConfigError(message)


def _room(items: Any) -> None:
    if items is None:
        return
    if isinstance(items, bool) or not isinstance(items, int):
        raise TypeError(f"max_queue_size must be an integer >= 1 or None, got {items!r}")
    if items < 1:
        raise ConfigError(f"max_queue_size must be an integer >= 1 or None, got {items}")
