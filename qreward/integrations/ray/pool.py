"""ScorerPool: a scorer in many actors, called with whole batches. The queue stays with the caller; Ray only carries.

Sends what must be scored again after an actor died, and finds out which item it was that killed it.

A batch in parts, and what came of them as one list again. Knows neither actors nor queues.
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
    Recipe,
    check_installed,
    choose,
    length_of,
)
from qreward.integrations.ray.supervisor import Placement, State, Supervisor, closed

Columns = tuple[Sequence[Any], ...]
"""A list for each parameter of the scorer, all of one length."""


def parts_of(columns: Columns) -> tuple[Columns, Columns]:
    """The first and the second half of a batch.

    Example:
        >>> parts_of((["a", "b", "c"], [1, 2, 3]))
        ((['a', 'b'], [1, 2]), (['c'], [3]))
    """
    first, second = zip(*(halves(column) for column in columns), strict=True)
    return tuple(first), tuple(second)


def rows_of(given: Any, count: int) -> list[Any]:
    """What a scorer gave for a part, with one thing for each item, so that parts can be put together.

    Args:
        given: a list, tuple or array; or, as scorers of rewards may give, a mapping of lists.
        count: how many items there were.

    Raises:
        InvalidScores: it is neither, or it holds more or fewer.
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
"""Deaths of its actor after which a batch is sent alone: so it takes no other with it, and at the next death it was no other."""
GUILTY = 2
"""Deaths after which a batch is split, or its only item fails. A half has one behind it when it begins."""
_OURS = ("max_concurrency", "max_restarts", "max_task_retries")


