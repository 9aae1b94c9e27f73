"""A batch that fails is split in halves until only what fails alone is left, so that one poisonous completion spoils no other's reward.

Knows neither queues nor threads.
"""

from __future__ import annotations

import asyncio
import logging

from qreward.batching.backlog import halves
from qreward.batching.buffer.calling import Called, Pairs
from qreward.batching.buffer.scored import Scored, described, failed, read_scores
from qreward.errors import QueueFull

_log = logging.getLogger("qreward")
_NOBODYS_FAULT = (ConnectionError, TimeoutError, QueueFull)
_DEAD_ACTOR = "RayActorError"


async def score_each(call: Called, pairs: Pairs, isolate: bool) -> list[Scored]:
    """An outcome for each completion; raises only what ends the task.

    Args:
        call: scores a list, all or nothing.
        pairs: completions with their metadata, at least one.
        isolate: whether a list that fails is split: at most ``2 n - 1`` calls, one after the other, and about ``2 k log2(n)`` for
            ``k`` bad ones. Not done where the fault can be no completion's: a broken connection, a timeout, a dead actor.
    """
    outcomes = await _attempt(call, pairs)
    if isinstance(outcomes, list):
        return outcomes
    _log.warning("the scorer failed on a batch of %d: %s", len(pairs), described(outcomes), exc_info=outcomes)
    return await _apart(call, pairs, outcomes) if isolate else [failed(outcomes) for _ in pairs]


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
    """The outcomes of a list, or what went wrong. A scorer that exits ends neither the task nor the program."""
    try:
        return read_scores(await call(pairs), len(pairs))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        return error


def _is_nobodys_fault(error: BaseException) -> bool:
    return isinstance(error, _NOBODYS_FAULT) or any(kind.__name__ == _DEAD_ACTOR for kind in type(error).__mro__)
