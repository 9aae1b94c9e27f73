"""Where scorers live and work: Ray's actors, or objects in this process. The only place that calls Ray's core.

What is here may block for a while (Ray pickles, copies into its store), so it is called in worker threads only. It decides nothing.

How a scorer is made, there where it is to work, and how it is called. Knows neither Ray nor event loops: it travels to the actors.

What an actor is: a scorer, made there, and called with whole batches. What it raises comes back as a value that can travel.

Runs in the actor's process, and imports Ray's pickler only there.

What the rooms here say to each other and to callers: errors, the settings of a pool, its numbers. No Ray, no asyncio.
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


Reply = tuple[bool, Any]
"""Whether the scorer gave results, and they; else False and what it raised."""


class Host:
    """The actor of a scorer that blocks. With several batches at once Ray gives it a thread for each."""

    def __init__(self, recipe: Recipe) -> None:
        self._made = recipe.make()
        self._score = recipe.function(self._made)

    def ready(self) -> bool:
        """It has been made."""
        return True

    def run(self, columns: tuple[Any, ...]) -> Reply:
        """Score a batch."""
        return attempt(partial(self._score, *accepted(self._score, columns)))

    def end(self) -> None:
        """Let the scorer put away what it has, if it has a ``close``."""
        if callable(close := getattr(self._made, "close", None)):
            close()


class AsyncHost:
    """The actor of a scorer that is awaited, or of which that is not known before it is made."""

    def __init__(self, recipe: Recipe, concurrency: int) -> None:
        self._made = recipe.make()
        self._score = recipe.function(self._made)
        self._threads = None if is_async(self._score) else ThreadPoolExecutor(concurrency, thread_name_prefix="scorer")

    async def ready(self) -> bool:
        """It has been made."""
        return True

    async def run(self, columns: tuple[Any, ...]) -> Reply:
        """Score a batch. A thread cannot be stopped: its batch ends with it, even when it is cancelled."""
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
        """Let the scorer put away what it has, if it has a ``close``."""
        if callable(close := getattr(self._made, "close", None)) and inspect.isawaitable(ended := close()):
            await ended


def attempt(call: partial[Any]) -> Reply:
    """What a blocking scorer gives or raises. One that exits does not take the actor with it."""
    try:
        return given(call())
    except BaseException as error:
        return raised(error)


def given(results: Any) -> Reply:
    """Results that can travel: exceptions among them are made fit for it."""
    if isinstance(results, list | tuple) and any(isinstance(one, BaseException) for one in results):
        return True, [portable(one) if isinstance(one, BaseException) else one for one in results]
    return True, results


def raised(error: BaseException) -> Reply:
    """What a scorer raised, with where that was in words: a traceback does not travel."""
    shown = portable(error)
    shown.add_note("In the actor:\n" + "".join(traceback.format_exception(error)).rstrip())
    return False, shown


def mild(error: BaseException) -> Exception:
    """The exception, unless it is one that would end its caller's loop or program."""
    return error if isinstance(error, Exception) else RuntimeError(f"the scorer raised {type(error).__name__}: {error}")


def portable(error: BaseException) -> BaseException:
    """The exception, or one that says the same, if it cannot be taken to another process and made again there."""
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
    """An actor died and took the score with it: time after time with this one item alone on it, or no actor is left at all."""


class ActorLost(Exception):
    """A batch has no outcome, because its actor is gone; it says nothing of its items yet.

    Args:
        message: what became of the actor.
        in_making: it never came to be: its class raised, or its environment could not be set up.
        excused: nothing that it was given can be the reason, such as a node that was taken back.
    """

    def __init__(self, message: str, *, in_making: bool = False, excused: bool = False) -> None:
        super().__init__(message)
        self.in_making = in_making
        self.excused = excused


@dataclass(frozen=True)
class PoolConfig:
    """The settings of a pool; :class:`~qreward.integrations.ray.ScorerPool` says what they mean."""

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
        """Batches that may be under way at once."""
        return self.actors * self.max_concurrent_batches


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Where a pool stands.

    Args:
        backend: ``ray`` or ``local``; None before the first batch.
        ready: actors that can be given batches.
        starting: actors that are being made, or wait to be made again.
        lost: actors that were given up.
        waiting: batches that wait for an actor.
        in_flight: batches on actors.
        batches: that came back, whole or with an exception of the scorer.
        deaths: actors that died or could not be made.
        retried: batches that went back because their actor died.
        poisonous: items that failed because an actor died with each of them alone on it.
        timeouts: batches that took too long.
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
    """The error of a batch that somebody else cancelled."""
    return RequestError("the batch was cancelled in its actor; its items may be submitted again")


