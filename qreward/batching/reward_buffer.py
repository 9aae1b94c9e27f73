"""``RewardBuffer`` merges the queries of several callers into batches for one scorer, and isolates the completions for which it fails.

The queries and answers are those of MolGenDocking's reward server.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel

from qreward.batching.in_flight import in_worker, isolate, unstoppable
from qreward.batching.queue import BatchQueue
from qreward.batching.settings import BatchRecord, QueueStats
from qreward.callables import FunctionKind, kind_of, lists_taken, name_of
from qreward.codecs.error_body import one_line
from qreward.errors import BadRequest, ConfigError, InvalidResponse, QueueFull
from qreward.options import is_table

__all__ = ["BatchAnswer", "Mode", "Query", "RewardBuffer", "ScoreResult", "SingletonAnswer"]

Mode = Literal["auto", "singleton", "batch"]
Pairs = Sequence[tuple[str, dict[str, Any]]]  # a list of pairs of a completion and its metadata
ScoringFunction = Callable[[Pairs], Awaitable[Any]]

_log = logging.getLogger("qreward")
_NOT_THE_ITEMS_FAULT = (ConnectionError, TimeoutError, QueueFull)
_DEAD_ACTOR = "RayActorError"
MAX_QUEUE_SIZE = 4096
_UNKNOWN = 1.0  # seconds that ``room_in`` returns for a full queue before the first batch has ended
SHOWN = 500  # maximum number of characters of an error message that are kept
_NAMES = ("error", "errors", "meta", "metas", "next_turn_feedback", "extra_logs")


class InvalidScores(InvalidResponse):
    """A scorer did not return one outcome for each completion, so the whole list fails."""


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """The outcome of one completion.

    Args:
        reward: a finite number, or None if there is an error.
        error: the reason why there is no reward, on one line; None if there is a reward.
        meta: other data that the scorer returned for the completion.
        feedback: ``next_turn_feedback``, a text for the model's next turn.
        cause: the exception behind the error, if there was one.
        own: True if the completion itself probably caused the error, because the scorer could score another completion.
    """

    reward: float | None
    error: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    feedback: Any = None
    cause: BaseException | None = None
    own: bool = False


@dataclass(frozen=True, slots=True)
class Query:
    """A group of completions that are answered together.

    Args:
        completions: the texts to score.
        metadata: one mapping for each completion.
        single: True if the query had one completion instead of a list.
    """

    completions: Sequence[str]
    metadata: Sequence[Mapping[str, Any]]
    single: bool = False


class Meta(dict[str, Any]):
    """The metadata of one completion: a mapping whose members are attributes too, as in ``answer.meta.parsed_answer``.

    If there are no metadata, for example after an error, all attributes are None.
    """

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if self or name.startswith("_"):
            raise AttributeError(f"the scorer returned no {name!r} for this completion; it returned {', '.join(self)}")
        return None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class _Answer(BaseModel):
    def __init__(self, *values: Any, **fields: Any) -> None:
        super().__init__(**dict(zip(type(self).model_fields, values, strict=False)), **fields)


class SingletonAnswer(_Answer):
    """The answer for one completion.

    Attributes:
        reward: the reward; None if there is an error, or the ``default_reward`` of the buffer.
        error: the error; None if the completion has a reward.
        meta: other data that the scorer returned, such as ``meta.parsed_answer``.
        next_turn_feedback: the feedback of the scorer, or None.
    """

    reward: float | None
    error: str | None = None
    meta: Any = None
    next_turn_feedback: Any = None


class BatchAnswer(_Answer):
    """The answer for a list of completions. All lists are in the order of the completions.

    Attributes:
        rewards: the reward of each completion; None if it has an error, or the ``default_reward`` of the buffer.
        error: a summary with the number of errors and the first error; None if there is no error.
        errors: the error of each completion, or None if it has a reward.
        metas: other data that the scorer returned for each completion.
        next_turn_feedback: the feedback for each completion; None if no completion has feedback.
    """

    rewards: list[float | None]
    error: str | None = None
    errors: list[str | None] = []
    metas: list[Any] = []
    next_turn_feedback: Any = None


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

        self.server_mode = server_mode
        self.default_reward = default_reward
        self._max_queue_size = math.inf if max_queue_size is None else max_queue_size
        self._adds_prompts = not is_app  # a verifier of MolGenDocking checks its metadata
        self._call, self._isolate = scoring_function(scorer), isolate_errors
        self._scored_before = False  # the scorer returned a reward in the last batch
        self._queue: BatchQueue[tuple[str, dict[str, Any]], ScoreResult] = BatchQueue(
            self._score_batch,
            max_batch_size=(1024 if is_app else 64) if max_batch_size is None else max_batch_size,
            batch_wait_timeout_s=batch_wait_timeout_s if buffer_time is None else buffer_time,
            max_concurrent_batches=max_concurrent_batches,
            max_queue_size=max_queue_size,
            timeout=timeout,
            on_batch=on_batch,
        )
        self._queue.name = f"the scorer {name_of(scorer)}"

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
        if isinstance(completions, str) or is_table(completions):
            raise BadRequest(f"completions must be a list of texts, not a {type(completions).__name__}")
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

    def room_in(self, count: int) -> float:
        """Return the estimated number of seconds until the queue has room for ``count`` completions; 0 if it has room now."""
        (waiting, running), settings = self._queue.load(), self._queue.settings
        free = 0 if settings.batch_wait_timeout_s else max(0, settings.max_concurrent_batches - running) * settings.max_batch_size
        excess = waiting + min(count, self._max_queue_size) - self._max_queue_size - free
        if excess <= 0:
            return 0.0
        seen = self.stats()
        return excess * seen.run_p50 / seen.mean_size / settings.max_concurrent_batches if seen.run_p50 else _UNKNOWN

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


# calling the scorer


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
        return await (scorer(*arguments) if kind is FunctionKind.AWAITED else in_worker(partial(scorer, *arguments)))

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


# reading what the scorer returned


def failed(error: BaseException) -> ScoreResult:
    return ScoreResult(None, described(error), cause=error)


def described(error: BaseException) -> str:
    """Return an exception as one line, such as ``ValueError: no answer in the completion``."""
    cause = getattr(error, "cause", None)  # the message of a Ray exception contains the traceback of another process
    error = cause if isinstance(cause, BaseException) else error
    message = one_line(str(error))[:SHOWN]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def read_scores(given: Any, count: int) -> list[ScoreResult]:
    """Return the outcome of each of ``count`` completions. Raises ``InvalidScores`` if the number of outcomes is not ``count``."""
    try:
        if hasattr(given, "verifier_metadatas"):
            metas = [{**vars(meta), "parsed_answer": None} for meta in _listed(given.verifier_metadatas, "metadata", count)]
            for meta, parsed in zip(metas, _listed(given.parsed_answers, "parsed answers", count), strict=True):
                meta["parsed_answer"] = parsed
            given = {"rewards": given.rewards, "metas": metas}
        rows = _rows_of_columns(given, count) if isinstance(given, Mapping) else _listed(given, "rewards", count)
        return [_scored(row) for row in rows]
    except InvalidScores:
        raise
    except Exception as error:
        raise InvalidScores(f"the scorer's return value cannot be read: {described(error)}") from error


def _scored(row: Any) -> ScoreResult:
    if isinstance(row, BaseException):
        return failed(row)
    if not isinstance(row, Mapping):
        reward, error = _number(row)
        return ScoreResult(reward, error)
    name = "reward" if "reward" in row else "score"
    reward, error = _number(row.get(name))
    cause = row.get("error")
    if cause:
        reward, error = None, described(cause) if isinstance(cause, BaseException) else one_line(str(cause))[:SHOWN]
    rest = {str(key): value for key, value in row.items() if key not in (name, "error", "meta", "next_turn_feedback")}
    rest |= _meta_of(row.get("meta"))
    return ScoreResult(reward, error, rest, row.get("next_turn_feedback"), cause if isinstance(cause, BaseException) else None)


def _number(raw: Any) -> tuple[float | None, str | None]:
    """Return a reward and None, or None and the reason why the value is not a reward."""
    if isinstance(raw, list | tuple) and len(raw) == 1:  # a row of a matrix with one column
        (raw,) = raw
    if raw is None or isinstance(raw, str | bytes):
        return None, f"the scorer returned {'no reward' if raw is None else 'a text instead of a reward'}"
    try:
        value = float(raw)
    except OverflowError:
        value = math.inf
    except Exception:
        return None, f"the scorer returned a {type(raw).__name__} instead of a reward"
    return (value, None) if math.isfinite(value) else (None, f"the scorer returned {value}, which is not a reward")


def _rows_of_columns(given: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    name = next((name for name in ("rewards", "scores", "reward", "score") if name in given), None)
    errors = given.get("errors", given.get("error"))
    if name is None and not errors:
        raise InvalidScores(f"the scorer returned a mapping without rewards; it has {', '.join(map(str, given)) or 'nothing'}")
    metas = _column(given.get("metas", given.get("meta")), "metas", count)
    logs = given.get("extra_logs")
    others = {str(key): value for key, value in given.items() if key not in (name, *_NAMES)}
    others |= logs if isinstance(logs, Mapping) else {}
    columns = {key: _column(value, key, count) for key, value in others.items()}
    rewards = [None] * count if name is None else _listed(given[name], name, count)
    feedback = _column(given.get("next_turn_feedback"), "next_turn_feedback", count)
    rows = []
    for at, (reward, error, said, meta) in enumerate(zip(rewards, _column(errors, "errors", count), feedback, metas, strict=True)):
        if isinstance(reward, BaseException):
            row: dict[str, Any] = {"error": reward}
        else:
            row = dict(reward) if isinstance(reward, Mapping) else {"reward": reward}
        row["error"] = error or row.get("error")
        row["next_turn_feedback"] = said or row.get("next_turn_feedback")
        row["meta"] = {key: column[at] for key, column in columns.items()} | _meta_of(row.get("meta")) | _meta_of(meta)
        rows.append(row)
    return rows


def _meta_of(meta: Any) -> dict[str, Any]:
    return dict(meta) if isinstance(meta, Mapping) else {} if meta is None else {"meta": meta}


def _column(value: Any, name: str, count: int) -> Sequence[Any]:
    return _listed(value, name, count) if isinstance(value, list | tuple) or hasattr(value, "tolist") else [value] * count


def _listed(given: Any, what: str, count: int) -> Sequence[Any]:
    """Return a list with ``count`` elements, or raise ``InvalidScores``. Numbers of arrays and tensors become Python numbers."""
    rows = given.tolist() if hasattr(given, "tolist") else given
    if not isinstance(rows, list | tuple):
        kind = "None" if given is None else type(given).__name__
        raise InvalidScores(f"the scorer must return a list with a reward for each completion, or a mapping with rewards, not a {kind}")
    if len(rows) != count:
        raise InvalidScores(f"the scorer returned {len(rows)} {what} for {count} completion{'s'[: count != 1]}; return one for each")
    return rows


# queries and answers


def read_query(raw: Any, adds_prompts: bool = True) -> Query:
    """Parse a query: a mapping or an object with ``query``, ``metadata`` and optionally ``prompts``."""
    if isinstance(raw, Query):
        return raw
    texts, metadata, prompts = (
        raw.get(name) if isinstance(raw, Mapping) else getattr(raw, name, None) for name in ("query", "metadata", "prompts")
    )
    if texts is None:
        raise BadRequest("a query needs the member query: a completion, or a list of them")
    completions = _several(texts, "query", str)
    count = len(completions)
    metas = [{}] * count if metadata is None else _several(metadata, "metadata", Mapping)
    prompts = None if prompts is None else _several(prompts, "prompts", str)
    for name, listed in (("metadata", metas), ("prompts", prompts)):
        if listed is not None and len(listed) != count:
            raise BadRequest(f"query holds {count} completion{'s'[: count != 1]}, but {name} {len(listed)}; there must be one for each")
    return Query(completions, with_prompts(metas, prompts if adds_prompts else None), isinstance(texts, str))


def with_prompts(metas: Sequence[Mapping[str, Any]], prompts: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return copies of the metadata with the prompts added."""
    if prompts is None:
        return [dict(meta) for meta in metas]
    return [{**meta, "prompt": meta.get("prompt", prompt)} for meta, prompt in zip(metas, prompts, strict=True)]


