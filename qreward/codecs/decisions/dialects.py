"""The dialects of decisions: ``openai``, ``vllm``, ``sglang``, ``systemone``, ``generative_scoring`` and ``chat``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import msgspec

from qreward.codecs import finish_reason
from qreward.codecs import json as jsonio
from qreward.codecs.base import EmbeddedError, Malformed, Unfinished, WireRequest
from qreward.codecs.decisions.base import (
    DECLINED,
    MOST_LETTERS,
    SPELLINGS,
    DecisionReply,
    Dialect,
    InvalidAnswer,
    Kind,
    NoAnswer,
    as_text,
    asked,
    described,
    distribution,
    labels_of,
    mass,
    member,
    probability,
    unique_names,
)
from qreward.decisions import AnswerTable, Choice, FoundAnswer, Question, Score, YesNo
from qreward.errors import BadRequest
from qreward.settings.policies import Endpoint

_Probability = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class _Option(msgspec.Struct, gc=False):
    value: bool | int | str
    probability: _Probability
    label: str | msgspec.UnsetType = msgspec.UNSET


class _Row(msgspec.Struct, gc=False):
    type: str
    name: str | None = None
    probability: _Probability = -1.0  # if missing
    probabilities: list[_Option] = []
    confidence: _Probability = -1.0


class _Document(msgspec.Struct, gc=False):
    answers: list[_Row]
    model: str = ""
    usage: Any = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Document)


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
        """Return the answers. A response in the documented form is decoded three times as fast as any other."""
        questions = call.inputs.questions
        try:
            document = _DECODER.decode(body)
            if not document.error and len(document.answers) == len(questions):
                table = self._table(questions, document.answers, call.inputs.min_label_mass)
                return DecisionReply(table, document.model or call.model, jsonio.usage_of(document.usage))
        except (*jsonio.REFUSED, InvalidAnswer):
            pass
        return super().decode(body, call)

    def _table(self, questions: tuple[Question, ...], rows: list[_Row], least: float) -> AnswerTable:
        numbers: list[float] = []
        masses: list[float | None] = []
        confidences: list[float] = []
        types = self.types
        for question, row in zip(questions, rows, strict=True):
            if row.type != types[type(question)] or (row.name is not None and row.name != question.name):
                raise InvalidAnswer
            if isinstance(question, YesNo):
                yes = confidence = row.probability
                no, mass = 1.0 - yes, None
                numbers += yes, no
                confidences.append(max(yes, no))
            else:
                own, confidence = self._numbers(question, row.probabilities), row.confidence
                mass = self.label_mass(confidence, max(own))
                numbers += own
                confidences.append(confidence)
            if confidence < 0.0 or (mass is not None and mass < least):
                raise InvalidAnswer
            masses.append(mass)
        return AnswerTable(questions, tuple(numbers), tuple(masses), tuple(confidences))

    def _numbers(self, question: Question, options: list[_Option]) -> Sequence[float]:
        """Return the probability of each option, in the order of the question. Levels are matched by number, other options by value."""
        asked, values = self.encoded(question), [each.value for each in options]
        if values != asked.values or list(map(type, values)) != asked.kinds:
            found = {(type(each.value), each.value): each for each in options if isinstance(each.value, str | int)}
            wanted = list(zip(asked.kinds, asked.values, strict=True))
            if len(options) != len(wanted) or found.keys() != set(wanted):
                raise InvalidAnswer("its probabilities are not those of the options")
            options = [found[value] for value in wanted]  # type: ignore[index]
        if isinstance(question, Score):
            for each, label in zip(options, question.options, strict=True):
                if each.label != label and each.label is not msgspec.UNSET:
                    raise InvalidAnswer("its levels are not those of the question")
        numbers = [each.probability for each in options]
        return numbers if math.fsum(numbers) == 1.0 else distribution(numbers, len(numbers))

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
        self.check_type(question, row)
        if isinstance(question, YesNo):
            yes = probability(row.get("probability"))
            return (yes, 1.0 - yes), None, None
        raw, unset = row.get("probabilities"), msgspec.UNSET
        if not isinstance(raw, list):
            raise InvalidAnswer("it has no list of probabilities")
        options = [_Option(member(each, "value"), probability(each.get("probability")), each.get("label", unset)) for each in raw]
        numbers, confidence = tuple(self._numbers(question, options)), probability(row.get("confidence"))
        return numbers, self.label_mass(confidence, max(numbers)), confidence

    def label_mass(self, confidence: float, highest: float) -> float | None:  # noqa: ARG002 - for subclasses
        """Return the label mass of an answer; None if the API does not report it."""
        return None


class VLLMDialect(OpenAIDialect):
    """Asks for decisions as vLLM 0.33 serves them (``entrypoints/openai/decisions``)."""

    name = "vllm"
    most_questions = 64
    most_options = 26
    input_of = Dialect.input_of

    def __init__(self, *, is_vllm: bool) -> None:
        super().__init__()
        self._is_vllm = is_vllm

    def label_mass(self, confidence: float, highest: float) -> float | None:
        return min(confidence / highest, 1.0) if self._is_vllm else None


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
        self.check_type(question, row)
        return self._named_numbers(question, row), mass(row.get("label_mass")), None

    def _named_numbers(self, question: Question, answer: dict[str, Any]) -> tuple[float, ...]:
        raw, names = answer.get("probabilities"), self.encoded(question).names
        if type(raw) is not dict or len(raw) != len(names) or not raw.keys() >= set(names):
            raise InvalidAnswer("its probabilities are not those of the options")
        return distribution([raw[name] for name in names], len(names))


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
        answer, diagnostics = row
        self.check_type(question, answer)
        if isinstance(question, YesNo):
            yes = probability(answer.get("noul"))
            numbers: tuple[float, ...] = (yes, 1.0 - yes)
        else:
            numbers = self._named_numbers(question, answer)
        told = answer.get("x_label_mass") if diagnostics is None else member(diagnostics, "label_mass")
        return numbers, mass(told), None


class GenerativeScoringDialect(Dialect):
    """Sends ``YesNo`` questions as items of one query. The server compares the probabilities that the next token is yes or no."""

    name = "generative_scoring"
    path = "/generative_scoring"
    native = True
    most_questions = 64
    most_options = 2
    input_member = "query"
    questions_member = "items"
    types: ClassVar[Mapping[Kind, str]] = {YesNo: "yes_no"}
    reserved = frozenset({"model", "query", "items", "label_token_ids", "apply_softmax", "item_first"})

    def __init__(self, labels: tuple[int, int] | None = None) -> None:
        super().__init__({"label_token_ids": labels, "apply_softmax": True})

    def write(self, question: Question) -> str:
        if self.extra["label_token_ids"] is None:
            raise BadRequest(f"{self.path} needs the ids of the tokens for yes and no; set Endpoint(decision_labels=(yes, no))")
        return f"\n\n{asked(question)}\nAnswer:"

    def rows(self, document: dict[str, Any], count: int) -> Sequence[Any]:
        found = document.get("data")
        if not isinstance(found, list) or [row.get("index") if isinstance(row, dict) else None for row in found] != list(range(count)):
            raise Malformed(f"the answer has no list of scores of {count} items")
        return found

    def read(self, question: Question, row: Any) -> FoundAnswer:  # noqa: ARG002 - all questions are alike
        yes = probability(row.get("score"))
        return (yes, 1.0 - yes), None, None


TOPS = (20, 10, 5)
"""Numbers of the most probable first tokens whose log probabilities are requested. OpenAI returns at most 20 of them. A server that allows
fewer (vLLM: ``--max-logprobs``) is asked for the next number."""
UNSEEN = 0.05
"""Maximum share (0 to 1) that the labels which are missing from the returned tokens may have of the probability of all labels. If their
share could be higher, the question has no answer."""
_LEAST = -1e4  # lower log probabilities count as this one; vLLM writes -9999 for minus infinity
_ROUNDING = 1e-3  # maximum rounding error of a log probability in float32


class ChatDialect(Dialect):
    """Asks with ``POST /chat/completions`` and ``logprobs``. The question comes after the input, so that requests share a prefix. The
    temperature is 1, because SGLang divides the logits by it before it computes log probabilities (``srt/layers/sampler.py``)."""

    name = "chat"
    path = "/chat/completions"
    most_questions = 1
    most_options = MOST_LETTERS
    types: ClassVar[Mapping[Kind, str]] = {YesNo: "yes_no", Score: "score", Choice: "choice"}
    reserved = frozenset({"model", "messages", "input", "questions", "logprobs", "stream", "n"})

    def __init__(self, extra: Mapping[str, Any], top: int = TOPS[0]) -> None:
        super().__init__({"logprobs": True, "top_logprobs": top, "temperature": 1.0, **extra})

    def write(self, question: Question) -> str:
        return asked(question)

    def encode(self, call: WireRequest, model: str) -> bytes:
        params, given, question = self.params_of(call), call.inputs.input, self.encoded(call.inputs.questions[0]).written
        first: list[dict[str, str]] = []
        if not isinstance(given, str):
            first = given[:1] if len(given) > 1 and given[0]["role"] == "system" else []
            given = as_text(given[len(first) :])
        length = {} if "max_completion_tokens" in params else {"max_tokens": 1}
        messages = [*first, {"role": "user", "content": f"{given}\n\n{question}"}]
        return jsonio.write(model, "messages", messages, {**length, **params}, all_text=True)

    def rows(self, document: dict[str, Any], count: int) -> Sequence[Any]:  # noqa: ARG002 - always one
        choices = document.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise Malformed("the answer has no choices")
        if choices[0].get("error"):
            raise EmbeddedError(choices[0]["error"])
        ending = finish_reason.ending_of(choices[0].get("finish_reason"))
        if ending in finish_reason.ABORTED:
            raise Unfinished(str(ending))
        return choices[:1]

    def read(self, question: Question, row: Any) -> FoundAnswer:
        message = row.get("message")
        withheld = finish_reason.ending_of(row.get("finish_reason")) in finish_reason.WITHHELD
        if withheld or (isinstance(message, dict) and message.get("refusal")):
            raise NoAnswer(DECLINED)
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
            # no other token is more probable than the least of the most probable ones
            unseen = min(max(1.0 - math.fsum(numbers), 0.0), missing * min(numbers))
            if unseen > UNSEEN * (whole + unseen):
                share = f"{unseen / (whole + unseen):.2f} of the probability of all labels"
                raise NoAnswer(f"the server returned too few tokens: the labels that are missing may have {share}")
        return distribution([found.get(label, 0.0) / whole for label in labels], len(labels)), whole, None


def _tokens(choice: dict[str, Any]) -> list[tuple[str, float]]:
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list) or not content:
        raise NoAnswer("the server returned no log probabilities")
    chosen = member(content[0], "token"), content[0].get("logprob")
    top = content[0].get("top_logprobs")
    pairs = [(member(each, "token"), each.get("logprob")) for each in top] if isinstance(top, list) else []
    if all(token != chosen[0] for token, _ in pairs):
        pairs.append(chosen)
    for token, number in pairs:
        if not isinstance(token, str) or type(number) not in (int, float) or not number <= _ROUNDING:
            raise InvalidAnswer("a token has no valid log probability")
    return pairs


OPENAI, SGLANG = OpenAIDialect(), SGLangDialect()
VLLM, LIKE_VLLM = VLLMDialect(is_vllm=True), VLLMDialect(is_vllm=False)
SYSTEMONE, SYSTEMONE_OF_SGLANG = SystemOneDialect(26), SystemOneDialect(255)
CHATS = [ChatDialect({}, top) for top in TOPS]
CHATS_WITHOUT_THINKING = [ChatDialect({"chat_template_kwargs": {"enable_thinking": False}}, top) for top in TOPS]
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
"""Kind of an endpoint -> the dialects to try, the first one first."""
OTHERS = ("openai", "vllm", "sglang", "systemone", "chat")
"""The dialects to try at an endpoint of any other kind."""
