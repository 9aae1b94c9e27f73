"""A question to a judge model, to be answered in writing or with probabilities (decisions), and what follows from each answer: a vote, an
error, or another call. This module must not send anything."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from string import ascii_uppercase
from typing import Any, NamedTuple

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import ABORTED, LENGTH, Malformed, WireRequest, described, ending_of, is_failure, is_whole
from qreward.codecs.chat import ChatAnswer, ChatCodec, first_of, joined
from qreward.codecs.decisions import DecisionCodec, DecisionInput, DecisionReply, valid_input
from qreward.codecs.error_body import one_line
from qreward.decisions import FoundAnswer, Option, Question, confidence_of, too_improbable
from qreward.engine.instrumentation import LOG
from qreward.errors import BadRequest, ConfigError, InvalidResponse, QRewardError
from qreward.judge.config import JudgeConfig, ResponseFormat
from qreward.judge.parsing import ModelReply, ScoreFunctionError, Unreadable, VerdictParser
from qreward.judge.parsing.forms import JSON
from qreward.judge.prompts import Messages
from qreward.judge.rubric import Criterion, DecidedCriteria, Rubric
from qreward.judge.types import CriterionResult, CriterionResults, Vote
from qreward.options import preparer

SENT_BACK = 4000
"""Maximum number of characters of an unreadable answer, the last ones, that are sent back to the model."""
SHOWN = 200
"""Maximum number of characters of an unreadable answer in an error message."""
MOST_TOKENS = 16_384
"""The limit of tokens up to which a limit is doubled after an answer that was cut off."""
LIMITS = ("max_tokens", "max_completion_tokens")
BUDGETS = ("thinking_budget", "thinking_token_budget", "thinking_budget_tokens", "budget_tokens")
"""The limit of tokens for thinking: Gemini and Qwen, vLLM, llama.cpp, Anthropic. It may be inside other parameters."""
TokenLimits = tuple[tuple[str, int], ...]
"""Names and values of limits of tokens."""
FORMATS: tuple[ResponseFormat, ...] = ("json_schema", "json_object", "none")
"""Response formats, the strictest first. Every server accepts the last format."""


_ENCODER = msgspec.json.Encoder()
_KEYS = msgspec.json.Encoder(enc_hook=repr)


def encoded(value: object) -> bytes:
    """Return a value as JSON, for use in a key. A lone surrogate is escaped, because UTF-8 cannot encode it."""
    try:
        return _KEYS.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value, enc_hook=repr), default=repr).encode()


class JudgeCodec(ChatCodec):
    """Encodes faster than ``ChatCodec``. The parameters are not checked here, because they were checked when the judge was created."""

    def encode(self, call: WireRequest, model: str) -> bytes:
        for message in call.inputs:
            for value in message.values():
                if type(value) is not str:
                    return super().encode(call, model)
        try:
            return _ENCODER.encode({"model": model, "messages": call.inputs, **call.params})
        except (TypeError, ValueError):  # lone surrogates in a text, or objects in the parameters
            return super().encode(call, model)


JUDGE = JudgeCodec(failures=ABORTED)  # the engine tries them again; a judge reads what else was cut off


@lru_cache(maxsize=64)
def log_unknown(ending: str) -> None:
    """Log, once for each ``finish_reason``, that a judge does not read answers with it."""
    LOG.warning("%s: a judge does not read such answers; if they are complete, set finish_reasons=[%r]", described(ending), ending[:40])


def fingerprint_of(model: object, system_fingerprint: object, metadata: object) -> str:
    """Return one text for the fields with which a server identifies the weights that wrote an answer: ``model``, ``system_fingerprint``
    (OpenAI) and ``metadata.weight_version`` (SGLang)."""
    version = metadata.get("weight_version") if isinstance(metadata, dict) else None
    model, system_fingerprint = model if type(model) is str else None, system_fingerprint if type(system_fingerprint) is str else None
    return repr((model, system_fingerprint, version if type(version) is str else None))


def parse_reply(answer: ChatAnswer) -> ModelReply:
    """Parse the body of an answer into a ``ModelReply``. A field with an unexpected type is not an error."""
    document: Any = None
    message: Any = None
    try:
        try:
            document = msgspec.json.decode(answer.body)
        except jsonio.REFUSED:
            document = jsonio.read_object(answer.body)  # lenient, and slower
        choices = document["choices"]
        message = (choices[0] if len(choices) == 1 else first_of(choices, [choice.get("index") for choice in choices]))["message"]
    except (Malformed, LookupError, TypeError, AttributeError):
        message = None
    document, message = document if isinstance(document, dict) else {}, message if isinstance(message, dict) else {}
    fingerprint = fingerprint_of(document.get("model"), document.get("system_fingerprint"), document.get("metadata"))
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    content = message.get("content")  # a refusal is a field of the message, or a part of its content
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    refusals = [joined(one) or "without a text" for one in (message.get("refusal"), *(part.get("refusal") for part in parts)) if one]
    return ModelReply(answer.text(), joined(reasoning), "\n".join(refusals), answer.finish_reason, fingerprint)


_ABOUT_FORM = re.compile(r"(?i)response.?format|json.?schema|json.?object|guided|structured.?output|grammar|xgrammar|outlines")


class AnswerFormat:
    """The response format that the servers of a model accept. With ``auto``, it is the next of ``FORMATS`` when a server rejects it."""

    def __init__(self, wanted: ResponseFormat) -> None:
        self.is_auto = wanted == "auto"
        self.name = FORMATS[0] if self.is_auto else wanted
        self.written: set[str] = set()
        self.was_cut = False


class WrittenQuestion:
    """Asks one model a question that the model answers in writing."""

    input_of = None  # the messages are the input

    def __init__(
        self,
        model: str,
        parser: VerdictParser,
        config: JudgeConfig,
        answer_format: AnswerFormat,
        about: Criterion | Rubric | None = None,
        *,
        told: bool = True,
    ) -> None:
        self.model, self.cached_as = model, json.dumps([config.cache_namespace, model])
        self._again = (parser.instruction if told or parser.form is not JSON else "") or "Answer in the form that was asked for."
        self.reasks, self._parser = config.reasks, parser
        self.answer_format = answer_format if parser.form is JSON else AnswerFormat(FORMATS[-1])
        self._accepted = frozenset(map(ending_of, config.finish_reasons)) - {None}
        self.criteria = (about,) if isinstance(about, Criterion) else ()
        words = about.in_words() if isinstance(about, Rubric) else in_words(about) if about else ""
        self.words = f"{words}\n\n{parser.instruction}" if words else parser.instruction
        params = {name: value for name, value in config.params.items() if name not in ("extra_headers", "hedge")}
        declared: list[Any] = [] if parser.form is JSON else [parser.form.name, parser.form.values]
        declared += [sorted(self._accepted)] if self._accepted else []
        self.identity = encoded([self.cached_as, config.response_format, params, parser.schema, parser.scale, *declared])
        self._headers, body = config.params.get("extra_headers"), params.pop("extra_body", None)
        try:
            checked = preparer(JUDGE, model, params, self._headers, body)([{"role": "user", "content": ""}]).params
        except BadRequest as error:
            raise ConfigError(str(error)) from None
        schema = {"type": "json_schema", "json_schema": {"name": parser.model.__name__, "schema": parser.schema, "strict": True}}
        shapes: Any = {"json_schema": schema, "json_object": {"type": "json_object"}}
        self._params = {form: {**({"response_format": shapes[form]} if form in shapes else {}), **checked} for form in FORMATS}
        self._limits = {name: limit for name in LIMITS if type(limit := checked.get(name)) is int and limit > 0}
        self._thinking = _budget_in(checked)
        seed = None if isinstance(body, Mapping) and "seed" in body else params.get("seed")
        self._seed = seed if isinstance(seed, int) else None

    def request(self, call: JudgeCall) -> WireRequest:
        """Return the request of a call, in the response format that the servers of the model accept now. Each sample has its own seed."""
        params = self._params[self.answer_format.name]
        if self._seed is not None:
            params = {**params, "seed": self._seed + call.sample}
        if call.token_limits:
            params = {**params, **self._with_thinking(call.token_limits)}
        return WireRequest(JUDGE, self.model, call.inputs, params, self._headers, call.group)

    def _with_thinking(self, limits: TokenLimits) -> dict[str, int]:
        """Return raised limits as they are sent: an answer fits after all the thinking that is allowed."""
        usual = self._limits
        return {name: max(usual.get(name, 0), min(max(most, self._thinking + most // 2), MOST_TOKENS)) for name, most in limits}

    def raised(self, limits: TokenLimits | None, had: int | None) -> TokenLimits:
        """Return twice the limits of a call whose answer was cut off after ``had`` tokens; empty if they cannot be raised."""
        now = dict(limits or ())
        if limits is None:
            found = 1 << (had - 1).bit_length() if had else MOST_TOKENS  # a power of two, so that there are few different requests
            now = self._limits or ({LIMITS[0]: found} if found < MOST_TOKENS else {})
        more = tuple((name, 2 * most) for name, most in now.items())
        return more if self._with_thinking(more) != (now if limits is None else self._with_thinking(limits)) else ()

    def fall_back(self, sent_as: str, error: QRewardError, reply: ModelReply | None = None) -> bool:
        """Return whether a server rejected this format, so that the request must be sent again in the next one."""
        said = reply is None or reply.text.strip() or reply.reasoning or reply.refusal or not is_whole(reply.ending)
        is_rejected = isinstance(error, BadRequest) and error.status_code in (400, 422)
        reason = str(error).partition(f" for model {self.model!r}: ")[2]  # the text before it has names that could match
        is_refused = (not said and sent_as not in self.answer_format.written) or (is_rejected and _ABOUT_FORM.search(reason or str(error)))
        if not self.answer_format.is_auto or sent_as == FORMATS[-1] or not is_refused:
            return False
        if self.answer_format.name == sent_as:  # otherwise another request has already changed it
            self.answer_format.name = FORMATS[FORMATS.index(self.answer_format.name) + 1]
        return True

    def parse(self, answer: Any) -> ModelReply:
        """Return the reply, in which an ending that the settings accept counts as ``stop``."""
        reply = parse_reply(answer)
        if reply.text.strip():
            self.answer_format.written.add(self.answer_format.name)
        if reply.ending == LENGTH and not self.answer_format.was_cut:
            self.answer_format.was_cut = True
            begun = bool(reply.text.strip())
            LOG.warning(
                "an answer of the judge %r was cut off at its token limit%s, so it is not read; it is asked for again with more "
                "room, up to reasks=%d times; raise max_tokens%s",
                self.model,
                "" if begun else " before the verdict began",
                self.reasks,
                "" if begun else ", or limit the thinking of the model",
            )
        if reply.ending in self._accepted:
            return reply._replace(ending="stop")
        if not (is_whole(reply.ending) or reply.ending == LENGTH or is_failure(reply.ending)):
            log_unknown(str(reply.ending))
        return reply

    def vote(self, reply: ModelReply, *, swapped: bool) -> Vote:
        score, verdict = self._parser.read(reply)
        if not self.criteria:
            return Vote(1 - score if swapped else score, verdict, reply.text, self.model, swapped)
        (each,) = self.criteria
        reason = getattr(verdict, "reason", None) or None
        result = CriterionResult(score, each.weight, text=reply.text, gate=each.gate, reason=reason)
        return Vote(score, verdict, reply.text, self.model, criteria=CriterionResults({each.name: result}))

    def repeated(self, inputs: Messages, reply: ModelReply, reason: str) -> Messages:
        reason, form = reason.rstrip("."), self._again
        if is_whole(reply.ending) and not reply.refusal and reply.text.strip():
            note = f"This answer cannot be read: {reason}. Give your verdict again. {form}"
            return [*inputs, {"role": "assistant", "content": reply.text[-SENT_BACK:]}, {"role": "user", "content": note}]
        return noted(inputs, f"(An earlier answer could not be used: {reason}. Be brief. {form})")


def _budget_in(params: Mapping[str, Any]) -> int:
    found = [value for name, value in params.items() if name in BUDGETS and type(value) is int]
    return max([0, *found, *(_budget_in(value) for value in params.values() if isinstance(value, Mapping))])


def in_words(criterion: Criterion) -> str:
    question = criterion.question
    marks = map(str, range(10)) if criterion.levels is not None else ascii_uppercase if criterion.choices is not None else ()
    lines = [
        f"{mark}: {option} ({meaning})" if meaning else f"{mark}: {option}"
        for mark, option, meaning in zip(marks, question.options, question.descriptions, strict=False)
    ]
    return "\n".join([f"Question{'' if lines else ', to be answered yes or no'}: {question.instructions}", *lines])


def noted(messages: Messages, note: str) -> Messages:
    """Return the messages with a note at the end of the last message, or in a new one if the last is not the user's."""
    last = messages[-1] if messages else {}
    content = last.get("content")
    if last.get("role") != "user" or not isinstance(content, str | list):
        return [*messages, {"role": "user", "content": note}]
    more = f"{content}\n\n{note}" if isinstance(content, str) else [*content, {"type": "text", "text": note}]
    return [*messages[:-1], {**last, "content": more}]


