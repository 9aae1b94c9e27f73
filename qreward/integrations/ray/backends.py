"""Where the scorers of a pool are: in Ray actors, or in this process."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pickle
import re
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

from qreward.batching.settings import check_seconds, check_whole
from qreward.callables import FunctionKind, kind_of, lists_taken, name_of
from qreward.errors import ConfigError, RequestError
from qreward.transport.local import in_thread, is_death, not_exiting

CALL = "__call__"
INSTALL = "pip install 'qreward[ray]'"
NEVER_STARTED = ("RuntimeEnvSetupError", "ActorUnschedulableError")
"""Exceptions of ``ray.exceptions`` that mean that an actor cannot be started."""
Kind = Literal["auto", "ray", "local"]


class ActorLost(Exception):
    """The actor of a batch is gone, so the batch has no result. If ``excused``, none of its items is at fault."""

    def __init__(self, message: str, *, excused: bool = False, never_started: bool = False) -> None:
        super().__init__(message)
        self.excused = excused
        self.never_started = never_started


@dataclass(frozen=True)
class ScorerSpec:
    """The arguments of :class:`~qreward.integrations.ray.ScorerPool` that say how to make a scorer."""

    scorer: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    factory: bool = False
    method: str = CALL

    def __post_init__(self) -> None:
        if not self._is_made and (self.args or self.kwargs):
            raise TypeError("init_args and init_kwargs are for a class, or for a factory (factory=True); the scorer is neither")
        if self.factory and not callable(self.scorer):
            raise TypeError(f"a factory must be a function that makes the scorer, not a {type(self.scorer).__name__}")
        if isinstance(self.scorer, type) and not self.factory:  # ``callable`` is true for every class
            defined = any(self.method in vars(each) for each in self.scorer.__mro__)
            self._checked(getattr(self.scorer, self.method) if defined else None)
        elif not self.factory:
            self.function(self.scorer)

    @property
    def name(self) -> str:
        return name_of(self.scorer) if self.method == CALL else f"{name_of(self.scorer)}.{self.method}"

    @property
    def _is_made(self) -> bool:
        return self.factory or isinstance(self.scorer, type)

    def make(self) -> Any:
        return self.scorer(*self.args, **self.kwargs) if self._is_made else self.scorer

    def function(self, made: Any) -> Callable[..., Any]:
        return self._checked(made if self.method == CALL else getattr(made, self.method, None))

    def _checked(self, function: Any) -> Callable[..., Any]:
        kind = kind_of(function)
        if kind is None:
            raise TypeError(f"{self.name} cannot be called; a scorer takes lists and returns a list (see `method` for an object's method)")
        if kind in (FunctionKind.STREAMED, FunctionKind.GENERATOR):
            raise TypeError(f"{self.name} must return its results, not yield them")
        return function  # type: ignore[no-any-return]


def close_scorer(made: Any) -> Awaitable[Any] | None:
    """Call the scorer's method ``close``, if it has one. Return the method's result if the result must be awaited, else None."""
    close = getattr(made, "close", None)
    ended = close() if callable(close) else None
    return ended if inspect.isawaitable(ended) else None


class ScorerActor:
    def __init__(self, spec: ScorerSpec) -> None:
        self._made = spec.make()
        self._function = spec.function(self._made)

    async def score(self, columns: tuple[Any, ...]) -> Any:
        """Score a batch. A scorer with fewer parameters receives only the first columns.

        A thread cannot be stopped, so a batch in a thread runs to its end even if it is cancelled.
        """
        call = partial(self._function, *(columns[: lists_taken(self._function, len(columns)) or 1]))
        if kind_of(self._function) is FunctionKind.AWAITED:
            try:
                return await call()
            except SystemExit as error:
                raise not_exiting(error, "scorer") from error
        thread = asyncio.wrap_future(in_thread(partial(copy_context().run, call), "scorer"))  # Ray keeps the task in context variables
        thread.add_done_callback(lambda done: done.cancelled() or done.exception())  # avoids a warning if nobody awaits the thread
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            await asyncio.wait([thread])
            raise

    async def end(self) -> None:
        closing = await asyncio.wrap_future(in_thread(partial(close_scorer, self._made), "scorer"))
        if closing is not None:
            await closing


class RemoteActor(ScorerActor):
    """A scorer in a Ray actor, whose exceptions travel as values, so that none of them ends the actor."""

    async def ready(self) -> None:
        """Do nothing. Ray runs this method only after the constructor has returned."""

    async def run(self, columns: tuple[Any, ...]) -> tuple[bool, Any]:
        """Return ``(True, results)``, or ``(False, exception)`` with the traceback as a note, because tracebacks are not pickled."""
        try:
            results = await self.score(columns)
        except Exception as error:
            shown = portable(error)
            shown.add_note("In the actor:\n" + "".join(traceback.format_exception(error)).rstrip())
            return False, shown
        if isinstance(results, list | tuple) and any(isinstance(one, BaseException) for one in results):
            results = [portable(one) if isinstance(one, BaseException) else one for one in results]
        return True, results


def portable(error: BaseException) -> BaseException:
    """Return the exception, or a ``RuntimeError`` with its text if it cannot be pickled and unpickled."""
    error = not_exiting(error, "scorer")
    try:
        again = pickle.loads(importlib.import_module("ray.cloudpickle").dumps(error))  # noqa: S301
        same = type(again) is type(error) and str(again) == str(error)
    except Exception:
        same = False
    return error if same else RuntimeError(f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class PoolConfig:
    actors: int = 1
    max_concurrent_batches: int = 1
    backend: Kind = "auto"
    batch_timeout: float | None = None
    start_timeout: float | None = 600.0
    max_restarts: int = 20
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_whole("actors", self.actors)
        check_whole("max_concurrent_batches", self.max_concurrent_batches)
        check_whole("max_restarts", self.max_restarts, least=0)
        check_seconds("batch_timeout", self.batch_timeout)
        check_seconds("start_timeout", self.start_timeout)
        if self.backend not in get_args(Kind):
            raise ConfigError(f"backend must be one of {', '.join(map(repr, get_args(Kind)))}, not {self.backend!r}")
        if wrong := {"max_concurrency", "max_restarts", "max_task_retries"} & self.options.keys():
            raise ConfigError(f"{min(wrong)} cannot be set in ray_options; use max_concurrent_batches or max_restarts of the pool")


class LocalActor:
    """A scorer in this process, and what a pool knows of it."""

    backend = "local"

    def __init__(self, spec: ScorerSpec, config: PoolConfig) -> None:
        self.spec, self.config = spec, config
        self.free = config.max_concurrent_batches  # number of batches that it can take now
        self.finished = False  # whether it has returned a batch
        self.lost: asyncio.Future[ActorLost] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        self._scorer: ScorerActor = await asyncio.wrap_future(in_thread(partial(ScorerActor, self.spec), "scorer"))

    async def score(self, columns: tuple[Any, ...]) -> Any:
        """Score a batch. Cancelling this cancels the scorer, and then still waits for its end."""
        return await self._scorer.score(columns)

    async def end(self) -> None:
        """Call the scorer's ``close``."""
        await self._scorer.end()

    def kill(self) -> None:
        """Do nothing, because the scorer is freed when no thread uses it."""


