"""What comes back for a list: a value or an error for each item, and what each of them used. Knows no dialect.

Answers to single items that are given out as openai's types, made when they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from qreward.codecs.finish_reason import ending_of
from qreward.errors import InvalidResponse
from qreward.results import Usage

_MOST = 2**53  # beyond it, floats skip whole numbers


class Score(float):
    """A reward. A plain number, with what else the server said of it.

    Attributes:
        attributes: name -> number, such as ``helpfulness`` and ``correctness``; empty if the server gives one number only.

    Example:
        >>> score = Score(1.25, {"helpfulness": 1.25, "correctness": 0.43})
        >>> score + 1, score.attributes["correctness"]
        (2.25, 0.43)
    """

    attributes: dict[str, float]

    def __new__(cls, value: float, attributes: dict[str, float] | None = None) -> Score:
        score = super().__new__(cls, value)
        score.attributes = attributes or {}
        return score

    def __reduce__(self) -> tuple[Any, ...]:
        return Score, (float(self), self.attributes)


class ItemAnswer(msgspec.Struct, gc=False):
    """The answer to one item of a list, as ``qreward.results.Answered`` has it.

    Attributes:
        value: a ``Score``, label -> probability, a vector, choices, ...
        usage: its share of what the whole request used.
        estimated: the server told the sum only; the shares go by the estimated size of the items.
    """

    value: Any
    usage: Usage | None
    estimated: bool

    def build(self) -> Any:
        return self.value

    def text(self) -> str:
        """Words, if the answer is a completion; else ``""``."""
        said = self._first().get("text")
        return said if isinstance(said, str) else ""

    @property
    def finish_reason(self) -> str | None:
        """How the first choice ended, if the answer is a completion."""
        return ending_of(self._first().get("finish_reason"))

    def _first(self) -> dict[str, Any]:
        first = self.value[0] if isinstance(self.value, list) and self.value else None
        return first if isinstance(first, dict) else {}


class ListAnswer(msgspec.Struct, gc=False):
    """The answer to a list of items, at least one of which has a value.

    Attributes:
        items: for each item, in their order, its value, or an ``InvalidResponse`` that says what is wrong with it.
        usage: of the whole request.
        each: usage of each item, where the server tells it.
        sizes: estimated prompt tokens of each item.
        outputs: size of what was written for each item, if anything was.
    """

    items: list[Any]
    usage: Usage | None
    each: list[Usage | None] | None
    sizes: list[float]
    outputs: list[float] | None = None

    def text(self) -> str:
        return ""

    def build(self) -> list[Any]:
        """The values. Raises the error of the first item that has none."""
        for item in self.items:
            if isinstance(item, InvalidResponse):
                raise item
        return self.items

    def shares(self) -> list[ItemAnswer | InvalidResponse]:
        """One answer, or error, an item, each with its own share of the usage."""
        usages, estimated = self._usages()
        return [
            item if isinstance(item, InvalidResponse) else ItemAnswer(item, usage, estimated)
            for item, usage in zip(self.items, usages, strict=True)
        ]

    def _usages(self) -> tuple[Sequence[Usage | None], bool]:
        if self.each is not None:
            return self.each, False
        whole, count = self.usage, len(self.items)
        if whole is None or count == 1:
            return [whole] * count, False
        prompts = share(whole.prompt_tokens, self.sizes)
        outputs = share(whole.completion_tokens, self.outputs or self.sizes)
        totals = share(whole.total_tokens, self.sizes) if self.outputs is None else _sums(prompts, outputs)
        return [Usage(*counts) for counts in zip(prompts, outputs, totals, strict=True)], True


def share(total: int | None, sizes: Sequence[float]) -> list[int | None]:
    """Whole numbers in proportion to the sizes, whose sum is the total (Hamilton's method of largest remainders).

    A total that cannot be a count of tokens is shared as None.

    Example:
        >>> share(10, [1.0, 1.0, 2.0])
        [3, 2, 5]
    """
    if total is None or not 0 <= total <= _MOST:
        return [None] * len(sizes)
    whole = sum(sizes)
    exact = [total * size / whole for size in sizes] if whole > 0 else [total / len(sizes)] * len(sizes)
    counts = [int(part) for part in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda index: counts[index] - exact[index])
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return list(counts)


def _sums(prompts: list[int | None], outputs: list[int | None]) -> list[int | None]:
    return [None if prompt is None or output is None else prompt + output for prompt, output in zip(prompts, outputs, strict=True)]


class Choices(ItemAnswer, gc=False):
    """The choices of one prompt."""

    def build(self) -> Any:
        """A list of openai's ``CompletionChoice``."""
        from openai.types import CompletionChoice  # noqa: PLC0415 - takes most of a second, and many never ask

        return [CompletionChoice.construct(**{"logprobs": None, **choice}) for choice in self.value]


class Moderated(ItemAnswer, gc=False):
    """What was found of one input."""

    def build(self) -> Any:
        """Openai's ``Moderation``."""
        from openai.types import Moderation  # noqa: PLC0415

        return Moderation.construct(**self.value)
