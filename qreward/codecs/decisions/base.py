"""The base of all dialects of decisions: the input of a call, the words of a question, and checks of the numbers in answers."""

from __future__ import annotations

import math
import string
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple
from unicodedata import category

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import EmbeddedError, Malformed, WireRequest
from qreward.codecs.chat import CHARS_PER_TOKEN, CHAT, joined
from qreward.decisions import (
    MIN_LABEL_MASS,
    AnswerTable,
    Choice,
    Decision,
    DecisionAnswer,
    FoundAnswer,
    Question,
    Score,
    YesNo,
    check_questions,
    too_improbable,
)
from qreward.errors import BadRequest, InvalidResponse, QRewardError
from qreward.records import Usage

Kind = type[YesNo] | type[Score] | type[Choice]

ALL_KINDS = ("openai", "vllm", "sglang", "systemone", "chat")
"""Names of the dialects that take every kind of question."""
ROLES = ("system", "developer", "user", "assistant")
"""Roles of the messages of an input."""
SUM_TOLERANCE = 0.02
"""Maximum difference between 1 and the sum of the probabilities of an answer. Servers round probabilities, some to two decimals."""
DECLINED = "the model declined to answer"
_ROUNDING = 1e-6  # maximum rounding error of one probability
_MASS_ROUNDING = 1e-3  # maximum rounding error of a sum of exponentials in float32
_MOST_TUPLES, _MOST_QUESTIONS = 64, 4096  # that are cached
_EXAMPLE = "[{'role': 'user', 'content': '...'}]"


class DecisionInput(NamedTuple):
    """Holds the input of a call and the questions about the input. The input is a text, or a list of messages whose content is text."""

    input: str | list[dict[str, str]]
    questions: tuple[Question, ...]
    min_label_mass: float = MIN_LABEL_MASS


class DecisionReply(msgspec.Struct):
    """Holds the answers to a request for decisions, or to all parts of a divided one. Implements ``qreward.results.Answered``."""

    table: AnswerTable
    model: str
    usage: Usage | None = None

    @property
    def answers(self) -> tuple[DecisionAnswer, ...]:
        return self.table.answers()

    def text(self) -> str:
        return ""

    def build(self) -> Decision:
        return Decision(self.answers, self.model, self.usage)


class InvalidAnswer(Exception):
    """The server sent an invalid answer to one question. The message describes the fault."""


class NoAnswer(Exception):
    """A question has no answer, for example because the model refused. The message says why."""


class _Encoded(NamedTuple):
    question: Question
    written: Any
    json: bytes
    names: tuple[str, ...]
    values: list[object]
    kinds: list[type]


