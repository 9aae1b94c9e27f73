"""Backends of a pool: Ray actors, or scorers in this process. The only module that calls Ray's core.

It makes and calls scorers in the actor's process and in the caller's, and holds the pool's settings, statistics and errors. The part that
runs in an actor is pickled to it and imports Ray's pickler only there. Calls to a backend may block (Ray pickles arguments and copies them
into its store), so they are made in worker threads only. The module decides nothing: placement and restarts are in ``supervisor``.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import pickle
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from typing import Any, Literal, Protocol, get_args

from qreward.errors import ConfigError, ConnectionFailed, RequestError

CALL = "__call__"


@dataclass(frozen=True)
class ScorerSpec:
    """How to make a scorer.

    Args:
        scorer: a class, which is instantiated once in each actor; a function or an object that scores as it is; or, with ``factory``, a
            function that makes the scorer.
        args: positional arguments for the class or the factory.
        kwargs: keyword arguments for the class or the factory.
        factory: whether ``scorer`` is a factory.
        method: name of the method that scores.

    Raises:
        TypeError: the scorer cannot be called, or is a generator function, or there are arguments but no class or factory to take them.
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
        """Name of the scorer in messages."""
        named = getattr(self.scorer, "__qualname__", None) or type(self.scorer).__qualname__
        return named if self.method == CALL else f"{named}.{self.method}"

    @property
    def blocks(self) -> bool:
        """Whether the scorer is known not to be ``async def``. For a factory that is unknown until it has made the scorer."""
        return not self.factory and not is_async(self._seen())

    def make(self) -> Any:
        """Return the scorer, or the object whose method scores. Raises any exception of its constructor."""
        return self.scorer(*self.args, **self.kwargs) if self._is_made else self.scorer

    def function(self, made: Any) -> Callable[..., Any]:
        """Return the scoring function of what ``make`` returned. Raises ``TypeError`` if there is none."""
        function: Any = made if self.method == CALL else getattr(made, self.method, None)
        check(function, self.name)
        return function  # type: ignore[no-any-return]

    @property
    def _is_made(self) -> bool:
        return self.factory or isinstance(self.scorer, type)

    def _seen(self) -> Any:
        """Return the scoring function as far as it is known before anything is made; None if there is none."""
        scorer = self.scorer
        if isinstance(scorer, type):  # calling the class itself would instantiate it
            return getattr(scorer, self.method) if any(self.method in vars(each) for each in scorer.__mro__) else None
        return scorer if self.method == CALL else getattr(scorer, self.method, None)


def check(function: Any, name: str) -> None:
    """Raise ``TypeError`` for an object that cannot be a scorer."""
    if not callable(function):
        raise TypeError(f"{name} cannot be called; a scorer takes lists and returns a list (see `method` for an object's method)")
    if any(map(inspect.isasyncgenfunction, _looks(function))) or any(map(inspect.isgeneratorfunction, _looks(function))):
        raise TypeError(f"{name} must return its results, not yield them")


def is_async(function: Any) -> bool:
    """Whether the function returns a coroutine."""
    return any(map(inspect.iscoroutinefunction, _looks(function)))


def accepted(function: Callable[..., Any], columns: Sequence[Any]) -> Sequence[Any]:
    """Return the columns that a scorer takes. A scorer that takes only the completions does not receive their metadata.

    Example:
        >>> accepted(len, (["a", "b"], [{}, {}]))
        (['a', 'b'],)
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return columns
    for count in range(len(columns), 1, -1):
        with suppress(TypeError):
            signature.bind(*columns[:count])
            return columns[:count]
    return columns[:1]


def _looks(function: Any) -> tuple[Any, Any]:
    return function, type(function).__call__


Reply = tuple[bool, Any]
"""``(True, results)``, or ``(False, exception)`` if the scorer raised one."""


class ScorerActor:
    """The actor class of a blocking scorer. For several batches at once Ray runs it with one thread for each."""

    def __init__(self, spec: ScorerSpec) -> None:
        self._made = spec.make()
        self._score = spec.function(self._made)

    def ready(self) -> bool:
        """Return True. Ray runs this call when the constructor has returned."""
        return True

    def run(self, columns: tuple[Any, ...]) -> Reply:
        """Score a batch."""
        return attempt(partial(self._score, *accepted(self._score, columns)))

    def end(self) -> None:
        """Call the scorer's method ``close``, if it has one."""
        if callable(close := getattr(self._made, "close", None)):
            close()


