"""What becomes of a sample that could not be judged: it leaves the loss, and its reward moves the baseline as little as can be.

slime must have a number for each sample (None breaks its tensors), and trains on it unless ``sample.remove_sample`` is set.
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
"""Key of ``sample.metadata`` under which is noted how it was judged."""
MEMORY = 1024
"""Rewards of which the mean is taken where no group is at hand."""
TELL = 100
"""Failures from one line in the log to the next."""
MOST_LOST = 1000
"""Failures in a row at which it is no longer chance, and the run ends instead of training on nothing."""

_log = logging.getLogger("qreward.integrations.slime")


@dataclass(frozen=True, slots=True)
class Fallback:
    """What a failed sample gets.

    Attributes:
        score: its reward.
        removes: it is taken out of the loss.
    """

    score: float
    removes: bool


class Fallbacks:
    """Finds the fallbacks of one rewarder, from the rewards that were had.

    Args:
        config: ``on_failure`` in it: a number is the reward, and trains; ``raise`` raises; else the sample is removed, and its number is
            the mean of the others it came with, or of the last ``MEMORY`` rewards, or the middle of the judge's range. When ``MOST_LOST``
            in a row were removed, the next is raised.
    """

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self._had: deque[float] = deque(maxlen=MEMORY)
        self._failed = 0
        self._in_a_row = 0

    @classmethod
    def of(cls, made: Rewarder, *, evaluating: bool) -> Fallbacks:
        """Those of a rewarder; an evaluation's are its own, as its samples are others."""
        assert made.config is not None
        both = _BY_REWARDER.setdefault(made, (cls(made.config), cls(made.config)))
        return both[evaluating]

    def settle(self, values: Sequence[float | None], scored: Sequence[Scored]) -> Fallback:
        """What those of a call get that failed.

        Raises:
            QRewardError: one failed, and ``on_failure`` is ``raise``, or too many in a row did.
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
        """The last of the errors, if there is one; now and then it is told."""
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
    """Of the scores that a judge gives; 0 for a reward model, of which nothing is known before its first answer."""
    if config.judge is None:
        return 0.0
    return fmean(config.judge.range or config.judge.scale)


def note(sample: Any, scored: Scored, *, removed: bool) -> None:
    """Write into a sample's metadata how it was judged, for whoever looks at the rollouts later."""
    if isinstance(sample.metadata, dict):
        sample.metadata[NOTE] = {"ok": scored.ok, "seconds": scored.seconds, "reason": scored.reason, "removed": removed}


def was_removed(sample: Any) -> bool:
    """Whether a sample was taken out of the loss because it could not be judged."""
    metadata = sample.metadata if isinstance(sample.metadata, dict) else {}
    return bool(metadata.get(NOTE, {}).get("removed"))
