"""A caller's arguments, bound by the function's signature: what it gave by position, by name or not at all is the same value.

Knows nothing of queues.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from typing import Any

_MISSING: Any = object()
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Binder:
    """Turns the arguments of one call into a tuple of values, and the tuples of many calls into the arguments of a batch.

    Args:
        function: the batch function.
        bound: its first parameter is an instance or class, the same for a whole batch.

    Raises:
        TypeError: the function has no parameter for a list.
    """

    def __init__(self, function: Callable[..., Any], bound: bool) -> None:
        self._function = function
        self._signature = inspect.signature(function)
        self.bound = bound
        parameters = list(self._signature.parameters.values())
        if len(parameters) <= bound:
            raise TypeError(f"{function.__qualname__} must have a parameter for the list of items")
        fixed = [parameter for parameter in parameters if parameter.kind not in _VARIADIC]
        self._variadic = len(fixed) < len(parameters)
        by_name = [parameter for parameter in fixed if parameter.kind is parameter.KEYWORD_ONLY]
        self.positional = len(fixed) - len(by_name)
        self._shape = (self.positional, tuple(parameter.name for parameter in by_name))  # values by position, names of those that follow
        self._defaults = [_MISSING if parameter.default is parameter.empty else parameter.default for parameter in fixed]
        self._at = {parameter.name: at for at, parameter in enumerate(fixed) if parameter.kind is not parameter.POSITIONAL_ONLY}
        self._whole = -1 if self._variadic or by_name else self.positional  # arguments by position, when nothing is left to ask
        self._lone = self._shape == (1 + bound, ()) and not self._variadic

    def values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Hashable]:
        """The values in the order of the signature, defaults filled in; and what must be equal for calls to share a batch.

        That is None unless the function takes ``*args`` or ``**kwargs``: then it is what was given, which also ends the values.

        Raises:
            TypeError: they do not fit the signature.
        """
        if len(args) == self._whole and not kwargs:
            return args, None
        if not self._variadic and len(args) <= self.positional:
            values = [*args, *self._defaults[len(args) :]]
            for name, value in kwargs.items():
                at = self._at.get(name, -1)
                if at < len(args):
                    break
                values[at] = value
            else:
                if not any(value is _MISSING for value in values):
                    return tuple(values), None
        return self._any_values(args, kwargs)

    def spread(self, rows: list[Any]) -> Any:
        """Call the function with a list for each parameter."""
        if self._lone:
            column = [row[-1] for row in rows]
            return self._function(rows[0][0], column) if self.bound else self._function(column)
        positional, names = rows[0][-1] if self._variadic else self._shape
        columns: list[Any] = [list(column) for column in zip(*rows, strict=True)]
        if self.bound:
            columns[0] = rows[0][0]
        return self._function(*columns[:positional], **dict(zip(names, columns[positional:], strict=False)))

    def first(self, row: Any) -> Any:
        """The first value that is not the instance."""
        return row[self.bound]

    def _any_values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Hashable]:
        given = self._signature.bind(*args, **kwargs)
        given.apply_defaults()
        names = tuple(sorted(given.kwargs))
        shape = (len(given.args), names)
        if shape == (int(self.bound), ()):
            raise TypeError(f"{self._function.__qualname__} was called without an item")
        return (*given.args, *(given.kwargs[name] for name in names), shape), shape
