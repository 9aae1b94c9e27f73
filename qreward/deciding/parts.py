"""Decisions in parts: divide a request with more questions than a server accepts, and join the decisions of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from qreward.codecs.base import WireRequest
from qreward.decisions import Decision, DecisionAnswer, Question
from qreward.errors import BadRequest, QRewardError
from qreward.records import AttemptRecord, Usage, added

REFUSED = "refused"
"""The ``outcome`` of an attempt whose request the server rejected as wrong (400, 413, 422 or a content filter). If the input is too long,
the attempt has another ``outcome``."""

Outcome = Decision | QRewardError
T = TypeVar("T")


def questions_of(call: WireRequest) -> tuple[Question, ...]:
    questions: tuple[Question, ...] = call.inputs.questions
    return questions


def divided(call: WireRequest, most: int) -> list[WireRequest]:
    """Divide a request into parts of about the same size with at most ``most`` questions each. The order of the questions is kept."""
    questions = questions_of(call)
    if len(questions) <= most:
        return [call]
    return [
        WireRequest(call.codec, call.model, call.inputs._replace(questions=part), call.params, call.headers, call.group)
        for part in evenly(questions, most)
    ]


def evenly(items: tuple[T, ...], most: int) -> list[tuple[T, ...]]:
    """Divide items into parts of about the same size with at most ``most`` items each."""
    count = -(-len(items) // most)
    ends = [len(items) * place // count for place in range(count + 1)]
    return [items[begin:end] for begin, end in pairwise(ends)]


def smaller(call: WireRequest, error: QRewardError, attempts: Sequence[AttemptRecord], most: int) -> list[WireRequest]:
    """Divide a request that failed, so that in the end only the invalid question fails."""
    count = len(questions_of(call))
    if count < 2 or not isinstance(error, BadRequest):
        return []
    if error.status_code is None or (attempts and attempts[-1].outcome == REFUSED):
        return divided(call, min(most, (count + 1) // 2))
    return []


def joined(calls: Sequence[WireRequest], outcomes: Sequence[Outcome]) -> Outcome:
    """Join the outcomes of all parts into one decision. The questions of a failed part have the error of the part."""
    answers: list[DecisionAnswer] = []
    model, usage = "", None
    errors = [outcome for outcome in outcomes if isinstance(outcome, QRewardError)]
    if len(errors) == len(outcomes):
        return errors[0]
    for call, outcome in zip(calls, outcomes, strict=True):
        if isinstance(outcome, QRewardError):
            answers += [DecisionAnswer(question, error=outcome) for question in questions_of(call)]
        else:
            answers += outcome.answers
            model, usage = model or outcome.model, added(usage, outcome.usage)
    return Decision(tuple(answers), model, usage)


class JoinedAnswer:
    """Holds a joined decision as the answer of a ``Result``."""

    __slots__ = ("_decision", "usage")

    def __init__(self, decision: Decision) -> None:
        self._decision = decision
        self.usage: Usage | None = decision.usage

    def build(self) -> Decision:
        return self._decision

    def text(self) -> str:
        return ""
