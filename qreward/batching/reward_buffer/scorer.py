"""Calls a scorer of any kind without blocking the event loop, and isolates the completions for which it fails.

A ``def`` runs in a worker thread; an ``async def`` and a Ray actor are awaited. Ray is never imported. Its handles are recognised
by their behaviour: ``actor.method.remote(...)`` returns an awaitable.

A batch for which the scorer raises is split in halves until only the completions that fail alone are left, so that one bad
completion fails alone. A scorer that still scores another completion is working; the error is then the completion's own. This module
knows nothing of queues.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from qreward.batching.backlog import halves
from qreward.batching.in_flight import in_thread, unstoppable
from qreward.batching.reward_buffer.capacity import own_copy
from qreward.batching.reward_buffer.schemas import InvalidScores, ScoreResult, described, failed, read_scores
from qreward.errors import QueueFull

Pairs = Sequence[tuple[str, dict[str, Any]]]
"""Completions, each with its metadata."""
Called = Callable[[Pairs], Awaitable[Any]]


def caller_of(scorer: Any) -> Called:
    """Return an async function that calls a scorer with completions and metadata, and returns the scorer's result.

    Args:
        scorer: called with ``(completions, metadata)``, or with the completions alone if it takes only one argument. A function, async or
            not; an object with ``__call__``; or any object with ``remote``, such as the method of a Ray actor.

    Raises:
        TypeError: the scorer cannot be called in this way. This includes classes and generator functions.
    """
    remote = getattr(scorer, "remote", None)
    if callable(remote) and not isinstance(scorer, type):
        return partial(_remotely, remote)
    if isinstance(scorer, type) or not callable(scorer):
        what = f"the class {scorer.__name__}; give an instance of it" if isinstance(scorer, type) else f"a {type(scorer).__name__}"
        raise TypeError(f"a scorer must be a function (completions, metadata) -> rewards, not {what}")
    looks = (scorer, type(scorer).__call__)
    if any(map(inspect.isasyncgenfunction, looks)) or any(map(inspect.isgeneratorfunction, looks)):
        raise TypeError("a scorer must return its rewards, not yield them")
    both = _takes_two(scorer)
    if any(map(inspect.iscoroutinefunction, looks)):
        return partial(_awaited, scorer, both)
    return partial(_threaded, scorer, both)


def _takes_two(scorer: Any) -> bool:
    """Whether the scorer also takes metadata. Raises ``TypeError`` if it takes neither two arguments nor one."""
    try:
        signature = inspect.signature(scorer)
    except (TypeError, ValueError):  # a callable written in C
        return True
    for count in (2, 1):
        with suppress(TypeError):
            signature.bind(*[None] * count)
            return count == 2
    raise TypeError(f"a scorer is called with (completions, metadata); {scorer!r} takes {signature}")


def _arguments(pairs: Pairs, both: bool) -> tuple[Any, ...]:
    """Arguments for one call, as copies: changes by the scorer are visible neither to another call nor to the caller."""
    completions = [completion for completion, _ in pairs]
    return (completions, [own_copy(metadata) for _, metadata in pairs]) if both else (completions,)


async def _awaited(scorer: Any, both: bool, pairs: Pairs) -> Any:
    return await scorer(*_arguments(pairs, both))


async def _threaded(scorer: Any, both: bool, pairs: Pairs) -> Any:
    return await in_thread(partial(scorer, *_arguments(pairs, both)))


async def _remotely(remote: Any, pairs: Pairs) -> Any:
    reference = remote(*_arguments(pairs, both=True))
    if not inspect.isawaitable(reference):
        raise TypeError(f"remote() of the scorer gave a {type(reference).__name__}, which cannot be awaited; give an actor's method")
    return await unstoppable(asyncio.ensure_future(reference))


def name_of(scorer: Any) -> str:
    """The name of a scorer in messages."""
    return str(getattr(scorer, "__qualname__", None) or type(scorer).__qualname__)


_log = logging.getLogger("qreward")
_NOBODYS_FAULT = (ConnectionError, TimeoutError, QueueFull)
_DEAD_ACTOR = "RayActorError"


class BisectingScorer:
    """Scores the batches of one scorer, and isolates the completions that fail.

    Args:
        call: scores a list as a whole.
        isolate: whether a list that fails is split.
    """

    def __init__(self, call: Called, isolate: bool) -> None:
        self._call = call
        self._isolate = isolate
        self._witness: Pairs = ()  # the latest completion that received a reward

    async def score_each(self, pairs: Pairs) -> list[ScoreResult]:
        """Return an outcome for each of at least one completion. Raises only exceptions that end the task.

        A list for which the scorer raises is split. This takes at most ``2 n - 1`` calls, one after the other, and about ``2 k log2(n)``
        for ``k`` bad completions. A list is not split if no completion can be the cause: a broken connection, a timeout, a dead actor.

        If the scorer does not return one outcome for each completion, for the list or for a part of it, the whole list fails.

        If no completion receives a reward, the latest one that had a reward is scored again, in one additional call. This distinguishes
        bad completions from a broken scorer.
        """
        try:
            return await self._scored(pairs)
        except InvalidScores as error:
            _log.warning("the scorer is wrong on a batch of %d: %s", len(pairs), error)
            return [failed(error) for _ in pairs]

    async def _scored(self, pairs: Pairs) -> list[ScoreResult]:
        outcomes = await _attempt(self._call, pairs)
        if isinstance(outcomes, list):
            return await self._judged(pairs, outcomes)
        _log.warning("the scorer failed on a batch of %d: %s", len(pairs), described(outcomes), exc_info=outcomes)
        if self._isolate:
            return await self._judged(pairs, await _apart(self._call, pairs, outcomes))
        return [failed(outcomes) for _ in pairs]

    async def _judged(self, pairs: Pairs, scored: list[ScoreResult]) -> list[ScoreResult]:
        """The same outcomes, with ``own`` set where the error is the completion's own."""
        good = next((at for at, one in enumerate(scored) if one.reward is not None), None)
        if good is not None:
            self._witness = [pairs[good]]
        own = [one.reward is None and not _is_nobodys_fault(one.cause) for one in scored]
        if not any(own) or (good is None and not await self._is_in_order()):
            return scored
        return [replace(one, own=True) if is_own else one for one, is_own in zip(scored, own, strict=True)]

    async def _is_in_order(self) -> bool:
        """Whether the latest completion that received a reward still receives one."""
        try:
            again = await _attempt(self._call, self._witness) if self._witness else None
        except InvalidScores:
            return False
        return isinstance(again, list) and again[0].reward is not None


async def _apart(call: Called, pairs: Pairs, error: BaseException) -> list[ScoreResult]:
    """The outcomes of the parts of a list that failed as a whole."""
    if len(pairs) == 1 or _is_nobodys_fault(error):
        return [failed(error) for _ in pairs]
    found: list[ScoreResult] = []
    for half in halves(pairs):
        outcomes = await _attempt(call, half)
        found += outcomes if isinstance(outcomes, list) else await _apart(call, half, outcomes)
    return found


async def _attempt(call: Called, pairs: Pairs) -> list[ScoreResult] | BaseException:
    """The outcomes of a list, or the exception that the scorer raised. An exit in the scorer ends neither the task nor the program.

    Raises:
        InvalidScores: the scorer did not return one outcome for each completion.
    """
    try:
        given = await call(pairs)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        return error
    return read_scores(given, len(pairs))


def _is_nobodys_fault(error: BaseException | None) -> bool:
    return isinstance(error, _NOBODYS_FAULT) or any(kind.__name__ == _DEAD_ACTOR for kind in type(error).__mro__)