class AsyncScorerActor:
    """The actor class of an async scorer, or of a factory, whose scorer may be either."""

    def __init__(self, spec: ScorerSpec, concurrency: int) -> None:
        self._made = spec.make()
        self._score = spec.function(self._made)
        self._threads = None if is_async(self._score) else ThreadPoolExecutor(concurrency, thread_name_prefix="scorer")

    async def ready(self) -> bool:
        """Return True. Ray runs this call when the constructor has returned."""
        return True

    async def run(self, columns: tuple[Any, ...]) -> Reply:
        """Score a batch. A thread cannot be stopped, so a batch in a thread runs to its end even if it is cancelled."""
        call = partial(self._score, *accepted(self._score, columns))
        if self._threads is not None:
            thread = asyncio.get_running_loop().run_in_executor(self._threads, attempt, call)
            try:
                return await asyncio.shield(thread)
            except asyncio.CancelledError:
                await asyncio.wait([thread])
                raise
        try:
            return given(await call())
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            return raised(error)

    async def end(self) -> None:
        """Call the scorer's method ``close``, if it has one, and await its result if needed."""
        if callable(close := getattr(self._made, "close", None)) and inspect.isawaitable(ended := close()):
            await ended


def attempt(call: partial[Any]) -> Reply:
    """Return what a blocking scorer returns or raises. An exception such as ``SystemExit`` does not end the actor."""
    try:
        return given(call())
    except BaseException as error:
        return raised(error)


def given(results: Any) -> Reply:
    """Return a reply with results. Exceptions among them are made picklable."""
    if isinstance(results, list | tuple) and any(isinstance(one, BaseException) for one in results):
        return True, [portable(one) if isinstance(one, BaseException) else one for one in results]
    return True, results


def raised(error: BaseException) -> Reply:
    """Return a reply with an exception. Its traceback is added as a note, because tracebacks are not pickled."""
    shown = portable(error)
    shown.add_note("In the actor:\n" + "".join(traceback.format_exception(error)).rstrip())
    return False, shown


def mild(error: BaseException) -> Exception:
    """Return the exception, or a ``RuntimeError`` in place of one that would end the caller's event loop or program."""
    return error if isinstance(error, Exception) else RuntimeError(f"the scorer raised {type(error).__name__}: {error}")


def portable(error: BaseException) -> BaseException:
    """Return the exception, or a ``RuntimeError`` with the same text if it cannot be pickled and unpickled."""
    error = mild(error)
    try:
        again = pickle.loads(importlib.import_module("ray.cloudpickle").dumps(error))  # noqa: S301
        same = type(again) is type(error) and str(again) == str(error)
    except Exception:
        same = False
    return error if same else RuntimeError(f"{type(error).__name__}: {error}")


Backend = Literal["auto", "ray", "local"]
INSTALL = "pip install 'qreward[ray]'"


class ActorDied(ConnectionFailed, ConnectionError):
    """An actor died, and the score with it: repeatedly with this item alone on it, or no actor is left."""


class ActorLost(Exception):
    """The actor of a batch is gone, so the batch has no result. Its items are not at fault so far.

    Args:
        message: what happened to the actor.
        in_making: the actor never started: its class raised, or its environment could not be set up.
        excused: no batch can have caused the death, for example because the node was preempted.
    """

    def __init__(self, message: str, *, in_making: bool = False, excused: bool = False) -> None:
        super().__init__(message)
        self.in_making = in_making
        self.excused = excused


@dataclass(frozen=True)
class PoolConfig:
    """The settings of a pool, as documented in :class:`~qreward.integrations.ray.ScorerPool`."""

    actors: int = 1
    max_concurrent_batches: int = 1
    backend: Backend = "auto"
    batch_timeout: float | None = None
    start_timeout: float | None = 600.0
    max_restarts: int = 20
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _whole("actors", self.actors, 1)
        _whole("max_concurrent_batches", self.max_concurrent_batches, 1)
        _whole("max_restarts", self.max_restarts, 0)
        _seconds("batch_timeout", self.batch_timeout)
        _seconds("start_timeout", self.start_timeout)
        if self.backend not in get_args(Backend):
            raise ConfigError(f"backend must be one of {', '.join(map(repr, get_args(Backend)))}, not {self.backend!r}")

    @property
    def slots(self) -> int:
        """Number of batches that the actors can take at once."""
        return self.actors * self.max_concurrent_batches


