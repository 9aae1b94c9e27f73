"""The kind ``tei``, Text Embeddings Inference: ``/predict``, ``/rerank``, and the OpenAI route for embeddings."""

from __future__ import annotations

from typing import Any

from qreward.codecs.rewards import parsing
from qreward.codecs.rewards.answers import RewardScore
from qreward.codecs.rewards.base import ListCodec, MergeLimits, Pair, ServerKind
from qreward.codecs.rewards.openai import EmbeddingList, Rerank
from qreward.codecs.rewards.parsing import InvalidRow

LIMITS = MergeLimits(items=32, bytes=2_000_000)
"""Limits of one request: the defaults of the server's options ``--max-client-batch-size`` (items) and ``--payload-limit`` (bytes). A probe
reads the limit of the items from ``GET /info``."""


class TeiLabels(ListCodec):
    """Encodes and decodes ``POST /predict`` for the probability of each label. The server sorts labels by score."""

    path = "/predict"
    native = True
    pairs = True
    rows_in = ""
    limits = LIMITS

    def defaults(self) -> dict[str, Any]:
        return {"raw_scores": False}

    def body(self, items: list[Any]) -> dict[str, Any]:
        return {"inputs": [[item.prompt, item.response] if isinstance(item, Pair) else [item] for item in items]}

    def value(self, row: Any) -> Any:
        return parsing.labelled(row)


class TeiPredict(TeiLabels):
    def defaults(self) -> dict[str, Any]:
        return {"raw_scores": not self.settings.activation}

    def value(self, row: Any) -> RewardScore:
        scores = parsing.labelled(row)
        return RewardScore(parsing.by_name(scores, self._label(), ""), scores if len(scores) > 1 else None)

    def _label(self) -> str | None:
        label, names = self.settings.label, self.settings.labels
        if not isinstance(label, int):
            return label
        if names and -len(names) <= label < len(names):
            return names[label]
        if label < 0:
            raise InvalidRow(
                "its labels are sorted by score, so a position means nothing; set RewardModel(label=...) to a name, or set labels"
            )
        return f"LABEL_{label}"


class TeiRerank(Rerank):
    """Encodes and decodes ``POST /rerank``, which returns an array that is sorted by score."""

    native = True
    member = "texts"
    rows_in = ""
    value_in = "score"
    limits = LIMITS


class TeiEmbeddings(EmbeddingList):
    """Encodes and decodes ``POST /v1/embeddings``. This route is used instead of ``/embed``, because its response has the usage."""

    path = "/v1/embeddings"
    native = True
    limits = LIMITS


TEI = ServerKind(
    "tei",
    {
        "score": {"": TeiPredict, "classify": TeiPredict},
        "classify": TeiLabels,
        "rerank": TeiRerank,
        "embeddings": TeiEmbeddings,
    },
    probe=("/health", "/metrics"),
    info="/info",
)
