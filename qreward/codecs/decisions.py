"""Decisions: typed questions about one input, the dialects in which servers take them, and which dialect an endpoint uses."""

from __future__ import annotations

import math
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple
from unicodedata import category

from qreward.codecs import json as jsonio
from qreward.codecs.base import ABORTED, WITHHELD, Codec, EmbeddedError, Malformed, Unbound, Unfinished, WireRequest, WithoutText, ending_of
from qreward.codecs.chat import CHARS_PER_TOKEN, CHAT, joined
from qreward.decisions import (
    MIN_LABEL_MASS,
    Choice,
    Decision,
    DecisionAnswer,
    FoundAnswer,
    Option,
    Question,
    Score,
    YesNo,
    answers_of,
    check_questions,
    too_improbable,
)
from qreward.errors import AuthenticationFailed, BadRequest, InvalidResponse, QRewardError, RateLimited
from qreward.records import Usage
from qreward.settings.policies import Endpoint

Input = str | list[dict[str, str]]
"""A text, or messages whose content is text."""
ROLES = ("system", "developer", "user", "assistant")
_EXAMPLE = "[{'role': 'user', 'content': '...'}]"


class DecisionInput(NamedTuple):
    input: Input
    questions: tuple[Question, ...]
    min_label_mass: float = MIN_LABEL_MASS


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
    """Return a name for each option. A name is one line. Names differ by more than case, because some APIs require this."""
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
    if len(messages) == 1:
        return messages[0]["content"]
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def shown(question: Question) -> str:
    text = question.name or question.instructions
    return repr(text if len(text) <= 60 else text[:60] + "...")


Types = Mapping[type[YesNo] | type[Score] | type[Choice], str]
TAKE_ALL = ("openai", "vllm", "sglang", "systemone", "chat")
"""Names of the dialects that take every type of question, in the order in which they are tried."""
SUM_TOLERANCE = 0.02
"""Maximum difference between 1 and the sum of the probabilities of an answer. Servers round probabilities, some to two decimals."""
_ROUNDING = 1e-6  # maximum rounding error of one probability
_FLOAT32_ROUNDING = 1e-3  # maximum rounding error of a log probability, and of a sum of their exponentials
_MOST_QUESTIONS = 4096  # that are cached
_DECLINED = "the model declined to answer"


class DecisionReply(WithoutText, gc=True):
    """Holds the answers to a request for decisions, or to all parts of a divided one. ``found`` has the answer to each question."""

    questions: tuple[Question, ...]
    found: Sequence[FoundAnswer | QRewardError]
    model: str
    usage: Usage | None = None

    @property
    def answers(self) -> tuple[DecisionAnswer, ...]:
        return answers_of(self.questions, self.found)

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