class SingleQuestion(NamedTuple):
    """The only question of a judge without a rubric, with the reward and the name of each option."""

    question: Question
    rewards: tuple[float, ...]
    names: tuple[Option, ...]


class DecidedQuestion:
    """Makes one request for decisions to one model, and reads the answer. The request has one question, or criteria of a rubric."""

    reasks = 0  # the same questions would have the same answers
    words = ""
    answer_format = AnswerFormat("none")

    def __init__(self, model: str, subject: SingleQuestion | Sequence[Criterion], config: JudgeConfig, decide: DecisionCodec) -> None:
        self.model, self.cached_as = model, json.dumps([config.cache_namespace, model])
        self._single = subject if isinstance(subject, SingleQuestion) else None
        self.criteria = () if isinstance(subject, SingleQuestion) else tuple(subject)
        self._questions = tuple(each.question for each in (self.criteria if self._single is None else [self._single]))
        self._least = config.min_label_mass
        given = {} if config.method == "auto" else {name: value for name, value in config.params.items() if name != "hedge"}
        self._headers, body = config.params.get("extra_headers"), given.pop("extra_body", None)
        given.pop("extra_headers", None)
        described = [[type(each).__name__, each.instructions, each.options, each.descriptions] for each in self._questions]
        self.identity = encoded(["decision", self.cached_as, given, body, described])
        try:
            self._blank = preparer(decide, model, given, self._headers, body)(DecisionInput(model, self._questions, 0.0))
        except BadRequest as error:
            raise ConfigError(str(error)) from None

    def input_of(self, messages: Messages) -> DecisionInput:
        only = messages[0]["content"] if len(messages) == 1 and messages[0].get("role") == "user" else messages
        if type(only) is str and only.strip():
            return DecisionInput(only, self._questions, 0.0)  # ``vote`` compares the label mass, also that of a cached answer
        return valid_input(DecisionInput(messages, self._questions, 0.0))

    def request(self, call: JudgeCall) -> WireRequest:
        return WireRequest(self._blank.codec, self.model, call.inputs, self._blank.params, self._headers, call.group)

    def parse(self, answer: DecisionReply) -> ModelReply:
        return ModelReply(fingerprint=fingerprint_of(answer.model, None, None), found=answer.found)

    def vote(self, reply: ModelReply, *, swapped: bool) -> Vote:
        found = list[FoundAnswer]()
        for place, each in enumerate(self._from_text(reply.text) if reply.found is None else reply.found):
            if isinstance(each, QRewardError):
                raise self._unreadable(place, str(each))
            if each[1] is not None and each[1] < self._least:
                raise self._unreadable(place, too_improbable(each[1], self._least))
            found.append(each)
        if (single := self._single) is None:  # the score is computed from all requests of the sample
            return Vote(0.0, model=self.model, criteria=DecidedCriteria(self.criteria, found))
        (only,) = found
        numbers = only[0]
        if swapped:
            numbers = (numbers[1], numbers[0], *numbers[2:])
        expected = sum(number * reward for number, reward in zip(numbers, single.rewards, strict=True))
        score = min(max(expected, min(single.rewards)), max(single.rewards))  # rounding may exceed the ends
        distribution = dict(zip(single.names, numbers, strict=True))
        return Vote(score, model=self.model, swapped=swapped, confidence=confidence_of(only), distribution=distribution)

    def _unreadable(self, place: int, why: str) -> Unreadable:
        return Unreadable(why if len(self._questions) == 1 else f"criterion {self.criteria[place].name!r}: {why}")

    def _from_text(self, text: str) -> list[FoundAnswer]:
        found = list[FoundAnswer]()
        for question, (confidence, mass, *numbers) in zip(self._questions, msgspec.json.decode(text), strict=True):
            if len(numbers) != len(question.options) or not all(0.0 <= number <= 1.0 for number in numbers):
                raise ValueError("the answer is to another question")
            found.append((tuple(numbers), mass, confidence))
        return found


