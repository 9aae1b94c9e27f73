"""Functions that inspect a callable."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Set
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
    """Return the kind of a function, a callable object, or a ``functools.partial`` of one; None if it is not callable."""
    if not callable(function):
        return None
    while isinstance(function, partial):
        function = function.func
    called = (function, type(function).__call__)
    return next((kind for is_kind, kind in _TESTS if any(map(is_kind, called))), FunctionKind.THREADED)


def lists_taken(function: Callable[..., Any], most: int) -> int:
    """Return how many positional arguments a function takes, but at most ``most``."""
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


class Code(str):
    """A string whose ``repr`` is the string itself."""

    __slots__ = ()
    __repr__ = str.__str__


class NotGiven:
    """The type of :data:`NOT_GIVEN`."""

    def __repr__(self) -> str:
        return "..."


NOT_GIVEN: Any = NotGiven()
"""The value of an argument that was not passed, where None has a meaning of its own. Signatures show it as ``...``."""


def show_keywords(function: Any, hidden: Set[str] = frozenset()) -> None:
    """Make ``help`` and completion show the keyword arguments that ``**options: Unpack[Kind]`` stands for."""
    signature = inspect.signature(function)
    rest = next((each for each in signature.parameters.values() if each.kind is each.VAR_KEYWORD), None)
    found = None if rest is None else re.fullmatch(r"Unpack\[(\w+)\]", str(rest.annotation))
    if rest is None or found is None:
        return
    kinds = function.__globals__[found[1]].__annotations__
    shown = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=NOT_GIVEN, annotation=Code(kind.__forward_arg__))
        for name, kind in kinds.items()
        if name not in hidden or not hidden <= kinds.keys()
    ]
    function.__signature__ = signature.replace(parameters=[*[*signature.parameters.values()][:-1], *shown, rest])