def check_mode(query: Query, mode: Mode) -> None:
    if mode == "singleton" and len(query.completions) != 1:
        raise BadRequest(f"in singleton mode a query holds one completion, not {len(query.completions)}; use the mode 'batch' for lists")


def answer_of(query: Query, scored: Sequence[ScoreResult], mode: Mode, default: float | None = None) -> SingletonAnswer | BatchAnswer:
    """Return the answer to a query."""
    rewards = [default if one.reward is None else one.reward for one in scored]
    metas = [Meta(one.meta) if isinstance(one.meta, Mapping) else one.meta for one in scored]
    feedback = [one.feedback for one in scored]
    if mode == "singleton" or (mode == "auto" and query.single):
        return SingletonAnswer(reward=rewards[0], error=scored[0].error, meta=metas[0], next_turn_feedback=feedback[0])
    return BatchAnswer(
        rewards=rewards,
        error=summary(scored),
        errors=[one.error for one in scored],
        metas=metas,
        next_turn_feedback=feedback if any(one is not None for one in feedback) else None,
    )


def summary(scored: Sequence[ScoreResult]) -> str | None:
    """Return a text with the number of completions without a reward and the first error; None if all completions have a reward."""
    first = next((at for at, one in enumerate(scored) if one.error is not None), None)
    if first is None:
        return None
    count = sum(one.error is not None for one in scored)
    return f"{count} of {len(scored)} completions have no reward; the first has index {first}: {scored[first].error}"


def _several(value: Any, name: str, kind: type) -> list[Any]:
    values = [value] if isinstance(value, kind) else value
    what = "a text" if kind is str else "a mapping"
    if not isinstance(values, list | tuple):
        raise BadRequest(f"{name} must be {what} or a list of them, not a {type(value).__name__}")
    for at, each in enumerate(values):
        if not isinstance(each, kind):
            raise BadRequest(f"{name}.{at} must be {what}, not a {type(each).__name__}")
    return list(values)