class Dialect(Codec, ABC):
    """Encodes requests for decisions to one kind of API, and decodes the answers. Subclasses set the attributes, write questions and read
    answers."""

    name: str
    most_questions = 64
    most_options = 26
    types: ClassVar[Types]
    input_member: ClassVar[str] = "input"
    questions_member: ClassVar[str] = "questions"
    reserved: ClassVar[frozenset[str]] = frozenset()
    """Names of further parameters that a caller may not set."""

    def __init__(self, **always: Any) -> None:
        self._always = always  # members of every body
        # by ids, because a question may hold a list; an entry refers to its question, so that nothing else gets the same id
        self._cache: dict[int, _Encoded] = {}

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
        """Return the body. Raises ``BadRequest`` if this dialect cannot ask the questions in one request."""
        self.check(call)
        given, questions, _ = call.inputs
        params = {**self._always, **call.params} if self._always else call.params
        beginning = jsonio.write(model, self.input_member, self.input_of(given), params, all_text=True)[:-1]
        written = self.join([self.encoded(question, place).json for place, question in enumerate(questions)])
        return b'%b,"%b":%b}' % (beginning, self.questions_member.encode(), written)

    def check(self, call: WireRequest) -> None:
        if call.params and (taken := {"model", self.input_member, self.questions_member, *self.reserved} & call.params.keys()):
            raise BadRequest(f"{min(taken)!r} is set by decide() itself for {self.path}; leave it out of the parameters")
        if len(call.inputs.questions) > self.most_questions:
            raise BadRequest(f"{self.path} takes {self.most_questions} questions per request, not {len(call.inputs.questions)}")

    def input_of(self, given: Input) -> Any:
        """Return the input in the form that the API takes. By default, this form is one text."""
        return given if isinstance(given, str) else as_text(given)

    def join(self, written: list[bytes]) -> bytes:
        return b"[" + b",".join(written) + b"]"

    def keys_of(self, question: Question) -> list[Any]:
        return unique_names(question.options) if isinstance(question, Choice) else list(labels_of(question))

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
        return DecisionReply(questions, found, named, jsonio.usage_of(document.get("usage")))

    def check_type(self, question: Question, kind: object) -> None:
        if kind != self.types[type(question)]:
            raise InvalidAnswer(f"it has the type {kind!r}")

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        given, questions, _ = call.inputs
        size = len(given) if isinstance(given, str) else sum([len(message["content"]) for message in given])
        return (size + sum([len(self.encoded(question).json) for question in questions])) / CHARS_PER_TOKEN, float(len(questions))

    validate = staticmethod(valid_input)

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
    return None if number is None else probability(number, _FLOAT32_ROUNDING)


def yes_and_no(number: object) -> tuple[float, float]:
    yes = probability(number)
    return yes, 1.0 - yes


def member(row: object, name: str) -> Any:
    """Return a member of an answer, or None if the member is missing. Raises ``InvalidAnswer`` if the answer is not an object."""
    if not isinstance(row, dict):
        raise InvalidAnswer(f"it is a JSON {type(row).__name__} instead of an object")
    return row.get(name)


class OpenAIDialect(Dialect):
    """Asks for decisions as the package ``openai`` 3.54 defines them (``types/decision_create_params.py``, ``types/decision.py``), or as
    vLLM 0.33 serves them (``entrypoints/openai/decisions``)."""

    path = "/decisions"
    types: ClassVar[Types] = {YesNo: "predicate", Score: "score", Choice: "choice"}

    def __init__(self, name: str = "openai", questions: int = 400, options: int = 255, *, tells_mass: bool = False) -> None:
        super().__init__()
        self.name, self.most_questions, self.most_options = name, questions, options
        self._tells_mass = tells_mass

    def input_of(self, given: Input) -> Any:
        return given if self.name == "openai" else super().input_of(given)

    def write(self, question: Question) -> dict[str, Any]:
        name = {} if question.name is None else {"name": question.name}
        asked: dict[str, Any] = {"type": self.types[type(question)], **name, "instructions": question.instructions}
        if isinstance(question, YesNo):
            means = [f"{word} means: {text}" for word, text in (("Yes", question.yes), ("No", question.no)) if text]
            return {**asked, "instructions": "\n".join([question.instructions, *means])}
        key, options = ("label", "levels") if isinstance(question, Score) else ("value", "choices")
        return {**asked, options: _options(key, zip(question.options, question.descriptions, strict=True))}

    def keys_of(self, question: Question) -> list[Any]:
        values = range(len(question.options)) if isinstance(question, Score) else question.options
        return [(type(value), value) for value in values]

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
            raise NoAnswer(_DECLINED)
        self.check_type(question, kind)
        if isinstance(question, YesNo):
            return yes_and_no(row.get("probability")), None, None
        raw, keys = row.get("probabilities"), self.encoded(question).keys
        if not isinstance(raw, list):
            raise InvalidAnswer("it has no list of probabilities")
        values = [member(each, "value") for each in raw]
        told = [(type(value), value) for value in values]
        if told != keys:
            found = {key: each for key, each in zip(told, raw, strict=True) if isinstance(key[1], str | int)}
            if len(raw) != len(keys) or found.keys() != set(keys):
                raise InvalidAnswer("its probabilities are not those of the options")
            raw = [found[key] for key in keys]
        if isinstance(question, Score) and any(each.get("label", own) != own for each, own in zip(raw, question.options, strict=True)):
            raise InvalidAnswer("its levels are not those of the question")
        numbers, confidence = distribution([each.get("probability") for each in raw]), probability(row.get("confidence"))
        return numbers, min(confidence / max(numbers), 1.0) if self._tells_mass else None, confidence


