"""``ScorerPool``: a scorer in many actors, called with whole batches. The queue stays in the caller's process.

The pool sends a batch again after its actor died, finds the item that kills actors by splitting the batch, and joins the results of the
parts. It does not know how actors are started or placed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Self, Unpack

from qreward.batching import BatchQueue
from qreward.batching.backlog import halves
from qreward.batching.reward_buffer import RewardBuffer
from qreward.batching.reward_buffer.schemas import InvalidScores, read_scores
from qreward.batching.settings import Options
from qreward.errors import ConfigError, Rejected, RequestTimeout
from qreward.integrations.ray.backends import (
    CALL,
    ActorDied,
    ActorLost,
    Backend,
    PoolConfig,
    PoolStats,
    ScorerSpec,
    check_installed,
    choose,
    length_of,
)
from qreward.integrations.ray.supervisor import ActorState, Placement, Supervisor, closed

Columns = tuple[Sequence[Any], ...]
"""One list for each parameter of the scorer, all of the same length."""


def parts_of(columns: Columns) -> tuple[Columns, Columns]:
    """Split a batch into its first and its second half.

    Example:
        >>> parts_of((["a", "b", "c"], [1, 2, 3]))
        ((['a', 'b'], [1, 2]), (['c'], [3]))
    """
    first, second = zip(*(halves(column) for column in columns), strict=True)
    return tuple(first), tuple(second)


def rows_of(given: Any, count: int) -> list[Any]:
    """Return the results of a part as a list with one entry for each item, so that parts can be joined.

    Args:
        given: a list, tuple or array; or a mapping of lists, which reward scorers may return.
        count: number of items.

    Raises:
        InvalidScores: the results are of another type, or their number differs from ``count``.
    """
    if isinstance(given, Mapping):
        return [
            {"reward": one.reward, "error": one.cause or one.error, "meta": dict(one.meta), "next_turn_feedback": one.feedback}
            for one in read_scores(given, count)
        ]
    if isinstance(given, str | bytes) or not (hasattr(given, "__len__") and hasattr(given, "__iter__")):
        raise InvalidScores(f"a scorer must return a list with one result for each item, not a {type(given).__name__}")
    rows = list(given)
    if len(rows) != count:
        raise InvalidScores(f"the scorer gave {len(rows)} results for {count} item{'s'[: count != 1]}; it must be one for each")
    return rows


SUSPECT = 1
"""Deaths of its actor after which a batch is sent alone. It then endangers no other batch, and another death must be its own fault."""
GUILTY = 2
"""Deaths after which a batch is split, or its only item fails. A half starts with one death counted."""
_OURS = ("max_concurrency", "max_restarts", "max_task_retries")


class ScorerPool:
    """Runs a scorer in several Ray actors, each of which takes one or more batches at once; without Ray, in this process.

    A pool is called with a batch, like a batch function: ``await pool(texts)``. It can therefore be the function of a ``BatchQueue`` or the
    scorer of a ``RewardBuffer``. ``queue`` and ``buffer`` make these with as many concurrent batches as the actors can take.

    A batch goes to the actor with the fewest batches. If the actor dies, the batch is sent again and a new actor is started. An item that
    kills actors is found by splitting its batch, and only that item fails. It must have killed an actor alone before it fails, so an item
    may be scored several times: scoring should be idempotent.

    A pool is created without an event loop, and may be used from several loops and threads.

    Args:
        scorer: a class, which is instantiated in each actor; a function, or an object with ``__call__``, which is sent to the actors; or,
            with ``factory``, a function that makes the scorer in the actor. The scorer takes a list (or several: completions, metadata) and
            returns a list with one result for each item. An exception in the list is the error of that item. It may be ``async def``.
        actors: number of actors.
        max_concurrent_batches: number of batches that one actor works on at once. A ``def`` scorer runs each in a thread.
        backend: ``ray``; ``local``, which runs ``actors`` scorers in this process; or ``auto``, which is Ray if this process is connected
            to it (``ray.init()``) when the first batch arrives.
        init_args: positional arguments for the class or the factory.
        init_kwargs: keyword arguments for the class or the factory.
        factory: whether ``scorer`` is a factory.
        method: name of the method that scores.
        batch_timeout: seconds for a batch on an actor. A batch that takes longer fails with ``RequestTimeout`` and is cancelled. If it
            still runs 5 seconds later, its actor is killed and replaced. None is no limit.
        start_timeout: seconds in which an actor must be ready; None is no limit.
        max_restarts: consecutive deaths of an actor, without a finished batch between them, after which it is not restarted. An actor that
            fails to start, because its class raises, is given up after three attempts.
        num_cpus: CPUs of each actor, as in ``ray.remote``. This and all following arguments are ignored without Ray.
        num_gpus: GPUs of each actor, as in ``ray.remote``.
        resources: custom resources of each actor, as in ``ray.remote``.
        runtime_env: runtime environment of each actor, as in ``ray.remote``.
        ray_options: other options of ``ray.remote``, such as ``memory`` or ``scheduling_strategy``.

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
        terms = PoolConfig(actors, max_concurrent_batches, backend, batch_timeout, start_timeout, max_restarts, options)
        self._begin(ScorerSpec(scorer, tuple(init_args), dict(init_kwargs or {}), factory, method), terms)

    def _begin(self, spec: ScorerSpec, terms: PoolConfig) -> None:
        check_installed(terms.backend)
        self._spec = spec
        self._terms = terms
        self._actor_supervisor: Supervisor | None = None
        self._closed = False
        self._retried = self._poisonous = self._timeouts = 0
        self._lock = threading.Lock()
        self.__qualname__ = spec.name  # the name in error messages

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._spec, self._terms)

    def __repr__(self) -> str:
        stats = self.stats()
        return f"ScorerPool({self._spec.name}: {stats.ready} of {self._terms.actors} actors ready, {stats.in_flight} batches in flight)"

    @property
    def slots(self) -> int:
        """Number of batches that the actors can take at once. Further batches wait in the pool."""
        return self._terms.slots

    def start(self) -> None:
        """Start the actors now instead of with the first batch. Does not wait for them.

        Raises:
            ConfigError: ``backend`` is ``ray``, and this process is not connected to Ray.
            ClientClosed: the pool is closed.
        """
        self._opened()

    async def __call__(self, *columns: Sequence[Any]) -> Any:
        """Score one batch.

        Args:
            columns: one list for each parameter of the scorer, all of the same length. A scorer with fewer parameters receives only the
                first lists.

        Returns:
            What the scorer returned. If an actor died on the batch, a list that may be joined from the results of its parts.

        Raises:
            Exception: any exception of the scorer.
            RequestTimeout: the batch exceeded ``batch_timeout`` on its actor.
            ActorDied: no actor is left. As an entry of the list: the item killed its actor.
            ClientClosed: the pool is closed.
            ConfigError: the lists differ in length; or as in ``start``.
        """
        count = length_of(columns)
        actor_supervisor = self._opened()
        with actor_supervisor.call():
            return await self._solve(actor_supervisor, columns, count) if count else []

    def queue(self, **settings: Unpack[Options]) -> BatchQueue[Any, Any]:
        """Return a queue whose batches this pool scores; see :class:`~qreward.batching.Settings`. Close it before the pool."""
        return BatchQueue(self, **Options(max_concurrent_batches=self.slots) | settings)

    def buffer(self, **settings: Any) -> RewardBuffer:
        """Return a buffer with this pool as its scorer; see :class:`~qreward.batching.reward_buffer.RewardBuffer`. Close it first."""
        return RewardBuffer(self, **{"max_concurrent_batches": self.slots} | settings)

    async def close(self, drain: bool = True) -> None:
        """Accept no more batches, wait for those that are running, and stop the actors. May be called more than once.

        Args:
            drain: score the waiting batches first, and call the scorer's method ``close``, if it has one. False fails waiting and running
                batches with ``ClientClosed`` and kills the actors.
        """
        with self._lock:
            self._closed = True
            actor_supervisor = self._actor_supervisor
        if actor_supervisor is None:
            return
        if not drain:
            actor_supervisor.abandon()
        await actor_supervisor.idle()
        await asyncio.to_thread(actor_supervisor.shut, drain)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(drain=kind is None)

    def stats(self) -> PoolStats:
        """Return the current state of the pool."""
        actor_supervisor = self._actor_supervisor
        if actor_supervisor is None:
            return PoolStats()
        placement = actor_supervisor.placement
        waiting = len(placement.line)
        return PoolStats(
            backend=actor_supervisor.actor_backend.name,
            ready=placement.count_of(ActorState.READY),
            starting=placement.count_of(ActorState.STARTING),
            lost=placement.count_of(ActorState.LOST),
            waiting=waiting,
            in_flight=max(0, len(actor_supervisor.pending_batches) - waiting),
            batches=actor_supervisor.batches,
            deaths=placement.deaths,
            retried=self._retried,
            poisonous=self._poisonous,
            timeouts=self._timeouts,
        )

    def _opened(self) -> Supervisor:
        with self._lock:
            if self._closed:
                raise closed()
            if self._actor_supervisor is None:
                terms = self._terms
                actor_backend = choose(self._spec, terms)
                placement = Placement(terms.actors, terms.max_concurrent_batches, terms.max_restarts)
                self._actor_supervisor = Supervisor(placement, actor_backend, terms.start_timeout)
            return self._actor_supervisor

    async def _solve(self, actor_supervisor: Supervisor, columns: Columns, count: int, deaths: int = 0) -> Any:
        """Return the results of a batch, however often its actor dies. A batch that repeatedly kills its actor is split in half."""
        while deaths < GUILTY:
            try:
                return await self._once(actor_supervisor, columns, alone=deaths >= SUSPECT)
            except ActorLost as loss:
                deaths, died = deaths + (not loss.excused), loss
            self._retried += 1
        if count == 1:
            self._poisonous += 1
            return [ActorDied(f"an actor died whenever this item was on it, at last with nothing else; it is not sent again: {died}")]
        found: list[Any] = []
        for part in parts_of(columns):
            found += await self._solve_part(actor_supervisor, part, len(part[0]))
        return found

    async def _solve_part(self, actor_supervisor: Supervisor, columns: Columns, count: int) -> list[Any]:
        """Return one result for each item. An exception of the scorer is isolated to its item, so that no caller sends that item again.

        Raises:
            InvalidScores: the scorer did not return one result for each item of a part. This is an error of the whole batch.
        """
        try:
            return rows_of(await self._solve(actor_supervisor, columns, count, SUSPECT), count)
        except InvalidScores:
            raise
        except Exception as error:
            if count == 1 or isinstance(error, ActorDied | RequestTimeout | Rejected):
                return [error] * count
        first, second = parts_of(columns)
        return [
            *await self._solve_part(actor_supervisor, first, len(first[0])),
            *await self._solve_part(actor_supervisor, second, len(second[0])),
        ]

    async def _once(self, actor_supervisor: Supervisor, columns: Columns, alone: bool) -> Any:
        pending = actor_supervisor.enter(alone)
        try:
            if (refusal := await pending.seated) is not None:
                raise refusal
            actor_supervisor.send(pending, columns)
            await asyncio.wait([pending.ended], timeout=self._terms.batch_timeout)
        except asyncio.CancelledError:
            actor_supervisor.leave(pending)
            raise
        if not pending.ended.done():
            self._timeouts += 1
            actor_supervisor.leave(pending, overdue=True)
            limit = f"{self._terms.batch_timeout:g} s"
            raise RequestTimeout(f"{self._spec.name} gave no result within the batch_timeout of {limit}; its batch was cancelled")
        well, value = pending.ended.result()
        if not well:
            raise value
        return value


def _rebuild(kind: type[ScorerPool], spec: ScorerSpec, terms: PoolConfig) -> ScorerPool:
    pool = kind.__new__(kind)
    pool._begin(spec, terms)
    return pool
