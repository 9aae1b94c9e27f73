"""The kind ``vllm``: ``/classify``, ``/pooling``, ``/score``, ``/rerank``, and rewards from ``/embeddings``."""

from __future__ import annotations

from typing import Any

from qreward.codecs.rewards import parsing
from qreward.codecs.rewards.answers import RewardScore
from qreward.codecs.rewards.base import ListCodec, NumberCodec, ServerKind
from qreward.codecs.rewards.openai import CompletionList, EmbeddingList, Rerank, VectorScore
from qreward.codecs.rewards.parsing import InvalidRow


class VllmClassify(NumberCodec):
    """Encodes and decodes ``POST /classify`` for a reward, which is one of the numbers in ``probs``."""

    path = "/classify"
    native = True
    chats = True
    value_in = "probs"
    last = True

    def defaults(self) -> dict[str, Any]:
        return {self.settings.activation_field: self.settings.activation}


class VllmLabels(VllmClassify):
    """Encodes and decodes ``POST /classify`` for the probability of each label."""

    def defaults(self) -> dict[str, Any]:
        return {self.settings.activation_field: True}

    def value(self, row: Any) -> Any:
        if isinstance(row, list):
            return parsing.labelled(row)
        row = parsing.row_of(row)
        probs = parsing.numbers(row.get("probs"), "probs")
        names = list(self.settings.labels) or [f"LABEL_{position}" for position in range(len(probs))]
        if len(names) != len(probs):
            raise InvalidRow(f"it has {len(probs)} classes, and labels names {len(names)}")
        best = row.get("label")
        if isinstance(best, str) and not self.settings.labels:
            names[probs.index(max(probs))] = best
        if len(set(names)) < len(names):
            raise InvalidRow("two of its classes have one name; name them all: RewardModel(labels=...)")
        return dict(zip(names, probs, strict=True))


class VllmPooling(VllmClassify):
    """Encodes and decodes ``POST /pooling`` for a reward. If the server returns a reward for each token or step, the last reward counts."""

    path = "/pooling"
    value_in = "data"

    def defaults(self) -> dict[str, Any]:
        return {**super().defaults(), "encoding_format": "float"}

    def value(self, row: Any) -> RewardScore:
        row = parsing.row_of(row)
        data = row.get("data")
        return super().value({"data": data[-1]} if isinstance(data, list) and data and isinstance(data[-1], list) else row)


class VllmScore(ListCodec):
    """Encodes and decodes ``POST /score`` for a cross-encoder."""

    path = "/score"
    native = True
    texts = False
    pairs = True

    def defaults(self) -> dict[str, Any]:
        return {self.settings.activation_field: self.settings.activation}

    def body(self, items: list[Any]) -> dict[str, Any]:
        return {"text_1": [pair.prompt for pair in items], "text_2": [pair.response for pair in items]}


class VllmVectorScore(VectorScore):
    """Encodes and decodes ``POST /embeddings`` at a server with a chat template. The server also takes conversations."""

    chats = True


class VllmRerank(Rerank):
    """Encodes and decodes ``POST /rerank`` at the root of the server, where all versions of vLLM serve this route."""

    native = True


VLLM = ServerKind(
    "vllm",
    {
        "score": {
            "": VllmClassify, "classify": VllmClassify, "pooling": VllmPooling, "score": VllmScore, "embeddings": VllmVectorScore,
        },
        "classify": VllmLabels,
        "rerank": VllmRerank,
        "embeddings": EmbeddingList,
        "completions": CompletionList,
    },
    probe=("/health", "/metrics"),
    chat=True,
    lists_models=True,
)  # fmt: skip
