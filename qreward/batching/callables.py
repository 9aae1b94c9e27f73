"""How a function returns its results, how many lists it takes, and its name in messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any


class FunctionKind(Enum):
    """How a function returns its results."""

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
    """The kind of a function or of a callable object; None if it cannot be called."""
    if not callable(function):
        return None
    called = (function, type(function).__call__)
    return next((kind for is_kind, kind in _TESTS if any(map(is_kind, called))), FunctionKind.THREADED)


def lists_taken(function: Callable[..., Any], most: int) -> int:
    """How many of ``most`` lists a function takes as positional arguments. ``most`` if it has no signature, as some written in C."""
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
    """The qualified name of a function, or that of the type of a callable object."""
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
