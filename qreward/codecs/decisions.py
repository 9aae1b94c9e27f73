"""Decisions: typed questions about one input, and a probability for each option. The input, the words of a question, and ``Dialect``, the
base of all forms in which servers take questions."""

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

Types = Mapping[type[YesNo] | type[Score] | type[Choice], str]
Input = str | list[dict[str, str]]
"""A text, or messages whose content is text."""

TAKE_ALL = ("openai", "vllm", "sglang", "systemone", "chat")
"""Names of the dialects that take every type of question, in the order in which they are tried."""
ROLES = ("system", "developer", "user", "assistant")
"""Roles of the messages of an input."""
SUM_TOLERANCE = 0.02
"""Maximum difference between 1 and the sum of the probabilities of an answer. Servers round probabilities, some to two decimals."""
FLOAT32_ROUNDING = 1e-3
"""Maximum rounding error of a log probability, and of a sum of the exponentials of log probabilities."""
_ROUNDING = 1e-6  # maximum rounding error of one probability
_MOST_TUPLES, _MOST_QUESTIONS = 64, 4096  # that are cached
_EXAMPLE = "[{'role': 'user', 'content': '...'}]"


class DecisionInput(NamedTuple):
    """Holds the input of a call and the questions about the input."""

    input: Input
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
    keys: list[Any]


