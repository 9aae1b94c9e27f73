"""``@schedule``: retries, hedges, limits, a circuit breaker, priority and a time limit for any function."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Hashable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from random import Random
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload
from weakref import WeakMethod, WeakSet, WeakValueDictionary

from qreward.callables import NOT_GIVEN, FunctionKind, kind_of
from qreward.engine import background
from qreward.engine.driver import Engine
from qreward.errors import CircuitOpen, ConfigError, RequestTimeout
from qreward.functions import calls
from qreward.functions.calls import AsyncCall, BlockingCall, is_retried
from qreward.functions.config import FunctionOptions, ScheduleConfig
from qreward.scheduler.functions import Call, CallScheduler, Function
from qreward.scheduler.outcome import Answer

log = logging.getLogger("qreward.schedule")

OptionsOf = Callable[[ScheduleConfig], FunctionOptions]
Outcome = Literal["ok", "failed", "timeout", "circuit_open", "cancelled"]
_OUTCOMES: dict[type, Outcome] = {RequestTimeout: "timeout", CircuitOpen: "circuit_open"}  # of errors of the scheduler


@dataclass(frozen=True, slots=True)
class ScheduleMetrics:
    """Describes one finished call of a decorated function. ``metrics_callback`` and ``telemetry_exporter`` receive this object.

    Attributes:
        function: module and qualified name of the function.
        key: the key that ``key_func`` returned; None without ``key_func``.
        outcome: ``ok``, ``failed`` (the function raised an exception), ``timeout``, ``circuit_open`` (the circuit breaker rejected the
            call), or ``cancelled`` (the caller cancelled the call).
        error: class name of the exception, or None. The message of the exception is left out, because it may contain secrets.
        defaulted: True if the caller received ``default_result``.
        tries: number of runs of the function.
        retries: number of tries that followed a failure.
        hedges: number of tries that were started while another try was running.
        queued: seconds from the call to its first try.
        latency: seconds from the call to its end, waiting and retries included.
    """

    function: str
    key: Hashable
    outcome: Outcome
    error: str | None
    defaulted: bool
    tries: int
    retries: int
    hedges: int
    queued: float
    latency: float

    @property
    def ok(self) -> bool:
        """True if the function returned a result."""
        return self.outcome == "ok"


@dataclass(frozen=True, slots=True)
class ScheduleStats:
    """Counters of a decorated function since it was defined or reset.

    Attributes:
        calls: number of calls.
        ok: number of calls for which the function returned a result.
        failed: number of calls that ended with an exception.
        timeouts: number of failed calls that exceeded the time limit.
        refused: number of failed calls that were rejected by an open circuit breaker.
        tries: number of runs of the function.
        retries: number of tries that followed a failure.
        hedges: number of tries that were started while another try was running.
        hedges_won: number of hedges that returned before the other try of their call.
        overloaded: number of tries that failed because of overload (429, 503 or similar).
        waiting: number of calls that wait now for a rate limit or a concurrency slot.
        inflight: number of tries that run now.
        limit: current maximum number of tries that run at once, over all functions of the pool; None without a limit.
        rate: current maximum number of tries per key and ``limit_window``; None without a limit. With ``adaptive_limit``, the lowest number
            of all keys.
        keys: number of keys in memory.
        open_circuits: number of keys whose circuit breaker is not closed.
        p50, p95, p99: percentiles of the seconds that successful tries took; None before the first successful try.
    """

    calls: int
    ok: int
    failed: int
    timeouts: int
    refused: int
    tries: int
    retries: int
    hedges: int
    hedges_won: int
    overloaded: int
    waiting: int
    inflight: int
    limit: int | None
    rate: int | None
    keys: int
    open_circuits: int
    p50: float | None
    p95: float | None
    p99: float | None


_UNFINISHED = (Awaitable, Generator, AsyncGenerator)
"""What a blocking function may not return: work that begins when the caller awaits or iterates it."""

_waiting_disabled = False


@contextmanager
def no_waiting() -> Iterator[None]:
    """Make decorated functions retry at once, ignore rate limits and never hedge, inside a ``with`` block. Other settings still apply.

    Use ``no_waiting`` in tests of code with decorated functions. It applies to all calls that begin while the block runs, in any thread.

    Example:
        >>> from qreward import schedule
        >>> tries = []
        >>> @schedule(retry_times=3, retry_interval=60.0)
        ... def flaky():
        ...     tries.append(1)
        ...     return 1 / (len(tries) - 1)
        >>> with no_waiting():
        ...     flaky()
        1.0
    """
    global _waiting_disabled  # noqa: PLW0603 - a switch of the whole process
    before, _waiting_disabled = _waiting_disabled, True
    try:
        yield
    finally:
        _waiting_disabled = before


class ScheduledFunction(Function):
    """A decorated function with its configuration, and the engine of its pool."""

    def __init__(self, body: Callable[..., Any], config: ScheduleConfig, options_of: OptionsOf = FunctionOptions) -> None:
        name = f"{getattr(body, '__module__', None) or '?'}.{getattr(body, '__qualname__', None) or type(body).__qualname__}"
        super().__init__(name, options_of(config))
        self._options_of = options_of
        self.body = body
        self.config = config
        self.engine = engine_of(config.pool)
        self._replaced: WeakSet[type[BaseException]] = WeakSet()  # classes of errors that ``default_result`` has replaced
        with self.engine.lock:  # other functions of the pool may be in use
            self.engine.scheduler.add(self)
        follow = WeakMethod(self._follow, lambda _: remove())  # a shared configuration keeps no function alive
        # not ``config.on_change``: the callbacks of a configuration of 0.1.7 take one argument
        remove = ScheduleConfig.on_change(config, lambda config, _: (found := follow()) and found(config))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.body, self.config, self._options_of)

    def _follow(self, config: ScheduleConfig) -> None:
        self.options = self._options_of(config)
        self.engine.apply(lambda now: self.engine.scheduler.changed(now, self))

    async def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call, body = self._prepare(args, kwargs)
        call.waiter = waiter = AsyncCall(self.engine.driver(), body)
        try:
            outcome: Any = await waiter.result(call)  # type: ignore[arg-type] # for the engine, a call is a task
        except BaseException:
            self._report(call, "cancelled", None)
            raise
        if type(outcome) is Answer:
            self._report(call, "ok", None)
            return outcome.response
        value = self._default_or_raise(call, outcome, args, kwargs)
        return await value if inspect.isawaitable(value) else value

    def call_blocking(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call, body = self._prepare(args, kwargs)
        call.waiter = waiter = BlockingCall(self.engine, body, inline=not call.options.needs_thread)
        try:
            outcome = waiter.result(call)
        except BaseException:
            self._report(call, "cancelled", None)
            raise
        if type(outcome) is not Answer:
            return self._finished(self._default_or_raise(call, outcome, args, kwargs), "default_result of ")
        try:
            value = self._finished(outcome.response)
        except ConfigError as error:
            self._report(call, "failed", error)
            raise
        self._report(call, "ok", None)
        return value

    def _finished(self, value: Any, whose: str = "") -> Any:
        """Return what a blocking function returned. Raise ``ConfigError`` if its work would begin only after the call, without limits."""
        if not isinstance(value, _UNFINISHED):
            return value
        if isinstance(value, Coroutine | Generator):
            value.close()  # nobody will await it
        raise ConfigError(
            f"{whose}{self.name}() is not an async function, but returned a {type(value).__name__}, so no limit, retry or time limit would "
            "apply to its work; decorate an async function that awaits this work and returns its result"
        )

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, Callable[[], Any]]:
        options, key = self.options, None
        if options.key_func is not None:
            key = options.key_func(*args, **kwargs)
            try:
                hash(key)
            except TypeError:
                raise ConfigError(
                    f"key_func of {self.name}() returned a {type(key).__name__}, which is not hashable; return a text or a tuple"
                ) from None
        return Call(self, key, options, None, paced=not _waiting_disabled), partial(self.body, *args, **kwargs)

    def _default_or_raise(self, call: Call, error: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        own = call.error is error
        outcome: Outcome = "failed" if own else _OUTCOMES.get(type(error), "failed")
        covered = call.covered if own else outcome != "failed" or is_retried(error, call.options) is not False
        default = call.options.default_for(error, covered=covered)
        self._report(call, outcome, error, defaulted=default is not NOT_GIVEN)
        if default is NOT_GIVEN:
            raise error
        kind = type(error)
        if kind not in self._replaced:  # a bug in the function must not stay unseen
            self._replaced.add(kind)
            where = "".join(f", raised at {frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-1:])
            log.warning(
                "default_result replaced a %s of %s()%s; further ones are not logged. exception_types says which exceptions are replaced",
                *(kind.__name__, self.name, where),
            )
        return default(*args, **kwargs) if callable(default) else default

    def _report(self, call: Call, outcome: Outcome, error: BaseException | None, *, defaulted: bool = False) -> None:
        if call.notes is not None:
            for at, text in call.notes:
                log.debug("%s() call %d at %.3f s: %s", self.name, call.number, at - call.born, text)
        if not call.options.receivers or not call.number:  # not submitted, because the caller was interrupted
            return
        now = self.engine.clock()
        queued, kind = (now if call.sent_at is None else call.sent_at) - call.born, None if error is None else type(error).__name__
        tries = call.begun, call.retries, call.hedges
        metrics = ScheduleMetrics(self.name, call.key, outcome, kind, defaulted, *tries, queued, now - call.born)
        for name, receiver in call.options.receivers:
            try:
                receiver(metrics)
            except Exception:
                log.exception("%s of %s() raised; the call is not affected", name, self.name)

    def stats(self) -> ScheduleStats:
        with self.engine.lock:
            keys, limit = self.keys.values(), self.engine.scheduler.limit
            rates = [state.limit for state in keys if state.limit is not None]
            return ScheduleStats(
                **vars(self.counters),
                waiting=sum(len(state.queue) for state in keys),
                inflight=sum(state.inflight for state in keys),
                limit=None if limit == inf else int(limit),
                rate=min(rates, default=self.options.limit_size),
                keys=len(keys),
                open_circuits=sum(state.opened_at > -inf for state in keys),
                p50=self.quantiles.at(0.5),
                p95=self.quantiles.at(0.95),
                p99=self.quantiles.at(0.99),
            )

    def reset(self) -> None:
        self._replaced.clear()
        self.engine.apply(lambda now: self.engine.scheduler.reset(now, self))


_ENGINES: WeakValueDictionary[object, Engine[CallScheduler]] = WeakValueDictionary()
"""The engines of all pools, by name; a pool without a name has an object in its place. A running call keeps an engine alive after the last
function of its pool is gone."""
_naming = threading.Lock()


def engine_of(pool: str | None) -> Engine[CallScheduler]:
    """Return the engine of the pool with this name, or a new engine if the name is None. It is freed with the functions that use it."""
    name = object() if pool is None else pool
    with _naming:
        engine = _ENGINES.get(name)
        if engine is None:
            no_backend: Any = AsyncExitStack  # functions send no requests
            engine = _ENGINES[name] = Engine(CallScheduler(Random()), no_backend, clock=calls.now)  # noqa: S311 - jitter, not secrets
        return engine


def _begin_again(_: object) -> object:
    """Give all functions new engines and no keys in a forked child, where the threads and calls of the parent do not exist."""
    global _naming
    _naming, inherited = threading.Lock(), list(_ENGINES.values())
    _ENGINES.clear()
    for function in [function for engine in inherited for function in engine.scheduler.functions]:
        assert isinstance(function, ScheduledFunction)
        function.engine = engine_of(function.config.pool)
        function.keys.clear()
        function.clear()
        function.engine.scheduler.add(function)
    return inherited


background.watch(ScheduledFunction, _begin_again)


async def cancel_timers() -> None:
    """Cancel all timers of decorated functions in the running event loop. Later calls in this loop set new timers."""
    for engine in list(_ENGINES.values()):
        await engine.leave()


P = ParamSpec("P")
Q = ParamSpec("Q")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
S = TypeVar("S")


class Scheduled(Protocol[P, R_co]):
    """A decorated function. It is called like the original function, and also has settings and counters.

    Attributes:
        config: the settings of the function. They can be changed while the function is in use.
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
        """Return the counters since the function was defined or reset."""

    def reset(self) -> None:
        """Reset counters, keys, adaptive limits and circuit breakers. Running and waiting calls continue."""


