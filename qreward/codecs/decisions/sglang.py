"""The dialect ``sglang``: ``POST /decisions`` as SGLang 0.5.23 serves it (``entrypoints/openai/serving_decisions.py``).

Only the path is the same as in OpenAI's API. A question has an id, the answers are a mapping by these ids, and options are names that must
differ by more than upper and lower case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qreward.codecs.decisions.base import (
    Dialect,
    InvalidAnswer,
    answers_by_id,
    described,
    distribution,
    mass,
    member,
    named_numbers,
    unique_names,
)
from qreward.decisions import Choice, FoundAnswer, Question, Score, YesNo

_TYPES = {YesNo: "yes_no", Score: "score", Choice: "choice"}


class SGLangDialect(Dialect):
    """Asks SGLang for decisions. SGLang reports the label mass of every answer."""

    name = "sglang"
    path = "/decisions"
    most_questions = 64  # the server has no limit, but scores the prompts of all questions in a request together
    most_options = 26

    def write(self, question: Question) -> dict[str, Any]:
        asked: dict[str, Any] = {"type": _TYPES[type(question)], "question": question.instructions}
        if isinstance(question, YesNo):
            return asked | {word: text for word, text in (("yes", question.yes), ("no", question.no)) if text}
        pairs = list(zip(unique_names(question.options), question.descriptions, strict=True))
        if isinstance(question, Score):
            return asked | {"levels": [described(name, text) for name, text in pairs]}
        return asked | {"options": [{"name": name, **({"description": text} if text else {})} for name, text in pairs]}

    def names(self, question: Question) -> tuple[str, ...]:
        return names_of(question)

    def join(self, written: list[bytes]) -> bytes:
        return b"[" + b",".join([b'{"id":"%d",%b' % (place, each[1:]) for place, each in enumerate(written)]) + b"]"

    def rows(self, document: dict[str, Any], count: int) -> Sequence[Any]:
        return answers_by_id(document, count)

    def read(self, question: Question, row: Any) -> FoundAnswer:
        kind = member(row, "type")
        if kind != _TYPES[type(question)]:
            raise InvalidAnswer(f"it has the type {kind!r}")
        numbers = named_numbers(row.get("probabilities"), self.encoded_question(question).names)
        return FoundAnswer(distribution(numbers, len(numbers)), label_mass=mass(row.get("label_mass")))


def names_of(question: Question) -> tuple[str, ...]:
    """Return the names of a question's options in the server's answer."""
    if isinstance(question, Choice):
        return tuple(unique_names(question.options))
    return ("yes", "no") if isinstance(question, YesNo) else tuple(str(level) for level in range(len(question.options)))


SGLANG = SGLangDialect()
