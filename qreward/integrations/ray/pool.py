"""``ScorerPool``: a scorer in many actors, called with whole batches."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, Unpack

from qreward.batching import BatchQueue
from qreward.batching.collector import halves
from qreward.batching.in_flight import isolate
from qreward.batching.reward_buffer import RewardBuffer
from qreward.batching.reward_buffer.schemas import InvalidScores, read_scores
from qreward.batching.settings import Options
from qreward.engine import background
from qreward.errors import ClientClosed, ConfigError, Rejected, RequestTimeout
from qreward.integrations.ray.backends import CALL, ActorDied, ActorLost, Backend, PoolConfig, ScorerSpec, check_installed, choose
from qreward.integrations.ray.supervisor import Supervisor, closed

Columns = tuple[Sequence[Any], ...]
"""One list for each parameter of the scorer. All lists have the same length."""


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


@dataclass(frozen=True, slots=True)
class PoolStats:
    """The state of a pool.

    Args:
        backend: ``ray`` or ``local``; None before the first batch.
        ready: number of actors that can take batches.
        starting: number of actors that are starting, or wait to be restarted.
        lost: number of actors that were given up.
        waiting: number of batches that wait for an actor.
        in_flight: number of batches that actors work on.
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


ALONE_AFTER = 1
"""Number of actor deaths after which a batch no longer shares its actor. If the actor dies again, this batch is the cause."""
SPLIT_AFTER = 2
"""Number of actor deaths after which a batch is split. If the batch has only one item, the item fails. The count of each half starts at
``ALONE_AFTER``."""
_OURS = ("max_concurrency", "max_restarts", "max_task_retries")


