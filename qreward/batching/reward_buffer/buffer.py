"""``RewardBuffer`` merges the queries of several callers into batches for one scorer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Self, get_args

from qreward.batching.queue import BatchQueue
from qreward.batching.reward_buffer.schemas import (
    BatchAnswer,
    Mode,
    ScoreResult,
    SingletonAnswer,
    answer_of,
    check_mode,
    failed,
    read_query,
)
from qreward.batching.reward_buffer.scorer import BisectingScorer, holds_actor, own_copy, scoring_function
from qreward.batching.settings import BatchRecord
from qreward.batching.stats import QueueStats
from qreward.callables import name_of
from qreward.errors import BadRequest, ConfigError

_SMOOTHING = 0.2  # weight (0 to 1) of the latest batch in the moving average of the seconds per completion
MAX_QUEUE_SIZE = 4096
_UNKNOWN = 1.0  # seconds that ``room_in`` returns for a full queue before the first batch has ended


class RewardBuffer:
    """Scores the completions of many callers together.

    A batch is sent as soon as a slot is free, with the completions of all queries that were submitted until then. If a caller leaves, its
    waiting completions are not scored. A completion that fails does not affect other completions.

    Args:
        scorer: function that is called as ``scorer(completions: list[str], metadata: list[dict])``, or as ``scorer(completions)`` if it
            takes one argument. It may be an ``async def``, a ``def``, which runs in a thread, or the method of a Ray actor
            (``actor.method``). It returns a list, or a mapping with ``rewards`` and other lists. A list has one element for each
            completion: a number, a mapping with ``reward`` or ``score``, or an exception. If the element is None or NaN, or has an
            ``error``, the completion has an error and never the reward 0. Each call receives copies of the metadata and of the mappings,
            lists and sets inside. As in MolGenDocking, the scorer may be an app, whose
            ``app.state.reward_model.get_score.remote(completions=, metadata=)`` is called.
        buffer_time: MolGenDocking's name of ``batch_wait_timeout_s``.
        max_batch_size: the default is 64, or 1,024 for an app.
        server_mode: shape of an answer: ``singleton`` or ``batch``, as in MolGenDocking, or ``auto``: as the query has it. The default is
            ``auto``, or ``singleton`` for an app.
        batch_wait_timeout_s, max_concurrent_batches, on_batch: as in :class:`~qreward.batching.BatchSettings`, for completions.
        max_queue_size: maximum number of waiting completions, in each event loop. A query is rejected if not all of its completions fit.
            The default is 4,096, or no limit for an app.
        timeout: maximum number of seconds for one completion, including its time in the queue. Afterwards, the completion has an error.
        isolate_errors: True splits a batch for which the scorer raises in halves, again and again, so that only the completions that fail
            alone have an error.
        default_reward: the reward that an answer of ``add_query`` shows for a completion with an error. The default None keeps such a
            completion apart from a reward of 0.

    Raises:
        TypeError: the scorer cannot be called in this way, or a setting has the wrong type.
        ConfigError: a setting is out of range. ``ConfigError`` is a ``ValueError``.

    Example:
        >>> import asyncio
        >>> async def scorer(completions, metadata):
        ...     return [float(text == meta["answer"]) for text, meta in zip(completions, metadata)]
        >>> async def main():
        ...     async with RewardBuffer(scorer) as buffer:
        ...         return await buffer.add_query({"query": ["4", "5"], "metadata": [{"answer": "4"}] * 2})
        >>> asyncio.run(main()).rewards
        [1.0, 0.0]
    """

    def __init__(
        self,
        scorer: Any,
        buffer_time: float | None = None,
        max_batch_size: int | None = None,
        server_mode: Mode | None = None,
        *,
        batch_wait_timeout_s: float = 0.0,
        max_concurrent_batches: int = 1,
        max_queue_size: int | None = None,
        timeout: float | None = None,
        isolate_errors: bool = True,
        on_batch: Callable[[BatchRecord], object] | None = None,
        default_reward: float | None = None,
    ) -> None:
        is_app = holds_actor(scorer)
        server_mode = server_mode or ("singleton" if is_app else "auto")
        max_queue_size = max_queue_size if is_app or max_queue_size is not None else MAX_QUEUE_SIZE
        if server_mode not in get_args(Mode):
            raise ConfigError(f"server_mode must be one of {', '.join(map(repr, get_args(Mode)))}, not {server_mode!r}")
        bisecting = BisectingScorer(scoring_function(scorer), isolate_errors)

        async def score(pairs: list[tuple[str, dict[str, Any]]]) -> list[ScoreResult]:
            return await bisecting.score_each(pairs)

        score.__qualname__ = f"the scorer {name_of(scorer)}"  # its name in error messages
        self.server_mode = server_mode
        self.default_reward = default_reward
        self._max_queue_size = inf if max_queue_size is None else max_queue_size
        self._adds_prompts = not is_app  # a verifier of MolGenDocking checks its metadata
        self._seconds_each: float | None = None
        self._on_batch = on_batch
        self._queue: BatchQueue[tuple[str, dict[str, Any]], ScoreResult] = BatchQueue(
            score,
            max_batch_size=(1024 if is_app else 64) if max_batch_size is None else max_batch_size,
            batch_wait_timeout_s=batch_wait_timeout_s if buffer_time is None else buffer_time,
            max_concurrent_batches=max_concurrent_batches,
            max_queue_size=max_queue_size,
            timeout=timeout,
            on_batch=self._batch_ended,
        )

    async def add_query(self, query: Any) -> SingletonAnswer | BatchAnswer:
        """Score a query and return its answer.

        Args:
            query: a mapping or an object with ``query`` (a completion or a list of completions), ``metadata`` (a mapping or a list of
                mappings) and optionally ``prompts`` (a text or a list of texts).

        Raises:
            BadRequest: a member has the wrong type, or the lists have different lengths.
            QueueFull: the queue has no room for all completions of the query; see ``room_in``.
            ClientClosed: the buffer is closed.
        """
        parsed = read_query(query, self._adds_prompts)
        check_mode(parsed, self.server_mode)
        scored = await self.score(parsed.completions, parsed.metadata)
        return answer_of(parsed, scored, self.server_mode, self.default_reward)

    async def score(self, completions: Sequence[str], metadata: Sequence[Mapping[str, Any]] | None = None) -> list[ScoreResult]:
        """Score completions. Return the outcome of each completion, in order. Raises the same errors as ``add_query``."""
        count, most = len(completions), self._max_queue_size
        if metadata is not None and len(metadata) != count:
            raise BadRequest(f"there are {count} completions, but {len(metadata)} metadata; there must be one for each")
        for at, completion in enumerate(completions):
            if not isinstance(completion, str):
                raise BadRequest(f"completions[{at}] must be a text, not a {type(completion).__name__}; leave out missing completions")
        if count > most:
            raise BadRequest(f"{count} completions do not fit into the queue of {most}; send fewer at once, or raise max_queue_size")
        pairs = zip(completions, map(own_copy, metadata) if metadata else [{}] * count, strict=True)
        outcomes = await self._queue.submit_many(pairs)
        return [failed(outcome) if isinstance(outcome, BaseException) else outcome for outcome in outcomes]

    async def close(self, drain: bool = True) -> None:
        """Reject new completions, and wait until all earlier completions are done. ``close`` may be called more than once.

        Args:
            drain: True scores the waiting completions. False ends waiting and running completions with an error. A scorer that runs in a
                thread or an actor cannot be stopped; ``close`` waits for it only as long as a caller waits for its result.
        """
        await self._queue.close(drain)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(drain=kind is None)

    @property
    def waiting(self) -> int:
        """The number of completions that wait for a batch."""
        return self._queue.load()[0]

    @property
    def refused(self) -> int:
        """The number of completions that were rejected because the buffer was full."""
        return self.stats().rejected

    def room_in(self, count: int) -> float:
        """Return the estimated number of seconds until the queue has room for ``count`` completions; 0 if it has room now."""
        (waiting, running), settings = self._queue.load(), self._queue.settings
        free = 0 if settings.batch_wait_timeout_s else max(0, settings.max_concurrent_batches - running) * settings.max_batch_size
        excess = waiting + min(count, self._max_queue_size) - self._max_queue_size - free
        if excess <= 0:
            return 0.0
        return _UNKNOWN if self._seconds_each is None else excess * self._seconds_each

    def stats(self) -> QueueStats:
        """Return the state of the queue and its counters. Items are completions."""
        return self._queue.stats()

    def _batch_ended(self, record: BatchRecord) -> None:
        each = record.seconds / record.items / self._queue.settings.max_concurrent_batches
        known = self._seconds_each
        self._seconds_each = each if known is None else known + _SMOOTHING * (each - known)
        if self._on_batch is not None:
            self._on_batch(record)
