"""What a queue does with a batch: the function, of what kind it is, and the settings that all its queues share.

It does not know event loops; whoever runs the function does.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Hashable
from contextvars import Context, copy_context
from enum import Enum
from typing import Any

from qreward.batching.settings import Settings
from qreward.batching.tally import Tally
from qreward.errors import ConfigError

_log = logging.getLogger("qreward")


class Kind(Enum):
    """How a batch function gives its results."""

    AWAITED = "async def"
    THREADED = "def"
    STREAMED = "async generator"


def kind_of(function: Any) -> Kind:
    """The kind of a function or of an object that can be called.

    Raises:
        TypeError: it cannot be called, or is a generator function that is not async.
    """
    if not callable(function):
        raise TypeError("@batch can only be used to decorate functions or methods; this is not callable")
    looks = (function, type(function).__call__)
    if any(map(inspect.isasyncgenfunction, looks)):
        return Kind.STREAMED
    if any(map(inspect.iscoroutinefunction, looks)):
        return Kind.AWAITED
    if any(map(inspect.isgeneratorfunction, looks)):
        raise TypeError("a batch function that yields must be an `async def`")
    return Kind.THREADED


class Work:
    """A batch function and its settings.

    Args:
        function: what a batch is for.
        settings: see :class:`Settings`.
        call: starts it with the values of the items; by default that is the function.
        first_of: the first argument in a value; by default that is the value.

    Attributes:
        closed: nothing is taken any more.
        context: the neutral context in which batches run: what was current when this was made.
        name: how it is called in errors.
        plain: an item may be taken in without further questions.
        tally: what has happened in all queues.
    """

    __slots__ = ("_closed", "_first_of", "call", "context", "kind", "name", "plain", "settings", "tally")

    def __init__(
        self,
        function: Callable[..., Any],
        settings: Settings,
        call: Callable[[list[Any]], Any] | None = None,
        first_of: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self.kind = kind_of(function)
        self.settings = settings
        self.call = call or function
        self._first_of = first_of
        self.name: str = getattr(function, "__qualname__", None) or type(function).__qualname__
        self.context: Context = copy_context()
        self.tally = Tally()
        self._closed = False
        self._settle()
        self._warn()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Take nothing any more."""
        self._closed = True
        self._settle()

    def change(self, **changes: Any) -> None:
        """Set some settings anew; nothing is changed if one of them is wrong."""
        self.settings = self.settings.changed(**changes)
        self._settle()
        if "max_batch_size" in changes:
            self._warn()

    def size_of(self, value: Any) -> float:
        """The size of one item.

        Raises:
            RuntimeError: it is larger than a batch may be.
            Exception: what ``batch_size_fn`` raises.
        """
        size = self._size([value])
        if size > self.settings.max_batch_size:
            raise too_large()
        return size

    def measure(self, items: list[Any]) -> float:
        """The size of a list of items."""
        return self._size([item.value for item in items])

    def key_of(self, value: Any, shape: Hashable) -> Hashable:
        """The key of an item: its own shape, and what ``batch_key_fn`` says."""
        key_fn = self.settings.batch_key_fn
        return shape if key_fn is None else (shape, key_fn(self._first_of(value)))

    def _size(self, values: list[Any]) -> float:
        assert self.settings.batch_size_fn is not None
        size = self.settings.batch_size_fn([self._first_of(value) for value in values])
        if not size >= 0:  # also if it is not a number
            raise ConfigError(f"batch_size_fn must return a number >= 0, got {size!r}")
        return size

    def _settle(self) -> None:
        its = self.settings
        asked = its.batch_size_fn or its.batch_key_fn or its.max_queue_size or its.carry_contexts
        self.plain = not asked and not self._closed and self.kind is not Kind.STREAMED

    def _warn(self) -> None:
        if (sentence := self.settings.never_full()) is not None:
            _log.warning("%s: %s", self.name, sentence)


def too_large() -> RuntimeError:
    """The error of an item that does not fit into any batch."""
    return RuntimeError(
        "Size of item is greater than max_batch_size. Please increase the max_batch_size or check the implementation of the batch_size_fn."
    )