JudgeQuestion = WrittenQuestion | DecidedQuestion
"""One question to one model: it makes the requests (``request``), and reads the answers (``parse``, ``vote``)."""


class Step(NamedTuple):
    """What follows from an answer.

    Attributes:
        value: the vote or the error with which the call ends. None if another call must be sent, and there is no error yet.
        reply: what the answer contained.
        unread: why the answer could not be read.
        again: the call that must be sent next, if there is time for it; otherwise None.
    """

    value: Vote | QRewardError | None
    reply: ModelReply | None = None
    unread: str = ""
    again: JudgeCall | None = None


class JudgeCall(NamedTuple):
    """Holds one question about one item, which ``loop.CallTask`` sends, and what is known from earlier answers to it.

    Attributes:
        key: a digest of everything on which the answer depends.
        reasks: how often it may be sent again.
        unread: number of answers to it that could not be read.
        token_limits: the raised limits of tokens; empty if an answer was cut off, and they cannot be raised; None if none was cut off.
        parts, rest: of a request that was divided, the answers to parts of it, and the inputs of the parts that are still to be sent.
    """

    question: JudgeQuestion
    inputs: Any
    key: bytes
    sample: int
    swapped: bool
    reasks: int
    group: object = None
    token_limits: TokenLimits | None = None
    parts: tuple[ModelReply, ...] = ()
    rest: tuple[Any, ...] = ()
    unread: int = 0


