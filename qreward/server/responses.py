"""Rewards as bodies: OpenRLHF's, the buffer's, vLLM's. A completion without a reward is an error in the form, or of the whole request.

A number is never made up: where a form has room for numbers only (OpenRLHF), one completion without a reward fails the request, with a
status that tells our own client to send the list again in halves. Knows no HTTP but statuses.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from qreward.batching.reward_buffer.schemas import InvalidScores, Mode, Scored, answer_of, summary
from qreward.errors import ClientClosed, RequestTimeout
from qreward.server.forms import ScoreRequest
from qreward.server.http_errors import HTTPError, draining
from qreward.transport.error_mapping import INVALID_SCORES

LABEL = "LABEL_0"
"""The only class, as vLLM calls it."""


def answer(asked: ScoreRequest, scored: Sequence[Scored], model: str, mode: Mode) -> bytes:
    """The body for the rewards of what was asked. Raises ``HTTPError`` if the form cannot say that they are missing."""
    if asked.form == "buffer":
        return write(answer_of(asked.query, [_tellable(one) for one in scored], mode))
    if any(isinstance(one.cause, InvalidScores) for one in scored):  # a client must not ask for parts of the list instead
        raise HTTPError(500, INVALID_SCORES, _summary(scored), errors=_errors(scored))
    if scored and all(one.reward is None for one in scored):
        raise nothing(scored)
    if asked.form == "openrlhf":
        return write(_openrlhf(scored))
    rewards = [_squeezed(one.reward) if asked.activation else one.reward for one in scored]
    row = _class_row if asked.form == "classify" else _score_row
    data = [_with_error(row(at, reward), scored[at]) for at, reward in enumerate(rewards)]
    named = {"id": f"{asked.form}-{uuid.uuid4().hex}", "object": "list", "created": int(time.time()), "model": model}
    return write({**named, "data": data})


def nothing(scored: Sequence[Scored]) -> HTTPError:
    """Why there is no reward at all: 504 if time was over, 503 if the server ends, 422 if it is the completions' own fault, else 500."""
    kinds = {type(one.cause) for one in scored}
    if kinds == {RequestTimeout}:
        return HTTPError(504, "timeout", _summary(scored), errors=_errors(scored))
    if kinds == {ClientClosed}:
        return draining()
    if all(one.own for one in scored):
        return HTTPError(422, "unscorable", _summary(scored), errors=_errors(scored))
    return HTTPError(500, "scorer_failed", _summary(scored), errors=_errors(scored))


def _openrlhf(scored: Sequence[Scored]) -> dict[str, Any]:
    if any(one.reward is None for one in scored):
        raise HTTPError(424, "scorer_failed", _summary(scored), errors=_errors(scored))
    rewards = [one.reward for one in scored]
    logs = _logs(scored)
    return {"rewards": rewards, "scores": logs.get("score", rewards), "extra_logs": logs}


def _logs(scored: Sequence[Scored]) -> dict[str, list[float]]:
    """What the scorer said of all completions in numbers."""
    names = scored[0].meta if scored else ()
    columns = {name: [_finite(one.meta.get(name)) for one in scored] for name in names}
    return {str(name): column for name, column in columns.items() if None not in column}  # type: ignore[misc]


def _finite(value: Any) -> float | None:
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        number = math.inf
    return number if math.isfinite(number) else None


def _class_row(at: int, reward: float | None) -> dict[str, Any]:
    return {"index": at, "label": None if reward is None else LABEL, "probs": [reward], "num_classes": 1}


def _score_row(at: int, reward: float | None) -> dict[str, Any]:
    return {"index": at, "object": "score", "score": reward}


def _with_error(row: dict[str, Any], one: Scored) -> dict[str, Any]:
    return row if one.error is None else {**row, "error": one.error}


def _squeezed(reward: float | None) -> float | None:
    """The sigmoid, as vLLM squeezes the logit of a model with one class."""
    if reward is None:
        return None
    small = math.exp(-abs(reward))
    return 1 / (1 + small) if reward >= 0 else small / (1 + small)


def _summary(scored: Sequence[Scored]) -> str:
    return summary(scored) or ""


def _errors(scored: Sequence[Scored]) -> list[str | None]:
    return [one.error for one in scored]


# JSON


def write(document: Any) -> bytes:
    """A document as JSON; NaN is null."""
    return msgspec.json.encode(document, enc_hook=_plain)


def _tellable(one: Scored) -> Scored:
    """The same with what the scorer said of it as JSON; what cannot be written is told as text."""
    return Scored(one.reward, one.error, _raw(one.meta), None if one.feedback is None else _raw(one.feedback))


def _raw(value: Any) -> Any:
    """As JSON that is ready; in other words if it cannot be."""
    for attempt in (lambda: value, lambda: {str(key): str(each) for key, each in value.items()}, lambda: str(value)):
        try:
            return msgspec.Raw(write(attempt()))
        except Exception:  # noqa: S112 - a scorer may say anything, even of itself
            continue
    return {"unreadable": type(value).__name__} if isinstance(value, Mapping) else None


def _plain(value: Any) -> Any:
    """What msgspec does not know: arrays, tensors and their numbers as Python has them, anything else as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