class ScorerPool:
    """Runs a scorer in several Ray actors. Each actor takes one or more batches at once. Without Ray, the scorers run in this process.

    A pool is called with a batch, like a batch function: ``await pool(texts)``. A pool can therefore be the function of a ``BatchQueue`` or
    the scorer of a ``RewardBuffer``. The method ``queue`` makes such a queue, and ``buffer`` makes such a buffer. Both send as many
    concurrent batches as the actors can take.

    A batch goes to the actor with the fewest batches. If the actor dies, the batch is sent again and a new actor is started. An item that
    kills actors is found by splitting its batch. Only this item fails, and only after an actor that scored nothing else has died. Because
    an item may be scored several times, scoring should be idempotent.

    A pool is created without an event loop, and may be used from several loops and threads.

    Args:
        scorer: a class, a function, an object with ``__call__``, or a factory. A class is instantiated in each actor. A function or an
            object is sent to the actors. A factory is a function that makes the scorer in the actor. The scorer takes a list, or several
            lists (completions and metadata), and returns a list with one result for each item. An exception in the list is the error of its
            item. The scorer may be ``async def``.
        actors: number of actors.
        max_concurrent_batches: number of batches that one actor works on at once. A scorer that is not async runs each batch in a thread.
        backend: ``ray``, ``local`` or ``auto``. ``local`` runs ``actors`` scorers in this process. ``auto`` means ``ray`` if this process
            is connected to Ray (``ray.init()``) when the first batch arrives, and ``local`` otherwise.
        init_args, init_kwargs: arguments for the class or the factory.
        factory: whether ``scorer`` is a factory.
        method: name of the method that scores.
        batch_timeout: seconds for a batch on an actor. A batch that takes longer fails with ``RequestTimeout`` and is cancelled. If the
            batch still runs 5 seconds later, its actor is killed and replaced. None means no limit.
        start_timeout: seconds for starting an actor; None means no limit.
        max_restarts: maximum number of restarts of an actor in a row, without a finished batch between them. An actor that fails to start,
            for example because its class raises, is given up after three attempts.
        num_cpus, num_gpus, resources, runtime_env: options of each actor, as in ``ray.remote``; ignored without Ray.
        ray_options: other options of ``ray.remote``, such as ``memory`` or ``scheduling_strategy``; ignored without Ray.

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
        backend: Backend = "auto",
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
        if wrong := [name for name in _OURS if name in options]:
            raise ConfigError(f"{wrong[0]} cannot be set in ray_options; use max_concurrent_batches or max_restarts of the pool")
        config = PoolConfig(actors, max_concurrent_batches, backend, batch_timeout, start_timeout, max_restarts, options)
        self.__setstate__((ScorerSpec(scorer, tuple(init_args), dict(init_kwargs or {}), factory, method), config))

    def __getstate__(self) -> tuple[ScorerSpec, PoolConfig]:
        return self._spec, self._config

    def __setstate__(self, state: tuple[ScorerSpec, PoolConfig]) -> None:
        self._spec, self._config = state
        check_installed(self._config.backend)
        self._supervisor: Supervisor | None = None
        self._closed = False
        self._lock = threading.Lock()
        self.__qualname__ = self._spec.name  # the name in error messages
        background.watch(self, ScorerPool._begin_again)

    def _begin_again(self) -> object:
        """Start anew in a forked child, where the supervisor's thread does not run."""
        parents, self._supervisor = self._supervisor, None
        self._lock = threading.Lock()
        return parents

    def __repr__(self) -> str:
        stats = self.stats()
        return f"ScorerPool({self._spec.name}: {stats.ready} of {self._config.actors} actors ready, {stats.in_flight} batches in flight)"

    @property
    def slots(self) -> int:
        """Maximum number of batches that the actors take at once. Further batches wait in the pool."""
        return self._config.actors * self._config.max_concurrent_batches

    def start(self) -> None:
        """Start the actors now instead of with the first batch. This method does not wait until they have started.

        Raises:
            ConfigError: ``backend`` is ``ray``, and this process is not connected to Ray.
            ClientClosed: the pool is closed.
        """
        self._opened()

    async def __call__(self, *columns: Sequence[Any]) -> Any:
        """Score one batch.

        Args:
            columns: one list for each parameter of the scorer. All lists have the same length. A scorer with fewer parameters receives only
                the first lists.

        Returns:
            The scorer's return value. If actors died while they scored the batch, it may be a list that joins the results of the batch's
            parts.

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
        supervisor, count = self._opened(), lengths.pop()
        if not count:
            return []
        loop = asyncio.get_running_loop()
        value = await asyncio.wrap_future(supervisor.submit(partial(self._score, supervisor, loop, columns), loop))
        if not isinstance(value, Mapping):
            rows_of(value, count)
        return value

    def queue(self, **settings: Unpack[Options]) -> BatchQueue[Any, Any]:
        """Return a queue whose batches this pool scores; see :class:`~qreward.batching.BatchSettings`. Close the queue before the pool."""
        return BatchQueue(self, **Options(max_concurrent_batches=self.slots) | settings)

    def buffer(self, **settings: Any) -> RewardBuffer:
        """Return a buffer with this pool as its scorer; see :class:`~qreward.batching.reward_buffer.RewardBuffer`.

        Close the buffer before the pool.
        """
        return RewardBuffer(self, **{"max_concurrent_batches": self.slots} | settings)

    async def close(self, drain: bool = True) -> None:
        """Accept no more batches, wait for the running batches, and stop the actors. This method may be called more than once.

        Args:
            drain: True scores the waiting batches first, and calls the scorer's method ``close``, if it has one. False fails waiting and
                running batches with ``ClientClosed``, and kills the actors.
        """
        with self._lock:
            self._closed = True
        if self._supervisor is not None:
            with suppress(ClientClosed):  # the supervisor is closed already
                await asyncio.wrap_future(self._supervisor.close(drain, asyncio.get_running_loop()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(drain=kind is None)

    def stats(self) -> PoolStats:
        """Return the current state of the pool."""
        supervisor = self._supervisor
        if supervisor is None:
            return PoolStats()
        return PoolStats(
            backend=supervisor.backend.name,
            ready=len(supervisor.ready),
            starting=self._config.actors - len(supervisor.ready) - supervisor.given_up,
            lost=supervisor.given_up,
            waiting=len(supervisor.waiting),
            **supervisor.counts,
        )

    def _opened(self) -> Supervisor:
        with self._lock:
            if self._closed:
                raise closed()
            if self._supervisor is None:
                self._supervisor = Supervisor(choose(self._spec, self._config), self._config, self._spec.name)
                weakref.finalize(self, self._supervisor.stop).atexit = False
            return self._supervisor

    # called in the supervisor's event loop

    async def _score(self, supervisor: Supervisor, caller: asyncio.AbstractEventLoop, columns: Columns, deaths: int = 0) -> Any:
        """Return the results of a batch, even if its actor dies. A batch that repeatedly kills its actor is split into halves."""
        while deaths < SPLIT_AFTER:
            try:
                return await supervisor.run(columns, deaths >= ALONE_AFTER, caller)
            except ActorLost as loss:
                deaths, died = deaths + (not loss.excused), loss
            supervisor.counts["retried"] += 1
        if len(columns[0]) == 1:
            supervisor.counts["poisonous"] += 1
            return [ActorDied(f"each actor that scored this item died, the last one with no other item; it is not sent again: {died}")]

        async def part(rows: list[Any]) -> list[Any]:
            return rows_of(await self._score(supervisor, caller, tuple(map(list, zip(*rows, strict=True))), ALONE_AFTER), len(rows))

        rows = list(zip(*columns, strict=True))
        return [result for half in halves(rows) for result in await isolate(part, half, _results_of)]


def _results_of(error: BaseException, rows: list[Any]) -> list[Any] | None:
    """Return the results of a part for which the scorer raised, or None if it is to be split."""
    if isinstance(error, InvalidScores) or not isinstance(error, Exception):
        raise error
    return [error] * len(rows) if len(rows) == 1 or isinstance(error, ActorDied | RequestTimeout | Rejected) else None
