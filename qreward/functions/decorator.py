"""``@schedule``: gives any function what the client has. Looks at the function and picks its way; decides nothing about calls."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from qreward.errors import ConfigError
from qreward.functions.config import ScheduleConfig
from qreward.functions.member import Member
from qreward.functions.metrics import ScheduleStats
from qreward.functions.pools import pool_named

P = ParamSpec("P")
Q = ParamSpec("Q")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
S = TypeVar("S")


class Scheduled(Protocol[P, R_co]):
    """A decorated function: called as before, and it can be asked and set.

    Attributes:
        config: its settings, which may be changed while it is used.
    """

    __name__: str
    __qualname__: str
    __wrapped__: Callable[..., Any]
    config: ScheduleConfig

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    @overload
    def __get__(self, instance: None, owner: Any = ...) -> Scheduled[P, R_co]: ...

    @overload
    def __get__(self: Scheduled[Concatenate[S, Q], T], instance: S, owner: Any = ...) -> Scheduled[Q, T]: ...

    def stats(self) -> ScheduleStats:
        """What it did since it was defined or reset."""

    def reset(self) -> None:
        """Forget all counts, keys, limits that moved and open breakers. What is under way or waits goes on."""


class Decorator(Protocol):
    """What ``schedule(...)`` gives."""

    def __call__(self, function: Callable[P, T], /) -> Scheduled[P, T]: ...


@overload
def schedule(function: Callable[P, T], /) -> Scheduled[P, T]: ...


@overload
def schedule(config: ScheduleConfig | None = None, /, **settings: Any) -> Decorator: ...


def schedule(config: Any = None, /, **settings: Any) -> Any:
    """Give a slow or flaky function retries, hedges, limits, a circuit breaker, priority and a time limit.

    An async function stays one, and so does one that blocks, also where an event loop runs. Cancelling a call cancels the function;
    a function that blocks cannot be stopped, so its result is dropped. Exceptions come out as the function raised them.

    Args:
        config: settings to use, and to follow when they are changed; or the function itself.
        settings: the same by name; see :class:`~qreward.ScheduleConfig` for all of them.

    Returns:
        The decorated function, with ``config``, ``stats()`` and ``reset()``.

    Raises:
        ConfigError: a setting is wrong, or what is decorated is no function (a class, or a generator).

    When called, besides what the function raises:
        RequestTimeout: it did not end within ``timeout``.
        CircuitOpen: it failed too often, and is not called for a while.

    Example:
        >>> from qreward import schedule
        >>> tries = []
        >>> @schedule(retry_times=3, retry_interval=0.01, timeout=5)
        ... def score(answer: str) -> float:
        ...     tries.append(answer)
        ...     if len(tries) < 3:
        ...         raise ConnectionError("the judge is away")
        ...     return 0.5
        >>> score("42"), len(tries)
        (0.5, 3)
    """
    if config is None or isinstance(config, ScheduleConfig):
        if config is not None and settings:
            raise ConfigError(f"schedule() got a config and settings ({', '.join(settings)}); put them into the config")
        return functools.partial(_decorate, config=config or ScheduleConfig(**settings))
    if settings or not (callable(config) or isinstance(config, staticmethod | classmethod)):
        raise ConfigError(f"schedule() takes settings by name, or a ScheduleConfig, not a {type(config).__name__}")
    return _decorate(config, config=ScheduleConfig())


schedule.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # for help(): the settings are written in one place
    [
        inspect.Parameter("config", inspect.Parameter.POSITIONAL_ONLY, default=None, annotation=ScheduleConfig),
        *(each.replace(annotation=inspect.Parameter.empty) for each in inspect.signature(ScheduleConfig).parameters.values()),
    ]
)


def _decorate(function: Any, /, *, config: ScheduleConfig) -> Any:
    if isinstance(function, staticmethod | classmethod):
        return type(function)(_decorate(function.__func__, config=config))
    _check(function)
    member = Member(function, config, pool_named(config.pool))
    wrapper: Any
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004 - its kind

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await member.call(args, kwargs)

    else:

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return member.call_blocking(args, kwargs)

    functools.update_wrapper(wrapper, function)
    wrapper.config, wrapper.stats, wrapper.reset = member.config, member.stats, member.reset
    return wrapper


def _check(function: Any) -> None:
    what = getattr(function, "__qualname__", repr(function))
    if inspect.isclass(function):
        raise ConfigError(f"{what} is a class; decorate a function that makes one, or its methods")
    if not callable(function):
        raise ConfigError(f"schedule() decorates functions, not a {type(function).__name__}")
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004 - its kind
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise ConfigError(f"{what} is a generator, which gives its values one by one and cannot be tried again; return them as a list")
