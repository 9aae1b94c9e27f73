"""Functions that inspect a callable, or load one that a text names."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Set
from contextlib import suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from qreward.errors import ConfigError, closest, did_you_mean


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


def load_object(name: str, what: str, example: str) -> Any:
    """Load an object by its name. Modules in the working directory are found."""
    prefix = f"{what} {name!r}: "
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        raise ConfigError(f"{prefix}is not written as module:function, such as {example}")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(f"{prefix}the module {module!r} needs the module {error.name!r}, which is not installed") from error
        message = f"there is no module {module!r}, neither installed nor in the working directory {here}"
        raise ConfigError(prefix + message) from None
    except Exception as error:
        raise ConfigError(f"{prefix}the module {module!r} cannot be imported: {type(error).__name__}: {error}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            public = [each for each in dir(found) if not each.startswith("_")]
            hint = did_you_mean(part, public) if closest(part, public) else "correct the name, or define it there"
            raise ConfigError(f"{prefix}{getattr(found, '__name__', found)!r} has no {part!r}; {hint}")
        found = getattr(found, part)
    return found


class Code(str):
    """A string whose ``repr`` is the string itself."""

    __slots__ = ()
    __repr__ = str.__str__


class NotGiven:
    """The type of :data:`NOT_GIVEN`."""

    def __repr__(self) -> str:
        return "..."

    def __reduce__(self) -> str:
        return "NOT_GIVEN"  # a copied or unpickled one is the same object


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
