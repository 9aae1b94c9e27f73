"""A stage of a ``Cascade``: when its verdict or error stands, and what is kept of earlier stages of an item. Sends nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite, nan
from typing import NamedTuple

from qreward.errors import ClientClosed, ConfigError, DeadlineExceeded, InvalidResponse, NoEndpoint, QRewardError
from qreward.judge.types import Scorer, Verdict
from qreward.records import added
from qreward.results import AttemptRecord, Result, Usage

Confidence = Callable[[Verdict], float | None]
"""A function from a verdict to its confidence; None is unsure."""

_STANDS = (ConfigError, NoEndpoint, ClientClosed, DeadlineExceeded)
"""Errors that another stage would not mend: the item, the settings or the program is the cause, or the time is over."""


class Stage(NamedTuple):
    """One scorer of a cascade.

    Attributes:
        name: its name in ``Verdict.decided_by`` and in statistics.
        scorer: the scorer.
        min_confidence: the least confidence with which its verdict stands; None if each verdict does, which is so for the last stage.
        confidence: a function that replaces the verdict's own confidence, or None.
        share: its share of the time limit.
    """

    name: str
    scorer: Scorer
    min_confidence: float | None
    confidence: Confidence | None
    share: float

    def is_sure(self, verdict: Verdict) -> bool:
        """Whether a verdict stands. Raises ``InvalidResponse`` if the user's function fails or returns no number."""
        if self.min_confidence is None:
            return True
        confidence = verdict.confidence if self.confidence is None else self._own(self.confidence, verdict)
        return confidence is not None and confidence >= self.min_confidence

    def stands(self, error: QRewardError) -> bool:
        """Whether an error of this stage is that of the item."""
        return self.min_confidence is None or isinstance(error, _STANDS)

    def _own(self, function: Confidence, verdict: Verdict) -> float | None:
        where = f"the confidence function of stage {self.name!r}"
        try:
            confidence = function(verdict)
        except Exception as error:
            raise InvalidResponse(f"{where} raised {type(error).__name__}: {error}; the fault is in your code (see __cause__)") from error
        if confidence is None:
            return None
        try:
            number = nan if isinstance(confidence, str | bytes) else float(confidence)  # also of a number of numpy
        except (TypeError, ValueError, OverflowError):
            number = nan
        if not isfinite(number):
            raise InvalidResponse(f"{where} returned {confidence!r}, which is not a finite number; return None where it is not sure")
        return number


@dataclass(frozen=True, slots=True)
class Decided:
    """What earlier stages did about an item.

    Attributes:
        usage: their tokens.
        cached: True if no request was sent for the item.
        notes: their errors.
        latency, queued, trail: of their results.
        estimated: True if a part of ``usage`` is estimated.
    """

    usage: Usage | None = None
    cached: bool = True
    notes: tuple[str, ...] = ()
    latency: float = 0.0
    queued: float = 0.0
    trail: tuple[AttemptRecord, ...] = ()
    estimated: bool = False

    def after(self, stage: str, error: QRewardError | None, usage: Usage | None, *, cached: bool = False) -> Decided:
        """The same after one more stage, which failed or was not sure."""
        notes = self.notes if error is None else (*self.notes, f"stage {stage!r} failed before: {type(error).__name__}: {error}")
        return replace(self, usage=added(self.usage, usage), cached=self.cached and cached, notes=notes)

    def with_result(self, result: Result[Verdict]) -> Decided:
        """The same with the times and attempts of one more result."""
        latency, queued = self.latency + result.latency, self.queued + result.queued
        return replace(
            self, latency=latency, queued=queued, trail=self.trail + result.attempts, estimated=self.estimated or result.usage_is_estimated
        )

    def verdict(self, stage: str, verdict: Verdict) -> Verdict:
        """The verdict of a stage as that of the cascade."""
        inner = f"{stage}/{verdict.decided_by}" if verdict.decided_by else stage
        usage, cached = added(self.usage, verdict.usage), self.cached and verdict.cached
        return replace(verdict, usage=usage, cached=cached, decided_by=inner)

    def charged(self, error: QRewardError) -> QRewardError:
        """The error of a stage as that of the cascade."""
        error.usage = added(self.usage, error.usage)
        for note in self.notes:
            error.add_note(note)
        return error
