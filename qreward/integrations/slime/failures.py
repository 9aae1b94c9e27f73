"""What happens to a sample that could not be judged: it is removed from the loss, and its reward changes the baseline as little as it can.

slime needs a number for each sample (None breaks its tensors), and trains on it unless ``sample.remove_sample`` is set.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any
from weakref import WeakKeyDictionary

from qreward.errors import QRewardError
from qreward.integrations.trainers import RewardConfig, Rewarder, Scored

NOTE = "qreward"
"""Key of ``sample.metadata`` that holds how the sample was judged."""
MEMORY = 1024
"""Number of last rewards whose mean is used if no other reward of the same call exists."""
TELL = 100
"""Number of failures between two log messages."""
MOST_LOST = 1000
"""Failures in a row after which the run ends, because it is no longer chance and there would be nothing to train on."""

_log = logging.getLogger("qreward.integrations.slime")


@dataclass(frozen=True, slots=True)
class Fallback:
    """What replaces a missing reward.

    Attributes:
        score: the reward of the sample.
        removes: whether the sample is removed from the loss.
    """

    score: float
    removes: bool


class Fallbacks:
    """Computes the fallbacks of one rewarder from the rewards so far.

    Args:
        config: settings with ``on_failure``. A number is the reward, and the sample trains; ``raise`` raises. Otherwise the sample is
            removed from the loss, and its number is the mean of the other rewards of the same call, or of the last ``MEMORY`` rewards, or
            the middle of the judge's range. After ``MOST_LOST`` failures in a row the next one is raised.
    """

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self._had: deque[float] = deque(maxlen=MEMORY)
        self._failed = 0
        self._in_a_row = 0

    @classmethod
    def of(cls, made: Rewarder, *, evaluating: bool) -> Fallbacks:
        """Return the fallbacks of a rewarder. An evaluation has its own, because its samples differ from those of training."""
        assert made.config is not None
        both = _BY_REWARDER.setdefault(made, (cls(made.config), cls(made.config)))
        return both[evaluating]

    def settle(self, values: Sequence[float | None], scored: Sequence[Scored]) -> Fallback:
        """Return the fallback for the failed samples of a call.

        Raises:
            QRewardError: a sample failed, and ``on_failure`` is ``raise`` or more than ``MOST_LOST`` failed in a row.
        """
        failure = self._config.on_failure
        error = self._count(scored)
        if error is not None and (failure == "raise" or (isinstance(failure, str) and self._in_a_row > MOST_LOST)):
            raise error
        had = [value for value in values if value is not None]
        self._had.extend(had)
        if not isinstance(failure, str):
            return Fallback(float(failure), removes=False)
        return Fallback(fmean(had or self._had or [middle(self._config)]), removes=True)

    def _count(self, scored: Sequence[Scored]) -> QRewardError | None:
        """Return the last error, if any. The first of every ``TELL`` failures is logged."""
        last = None
        for each in scored:
            self._in_a_row = 0 if each.ok else self._in_a_row + 1
            if each.error is not None:
                last = each.error
                if self._failed % TELL == 0:
                    _log.warning("%d rewards could not be had so far; this one: %s", self._failed + 1, each.reason)
                self._failed += 1
        return last


_BY_REWARDER: WeakKeyDictionary[Rewarder, tuple[Fallbacks, Fallbacks]] = WeakKeyDictionary()


def middle(config: RewardConfig) -> float:
    """Return the middle of a judge's score range; 0 for a reward model, whose range is unknown before its first answer."""
    if config.judge is None:
        return 0.0
    return fmean(config.judge.range or config.judge.scale)


def note(sample: Any, scored: Scored, *, removed: bool) -> None:
    """Write into a sample's metadata how it was judged, for later inspection of rollouts."""
    if isinstance(sample.metadata, dict):
        sample.metadata[NOTE] = {"ok": scored.ok, "seconds": scored.seconds, "reason": scored.reason, "removed": removed}


def was_removed(sample: Any) -> bool:
    """Whether a sample was removed from the loss because it could not be judged."""
    metadata = sample.metadata if isinstance(sample.metadata, dict) else {}
    return bool(metadata.get(NOTE, {}).get("removed"))
