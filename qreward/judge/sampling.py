"""Follow one request of a judge until its vote or error: evaluate its answers, and decide whether the request is sent again.

This module must not send requests, and does not depend on the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from qreward.codecs.base import WireRequest
from qreward.codecs.finish_reason import LENGTH
from qreward.errors import BadRequest, InvalidResponse, QRewardError
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
    """Holds one request about an item to one judge model.

    Attributes:
        judge_model: the question to a judge model.
        inputs: the input: the messages, or the input and the questions of a decision.
        key: digest of the request without its headers, and of the form of the verdict. Requests with equal keys can share an answer.
        sample: number of the sample, from 0.
        swapped: True if the responses of a pair are shown in reverse order. The model's score is then the score of the second response.
        group: identifies the requests that have a common prefix, for prefix affinity; None if the request has no such group.
        fallback: the written request that replaces a request for decisions if the model gives no probabilities; None if there is none.
    """

    judge_model: JudgeModel
    inputs: Any
    key: bytes
    sample: int
    swapped: bool
    group: object = None
    fallback: JudgeRequest | None = None


class ReadItem(NamedTuple):
    """Holds an item of a batch, after its requests have been built.

    Attributes:
        requests: the requests, or the exception that was raised while they were built.
        votes: the cached vote of each request, or None, in the order of ``requests``. Empty if the cache was not asked.
        extra: the item's fields that are not judged; None if there are none.
    """

    requests: Sequence[JudgeRequest] | Exception
    votes: Sequence[Vote | None]
    extra: Mapping[str, Any] | None


class SampleRequest:
    """Holds the state of a request until its vote or final error. The request may be sent several times.

    Attributes:
        request: the request, or the fallback that has replaced it.
        usage: tokens of all answers; None if no server reported usage.
        trail: the failed attempts, oldest first.
        endpoint: name of the endpoint that answered or failed last.
        reply: the last answer; None before the first answer.
        error: the last error.
    """

    __slots__ = (
        "_answers", "_cut", "_form", "_grows", "_inputs", "_parts", "_reasks", "_rest", "_room",
        "endpoint", "error", "reply", "request", "trail", "usage",
    )  # fmt: skip

    def __init__(self, request: JudgeRequest) -> None:
        self.request, self._inputs = request, request.inputs
        self._reasks = request.judge_model.reasks
        self._form = request.judge_model.format
        self._answers = 0
        self._cut = False
        self._room = 1  # the factor by which the limit of tokens is raised
        self._grows = True
        self._parts: list[Reply] = []  # the replies to the parts of a request that was divided
        self._rest: list[Any] = []  # the parts that are still to be sent
        self.reply: Reply | None = None
        self.error: QRewardError | None = None
        self.usage: Usage | None = None
        self.trail: tuple[AttemptRecord, ...] = ()
        self.endpoint: str | None = None

    def call(self) -> WireRequest:
        """Return the next request to send, in the form that the model uses now."""
        if not self.request.judge_model.format and self.request.fallback is not None:
            self.request = self.request.fallback
            self._inputs, self._reasks = self.request.inputs, self.request.judge_model.reasks
        self._form = self.request.judge_model.format
        call = self.request.judge_model.prepare(self.request.sample, self._room)(self._inputs)
        call.group = self.request.group
        return call

    def is_stale(self) -> bool:
        """Return True if the form of requests to this model has changed since :meth:`call`."""
        return self._form != self.request.judge_model.format

    def evaluate(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> Vote | QRewardError | None:
        """Return the vote or final error that follows from an answer or error; None if the request must be sent again."""
        request = self.request
        if task.trail:
            self.trail += tuple(task.trail)
            self.endpoint = self.trail[-1].endpoint
        if not isinstance(outcome, Answer):
            self.error = with_trail(outcome, self.trail)
            return (
                None
                if self._falls_back(outcome) or self._divides(outcome) or self._had_too_much_room(outcome)
                else self._with_criterion(self.error)
            )
        assert source is not None
        self.endpoint = source.name
        self._answers += 1
        self.usage = added(self.usage, outcome.value.usage)
        reply = self.reply = request.judge_model.parse(outcome.value)
        if self._rest:
            self._parts.append(reply)
            self._inputs = self._rest.pop(0)
            return None
        if self._parts:
            reply = self.reply = request.judge_model.joined([*self._parts, reply])
        if request.fallback is not None and not request.judge_model.format:
            return None  # the model now writes, and all answers to one item must be of one kind
        try:
            return request.judge_model.vote(reply, swapped=request.swapped)
        except Unreadable as unreadable:
            return self._unread(reply, unreadable.reason, outcome.value.usage, seconds)
        except ScoreFunctionError as fault:
            model = request.judge_model.model
            error = self._invalid(f"{fault}; the answer of model {model!r} could be read, the fault is in your code (see __cause__)")
            error.__cause__ = fault.__cause__
            return error

    def _falls_back(self, error: QRewardError, reply: Reply | None = None) -> bool:
        """Return whether the request must be sent again in another form."""
        return self.request.judge_model.fall_back(self._form, error, reply) and (
            bool(self.request.judge_model.format) or self.request.fallback is not None
        )

    def _divides(self, error: QRewardError) -> bool:
        """Return whether the request must be sent again in parts."""
        parts = self.request.judge_model.divided(self._inputs, error)
        if not parts:
            return False
        self._inputs, self._rest = parts[0], [*parts[1:], *self._rest]
        return True

    def _had_too_much_room(self, error: QRewardError) -> bool:
        """Return whether a request is sent again with its own limit of tokens, because a server rejected it with a raised limit."""
        if self._room == 1 or not isinstance(error, BadRequest):
            return False
        self._room, self._cut = 1, True
        self._grows = False
        return True

    def _unread(self, reply: Reply, reason: str, usage: Usage | None, seconds: float) -> QRewardError | None:
        """Return the error of an answer that cannot be read; None if the request must be sent again."""
        tokens = "" if usage is None or usage.total_tokens is None else f" ({usage.total_tokens} tokens)"
        self.trail += (AttemptRecord(self.endpoint or "", "unreadable", seconds, 200, reason + tokens),)
        judge_model = self.request.judge_model
        grows = reply.ending == LENGTH and self._grows and judge_model.has_more_room(self._room)
        hopeless = reply.ending == LENGTH and self._cut and not grows
        self._cut = self._cut or reply.ending == LENGTH
        times = "" if self._answers == 1 else f" in {self._answers} answers"
        self.error = self._invalid(judge_model.without_verdict(reply, reason, times))
        if self._falls_back(self.error, reply):
            return None
        if self._reasks <= 0 or hopeless:
            return self.error
        self._reasks -= 1
        self._room *= 2 if grows else 1
        self._inputs = judge_model.repeated(self._inputs, reply, reason)
        return None

    def _invalid(self, message: str) -> InvalidResponse:
        error = InvalidResponse(message, endpoint=self.endpoint, model=self.request.judge_model.model)
        error.attempts = self.trail
        self._with_criterion(error)
        return error

    def _with_criterion(self, error: QRewardError) -> QRewardError:
        """Return the error. If the request asked about one of several criteria, the message of the error begins with this criterion."""
        if name := self.request.judge_model.criterion_of(self._inputs):
            error.args = (f"criterion {name!r}: {error}", *error.args[1:])
        return error
