"""Typed questions about one input, and their answers. An answer has a probability for each option of its question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from string import ascii_uppercase
from typing import overload

from qreward.errors import ConfigError, QRewardError, did_you_mean
from qreward.records import Usage

MIN_LABEL_MASS = 0.5
"""Default of ``min_label_mass``: minimum total probability (0 to 1) of all options of a question. Below one half, an answer other than an
option is more probable than an option."""
Option = str | bool
"""An option of a question: ``True`` or ``False`` of a :class:`YesNo`, the label of a level of a :class:`Score`, or a choice of a
:class:`Choice`."""


def _check_text(kind: str, what: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{kind}: {what} must be a text, not {value!r}")


def _set_options(question: Score | Choice, what: str, given: object) -> tuple[Option, ...]:
    kind = type(question).__name__
    _check_text(kind, "instructions", question.instructions)
    if isinstance(given, str) or not isinstance(given, Sequence | Mapping):
        raise ConfigError(f"{kind}: {what} must be a list such as ['bad', 'good'], or a mapping to descriptions, not {given!r}")
    options = tuple(given)
    if len(options) < 2:
        raise ConfigError(f"{kind}: {what} must be at least two, not {len(options)}")
    for option in options:
        if not isinstance(option, bool):
            _check_text(kind, f"each of {what}", option)
    if len({(type(option), option) for option in options}) < len(options):
        raise ConfigError(f"{kind}: {what} must differ from each other")
    descriptions = tuple(given.values()) if isinstance(given, Mapping) else ("",) * len(options)
    if not all(isinstance(description, str) for description in descriptions):
        raise ConfigError(f"{kind}: the descriptions of {what} must be texts")
    object.__setattr__(question, "options", options)
    object.__setattr__(question, "descriptions", descriptions)
    return options


@dataclass(frozen=True)
class YesNo:
    """Asks whether a statement about the input is true, or asks a question that has the answer yes or no.

    Args:
        instructions: the statement or question.
        name: name of the answer in the :class:`Decision`; None for no name.
        yes, no: descriptions of the answers yes and no, for a statement that is not clear without them.

    Example:
        >>> YesNo("The response answers the question.").options
        (True, False)
    """

    instructions: str
    name: str | None = None
    yes: str = ""
    no: str = ""

    def __post_init__(self) -> None:
        _check_text("YesNo", "instructions", self.instructions)

    @property
    def options(self) -> tuple[Option, ...]:
        """The options of every ``YesNo``: ``(True, False)``."""
        return True, False

    @property
    def descriptions(self) -> tuple[str, ...]:
        """The description of each option; ``""`` for an option without one."""
        return self.yes, self.no


@dataclass(frozen=True)
class Score:
    """Asks for a rating of the input on ordered levels.

    Args:
        instructions: the question that the rating answers.
        levels: the labels of 2 to 10 levels, the lowest first; or a mapping from labels to descriptions. Servers number the levels from 0,
            so a label that is a number must be the number of its level.
        name: name of the answer in the :class:`Decision`; None for no name.

    Example:
        >>> Score("How clear is the response?", levels=["unclear", "readable", "clear"]).options
        ('unclear', 'readable', 'clear')
    """

    instructions: str
    levels: Sequence[str] | Mapping[str, str]
    name: str | None = None
    options: tuple[Option, ...] = field(init=False, repr=False, compare=False)
    descriptions: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        options = _set_options(self, "levels", self.levels)
        if len(options) > 10 or any(isinstance(option, bool) for option in options):
            raise ConfigError(f"Score: levels must be 2 to 10 texts, not {len(options)} of them")
        for place, option in enumerate(options):
            if str(option).strip().isdecimal() and str(option).strip() != str(place):
                raise ConfigError(
                    f"Score: levels[{place}] is {option!r}; servers number levels from 0, so the answer {option} could mean another level. "
                    "Use words, the numbers from 0, or a Choice"
                )


@dataclass(frozen=True)
class Choice:
    """Asks for a choice between options that have no order.

    Args:
        instructions: the question that the choice answers.
        choices: a list of 2 to 255 options, which are texts or bools; or a mapping from options to descriptions. OpenAI accepts at most 255
            options, vLLM and SGLang accept 26, and chat models accept 20. Servers call the options A, B, and so on. So of three options,
            only the first may be named A, only the second B, and only the third C.
        name: name of the answer in the :class:`Decision`; None for no name.

    Example:
        >>> Choice("What is the tone?", choices={"calm": "factual and polite", "rude": ""}).options
        ('calm', 'rude')
    """

    instructions: str
    choices: Sequence[Option] | Mapping[Option, str]
    name: str | None = None
    options: tuple[Option, ...] = field(init=False, repr=False, compare=False)
    descriptions: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        options = _set_options(self, "choices", self.choices)
        if len(options) > 255:
            raise ConfigError(f"Choice: choices must be 2 to 255, not {len(options)}")
        letters = ascii_uppercase[: len(options)]
        for place, option in enumerate(options):
            letter = "" if isinstance(option, bool) else option.strip().upper()
            if len(letter) == 1 and letter in letters and letter != letters[place : place + 1]:
                raise ConfigError(
                    f"Choice: choices[{place}] is {option!r}; servers call the options A, B, ..., so the answer {option} could mean "
                    "another one. Use words, or put the letters in order from A"
                )


Question = YesNo | Score | Choice


@dataclass(frozen=True)
class DecisionAnswer:
    """Holds the answer to one question, or the error of a question that was refused or failed.

    If there is an error, reading any attribute except ``question``, ``error`` and ``ok`` raises this error.

    Attributes:
        question: the question.
        error: the error of a question that was refused or failed; None for an answer.

    Example:
        >>> answer = DecisionAnswer(YesNo("It is right."), (0.9, 0.1), label_mass=0.98)
        >>> answer.probability, answer.choice, round(answer.confidence, 3)
        (0.9, True, 0.882)
    """

    question: Question
    _probabilities: tuple[float, ...] = field(default=(), repr=False)
    _label_mass: float | None = field(default=None, repr=False)
    _confidence: float | None = field(default=None, repr=False)
    error: QRewardError | None = None

    def __init__(
        self,
        question: Question,
        probabilities: Sequence[float] = (),
        *,
        label_mass: float | None = None,
        confidence: float | None = None,
        error: QRewardError | None = None,
    ) -> None:
        """``probabilities`` has a probability for each option of the question, in the order of the options."""
        # The class is frozen, so attributes cannot be assigned. ``object.__setattr__`` is slower, and this code runs for each question.
        members = self.__dict__
        members["question"], members["error"] = question, error
        members["_probabilities"] = tuple(probabilities)
        members["_label_mass"], members["_confidence"] = label_mass, confidence

    @property
    def ok(self) -> bool:
        """True if the question was answered."""
        return self.error is None

    @property
    def probabilities(self) -> dict[Option, float]:
        """The probability of each option, in the order of the question's options."""
        return dict(zip(self.question.options, self._numbers(), strict=True))

    @property
    def probability(self) -> float:
        """The probability of yes. Raises ``AttributeError`` if the question is not a :class:`YesNo`."""
        if not isinstance(self.question, YesNo):
            raise AttributeError(f"only the answer to a YesNo has a probability; this one is to a {type(self.question).__name__}")
        return self._numbers()[0]

    @property
    def score(self) -> float:
        """The expected number of the level. The levels are numbered 0, 1, ... from the lowest level up.

        Raises ``AttributeError`` if the question is not a :class:`Score`.
        """
        if not isinstance(self.question, Score):
            raise AttributeError(f"only the answer to a Score has a score; this one is to a {type(self.question).__name__}")
        return sum(level * number for level, number in enumerate(self._numbers()))

    @property
    def choice(self) -> Option:
        """The most probable option."""
        numbers = self._numbers()
        return self.question.options[numbers.index(max(numbers))]

    @property
    def confidence(self) -> float:
        """The confidence that the server reports.

        If the server reports none, the confidence is the probability of the most probable option, multiplied by ``label_mass`` if
        ``label_mass`` is known.
        """
        return confidence_of((self._numbers(), self._label_mass, self._confidence))

    @property
    def label_mass(self) -> float | None:
        """The probability that the model answers with one of the options, and with no other text. None if the server does not report it.

        A low value means that the model would probably have written something else.
        """
        self._numbers()
        return self._label_mass

    def _numbers(self) -> tuple[float, ...]:
        if self.error is not None:
            raise self.error
        return self._probabilities


