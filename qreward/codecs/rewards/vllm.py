"""Codecs of vLLM: ``/classify``, ``/pooling``, ``/score``, ``/rerank``, and rewards from ``/embeddings``.

vLLM makes one engine request of each item of a list, and accepts all or none: one item that is too long is a 400 for the whole list. A
conversation must be sent in a request of its own.
"""

from __future__ import annotations

from typing import Any

from qreward.codecs import json as jsonio
from qreward.codecs.base import Malformed, WireRequest
from qreward.codecs.rewards import parsing
from qreward.codecs.rewards.answers import Score
from qreward.codecs.rewards.base import ListCodec, Pair, TextCodec
from qreward.codecs.rewards.parsing import InvalidRow
from qreward.errors import BadRequest


class VllmClassify(TextCodec):
    """``POST /classify``: the reward is one of ``probs``, which are raw logits while ``use_activation`` is false."""

    path = "/classify"
    native = True
    has_template = True

    def defaults(self) -> dict[str, Any]:
        return {self.settings.activation_field: self.settings.activation}

    def value(self, row: Any) -> Score:
        probs = parsing.numbers(parsing.row_of(row).get("probs"), "probs")
        return Score(parsing.chosen(probs, self.settings.label, self.settings.labels, last=True, what="probs"))


class VllmLabels(VllmClassify):
    """``POST /classify`` for the probability of each label.

    vLLM returns the name of the most likely label only. The others take their names from the settings, or ``LABEL_0``, ``LABEL_1``, ...
    The server Infinity, which has the same API, returns all names.
    """

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


class VllmPooling(TextCodec):
    """``POST /pooling``: the reward of a sequence. If there is one for each token or step, the last one."""

    path = "/pooling"
    native = True
    has_template = True

    def defaults(self) -> dict[str, Any]:
        return {self.settings.activation_field: self.settings.activation, "encoding_format": "float"}

    def value(self, row: Any) -> Score:
        data = parsing.row_of(row).get("data")
        if isinstance(data, list) and data and isinstance(data[-1], list):
            data = data[-1]
        values = parsing.numbers(data, "data")
        return Score(parsing.chosen(values, self.settings.label, self.settings.labels, last=True, what="data"))


class VllmScore(ListCodec):
    """``POST /score``: pairs for a cross-encoder, as two lists of N texts, so that pairs of different callers may share a request.

    All versions accept the names ``text_1`` and ``text_2``.
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
        return Score(parsing.number(parsing.row_of(row).get("score")))


class VectorScore(TextCodec):
    """``POST /embeddings`` of a server that returns a reward as a vector of one number (SGLang, vLLM, and servers with their API).

    A longer vector is an embedding and not a reward, unless the settings select one of its numbers by ``label``.
    """

    path = "/embeddings"

    def value(self, row: Any) -> Score:
        vector = parsing.numbers(parsing.row_of(row).get("embedding"), "embedding")
        return Score(parsing.chosen(vector, self.settings.label, self.settings.labels, last=False, what="embedding"))


class VllmVectorScore(VectorScore):
    """The same for a server with a chat template."""

    has_template = True


class Rerank(ListCodec):
    """``POST /rerank`` of vLLM and Jina. The items are documents; all share the query of the call. Results are sorted and have an index."""

    path = "/rerank"
    member = "documents"
    score_member = "relevance_score"

    def rows(self, document: Any, call: WireRequest) -> list[Any]:
        rows = self.results(document)
        if any(not isinstance(row, dict) or row.get("index") is None for row in rows):
            raise Malformed("the ranking has no indexes, so its scores cannot be matched to documents")
        return parsing.in_order(rows, len(call.inputs))

    def results(self, document: Any) -> list[Any]:
        return parsing.member(document, "results")

    def value(self, row: Any) -> float:
        return parsing.number(parsing.row_of(row).get(self.score_member))


class VllmRerank(Rerank):
    """``POST /rerank`` of vLLM, which all versions serve at the root of the server."""

    native = True
