"""Response bodies for rewards, in the forms of OpenRLHF, MolGenDocking's buffer and vLLM."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from qreward.batching.reward_buffer import InvalidScores, Mode, ScoreResult, answer_of, summary
from qreward.codecs.error_body import INVALID_SCORES
from qreward.errors import ClientClosed, RequestTimeout
from qreward.server.forms import ScoreRequest
from qreward.server.http_errors import HTTPError, draining

LABEL = "LABEL_0"
"""Name that vLLM uses for the class of a model with only one class."""


def answer(request: ScoreRequest, scored: Sequence[ScoreResult], model: str, mode: Mode) -> bytes:
    """Return the response body. Raises ``HTTPError`` if no completion has a reward, or if the form cannot express missing rewards."""
    if request.form == "buffer":
        return write(dict(answer_of(request.query, [_encodable(one) for one in scored], mode)))
    if any(isinstance(one.cause, InvalidScores) for one in scored):  # clients must not send parts of this list; see InvalidScores
        raise _error(500, INVALID_SCORES, scored)
    if scored and all(one.reward is None for one in scored):
        raise _no_rewards(scored)
    if request.form == "openrlhf":
        if any(one.reward is None for one in scored):
            raise _error(424, "scorer_failed", scored)
        logs, rewards = _logs(scored), [one.reward for one in scored]
        return write({"rewards": rewards, "scores": logs.get("score", rewards), "extra_logs": logs})
    data: list[dict[str, Any]] = []
    for at, one in enumerate(scored):
        reward = _sigmoid(one.reward) if request.activation and one.reward is not None else one.reward
        if request.form == "classify":
            row: dict[str, Any] = {"index": at, "label": None if reward is None else LABEL, "probs": [reward], "num_classes": 1}
        else:
            row = {"index": at, "object": "score", "score": reward}
        data.append(row if one.error is None else {**row, "error": one.error})
    head = {"id": f"{request.form}-{uuid.uuid4().hex}", "object": "list", "created": int(time.time()), "model": model}
    return write({**head, "data": data})


def _error(status: int, kind: str, scored: Sequence[ScoreResult]) -> HTTPError:
    return HTTPError(status, kind, summary(scored) or "", errors=[one.error for one in scored])


def _no_rewards(scored: Sequence[ScoreResult]) -> HTTPError:
    causes = {type(one.cause) for one in scored}
    if causes == {ClientClosed}:
        return draining()
    if causes == {RequestTimeout}:
        return _error(504, "timeout", scored)
    return _error(422, "unscorable", scored) if all(one.own for one in scored) else _error(500, "scorer_failed", scored)


def _logs(scored: Sequence[ScoreResult]) -> dict[str, list[float]]:
    """Return the metadata of the completions by name. Only names that have a finite number for every completion are included."""
    names = scored[0].meta if scored else ()
    columns = {name: [_finite(one.meta.get(name)) for one in scored] for name in names}
    return {str(name): column for name, column in columns.items() if None not in column}  # type: ignore[misc]


def _finite(value: Any) -> float | None:
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        number = math.inf
    return number if math.isfinite(number) else None


def _sigmoid(reward: float) -> float:
    """Return the sigmoid of a reward. vLLM applies a sigmoid to the logit of a model with one class."""
    small = math.exp(-abs(reward))
    return 1 / (1 + small) if reward >= 0 else small / (1 + small)


def write(document: Any) -> bytes:
    """Encode a document as JSON. NaN becomes null."""
    return msgspec.json.encode(document, enc_hook=_plain)


def _encodable(one: ScoreResult) -> ScoreResult:
    """Convert the scorer's metadata and feedback to JSON. Values that JSON cannot express become text."""
    return ScoreResult(one.reward, one.error, _raw(one.meta), None if one.feedback is None else _raw(one.feedback))


def _raw(value: Any) -> Any:
    """Return a value as JSON. If this fails, its parts or the whole value become text."""
    for attempt in (lambda: value, lambda: {str(key): str(each) for key, each in value.items()}, lambda: str(value)):
        try:
            return msgspec.Raw(write(attempt()))
        except Exception:  # noqa: S112 - a scorer may return objects whose methods raise
            continue
    return {"unreadable": type(value).__name__} if isinstance(value, Mapping) else None


def _plain(value: Any) -> Any:
    """Convert types that msgspec does not know. Arrays, tensors and their numbers become Python values. All other values become text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
