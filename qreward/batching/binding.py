"""A caller's arguments, bound by the function's signature: by position or by name is the same; what is left out is not passed.

Knows nothing of queues.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

RECEIVERS = ("self", "cls")
"""Names of a first parameter that is no list."""
_MISSING: Any = object()
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Shape(NamedTuple):
    """Which parameters a call gave, if not simply all: calls of different shapes share no batch.

    Attributes:
        positional: how many values are passed by position.
        names: of the values that follow, which are passed by name.
    """

    positional: int
    names: tuple[str, ...]


class Binder:
    """Turns the arguments of one call into a tuple of values, and the tuples of many calls into the arguments of a batch.

    A parameter that a call leaves out is not passed to the function, so its default is what the function declares, not a list of it.

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
            raise TypeError(f"{self._name} must have a parameter for the list of items")
        fixed = [parameter for parameter in parameters if parameter.kind not in _VARIADIC]
        variadic = len(fixed) < len(parameters)
        by_name = [parameter.name for parameter in fixed if parameter.kind is parameter.KEYWORD_ONLY]
        self._whole = Shape(len(fixed) - len(by_name), tuple(by_name))
        self._count = -1 if variadic else len(fixed)
        self._at = {parameter.name: at for at, parameter in enumerate(fixed) if parameter.kind is not parameter.POSITIONAL_ONLY}
        self._lone = self._whole == (1 + bound, ()) and not variadic

    def values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Shape | None]:
        """The values in the order of the signature, and what must be equal for calls to share a batch.

        That is None if every parameter was given. Else it is the call's shape, which also ends the values.

        Raises:
            TypeError: they do not fit the signature.
        """
        count, given = self._count, len(args)
        if given + len(kwargs) == count and given <= self._whole.positional:
            if not kwargs:
                return args, None
            values = [*args, *[_MISSING] * len(kwargs)]
            for name, value in kwargs.items():
                at = self._at.get(name, -1)
                if at < given:
                    break
                values[at] = value
            else:
                return tuple(values), None
        return self._some_values(args, kwargs)

    def spread(self, rows: list[Any]) -> Any:
        """Call the function with a list for each parameter that was given."""
        if self._lone:
            column = [row[-1] for row in rows]
            return self._function(rows[0][0], column) if self.bound else self._function(column)
        shape = rows[0][-1]
        columns: list[Any] = [list(column) for column in zip(*rows, strict=True)]
        if type(shape) is Shape:
            columns.pop()
        else:
            shape = self._whole
        if self.bound:
            columns[0] = rows[0][0]
        return self._function(*columns[: shape.positional], **dict(zip(shape.names, columns[shape.positional :], strict=True)))

    def first(self, row: Any) -> Any:
        """The first value that is not the instance."""
        return row[self.bound]

    @property
    def _name(self) -> str:
        return getattr(self._function, "__qualname__", None) or type(self._function).__qualname__

    def _some_values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Shape]:
        given = self._signature.bind(*args, **kwargs)
        declared = [name for name in given.kwargs if name in self._at]
        shape = Shape(len(given.args), (*declared, *sorted(given.kwargs.keys() - declared)))
        if shape == (int(self.bound), ()):
            raise TypeError(f"{self._name} was called without an item")
        return (*given.args, *(given.kwargs[name] for name in shape.names), shape), shape


def takes_receiver(function: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether the first argument of a call is the instance or the class of a method.

    It is if the parameter has the usual name. Else the function must be defined in the body of a class to which the argument belongs,
    and not be a static method of it; other decorators around it do not matter.
    """
    if inspect.ismethod(function):
        return False
    if next(iter(inspect.signature(function).parameters), None) in RECEIVERS:
        return True
    outer = getattr(function, "__qualname__", "").rpartition(".")[0]
    if not args or not outer or outer.endswith("<locals>"):
        return False
    kind = args[0] if isinstance(args[0], type) else type(args[0])
    its = (function.__module__, outer.rpartition(".")[2])  # of a class that was pickled by value, the rest of the qualified name is lost
    homes = [base for base in kind.__mro__ if (base.__module__, base.__name__) == its and function.__name__ in vars(base)]
    return bool(homes) and not any(
        isinstance(member, staticmethod) and (name == function.__name__ or inspect.unwrap(member.__func__) is function)
        for name, member in vars(homes[0]).items()
    )
