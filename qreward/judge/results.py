"""``JudgeAnswer``, the answer of a judged item."""

from __future__ import annotations

from qreward.judge.ranking import Ranking
from qreward.judge.types import Comparison, Verdict


class JudgeAnswer:
    """Holds a verdict, comparison or ranking as the answer of a ``Result``."""

    __slots__ = ("estimated", "usage", "value")

    def __init__(self, value: Verdict | Comparison | Ranking, *, estimated: bool = False) -> None:
        self.value, self.usage, self.estimated = value, value.usage, estimated

    def build(self) -> Verdict | Comparison | Ranking:
        return self.value

    def text(self) -> str:
        votes = getattr(self.value, "votes", ())
        return votes[0].text if votes else ""
