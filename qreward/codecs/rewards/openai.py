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
    """``POST /embeddings`` of a server that returns a reward as a vector of one number (SGLang, vLLM, and servers with the same API).

    A longer vector is an embedding, so it is an error unless ``RewardModel.label`` selects one of its numbers.
    """

    path = "/embeddings"
    value_in = "embedding"


class EmbeddingList(ListCodec):
    """``POST /embeddings``: one vector of floats per item. An item is a text or a list of token ids."""

    path = "/embeddings"

    def value(self, row: Any) -> list[float]:
        return parsing.numbers(parsing.row_of(row).get("embedding"), "embedding")


class OpenAIEmbeddingList(EmbeddingList):
    """``POST /embeddings`` with the limits of OpenAI's own API, which the openai package documents."""

    limits = MergeLimits(items=2048, tokens=300_000)


class CompletionList(ListCodec):
    """``POST /completions``: a list of ``n`` choices for each prompt. The accepted finish reasons are those of the chat codec.

    In the response, choice ``k`` of prompt ``i`` has the index ``i * n + k``. In the result it has the index ``k``.
    """

    path = "/completions"
    member = "prompt"
    answer = Choices

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
    """``POST /moderations``: one result per item. An item is a text or a list of parts."""

    path = "/moderations"
    rows_in = "results"
    answer = Moderated

    def value(self, row: Any) -> dict[str, Any]:
        found = parsing.row_of(row)
        if not isinstance(found.get("flagged"), bool):
            raise InvalidRow("its result has no 'flagged'")
        return found


class Rerank(ListCodec):
    """``POST /rerank`` of vLLM and Jina. The items are documents. All items share the query of the call. Results are matched by index."""

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
"""A server with OpenAI's Batch API. Only bulk runs use it. They send their requests as batches of the provider."""