class Dialect(ABC):
    """Encodes requests for decisions to one kind of API, and decodes the answers. Subclasses set the attributes, write questions and read
    answers."""

    name: str
    path: str
    native: ClassVar[bool] = False
    most_questions = 64
    most_options = 26
    types: ClassVar[Types]
    input_member: ClassVar[str] = "input"
    questions_member: ClassVar[str] = "questions"
    reserved: ClassVar[frozenset[str]] = frozenset({"model", "input", "questions"})

    def __init__(self, extra: Mapping[str, Any] | None = None) -> None:
        self.extra = extra or {}
        # by ids, because a question may hold a list; the entries refer to what they encode, so that nothing else gets the same id
        self._cache: dict[int, _Encoded] = {}
        self._written: dict[int, tuple[tuple[Question, ...], bytes]] = {}

    @abstractmethod
    def write(self, question: Question) -> Any:
        """Return a question in the form in which the request body contains it."""

    @abstractmethod
    def rows(self, document: dict[str, Any], count: int) -> Sequence[Any]:
        """Return the part of a response for each question, in the order of the questions. ``count`` is the number of questions."""

    @abstractmethod
    def read(self, question: Question, row: Any) -> FoundAnswer:
        """Return the answer to a question. Raises ``InvalidAnswer`` and ``NoAnswer``."""

    def encode(self, call: WireRequest, model: str) -> bytes:
        """Return the body. Raises ``BadRequest`` if this dialect cannot ask the questions in one request, or if a parameter has a reserved
        name."""
        params, (given, questions, _) = self.params_of(call), call.inputs
        beginning = jsonio.write(model, self.input_member, self.input_of(given), params, all_text=True)[:-1]
        return b'%b,"%b":%b}' % (beginning, self.questions_member.encode(), self.written(questions))

    def params_of(self, call: WireRequest) -> Mapping[str, Any]:
        if call.params and (taken := self.reserved & call.params.keys()):
            raise BadRequest(f"{min(taken)!r} is set by decide() itself for {self.path}; leave it out of the parameters")
        if len(call.inputs.questions) > self.most_questions:
            raise BadRequest(f"{self.path} takes {self.most_questions} questions per request, not {len(call.inputs.questions)}")
        return {**self.extra, **call.params} if self.extra else call.params

    def input_of(self, given: Input) -> Any:
        """Return the input in the form that the API takes. By default, this form is one text."""
        return given if isinstance(given, str) else as_text(given)

    def join(self, written: list[bytes]) -> bytes:
        """Return the JSON of all questions. ``written`` has the JSON of each question."""
        return b"[" + b",".join(written) + b"]"

    def keys_of(self, question: Question) -> list[Any]:
        """Return what identifies each option in an answer: its name, unless a subclass says otherwise."""
        return unique_names(question.options) if isinstance(question, Choice) else list(labels_of(question))

    def written(self, questions: tuple[Question, ...]) -> bytes:
        """Return the JSON of all questions, which is cached. Raises ``BadRequest``."""
        found = self._written.get(id(questions))
        if found is None:
            if len(self._written) >= _MOST_TUPLES:
                self._written.clear()
            json = self.join([self.encoded(question, place).json for place, question in enumerate(questions)])
            found = self._written[id(questions)] = questions, json
        return found[1]

    def encoded(self, question: Question, place: int = 0) -> _Encoded:
        """Return the JSON of a question and the keys of its options, which are cached."""
        found = self._cache.get(id(question))
        if found is None:
            here = f"an endpoint with decisions={self.name!r} takes"
            if type(question) not in self.types:
                takes, others = " and ".join(each.__name__ for each in self.types), ", ".join(map(repr, TAKE_ALL))
                raise BadRequest(f"questions[{place}] is a {type(question).__name__}; {here} {takes} only, one with {others} takes all")
            if isinstance(question, Choice) and len(question.options) > self.most_options:
                raise BadRequest(f"questions[{place}] has {len(question.options)} choices; {here} {self.most_options}")
            written = self.write(question)
            if len(self._cache) >= _MOST_QUESTIONS:
                self._cache.clear()
            found = self._cache[id(question)] = _Encoded(question, written, jsonio.dumps(written), self.keys_of(question))
        return found

    def decode(self, body: bytes, call: WireRequest) -> DecisionReply:
        """Return the answers. Raises ``EmbeddedError``, and ``Malformed`` if no question has a valid answer."""
        document, (_, questions, least) = jsonio.read_object(body), call.inputs
        if document.get("error"):
            raise EmbeddedError(document["error"])
        rows = self.rows(document, len(questions))
        if len(rows) != len(questions):
            raise Malformed(f"the answer has {len(rows)} answers to {len(questions)} question{'s'[: len(questions) != 1]}")
        faults, found = list[str](), list[FoundAnswer | QRewardError]()
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

    def check_type(self, question: Question, kind: object) -> None:
        if kind != self.types[type(question)]:
            raise InvalidAnswer(f"it has the type {kind!r}")

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        """Return two estimates: the prompt tokens, from the number of characters; and the output tokens, one for each question."""
        given, questions, _ = call.inputs
        size = len(given) if isinstance(given, str) else sum([len(message["content"]) for message in given])
        return (size + len(self.written(questions))) / CHARS_PER_TOKEN, float(len(questions))

    def validate(self, inputs: Any) -> DecisionInput:
        return valid_input(inputs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


def distribution(numbers: Sequence[object]) -> tuple[float, ...]:
    """Return numbers as probabilities whose sum is 1. Raises ``InvalidAnswer`` if the numbers are no distribution."""
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
    return None if number is None else probability(number, FLOAT32_ROUNDING)


def yes_and_no(number: object) -> tuple[float, float]:
    """Return the probabilities of yes and no. ``number`` is that of yes."""
    yes = probability(number)
    return yes, 1.0 - yes


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
_LEADS = {Choice: "Question", Score: "Rate", YesNo: "Is this true"}
_REPLIES = {Choice: "the letter of one option", Score: "the number of one level", YesNo: "yes or no"}
SPELLINGS: Mapping[str, str] = {
    blank + spelled: label
    for labels in _LABELS.values()
    for label in labels
    for spelled in (label, label.capitalize(), label.upper())
    for blank in ("", " ", "▁", "Ġ")
}
"""Token -> the label that it spells. Tokenizers write a space before a word as a space, as SentencePiece's sign or as that of byte-level
BPE. A letter in lower case is no label, because ``a`` is a word."""


def labels_of(question: Question) -> tuple[str, ...]:
    return _LABELS[type(question)][: len(question.options)]


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


def described(question: Question) -> list[tuple[str, str]]:
    """Return the name and the description of each option."""
    return list(zip(unique_names(question.options), question.descriptions, strict=True))


def option_texts(question: Question) -> list[str]:
    return [f"{name}: {text}" if text else name for name, text in described(question)]


def asked(question: Question) -> str:
    """Return the text of a question for a model: the question, a line per option with its label, and how to reply."""
    kind = type(question)
    texts = [text or None for text in question.descriptions] if kind is YesNo else option_texts(question)
    lines = [f"{label}: {text}" for label, text in zip(labels_of(question), texts, strict=True) if text is not None]
    return "\n".join((f"{_LEADS[kind]}: {question.instructions}", *lines, f"Reply with {_REPLIES[kind]}, and nothing else."))


def as_text(messages: Sequence[Mapping[str, str]]) -> str:
    """Return messages as one text, for APIs that take no conversation. A single message is returned without its role."""
    if len(messages) == 1:
        return messages[0]["content"]
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def shown(question: Question) -> str:
    text = question.name or question.instructions
    return repr(text if len(text) <= 60 else text[:60] + "...")
