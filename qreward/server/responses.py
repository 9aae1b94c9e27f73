"""Response bodies for rewards, in the forms of OpenRLHF, MolGenDocking's buffer and vLLM.

A completion without a reward is an error in its row, or of the whole request. The OpenRLHF form has room for numbers only, so one
completion without a reward fails the request with status 424. The qreward client then sends each half of the list again. This module
knows no HTTP except statuses.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from qreward.batching.reward_buffer.schemas import InvalidScores, Mode, ScoreResult, answer_of, summary
from qreward.errors import ClientClosed, RequestTimeout
from qreward.server.forms import ScoreRequest
from qreward.server.http_errors import HTTPError, draining
from qreward.transport.error_mapping import INVALID_SCORES

LABEL = "LABEL_0"
"""vLLM's name for the only class."""


def answer(request: ScoreRequest, scored: Sequence[ScoreResult], model: str, mode: Mode) -> bytes:
    """Build the response body. Raises ``HTTPError`` if the form cannot express missing rewards, or if it would have no reward at all."""
    if request.form == "buffer":
        return write(answer_of(request.query, [_encodable(one) for one in scored], mode))
    if any(isinstance(one.cause, InvalidScores) for one in scored):  # clients must not send parts of the list instead, see InvalidScores
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
    """The error of a request without any reward. Its status tells the cause: a timeout, a shutdown, the completions, or else the scorer."""
    causes = {type(one.cause) for one in scored}
    if causes == {ClientClosed}:
        return draining()
    if causes == {RequestTimeout}:
        return _error(504, "timeout", scored)
    return _error(422, "unscorable", scored) if all(one.own for one in scored) else _error(500, "scorer_failed", scored)


def _logs(scored: Sequence[ScoreResult]) -> dict[str, list[float]]:
    """The metadata that the scorer returned as finite numbers for all completions, by name."""
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
    """The sigmoid, which vLLM applies to the logit of a model with one class."""
    small = math.exp(-abs(reward))
    return 1 / (1 + small) if reward >= 0 else small / (1 + small)


def write(document: Any) -> bytes:
    """Encode a document as JSON. NaN becomes null."""
    return msgspec.json.encode(document, enc_hook=_plain)


def _encodable(one: ScoreResult) -> ScoreResult:
    """Convert the scorer's metadata and feedback to JSON. Values that JSON cannot express become text."""
    return ScoreResult(one.reward, one.error, _raw(one.meta), None if one.feedback is None else _raw(one.feedback))


def _raw(value: Any) -> Any:
    """Encode a value as JSON, or as text if that fails."""
    for attempt in (lambda: value, lambda: {str(key): str(each) for key, each in value.items()}, lambda: str(value)):
        try:
            return msgspec.Raw(write(attempt()))
        except Exception:  # noqa: S112 - a scorer may return objects whose methods raise
            continue
    return {"unreadable": type(value).__name__} if isinstance(value, Mapping) else None


def _plain(value: Any) -> Any:
    """Convert types that msgspec does not know: arrays, tensors and their numbers to Python values, anything else to text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