def evaluate(call: JudgeCall, answer: Any, sent_as: str) -> Step:
    """Return what follows from an answer or error. ``sent_as`` is the response format in which the request was made."""
    if isinstance(answer, QRewardError):
        return _failed(call, answer, sent_as)
    question = call.question
    reply = question.parse(answer)
    if call.rest:
        return Step(None, reply, again=call._replace(parts=(*call.parts, reply), inputs=call.rest[0], rest=call.rest[1:]))
    if call.parts:
        reply = reply._replace(found=[each for part in (*call.parts, reply) for each in part.found or ()])
    try:
        return Step(question.vote(reply, swapped=call.swapped), reply)
    except Unreadable as unreadable:
        return _unread(call, reply, unreadable.reason, answer, sent_as)
    except ScoreFunctionError as fault:
        message = f"{fault}; the answer of model {question.model!r} could be read, the fault is in your code (see __cause__)"
        error = InvalidResponse(message, model=question.model)
        error.__cause__ = fault.__cause__
        return Step(_about(call, error), reply)


def _failed(call: JudgeCall, error: QRewardError, sent_as: str) -> Step:
    if isinstance(call.question, WrittenQuestion) and call.question.fall_back(sent_as, error):
        return Step(error, again=call)
    inputs = call.inputs
    if isinstance(inputs, DecisionInput) and isinstance(error, BadRequest) and error.status_code is None:
        # more questions than the endpoint takes, which may become known late, so it is divided
        questions, half = inputs.questions, len(inputs.questions) // 2
        if half:
            rest = (inputs._replace(questions=questions[half:]), *call.rest)
            return Step(error, again=call._replace(inputs=inputs._replace(questions=questions[:half]), rest=rest))
    if call.token_limits and isinstance(error, BadRequest):  # the server rejects the raised limit
        return Step(error, again=call._replace(token_limits=()))
    return Step(_about(call, error))


