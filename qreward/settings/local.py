"""What an endpoint without a server runs: a function in this process, the method of an actor, or an ASGI application."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from qreward.callables import FunctionKind, kind_of, name_of
from qreward.errors import ConfigError


class Slots:
    """Counts the calls of a function that still run, in all event loops. A call in a thread may outlive the attempt that made it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken, self._process = 0, os.getpid()

    def take(self, most: int | None) -> bool:
        if self._process != os.getpid():  # after a fork, the calls of the parent process do not run here
            self.__init__()  # type: ignore[misc]
        with self._lock:
            free = most is None or self._taken < most
            self._taken += free
            return free

    def release(self, _: object = None) -> None:
        with self._lock:
            self._taken -= 1

    def __reduce__(self) -> tuple[Any, ...]:
        return Slots, ()


@dataclass(frozen=True)
class LocalFunction:
    """A function in this process, or the method of an actor (``remote``); see ``Endpoint.local``. Raises ``ConfigError``."""

    function: Any
    max_batch_size: int | None = None
    executor: Executor | None = None
    remote: bool = False
    slots: Slots = field(default_factory=Slots, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        kind = FunctionKind.AWAITED if self.remote else kind_of(self.function)
        if kind is None:
            raise ConfigError(f"a local endpoint needs a function, not a {type(self.function).__name__}")
        if kind in (FunctionKind.STREAMED, FunctionKind.GENERATOR):
            raise ConfigError(f"{name_of(self.function)} must return its results, not yield them")
        if self.columns() > 3:
            needed = "messages, an item, or prompt, response and label"
            raise ConfigError(f"{name_of(self.function)} needs {self.columns()} arguments; a local function receives {needed}")
        if self.executor is not None and (kind is FunctionKind.AWAITED or not isinstance(self.executor, Executor)):
            raise ConfigError("executor must be a concurrent.futures.Executor, and is for functions that are not async")
        most = self.max_batch_size
        if most is not None and (type(most) is not int or most < 1):
            raise ConfigError(f"max_batch_size must be a whole number of at least 1, or None for one item a call, not {most!r}")

    @property
    def blocks(self) -> bool:
        return not self.remote and kind_of(self.function) is FunctionKind.THREADED

    def columns(self) -> int:
        """Return the number of arguments without a default: 1 for a function of an item; 2 or 3 for prompt, response and label."""
        return sum(each.default is each.empty for each in self._parameters() if each.kind in _BY_POSITION)

    def keywords(self) -> Callable[[str], bool]:
        parameters = self._parameters()
        if any(each.kind is each.VAR_KEYWORD for each in parameters):
            return lambda _: True
        named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return {each.name for each in parameters[self.columns() :] if each.kind in named}.__contains__

    def _parameters(self) -> list[inspect.Parameter]:
        try:
            return [] if self.remote else [*inspect.signature(self.function).parameters.values()]
        except (TypeError, ValueError):  # some functions written in C have no signature
            return []


def http_package_of(given: object) -> ModuleType | None:
    """Return ``httpx`` or ``httpx2`` if ``given`` is an async client or transport of it, otherwise None. Neither package is imported."""
    packages: list[Any] = [sys.modules[name] for name in ("httpx", "httpx2") if name in sys.modules]
    return next((package for package in packages if isinstance(given, package.AsyncClient | package.AsyncBaseTransport)), None)


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class AsgiApp:
    app: Any

    def __post_init__(self) -> None:
        if not callable(self.app):
            raise ConfigError(f"Endpoint.app needs an ASGI application, not a {type(self.app).__name__}")


def actor_function(pool_or_actor: Any, method: str | None, max_batch_size: int) -> tuple[LocalFunction, int]:
    """Return the function of a ``ScorerPool`` or a Ray actor, and the number of calls that it takes at once. Raises ``ConfigError``."""
    slots = getattr(pool_or_actor, "slots", None)
    if callable(pool_or_actor) and isinstance(slots, int):
        if method is not None:
            raise ConfigError("the method of a pool is set where the pool is made: ScorerPool(..., method=...)")
        return LocalFunction(pool_or_actor, max_batch_size), slots
    called = getattr(pool_or_actor, method or "__call__", None)
    if not hasattr(called, "remote"):
        given = f"a {type(pool_or_actor).__name__} without a remote method {method or '__call__'!r}"
        raise ConfigError(f"Endpoint.actors needs a ScorerPool, or the handle of a Ray actor and the name of its method, not {given}")
    return LocalFunction(called, max_batch_size, remote=True), 1
