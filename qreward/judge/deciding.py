"""Ask a model for decisions: the answer to a question is a probability for every option, and the score is the expected value.

An answer without probabilities for a question is an error. The *label mass* of an answer is the total probability of all options. This
module does not parse text that a model wrote.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import msgspec

from qreward.codecs.base import WireRequest
from qreward.codecs.decisions.base import DecisionInput, DecisionReply, valid_input
from qreward.codecs.decisions.operation import Decide
from qreward.decisions import AnswerTable, Choice, FoundAnswer, Option, Question, Score, YesNo, too_improbable
from qreward.errors import BadRequest, ConfigError, QRewardError
from qreward.judge.asking import JudgeModel, encoded
from qreward.judge.codec import DecidedReply, Reply, fingerprint_of
from qreward.judge.config import JudgeConfig
from qreward.judge.parsing import ScoreVerdict, Unreadable, YesNoVerdict
from qreward.judge.prompts import Messages
from qreward.judge.rubric import Criterion, CriterionGroup, DecidedCriteria, Rubric
from qreward.judge.types import Vote
from qreward.options import preparer

_log = logging.getLogger("qreward")

DECISION = "decision"
"""The ``format`` of requests for decisions."""
WRITING_ONLY = frozenset({
    "frequency_penalty", "logprobs", "max_completion_tokens", "max_tokens", "min_p", "min_tokens", "n", "presence_penalty",
    "reasoning_effort", "repetition_penalty", "response_format", "seed", "stop", "temperature", "top_k", "top_logprobs", "top_p",
})  # fmt: skip
"""Parameters of written answers. These parameters have no effect on a decision."""


@dataclass(frozen=True)
class SingleQuestion:
    """Holds the only question of a judge without a rubric.

    Attributes:
        question: the question.
        rewards: the reward of each option.
        names: name of each option in the distribution of a vote. For a pair, ``first`` and ``second`` are the places of the responses in
            the input. If the order is not swapped, the prompt shows ``first`` as A.
    """

    question: Question
    rewards: tuple[float, ...]
    names: tuple[Option, ...]


class AutoMethod:
    """Records whether a model answers with probabilities, for the method ``auto``. The first answer of the model counts for all questions.

    Attributes:
        works: True after an answer with probabilities.
        given_up: True after an answer without probabilities. The model is then asked to write.
    """

    def __init__(self, model: str) -> None:
        self._model, self.works, self.given_up = model, False, False

    def settle(self, *, works: bool, why: str) -> None:
        """Record whether the model answers with probabilities. Only the first call has an effect, and is logged."""
        if not self.works and not self.given_up:
            self.works, self.given_up = works, not works
            _log.info("the judge model %r is asked %s: %s", self._model, "for decisions" if works else "to write its verdicts", why)


class DecidingModel(JudgeModel):
    """Makes one request for decisions to one model, and reads the answer. The request has one question, or criteria of a rubric.

    Args:
        subject: the question, or the criteria.
        decide: the codec of the client's decisions.
        auto: for the method ``auto``, records whether the model answers with probabilities. None for the method ``decide``.

    Raises:
        ConfigError: the parameters cannot be sent.
    """

    reasks = 0  # the same questions would have the same answers
    question = ""

    def __init__(
        self, model: str, subject: SingleQuestion | Sequence[Criterion], config: JudgeConfig, decide: Decide, auto: AutoMethod | None = None
    ) -> None:
        super().__init__(model, config)
        self._single = subject if isinstance(subject, SingleQuestion) else None
        self._criteria = () if isinstance(subject, SingleQuestion) else tuple(subject)
        self._group, self.reads = CriterionGroup(self._criteria), "".join(each.reads for each in self._criteria)
        self._questions = (subject.question,) if isinstance(subject, SingleQuestion) else tuple(each.question for each in subject)
        self._decide, self._auto, self._least = decide, auto, config.min_label_mass
        self._names = [""] if len(self._questions) == 1 else [f"criterion {each.name!r}: " for each in self._criteria]
        given = {} if config.method == "auto" else {name: value for name, value in config.params.items() if name != "hedge"}
        self._headers, body = config.params.get("extra_headers"), given.pop("extra_body", None)
        given.pop("extra_headers", None)
        described = [[type(each).__name__, each.instructions, each.options, each.descriptions] for each in self._questions]
        self.identity = encoded([DECISION, self.cached_as, given, body, described])
        try:
            self._sample = preparer(decide, model, given, self._headers, body)
        except BadRequest as error:
            raise ConfigError(str(error)) from None

    @property
    def format(self) -> str:  # type: ignore[override]
        """``DECISION``; or ``""`` after an answer without probabilities, with the method ``auto``."""
        return "" if self._auto is not None and self._auto.given_up else DECISION

    def input_of(self, messages: Messages) -> DecisionInput:
        only = messages[0]["content"] if len(messages) == 1 and messages[0].get("role") == "user" else messages
        if type(only) is str and only.strip():
            return DecisionInput(only, self._questions, 0.0)  # ``vote`` compares the label mass, also that of a cached answer
        return valid_input(DecisionInput(messages, self._questions, 0.0))

    def criterion_of(self, inputs: DecisionInput) -> str:
        if len(inputs.questions) > 1:
            return ""
        return next((each.name for each in self._criteria if each.question is inputs.questions[0]), "")

    def prepare(self, sample: int, room: int = 1, cut_at: int = 0) -> Callable[[Any], WireRequest]:  # noqa: ARG002 - all samples are alike
        return self._sample

    def fall_back(self, form: str, error: QRewardError, reply: Reply | None = None) -> bool:  # noqa: ARG002 - see JudgeModel
        """Return True if the model is asked to write from now on: the method is ``auto``, and the error shows that it gives no
        probabilities."""
        if self._auto is None or self._auto.works or form != DECISION or not _lacks_probabilities(error):
            return False
        self._auto.settle(works=False, why="its servers return no probabilities")  # the text of the error may quote the prompt
        return True

    def parse(self, answer: DecisionReply) -> DecidedReply:
        return DecidedReply(answer.table, fingerprint_of(answer.model, None, None))

    def divided(self, inputs: DecisionInput, error: QRewardError) -> Sequence[DecisionInput]:
        """Return the two halves of a request with more questions than the endpoint takes, a limit that may become known only after the
        request was sent; an empty sequence for any other error."""
        count = len(inputs.questions)
        if count < 2 or not isinstance(error, BadRequest) or error.status_code is not None:
            return ()
        return [inputs._replace(questions=part) for part in (inputs.questions[: count // 2], inputs.questions[count // 2 :])]

    def joined(self, replies: Sequence[Reply]) -> DecidedReply:
        parts = [reply for reply in replies if isinstance(reply, DecidedReply)]
        return DecidedReply(AnswerTable.joined([part.table for part in parts]), parts[-1].fingerprint)

    def vote(self, reply: Reply, *, swapped: bool) -> Vote:
        """Return the vote with the expected score. Raises ``Unreadable`` for a question without an answer or with too low a label mass."""
        table = reply.table if isinstance(reply, DecidedReply) else self._from_text(reply.text)
        for place, mass in enumerate(table.label_masses):
            why = str(table.errors[place]) if table.errors and place in table.errors else too_improbable(mass, self._least)
            if why:
                raise Unreadable(f"{self._names[place]}{why}")
        if self._auto is not None and isinstance(reply, DecidedReply):  # a cached answer does not show what the servers do now
            self._auto.settle(works=True, why="it answers with probabilities")
        if self._single is not None:
            return _single_vote(self._single, table, self.model, swapped=swapped)
        return Vote(
            0.0, model=self.model, criteria=DecidedCriteria(self._group, table)
        )  # the score is computed from all requests of the sample

    def _from_text(self, text: str) -> AnswerTable:
        """Return the answers in a text from the cache. Raises ``ValueError`` or ``TypeError`` if the text answers other questions."""
        found = []
        for question, (confidence, mass, *numbers) in zip(self._questions, msgspec.json.decode(text), strict=True):
            if len(numbers) != len(question.options) or not all(0.0 <= number <= 1.0 and isfinite(number) for number in numbers):
                raise ValueError("the answer is to another question")
            found.append(FoundAnswer(tuple(numbers), mass, confidence))
        return AnswerTable.of(self._questions, found)

    def repeated(self, inputs: DecisionInput, reply: Reply, reason: str) -> DecisionInput:  # noqa: ARG002 - never called, as reasks is 0
        return inputs


def _single_vote(single: SingleQuestion, table: AnswerTable, model: str, *, swapped: bool) -> Vote:
    numbers = table.probabilities
    if swapped:
        numbers = (numbers[1], numbers[0], *numbers[2:])
    expected = sum(number * reward for number, reward in zip(numbers, single.rewards, strict=True))
    score = min(max(expected, min(single.rewards)), max(single.rewards))  # rounding may exceed the ends
    distribution = dict(zip(single.names, numbers, strict=True))
    return Vote(score, model=model, swapped=swapped, confidence=table.confidences[0], distribution=distribution)


def _lacks_probabilities(error: QRewardError) -> bool:
    """Return whether a server rejected a request for probabilities, or its answer had no probabilities."""
    if isinstance(error, BadRequest):
        return error.status_code is not None and "logprob" in str(error).lower()
    return str(error).endswith("the server returned no log probabilities") or "first token is none of the labels (" in str(error)


LEVELS = 10
"""Maximum number of levels of a ``Score``. Servers do not accept more levels, and chat models answer with one digit."""
MOST_SCORES = 20
"""Maximum number of scores of a scale. Every model accepts a ``Choice`` with this number of options."""


def question_of(verdict: type[Any], scale: tuple[float, float], bounds: tuple[float, float] | None, *, built_in: bool) -> SingleQuestion:
    """Return the question that asks for a verdict.

    Args:
        verdict: ``ScoreVerdict`` or ``YesNoVerdict``.
        scale: lowest and highest score.
        bounds: lowest and highest reward; None leaves scores unchanged.
        built_in: True if the judge has the built-in prompt. A prompt of the user asks the question itself.

    Raises:
        ConfigError: a decision cannot give a verdict of this form or on this scale.
    """
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
    return SingleQuestion(_between(subject, names, numbered=built_in or first == 0), rewards, names)


def _between(subject: str, numbers: tuple[str, ...], *, numbered: bool) -> Question:
    """Return the question that asks for one of several numbers.

    Servers number the levels of a ``Score`` from 0, and the model answers with the number of a level. With the names 1 to 5, the answer 4
    would therefore count as the level that is named 5. So the levels are named 0, 1, ..., or the question is a ``Choice``, whose options
    have letters.

    Args:
        numbered: True if the prompt names no other numbers, so that the levels may be named from 0.
    """
    if not numbered or len(numbers) > LEVELS:
        return Choice(f"{subject} {numbers[0]} is the lowest score, {numbers[-1]} the highest.", numbers)
    places = tuple(map(str, range(len(numbers))))
    return Score(f"{subject} {places[0]} is the lowest level, {places[-1]} the highest.", places)


def preference_question(*, built_in: bool, rubric: Rubric | None) -> SingleQuestion:
    """Return the question that compares a pair. The prompt shows the responses as A and B."""
    subject = (
        "Which answer to the task is better? Their order means nothing." if built_in else "Which one is better, by what is asked above?"
    )
    if rubric is not None:
        subject = f"{subject}\n{rubric.in_words()}"
    choices: dict[Option, str] = {"A": "A is better", "B": "B is better", "tie": "both are equally good"}
    return SingleQuestion(Choice(subject, choices), (1.0, 0.0, 0.5), ("first", "second", "tie"))
