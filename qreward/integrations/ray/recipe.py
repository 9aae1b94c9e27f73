"""How a scorer is made, there where it is to work, and how it is called. Knows neither Ray nor event loops: it travels to the actors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

CALL = "__call__"


@dataclass(frozen=True)
class Recipe:
    """What a scorer is made of.

    Args:
        scorer: a class, which is made once in each actor; a function, or an object, that scores as it is; or, with ``factory``,
            a function that makes the scorer.
        args: for the class or the factory.
        kwargs: likewise.
        factory: ``scorer`` makes the scorer.
        method: which method of the object scores.

    Raises:
        TypeError: it cannot be called, or it yields, or there are arguments with nothing to take them.
    """

    scorer: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    factory: bool = False
    method: str = CALL

    def __post_init__(self) -> None:
        if not self._is_made and (self.args or self.kwargs):
            raise TypeError("init_args and init_kwargs are for a class, or for a factory (factory=True); the scorer is neither")
        if not self.factory:
            check(self._seen(), self.name)
        elif not callable(self.scorer):
            raise TypeError(f"a factory must be a function that makes the scorer, not a {type(self.scorer).__name__}")

    @property
    def name(self) -> str:
        """What it is called in messages."""
        named = getattr(self.scorer, "__qualname__", None) or type(self.scorer).__qualname__
        return named if self.method == CALL else f"{named}.{self.method}"

    @property
    def blocks(self) -> bool:
        """It is known to be no ``async def``. What a factory makes is not known before it is made."""
        return not self.factory and not is_async(self._seen())

    def make(self) -> Any:
        """The scorer, or the object whose method it is. Raises what its constructor raises."""
        return self.scorer(*self.args, **self.kwargs) if self._is_made else self.scorer

    def function(self, made: Any) -> Callable[..., Any]:
        """What scores, of what was made. Raises ``TypeError`` if there is no such thing."""
        function: Any = made if self.method == CALL else getattr(made, self.method, None)
        check(function, self.name)
        return function  # type: ignore[no-any-return]

    @property
    def _is_made(self) -> bool:
        return self.factory or isinstance(self.scorer, type)

    def _seen(self) -> Any:
        """What will be called, as far as it can be seen before anything is made."""
        scorer = self.scorer
        if isinstance(scorer, type):  # the call of a class itself is its making
            return getattr(scorer, self.method) if any(self.method in vars(each) for each in scorer.__mro__) else None
        return scorer if self.method == CALL else getattr(scorer, self.method, None)


def check(function: Any, name: str) -> None:
    """Raise ``TypeError`` for what cannot score."""
    if not callable(function):
        raise TypeError(f"{name} cannot be called; a scorer takes lists and returns a list (see `method` for an object's method)")
    if any(map(inspect.isasyncgenfunction, _looks(function))) or any(map(inspect.isgeneratorfunction, _looks(function))):
        raise TypeError(f"{name} must return its results, not yield them")


def is_async(function: Any) -> bool:
    """Whether it must be awaited."""
    return any(map(inspect.iscoroutinefunction, _looks(function)))


def accepted(function: Callable[..., Any], columns: Sequence[Any]) -> Sequence[Any]:
    """The columns that a scorer takes: one that takes only the completions is not given their metadata.

    Example:
        >>> accepted(len, (["a", "b"], [{}, {}]))
        (['a', 'b'],)
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of something written in C
        return columns
    for count in range(len(columns), 1, -1):
        with suppress(TypeError):
            signature.bind(*columns[:count])
            return columns[:count]
    return columns[:1]


def _looks(function: Any) -> tuple[Any, Any]:
    return function, type(function).__call__
