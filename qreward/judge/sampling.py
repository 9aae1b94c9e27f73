"""One request of a judge until its vote or error: what is sent, how an answer is evaluated, when the request is sent again. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from qreward.codecs.base import WireRequest
from qreward.codecs.chat import ChatAnswer
from qreward.codecs.finish_reason import LENGTH
from qreward.errors import BadRequest, ConfigError, InvalidResponse, QRewardError
from qreward.judge.codec import JUDGE, ModelReply, parse_reply, refuses_format
from qreward.judge.config import JudgeConfig, ResponseFormat
from qreward.judge.parsing import Unreadable
from qreward.judge.prompts import Messages
from qreward.judge.types import Vote
from qreward.judge.verdict_parser import ScoreFunctionError, VerdictParser
from qreward.options import preparer
from qreward.records import AttemptRecord, PromptTokensDetails, Usage
from qreward.results import with_trail
from qreward.scheduler.outcome import Answer
from qreward.scheduler.state import Source, Task
from qreward.transport.error_mapping import one_line

SHOWN = 200
"""Characters of an unreadable answer in its error message."""
SENT_BACK = 4000
"""Characters of an unreadable answer that are sent back to the model: its end, where the verdict is."""


LADDER: tuple[ResponseFormat, ...] = ("json_schema", "json_object", "none")
"""Response formats, from the strictest to the one that every server accepts."""


class JudgeModel:
    """One model of a judge, with the parser of its answers and the response format that its servers accept.

    ``auto`` starts with the first format of ``LADDER`` and moves to the next one when a server rejects it. If the endpoints of a route
    differ, all are sent the first format that every one of them accepts.

    Attributes:
        format: the response format of new requests.
        cached_as: name of the model in the cache, including the namespace.

    Raises:
        ConfigError: the parameters cannot be sent.
    """

    def __init__(self, model: str, parser: VerdictParser, config: JudgeConfig) -> None:
        self.model, self.parser, self.reasks = model, parser, config.reasks
        self.cached_as = json.dumps([config.cache_namespace, model])
        self._is_auto = config.response_format == "auto"
        self.format: ResponseFormat = LADDER[0] if self._is_auto else config.response_format
        schema = {"name": parser.model.__name__, "schema": parser.schema, "strict": True}
        self._formats = {"json_schema": {"type": "json_schema", "json_schema": schema}, "json_object": {"type": "json_object"}}
        self._headers, self._body = config.params.get("extra_headers"), config.params.get("extra_body")
        self._params = {name: value for name, value in config.params.items() if name not in ("extra_headers", "extra_body", "hedge")}
        seed = self._params.get("seed")
        self._seed = seed if isinstance(seed, int) else None
        self._prepare: dict[tuple[ResponseFormat, int], Callable[[Any], WireRequest]] = {}
        try:
            self.prepare(0)
        except BadRequest as error:
            raise ConfigError(str(error)) from None

    def prepare(self, sample: int) -> Callable[[Any], WireRequest]:
        """The function that makes a request from messages. Raises ``ConfigError`` or ``BadRequest`` for invalid parameters.

        A ``seed`` is increased by one for each sample, so that samples differ.
        """
        key = self.format, sample if self._seed is not None else 0
        if key not in self._prepare:
            form = {"response_format": self._formats[self.format]} if self.format in self._formats else {}
            seed = {} if self._seed is None else {"seed": self._seed + sample}
            self._prepare[key] = preparer(JUDGE, self.model, {**form, **self._params, **seed}, self._headers, self._body)
        return self._prepare[key]

    def fall_back(self, form: ResponseFormat, error: QRewardError) -> bool:
        """Whether a request that failed in this format should be sent again in the next one. If so, new requests use the next format."""
        if not self._is_auto or form == LADDER[-1] or not refuses_format(error, self.model):
            return False
        if self.format == form:
            self.format = LADDER[LADDER.index(form) + 1]
        return True


class JudgeRequest(NamedTuple):
    """One request about an item to one judge model.

    Attributes:
        judge_model: the judge model.
        messages: the messages to send.
        sample: number of the sample, from 0.
        swapped: the responses of a pair are shown in reverse order, so the model's score is that of the second.
        key: digest of the request without its headers, and of the verdict's form. Requests with equal keys can share an answer.
    """

    judge_model: JudgeModel
    messages: Messages
    sample: int
    swapped: bool
    key: bytes

    def vote(self, reply: ModelReply) -> Vote:
        """The answer as a vote. Raises ``Unreadable``, and whatever the user's own code raises."""
        score, verdict = self.judge_model.parser.read(reply)
        return Vote(1 - score if self.swapped else score, verdict, reply.text, self.judge_model.model, self.swapped)


