"""One call to one judge model, and what follows from its answer: a vote, an error, or another call. This module must not send anything."""

from __future__ import annotations

from typing import Any, NamedTuple

from qreward.codecs.base import LENGTH, WireRequest
from qreward.errors import BadRequest, InvalidResponse, QRewardError
from qreward.judge.codec import Reply
from qreward.judge.deciding import DecidingModel, halves, joined
from qreward.judge.parsing import Unreadable
from qreward.judge.verdict_parser import ScoreFunctionError
from qreward.judge.writing import WritingModel

JudgeModel = WritingModel | DecidingModel
"""One question to one model: it makes the requests, and reads the answers."""


class Done(NamedTuple):
    """The call has its value, or its final error. ``reply`` is what the answer contained, and ``unread`` why it could not be read."""

    value: Any
    reply: Reply | None = None
    unread: str = ""


class Again(NamedTuple):
    """Another call must be sent. ``error`` is the final error if there is no time for it; ``reply`` and ``unread`` are as in ``Done``."""

    call: JudgeCall
    error: QRewardError | None = None
    reply: Reply | None = None
    unread: str = ""


class JudgeCall(NamedTuple):
    """Holds one request about an item to one judge model. ``room`` is the factor by which its limit of tokens is raised. Of a request that
    was divided, ``rest`` has the inputs that are still to be sent, and ``parts`` the answers to the others."""

    judge_model: JudgeModel
    inputs: Any
    key: bytes
    sample: int
    swapped: bool
    reasks: int
    group: object = None
    answers: int = 0
    room: int = 1
    cut: bool = False
    cut_at: int = 0
    grows: bool = True
    parts: tuple[Reply, ...] = ()
    rest: tuple[Any, ...] = ()

    def request(self) -> WireRequest:
        """Return the request, in the response format that the servers of the model accept now."""
        blank = self.judge_model.blank(self.sample, self.room, self.cut_at)
        return WireRequest(blank.codec, blank.model, self.inputs, blank.params, blank.headers, self.group)


def evaluate(call: JudgeCall, answer: Any, form: str) -> Done | Again:
    """Return what follows from an answer or error. ``form`` is the response format in which the request was made."""
    if isinstance(answer, QRewardError):
        return _failed(call, answer, form)
    model = call.judge_model
    reply = model.parse(answer)
    if call.rest:
        parts = (*call.parts, reply)
        return Again(call._replace(answers=call.answers + 1, parts=parts, inputs=call.rest[0], rest=call.rest[1:]), reply=reply)
    if call.parts:
        reply = joined([*call.parts, reply])
    try:
        return Done(model.vote(reply, swapped=call.swapped), reply)
    except Unreadable as unreadable:
        return _unread(call._replace(answers=call.answers + 1), reply, unreadable.reason, answer, form)
    except ScoreFunctionError as fault:
        message = f"{fault}; the answer of model {model.model!r} could be read, the fault is in your code (see __cause__)"
        error = InvalidResponse(message, model=model.model)
        error.__cause__ = fault.__cause__
        return Done(_about(call, error), reply)


def _failed(call: JudgeCall, error: QRewardError, form: str) -> Done | Again:
    if isinstance(call.judge_model, WritingModel) and call.judge_model.fall_back(form, error):
        return Again(call, error)
    if parts := halves(call.inputs, error):
        return Again(call._replace(inputs=parts[0], rest=(*parts[1:], *call.rest)), error)
    if call.room > 1 and isinstance(error, BadRequest):  # the server rejects the raised limit
        return Again(call._replace(room=1, cut=True, grows=False), error)
    return Done(_about(call, error))


def _unread(call: JudgeCall, reply: Reply, reason: str, answer: Any, form: str) -> Done | Again:
    model, usage, is_cut = call.judge_model, answer.usage, reply.ending == LENGTH
    record = reason if usage is None or usage.total_tokens is None else f"{reason} ({usage.total_tokens} tokens)"
    times = "" if call.answers == 1 else f" in {call.answers} answers"
    error = _about(call, InvalidResponse(model.without_verdict(reply, reason, times), model=model.model))
    if isinstance(model, DecidingModel):
        return Done(error, reply, record)
    if model.fall_back(form, error, reply):
        return Again(call, error, reply, record)
    had = usage.completion_tokens if is_cut and usage is not None else None
    cut_at = call.cut_at or (1 << (had - 1).bit_length() if had else 0)  # a power of two, so that there are few different requests
    grows = is_cut and call.grows and model.has_more_room(call.room, cut_at)
    if call.reasks <= 0 or (is_cut and call.cut and not grows):
        return Done(error, reply, record)
    inputs, room = model.repeated(call.inputs, reply, reason), call.room * (2 if grows else 1)
    again = call._replace(inputs=inputs, reasks=call.reasks - 1, room=room, cut=call.cut or is_cut, cut_at=cut_at)
    return Again(again, error, reply, record)


def _about(call: JudgeCall, error: QRewardError) -> QRewardError:
    """Return the error. If the request asked about one of several criteria, the message of the error begins with this criterion."""
    if name := call.judge_model.criterion_of(call.inputs):
        error.args = (f"criterion {name!r}: {error}", *error.args[1:])
    return error
