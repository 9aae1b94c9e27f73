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
from typing import Any, Literal

from qreward.callables import FunctionKind, kind_of, lists_taken, name_of
from qreward.errors import ConfigError, RequestError
from qreward.transport.local import in_thread, is_death, not_exiting

CALL = "__call__"
INSTALL = "pip install 'qreward[ray]'"
NEVER_STARTED = ("RuntimeEnvSetupError", "ActorUnschedulableError")
"""Exceptions of ``ray.exceptions`` that mean that an actor cannot be started."""
SHOWN = 240
"""Maximum number of characters of Ray's message in an error. The rest of the message is long advice."""
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


class LocalBackend:
    name = "local"

    def __init__(self, spec: ScorerSpec) -> None:
        self._spec = spec

    async def start(self) -> ScorerActor:
        made: ScorerActor = await asyncio.wrap_future(in_thread(partial(ScorerActor, self._spec), "scorer"))
        return made

    async def score(self, actor: ScorerActor, columns: tuple[Any, ...]) -> Any:
        return await actor.score(columns)

    async def end(self, actor: ScorerActor) -> None:
        await actor.end()

    def kill(self, actor: ScorerActor) -> None:
        """Do nothing, because the scorer is freed when no thread uses it."""


class RayBackend:
    """Runs scorers in Ray actors. The methods run in the event loop of the pool, and calls of Ray may block this loop.

    A dead actor is replaced by a new one. Ray's own restarts hide why an actor died, and do not cover a constructor that raises.
    """

    name = "ray"

    def __init__(self, spec: ScorerSpec, max_concurrent_batches: int, options: Mapping[str, Any]) -> None:
        self._ray = require_ray()
        self._check_connected("; call ray.init() first, or use backend='local'")
        # one call more than batches, so that ``ready`` and ``end`` do not wait for a batch
        own = {"max_concurrency": max_concurrent_batches + 1, "max_restarts": 0, "max_task_retries": 0}
        self._make: Callable[[], Any] = partial(self._ray.remote(RemoteActor).options(**options, **own).remote, spec)

    def _check_connected(self, advice: str) -> None:
        if not self._ray.is_initialized():  # without this check, Ray would start a new cluster
            raise ConfigError(f"this process is not connected to Ray{advice}")

    async def start(self) -> Any:
        self._check_connected(" any more")
        actor = self._make()
        try:
            await self._answer(actor.ready.remote())
        except BaseException:
            self.kill(actor)
            raise
        return actor

    async def score(self, actor: Any, columns: tuple[Any, ...]) -> Any:
        """Score a batch. Cancelling this cancels the call of the actor, and then still waits for its end."""
        reference = actor.run.remote(columns)
        answer = asyncio.ensure_future(self._answer(reference))
        try:
            ok, value = await asyncio.shield(answer)
        except asyncio.CancelledError:
            with suppress(Exception):  # the call may be done, or its actor dead
                self._ray.cancel(reference)
            ok, value = await answer
        if not ok:
            raise value
        return value

    async def end(self, actor: Any) -> None:
        await self._answer(actor.end.remote())

    def kill(self, actor: Any) -> None:
        with suppress(Exception):  # the actor may be dead, or Ray may have ended
            self._ray.kill(actor)

    async def _answer(self, reference: Any) -> Any:
        """Return the result of a call of an actor. Raises ``ActorLost`` if the actor is gone, and otherwise the exception of the scorer."""
        try:
            return await asyncio.wrap_future(reference.future())
        except Exception as error:
            never_started = type(error).__name__ in NEVER_STARTED or getattr(error, "actor_init_failed", False)
            if never_started or is_death(error):
                excused = getattr(error, "preempted", False)
                raise ActorLost(_last_line(str(error)), excused=excused, never_started=never_started) from None
            if isinstance(error, self._ray.exceptions.TaskCancelledError):
                raise RequestError("the batch was cancelled in its actor; its items may be submitted again") from None
            cause = getattr(error, "cause", None)  # a RayTaskError has a cause, for example if results cannot be pickled
            raise (cause if isinstance(cause, Exception) else error) from None


Backend = RayBackend | LocalBackend


def _last_line(text: str) -> str:
    """Return the last line of Ray's message about a death, because it names the cause."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() if line.strip()]
    return lines[-1][:SHOWN] if lines else "it died"


def is_connected() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def require_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}; this needs Ray: {INSTALL}", name=error.name) from error