class SGLangDialect(Dialect):
    """Asks SGLang for decisions. SGLang reports the label mass of every answer. It has no limit of questions, but scores the prompts of
    all questions in a request together."""

    name = "sglang"
    path = "/decisions"
    types: ClassVar[Types] = {YesNo: "yes_no", Score: "score", Choice: "choice"}
    mass_member: ClassVar[str] = "label_mass"

    def write(self, question: Question) -> dict[str, Any]:
        asked: dict[str, Any] = {"type": self.types[type(question)], "question": question.instructions}
        if isinstance(question, YesNo):
            return asked | {word: text for word, text in (("yes", question.yes), ("no", question.no)) if text}
        if isinstance(question, Score):
            return asked | {"levels": option_texts(question)}
        return asked | {"options": _options("name", described(question))}

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
        self.check_type(question, kind := member(row, "type"))
        raw, names = row.get("probabilities"), self.encoded(question).keys
        numbers: tuple[float, ...]
        if kind == "noul":
            numbers = yes_and_no(row.get("noul"))
        elif type(raw) is not dict or len(raw) != len(names) or not raw.keys() >= set(names):
            raise InvalidAnswer("its probabilities are not those of the options")
        else:
            numbers = distribution([raw[name] for name in names])
        return numbers, mass(row.get(self.mass_member)), None


_NO_ENTRY: Any = object()


class SystemOneDialect(SGLangDialect):
    """Asks for decisions with the System One API. vLLM reports the label mass in ``diagnostics``, and SGLang in the answer. Their
    ``confidence`` is ignored, because vLLM multiplies it by the label mass, and SGLang measures it from a uniform guess."""

    name = "systemone"
    path = "/systemone"
    types: ClassVar[Types] = {YesNo: "noul", Score: "score", Choice: "choice"}
    input_member = "state"
    mass_member = "x_label_mass"

    def __init__(self, most_options: int) -> None:
        super().__init__()
        self.most_options = most_options

    def write(self, question: Question) -> dict[str, Any]:
        asked: dict[str, Any] = {"type": self.types[type(question)], "instructions": question.instructions}
        if isinstance(question, Score):
            return asked | {"criteria": option_texts(question)}
        if isinstance(question, Choice):
            return asked | {"criteria": {name: text or None for name, text in described(question)}}
        means = {word: text for word, text in (("true", question.yes), ("false", question.no)) if text}
        return asked | ({"criteria": means} if means else {})

    def join(self, written: list[bytes]) -> bytes:
        return b"{" + b",".join([b'"%d":%b' % (place, each) for place, each in enumerate(written)]) + b"}"

    def rows(self, document: dict[str, Any], count: int) -> Sequence[Any]:
        told, rows = document.get("diagnostics"), super().rows(document, count)
        if not isinstance(told, dict | None):
            raise Malformed("the diagnostics of the answer are no mapping")
        for place, row in enumerate(rows):
            diagnostics = None if told is None else told.get(str(place), _NO_ENTRY)  # null: the server says nothing of this question
            if diagnostics is not None and isinstance(row, dict):
                row[self.mass_member] = diagnostics.get("label_mass") if isinstance(diagnostics, dict) else _NO_ENTRY
        return rows

    def read(self, question: Question, row: Any) -> FoundAnswer:
        if member(row, self.mass_member) is _NO_ENTRY:
            raise InvalidAnswer("the diagnostics have no object for it")
        return super().read(question, row)