class SampleRequest:
    """A request until there is a vote or a final error. It may be sent several times.

    Attributes:
        usage: tokens of all answers; None if no server reported usage.
        trail: the failed attempts, oldest first.
        endpoint: name of the endpoint that answered or failed last.
        reply: the last answer; None before the first.
        error: the last error.
    """

    __slots__ = ("_answers", "_cut", "_form", "_messages", "_reasks", "_request", "endpoint", "error", "reply", "trail", "usage")

    def __init__(self, request: JudgeRequest) -> None:
        self._request, self._messages = request, request.messages
        self._reasks = request.judge_model.reasks
        self._form: ResponseFormat = request.judge_model.format
        self._answers = 0
        self._cut = False
        self.reply: ModelReply | None = None
        self.error: QRewardError | None = None
        self.usage: Usage | None = None
        self.trail: tuple[AttemptRecord, ...] = ()
        self.endpoint: str | None = None

    def call(self) -> WireRequest:
        """The next request, in the response format that is used now."""
        self._form = self._request.judge_model.format
        return self._request.judge_model.prepare(self._request.sample)(self._messages)

    def is_stale(self) -> bool:
        """True if the response format for this model has changed since the request was created."""
        return self._form != self._request.judge_model.format

    def evaluate(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> Vote | QRewardError | None:
        """The vote or final error that an answer or error comes to; None if the request is to be sent again."""
        if task.trail:
            self.trail += tuple(task.trail)
            self.endpoint = self.trail[-1].endpoint
        if not isinstance(outcome, Answer):
            self.error = with_trail(outcome, self.trail)
            return None if self._request.judge_model.fall_back(self._form, outcome) else self.error
        assert source is not None
        self.endpoint = source.name
        answer: ChatAnswer = outcome.value
        self._answers += 1
        self.usage = added(self.usage, answer.usage)
        reply = self.reply = parse_reply(answer)
        try:
            return self._request.vote(reply)
        except Unreadable as error:
            return self._unread(reply, error.why, answer.usage, seconds)
        except ScoreFunctionError as error:
            return self._faulty(str(error), error.__cause__)
        except (KeyboardInterrupt, SystemExit):  # they must end the event loop
            raise
        except BaseException as error:  # the user's own model
            name = self._request.judge_model.parser.model.__name__
            return self._faulty(f"reading as {name} raised {type(error).__name__}: {error}", error)

    def _unread(self, reply: ModelReply, why: str, usage: Usage | None, seconds: float) -> QRewardError | None:
        """The error of an answer that cannot be parsed; None if the request is to be sent again."""
        tokens = "" if usage is None or usage.total_tokens is None else f" ({usage.total_tokens} tokens)"
        self.trail += (AttemptRecord(self.endpoint or "", "unreadable", seconds, 200, why + tokens),)
        hopeless = reply.ending == LENGTH and self._cut
        self._cut = self._cut or reply.ending == LENGTH
        judge_model = self._request.judge_model
        times = "" if self._answers == 1 else f" in {self._answers} answers"
        self.error = self._invalid(f"no verdict could be read from model {judge_model.model!r}{times}: {why}{_beginning(reply)}")
        if self._reasks <= 0 or hopeless:
            return self.error
        self._reasks -= 1
        self._messages = asked_again(self._messages, reply, why, judge_model.parser.instruction)
        return None

    def _faulty(self, why: str, cause: BaseException | None) -> InvalidResponse:
        """The error for the user's own code that failed on an answer. Another request would not help."""
        model = self._request.judge_model.model
        error = self._invalid(f"{why}; the answer of model {model!r} could be read, the fault is in your code (see __cause__)")
        error.__cause__ = cause
        return error

    def _invalid(self, message: str) -> InvalidResponse:
        error = InvalidResponse(message, endpoint=self.endpoint, model=self._request.judge_model.model)
        error.attempts = self.trail
        return error


def _beginning(reply: ModelReply) -> str:
    text = one_line(reply.refusal or reply.text)
    if not text:
        return "; the answer is empty"
    return f"; the answer begins: {text if len(text) <= SHOWN else text[: SHOWN - 3] + '...'}"


def asked_again(messages: Messages, reply: ModelReply, why: str, instruction: str) -> Messages:
    """The messages of a repeated request, after an answer that could not be parsed.

    The conversation continues with the answer and the reason why it was rejected, so that the model corrects the form of its own answer.
    This succeeds more often than a new sample, also at temperature 0, and the server can reuse its prefix cache. An answer that is empty,
    refused or incomplete leaves nothing to correct: the original messages are sent again, with a note.
    """
    if reply.whole and not reply.refusal and reply.text.strip():
        word = f"This answer cannot be read: {why}. Give your verdict again. {instruction}"
        return [*messages, {"role": "assistant", "content": reply.text[-SENT_BACK:]}, {"role": "user", "content": word}]
    return noted(messages, f"(An earlier answer could not be used: {why}. Be brief. {instruction})")


def noted(messages: Messages, note: str) -> Messages:
    """The messages with a note: appended to the last message, or as a new one if the last is not a user message."""
    last = messages[-1] if messages else {}
    content = last.get("content")
    if last.get("role") != "user" or not isinstance(content, str | list):
        return [*messages, {"role": "user", "content": note}]
    more = f"{content}\n\n{note}" if isinstance(content, str) else [*content, {"type": "text", "text": note}]
    return [*messages[:-1], {**last, "content": more}]


def added(one: Usage | None, other: Usage | None) -> Usage | None:
    """The sum of two usages."""
    if one is None or other is None:
        return one or other
    prompt, completion, total, cached = (
        _sum(getattr(one, name), getattr(other, name)) for name in ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens")
    )
    return Usage(prompt, completion, total, None if cached is None else PromptTokensDetails(cached))


def _sum(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else one + other
