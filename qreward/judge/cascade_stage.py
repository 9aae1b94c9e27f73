"""``Stage`` decides whether the verdict or error of one scorer in a ``Cascade`` is final. ``EarlierStages`` holds the data that an item
takes to the next stage, such as the tokens that earlier stages have used.

This module must not send anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite, nan
from typing import NamedTuple

from qreward.errors import ClientClosed, ConfigError, DeadlineExceeded, InvalidResponse, NoEndpoint, QRewardError
from qreward.judge.scorers import check_finite
from qreward.judge.types import Scorer, Verdict
from qreward.records import added
from qreward.results import AttemptRecord, Result, Usage

Confidence = Callable[[Verdict], float | None]
"""A function from a verdict to its confidence. None means that the stage is not sure."""

_FINAL = (ConfigError, NoEndpoint, ClientClosed, DeadlineExceeded)
"""Types of errors that end an item at any stage, because the next stage cannot help: the settings, the item or the program is the cause, or
the time of the batch is over."""


class Stage(NamedTuple):
    """Holds one scorer of a cascade, and decides whether its verdicts and errors are final.

    Attributes:
        min_confidence: minimum confidence of a final verdict. None for the last stage, because all its verdicts are final.
        confidence: a function whose result replaces the confidence of a verdict, or None.
        share: share (0 to 1) of the time limit of an item that the stage may use.
    """

    name: str
    scorer: Scorer
    min_confidence: float | None
    confidence: Confidence | None
    share: float

    def is_sure(self, verdict: Verdict) -> bool:
        """Return whether a verdict is final. Raises ``InvalidResponse`` if its score, or what the user's function returns, is no number."""
        check_finite(verdict)
        if self.min_confidence is None:
            return True
        confidence = verdict.confidence if self.confidence is None else self._users_confidence(self.confidence, verdict)
        return confidence is not None and confidence >= self.min_confidence

    def is_final(self, error: QRewardError) -> bool:
        """Return whether an error of this stage ends the item."""
        return self.min_confidence is None or isinstance(error, _FINAL)

    def _users_confidence(self, function: Confidence, verdict: Verdict) -> float | None:
        where = f"the confidence function of stage {self.name!r}"
        try:
            confidence = function(verdict)
        except Exception as error:
            raise InvalidResponse(f"{where} raised {type(error).__name__}: {error}; the fault is in your code (see __cause__)") from error
        if confidence is None:
            return None
        try:
            number = nan if isinstance(confidence, str | bytes) else float(confidence)  # accepts numbers of numpy too
        except (TypeError, ValueError, OverflowError):
            number = nan
        if not isfinite(number):
            raise InvalidResponse(f"{where} returned {confidence!r}, which is not a finite number; return None where it is not sure")
        return number


@dataclass(frozen=True, slots=True)
class EarlierStages:
    """Holds the data of one item from the earlier stages. Each of these stages has failed, or has judged the item and was not sure.

    Attributes:
        usage: tokens of these stages.
        cached: True if these stages sent no request for the item.
        notes: a line for each stage that failed.
        latency, queued: seconds, added up over the results of these stages.
        trail: the attempts of these results.
        estimated: True if a part of ``usage`` is estimated.
    """

    usage: Usage | None = None
    cached: bool = True
    notes: tuple[str, ...] = ()
    latency: float = 0.0
    queued: float = 0.0
    trail: tuple[AttemptRecord, ...] = ()
    estimated: bool = False

    def with_stage(self, stage: str, error: QRewardError | None, usage: Usage | None, *, cached: bool = False) -> EarlierStages:
        """Return the data with one more stage, which failed or was not sure."""
        notes = self.notes if error is None else (*self.notes, f"stage {stage!r} failed before: {type(error).__name__}: {error}")
        return replace(self, usage=added(self.usage, usage), cached=self.cached and cached, notes=notes)

    def with_result(self, result: Result[Verdict]) -> EarlierStages:
        """Return the data with the times and attempts of one more result."""
        latency, queued = self.latency + result.latency, self.queued + result.queued
        return replace(
            self, latency=latency, queued=queued, trail=self.trail + result.attempts, estimated=self.estimated or result.usage_is_estimated
        )

    def completed(self, stage: str, verdict: Verdict) -> Verdict:
        """Return the verdict of the cascade: the final verdict of a stage, with the tokens of the earlier stages."""
        inner = f"{stage}/{verdict.decided_by}" if verdict.decided_by else stage
        usage, cached = added(self.usage, verdict.usage), self.cached and verdict.cached
        return replace(verdict, usage=usage, cached=cached, decided_by=inner)

    def completed_error(self, error: QRewardError) -> QRewardError:
        """Return the error of the cascade: the final error of a stage, with the tokens and errors of the earlier stages."""
        error.usage = added(self.usage, error.usage)
        for note in self.notes:
            error.add_note(note)
        return error