FoundAnswer = tuple[tuple[float, ...], float | None, float | None]
"""The probabilities of the answer to one question, its label mass, and its confidence; None for what the server does not report."""


def confidence_of(found: FoundAnswer) -> float:
    probabilities, label_mass, confidence = found
    if confidence is not None:
        return confidence
    return max(probabilities) * (1.0 if label_mass is None else label_mass)


def answers_of(questions: Sequence[Question], found: Sequence[FoundAnswer | QRewardError]) -> tuple[DecisionAnswer, ...]:
    """Return the answers for a caller. ``found`` has one answer or error for each question."""
    return tuple(
        [
            DecisionAnswer(question, error=each)
            if isinstance(each, QRewardError)
            else DecisionAnswer(question, each[0], label_mass=each[1], confidence=each[2])
            for question, each in zip(questions, found, strict=True)
        ]
    )


def too_improbable(label_mass: float, least: float) -> str:
    told = f"all options together have a probability of {label_mass:.4g}"
    return f"{told}, which is less than min_label_mass={least:g}: the model would answer something else"


@dataclass(frozen=True)
class Decision(Sequence[DecisionAnswer]):
    """Holds the answers to all questions about one input, in the order of the questions.

    Attributes:
        answers: the answers.
        model: name of the model that answered.
        usage: tokens of all requests; None if no server reported usage.

    Example:
        >>> decision = Decision((DecisionAnswer(YesNo("It is right.", name="right"), (0.9, 0.1)),), "judge-7b")
        >>> decision["right"].probability, decision[0].probability, len(decision)
        (0.9, 0.9, 1)
    """

    answers: tuple[DecisionAnswer, ...]
    model: str = ""
    usage: Usage | None = None

    @cached_property
    def _by_name(self) -> dict[str, DecisionAnswer]:
        return {answer.question.name: answer for answer in self.answers if answer.question.name is not None}

    @overload
    def __getitem__(self, place: int | str) -> DecisionAnswer: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[DecisionAnswer, ...]: ...
    def __getitem__(self, place: int | str | slice) -> DecisionAnswer | tuple[DecisionAnswer, ...]:
        """Return the answer at a position, or the answer to the question with a name."""
        if not isinstance(place, str):
            return self.answers[place]
        if place not in self._by_name:
            raise KeyError(f"no question has the name {place!r}; {did_you_mean(place, self._by_name)}")
        return self._by_name[place]

    def __len__(self) -> int:
        return len(self.answers)

    def __iter__(self) -> Iterator[DecisionAnswer]:
        return iter(self.answers)

    @property
    def errors(self) -> dict[int, QRewardError]:
        """A dict from the index of a question that was refused or failed to its error."""
        return {place: answer.error for place, answer in enumerate(self.answers) if answer.error is not None}

    def raise_for_errors(self) -> None:
        """Raise the error of the first question that was refused or failed. Does nothing if all questions were answered."""
        for error in self.errors.values():
            raise error


def check_questions(questions: object) -> tuple[Question, ...]:
    if isinstance(questions, YesNo | Score | Choice):
        raise ConfigError(f"questions must be a list, such as [{type(questions).__name__}(...)]")
    if isinstance(questions, str | Mapping) or not isinstance(questions, Sequence) or not questions:
        raise ConfigError(f"questions must be a list with at least one YesNo, Score or Choice, not {questions!r}")
    names: set[str] = set()
    for place, question in enumerate(questions):
        if not isinstance(question, Question):
            raise ConfigError(f"questions[{place}] must be a YesNo, Score or Choice, not a {type(question).__name__}")
        if question.name is not None:
            if question.name in names:
                raise ConfigError(f"questions[{place}] has the name {question.name!r}, which another question has")
            names.add(question.name)
    return tuple(questions)
