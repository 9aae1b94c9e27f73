"""The dialects ``sglang`` and ``systemone``: answers are mapped by the id of a question, and probabilities by the name of an option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from qreward.codecs.base import Malformed
from qreward.codecs.decisions.base import Dialect, InvalidAnswer, Kind, distribution, mass, member, probability
from qreward.codecs.decisions.names import described, names_of, unique_names
from qreward.decisions import Choice, FoundAnswer, Question, Score, YesNo
from qreward.settings.policies import Endpoint


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
