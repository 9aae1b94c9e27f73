"""The dialects ``openai`` and ``vllm``: ``POST /decisions``, as OpenAI defined it and as vLLM serves it.

vLLM refuses members that it does not know, takes fewer questions and options, and reads the input as one text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import Malformed, WireRequest
from qreward.codecs.decisions.base import DECLINED, DecisionReply, Dialect, InvalidAnswer, NoAnswer, distribution, member, probability
from qreward.decisions import Choice, DecisionAnswer, Question, Score, YesNo

_TYPES = {YesNo: "predicate", Score: "score", Choice: "choice"}


class _Option(msgspec.Struct, gc=False):
    value: bool | int | str
    probability: float
    label: str | msgspec.UnsetType = msgspec.UNSET


class _Answer(msgspec.Struct, gc=False):
    type: str
    name: str | None = None
    probability: float | None = None
    probabilities: list[_Option] | None = None
    confidence: float | None = None


class _Decision(msgspec.Struct, gc=False):
    """A response as it should be."""

    answers: list[_Answer]
    model: str = ""
    usage: Any = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Decision)


class OpenAIDialect(Dialect):
    """Decisions as in openai 3.54 (``types/decision_create_params.py``, ``types/decision.py``)."""

    name = "openai"
    path = "/decisions"
    most_questions = 400
    most_options = 255

    def input_of(self, given: str | list[dict[str, str]]) -> Any:
        return given

    def write(self, question: Question) -> dict[str, Any]:
        name = {} if question.name is None else {"name": question.name}
        asked: dict[str, Any] = {"type": _TYPES[type(question)], **name, "instructions": question.instructions}
        if isinstance(question, YesNo):
            means = [f"{word} means: {text}" for word, text in (("Yes", question.yes), ("No", question.no)) if text]
            return {**asked, "instructions": "\n".join([question.instructions, *means])}
        key, options = ("label", "levels") if isinstance(question, Score) else ("value", "choices")
        pairs = zip(question.options, question.descriptions, strict=True)
        return {**asked, options: [{key: option, **({"description": text} if text else {})} for option, text in pairs]}

    def decode(self, body: bytes, call: WireRequest) -> DecisionReply:
        """Return the answers of a response as it should be by a short way, and of any other one as all dialects do."""
        questions = call.inputs.questions
        try:
            found = _DECODER.decode(body)
            if not found.error and len(found.answers) == len(questions):
                answers = tuple(map(self._read_usual, questions, found.answers))
                return DecisionReply(answers, found.model or call.model, self.usage({"usage": found.usage}))
        except (*jsonio.REFUSED, InvalidAnswer):
            pass
        return super().decode(body, call)

    def _read_usual(self, question: Question, row: _Answer) -> DecisionAnswer:
        """Return the answer to a question. Raises ``InvalidAnswer`` for anything unusual, without saying what it is."""
        if row.type != _TYPES[type(question)] or (row.name is not None and row.name != question.name):
            raise InvalidAnswer
        if isinstance(question, YesNo):
            yes = probability(row.probability)
            return DecisionAnswer(question, (yes, 1.0 - yes))
        labels, options = question.options, row.probabilities
        if options is None or len(options) != len(labels):
            raise InvalidAnswer
        values = range(len(labels)) if isinstance(question, Score) else labels
        for option, value, label in zip(options, values, labels, strict=True):
            if option.value != value or type(option.value) is not type(value):
                raise InvalidAnswer
            if values is not labels and option.label is not msgspec.UNSET and option.label != label:
                raise InvalidAnswer
        numbers = distribution([option.probability for option in options], len(labels))
        confidence = probability(row.confidence)
        return DecisionAnswer(question, numbers, confidence=confidence, label_mass=self.label_mass(confidence, max(numbers)))

    def rows(self, document: dict[str, Any], count: int) -> Sequence[Any]:  # noqa: ARG002 - checked by the caller
        found = document.get("answers")
        if not isinstance(found, list):
            raise Malformed("the answer has no list of answers")
        return found

    def read(self, question: Question, row: Any) -> DecisionAnswer:
        kind, name = member(row, "type"), row.get("name")
        if name is not None and name != question.name:
            raise InvalidAnswer(f"it has the name {name!r} of another question")
        if kind == "refusal":
            raise NoAnswer(DECLINED)
        if kind != _TYPES[type(question)]:
            raise InvalidAnswer(f"it has the type {kind!r}")
        if isinstance(question, YesNo):
            yes = probability(row.get("probability"))
            return DecisionAnswer(question, (yes, 1.0 - yes))
        numbers = distribution(self._in_order(question, row.get("probabilities")), len(question.options))
        confidence = probability(row.get("confidence"))
        return DecisionAnswer(question, numbers, confidence=confidence, label_mass=self.label_mass(confidence, max(numbers)))

    def label_mass(self, confidence: float, highest: float) -> float | None:  # noqa: ARG002 - for subclasses
        """Return the label mass of an answer, if the dialect tells it."""
        return None

    def _in_order(self, question: Question, raw: object) -> list[object]:
        """Return the probability of each option, by its typed value, or by the number of its level."""
        if not isinstance(raw, list):
            raise InvalidAnswer("it has no list of probabilities")
        labels = isinstance(question, Score)
        wanted: list[tuple[type, object]] = [(int, place) if labels else (type(it), it) for place, it in enumerate(question.options)]
        found: dict[tuple[type, object], Any] = {}
        for row in raw:
            value = member(row, "value")
            found[type(value), value if isinstance(value, str | int) else None] = row
        if len(raw) != len(wanted) or found.keys() != set(wanted):
            raise InvalidAnswer("its probabilities are not those of the options")
        rows = [found[key] for key in wanted]
        if labels and any(row.get("label", option) != option for row, option in zip(rows, question.options, strict=True)):
            raise InvalidAnswer("its levels are not those of the question")
        return [row.get("probability") for row in rows]


class VLLMDialect(OpenAIDialect):
    """Decisions as vLLM 0.33 serves them (``entrypoints/openai/decisions``). Its confidence is probability times label mass."""

    name = "vllm"
    most_questions = 64
    most_options = 26

    def input_of(self, given: str | list[dict[str, str]]) -> Any:
        return Dialect.input_of(self, given)

    def label_mass(self, confidence: float, highest: float) -> float | None:
        return min(confidence / highest, 1.0)


OPENAI, VLLM = OpenAIDialect(), VLLMDialect()
