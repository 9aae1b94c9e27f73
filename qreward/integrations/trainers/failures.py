"""What a reward is that could not be had: never a number, unless the user chose one. Knows no trainer."""

from __future__ import annotations

from typing import Any

from qreward.integrations.trainers.config import Failure
from qreward.integrations.trainers.rewarder import Scored


def reward_of(scored: Scored, on_failure: Failure, default: Failure) -> float | None:
    """The reward as a finite float, or what stands for it.

    Args:
        scored: what came of it.
        on_failure: the user's choice: a number, ``none`` (which is None), ``raise`` or ``default``.
        default: what ``default`` means to this adapter.

    Raises:
        QRewardError: why there is no reward, if that was chosen.

    Example:
        >>> from qreward.errors import RequestTimeout
        >>> reward_of(Scored(None, RequestTimeout("no reward within 5 s"), 5.0), -1.0, "raise")
        -1.0
    """
    if scored.verdict is not None:
        return float(scored.verdict.score)
    chosen: Any = default if on_failure == "default" else on_failure
    if chosen == "none":
        return None
    if chosen == "raise" and scored.error is not None:
        raise scored.error
    return float(chosen)
