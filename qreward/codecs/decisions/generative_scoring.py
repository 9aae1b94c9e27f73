"""The dialect ``generative_scoring``: vLLM's ``POST /generative_scoring``, which takes only ``YesNo`` questions.

The server compares the probabilities that the next token is yes or no. The server needs the ids of both tokens, from
``Endpoint(decision_labels=(yes, no))``. The server applies no chat template: the model continues a text that ends with ``Answer:``. A text
that is too long for the model is truncated without an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from qreward.codecs.base import Malformed
from qreward.codecs.decisions.base import Dialect, probability
from qreward.codecs.decisions.chat import asked
from qreward.decisions import FoundAnswer, Question, YesNo
from qreward.errors import BadRequest
from qreward.settings.policies import Endpoint


class GenerativeScoringDialect(Dialect):
    """Sends ``YesNo`` questions as items of one query. ``labels`` holds the ids of the tokens for yes and no."""

    name = "generative_scoring"
    path = "/generative_scoring"
    native = True
    most_questions = 64
    most_options = 2
    input_member = "query"
    questions_member = "items"
    kinds = (YesNo,)
    reserved = frozenset({"model", "query", "items", "label_token_ids", "apply_softmax", "item_first"})

    def __init__(self, labels: tuple[int, int] | None = None) -> None:
        super().__init__({"label_token_ids": labels, "apply_softmax": True})
        self.labels = labels

    def at(self, endpoint: Endpoint) -> Dialect:
        return _with_labels(getattr(endpoint, "decision_labels", None))

    def write(self, question: Question) -> str:
        return f"\n\n{asked(question)}\nAnswer:"

    def check(self, questions: Sequence[Question], params: Mapping[str, Any]) -> None:
        super().check(questions, params)
        if self.labels is None:
            raise BadRequest(f"{self.path} needs the ids of the tokens for yes and no; set Endpoint(decision_labels=(yes, no))")

    def rows(self, document: dict[str, Any], count: int) -> Sequence[Any]:
        found = document.get("data")
        if not isinstance(found, list) or [row.get("index") if isinstance(row, dict) else None for row in found] != list(range(count)):
            raise Malformed(f"the answer has no list of scores of {count} items")
        return found

    def read(self, question: Question, row: Any) -> FoundAnswer:  # noqa: ARG002 - all questions are alike
        yes = probability(row.get("score"))
        return FoundAnswer((yes, 1.0 - yes))


@lru_cache(maxsize=256)
def _with_labels(labels: tuple[int, int] | None) -> GenerativeScoringDialect:
    return GENERATIVE_SCORING if labels is None else GenerativeScoringDialect(labels)


GENERATIVE_SCORING = GenerativeScoringDialect()
