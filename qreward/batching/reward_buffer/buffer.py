"""``RewardBuffer`` merges the queries of several callers into batches for one scorer, and isolates the completions for which it fails."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Self, get_args

from qreward.batching.in_flight import in_thread, isolate, unstoppable
from qreward.batching.queue import BatchQueue
from qreward.batching.reward_buffer.schemas import (
    BatchAnswer,
    InvalidScores,
    Mode,
    ScoreResult,
    SingletonAnswer,
    answer_of,
    check_mode,
    described,
    failed,
    read_query,
    read_scores,
)
from qreward.batching.settings import BatchRecord, QueueStats
from qreward.callables import FunctionKind, kind_of, lists_taken, name_of
from qreward.errors import BadRequest, ConfigError, QueueFull

Pairs = Sequence[tuple[str, dict[str, Any]]]  # a list of pairs of a completion and its metadata
ScoringFunction = Callable[[Pairs], Awaitable[Any]]

_log = logging.getLogger("qreward")
_NOT_THE_ITEMS_FAULT = (ConnectionError, TimeoutError, QueueFull)
_DEAD_ACTOR = "RayActorError"
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

        async def score(pairs: Pairs) -> list[ScoreResult]:
            return await self._score_batch(pairs)

        score.__qualname__ = f"the scorer {name_of(scorer)}"  # its name in error messages
        self.server_mode = server_mode
        self.default_reward = default_reward
        self._max_queue_size = inf if max_queue_size is None else max_queue_size
        self._adds_prompts = not is_app  # a verifier of MolGenDocking checks its metadata
        self._call, self._isolate = scoring_function(scorer), isolate_errors
        self._scored_before = False  # the scorer returned a reward in the last batch
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

    async def _score_batch(self, pairs: Pairs) -> list[ScoreResult]:
        count = len(pairs)

        async def scored_by(part: Pairs) -> list[ScoreResult]:
            return read_scores(await self._call(part), len(part))

        def outcomes_of(error: BaseException, part: Pairs) -> list[ScoreResult] | None:
            """Return the outcomes of a list for which the scorer raised, or None if it is to be split."""
            task = asyncio.current_task()
            cancelled = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling()
            if cancelled or isinstance(error, KeyboardInterrupt | InvalidScores):  # other exits of the scorer do not end the program
                raise error
            if len(part) == count:
                _log.warning("the scorer failed on a batch of %d: %s", count, described(error), exc_info=error)
            if len(part) == 1 or not self._isolate or not _may_be_the_items_fault(error):
                return [failed(error) for _ in part]
            return None

        try:
            scored = await isolate(scored_by, pairs, outcomes_of)
        except InvalidScores as error:
            _log.warning("the scorer is wrong on a batch of %d: %s", count, error)
            self._scored_before = False
            return [failed(error) for _ in pairs]
        missing = sum(one.reward is None for one in scored)
        before, self._scored_before = self._scored_before, missing < count
        if not missing or not (before or self._scored_before):
            return scored
        return [replace(one, own=one.reward is None and _may_be_the_items_fault(one.cause)) for one in scored]

    def _batch_ended(self, record: BatchRecord) -> None:
        each = record.seconds / record.items / self._queue.settings.max_concurrent_batches
        known = self._seconds_each
        self._seconds_each = each if known is None else known + _SMOOTHING * (each - known)
        if self._on_batch is not None:
            self._on_batch(record)


def scoring_function(scorer: Any) -> ScoringFunction:
    """Return an async function that calls a scorer with completions and metadata, and returns the scorer's result."""
    if holds_actor(scorer):

        async def call_app(pairs: Pairs) -> Any:
            completions, metadata = _arguments(pairs, 2)
            return await _awaited(scorer.state.reward_model.get_score.remote(completions=completions, metadata=metadata))

        return call_app
    remote = getattr(scorer, "remote", None)
    if callable(remote) and not isinstance(scorer, type):
        return lambda pairs: _awaited(remote(*_arguments(pairs, 2)))
    kind = None if isinstance(scorer, type) else kind_of(scorer)
    if kind is None:
        what = f"the class {scorer.__name__}; give an instance of it" if isinstance(scorer, type) else f"a {type(scorer).__name__}"
        raise TypeError(f"a scorer must be a function (completions, metadata) -> rewards, not {what}")
    if kind in (FunctionKind.STREAMED, FunctionKind.GENERATOR):
        raise TypeError("a scorer must return its rewards, not yield them")
    count = lists_taken(scorer, 2)
    if not count:
        raise TypeError(f"a scorer is called with (completions, metadata); {scorer!r} takes {inspect.signature(scorer)}")

    async def call(pairs: Pairs) -> Any:
        arguments = _arguments(pairs, count)
        return await (scorer(*arguments) if kind is FunctionKind.AWAITED else in_thread(partial(scorer, *arguments)))

    return call


def holds_actor(scorer: Any) -> bool:
    """Return True for an app that holds the scorer as ``app.state.reward_model``, perhaps only later, as in MolGenDocking."""
    state = getattr(scorer, "state", None)
    return hasattr(state, "reward_model") or (state is not None and (hasattr(scorer, "router") or not callable(scorer)))


async def _awaited(reference: Any) -> Any:
    if not inspect.isawaitable(reference):
        raise TypeError(f"remote() of the scorer returned a {type(reference).__name__}, which cannot be awaited; pass an actor's method")
    return await unstoppable(asyncio.ensure_future(reference))


def _arguments(pairs: Pairs, count: int) -> tuple[Any, ...]:
    completions = [completion for completion, _ in pairs]
    return (completions, [own_copy(metadata) for _, metadata in pairs]) if count == 2 else (completions,)


def own_copy(value: Any) -> Any:
    """Return a copy in which all mappings, lists, tuples, sets and bytearrays are copied, at any depth. Other objects are shared."""
    if type(value) is tuple:
        return tuple(map(own_copy, value))
    if isinstance(value, Mapping) and not isinstance(value, dict):
        return {key: own_copy(each) for key, each in value.items()}
    if not isinstance(value, dict | list | set | bytearray):
        return value
    made: Any = copy(value)
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        made[key] = own_copy(part)
    return made


def _may_be_the_items_fault(error: BaseException | None) -> bool:
    return not (isinstance(error, _NOT_THE_ITEMS_FAULT) or any(kind.__name__ == _DEAD_ACTOR for kind in type(error).__mro__))
