"""One request of a judge until its vote or error: how an answer is evaluated, and when the request is sent again. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from qreward.codecs.base import WireRequest
from qreward.codecs.finish_reason import LENGTH
from qreward.errors import InvalidResponse, QRewardError
from qreward.judge.codec import ModelReply
from qreward.judge.parsing import Unreadable
from qreward.judge.prompts import Messages
from qreward.judge.types import Vote
from qreward.judge.verdict_parser import ScoreFunctionError
from qreward.judge.writing import JudgeModel
from qreward.records import AttemptRecord, Usage, added
from qreward.results import with_trail
from qreward.scheduler.outcome import Answer
from qreward.scheduler.state import Source, Task
from qreward.transport.error_mapping import one_line

SHOWN = 200
"""Characters of an unreadable answer in its error message."""


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


class ReadItem(NamedTuple):
    """An item of a batch whose requests have been built.

    Attributes:
        requests: the requests, or the exception that building them raised.
        votes: the cached votes, in the order of ``requests``; None where there is none. Empty if nothing was looked up.
        extra: the item's fields that are not judged; None if there are none.
    """

    requests: Sequence[JudgeRequest] | Exception
    votes: Sequence[Vote | None]
    extra: Mapping[str, Any] | None


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
        self._form = request.judge_model.format
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
        request = self._request
        if task.trail:
            self.trail += tuple(task.trail)
            self.endpoint = self.trail[-1].endpoint
        if not isinstance(outcome, Answer):
            self.error = with_trail(outcome, self.trail)
            return None if request.judge_model.fall_back(self._form, outcome) else self.error
        assert source is not None
        self.endpoint = source.name
        self._answers += 1
        self.usage = added(self.usage, outcome.value.usage)
        reply = self.reply = request.judge_model.parse(outcome.value)
        try:
            return request.judge_model.vote(reply, swapped=request.swapped)
        except Unreadable as unreadable:
            return self._unread(reply, unreadable.reason, outcome.value.usage, seconds)
        except ScoreFunctionError as fault:
            model = request.judge_model.model
            error = self._invalid(f"{fault}; the answer of model {model!r} could be read, the fault is in your code (see __cause__)")
            error.__cause__ = fault.__cause__
            return error

    def _unread(self, reply: ModelReply, reason: str, usage: Usage | None, seconds: float) -> QRewardError | None:
        """The error of an answer that cannot be read; None if the request is to be sent again."""
        tokens = "" if usage is None or usage.total_tokens is None else f" ({usage.total_tokens} tokens)"
        self.trail += (AttemptRecord(self.endpoint or "", "unreadable", seconds, 200, reason + tokens),)
        hopeless = reply.ending == LENGTH and self._cut
        self._cut = self._cut or reply.ending == LENGTH
        judge_model = self._request.judge_model
        times = "" if self._answers == 1 else f" in {self._answers} answers"
        self.error = self._invalid(f"no verdict could be read from model {judge_model.model!r}{times}: {reason}{_beginning(reply)}")
        if self._reasks <= 0 or hopeless:
            return self.error
        self._reasks -= 1
        self._messages = judge_model.repeated(self._messages, reply, reason)
        return None

    def _invalid(self, message: str) -> InvalidResponse:
        error = InvalidResponse(message, endpoint=self.endpoint, model=self._request.judge_model.model)
        error.attempts = self.trail
        return error


def _beginning(reply: ModelReply) -> str:
    text = one_line(reply.refusal or reply.text)
    if not text:
        return "; the answer is empty"
    return f"; the answer begins: {text if len(text) <= SHOWN else text[: SHOWN - 3] + '...'}"
