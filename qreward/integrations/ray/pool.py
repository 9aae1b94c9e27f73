"""``ScorerPool``: a scorer in many Ray actors, or in this process, called with whole batches."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import pickle
import re
import sys
import threading
import traceback
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Self, Unpack, get_args

from qreward.batching import BatchQueue
from qreward.batching.collector import halves
from qreward.batching.in_flight import isolate
from qreward.batching.reward_buffer import InvalidScores, RewardBuffer, read_scores
from qreward.batching.settings import Options, check_seconds, check_whole
from qreward.callables import FunctionKind, kind_of, lists_taken, name_of
from qreward.engine import background
from qreward.engine.portal import Portal
from qreward.errors import ClientClosed, ConfigError, ConnectionFailed, Rejected, RequestError, RequestTimeout
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
        """Call the scorer's ``close``."""
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


class LocalActor(ScorerActor):
    """A scorer in this process, which is made when the actor starts, and what a pool knows of it."""

    backend = "local"

    def __init__(self, spec: ScorerSpec, config: PoolConfig) -> None:
        self.spec, self.config = spec, config
        self.free = config.max_concurrent_batches  # number of batches that it can take now
        self.finished = False  # whether it has returned a batch
        self.lost: asyncio.Future[ActorLost] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        await asyncio.wrap_future(in_thread(partial(super().__init__, self.spec), "scorer"))

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
        await _answer(self._handle.ready.remote())

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


ALONE_AFTER, SPLIT_AFTER = 1, 2
"""Number of actor deaths after which a batch no longer shares its actor, and after which it is split. The count of a half starts at 1."""
FIRST_DELAY = 0.1
"""Seconds before the restart after the second death in a row. The first restart is immediate. With each death after the second, the delay
doubles until it is ``LONGEST_DELAY``."""
LONGEST_DELAY = 30.0
STARTS = 3
"""Number of attempts to start an actor that fails to start. A constructor that raises will most likely raise again."""
GRACE = 5.0
"""Seconds for which an actor may still work on a batch after the timeout of the batch. Then the actor is replaced."""
CLOSED = "the pool of scorers is closed; make a new one"
_log = logging.getLogger("qreward")


class ActorDied(ConnectionFailed, ConnectionError):
    """An item has no score, because actors died while they scored the item, or because no actor is left."""


