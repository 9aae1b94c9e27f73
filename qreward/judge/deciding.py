"""Ask a model for decisions: a probability for each option of a question. The score is the expected value."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite
from typing import Any, NamedTuple

import msgspec

from qreward.codecs.base import WireRequest
from qreward.codecs.decisions import Decide, DecisionInput, DecisionReply, valid_input
from qreward.decisions import AnswerTable, Choice, FoundAnswer, Option, Question, Score, YesNo, too_improbable
from qreward.errors import BadRequest, ConfigError, QRewardError
from qreward.judge.codec import DecidedReply, Reply, encoded, fingerprint_of
from qreward.judge.config import JudgeConfig
from qreward.judge.parsing import ScoreVerdict, Unreadable, YesNoVerdict
from qreward.judge.prompts import Messages
from qreward.judge.rubric import Criterion, CriterionGroup, DecidedCriteria, Rubric
from qreward.judge.types import Vote
from qreward.options import preparer

DECISION = "decision"
"""The ``format`` of requests for decisions."""
WRITING_ONLY = frozenset({
    "frequency_penalty", "logprobs", "max_completion_tokens", "max_tokens", "min_p", "min_tokens", "n", "presence_penalty",
    "reasoning_effort", "repetition_penalty", "response_format", "seed", "stop", "temperature", "top_k", "top_logprobs", "top_p",
})  # fmt: skip
"""Parameters that have no effect on a decision."""


class SingleQuestion(NamedTuple):
    """The only question of a judge without a rubric, with the reward and the name of each option."""

    question: Question
    rewards: tuple[float, ...]
    names: tuple[Option, ...]


class DecidingModel:
    """Makes one request for decisions to one model, and reads the answer. The request has one question, or criteria of a rubric."""

    reasks = 0  # the same questions would have the same answers
    question = ""
    format = DECISION

    def __init__(self, model: str, subject: SingleQuestion | Sequence[Criterion], config: JudgeConfig, decide: Decide) -> None:
        self.model, self.cached_as = model, json.dumps([config.cache_namespace, model])
        self._single = subject if isinstance(subject, SingleQuestion) else None
        self._criteria = () if isinstance(subject, SingleQuestion) else tuple(subject)
        self._group, self.reads = CriterionGroup(self._criteria), "".join(each.reads for each in self._criteria)
        self._questions = tuple(each.question for each in (self._criteria if self._single is None else [self._single]))
        self._least = config.min_label_mass
        self._names = [""] if len(self._questions) == 1 else [f"criterion {each.name!r}: " for each in self._criteria]
        given = {} if config.method == "auto" else {name: value for name, value in config.params.items() if name != "hedge"}
        self._headers, body = config.params.get("extra_headers"), given.pop("extra_body", None)
        given.pop("extra_headers", None)
        described = [[type(each).__name__, each.instructions, each.options, each.descriptions] for each in self._questions]
        self.identity = encoded([DECISION, self.cached_as, given, body, described])
        try:
            self._blank = preparer(decide, model, given, self._headers, body)(DecisionInput(model, self._questions, 0.0))
        except BadRequest as error:
            raise ConfigError(str(error)) from None

    def input_of(self, messages: Messages) -> DecisionInput:
        only = messages[0]["content"] if len(messages) == 1 and messages[0].get("role") == "user" else messages
        if type(only) is str and only.strip():
            return DecisionInput(only, self._questions, 0.0)  # ``vote`` compares the label mass, also that of a cached answer
        return valid_input(DecisionInput(messages, self._questions, 0.0))

    def criterion_of(self, inputs: DecisionInput) -> str:
        if len(inputs.questions) > 1:
            return ""
        return next((each.name for each in self._criteria if each.question is inputs.questions[0]), "")

    def blank(self, sample: int, room: int = 1, cut_at: int = 0) -> WireRequest:  # noqa: ARG002 - all samples are alike
        return self._blank

    def parse(self, answer: DecisionReply) -> DecidedReply:
        return DecidedReply(answer.table, fingerprint_of(answer.model, None, None))

    def vote(self, reply: Reply, *, swapped: bool) -> Vote:
        table = reply.table if isinstance(reply, DecidedReply) else self._from_text(reply.text)
        for place, mass in enumerate(table.label_masses):
            why = str(table.errors[place]) if table.errors and place in table.errors else too_improbable(mass, self._least)
            if why:
                raise Unreadable(f"{self._names[place]}{why}")
        if (single := self._single) is None:  # the score is computed from all requests of the sample
            return Vote(0.0, model=self.model, criteria=DecidedCriteria(self._group, table))
        numbers = table.probabilities
        if swapped:
            numbers = (numbers[1], numbers[0], *numbers[2:])
        expected = sum(number * reward for number, reward in zip(numbers, single.rewards, strict=True))
        score = min(max(expected, min(single.rewards)), max(single.rewards))  # rounding may exceed the ends
        distribution = dict(zip(single.names, numbers, strict=True))
        return Vote(score, model=self.model, swapped=swapped, confidence=table.confidences[0], distribution=distribution)

    def _from_text(self, text: str) -> AnswerTable:
        found = list[FoundAnswer | QRewardError]()
        for question, (confidence, mass, *numbers) in zip(self._questions, msgspec.json.decode(text), strict=True):
            if len(numbers) != len(question.options) or not all(0.0 <= number <= 1.0 and isfinite(number) for number in numbers):
                raise ValueError("the answer is to another question")
            found.append((tuple(numbers), mass, confidence))
        return AnswerTable.of(self._questions, found)

    def without_verdict(self, reply: Reply, reason: str, times: str) -> str:  # noqa: ARG002 - as WritingModel has it
        return f"model {self.model!r} gave no verdict: {reason}"


def halves(inputs: object, error: QRewardError) -> Sequence[DecisionInput]:
    """Return the halves of a request with more questions than the endpoint takes, which may become known late; nothing for another
    error."""
    if not isinstance(inputs, DecisionInput) or not isinstance(error, BadRequest) or error.status_code is not None:
        return ()
    half = len(inputs.questions) // 2
    return [inputs._replace(questions=part) for part in (inputs.questions[:half], inputs.questions[half:])] if half else ()


def joined(replies: Sequence[Reply]) -> DecidedReply:
    parts = [reply for reply in replies if isinstance(reply, DecidedReply)]
    return DecidedReply(AnswerTable.joined([part.table for part in parts]), parts[-1].fingerprint)


LEVELS = 10
"""Maximum number of levels of a ``Score``. Servers do not accept more levels, and chat models answer with one digit."""
MOST_SCORES = 20
"""Maximum number of scores of a scale. Every model accepts a ``Choice`` with this number of options."""


def question_of(verdict: type[Any], scale: tuple[float, float], bounds: tuple[float, float] | None, *, built_in: bool) -> SingleQuestion:
    if verdict is YesNoVerdict:
        low, high = bounds or (0.0, 1.0)
        text = "The candidate answer is a good answer to the task." if built_in else "The verdict on what is asked above is yes."
        return SingleQuestion(YesNo(text), (high, low), (True, False))
    if verdict is not ScoreVerdict:
        raise ConfigError(
            f"a decision has no form for the verdict {verdict.__name__}; use ScoreVerdict or YesNoVerdict (in settings score or yes_no), "
            "a rubric, or method='write'"
        )
    first, last = scale
    if not (first.is_integer() and last.is_integer() and last - first < MOST_SCORES):
        count = f"{last - first + 1:g} scores" if first.is_integer() and last.is_integer() else "an end that is not a whole number"
        raise ConfigError(
            f"a decision needs a scale of at most {MOST_SCORES} whole numbers, and scale=({first:g}, {last:g}) has {count}; "
            "set scale to (1, 5) or (0, 10), use a rubric, or method='write'"
        )
    names = tuple(str(number) for number in range(int(first), int(last) + 1))
    subject = "How good is the candidate answer to the task?" if built_in else "What is the score that is asked for above?"
    low, high = bounds or scale
    steps = len(names) - 1
    rewards = tuple(low + (high - low) * (place / steps) for place in range(steps + 1))
    if (built_in or first == 0) and steps < LEVELS:
        places = tuple(map(str, range(steps + 1)))
        return SingleQuestion(Score(f"{subject} 0 is the lowest level, {steps} the highest.", places), rewards, names)
    return SingleQuestion(Choice(f"{subject} {names[0]} is the lowest score, {names[-1]} the highest.", names), rewards, names)


def preference_question(*, built_in: bool, rubric: Rubric | None) -> SingleQuestion:
    """Return the question that compares a pair. The prompt shows the responses as A and B."""
    subject = (
        "Which answer to the task is better? Their order means nothing." if built_in else "Which one is better, by what is asked above?"
    )
    if rubric is not None:
        subject = f"{subject}\n{rubric.in_words()}"
    choices: dict[Option, str] = {"A": "A is better", "B": "B is better", "tie": "both are equally good"}
    return SingleQuestion(Choice(subject, choices), (1.0, 0.0, 0.5), ("first", "second", "tie"))
