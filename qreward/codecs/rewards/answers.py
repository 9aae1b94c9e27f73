"""Responses to lists of items: a value or an error for each item, and the usage of each. Knows no server's API.

Results that have a type of the openai package are built on demand.
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
    """A reward: a float, with the other numbers that the server returned.

    Attributes:
        attributes: name -> number, such as ``helpfulness`` and ``correctness``. Empty if the server returns only one number.

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
    """The result of one item of a list. Implements ``qreward.results.Answered``.

    Attributes:
        value: a ``Score``, label -> probability, a vector, choices, ...
        usage: its share of the usage of the whole request.
        estimated: True if the server reported only the total, so that ``usage`` is a share by the estimated size of the items.
    """

    value: Any
    usage: Usage | None
    estimated: bool

    def build(self) -> Any:
        return self.value

    def text(self) -> str:
        """Return the text of the first choice if the result is a completion; else ``""``."""
        said = self._first().get("text")
        return said if isinstance(said, str) else ""

    @property
    def finish_reason(self) -> str | None:
        """Why the first choice ended, if the result is a completion; else None."""
        return ending_of(self._first().get("finish_reason"))

    def _first(self) -> dict[str, Any]:
        first = self.value[0] if isinstance(self.value, list) and self.value else None
        return first if isinstance(first, dict) else {}


class ListAnswer(msgspec.Struct, gc=False):
    """The response to a list of items, at least one of which has a value.

    Attributes:
        items: for each item, in the order of the request, its value or an ``InvalidResponse``.
        usage: of the whole request.
        each: usage of each item, if the server reports it.
        sizes: estimated prompt tokens of each item.
        outputs: size of the generated text of each item, if any.
    """

    items: list[Any]
    usage: Usage | None
    each: list[Usage | None] | None
    sizes: list[float]
    outputs: list[float] | None = None

    def text(self) -> str:
        return ""

    def build(self) -> list[Any]:
        """Return the values. Raises the error of the first failed item."""
        for item in self.items:
            if isinstance(item, InvalidResponse):
                raise item
        return self.items

    def shares(self) -> list[ItemAnswer | InvalidResponse]:
        """Return the result or the error of each item, each result with its share of the usage."""
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
    """Split a total into integers in proportion to the sizes (Hamilton's method of largest remainders).

    A total that cannot be a number of tokens yields None for each.

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
    """The choices of a completion for one prompt."""

    def build(self) -> Any:
        """Return a list of openai ``CompletionChoice``."""
        from openai.types import CompletionChoice  # noqa: PLC0415 - takes most of a second, and is often not needed

        return [CompletionChoice.construct(**{"logprobs": None, **choice}) for choice in self.value]


class Moderated(ItemAnswer, gc=False):
    """The moderation of one input."""

    def build(self) -> Any:
        """Return an openai ``Moderation``."""
        from openai.types import Moderation  # noqa: PLC0415

        return Moderation.construct(**self.value)
