"""A query as MolGenDocking's reward server takes it, and the two shapes of its answer. Pure; knows neither queues nor HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from qreward.batching.buffer.scored import Scored
from qreward.errors import BadRequest

Mode = Literal["auto", "singleton", "batch"]
_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Query:
    """Completions that are answered together.

    Args:
        completions: what is scored.
        metadata: a mapping for each.
        single: it came as one completion, not as a list.
    """

    completions: Sequence[str]
    metadata: Sequence[Mapping[str, Any]]
    single: bool = False


@dataclass(frozen=True, slots=True)
class SingletonAnswer:
    """The answer to one completion. ``reward`` is None exactly if ``error`` says why."""

    reward: float | None
    error: str | None
    meta: Mapping[str, Any]
    next_turn_feedback: Any


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """The answer to a list, in its order.

    Attributes:
        rewards: a number, or None exactly where ``errors`` says why.
        error: None, or how many have none, and the first error.
        next_turn_feedback: None, or one for each.
    """

    rewards: list[float | None]
    error: str | None
    errors: list[str | None]
    metas: list[Mapping[str, Any]]
    next_turn_feedback: list[Any] | None


def read_query(raw: Any) -> Query:
    """A query out of a mapping, or an object, with ``query``, ``metadata`` and perhaps ``prompts``: each one, or a list of equal length.

    A prompt is put into its metadata as ``prompt``, unless there is one.

    Raises:
        BadRequest: a member is missing or of another kind, or the lengths differ.

    Example:
        >>> read_query({"query": "4", "metadata": {"answer": "4"}, "prompts": "2 + 2?"})
        Query(completions=['4'], metadata=[{'answer': '4', 'prompt': '2 + 2?'}], single=True)
    """
    if isinstance(raw, Query):
        return raw
    texts, metadata, prompts = (_member(raw, name) for name in ("query", "metadata", "prompts"))
    completions = _several(texts, "query", str)
    count = len(completions)
    metas = [{}] * count if metadata is None else _several(metadata, "metadata", Mapping)
    asked = None if prompts is None else _several(prompts, "prompts", str)
    for name, listed in (("metadata", metas), ("prompts", asked)):
        if listed is not None and len(listed) != count:
            raise BadRequest(f"query holds {count} completion{'s'[: count != 1]}, but {name} {len(listed)}; there must be one for each")
    return Query(completions, with_prompts(metas, asked), isinstance(texts, str))


def with_prompts(metas: Sequence[Mapping[str, Any]], prompts: Sequence[str] | None) -> list[dict[str, Any]]:
    """Metadata with the prompts in it."""
    if prompts is None:
        return [dict(meta) for meta in metas]
    return [{**meta, "prompt": meta.get("prompt", prompt)} for meta, prompt in zip(metas, prompts, strict=True)]


def check_mode(query: Query, mode: Mode) -> None:
    """Raise ``BadRequest`` for a query that has no answer in the mode."""
    if mode == "singleton" and len(query.completions) != 1:
        raise BadRequest(f"in singleton mode a query holds one completion, not {len(query.completions)}; use the mode 'batch' for lists")


def answer_of(query: Query, scored: Sequence[Scored], mode: Mode) -> SingletonAnswer | BatchAnswer:
    """The answer in the shape of the mode; ``auto`` answers a lone completion as one, and a list as a list."""
    if mode == "singleton" or (mode == "auto" and query.single):
        (one,) = scored
        return SingletonAnswer(one.reward, one.error, one.meta, one.feedback)
    feedback = [one.feedback for one in scored]
    return BatchAnswer(
        rewards=[one.reward for one in scored],
        error=summary(scored),
        errors=[one.error for one in scored],
        metas=[one.meta for one in scored],
        next_turn_feedback=feedback if any(said is not None for said in feedback) else None,
    )


def summary(scored: Sequence[Scored]) -> str | None:
    """How many completions have no reward, and why the first has none; None if all have one."""
    first = next((at for at, one in enumerate(scored) if one.error is not None), None)
    if first is None:
        return None
    count = sum(one.error is not None for one in scored)
    return f"{count} of {len(scored)} completions have no reward; the first has index {first}: {scored[first].error}"


def _member(raw: Any, name: str) -> Any:
    value = raw.get(name, _MISSING) if isinstance(raw, Mapping) else getattr(raw, name, _MISSING)
    if value is _MISSING and name == "query":
        raise BadRequest("a query needs the member query: a completion, or a list of them")
    return None if value is _MISSING else value


def _several(value: Any, name: str, kind: type) -> list[Any]:
    values = [value] if isinstance(value, kind) else value
    what = "a text" if kind is str else "a mapping"
    if not isinstance(values, list | tuple):
        raise BadRequest(f"{name} must be {what} or a list of them, not a {type(value).__name__}")
    for at, each in enumerate(values):
        if not isinstance(each, kind):
            raise BadRequest(f"{name}.{at} must be {what}, not a {type(each).__name__}")
    return list(values)
