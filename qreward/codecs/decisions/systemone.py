"""The dialect ``systemone``: ``POST /systemone``, the System One API 0.2.0, as vLLM 0.33 and SGLang 0.5.23 serve it.

vLLM reports the label mass in ``diagnostics``, and SGLang reports the label mass in the answer as ``x_label_mass``. For checkpoints that
were trained for decisions, neither server reports the label mass. The ``confidence`` of a response is ignored, because vLLM and SGLang
compute it differently (vLLM: probability times label mass; SGLang: distance from a uniform guess). If an input is too long for a checkpoint
that was trained for decisions, both servers truncate the input without an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qreward.codecs.base import Malformed
from qreward.codecs.decisions.base import (
    Dialect,
    InvalidAnswer,
    answers_by_id,
    described,
    distribution,
    mass,
    member,
    named_numbers,
    probability,
    unique_names,
)
from qreward.codecs.decisions.sglang import names_of
from qreward.decisions import Choice, FoundAnswer, Question, Score, YesNo
from qreward.settings.policies import Endpoint

_TYPES = {YesNo: "noul", Score: "score", Choice: "choice"}


class SystemOneDialect(Dialect):
    """Asks for decisions with the System One API. vLLM takes at most 26 options, and SGLang takes at most 255."""

    name = "systemone"
    path = "/systemone"
    most_questions = 64
    input_member = "state"
    reserved = frozenset({"model", "state", "questions"})

    def __init__(self, most_options: int) -> None:
        super().__init__()
        self.most_options = most_options

    def at(self, endpoint: Endpoint) -> Dialect:
        return SYSTEMONE_OF_SGLANG if endpoint.kind == "sglang" else SYSTEMONE

    def write(self, question: Question) -> dict[str, Any]:
        asked: dict[str, Any] = {"type": _TYPES[type(question)], "instructions": question.instructions}
        if isinstance(question, YesNo):
            means = {word: text for word, text in (("true", question.yes), ("false", question.no)) if text}
            return asked | ({"criteria": means} if means else {})
        pairs = zip(unique_names(question.options), question.descriptions, strict=True)
        if isinstance(question, Score):
            return asked | {"criteria": [described(name, text) for name, text in pairs]}
        return asked | {"criteria": {name: text or None for name, text in pairs}}

    def names(self, question: Question) -> tuple[str, ...]:
        return names_of(question)

    def join(self, written: list[bytes]) -> bytes:
        return b"{" + b",".join([b'"%d":%b' % (place, each) for place, each in enumerate(written)]) + b"}"

    def rows(self, document: dict[str, Any], count: int) -> Sequence[Any]:
        told, rows = document.get("diagnostics"), answers_by_id(document, count)
        if told is None:
            return [(row, None) for row in rows]
        if not isinstance(told, dict):
            raise Malformed("the diagnostics of the answer are no mapping")
        return [(row, told.get(str(place), "")) for place, row in enumerate(rows)]

    def read(self, question: Question, row: Any) -> FoundAnswer:
        answer, diagnostics = row
        kind = member(answer, "type")
        if kind != _TYPES[type(question)]:
            raise InvalidAnswer(f"it has the type {kind!r}")
        if isinstance(question, YesNo):
            yes = probability(answer.get("noul"))
            numbers: tuple[float, ...] = (yes, 1.0 - yes)
        else:
            numbers = distribution(named_numbers(answer.get("probabilities"), self.encoded_question(question).names), len(question.options))
        told = answer.get("x_label_mass") if diagnostics is None else member(diagnostics, "label_mass")
        return FoundAnswer(numbers, label_mass=mass(told))


SYSTEMONE, SYSTEMONE_OF_SGLANG = SystemOneDialect(26), SystemOneDialect(255)