def _unread(call: JudgeCall, reply: ModelReply, reason: str, answer: Any, sent_as: str) -> Step:
    question, usage, is_cut = call.question, answer.usage, reply.ending == LENGTH
    record = reason if usage is None or usage.total_tokens is None else f"{reason} ({usage.total_tokens} tokens)"
    if isinstance(question, DecidedQuestion):
        lost = InvalidResponse(f"model {question.model!r} gave no verdict: {reason}", model=question.model)
        return Step(lost if call.parts else _about(call, lost), reply, record)  # the last part may not be about the criterion in ``reason``
    call = call._replace(unread=call.unread + 1)
    times = "" if call.unread == 1 else f" in {call.unread} answers"
    text = one_line(reply.refusal or reply.text)
    shown = f"the answer begins: {text if len(text) <= SHOWN else text[: SHOWN - 3] + '...'}" if text else "the answer is empty"
    message = f"no verdict could be read from model {question.model!r}{times}: {reason}; {shown}"
    error = _about(call, InvalidResponse(message, model=question.model))
    if question.fall_back(sent_as, error, reply):
        return Step(error, reply, record, call)
    limits = question.raised(call.token_limits, None if usage is None else usage.completion_tokens) if is_cut else call.token_limits
    if call.reasks <= 0 or (is_cut and call.token_limits is not None and not limits):
        return Step(error, reply, record)
    inputs = question.repeated(call.inputs, reply, reason)
    return Step(error, reply, record, call._replace(inputs=inputs, reasks=call.reasks - 1, token_limits=limits))


def _about(call: JudgeCall, error: QRewardError) -> QRewardError:
    """Return the error. If the request asked about one of several criteria, the message of the error begins with this criterion."""
    asked = call.inputs.questions if isinstance(call.inputs, DecisionInput) else None
    names = [each.name for each in call.question.criteria if asked is None or (len(asked) == 1 and each.question is asked[0])]
    if names:
        error.args = (f"criterion {names[0]!r}: {error}", *error.args[1:])
    return error
