"""Decisions in parts: a request with more questions than a server takes is divided, and the decisions of its parts are joined.

Pure: this module knows neither the engine nor asyncio.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from qreward.codecs.base import WireRequest
from qreward.codecs.decisions.base import DecisionInput
from qreward.decisions import Decision, DecisionAnswer, Question
from qreward.errors import BadRequest, QRewardError
from qreward.records import AttemptRecord, Usage, added

REFUSED = "refused"
"""Outcome of an attempt whose request the server found wrong: 400, 413 or 422, but not for the length of the input."""

Outcome = Decision | QRewardError
T = TypeVar("T")


def questions_of(call: WireRequest) -> tuple[Question, ...]:
    """Return the questions of a request."""
    inputs: DecisionInput = call.inputs
    return inputs.questions


def divided(call: WireRequest, most: int) -> list[WireRequest]:
    """Return a request as parts with at most ``most`` questions each, of about the same size, in the order of the questions."""
    questions = questions_of(call)
    return [call] if len(questions) <= most else [_part(call, part) for part in evenly(questions, most)]


def evenly(items: tuple[T, ...], most: int) -> list[tuple[T, ...]]:
    """Return items in parts of at most ``most``, of about the same size.

    Example:
        >>> evenly((1, 2, 3, 4, 5), 3)
        [(1, 2), (3, 4, 5)]
    """
    count = -(-len(items) // most)
    ends = [len(items) * place // count for place in range(count + 1)]
    return [items[begin:end] for begin, end in pairwise(ends)]


def smaller(call: WireRequest, error: QRewardError, attempts: Sequence[AttemptRecord], most: int) -> list[WireRequest]:
    """Return the parts in which a request that failed is sent again, so that finally only a bad question fails; [] if it is not.

    Args:
        call: the request.
        error: its error.
        attempts: the attempts that were made.
        most: number of questions that all endpoints take, as far as is known now.
    """
    count = len(questions_of(call))
    if count < 2 or not isinstance(error, BadRequest):
        return []
    if error.status_code is None or (attempts and attempts[-1].outcome == REFUSED):
        return divided(call, min(most, (count + 1) // 2))
    return []


def joined(calls: Sequence[WireRequest], outcomes: Sequence[Outcome]) -> Outcome:
    """Return the decision over all parts, in their order. The questions of a part that failed have its error; if all failed, the first one.

    An error that is returned has the usage of none of them: no part was answered.
    """
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
    """A joined decision in the form in which ``Result`` takes an answer."""

    __slots__ = ("_decision", "usage")

    def __init__(self, decision: Decision) -> None:
        self._decision = decision
        self.usage: Usage | None = decision.usage

    def build(self) -> Decision:
        return self._decision

    def text(self) -> str:
        """``""``: nothing was written."""
        return ""


def _part(call: WireRequest, questions: tuple[Question, ...]) -> WireRequest:
    inputs: DecisionInput = call.inputs
    return WireRequest(call.codec, call.model, DecisionInput(inputs.input, questions), call.params, call.headers, call.group)
