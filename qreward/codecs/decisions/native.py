"""The native dialects: ``openai``, ``vllm`` and ``sglang`` (``POST /decisions``), and ``systemone`` (``POST /systemone``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import Malformed, WireRequest
from qreward.codecs.decisions.base import (
    DECLINED,
    DecisionReply,
    Dialect,
    InvalidAnswer,
    Kind,
    NoAnswer,
    described,
    distribution,
    mass,
    member,
    names_of,
    normalised,
    probability,
    unique_names,
)
from qreward.decisions import AnswerTable, Choice, FoundAnswer, Question, Score, YesNo
from qreward.settings.policies import Endpoint

_Probability = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class _Predicate(msgspec.Struct, gc=False, tag="predicate"):
    probability: _Probability
    name: str | None = None


class _Level(msgspec.Struct, gc=False):
    value: int
    probability: _Probability
    label: str | msgspec.UnsetType = msgspec.UNSET


class _Score(msgspec.Struct, gc=False, tag="score"):
    probabilities: list[_Level]
    confidence: _Probability
    name: str | None = None


class _Option(msgspec.Struct, gc=False):
    value: bool | str
    probability: _Probability


class _Choice(msgspec.Struct, gc=False, tag="choice"):
    probabilities: list[_Option]
    confidence: _Probability
    name: str | None = None


class _Decision(msgspec.Struct, gc=False):
    """Holds a response in the documented form. The decoder checks that all types are right, and that each probability is from 0 to 1."""

    answers: list[_Predicate | _Score | _Choice]
    model: str = ""
    usage: Any = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Decision)
_ROWS: dict[type, type] = {YesNo: _Predicate, Score: _Score, Choice: _Choice}


class OpenAIDialect(Dialect):
    """Asks for decisions as the package ``openai`` 3.54 defines them (``types/decision_create_params.py``, ``types/decision.py``)."""

    name = "openai"
    path = "/decisions"
    most_questions = 400
    most_options = 255
    types: ClassVar[Mapping[Kind, str]] = {YesNo: "predicate", Score: "score", Choice: "choice"}

    def input_of(self, given: str | list[dict[str, str]]) -> Any:
        return given

    def write(self, question: Question) -> dict[str, Any]:
        name = {} if question.name is None else {"name": question.name}
        asked: dict[str, Any] = {"type": self.types[type(question)], **name, "instructions": question.instructions}
        if isinstance(question, YesNo):
            means = [f"{word} means: {text}" for word, text in (("Yes", question.yes), ("No", question.no)) if text]
            return {**asked, "instructions": "\n".join([question.instructions, *means])}
        key, options = ("label", "levels") if isinstance(question, Score) else ("value", "choices")
        pairs = zip(question.options, question.descriptions, strict=True)
        return {**asked, options: [{key: option, **({"description": text} if text else {})} for option, text in pairs]}

    def decode(self, body: bytes, call: WireRequest) -> DecisionReply:
        """Return the answers. A response in the documented form is decoded faster than in the base class."""
        questions = call.inputs.questions
        try:
            found = _DECODER.decode(body)
            if not found.error and len(found.answers) == len(questions):
                table = self._usual(questions, found.answers, call.inputs.min_label_mass)
                return DecisionReply(table, found.model or call.model, jsonio.usage_of(found.usage))
        except (*jsonio.REFUSED, InvalidAnswer):
            pass
        return super().decode(body, call)

    def _usual(self, questions: tuple[Question, ...], rows: Sequence[_Predicate | _Score | _Choice], least: float) -> AnswerTable:
        numbers: list[float] = []
        masses: list[float | None] = []
        confidences: list[float] = []
        for question, row in zip(questions, rows, strict=True):
            if type(row) is not _ROWS[type(question)] or (row.name is not None and row.name != question.name):
                raise InvalidAnswer
            if isinstance(row, _Predicate):
                yes = row.probability
                no = 1.0 - yes
                numbers += yes, no
                masses.append(None)
                confidences.append(max(yes, no))
            else:
                own = _numbers_of(question, row)
                numbers += own
                mass = self.label_mass(row.confidence, max(own))
                if mass is not None and mass < least:
                    raise InvalidAnswer
                masses.append(mass)
                confidences.append(row.confidence)
        return AnswerTable(questions, tuple(numbers), tuple(masses), tuple(confidences))

    def rows(self, document: dict[str, Any], count: int) -> Sequence[Any]:  # noqa: ARG002 - checked by the caller
        found = document.get("answers")
        if not isinstance(found, list):
            raise Malformed("the answer has no list of answers")
        return found

    def read(self, question: Question, row: Any) -> FoundAnswer:
        kind, name = member(row, "type"), row.get("name")
        if name is not None and name != question.name:
            raise InvalidAnswer(f"it has the name {name!r} of another question")
        if kind == "refusal":
            raise NoAnswer(DECLINED)
        self.type_checked(question, row)
        if isinstance(question, YesNo):
            yes = probability(row.get("probability"))
            return FoundAnswer((yes, 1.0 - yes))
        numbers = distribution(self._in_order(question, row.get("probabilities")), len(question.options))
        confidence = probability(row.get("confidence"))
        return FoundAnswer(numbers, confidence=confidence, label_mass=self.label_mass(confidence, max(numbers)))

    def label_mass(self, confidence: float, highest: float) -> float | None:  # noqa: ARG002 - for subclasses
        """Return the label mass of an answer; None if the API does not report it."""
        return None

    def _in_order(self, question: Question, raw: object) -> list[object]:
        """Return the probability of each option, in the order of the question. Levels are matched by number, other options by value."""
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


def _numbers_of(question: Question, row: _Score | _Choice) -> Sequence[float]:
    options, found = question.options, row.probabilities
    if len(found) != len(options):
        raise InvalidAnswer
    if isinstance(row, _Score):
        for place, level in enumerate(row.probabilities):
            if level.value != place or (level.label != options[place] and level.label is not msgspec.UNSET):
                raise InvalidAnswer
    elif [each.value for each in found] != list(options):
        raise InvalidAnswer
    numbers = [each.probability for each in found]
    return numbers if math.fsum(numbers) == 1.0 else normalised(numbers)


class VLLMDialect(OpenAIDialect):
    """Asks for decisions as vLLM 0.33 serves them (``entrypoints/openai/decisions``)."""

    name = "vllm"
    most_questions = 64
    most_options = 26

    def __init__(self, *, is_vllm: bool) -> None:
        super().__init__()
        self._is_vllm = is_vllm

    def variants(self, endpoint: Endpoint) -> Sequence[Dialect]:
        return (VLLM if "vllm" in (endpoint.kind, endpoint.decisions) else LIKE_VLLM,)

    def input_of(self, given: str | list[dict[str, str]]) -> Any:
        return Dialect.input_of(self, given)

    def label_mass(self, confidence: float, highest: float) -> float | None:
        return min(confidence / highest, 1.0) if self._is_vllm else None


OPENAI, VLLM, LIKE_VLLM = OpenAIDialect(), VLLMDialect(is_vllm=True), VLLMDialect(is_vllm=False)


class SGLangDialect(Dialect):
    """Asks SGLang for decisions. SGLang reports the label mass of every answer."""

    name = "sglang"
    path = "/decisions"
    most_questions = 64  # the server has no limit, but scores the prompts of all questions in a request together
    most_options = 26
    types: ClassVar[Mapping[Kind, str]] = {YesNo: "yes_no", Score: "score", Choice: "choice"}

    def write(self, question: Question) -> dict[str, Any]:
        asked: dict[str, Any] = {"type": self.types[type(question)], "question": question.instructions}
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
        found = document.get("answers")
        if not isinstance(found, dict):
            raise Malformed("the answer has no mapping of answers")
        if len(found) != count or any(str(place) not in found for place in range(count)):
            raise Malformed(f"the answer has {len(found)} answers, which do not match the {count} questions")
        return [found[str(place)] for place in range(count)]

    def read(self, question: Question, row: Any) -> FoundAnswer:
        answer = self.type_checked(question, row)
        return FoundAnswer(self._named_numbers(question, answer), label_mass=mass(answer.get("label_mass")))

    def _named_numbers(self, question: Question, answer: dict[str, Any]) -> tuple[float, ...]:
        raw, names = answer.get("probabilities"), self.encoded_question(question).names
        if type(raw) is dict and len(raw) == len(names):
            try:
                return distribution([raw[name] for name in names], len(names))
            except KeyError:
                pass
        raise InvalidAnswer("its probabilities are not those of the options")


class SystemOneDialect(SGLangDialect):
    """Asks for decisions with the System One API. vLLM takes at most 26 options, and SGLang takes at most 255.

    vLLM reports the label mass in ``diagnostics``, and SGLang reports it in the answer as ``x_label_mass``. Neither reports it for
    checkpoints that were trained for decisions. The ``confidence`` of a response is ignored, because the servers compute it differently
    (vLLM: probability times label mass; SGLang: distance from a uniform guess).
    """

    name = "systemone"
    path = "/systemone"
    types: ClassVar[Mapping[Kind, str]] = {YesNo: "noul", Score: "score", Choice: "choice"}
    input_member = "state"
    reserved = frozenset({"model", "state", "questions"})

    def __init__(self, most_options: int) -> None:
        super().__init__()
        self.most_options = most_options

    def variants(self, endpoint: Endpoint) -> Sequence[Dialect]:
        return (SYSTEMONE_OF_SGLANG if endpoint.kind == "sglang" else SYSTEMONE,)

    def write(self, question: Question) -> dict[str, Any]:
        asked: dict[str, Any] = {"type": self.types[type(question)], "instructions": question.instructions}
        if isinstance(question, YesNo):
            means = {word: text for word, text in (("true", question.yes), ("false", question.no)) if text}
            return asked | ({"criteria": means} if means else {})
        pairs = zip(unique_names(question.options), question.descriptions, strict=True)
        if isinstance(question, Score):
            return asked | {"criteria": [described(name, text) for name, text in pairs]}
        return asked | {"criteria": {name: text or None for name, text in pairs}}

    def join(self, written: list[bytes]) -> bytes:
        return b"{" + b",".join([b'"%d":%b' % (place, each) for place, each in enumerate(written)]) + b"}"

    def rows(self, document: dict[str, Any], count: int) -> Sequence[Any]:
        told, rows = document.get("diagnostics"), super().rows(document, count)
        if told is None:
            return [(row, None) for row in rows]
        if not isinstance(told, dict):
            raise Malformed("the diagnostics of the answer are no mapping")
        return [(row, told.get(str(place), "")) for place, row in enumerate(rows)]

    def read(self, question: Question, row: Any) -> FoundAnswer:
        answer, diagnostics = self.type_checked(question, row[0]), row[1]
        if isinstance(question, YesNo):
            yes = probability(answer.get("noul"))
            numbers: tuple[float, ...] = (yes, 1.0 - yes)
        else:
            numbers = self._named_numbers(question, answer)
        told = answer.get("x_label_mass") if diagnostics is None else member(diagnostics, "label_mass")
        return FoundAnswer(numbers, label_mass=mass(told))


SGLANG = SGLangDialect()
SYSTEMONE, SYSTEMONE_OF_SGLANG = SystemOneDialect(26), SystemOneDialect(255)
