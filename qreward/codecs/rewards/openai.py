"""The kind ``openai``: embeddings, legacy completions, moderations, rankings, and rewards that are sent as vectors of one number."""

from __future__ import annotations

from typing import Any

from qreward.codecs.base import Malformed, WireRequest
from qreward.codecs.rewards import parsing
from qreward.codecs.rewards.answers import Choices, Moderated
from qreward.codecs.rewards.base import ListCodec, MergeLimits, NumberCodec, ServerKind
from qreward.codecs.rewards.parsing import InvalidRow
from qreward.settings.policies import BATCH_KIND


class VectorScore(NumberCodec):
    """Encodes and decodes ``POST /embeddings`` at a server that returns a reward as a vector of one number (SGLang, vLLM, and servers with
    the same API)."""

    path = "/embeddings"
    value_in = "embedding"


class EmbeddingList(ListCodec):
    """Encodes and decodes ``POST /embeddings``. The value of an item is a vector of floats. An item is a text or a list of token ids."""

    path = "/embeddings"

    def value(self, row: Any) -> list[float]:
        return parsing.numbers(parsing.row_of(row).get("embedding"), "embedding")


class OpenAIEmbeddingList(EmbeddingList):
    """Encodes and decodes ``POST /embeddings`` with the limits of OpenAI's own API, which the openai package documents."""

    limits = MergeLimits(items=2048, tokens=300_000)


class CompletionList(ListCodec):
    """Encodes and decodes ``POST /completions``. The value of a prompt is a list of ``n`` choices."""

    path = "/completions"
    member = "prompt"
    answer = Choices

    def body(self, items: list[Any]) -> dict[str, Any]:
        """Return the prompts. A single text is not sent as a list, because some servers take no lists."""
        return {self.member: items[0]} if len(items) == 1 and type(items[0]) is str else super().body(items)

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
    """Encodes and decodes ``POST /moderations``. The value of an item is its moderation. An item is a text or a list of parts."""

    path = "/moderations"
    rows_in = "results"
    answer = Moderated

    def value(self, row: Any) -> dict[str, Any]:
        found = parsing.row_of(row)
        if not isinstance(found.get("flagged"), bool):
            raise InvalidRow("its result has no 'flagged'")
        return found


class Rerank(ListCodec):
    """Encodes and decodes ``POST /rerank`` as vLLM and Jina serve it. The items are documents. All items share the query of the call."""

    path = "/rerank"
    member = "documents"
    rows_in = "results"
    value_in = "relevance_score"

    def rows(self, document: Any, call: WireRequest) -> list[Any]:
        rows = parsing.member(document, self.rows_in)
        if any(not isinstance(row, dict) or row.get("index") is None for row in rows):
            raise Malformed("the ranking has no indexes, so its scores cannot be matched to documents")
        return parsing.in_order(rows, len(call.inputs))

    def value(self, row: Any) -> float:
        return parsing.number(parsing.row_of(row).get(self.value_in))


OPENAI = ServerKind(
    "openai",
    {
        "score": {"embeddings": VectorScore},
        "rerank": Rerank,
        "embeddings": OpenAIEmbeddingList,
        "completions": CompletionList,
        "moderations": ModerationList,
    },
    probe=("/v1/models",),
    chat=True,
    lists_models=True,
)
OPENAI_BATCH = ServerKind(BATCH_KIND, {}, probe=OPENAI.probe, chat=True, lists_models=True)
"""The kind of a server with OpenAI's Batch API. Only bulk runs use this kind. A bulk run sends its requests as batches of the provider."""