@overload
def schedule(function: Callable[P, T], /) -> Scheduled[P, T]: ...


@overload
def schedule(config: ScheduleConfig | None = None, /, **settings: Any) -> Callable[[Callable[P, T]], Scheduled[P, T]]: ...


def schedule(config: Any = None, /, **settings: Any) -> Any:
    """Add retries, hedges, limits, a circuit breaker, priority and a time limit to a slow or flaky function.

    An async function stays async, and a blocking function stays blocking. If a call ends early, running tries of an async function are
    cancelled, and results of a blocking function are discarded. The decorated function has ``config``, ``stats()`` and ``reset()``.

    Args:
        config: the settings. Later changes of the settings take effect. For ``@schedule`` without parentheses, this is the function itself.
        settings: settings by name; see :class:`~qreward.ScheduleConfig` for all of them.

    Raises:
        ConfigError: a setting is invalid, or the decorated object cannot be scheduled (for example a class or a generator function).

    A call of the decorated function raises the exceptions of the function, and:
        ConfigError: the function is not async, but returned an awaitable or a generator.
        RequestTimeout: the call did not end within ``timeout``.
        CircuitOpen: the function failed too often, so the circuit breaker rejects calls for a while.

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
        return functools.partial(decorate, config=config or ScheduleConfig(**settings))
    if settings or not (callable(config) or isinstance(config, staticmethod | classmethod)):
        raise ConfigError(f"schedule() takes settings by name, or a ScheduleConfig, not a {type(config).__name__}")
    return decorate(config, config=ScheduleConfig())


schedule.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # for help(): the settings are defined only in ScheduleConfig
    [
        inspect.Parameter("config", inspect.Parameter.POSITIONAL_ONLY, default=None, annotation=ScheduleConfig),
        *(each.replace(annotation=inspect.Parameter.empty) for each in inspect.signature(ScheduleConfig).parameters.values()),
    ]
)


def decorate(function: Any, /, config: ScheduleConfig, options_of: OptionsOf = FunctionOptions) -> Any:
    """Return the decorated function. ``options_of`` returns its options for each state of the configuration."""
    if isinstance(function, staticmethod | classmethod):
        return type(function)(decorate(function.__func__, config, options_of))
    kind, what = kind_of(function), getattr(function, "__qualname__", repr(function))
    if inspect.isclass(function):
        raise ConfigError(f"{what} is a class; decorate a function that creates an instance, or methods of the class")
    if kind is None:
        raise ConfigError(f"schedule() decorates functions, not a {type(function).__name__}")
    if kind in (FunctionKind.STREAMED, FunctionKind.GENERATOR):
        raise ConfigError(f"{what} is a generator, which cannot be retried after it has yielded a value; return a list instead")
    member = ScheduledFunction(function, config, options_of)
    wrapper: Any
    if kind is FunctionKind.AWAITED:

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await member.call(args, kwargs)

    else:

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return member.call_blocking(args, kwargs)

    functools.update_wrapper(wrapper, function)
    wrapper.config, wrapper.stats, wrapper.reset = member.config, member.stats, member.reset
    return wrapper