class Dialect(ABC):
    """Encodes requests for decisions to one kind of API, and decodes the answers. Subclasses set the attributes, write questions and read
    answers."""

    name: str
    path: str
    native: ClassVar[bool] = False
    most_questions: int
    most_options: int
    types: ClassVar[Mapping[Kind, str]]
    input_member: ClassVar[str] = "input"
    questions_member: ClassVar[str] = "questions"
    reserved: ClassVar[frozenset[str]] = frozenset({"model", "input", "questions"})

    def __init__(self, extra: Mapping[str, Any] | None = None) -> None:
        self.extra = extra or {}
        # by ids; the entries reference what they encode, so that nothing else gets the same id
        self._cache: dict[int, _Encoded] = {}
        self._ends: dict[int, tuple[tuple[Question, ...], bytes]] = {}

    @abstractmethod
    def write(self, question: Question) -> Any:
        """Return a question in the form in which the request body contains it."""

    @abstractmethod
    def rows(self, document: dict[str, Any], count: int) -> Sequence[Any]:
        """Return the part of a response for each question, in the order of the questions. ``count`` is the number of questions."""

    @abstractmethod
    def read(self, question: Question, row: Any) -> FoundAnswer:
        """Return the answer to a question."""

    def encode(self, call: WireRequest, model: str) -> bytes:
        """Return the body. Raises ``BadRequest`` if this dialect cannot ask the questions in one request, or if a parameter has a reserved
        name."""
        params = self.params_of(call)
        questions = self.encoded_together(call.inputs.questions)
        return jsonio.write(model, self.input_member, self.input_of(call.inputs.input), params, all_text=True)[:-1] + questions

    def params_of(self, call: WireRequest) -> Mapping[str, Any]:
        if call.params and (taken := self.reserved & call.params.keys()):
            raise BadRequest(f"{min(taken)!r} is set by decide() itself for {self.path}; leave it out of the parameters")
        if len(call.inputs.questions) > self.most_questions:
            raise BadRequest(f"{self.path} takes {self.most_questions} questions per request, not {len(call.inputs.questions)}")
        return {**self.extra, **call.params} if self.extra else call.params

    def input_of(self, given: str | list[dict[str, str]]) -> Any:
        """Return the input in the form that the API takes. By default, this form is one text."""
        return given if isinstance(given, str) else as_text(given)

    def join(self, written: list[bytes]) -> bytes:
        """Return the JSON of all questions. ``written`` has the JSON of each question."""
        return b"[" + b",".join(written) + b"]"

    def encoded_together(self, questions: tuple[Question, ...]) -> bytes:
        """Return the end of a body: the member with the questions. Raises ``BadRequest``."""
        found = self._ends.get(id(questions))
        if found is None:
            written = self.join([self.encoded(question, place).json for place, question in enumerate(questions)])
            if len(self._ends) >= _MOST_TUPLES:
                self._ends.clear()
            found = self._ends[id(questions)] = questions, b',"%b":%b}' % (self.questions_member.encode(), written)
        return found[1]

    def encoded(self, question: Question, place: int = 0) -> _Encoded:
        """Return the JSON of a question and the names of its options. The result is cached, because questions are asked many times."""
        found = self._cache.get(id(question))
        if found is None:
            here = f"an endpoint with decisions={self.name!r} takes"
            if type(question) not in self.types:
                takes, others = " and ".join(each.__name__ for each in self.types), ", ".join(map(repr, ALL_KINDS))
                raise BadRequest(f"questions[{place}] is a {type(question).__name__}; {here} {takes} only, one with {others} takes all")
            if isinstance(question, Choice) and len(question.options) > self.most_options:
                raise BadRequest(f"questions[{place}] has {len(question.options)} choices; {here} {self.most_options}")
            written = self.write(question)
            values = list[object](range(len(question.options)) if isinstance(question, Score) else question.options)
            if len(self._cache) >= _MOST_QUESTIONS:
                self._cache.clear()
            found = _Encoded(question, written, jsonio.dumps(written), names_of(question), values, list(map(type, values)))
            self._cache[id(question)] = found
        return found

    def decode(self, body: bytes, call: WireRequest) -> DecisionReply:
        document, questions = jsonio.read_object(body), call.inputs.questions
        if document.get("error"):
            raise EmbeddedError(document["error"])
        rows = self.rows(document, len(questions))
        if len(rows) != len(questions):
            raise Malformed(f"the answer has {len(rows)} answers to {len(questions)} question{'s'[: len(questions) != 1]}")
        faults, least = list[str](), call.inputs.min_label_mass
        found: list[FoundAnswer | QRewardError] = []
        for question, row in zip(questions, rows, strict=True):
            try:
                answer = self.read(question, row)
                if answer[1] is None or answer[1] >= least:
                    found.append(answer)
                    continue
                why = f"no answer to {shown(question)}: {too_improbable(answer[1], least)}"
            except NoAnswer as reason:
                why = f"no answer to {shown(question)}: {reason}"
            except InvalidAnswer as fault:
                faults.append(str(fault))
                why = f"the answer to {shown(question)} is not valid: {fault}"
            found.append(InvalidResponse(why, model=call.model))
        if len(faults) == len(questions):
            raise Malformed(f"the answer has no valid answer to any question: {faults[0]}")
        model = document.get("model")
        named = model if isinstance(model, str) and model else call.model
        return DecisionReply(AnswerTable.of(questions, found), named, jsonio.usage_of(document.get("usage")))

    def check_type(self, question: Question, answer: object) -> None:
        if (kind := member(answer, "type")) != self.types[type(question)]:
            raise InvalidAnswer(f"it has the type {kind!r}")

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        """Return two estimates: the prompt tokens, from the number of characters; and the output tokens, one for each question."""
        given, questions, _ = call.inputs
        size = len(given) if isinstance(given, str) else sum([len(message["content"]) for message in given])
        return (size + len(self.encoded_together(questions))) / CHARS_PER_TOKEN, float(len(questions))

    def validate(self, inputs: Any) -> DecisionInput:
        return valid_input(inputs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


def distribution(numbers: Sequence[object], count: int) -> tuple[float, ...]:
    """Return numbers as probabilities whose sum is 1. Raises ``InvalidAnswer`` if the numbers are not a distribution over ``count``
    options."""
    if len(numbers) != count:
        raise InvalidAnswer(f"it has {len(numbers)} probabilities for {count} options")
    checked = [number if type(number) is float and 0.0 <= number <= 1.0 else probability(number) for number in numbers]
    whole = math.fsum(checked)
    if abs(whole - 1.0) > SUM_TOLERANCE + _ROUNDING:
        raise InvalidAnswer(f"the sum of its probabilities is {whole:.4g}")
    return tuple(checked) if whole == 1.0 else tuple([number / whole for number in checked])


def probability(number: object, rounding: float = _ROUNDING) -> float:
    """Return a number from 0 to 1. A number that is outside by at most ``rounding`` becomes 0 or 1."""
    if type(number) is float and 0.0 <= number <= 1.0:
        return number
    if type(number) is not float and type(number) is not int:
        raise InvalidAnswer(f"a probability is {'missing' if number is None else f'a {type(number).__name__}'}")
    if not -rounding <= number <= 1.0 + rounding:  # the condition is also true for NaN
        raise InvalidAnswer(f"a probability is {number}")
    return min(max(float(number), 0.0), 1.0)


def mass(number: object) -> float | None:
    """Return a number as a label mass, which is the total probability of all labels; None for None."""
    return None if number is None else probability(number, _MASS_ROUNDING)


def member(row: object, name: str) -> Any:
    """Return a member of an answer, or None if the member is missing. Raises ``InvalidAnswer`` if the answer is not an object."""
    if not isinstance(row, dict):
        raise InvalidAnswer(f"it is a JSON {type(row).__name__} instead of an object")
    return row.get(name)


def valid_input(inputs: Any) -> DecisionInput:
    checked = inputs if isinstance(inputs, DecisionInput) else DecisionInput(inputs[0], check_questions(inputs[1]))
    given: object = checked.input
    if isinstance(given, str):
        if not given.strip():
            raise BadRequest("the input is empty; pass the text that the questions are about")
        return checked
    if not isinstance(given, list | tuple):
        raise BadRequest(f"the input is a {type(given).__name__}; give a text, or messages such as {_EXAMPLE}")
    return checked._replace(input=[_text_message(message, place) for place, message in enumerate(CHAT.validate(list(given)))])


def _text_message(message: dict[str, Any], place: int) -> dict[str, str]:
    role, content = message["role"], message.get("content")
    if role in ROLES and type(content) is str and len(message) == 2 and content.strip():
        return message
    if role not in ROLES:
        raise BadRequest(f"messages[{place}] has the role {role!r}; the messages of an input have the role {', '.join(ROLES)}")
    parts = content if isinstance(content, list) else []
    text = joined(content)
    if any(not isinstance(part, dict) or not isinstance(part.get("text"), str) for part in parts) or not text.strip():
        raise BadRequest(f"messages[{place}] has no content that is a text; the input of decisions holds texts only")
    return {"role": role, "content": text}


# what options are called

MOST_LETTERS = 20
"""Maximum number of options of a ``Choice`` that a chat model is asked. OpenAI returns at most 20 log probabilities."""
_LABELS = {Choice: tuple(string.ascii_uppercase[:MOST_LETTERS]), Score: tuple(string.digits), YesNo: ("yes", "no")}
_REPLY = {
    Choice: "Reply with the letter of one option, and nothing else.",
    Score: "Reply with the number of one level, and nothing else.",
    YesNo: "Reply with yes or no, and nothing else.",
}
_LEADS = {Choice: "Question", Score: "Rate", YesNo: "Is this true"}
_SPELLED = {word: (word, word.capitalize(), word.upper()) for word in _LABELS[YesNo]}
SPELLINGS: Mapping[str, str] = {
    blank + spelled: label
    for labels in _LABELS.values()
    for label in labels
    for spelled in _SPELLED.get(label, (label,))
    for blank in ("", " ", "▁", "Ġ")
}
"""Token -> the label that it spells. Tokenizers write a space before a word as a space, as SentencePiece's sign or as that of byte-level
BPE. A letter in lower case is no label, because ``a`` is a word."""


def labels_of(question: Question) -> tuple[str, ...]:
    return _LABELS[type(question)][: len(question.options)]


def names_of(question: Question) -> tuple[str, ...]:
    return tuple(unique_names(question.options)) if isinstance(question, Choice) else labels_of(question)


def unique_names(options: Sequence[str | bool]) -> list[str]:
    """Return a name for each option. A name is one line. The names differ by more than upper and lower case, because some APIs require
    this."""
    names: list[str] = []
    seen: set[str] = set()
    for option in options:
        text = ("false", "true")[option] if isinstance(option, bool) else option
        name = base = " ".join("".join(" " if category(char) == "Cc" else char for char in text).split()) or "?"
        number = 1
        while name.casefold() in seen:
            number += 1
            name = f"{base} ({number})"
        seen.add(name.casefold())
        names.append(name)
    return names


def described(name: str, description: str) -> str:
    """Return the text of an option, with the description if the option has a description."""
    return f"{name}: {description}" if description else name


def asked(question: Question) -> str:
    """Return the text of a question for a model: the question, a line per option with its label, and how to reply."""
    options = list(zip(labels_of(question), unique_names(question.options), question.descriptions, strict=True))
    if isinstance(question, YesNo):
        lines = [f"{label}: {description}" for label, _, description in options if description]
    else:
        lines = [f"{label}: {described(name, description)}" for label, name, description in options]
    return "\n".join((f"{_LEADS[type(question)]}: {question.instructions}", *lines, _REPLY[type(question)]))


def as_text(messages: Sequence[Mapping[str, str]]) -> str:
    """Return messages as one text, for APIs that take no conversation. A single message is returned without its role."""
    if len(messages) == 1:
        return messages[0]["content"]
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def shown(question: Question) -> str:
    text = question.name or question.instructions
    return repr(text if len(text) <= 60 else text[:60] + "...")