@dataclass(frozen=True, slots=True)
class PoolStats:
    """The state of a pool.

    Attributes:
        backend: ``ray`` or ``local``; None before the first batch.
        ready, starting, lost: number of actors that can take batches, that start or wait to be restarted, and that were given up.
        waiting, in_flight: number of batches that wait for an actor, and that actors work on.
        batches: number of batches that returned, with results or with an exception of the scorer.
        deaths: number of actors that died or failed to start.
        retried: number of batches that were sent again because their actor died.
        poisonous: number of items that failed because an actor died with only that item on it.
        timeouts: number of batches that exceeded ``batch_timeout``.
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


class ScorerPool:
    """Runs a scorer in several Ray actors. Each actor takes one or more batches at once. Without Ray, the scorers run in this process.

    A pool is called with a batch: ``await pool(texts)``. ``queue`` and ``buffer`` make a ``BatchQueue`` and a ``RewardBuffer`` with it. A
    pool may be used from several loops and threads.

    If an actor dies, its batch is sent again and a new actor is started. An item that kills actors is found by splitting its batch, and
    only this item fails. Because an item may be scored several times, scoring should be idempotent.

    Args:
        scorer: a class, which is instantiated in each actor; a function or an object with ``__call__``, which is sent to the actors; or a
            function that makes the scorer in the actor (``factory=True``). The scorer takes a list, or several lists (completions and
            metadata), and returns a list with one result, or an exception, for each item. It may be ``async def``.
        actors: number of actors.
        max_concurrent_batches: number of batches that one actor works on at once. A scorer that is not async runs each batch in a thread.
        backend: ``ray``, ``local`` (in this process) or ``auto``: ``ray`` if this process is connected to it when the first batch arrives.
        init_args, init_kwargs: arguments for the class or the factory.
        factory: whether ``scorer`` is a function that makes the scorer.
        method: name of the method that scores.
        batch_timeout: seconds for a batch on an actor, after which it fails with ``RequestTimeout``; None means no limit.
        start_timeout: seconds for starting an actor; None means no limit.
        max_restarts: maximum number of restarts of an actor in a row, without a finished batch between them.
        num_cpus, num_gpus, resources, runtime_env, ray_options: options of each actor, as in ``ray.remote``; ignored without Ray.

    Raises:
        TypeError: the scorer cannot be called, or an argument has the wrong type.
        ConfigError: an argument is out of range (a ``ValueError``).
        ModuleNotFoundError: ``backend`` is ``ray``, and Ray is not installed.

    Example:
        >>> class Lengths:
        ...     def __call__(self, texts):
        ...         return [len(text) for text in texts]
        >>> async def main():
        ...     async with ScorerPool(Lengths, actors=2) as pool, pool.queue(max_batch_size=8) as queue:
        ...         return await asyncio.gather(*map(queue.submit, ["one", "three"]))
        >>> asyncio.run(main())
        [3, 5]
    """

    def __init__(
        self,
        scorer: Any,
        *,
        actors: int = 1,
        max_concurrent_batches: int = 1,
        backend: Kind = "auto",
        init_args: Sequence[Any] = (),
        init_kwargs: Mapping[str, Any] | None = None,
        factory: bool = False,
        method: str = CALL,
        batch_timeout: float | None = None,
        start_timeout: float | None = 600.0,
        max_restarts: int = 20,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        resources: Mapping[str, float] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        ray_options: Mapping[str, Any] | None = None,
    ) -> None:
        named = {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": resources, "runtime_env": runtime_env}
        options = {name: value for name, value in named.items() if value is not None} | dict(ray_options or {})
        config = PoolConfig(actors, max_concurrent_batches, backend, batch_timeout, start_timeout, max_restarts, options)
        self.__setstate__((ScorerSpec(scorer, tuple(init_args), dict(init_kwargs or {}), factory, method), config))

    def __getstate__(self) -> tuple[ScorerSpec, PoolConfig]:
        return self._spec, self._config

    def __setstate__(self, state: tuple[ScorerSpec, PoolConfig]) -> None:
        self._spec, self._config = state
        if self._config.backend == "ray":
            require_ray()
        self._actors: Actors | None = None
        self._closing: Future[None] | None = None
        self._closed = False
        self._lock = threading.Lock()
        self.__qualname__ = self._spec.name  # the name in error messages
        background.watch(self, ScorerPool._begin_again)

    def _begin_again(self) -> object:
        """Start anew in a forked child, where the thread of the actors does not run."""
        parents, self._actors = self._actors, None
        self._lock = threading.Lock()
        return parents

    def __repr__(self) -> str:
        stats = self.stats()
        return f"ScorerPool({self._spec.name}: {stats.ready} of {self._config.actors} actors ready, {stats.in_flight} batches in flight)"

    @property
    def slots(self) -> int:
        """Maximum number of batches that the actors take at once. Further batches wait in the pool."""
        return self._config.actors * self._config.max_concurrent_batches

    async def __call__(self, *columns: Sequence[Any]) -> Any:
        """Score one batch, and return the result of the scorer. If actors died, this is a list that joins the results of its parts.

        ``columns`` are one list for each parameter of the scorer. An empty batch starts the actors and does not wait for them.

        Raises:
            Exception: any exception of the scorer.
            InvalidResponse: the scorer did not return one result for each item.
            RequestTimeout: the batch exceeded ``batch_timeout`` on its actor.
            ActorDied: no actor is left. In the returned list, an ``ActorDied`` is the error of an item that killed its actors.
            ClientClosed: the pool is closed.
            ConfigError: the lists differ in length, or ``backend`` is ``ray`` and this process is not connected to Ray.
        """
        lengths = {len(column) for column in columns}
        if len(lengths) != 1:
            raise ConfigError(f"a batch is one list, or several of equal length; got lengths {[len(column) for column in columns]}")
        count = lengths.pop()
        with self._lock:  # so that no batch comes after the pool has begun to close
            actors = self._opened()
            scoring = asyncio.run_coroutine_threadsafe(actors.score(columns), actors.loop) if count else None
        if scoring is None:
            return []
        value = await asyncio.wrap_future(scoring)
        if not isinstance(value, Mapping):
            rows_of(value, count)
        return value

    def queue(self, **settings: Unpack[Options]) -> BatchQueue[Any, Any]:
        """Return a queue whose batches this pool scores; see :class:`~qreward.batching.BatchSettings`. Close the queue before the pool."""
        return BatchQueue(self, **Options(max_concurrent_batches=self.slots) | settings)

    def buffer(self, **settings: Any) -> RewardBuffer:
        """Return a :class:`~qreward.batching.reward_buffer.RewardBuffer` with this pool as its scorer. Close the buffer before the pool."""
        return RewardBuffer(self, **{"max_concurrent_batches": self.slots} | settings)

    async def close(self, drain: bool = True) -> None:
        """Score the waiting batches, call the scorer's method ``close``, if it has one, and stop the actors.

        With ``drain=False``, waiting and running batches fail with ``ClientClosed``, and the actors are killed.
        """
        with self._lock:
            self._closed = True
            if self._actors is None:
                return
            if self._closing is None:
                self._closing = asyncio.run_coroutine_threadsafe(self._actors.close(), self._actors.loop)
            if not drain:
                self._actors.portal.soon(self._actors.abandon)
        await asyncio.shield(asyncio.wrap_future(self._closing))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(drain=kind is None)

    def stats(self) -> PoolStats:
        """Return the current state of the pool."""
        actors = self._actors
        if actors is None:
            return PoolStats()
        return PoolStats(
            backend=actors.kind.backend,
            ready=len(actors.ready),
            starting=self._config.actors - len(actors.ready) - actors.given_up,
            lost=actors.given_up,
            **actors.counts,
        )

    def _opened(self) -> Actors:
        if self._closed:
            raise ClientClosed(CLOSED)
        if self._actors is None:
            backend = self._config.backend
            if backend == "ray":
                check_connected("; call ray.init() first, or use backend='local'")
            use_ray = backend == "ray" or (backend == "auto" and is_connected())
            self._actors = Actors(RayActor if use_ray else LocalActor, self._spec, self._config)
            weakref.finalize(self, self._actors.portal.soon, self._actors.leave).atexit = False
        return self._actors


class Actors:
    """Assigns the batches of one pool to its actors, and keeps the actors running, in an event loop of its own.

    The event loop ends when the pool is closed or freed.
    """

    def __init__(self, kind: type[LocalActor], spec: ScorerSpec, config: PoolConfig) -> None:
        self.kind = kind
        self.ready: list[LocalActor] = []
        self.given_up = 0
        self.counts: Counter[str] = Counter()
        self.portal = Portal("qreward-scorer-pool")
        self.loop = self.portal.loop
        self._spec, self._config = spec, config
        self._reason = "none was ever started"
        self._batches: set[asyncio.Task[Any]] = set()
        self._keepers: list[asyncio.Task[None]] = []
        self._abandoned = False
        self._turns = asyncio.Lock(), asyncio.Lock()
        """The first of the batches that wait for an actor holds the lock; the second lock is for those that go first."""
        self.changed = asyncio.Event()
        """Set when slots may have become free."""
        self.portal.soon(self._start)

    def _start(self) -> None:
        self._keepers = [self.loop.create_task(self._keep_running(number)) for number in range(self._config.actors)]

    async def score(self, columns: tuple[Sequence[Any], ...]) -> Any:
        if self._abandoned:  # before this batch began
            raise ClientClosed(CLOSED)
        task = asyncio.current_task()
        assert task is not None
        self._batches.add(task)
        try:
            return await self._result(columns)
        except asyncio.CancelledError:
            if self._abandoned:
                raise ClientClosed(CLOSED) from None
            raise
        finally:
            self._batches.discard(task)

    async def _result(self, columns: tuple[Sequence[Any], ...], deaths: int = 0) -> Any:
        """Return the results of a batch, even if its actor dies. A batch that repeatedly kills its actor is split into halves."""
        while deaths < SPLIT_AFTER:
            try:
                return await self._attempt(columns, alone=deaths >= ALONE_AFTER)
            except ActorLost as loss:
                deaths, died = deaths + (not loss.excused), loss
            self.counts["retried"] += 1
        if len(columns[0]) == 1:
            self.counts["poisonous"] += 1
            return [ActorDied(f"each actor that scored this item died, the last one with no other item; it is not sent again: {died}")]

        async def part(rows: list[Any]) -> list[Any]:
            return rows_of(await self._result(tuple(map(list, zip(*rows, strict=True))), ALONE_AFTER), len(rows))

        rows = list(zip(*columns, strict=True))
        return [result for half in halves(rows) for result in await isolate(part, half, _results_of)]

    async def _attempt(self, columns: tuple[Sequence[Any], ...], *, alone: bool) -> Any:
        """Score a batch on an actor, and return what the scorer returned. Raises ``ActorLost`` if the actor died.

        A batch that may have killed an actor must be ``alone``: it goes first, and needs all slots of an actor.
        """
        slots = self._config.max_concurrent_batches if alone else 1
        actor = await self._taken(slots, first=alone)
        self.counts["in_flight"] += 1
        reply = asyncio.create_task(actor.score(columns))
        reply.add_done_callback(partial(self._on_reply, actor, slots))
        try:
            await asyncio.wait([reply], timeout=self._config.batch_timeout)
        except asyncio.CancelledError:
            reply.cancel()
            raise
        if not reply.done():
            reply.cancel()
            self.loop.call_later(GRACE, self.kill_if_busy, actor, reply)
            self.counts["timeouts"] += 1
            limit = f"{self._config.batch_timeout:g} s"
            raise RequestTimeout(f"{self._spec.name} gave no result within the batch_timeout of {limit}; its batch was cancelled")
        try:
            return reply.result()
        except ActorLost:  # the actor may have been killed because of another batch; the first loss says why
            raise actor.lost.result() from None

    async def _taken(self, slots: int, *, first: bool) -> LocalActor:
        """Wait until an actor has free slots, and take them, at the actor with the most of them."""
        self.counts["waiting"] += 1
        try:
            async with self._turns[first]:
                while self.given_up < self._config.actors:
                    actor = max(self.ready, key=lambda actor: actor.free, default=None)
                    if actor is not None and actor.free >= slots and (first or not self._turns[True].locked()):
                        actor.free -= slots
                        self.ready.remove(actor)
                        self.ready.append(actor)  # the last of those with as many free slots
                        return actor
                    self.changed.clear()
                    await self.changed.wait()
                raise ActorDied(f"no actor is left to score with; the last one was lost: {self._reason}")
        finally:
            self.counts["waiting"] -= 1
            self.changed.set()

    def _on_reply(self, actor: LocalActor, slots: int, reply: asyncio.Task[Any]) -> None:
        self.counts["in_flight"] -= 1
        actor.free += slots
        error = None if reply.cancelled() else reply.exception()
        if isinstance(error, ActorLost):
            self._lose(actor, error)
        else:
            actor.finished = True
            self.counts["batches"] += 1
        self.changed.set()

    def kill_if_busy(self, actor: LocalActor, reply: asyncio.Future[Any]) -> None:
        if not reply.done():
            self._lose(actor, ActorLost("it was killed, because it still worked on a batch after its batch_timeout", excused=True))

    def _lose(self, actor: LocalActor, loss: ActorLost) -> None:
        """Record the death of an actor. Further calls for the same actor do nothing."""
        if not actor.lost.done():
            actor.lost.set_result(loss)
            if actor in self.ready:
                self.ready.remove(actor)

    async def _keep_running(self, number: int) -> None:
        """Start an actor, and start it again when it has died, until it is given up."""
        deaths = failed_starts = 0
        while deaths <= self._config.max_restarts and failed_starts < STARTS:
            if deaths > 1:
                await asyncio.sleep(min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(deaths - 2, 100)))
            actor, limit = self.kind(self._spec, self._config), asyncio.timeout(self._config.start_timeout)
            try:
                async with limit:
                    await actor.start()
            except Exception as error:
                failed_starts += getattr(error, "never_started", True)
                self._reason = str(error) if isinstance(error, ActorLost) else f"{type(error).__name__}: {error}"
                if limit.expired():
                    self._reason = f"it was not ready within {self._config.start_timeout:g} s; are there the resources that it asks for?"
            else:
                self.ready.append(actor)
                self.changed.set()
                self._reason = str(await actor.lost)
                if actor.finished:
                    deaths = failed_starts = 0
            finally:
                actor.kill()  # it may be unreachable instead of dead, or still starting, or the pool is closed
            deaths += 1
            self.counts["deaths"] += 1
            _log.warning("actor %d died: %s", number, self._reason)
        self.given_up += 1
        self.changed.set()

    async def close(self) -> None:
        """Wait for the batches, stop the actors, and end the event loop."""
        while self._batches:
            await asyncio.wait(self._batches)
        ends = (asyncio.wait_for(actor.end(), 5.0) for actor in self.ready if not self._abandoned)
        await asyncio.gather(*ends, return_exceptions=True)
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.wait(self._keepers)
        self.ready.clear()
        self.portal.end()

    def abandon(self) -> None:
        """Fail all batches with ``ClientClosed``."""
        self._abandoned = True
        for task in self._batches:
            task.cancel()

    def leave(self) -> None:
        """Kill the actors of a pool that was freed."""
        self._abandoned = True
        background.run_in_background(self.loop, self.close())


def _results_of(error: BaseException, rows: list[Any]) -> list[Any] | None:
    """Return the results of a part for which the scorer raised, or None if it is to be split."""
    if isinstance(error, InvalidScores) or not isinstance(error, Exception):
        raise error
    return [error] * len(rows) if len(rows) == 1 or isinstance(error, ActorDied | RequestTimeout | Rejected) else None


def rows_of(results: Any, count: int) -> list[Any]:
    """Return the results of a part as a list with one entry for each item, so that parts can be joined."""
    if isinstance(results, Mapping):
        return [
            {"reward": one.reward, "error": one.cause or one.error, "meta": dict(one.meta), "next_turn_feedback": one.feedback}
            for one in read_scores(results, count)
        ]
    if isinstance(results, str | bytes) or not (hasattr(results, "__len__") and hasattr(results, "__iter__")):
        raise InvalidScores(f"a scorer must return a list with one result for each item, not a {type(results).__name__}")
    rows = list(results)
    if len(rows) != count:
        raise InvalidScores(f"the scorer returned {len(rows)} results for {count} item{'s'[: count != 1]}; it must return one for each")
    return rows
