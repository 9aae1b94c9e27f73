"""One request of a judge until its vote or error: how an answer is evaluated, and when the request is sent again. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from qreward.codecs.base import WireRequest
from qreward.codecs.finish_reason import LENGTH
from qreward.errors import InvalidResponse, QRewardError
from qreward.judge.asking import JudgeModel
from qreward.judge.codec import Reply
from qreward.judge.parsing import Unreadable
from qreward.judge.types import Vote
from qreward.judge.verdict_parser import ScoreFunctionError
from qreward.records import AttemptRecord, Usage, added
from qreward.results import with_trail
from qreward.scheduler.outcome import Answer
from qreward.scheduler.state import Source, Task


class JudgeRequest(NamedTuple):
    """One request about an item to one judge model.

    Attributes:
        judge_model: the question to a judge model.
        asked: what is sent: the messages, or the input and the questions of a decision.
        key: digest of the request without its headers, and of the verdict's form. Requests with equal keys can share an answer.
        sample: number of the sample, from 0.
        swapped: the responses of a pair are shown in reverse order, so the model's score is that of the second.
        group: named group of requests with a common prefix, for prefix affinity; None for none.
        instead: the request that replaces this one if the model turns out to give no probabilities; None for none.
    """

    judge_model: JudgeModel
    asked: Any
    key: bytes
    sample: int
    swapped: bool
    group: object = None
    instead: JudgeRequest | None = None


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
        request: the request, or the one that has replaced it.
        usage: tokens of all answers; None if no server reported usage.
        trail: the failed attempts, oldest first.
        endpoint: name of the endpoint that answered or failed last.
        reply: the last answer; None before the first.
        error: the last error.
    """

    __slots__ = (
        "_answers", "_asked", "_cut", "_form", "_parts", "_reasks", "_rest", "endpoint", "error", "reply", "request", "trail", "usage",
    )  # fmt: skip

    def __init__(self, request: JudgeRequest) -> None:
        self.request, self._asked = request, request.asked
        self._reasks = request.judge_model.reasks
        self._form = request.judge_model.format
        self._answers = 0
        self._cut = False
        self._parts: list[Reply] = []  # the replies to the parts of a request that was divided
        self._rest: list[Any] = []  # its parts that are still to be sent
        self.reply: Reply | None = None
        self.error: QRewardError | None = None
        self.usage: Usage | None = None
        self.trail: tuple[AttemptRecord, ...] = ()
        self.endpoint: str | None = None

    def call(self) -> WireRequest:
        """The next request, in the form that is used now."""
        if not self.request.judge_model.format and self.request.instead is not None:
            self.request = self.request.instead
            self._asked, self._reasks = self.request.asked, self.request.judge_model.reasks
        self._form = self.request.judge_model.format
        call = self.request.judge_model.prepare(self.request.sample)(self._asked)
        call.group = self.request.group
        return call

    def is_stale(self) -> bool:
        """True if the form of requests to this model has changed since the request was created."""
        return self._form != self.request.judge_model.format

    def evaluate(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> Vote | QRewardError | None:
        """The vote or final error that an answer or error comes to; None if the request is to be sent again."""
        request = self.request
        if task.trail:
            self.trail += tuple(task.trail)
            self.endpoint = self.trail[-1].endpoint
        if not isinstance(outcome, Answer):
            self.error = with_trail(outcome, self.trail)
            return None if self._falls_back(outcome) or self._divides(outcome) else self._about(self.error)
        assert source is not None
        self.endpoint = source.name
        self._answers += 1
        self.usage = added(self.usage, outcome.value.usage)
        reply = self.reply = request.judge_model.parse(outcome.value)
        if self._rest:
            self._parts.append(reply)
            self._asked = self._rest.pop(0)
            return None
        if self._parts:
            reply = self.reply = request.judge_model.joined([*self._parts, reply])
        if request.instead is not None and not request.judge_model.format:
            return None  # meanwhile the model is asked to write, and the answers to one item should not be of two kinds
        try:
            return request.judge_model.vote(reply, swapped=request.swapped)
        except Unreadable as unreadable:
            return self._unread(reply, unreadable.reason, outcome.value.usage, seconds)
        except ScoreFunctionError as fault:
            model = request.judge_model.model
            error = self._invalid(f"{fault}; the answer of model {model!r} could be read, the fault is in your code (see __cause__)")
            error.__cause__ = fault.__cause__
            return error

    def _falls_back(self, error: QRewardError) -> bool:
        """Whether the request is to be sent again in another form."""
        return self.request.judge_model.fall_back(self._form, error) and (
            bool(self.request.judge_model.format) or self.request.instead is not None
        )

    def _divides(self, error: QRewardError) -> bool:
        """Whether the request is to be sent in parts instead."""
        parts = self.request.judge_model.divided(self._asked, error)
        if not parts:
            return False
        self._asked, self._rest = parts[0], [*parts[1:], *self._rest]
        return True

    def _unread(self, reply: Reply, reason: str, usage: Usage | None, seconds: float) -> QRewardError | None:
        """The error of an answer that cannot be read; None if the request is to be sent again."""
        tokens = "" if usage is None or usage.total_tokens is None else f" ({usage.total_tokens} tokens)"
        self.trail += (AttemptRecord(self.endpoint or "", "unreadable", seconds, 200, reason + tokens),)
        hopeless = reply.ending == LENGTH and self._cut
        self._cut = self._cut or reply.ending == LENGTH
        judge_model = self.request.judge_model
        times = "" if self._answers == 1 else f" in {self._answers} answers"
        self.error = self._invalid(judge_model.without_verdict(reply, reason, times))
        if self._falls_back(self.error):
            return None
        if self._reasks <= 0 or hopeless:
            return self.error
        self._reasks -= 1
        self._asked = judge_model.repeated(self._asked, reply, reason)
        return None

    def _invalid(self, message: str) -> InvalidResponse:
        error = InvalidResponse(message, endpoint=self.endpoint, model=self.request.judge_model.model)
        error.attempts = self.trail
        self._about(error)
        return error

    def _about(self, error: QRewardError) -> QRewardError:
        """The error, which begins with the name of the criterion if the request is about one of several."""
        if name := self.request.judge_model.about(self._asked):
            error.args = (f"criterion {name!r}: {error}", *error.args[1:])
        return error
