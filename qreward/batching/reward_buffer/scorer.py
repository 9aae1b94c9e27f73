"""Calls a scorer of any kind without blocking the event loop, and isolates the completions for which it fails."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

from qreward.batching.in_flight import in_thread, isolate, unstoppable
from qreward.batching.reward_buffer.schemas import InvalidScores, ScoreResult, described, failed, read_scores
from qreward.callables import FunctionKind, kind_of, lists_taken
from qreward.errors import QueueFull

Pairs = Sequence[tuple[str, dict[str, Any]]]  # a list of pairs of a completion and its metadata
ScoringFunction = Callable[[Pairs], Awaitable[Any]]

_log = logging.getLogger("qreward")
_NOT_THE_ITEMS_FAULT = (ConnectionError, TimeoutError, QueueFull)
_DEAD_ACTOR = "RayActorError"


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


class BisectingScorer:
    """Calls a scorer with batches, and isolates the completions that fail, if ``isolate`` is True."""

    def __init__(self, call: ScoringFunction, isolate: bool) -> None:
        self._call = call
        self._isolate = isolate
        self._scored_before = False

    async def score_each(self, pairs: Pairs) -> list[ScoreResult]:
        """Return the outcome of each completion. The list must not be empty."""
        try:
            scored = await isolate(self._scored, pairs, partial(self._outcomes_of, len(pairs)))
        except InvalidScores as error:
            _log.warning("the scorer is wrong on a batch of %d: %s", len(pairs), error)
            self._scored_before = False
            return [failed(error) for _ in pairs]
        missing = sum(one.reward is None for one in scored)
        before, self._scored_before = self._scored_before, missing < len(scored)
        if not missing or not (before or self._scored_before):
            return scored
        return [replace(one, own=one.reward is None and _may_be_the_items_fault(one.cause)) for one in scored]

    async def _scored(self, pairs: Pairs) -> list[ScoreResult]:
        return read_scores(await self._call(pairs), len(pairs))

    def _outcomes_of(self, count: int, error: BaseException, pairs: Pairs) -> list[ScoreResult] | None:
        """Return the outcomes of a list for which the scorer raised, or None if it is to be split. ``count`` completions are scored."""
        task = asyncio.current_task()
        cancelled = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling()
        if cancelled or isinstance(error, KeyboardInterrupt | InvalidScores):  # other exits of the scorer do not end the program
            raise error
        if len(pairs) == count:
            _log.warning("the scorer failed on a batch of %d: %s", count, described(error), exc_info=error)
        if len(pairs) == 1 or not self._isolate or not _may_be_the_items_fault(error):
            return [failed(error) for _ in pairs]
        return None


def _may_be_the_items_fault(error: BaseException | None) -> bool:
    return not (isinstance(error, _NOT_THE_ITEMS_FAULT) or any(kind.__name__ == _DEAD_ACTOR for kind in type(error).__mro__))
