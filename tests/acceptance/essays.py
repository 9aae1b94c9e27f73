"""Long answers for streams, which anyone can know beforehand: the fleet writes them, the tests compare."""

from __future__ import annotations

from random import Random
from typing import Any

WORDS = ("the", "answer", "is", "über", "日本語", "🎈", "👩‍🔬", "\n", '"quoted"', "{}", "data: no", "\\", "\u2028", "é", "50 %")


def essay_of(number: int) -> str:
    """The answer to question ``number``: some hundred characters of one to four bytes each."""
    rng = Random(number)
    return f"#{number}: " + " ".join(rng.choices(WORDS, k=rng.randint(20, 200)))


def essay(messages: list[Any]) -> str:
    """The responder."""
    return essay_of(int(messages[0]["content"].split()[-1]))


def flood(_: list[Any]) -> str:
    """A responder that says more than any buffer holds."""
    return FLOOD


FLOOD = "0123456789abcdef" * (2 << 20)  # 32 MB
