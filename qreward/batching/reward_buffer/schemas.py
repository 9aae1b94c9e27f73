"""The queries and answers of ``RewardBuffer``, as in MolGenDocking's reward server, and the parsing of a scorer's results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from qreward.codecs.error_body import one_line
from qreward.errors import BadRequest, InvalidResponse

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
    meta = row.get("meta")
    rest |= meta if isinstance(meta, Mapping) else {} if meta is None else {"meta": meta}
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
    rows = zip(rewards, _column(errors, "errors", count), feedback, metas, strict=True)
    return [_row(*row, {key: column[at] for key, column in columns.items()}) for at, row in enumerate(rows)]


def _row(reward: Any, error: Any, feedback: Any, meta: Any, columns: dict[str, Any]) -> dict[str, Any]:
    if isinstance(reward, BaseException):
        reward, error = None, error or reward
    row = dict(reward) if isinstance(reward, Mapping) else {"reward": reward}
    for each in (row.pop("meta", None), meta):
        columns |= each if isinstance(each, Mapping) else {} if each is None else {"meta": each}
    error, feedback = error or row.get("error"), feedback or row.get("next_turn_feedback")
    return {**row, "error": error, "next_turn_feedback": feedback, "meta": columns}


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


Mode = Literal["auto", "singleton", "batch"]


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
