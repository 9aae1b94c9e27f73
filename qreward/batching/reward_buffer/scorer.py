"""How a scorer of any kind is called without blocking the event loop: ``def`` in a worker thread, ``async def`` and actors awaited.

Ray is recognised by what its handles can do (``actor.method.remote(...)`` gives something to await), and never imported.

A batch for which the scorer raises is split in halves until only what fails alone is left, so that one bad completion fails alone.

Then it is found out whose fault that was: a scorer that still scores another completion works. Knows neither queues nor threads.
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
from qreward.batching.reward_buffer.schemas import InvalidScores, Scored, described, failed, read_scores
from qreward.errors import QueueFull

Pairs = Sequence[tuple[str, dict[str, Any]]]
"""Completions with the metadata of each."""
Called = Callable[[Pairs], Awaitable[Any]]


def caller_of(scorer: Any) -> Called:
    """An async function that gives completions and metadata to a scorer, and what it returns back.

    Args:
        scorer: called with ``(completions, metadata)``, or with the completions alone if it takes no more: a function, async or not,
            an object with ``__call__``, or anything with ``remote``, such as the method of a Ray actor.

    Raises:
        TypeError: it cannot be called so; a class or a generator function among it.
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
    """Whether it takes metadata too. Raises ``TypeError`` if it takes neither two arguments nor one."""
    try:
        signature = inspect.signature(scorer)
    except (TypeError, ValueError):  # of something written in C
        return True
    for count in (2, 1):
        with suppress(TypeError):
            signature.bind(*[None] * count)
            return count == 2
    raise TypeError(f"a scorer is called with (completions, metadata); {scorer!r} takes {signature}")


def _arguments(pairs: Pairs, both: bool) -> tuple[Any, ...]:
    """Lists and metadata of the call's own: what a scorer changes is seen neither by another call nor by the caller."""
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
    """What a scorer is called in messages."""
    return str(getattr(scorer, "__qualname__", None) or type(scorer).__qualname__)


_log = logging.getLogger("qreward")
_NOBODYS_FAULT = (ConnectionError, TimeoutError, QueueFull)
_DEAD_ACTOR = "RayActorError"


class Isolation:
    """How the batches of one scorer are scored.

    Args:
        call: scores a list, all or nothing.
        isolate: whether a list that fails is split.
    """

    def __init__(self, call: Called, isolate: bool) -> None:
        self._call = call
        self._isolate = isolate
        self._witness: Pairs = ()  # the latest completion that was scored

    async def score_each(self, pairs: Pairs) -> list[Scored]:
        """An outcome for each completion, of which there is at least one; raises only what ends the task.

        A list for which the scorer raises is split: at most ``2 n - 1`` calls, one after the other, and about ``2 k log2(n)`` for ``k``
        bad ones. Not done where the fault can be no completion's: a broken connection, a timeout, a dead actor.

        A scorer that does not return one outcome for each completion, for the list or for a part of it, fails the whole list.

        If none has a reward, the latest completion that had one is scored again, to tell bad completions from a broken scorer: one call
        more.
        """
        try:
            return await self._scored(pairs)
        except InvalidScores as error:
            _log.warning("the scorer is wrong on a batch of %d: %s", len(pairs), error)
            return [failed(error) for _ in pairs]

    async def _scored(self, pairs: Pairs) -> list[Scored]:
        outcomes = await _attempt(self._call, pairs)
        if isinstance(outcomes, list):
            return await self._judged(pairs, outcomes)
        _log.warning("the scorer failed on a batch of %d: %s", len(pairs), described(outcomes), exc_info=outcomes)
        if self._isolate:
            return await self._judged(pairs, await _apart(self._call, pairs, outcomes))
        return [failed(outcomes) for _ in pairs]

    async def _judged(self, pairs: Pairs, scored: list[Scored]) -> list[Scored]:
        """The same, knowing whose fault the errors are."""
        good = next((at for at, one in enumerate(scored) if one.reward is not None), None)
        if good is not None:
            self._witness = [pairs[good]]
        own = [one.reward is None and not _is_nobodys_fault(one.cause) for one in scored]
        if not any(own) or (good is None and not await self._is_in_order()):
            return scored
        return [replace(one, own=True) if is_own else one for one, is_own in zip(scored, own, strict=True)]

    async def _is_in_order(self) -> bool:
        """Whether what could be scored still can be."""
        try:
            again = await _attempt(self._call, self._witness) if self._witness else None
        except InvalidScores:
            return False
        return isinstance(again, list) and again[0].reward is not None


async def _apart(call: Called, pairs: Pairs, error: BaseException) -> list[Scored]:
    """The outcomes of a list that failed."""
    if len(pairs) == 1 or _is_nobodys_fault(error):
        return [failed(error) for _ in pairs]
    found: list[Scored] = []
    for half in halves(pairs):
        outcomes = await _attempt(call, half)
        found += outcomes if isinstance(outcomes, list) else await _apart(call, half, outcomes)
    return found


async def _attempt(call: Called, pairs: Pairs) -> list[Scored] | BaseException:
    """The outcomes of a list, or what the scorer raised. A scorer that exits ends neither the task nor the program.

    Raises:
        InvalidScores: it did not return one outcome for each completion.
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
