"""Codecs of Text Embeddings Inference: ``/predict``, ``/rerank``, and the OpenAI route for embeddings.

In this API, ``["a", "b"]`` is one pair, so lists of items are always sent as lists of lists. If one item fails, the whole request fails.
"""

from __future__ import annotations

from typing import Any

from qreward.codecs import json as jsonio
from qreward.codecs.base import Malformed, WireRequest
from qreward.codecs.rewards import parsing
from qreward.codecs.rewards.answers import Score
from qreward.codecs.rewards.base import Conversation, ListCodec, MergeLimits, Pair
from qreward.codecs.rewards.openai_lists import EmbeddingList
from qreward.codecs.rewards.parsing import InvalidRow
from qreward.codecs.rewards.vllm import Rerank
from qreward.errors import BadRequest

LIMITS = MergeLimits(items=32, bytes=2_000_000)
"""Defaults of ``--max-client-batch-size`` and ``--payload-limit``. ``GET /info`` reports the first; a probe reads it."""


class TeiPredict(ListCodec):
    """``POST /predict``: the labels of each item, sorted by score."""

    path = "/predict"
    native = True
    limits = LIMITS

    def form(self, item: Any) -> Any:
        if isinstance(item, Conversation):
            raise BadRequest("/predict of this server takes no conversations; send (prompt, response), or a text")
        if isinstance(item, Pair) and self.settings.template is not None:
            return self.settings.render(item.prompt, item.response)
        return item

    def defaults(self) -> dict[str, Any]:
        return {"raw_scores": not self.settings.activation}

    def write(self, items: list[Any], model: str, params: dict[str, Any]) -> bytes:
        inputs = [[item.prompt, item.response] if isinstance(item, Pair) else [item] for item in items]
        return jsonio.write(model, "inputs", inputs, params, all_text=True)

    def rows(self, document: Any, call: WireRequest) -> list[Any]:
        count = len(call.inputs)
        if not isinstance(document, list):
            raise Malformed("the answer is not an array of predictions")
        if count == 1 and document and isinstance(document[0], dict):  # the form for an input that is not a list
            document = [document]
        return parsing.as_many(document, count, "results")

    def value(self, row: Any) -> Any:
        scores = self.scores(row)
        return Score(parsing.picked(scores, self._label(), ""), scores if len(scores) > 1 else None)

    def scores(self, row: Any) -> dict[str, float]:
        """Return label -> score. They are sorted by score, so only the name identifies a label."""
        return parsing.labelled(row)

    def _label(self) -> str | None:
        """Return the name of the label. A position refers to the classes of the model: those in the settings, or ``LABEL_0``, ..."""
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


class TeiLabels(TeiPredict):
    """``POST /predict`` for the probability of each label."""

    def defaults(self) -> dict[str, Any]:
        return {"raw_scores": False}

    def value(self, row: Any) -> dict[str, float]:
        return self.scores(row)


class TeiRerank(Rerank):
    """``POST /rerank``: an array, sorted by score."""

    native = True
    member = "texts"
    score_member = "score"
    limits = LIMITS

    def results(self, document: Any) -> list[Any]:
        if not isinstance(document, list):
            raise Malformed("the answer is not an array of rankings")
        return document


class TeiEmbeddings(EmbeddingList):
    """``POST /v1/embeddings``, which unlike ``/embed`` reports usage. ``/embeddings`` is the older name of the same route."""

    path = "/v1/embeddings"
    native = True
    limits = LIMITS