class GenerativeScoringDialect(Dialect):
    """Sends ``YesNo`` questions as items of one query. The server compares the probabilities that the next token is yes or no."""

    name = "generative_scoring"
    path = "/generative_scoring"
    native = True
    input_member = "query"
    questions_member = "items"
    types: ClassVar[Types] = {YesNo: "yes_no"}
    reserved = frozenset({"label_token_ids", "apply_softmax", "item_first"})

    def __init__(self, labels: tuple[int, int]) -> None:
        super().__init__(label_token_ids=labels, apply_softmax=True)

    def write(self, question: Question) -> str:
        return f"\n\n{asked(question)}\nAnswer:"

    def rows(self, document: dict[str, Any], count: int) -> Sequence[Any]:
        found = document.get("data")
        if not isinstance(found, list) or [row.get("index") if isinstance(row, dict) else None for row in found] != list(range(count)):
            raise Malformed(f"the answer has no list of scores of {count} items")
        return found

    def read(self, question: Question, row: Any) -> FoundAnswer:  # noqa: ARG002 - all questions are alike
        return yes_and_no(row.get("score")), None, None


UNSEEN = 0.05
"""Maximum share (0 to 1) that the labels which are missing from the returned tokens may have of the probability of all labels. If their
share could be higher, the question has no answer."""
_LEAST = -1e4  # lower log probabilities count as this one; vLLM writes -9999 for minus infinity


class ChatDialect(Dialect):
    """Asks with ``POST /chat/completions`` and ``logprobs``. The question comes after the input, so that requests share a prefix. The
    temperature is 1, because SGLang divides the logits by it before it computes log probabilities (``srt/layers/sampler.py``)."""

    name = "chat"
    path = "/chat/completions"
    most_questions = 1
    most_options = MOST_LETTERS
    types = SGLangDialect.types
    reserved = frozenset({"messages", "logprobs", "stream", "n"})

    def write(self, question: Question) -> str:
        return asked(question)

    def encode(self, call: WireRequest, model: str) -> bytes:
        self.check(call)
        given, question = call.inputs.input, self.encoded(call.inputs.questions[0]).written
        first: list[dict[str, str]] = []
        if not isinstance(given, str):
            first = given[:1] if len(given) > 1 and given[0]["role"] == "system" else []
            given = as_text(given[len(first) :])
        length = {} if "max_completion_tokens" in call.params else {"max_tokens": 1}
        messages = [*first, {"role": "user", "content": f"{given}\n\n{question}"}]
        return jsonio.write(model, "messages", messages, {**length, **self._always, **call.params}, all_text=True)

    def rows(self, document: dict[str, Any], count: int) -> Sequence[Any]:  # noqa: ARG002 - always one
        choices = document.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise Malformed("the answer has no choices")
        if choices[0].get("error"):
            raise EmbeddedError(choices[0]["error"])
        ending = ending_of(choices[0].get("finish_reason"))
        if ending in ABORTED:
            raise Unfinished(str(ending))
        return choices[:1]

    def read(self, question: Question, row: Any) -> FoundAnswer:
        message = row.get("message")
        withheld = ending_of(row.get("finish_reason")) in WITHHELD
        if withheld or (isinstance(message, dict) and message.get("refusal")):
            raise NoAnswer(_DECLINED)
        labels, found = labels_of(question), dict[str, float]()
        numbers: list[float] = []
        for token, logprob in _tokens(row):
            numbers.append(number := math.exp(min(max(logprob, _LEAST), 0.0)))
            label = SPELLINGS.get(token)
            if label in labels:
                found[label] = found.get(label, 0.0) + number
        whole = mass(math.fsum(found.values()))
        if not whole:
            raise NoAnswer("the model's first token is none of the labels (this dialect does not work with a model that thinks first)")
        if missing := len(labels) - len(found):
            # no token that is missing is more probable than the least of the most probable ones; the chosen one may not be one of them
            unseen = min(max(1.0 - math.fsum(numbers), 0.0), missing * min(numbers[1:], default=1.0))
            if unseen > UNSEEN * (whole + unseen):
                share = f"{unseen / (whole + unseen):.2f} of the probability of all labels"
                raise NoAnswer(f"the server returned too few tokens: the labels that are missing may have {share}")
        return distribution([found.get(label, 0.0) / whole for label in labels]), whole, None


