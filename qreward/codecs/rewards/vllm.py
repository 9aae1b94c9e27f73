"""vLLM: ``/classify``, ``/pooling``, ``/score``, ``/rerank`` and rewards out of ``/embeddings``.

A list becomes one engine request an element, all or nothing: one that is too long is a 400 for all. A conversation is one a request.
"""

from __future__ import annotations

from typing import Any

from qreward.codecs import json as jsonio
from qreward.codecs.base import Malformed, WireRequest
from qreward.codecs.rewards import parsing as reading
from qreward.codecs.rewards.answers import Score
from qreward.codecs.rewards.base import ListCodec, Pair, TextCodec
from qreward.codecs.rewards.parsing import InvalidRow
from qreward.errors import BadRequest


class VllmClassify(TextCodec):
    """``POST /classify``: the reward is one of ``probs``, raw logits as ``use_activation`` is false."""

    path = "/classify"
    native = True
    has_template = True

    def defaults(self) -> dict[str, Any]:
        return {self.settings.activation_field: self.settings.activation}

    def value(self, row: Any) -> Score:
        probs = reading.numbers(reading.row_of(row).get("probs"), "probs")
        return Score(reading.chosen(probs, self.settings.label, self.settings.labels, last=True, what="probs"))


class VllmLabels(VllmClassify):
    """``POST /classify`` for probabilities by label.

    The server names the most likely label only; the others have the names of the settings, or ``LABEL_0``, ``LABEL_1``, ... Infinity,
    which is asked in the same way, names them all.
    """

    def defaults(self) -> dict[str, Any]:
        return {self.settings.activation_field: True}

    def value(self, row: Any) -> Any:
        if isinstance(row, list):
            return reading.labelled(row)
        row = reading.row_of(row)
        probs = reading.numbers(row.get("probs"), "probs")
        names = list(self.settings.labels) or [f"LABEL_{position}" for position in range(len(probs))]
        if len(names) != len(probs):
            raise InvalidRow(f"it has {len(probs)} classes, and labels names {len(names)}")
        best = row.get("label")
        if isinstance(best, str) and not self.settings.labels:
            names[probs.index(max(probs))] = best
        if len(set(names)) < len(names):
            raise InvalidRow("two of its classes have one name; name them all: RewardModel(labels=...)")
        return dict(zip(names, probs, strict=True))


class VllmPooling(TextCodec):
    """``POST /pooling``: the reward of a sequence, or of its last token or step where there is one for each."""

    path = "/pooling"
    native = True
    has_template = True

    def defaults(self) -> dict[str, Any]:
        return {self.settings.activation_field: self.settings.activation, "encoding_format": "float"}

    def value(self, row: Any) -> Score:
        data = reading.row_of(row).get("data")
        if isinstance(data, list) and data and isinstance(data[-1], list):
            data = data[-1]
        values = reading.numbers(data, "data")
        return Score(reading.chosen(values, self.settings.label, self.settings.labels, last=True, what="data"))


class VllmScore(ListCodec):
    """``POST /score``: pairs for a cross-encoder, N by N, so that pairs of different callers may share a request.

    ``text_1`` and ``text_2`` are the names that all versions take.
    """

    path = "/score"
    native = True

    def form(self, item: Any) -> Any:
        if not isinstance(item, Pair):
            raise BadRequest("/score of this server takes pairs; send (prompt, response), or set RewardModel(route='classify')")
        return item

    def defaults(self) -> dict[str, Any]:
        return {self.settings.activation_field: self.settings.activation}

    def write(self, items: list[Any], model: str, params: dict[str, Any]) -> bytes:
        params = {"text_2": [pair.response for pair in items], **params}
        return jsonio.write(model, "text_1", [pair.prompt for pair in items], params, all_text=True)

    def value(self, row: Any) -> Score:
        return Score(reading.number(reading.row_of(row).get("score")))


class VectorScore(TextCodec):
    """``POST /embeddings`` of a server that gives a reward as a vector of one number (SGLang, vLLM, and what speaks as they do).

    A longer vector is an embedding and no reward, unless the settings say which of its numbers counts.
    """

    path = "/embeddings"

    def value(self, row: Any) -> Score:
        vector = reading.numbers(reading.row_of(row).get("embedding"), "embedding")
        return Score(reading.chosen(vector, self.settings.label, self.settings.labels, last=False, what="embedding"))


class VllmVectorScore(VectorScore):
    """The same where the server has a template for conversations."""

    has_template = True


class Rerank(ListCodec):
    """``POST /rerank`` of vLLM and Jina: the items are documents, the query is the call's; results come sorted, with their index."""

    path = "/rerank"
    member = "documents"
    score_member = "relevance_score"

    def rows(self, document: Any, call: WireRequest) -> list[Any]:
        rows = self.results(document)
        if any(not isinstance(row, dict) or row.get("index") is None for row in rows):
            raise Malformed("the ranking has no indexes, so its scores cannot be matched to documents")
        return reading.in_order(rows, len(call.inputs))

    def results(self, document: Any) -> list[Any]:
        return reading.member(document, "results")

    def value(self, row: Any) -> float:
        return reading.number(reading.row_of(row).get(self.score_member))


class VllmRerank(Rerank):
    """``/rerank`` lies at the root of vLLM, as of all versions."""

    native = True