@dataclass(frozen=True, slots=True)
class PoolStats:
    """The state of a pool.

    Args:
        backend: ``ray`` or ``local``; None before the first batch.
        ready: actors that can take batches.
        starting: actors that are starting, or wait to be restarted.
        lost: actors that were given up.
        waiting: batches that wait for an actor.
        in_flight: batches on actors.
        batches: batches that returned, with results or with an exception of the scorer.
        deaths: actors that died or failed to start.
        retried: batches that were sent again because their actor died.
        poisonous: items that failed because an actor died with only that item on it.
        timeouts: batches that exceeded ``batch_timeout``.
    """

    backend: str | None = None
    ready: int = 0
    starting: int = 0
    lost: int = 0
    waiting: int = 0
    in_flight: int = 0
    batches: int = 0
    deaths: int = 0
    retried: int = 0
    poisonous: int = 0
    timeouts: int = 0


def cancelled() -> RequestError:
    """Return the error of a batch that was cancelled, though not by its caller."""
    return RequestError("the batch was cancelled in its actor; its items may be submitted again")


def length_of(columns: Sequence[Sequence[Any]]) -> int:
    """Return the number of items of a batch.

    Raises:
        ConfigError: there is no column, or the columns differ in length.
    """
    counts = {len(column) for column in columns}
    if len(counts) != 1:
        raise ConfigError(f"a batch is one list, or several of equal length; got lengths {[len(column) for column in columns]}")
    return counts.pop()


def _whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer >= {least}, got {value!r}")
    if value < least:
        raise ConfigError(f"{name} must be an integer >= {least}, got {value}")