class RayActor(LocalActor):
    """A scorer in a Ray actor. The methods run in the event loop of the pool, and calls of Ray may block this loop.

    A dead actor is replaced by a new one. Ray's own restarts hide why an actor died, and do not cover a constructor that raises.
    """

    backend = "ray"

    async def start(self) -> None:
        check_connected(" any more")
        # one call more than batches, so that ``ready`` and ``end`` do not wait for a batch
        own = {"max_concurrency": self.config.max_concurrent_batches + 1, "max_restarts": 0, "max_task_retries": 0}
        self._handle = require_ray().remote(RemoteActor).options(**self.config.options, **own).remote(self.spec)
        try:
            await _answer(self._handle.ready.remote())
        except BaseException:
            self.kill()
            raise

    async def score(self, columns: tuple[Any, ...]) -> Any:
        reference = self._handle.run.remote(columns)
        answer = asyncio.ensure_future(_answer(reference))
        try:
            ok, value = await asyncio.shield(answer)
        except asyncio.CancelledError:
            with suppress(Exception):  # the call may be done, or its actor dead
                require_ray().cancel(reference)
            ok, value = await answer
        if not ok:
            raise value
        return value

    async def end(self) -> None:
        await _answer(self._handle.end.remote())

    def kill(self) -> None:
        with suppress(Exception):  # the actor may be dead, or Ray may have ended
            require_ray().kill(self._handle)


async def _answer(reference: Any) -> Any:
    """Return the result of a call of an actor. Raises ``ActorLost`` if the actor is gone, and otherwise the exception of the scorer."""
    try:
        return await asyncio.wrap_future(reference.future())
    except Exception as error:
        never_started = type(error).__name__ in NEVER_STARTED or getattr(error, "actor_init_failed", False)
        if never_started or is_death(error):
            # the last line of Ray's message names the cause; a long advice at its end is cut off
            lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines() if line.strip()]
            reason = lines[-1][:240] if lines else "it died"
            raise ActorLost(reason, excused=getattr(error, "preempted", False), never_started=never_started) from None
        if type(error).__name__ == "TaskCancelledError":
            raise RequestError("the batch was cancelled in its actor; its items may be submitted again") from None
        cause = getattr(error, "cause", None)  # a RayTaskError has a cause, for example if results cannot be pickled
        raise (cause if isinstance(cause, Exception) else error) from None


def is_connected() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def check_connected(advice: str) -> None:
    if not is_connected():  # without this check, Ray would start a new cluster
        raise ConfigError(f"this process is not connected to Ray{advice}")


def require_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}; this needs Ray: {INSTALL}", name=error.name) from error
