"""A synthetic judge that sometimes takes a wrong option for the true option, and what a judge answers to a question."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from qreward.decisions import Question, Score, YesNo
from qreward.testing import SyntheticJudge
from qreward.testing.responders import Asked, stated_truths, uniform


class FaultyJudge(SyntheticJudge):
    """Answers as ``SyntheticJudge``, but for its mistakes, in which it is as confident as otherwise.

    Args:
        flip: probability that the judge takes a wrong option for the true option.
    """

    flip: float = Field(default=0.0, ge=0, le=1)

    def seen(self, text: str, asked: Asked) -> list[float]:
        logits = super().seen(text, asked)
        if not self.flip or uniform("flip", self.seed, text, asked) >= self.flip:
            return logits
        compared = len(stated_truths(text, asked)[1]) or len(logits)
        return _flipped(logits, asked, compared, uniform("to", self.seed, text, asked))


def _flipped(logits: list[float], asked: Asked, compared: int, draw: float) -> list[float]:
    """Return the logits of a judge that takes a wrong option for the true option."""
    if asked.kind != "choice":
        return logits[::-1]
    best = logits.index(max(logits))
    others = [place for place in range(min(compared, len(logits))) if place != best]
    other = others[int(draw * len(others))]
    flipped = list(logits)
    flipped[best], flipped[other] = logits[other], logits[best]
    return flipped


def asked_of(question: Question) -> Asked:
    """Return a question as fake servers have it."""
    kind: Any = "yes_no" if isinstance(question, YesNo) else "score" if isinstance(question, Score) else "choice"
    return Asked(kind, question.instructions, question.options, question.name)


def distribution(judge: SyntheticJudge, text: str, question: Question) -> tuple[float, ...]:
    """Return the probability of each option, as a judge reports it."""
    return judge.read(text, asked_of(question)).probabilities