def _seconds(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds or None, got {value!r}")
    if not (isfinite(value) and value > 0):
        raise ConfigError(f"{name} must be a positive number of seconds or None, got {value}")


FAREWELL = 5.0
"""Seconds for a scorer's ``close``."""
DEATHS = ("RayActorError", "NodeDiedError", "WorkerCrashedError", "OutOfMemoryError", "ObjectLostError", "LocalRayletDiedError")
"""Names in ``ray.exceptions``: an actor, or a result of it, is gone."""
HOPELESS = ("RuntimeEnvSetupError", "ActorUnschedulableError")
"""Names in ``ray.exceptions``: an actor cannot be started."""
SHOWN = 240
"""Maximum number of characters of Ray's message in an error. Ray appends long advice."""
Stop = Callable[[], object]


class ActorBackend(Protocol):
    """A backend: starts, calls and stops actors of one kind."""

    name: str

    def start_actor(self) -> tuple[Any, Future[Any]]:
        """Begin to start an actor. The future is done when it is ready."""

    def send(self, actor: Any, columns: tuple[Any, ...], loop: asyncio.AbstractEventLoop) -> tuple[Future[Reply], Stop]:
        """Send a batch to an actor. The returned function requests its cancellation."""

    def read(self, error: BaseException) -> BaseException:
        """Convert an exception of a future to the one that the caller sees; ``ActorLost`` if the actor is gone."""

    def stop_actor(self, actor: Any, gently: bool) -> None:
        """Stop an actor. Does not raise."""


class RayBackend:
    """Actors in Ray.

    Raises:
        ConfigError: this process is not connected to Ray.
        ModuleNotFoundError: Ray is not installed.
    """

    name = "ray"

    def __init__(self, spec: ScorerSpec, terms: PoolConfig) -> None:
        self._ray = ray = require_ray()
        if not ray.is_initialized():
            raise ConfigError("this process is not connected to Ray; call ray.init() first, or use backend='local'")
        errors = ray.exceptions
        self._deaths: tuple[Any, ...] = tuple(getattr(errors, name) for name in DEATHS + HOPELESS)
        self._hopeless: tuple[Any, ...] = tuple(getattr(errors, name) for name in HOPELESS)
        most = terms.max_concurrent_batches
        kind, more = (ScorerActor, ()) if spec.blocks else (AsyncScorerActor, (most,))
        # one call more than batches, so that ``ready`` and ``end`` of an async actor do not wait for a batch
        asked = {"max_concurrency": most if spec.blocks else most + 1, "max_restarts": 0, "max_task_retries": 0}
        self._make: Callable[[], Any] = partial(ray.remote(kind).options(**terms.options, **asked).remote, spec, *more)

    def start_actor(self) -> tuple[Any, Future[Any]]:
        if not self._ray.is_initialized():  # else Ray would start a new cluster
            raise ConfigError("this process is not connected to Ray any more")
        actor = self._make()
        return actor, actor.ready.remote().future()

    def send(self, actor: Any, columns: tuple[Any, ...], loop: asyncio.AbstractEventLoop) -> tuple[Future[Reply], Stop]:  # noqa: ARG002
        reference = actor.run.remote(columns)
        return reference.future(), partial(self._cancel, reference)

    def read(self, error: BaseException) -> BaseException:
        if isinstance(error, self._deaths):
            in_making = isinstance(error, self._hopeless) or getattr(error, "actor_init_failed", False)
            return ActorLost(summary(str(error)), in_making=in_making, excused=getattr(error, "preempted", False))
        if isinstance(error, self._ray.exceptions.TaskCancelledError):
            return cancelled()
        cause = getattr(error, "cause", None)  # a RayTaskError has one, such as for unpicklable results
        return cause if isinstance(cause, Exception) else error

    def stop_actor(self, actor: Any, gently: bool) -> None:
        with suppress(Exception):
            if gently:
                actor.end.remote().future().result(FAREWELL)
        with suppress(Exception):  # the actor may be dead, or Ray
            self._ray.kill(actor)

    def _cancel(self, reference: Any) -> None:
        with suppress(Exception):  # the batch may be done, or its actor dead
            self._ray.cancel(reference)


class LocalBackend:
    """Scorers in this process. A blocking scorer runs in the worker thread that sends the batch, an async one in the caller's loop."""

    name = "local"

    def __init__(self, spec: ScorerSpec) -> None:
        self._spec = spec

    def start_actor(self) -> tuple[Any, Future[Any]]:
        made = self._spec.make()
        self._spec.function(made)
        return made, _done(None)

    def send(self, actor: Any, columns: tuple[Any, ...], loop: asyncio.AbstractEventLoop) -> tuple[Future[Reply], Stop]:
        score = self._spec.function(actor)
        call = partial(score, *accepted(score, columns))
        if is_async(score):
            future = asyncio.run_coroutine_threadsafe(_awaited(call), loop)
            return future, future.cancel
        try:
            return _done((True, call())), _nothing
        except BaseException as error:
            return _done((False, mild(error))), _nothing

    def read(self, error: BaseException) -> BaseException:
        return error

    def stop_actor(self, actor: Any, gently: bool) -> None:
        close = getattr(actor, "close", None)
        with suppress(Exception):
            if gently and callable(close):
                close()


def choose(spec: ScorerSpec, terms: PoolConfig) -> ActorBackend:
    """Return the backend: Ray if ``backend`` is ``ray``, or ``auto`` while this process is connected to Ray; else this process."""
    use_ray = terms.backend == "ray" or (terms.backend == "auto" and is_connected())
    return RayBackend(spec, terms) if use_ray else LocalBackend(spec)


def is_connected() -> bool:
    """Whether this process is connected to Ray. Does not import Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def check_installed(backend: Backend) -> None:
    """Raise ``ModuleNotFoundError`` with the install command if ``backend`` is ``ray`` and Ray is not installed. Does not import Ray."""
    if backend == "ray" and "ray" not in sys.modules and importlib.util.find_spec("ray") is None:
        raise ModuleNotFoundError(f"backend='ray' needs Ray: {INSTALL}", name="ray")


def require_ray() -> Any:
    """Import and return Ray. Raises ``ModuleNotFoundError`` with the install command."""
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}; this needs Ray: {INSTALL}", name=error.name) from error


def summary(text: str) -> str:
    """Return the last line of Ray's message about a death, which has the cause, at most ``SHOWN`` characters.

    Example:
        >>> summary("The actor died.\\n  pid: 7\\nits worker process has died.\\n")
        'its worker process has died.'
    """
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() if line.strip()]
    return lines[-1][:SHOWN] if lines else "it died"


async def _awaited(call: Callable[[], Any]) -> Reply:
    try:
        return True, await call()
    except (Exception, SystemExit) as error:
        return False, mild(error)


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def _nothing() -> None:
    """Do nothing: a thread cannot be stopped."""