def length_of(columns: Sequence[Sequence[Any]]) -> int:
    """How many items a batch has.

    Raises:
        ConfigError: there is no column, or they differ in length.
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
"""Seconds that a scorer is given to put away what it has."""
DEATHS = ("RayActorError", "NodeDiedError", "WorkerCrashedError", "OutOfMemoryError", "ObjectLostError", "LocalRayletDiedError")
"""Of ``ray.exceptions``: an actor, or what it gave, is gone."""
HOPELESS = ("RuntimeEnvSetupError", "ActorUnschedulableError")
"""An actor cannot be made."""
SHOWN = 240
"""Characters of Ray's own words that are told; it goes on with advice."""
Stop = Callable[[], object]


class Crew(Protocol):
    """A kind of actors."""

    name: str

    def hire(self) -> tuple[Any, Future[Any]]:
        """Begin to make an actor; the future is done when it is ready."""

    def send(self, actor: Any, columns: tuple[Any, ...], loop: asyncio.AbstractEventLoop) -> tuple[Future[Reply], Stop]:
        """Have a batch scored; the function asks for it to be stopped."""

    def read(self, error: BaseException) -> BaseException:
        """What a future raised, as a caller may see it; ``ActorLost`` if the actor is gone."""

    def dismiss(self, actor: Any, gently: bool) -> None:
        """End an actor. Does not raise."""


class RayCrew:
    """Actors of Ray.

    Raises:
        ConfigError: this process is not connected to Ray.
        ModuleNotFoundError: Ray is not installed.
    """

    name = "ray"

    def __init__(self, recipe: Recipe, terms: PoolConfig) -> None:
        self._ray = ray = require_ray()
        if not ray.is_initialized():
            raise ConfigError("this process is not connected to Ray; call ray.init() first, or use backend='local'")
        errors = ray.exceptions
        self._deaths: tuple[Any, ...] = tuple(getattr(errors, name) for name in DEATHS + HOPELESS)
        self._hopeless: tuple[Any, ...] = tuple(getattr(errors, name) for name in HOPELESS)
        most = terms.max_concurrent_batches
        kind, more = (Host, ()) if recipe.blocks else (AsyncHost, (most,))
        asked = {"max_concurrency": most if recipe.blocks else most + 1, "max_restarts": 0, "max_task_retries": 0}  # it looks, too
        self._make: Callable[[], Any] = partial(ray.remote(kind).options(**terms.options, **asked).remote, recipe, *more)

    def hire(self) -> tuple[Any, Future[Any]]:
        if not self._ray.is_initialized():  # else it would start a cluster of its own
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
        cause = getattr(error, "cause", None)  # of a RayTaskError, such as for results that cannot be pickled
        return cause if isinstance(cause, Exception) else error

    def dismiss(self, actor: Any, gently: bool) -> None:
        with suppress(Exception):
            if gently:
                actor.end.remote().future().result(FAREWELL)
        with suppress(Exception):  # it may be dead, and Ray too
            self._ray.kill(actor)

    def _cancel(self, reference: Any) -> None:
        with suppress(Exception):  # it may be done, or its actor dead
            self._ray.cancel(reference)


class EmbeddedCrew:
    """Scorers in this process: a blocking one runs in the worker thread that sends, one to be awaited in the loop of its caller."""

    name = "local"

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    def hire(self) -> tuple[Any, Future[Any]]:
        made = self._recipe.make()
        self._recipe.function(made)
        return made, _done(None)

    def send(self, actor: Any, columns: tuple[Any, ...], loop: asyncio.AbstractEventLoop) -> tuple[Future[Reply], Stop]:
        score = self._recipe.function(actor)
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

    def dismiss(self, actor: Any, gently: bool) -> None:
        close = getattr(actor, "close", None)
        with suppress(Exception):
            if gently and callable(close):
                close()


def choose(recipe: Recipe, terms: PoolConfig) -> Crew:
    """Ray's actors if this process is connected to Ray, or they are asked for; else this process."""
    use_ray = terms.backend == "ray" or (terms.backend == "auto" and is_connected())
    return RayCrew(recipe, terms) if use_ray else EmbeddedCrew(recipe)


def is_connected() -> bool:
    """Whether this process uses Ray already; does not import it."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def check_installed(backend: Backend) -> None:
    """Raise ``ModuleNotFoundError`` with the remedy if Ray is asked for and is not there; does not import it."""
    if backend == "ray" and "ray" not in sys.modules and importlib.util.find_spec("ray") is None:
        raise ModuleNotFoundError(f"backend='ray' needs Ray: {INSTALL}", name="ray")


def require_ray() -> Any:
    """The module. Raises ``ModuleNotFoundError`` with the remedy."""
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}; this needs Ray: {INSTALL}", name=error.name) from error


def summary(text: str) -> str:
    """What Ray says of a death, on one line: of its many lines the last says why.

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
    """A thread cannot be stopped."""
