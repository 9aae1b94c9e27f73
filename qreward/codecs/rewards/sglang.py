"""The kind ``sglang``: rewards from ``/classify``, probabilities of labels from ``/v1/classify``, and ``/v1/rerank``."""

from __future__ import annotations

from typing import Any

from qreward.codecs import json as jsonio
from qreward.codecs.finish_reason import ABORTED, described, ending_of
from qreward.codecs.rewards.answers import RewardScore
from qreward.codecs.rewards.base import NumberCodec, ServerKind
from qreward.codecs.rewards.openai import CompletionList, EmbeddingList, Rerank, VectorScore
from qreward.codecs.rewards.parsing import InvalidRow
from qreward.codecs.rewards.vllm import VllmLabels
from qreward.results import Usage


class SglangClassify(NumberCodec):
    """Encodes and decodes ``POST /classify``, which returns an array of ``{"embedding", "meta_info"}`` in the order of the texts."""

    path = "/classify"
    native = True
    member = "text"
    rows_in = ""
    value_in = "embedding"

    def value(self, row: Any) -> RewardScore:
        ending = ending_of(_meta(row).get("finish_reason"))
        if ending in ABORTED:
            raise InvalidRow(described(ending))
        return super().value(row)

    def usages(self, rows: list[Any]) -> list[Usage] | None:
        found = [jsonio.usage_of(_meta(row)) for row in rows]
        if any(used is None or used.prompt_tokens is None for used in found):
            return None
        return [Usage(used.prompt_tokens, None, used.prompt_tokens) for used in found if used is not None]


class SglangLabels(VllmLabels):
    """Encodes and decodes ``POST /v1/classify`` for the probability of each label."""

    path = "/v1/classify"
    chats = False

    def defaults(self) -> dict[str, Any]:
        return {}

    def value(self, row: Any) -> Any:
        probs = super().value(row)
        if len(probs) == 1:
            raise InvalidRow("the model has one class, for which this server always returns 1.0; call score() instead")
        return probs


class SglangRerank(Rerank):
    """Encodes and decodes ``POST /v1/rerank``, which returns an array that is sorted by score."""

    path = "/v1/rerank"
    native = True
    rows_in = ""
    value_in = "score"


def _meta(row: Any) -> dict[str, Any]:
    found = row.get("meta_info") if isinstance(row, dict) else None
    return found if isinstance(found, dict) else {}


SGLANG = ServerKind(
    "sglang",
    {
        "score": {"": SglangClassify, "classify": SglangClassify, "embeddings": VectorScore},
        "classify": SglangLabels,
        "rerank": SglangRerank,
        "embeddings": EmbeddingList,
        "completions": CompletionList,
    },
    probe=("/health", "/v1/loads"),
    chat=True,
)
