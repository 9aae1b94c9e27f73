"""Codecs of the OpenAI APIs that take lists: embeddings, legacy completions and moderations."""

from __future__ import annotations

from typing import Any

from qreward.codecs import json as jsonio
from qreward.codecs.base import WireRequest
from qreward.codecs.rewards import parsing
from qreward.codecs.rewards.base import ListCodec, MergeLimits, Parts
from qreward.codecs.rewards.parsing import InvalidRow

OPENAI_LIMITS = MergeLimits(items=2048, tokens=300_000)
"""Limits of one embeddings request, as documented in the openai package."""


class EmbeddingList(ListCodec):
    """``POST /embeddings``: one vector of floats per item. A list of token ids is one item, so it is sent inside another list."""

    path = "/embeddings"

    def value(self, row: Any) -> list[float]:
        return parsing.numbers(parsing.row_of(row).get("embedding"), "embedding")


class OpenAIEmbeddingList(EmbeddingList):
    """The same with the limits of OpenAI's own API."""

    limits = OPENAI_LIMITS


class CompletionList(ListCodec):
    """``POST /completions``: the ``n`` choices of each prompt, numbered from 0. The finish reasons accepted are those of the chat codec.

    In the response, choice ``k`` of prompt ``i`` has the index ``i * n + k``.
    """

    path = "/completions"
    member = "prompt"

    def rows(self, document: Any, call: WireRequest) -> list[Any]:
        each, count = call.params.get("n") or 1, len(call.inputs)
        found = parsing.in_order(parsing.member(document, "choices"), count * each)
        return [found[start : start + each] for start in range(0, count * each, each)]

    def value(self, row: Any) -> list[Any]:
        choices = [parsing.row_of(choice) for choice in row]
        if not all(isinstance(choice.get("text"), str) for choice in choices):
            raise InvalidRow("one of its choices has no text")
        for choice in choices:
            parsing.check_ending(choice.get("finish_reason"))
        return [{**choice, "index": index} for index, choice in enumerate(choices)]

    def outputs(self, values: list[Any]) -> list[float] | None:
        return [sum(float(len(choice["text"])) for choice in value) if isinstance(value, list) else 0.0 for value in values]


class ModerationList(ListCodec):
    """``POST /moderations``: one result per item, by position. A list of parts is one item."""

    path = "/moderations"

    def write(self, items: list[Any], model: str, params: dict[str, Any]) -> bytes:
        if isinstance(items[0], Parts):
            return jsonio.write(model, "input", items[0].parts, params, all_text=False)
        return super().write(items, model, params)

    def rows(self, document: Any, call: WireRequest) -> list[Any]:
        return parsing.as_many(parsing.member(document, "results"), len(call.inputs), "results")

    def value(self, row: Any) -> dict[str, Any]:
        found = parsing.row_of(row)
        if not isinstance(found.get("flagged"), bool):
            raise InvalidRow("its result has no 'flagged'")
        return found