class ScorerPool:
    """A scorer in several actors of Ray, each of which takes some batches at once; without Ray, in this process.

    It is called with a batch, as a batch function is: ``await pool(texts)``. So it can be the function of a ``BatchQueue`` or the
    scorer of a ``RewardBuffer``; ``queue`` and ``buffer`` make them with a slot for each batch that the actors can take. A batch goes
    to the actor with the fewest; if that dies, the batch goes back and a new actor is made. An item that kills actors is found by
    halving, and fails alone; it is not known before that item has died alone, so scoring should be harmless to repeat.

    Args:
        scorer: a class, which is made in each actor; a function, or an object with ``__call__``, which is sent to them as it is; or,
            with ``factory``, a function that makes the scorer there. What scores takes a list (or several: completions, metadata),
            and returns a list with a result for each item; an exception in the list is that item's own. It may be ``async def``.
        actors: how many.
        max_concurrent_batches: batches that one actor works on at once; with a ``def``, in a thread each.
        backend: ``ray``; ``local``, this process, with ``actors`` scorers in it; or ``auto``: Ray, if this process is connected to
            it (``ray.init()``) when the first batch comes.
        init_args: for the class or the factory.
        init_kwargs: likewise.
        factory: ``scorer`` makes the scorer.
        method: name of the method that scores.
        batch_timeout: seconds for a batch on an actor; then it fails with ``RequestTimeout``, is cancelled, and, if its actor does
            not let go of it within 5 seconds, that is killed and made again. None is no limit.
        start_timeout: seconds in which an actor must be ready; None is no limit.
        max_restarts: deaths of an actor in succession, without a batch done between, after which it is given up; one that cannot be
            made, because its class raises, is given up after three tries.
        num_cpus: of each actor, as in ``ray.remote``; like all that follows it has no meaning without Ray.
        num_gpus: likewise.
        resources: likewise.
        runtime_env: likewise.
        ray_options: any other options of ``ray.remote``, such as ``memory`` or ``scheduling_strategy``.

    Raises:
        TypeError: the scorer cannot be called, or a setting is of the wrong kind.
        ConfigError: a setting is out of range (a ``ValueError``).
        ModuleNotFoundError: Ray is asked for, and is not installed.

    A pool needs no running event loop to be made, and may be used from several loops and threads.

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
        self._begin(Recipe(scorer, tuple(init_args), dict(init_kwargs or {}), factory, method), terms)

    def _begin(self, recipe: Recipe, terms: PoolConfig) -> None:
        check_installed(terms.backend)
        self._recipe = recipe
        self._terms = terms
        self._office: Supervisor | None = None
        self._closed = False
        self._retried = self._poisonous = self._timeouts = 0
        self._lock = threading.Lock()
        self.__qualname__ = recipe.name  # so it is called in errors

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._recipe, self._terms)

    def __repr__(self) -> str:
        stats = self.stats()
        return f"ScorerPool({self._recipe.name}: {stats.ready} of {self._terms.actors} actors ready, {stats.in_flight} batches in flight)"

    # use

    @property
    def slots(self) -> int:
        """Batches that the actors can take at once; more wait here."""
        return self._terms.slots

    def start(self) -> None:
        """Begin to make the actors now, not when the first batch comes. Does not wait for them.

        Raises:
            ConfigError: Ray is asked for, and this process is not connected to it.
            ClientClosed: the pool is closed.
        """
        self._opened()

    async def __call__(self, *columns: Sequence[Any]) -> Any:
        """Score one batch.

        Args:
            columns: a list for each parameter of the scorer, all of one length. A scorer of one parameter is not given the others.

        Returns:
            What the scorer returned; after an actor died on it, perhaps put together from parts.

        Raises:
            Exception: what the scorer raised.
            RequestTimeout: the batch took too long on its actor.
            ActorDied: no actor is left. In the list it is the error of an item that killed its actor.
            ClientClosed: the pool is closed.
            ConfigError: the lists differ in length; or as ``start``.
        """
        count = length_of(columns)
        office = self._opened()
        with office.call():
            return await self._solve(office, columns, count) if count else []

    def queue(self, **settings: Unpack[Options]) -> BatchQueue[Any, Any]:
        """A queue whose batches are scored here; see :class:`~qreward.batching.Settings`. Close it before the pool."""
        return BatchQueue(self, **Options(max_concurrent_batches=self.slots) | settings)

    def buffer(self, **settings: Any) -> RewardBuffer:
        """A buffer whose scorer this is; see :class:`~qreward.batching.reward_buffer.RewardBuffer`. Close it before the pool."""
        return RewardBuffer(self, **{"max_concurrent_batches": self.slots} | settings)

    # the end

    async def close(self, drain: bool = True) -> None:
        """Take nothing more, wait until nothing is under way, and end the actors. May be called again.

        A scorer with a method ``close`` is asked to put away what it has.

        Args:
            drain: score what waits. False fails it with ``ClientClosed``, as it does what is under way, and kills the actors.
        """
        with self._lock:
            self._closed = True
            office = self._office
        if office is None:
            return
        if not drain:
            office.abandon()
        await office.idle()
        await asyncio.to_thread(office.shut, drain)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(drain=kind is None)

    # what can be seen

    def stats(self) -> PoolStats:
        """Where it stands."""
        office = self._office
        if office is None:
            return PoolStats()
        roster = office.roster
        waiting = len(roster.line)
        return PoolStats(
            backend=office.crew.name,
            ready=roster.count_of(State.READY),
            starting=roster.count_of(State.STARTING),
            lost=roster.count_of(State.LOST),
            waiting=waiting,
            in_flight=max(0, len(office.guests) - waiting),
            batches=office.batches,
            deaths=roster.deaths,
            retried=self._retried,
            poisonous=self._poisonous,
            timeouts=self._timeouts,
        )

    # how it is done

    def _opened(self) -> Supervisor:
        with self._lock:
            if self._closed:
                raise closed()
            if self._office is None:
                terms = self._terms
                crew = choose(self._recipe, terms)
                roster = Placement(terms.actors, terms.max_concurrent_batches, terms.max_restarts)
                self._office = Supervisor(roster, crew, terms.start_timeout)
            return self._office

    async def _solve(self, office: Supervisor, columns: Columns, count: int, deaths: int = 0) -> Any:
        """The results of a batch, however often its actor dies. A batch that did so repeatedly is halved."""
        while deaths < GUILTY:
            try:
                return await self._once(office, columns, alone=deaths >= SUSPECT)
            except ActorLost as loss:
                deaths, died = deaths + (not loss.excused), loss
            self._retried += 1
        if count == 1:
            self._poisonous += 1
            return [ActorDied(f"an actor died whenever this item was on it, at last with nothing else; it is not sent again: {died}")]
        found: list[Any] = []
        for part in parts_of(columns):
            found += await self._solve_part(office, part, len(part[0]))
        return found

    async def _solve_part(self, office: Supervisor, columns: Columns, count: int) -> list[Any]:
        """A row for each item. What a scorer raises is isolated to its item, too, so that nobody has to send that item again.

        Raises:
            InvalidScores: the scorer did not return one result for each item of a part: an error of the whole batch.
        """
        try:
            return rows_of(await self._solve(office, columns, count, SUSPECT), count)
        except InvalidScores:
            raise
        except Exception as error:
            if count == 1 or isinstance(error, ActorDied | RequestTimeout | Rejected):
                return [error] * count
        first, second = parts_of(columns)
        return [*await self._solve_part(office, first, len(first[0])), *await self._solve_part(office, second, len(second[0]))]

    async def _once(self, office: Supervisor, columns: Columns, alone: bool) -> Any:
        guest = office.enter(alone)
        try:
            if (refusal := await guest.seated) is not None:
                raise refusal
            office.send(guest, columns)
            await asyncio.wait([guest.ended], timeout=self._terms.batch_timeout)
        except asyncio.CancelledError:
            office.leave(guest)
            raise
        if not guest.ended.done():
            self._timeouts += 1
            office.leave(guest, overdue=True)
            limit = f"{self._terms.batch_timeout:g} s"
            raise RequestTimeout(f"{self._recipe.name} gave no result within the batch_timeout of {limit}; its batch was cancelled")
        well, value = guest.ended.result()
        if not well:
            raise value
        return value


def _rebuild(kind: type[ScorerPool], recipe: Recipe, terms: PoolConfig) -> ScorerPool:
    pool = kind.__new__(kind)
    pool._begin(recipe, terms)
    return pool
