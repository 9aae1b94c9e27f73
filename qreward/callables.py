"""Functions that inspect a callable. They find its kind, the number of lists that it takes, and its name for messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any


class FunctionKind(Enum):
    """The way in which a function returns its results."""

    AWAITED = "async def"
    THREADED = "def"
    STREAMED = "async generator"
    GENERATOR = "generator"


_TESTS = (
    (inspect.isasyncgenfunction, FunctionKind.STREAMED),
    (inspect.iscoroutinefunction, FunctionKind.AWAITED),
    (inspect.isgeneratorfunction, FunctionKind.GENERATOR),
)


def kind_of(function: Any) -> FunctionKind | None:
    """Return the kind of a function, a callable object, or a ``functools.partial`` of one; None if it is not callable.

    A plain function may still return a coroutine, for example a lambda that calls an ``async def``. Only a call shows this.
    """
    if not callable(function):
        return None
    while isinstance(function, partial):
        function = function.func
    called = (function, type(function).__call__)
    return next((kind for is_kind, kind in _TESTS if any(map(is_kind, called))), FunctionKind.THREADED)


def lists_taken(function: Callable[..., Any], most: int) -> int:
    """Return how many positional arguments a function takes, but at most ``most``.

    Some functions written in C have no signature. The result for such a function is ``most``.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return most
    for count in range(most, 0, -1):
        with suppress(TypeError):
            signature.bind(*[None] * count)
            return count
    return 0


def name_of(function: Any) -> str:
    """Return the qualified name of a function. For a callable object, return the name of its type."""
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