def _options(key: str, pairs: Iterable[tuple[Option, str]]) -> list[dict[str, Any]]:
    return [{key: name, **({"description": text} if text else {})} for name, text in pairs]


def _tokens(choice: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the tokens that the server returned, with their log probabilities; the chosen one first."""
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list) or not content:
        raise NoAnswer("the server returned no log probabilities")
    chosen = member(content[0], "token"), content[0].get("logprob")
    top = content[0].get("top_logprobs")
    pairs = [(member(each, "token"), each.get("logprob")) for each in top] if isinstance(top, list) else []
    if all(token != chosen[0] for token, _ in pairs):
        pairs.append(chosen)
    pairs.sort(key=lambda pair: pair[0] != chosen[0])
    for token, number in pairs:
        if not isinstance(token, str) or type(number) not in (int, float) or not number <= _FLOAT32_ROUNDING:
            raise InvalidAnswer("a token has no valid log probability")
    return pairs


OPENAI, SGLANG = OpenAIDialect(), SGLangDialect()
VLLM, LIKE_VLLM = OpenAIDialect("vllm", 64, 26, tells_mass=True), OpenAIDialect("vllm", 64, 26)
SYSTEMONE, SYSTEMONE_OF_SGLANG = SystemOneDialect(26), SystemOneDialect(255)
_CHATS: Any = [{"logprobs": True, "top_logprobs": top, "temperature": 1.0} for top in (20, 10, 5)]
"""Parameters of chats. OpenAI returns at most 20 of the most probable first tokens. A server that allows fewer (vLLM: ``--max-logprobs``)
is asked for the next number."""
CHATS = [ChatDialect(**each) for each in _CHATS]
CHATS_WITHOUT_THINKING = [ChatDialect(**each, chat_template_kwargs={"enable_thinking": False}) for each in _CHATS]
_scoring = lru_cache(maxsize=256)(GenerativeScoringDialect)

DIALECTS: Mapping[str, Callable[[Endpoint], Sequence[Dialect]]] = {
    "openai": lambda _: (OPENAI,),
    "vllm": lambda endpoint: (VLLM if "vllm" in (endpoint.kind, endpoint.decisions) else LIKE_VLLM,),
    "sglang": lambda _: (SGLANG,),
    "systemone": lambda endpoint: (SYSTEMONE_OF_SGLANG if endpoint.kind == "sglang" else SYSTEMONE,),
    "chat": lambda endpoint: CHATS_WITHOUT_THINKING if endpoint.kind in ("vllm", "sglang") else CHATS,  # whose templates can switch it off
    "generative_scoring": lambda endpoint: (_scoring(endpoint.decision_labels),),
}
"""Name of a dialect -> its forms for an endpoint, in the order in which they are tried."""
ORDER: Mapping[str, tuple[str, ...]] = {"vllm": ("vllm", "systemone", "chat"), "sglang": ("sglang", "systemone", "chat")}
"""Kind of an endpoint -> the only dialects to try, the first one first."""

PROBE = DecisionInput(
    [{"role": "system", "content": "Judge the sum."}, {"role": "user", "content": "2 + 2 = 4"}], (YesNo("The sum is right."),), 0.0
)
"""A small decision that shows which dialect a server uses. vLLM takes no system message, so that it refuses the dialect ``openai``."""
NO_SUCH_PATH = frozenset({404, 405, 501})
"""HTTP statuses of responses from servers that do not have the path of a request."""
OTHER_BODY = frozenset({400, 422})
"""HTTP statuses of responses from servers that expect another form of the body."""
MOST_KNOWN = 8192
"""Maximum number of entries in a table by model, because callers choose the names of models. A full table is emptied."""


class DecisionCodec(Unbound):
    """The codec of a ``WireRequest`` whose ``inputs`` are a ``DecisionInput``. It remembers the dialect of each pair of endpoint and model,
    in which the request is then encoded."""

    name = "decide"

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Dialect] = {}

    def known(self, endpoint: Endpoint, model: str) -> Dialect | None:
        """Return the dialect in which an endpoint has answered for a model; None if it has not answered yet."""
        return self._known.get(_key_of(endpoint, model))

    def is_certain(self, endpoint: Endpoint, model: str) -> bool:
        return endpoint.decisions is not None or self.known(endpoint, model) is not None

    def to_try(self, endpoint: Endpoint, model: str) -> list[Dialect]:
        known = self.known(endpoint, model)
        names = (endpoint.decisions,) if endpoint.decisions else ORDER.get(endpoint.kind, TAKE_ALL)
        return [*([] if known is None else [known]), *(dialect for name in names for dialect in DIALECTS[name](endpoint))]

    def dialect_at(self, endpoint: Endpoint, model: str) -> Dialect:
        return self.known(endpoint, model) or self.to_try(endpoint, model)[0]

    def most_questions(self, endpoints: Iterable[Endpoint], model: str) -> int:
        """Return the largest number of questions in a request that all endpoints accept; 1 if there is no endpoint."""
        return min((self.dialect_at(endpoint, model).most_questions for endpoint in endpoints), default=1)

    def next_dialect(self, endpoint: Endpoint, model: str, tried: Mapping[Dialect, Exception]) -> Dialect | None:
        """Return the dialect in which a refused request is sent again: a server that does not have the path is asked in the others, and so
        is one that refuses the body and has not answered before. ``tried`` has the errors of the dialects so far."""
        known, last = self.known(endpoint, model), [*tried.values()][-1]
        if not lacks_path(last, known) and (known in tried or not refuses_body(last)):
            return None
        missing = {dialect.path for dialect, error in tried.items() if lacks_path(error, known)}
        found = next((each for each in self.to_try(endpoint, model) if each not in tried and each.path not in missing), None)
        if found is not None and known in tried:  # the server was replaced; its path is gone
            self.remember(endpoint, model, found)
        return found

    def answered(self, endpoint: Endpoint, model: str, dialect: Dialect, tried: Mapping[Dialect, object]) -> None:
        """Remember the dialect of an answer, unless another one is known that was not refused."""
        known = self.known(endpoint, model)
        if known is not dialect and (known is None or known in tried):
            self.remember(endpoint, model, dialect)

    def remember(self, endpoint: Endpoint, model: str, dialect: Dialect) -> None:
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[_key_of(endpoint, model)] = dialect

    def advice(self, endpoint: Endpoint, model: str, sent: Dialect, error: Exception) -> str:
        """Return a hint to add to an error that a wrong dialect may have caused; ``""`` for any other error."""
        status = status_of(error)
        if isinstance(sent, ChatDialect) and status in OTHER_BODY and "logprob" in str(error).lower():
            return "; decisions need the log probabilities of the first token: let the server return 20 of them (vLLM: --max-logprobs 20)"
        if status not in NO_SUCH_PATH and (status not in OTHER_BODY or self.is_certain(endpoint, model)):
            return ""
        where = f"set decisions= of endpoint {endpoint.name!r}"
        return f"; the decision was sent in the dialect {sent.name!r}; if the server uses another one, {where}"

    validate = staticmethod(valid_input)

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        return OPENAI.estimate_tokens(call)  # other dialects need about as many tokens


def lacks_path(error: Exception, known: Dialect | None) -> bool:
    """Return True if the server does not have the path. Gateways may say so with 403, which means a wrong key once a dialect is known."""
    return status_of(error) in NO_SUCH_PATH or (known is None and isinstance(error, AuthenticationFailed) and status_of(error) == 403)


def refuses_body(error: Exception) -> bool:
    status = status_of(error)
    if status != 403 and isinstance(error, AuthenticationFailed | RateLimited):  # gateways answer unknown paths with 403
        return False
    return status in OTHER_BODY or isinstance(error, InvalidResponse)


def _key_of(endpoint: Endpoint, model: str) -> tuple[object, ...]:
    return endpoint.name, endpoint.base_url, endpoint.kind, endpoint.decisions, endpoint.decision_labels, model


def status_of(error: Exception) -> int:
    return getattr(error, "status_code", None) or 0
