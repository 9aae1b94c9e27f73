"""Responses to lists of items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from qreward.codecs.finish_reason import ending_of
from qreward.errors import InvalidResponse
from qreward.results import Usage

_MOST = 2**53  # largest total that ``share`` divides; above this number, floats cannot represent every whole number


class RewardScore(float):
    """Holds a reward: a float with the other numbers that the server returned.

    Attributes:
        attributes: name -> number, such as ``helpfulness`` and ``correctness``. Empty if the server returns only one number.

    Example:
        >>> score = RewardScore(1.25, {"helpfulness": 1.25, "correctness": 0.43})
        >>> score + 1, score.attributes["correctness"]
        (2.25, 0.43)
    """

    attributes: dict[str, float]

    def __new__(cls, value: float, attributes: dict[str, float] | None = None) -> RewardScore:
        score = super().__new__(cls, value)
        score.attributes = attributes or {}
        return score

    def __reduce__(self) -> tuple[Any, ...]:
        return RewardScore, (float(self), self.attributes)


class ItemAnswer(msgspec.Struct, gc=False):
    value: Any
    usage: Usage | None
    estimated: bool

    def build(self) -> Any:
        return self.value

    def text(self) -> str:
        text = self._first().get("text")
        return text if isinstance(text, str) else ""

    @property
    def finish_reason(self) -> str | None:
        return ending_of(self._first().get("finish_reason"))

    def _first(self) -> dict[str, Any]:
        first = self.value[0] if isinstance(self.value, list) and self.value else None
        return first if isinstance(first, dict) else {}


class ListAnswer(msgspec.Struct, gc=False):
    items: list[Any]
    usage: Usage | None
    each: Sequence[Usage | None] | None
    sizes: list[float]
    outputs: list[float] | None = None
    kind: type[ItemAnswer] = ItemAnswer

    def text(self) -> str:
        return ""

    def build(self) -> list[Any]:
        """Return the values. Raises the error of the first failed item."""
        for item in self.items:
            if isinstance(item, InvalidResponse):
                raise item
        return self.items

    def shares(self) -> list[ItemAnswer | InvalidResponse]:
        whole, count = self.usage, len(self.items)
        estimated = self.each is None and whole is not None and count > 1
        usages = self._estimated(whole) if estimated and whole is not None else self.each or [whole] * count
        return [
            item if isinstance(item, InvalidResponse) else self.kind(item, usage, estimated)
            for item, usage in zip(self.items, usages, strict=True)
        ]

    def _estimated(self, whole: Usage) -> list[Usage]:
        prompts = share(whole.prompt_tokens, self.sizes)
        outputs = share(whole.completion_tokens, self.outputs or self.sizes)
        totals = share(whole.total_tokens, self.sizes)
        if self.outputs is not None:
            totals = [None if None in pair else sum(pair) for pair in zip(prompts, outputs, strict=True)]  # type: ignore[arg-type]
        return [Usage(*counts) for counts in zip(prompts, outputs, totals, strict=True)]


def share(total: int | None, sizes: Sequence[float]) -> list[int | None]:
    """Split a total into integers in proportion to the sizes (Hamilton's method of largest remainders)."""
    if total is None or not 0 <= total <= _MOST:
        return [None] * len(sizes)
    whole = sum(sizes)
    exact = [total * size / whole for size in sizes] if whole > 0 else [total / len(sizes)] * len(sizes)
    counts = [int(part) for part in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda index: counts[index] - exact[index])
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return list(counts)


class Choices(ItemAnswer, gc=False):
    def build(self) -> Any:
        from openai.types import CompletionChoice  # noqa: PLC0415 - takes most of a second, and is often not needed

        return [CompletionChoice.construct(**{"logprobs": None, **choice}) for choice in self.value]


class Moderated(ItemAnswer, gc=False):
    def build(self) -> Any:
        from openai.types import Moderation  # noqa: PLC0415

        return Moderation.construct(**self.value)
