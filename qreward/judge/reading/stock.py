"""The verdicts that are there without writing a model. Knows no text."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, field_validator


class ScoreVerdict(BaseModel):
    """A number, and why.

    The reason stands first, so that a judge writes it before the number.

    Example:
        >>> ScoreVerdict(reason="Right, but long.", score=7).score
        7.0
    """

    reason: str = Field("", description="why, in a few sentences")
    score: float


class YesNoVerdict(BaseModel):
    """Yes or no, and why.

    True and false are taken for them.

    Example:
        >>> YesNoVerdict(verdict="Yes").score
        1.0
    """

    reason: str = Field("", description="why, in a few sentences")
    verdict: Literal["yes", "no"]

    @field_validator("verdict", mode="before")
    @classmethod
    def _word(cls, value: object) -> object:
        if isinstance(value, bool):
            return "yes" if value else "no"
        return value.strip().lower() if isinstance(value, str) else value

    @property
    def score(self) -> float:
        """1 for yes, 0 for no."""
        return float(self.verdict == "yes")


class PreferenceVerdict(BaseModel):
    """Which of two responses is better, and why.

    Example:
        >>> PreferenceVerdict(preferred="tie").score
        0.5
    """

    reason: str = Field("", description="why, in a few sentences")
    preferred: Literal["A", "B", "tie"]

    @property
    def score(self) -> float:
        """1 for A, 0 for B, 0.5 for a tie."""
        return {"A": 1.0, "B": 0.0, "tie": 0.5}[self.preferred]
