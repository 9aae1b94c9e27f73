"""Rubrics: what a response is judged by, and how the answers to that become one score. Pure values.

This module knows no model and no request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator, model_validator

from qreward.decisions import AnswerTable, Choice, DecisionAnswer, Option, Question, Score, YesNo
from qreward.errors import ConfigError, Fault
from qreward.judge.types import CriterionResult
from qreward.settings.base import Number, Policy, repeated, with_faults
from qreward.settings.files import read_settings
from qreward.spelling import did_you_mean

KINDS: Mapping[str, type[Question]] = {"yes_no": YesNo, "score": Score, "choice": Choice}
"""The kinds of criteria, by their names in settings."""
MOST_CHOICES = 20
"""The most choices of a criterion: a chat model reports the log probabilities of 20 tokens, and a rubric should work with every model."""

_Weighed = BeforeValidator(Number(least=-1e6, most=1e6))  # so that no sum of weights overflows
_Worth = Annotated[float, BeforeValidator(Number(least=0, most=1))]


class Criterion(Policy):
    """One criterion of a :class:`Rubric`.

    Args:
        name: name of the criterion in verdicts and errors.
        instructions: a statement about the response that is true or not, or what to rate or to choose by.
        weight: weight in the score of the rubric. A negative weight subtracts: use it for a statement that should not be true. With a
            ``gate`` it may be 0.
        kind: ``YesNo``, ``Score`` or ``Choice``, or its name ``yes_no``, ``score`` or ``choice``. By default ``Score`` if there are levels,
            ``Choice`` if there are choices, else ``YesNo``.
        levels: of a ``Score``, the labels of the levels from the worst to the best, or a mapping from labels to descriptions. 2 to 10.
        choices: of a ``Choice``, each choice with what it is worth, from 0 to 1. 2 to ``MOST_CHOICES``.
        gate: the score of the whole rubric is 0 if the value of this criterion is below the gate. None for no gate.

    Raises:
        ConfigError: an argument is missing or invalid.

    Example:
        >>> tone = Criterion("tone", "What is the tone?", choices={"calm": 1, "dry": 0.5, "rude": 0})
        >>> tone.value({"calm": 0.5, "dry": 0.5, "rude": 0.0})
        0.75
    """

    name: str = Field(min_length=1)
    instructions: str = Field(min_length=1)
    weight: Annotated[float, _Weighed] = 1.0
    kind: type[Question] = YesNo
    levels: tuple[str, ...] | dict[str, str] | None = None
    choices: dict[str, _Worth] | None = None
    gate: Annotated[float, BeforeValidator(Number(above=0, most=1))] | None = None

    def __init__(self, name: str | None = None, instructions: str | None = None, /, **data: Any) -> None:
        data |= {key: value for key, value in (("name", name), ("instructions", instructions)) if value is not None}
        super().__init__(**data)

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @model_validator(mode="before")
    @classmethod
    def _implied_kind(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("kind") is not None:
            return data
        implied = Choice if data.get("choices") is not None else Score if data.get("levels") is not None else YesNo
        return {**data, "kind": implied}

    @field_validator("kind", mode="before")
    @classmethod
    def _by_name(cls, value: object) -> object:
        if isinstance(value, str) and value in KINDS:
            return KINDS[value]
        if value not in KINDS.values():
            hint = f"; {did_you_mean(value, KINDS)}" if isinstance(value, str) else ""
            raise ValueError(f"must be YesNo, Score or Choice, or one of the names {', '.join(map(repr, KINDS))}{hint}")
        return value

    @field_validator("levels", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        if isinstance(value, str) or not (value is None or isinstance(value, Sequence | Mapping)):
            raise ValueError("must be a list of labels such as ['bad', 'good'], or a mapping from labels to descriptions")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Criterion:
        for name, kind in (("levels", Score), ("choices", Choice)):
            if (getattr(self, name) is not None) != (self.kind is kind):
                does = "needs" if self.kind is kind else "has no"
                raise ValueError(f"a {self.kind.__name__} {does} {name}")
        if self.choices is not None and len(self.choices) > MOST_CHOICES:
            raise ValueError(f"choices: must be at most {MOST_CHOICES}, not {len(self.choices)}")
        if self.weight == 0 and self.gate is None:
            raise ValueError("weight: 0 has no effect without a gate; leave the criterion out, or set its gate")
        if self.weight < 0 and self.gate is not None:
            raise ValueError(
                "gate: cannot be set with a negative weight; state the criterion so that yes is good, with a weight of at least 0"
            )
        try:
            assert self.question
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    @cached_property
    def question(self) -> Question:
        """The criterion as a question."""
        if self.levels is not None:
            return Score(self.instructions, self.levels)
        return YesNo(self.instructions) if self.choices is None else Choice(self.instructions, tuple(self.choices))

    @cached_property
    def worths(self) -> tuple[float, ...]:
        """What each option of the question is worth, from 0 to 1: yes 1 and no 0; levels rise in equal steps; choices as given."""
        if self.choices is not None:
            return tuple(self.choices.values())
        steps = len(self.question.options) - 1
        return (1.0, 0.0) if self.levels is None else tuple(level / steps for level in range(steps + 1))

    def value(self, distribution: Mapping[Option, float]) -> float:
        """The expected worth, from 0 to 1.

        Args:
            distribution: the probability of each option of the question, in their order.
        """
        return _expected(tuple(distribution.values()), self.worths)

    def result(self, answer: DecisionAnswer) -> CriterionResult:
        """The outcome of the criterion by a decision. Raises the error of an answer that has one."""
        distribution = answer.probabilities
        return CriterionResult(self.value(distribution), self.weight, answer.confidence, distribution)


class CriterionGroup:
    """The criteria that are asked in one request.

    Attributes:
        criteria: the criteria, in the order of the questions.
    """

    def __init__(self, criteria: Sequence[Criterion]) -> None:
        self.criteria = criteria
        ends = list(accumulate(len(each.worths) for each in criteria))
        self._spans = [
            (end - len(each.worths), end, None if each.kind is YesNo else each.worths) for each, end in zip(criteria, ends, strict=True)
        ]

    def values(self, probabilities: Sequence[float]) -> list[float]:
        """The value of each criterion, from the probabilities of all options of all of them."""
        return [
            probabilities[begin] if worths is None else _expected(probabilities[begin:end], worths) for begin, end, worths in self._spans
        ]


class DecidedCriteria(Mapping[str, CriterionResult]):
    """The outcomes of criteria by the answers of one request, by name. They are made when one is read.

    Args:
        group: the criteria.
        table: their answers, none of which has an error.
    """

    def __init__(self, group: CriterionGroup, table: AnswerTable) -> None:
        self._group, self.table = group, table

    def scores(self) -> list[float]:
        """The value of each criterion."""
        return self._group.values(self.table.probabilities)

    @cached_property
    def _results(self) -> dict[str, CriterionResult]:
        pairs = zip(self._group.criteria, self.table.answers(), strict=True)
        return {each.name: each.result(answer) for each, answer in pairs}

    def __getitem__(self, name: str) -> CriterionResult:
        return self._results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._group.criteria)

    def __repr__(self) -> str:
        return repr(self._results)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._results,)  # without the criteria, which every verdict of a batch would carry along


def _expected(probabilities: Sequence[float], worths: Sequence[float]) -> float:
    expected: float = sum(map(mul, probabilities, worths))
    return expected if 0.0 <= expected <= 1.0 else min(1.0, max(0.0, expected))  # rounding may exceed the ends


@dataclass(frozen=True)
class Rubric:
    """The criteria by which a response is judged.

    The score is the sum of weight times value over all criteria, divided by the sum of the positive weights, and clipped to 0..1. The value
    of a criterion is its probability of yes, its expected level from 0 to 1, or the expected worth of its choices. The formula is that of
    HealthBench (https://arxiv.org/abs/2505.08775), where values are 0 or 1. If the value of a criterion is below its ``gate``, the score
    is 0.

    Args:
        criteria: at least one with a positive weight. Names must differ.

    Raises:
        ConfigError: an argument is invalid.

    Example:
        >>> rubric = Rubric([Criterion("right", "It is right.", weight=3), Criterion("rude", "It is rude.", weight=-1)])
        >>> rubric.score([1.0, 0.5]), rubric.score([0.0, 1.0])
        (0.8333333333333334, 0.0)
    """

    criteria: tuple[Criterion, ...]

    def __init__(self, criteria: Sequence[Criterion]) -> None:
        if not isinstance(criteria, Sequence) or not criteria or not all(isinstance(each, Criterion) for each in criteria):
            raise ConfigError("Rubric: criteria must be a list with at least one Criterion; for settings use Rubric.load")
        if name := repeated(each.name for each in criteria):
            raise ConfigError(f"Rubric: the name {name!r} is there twice; criteria need names that differ")
        if not any(each.weight > 0 for each in criteria):
            raise ConfigError("Rubric: no criterion has a positive weight, so that every score would be 0; give one of them a weight")
        object.__setattr__(self, "criteria", tuple(criteria))

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        """The questions of all criteria, in their order."""
        return tuple(each.question for each in self.criteria)

    def settings(self) -> list[dict[str, Any]]:
        """The criteria as settings: plain values, of which :meth:`load` makes an equal rubric."""
        names = {kind: name for name, kind in KINDS.items()}
        return [{**each.model_dump(exclude_defaults=True), "kind": names[each.kind]} for each in self.criteria]

    @cached_property
    def _gates(self) -> tuple[tuple[int, float], ...]:
        return tuple((place, each.gate) for place, each in enumerate(self.criteria) if each.gate is not None)

    @cached_property
    def _weights(self) -> tuple[tuple[float, ...], float]:
        """The weights, and the sum of the positive ones."""
        weights = tuple(each.weight for each in self.criteria)
        return weights, sum(weight for weight in weights if weight > 0)

    @cached_property
    def _absolute(self) -> tuple[tuple[float, ...], float]:
        """The absolute weights, and their sum."""
        weights = tuple(abs(each.weight) for each in self.criteria)
        return weights, sum(weights)

    def in_words(self) -> str:
        """Return the text of a question that asks for one answer by all criteria. It names their weights."""
        return "\n".join(
            ["Judge by these criteria, each with its weight:", *(f"- {each.instructions} ({each.weight:g})" for each in self.criteria)]
        )

    def score(self, values: Sequence[float]) -> float:
        """Return the score, from 0 to 1. ``values`` are those of all criteria, in their order."""
        for place, gate in self._gates:
            if values[place] < gate:
                return 0.0
        weights, best = self._weights
        total: float = sum(map(mul, weights, values))
        return min(1.0, max(0.0, total / best))

    def confidence(self, values: Sequence[float], confidences: Sequence[float]) -> float:
        """Return the confidence in the score. The arguments are those of all criteria, in their order.

        It is the mean of the confidences, weighted by the absolute weights, and at most the confidence of each criterion with a gate. If a
        gate makes the score 0, it is the confidence of that criterion, of several the highest.
        """
        if shut := [confidences[place] for place, gate in self._gates if values[place] < gate]:
            return max(shut)
        weights, most = self._absolute
        mean: float = sum(map(mul, weights, confidences)) / most
        return min([mean, *(confidences[place] for place, _ in self._gates)])

    @classmethod
    def load(cls, source: Rubric | Sequence[Any] | Mapping[str, Any] | str | Path) -> Rubric:
        """Make a rubric from settings.

        Args:
            source: a list of mappings with the arguments of :class:`Criterion`; a mapping from names to such mappings, or to instructions;
                or the path of a YAML, JSON or TOML file with one of these under ``rubric``. A rubric is returned unchanged.

        Raises:
            ConfigError: the settings are invalid or cannot be read. The message names the file and the setting.

        Example:
            >>> rubric = Rubric.load({"right": "It is right.", "clear": {"instructions": "It is clear.", "weight": 2}})
            >>> [each.name for each in rubric.criteria]
            ['right', 'clear']
        """
        if isinstance(source, str | Path):
            return _of_file(source)
        found = rubric_or_faults(source)
        if isinstance(found, Rubric):
            return found
        raise with_faults([((), text) if not path else (path, f"{_dotted(path)}: {text}") for path, text in found], lambda _: "Rubric: ")


def rubric_or_faults(source: object) -> Rubric | list[Fault]:
    """The rubric in settings other than a file, or what is wrong with them: each fault with its path and without it in the text."""
    if isinstance(source, Rubric):
        return source
    entries: list[tuple[tuple[str | int, ...], object]]
    if isinstance(source, Mapping):
        entries = [((str(name),), _named(str(name), settings)) for name, settings in source.items()]
        if strays := [path for path, settings in entries if isinstance(settings, Mapping) and settings.get("name") != path[0]]:
            return [((*path, "name"), "differs from the key, which is the name of the criterion; leave it out") for path in strays]
    elif isinstance(source, Sequence) and not isinstance(source, str | bytes):
        entries = [((place,), settings) for place, settings in enumerate(source)]
    else:
        return [((), f"must be a list of criteria, a mapping from their names, or the path of a file, not {type(source).__name__}")]
    criteria: list[Criterion] = []
    faults: list[Fault] = []
    for path, settings in entries:
        criterion = _criterion(settings)
        if isinstance(criterion, Criterion):
            criteria.append(criterion)
        else:
            faults += [((*path, *inner), text) for inner, text in criterion]
    if faults:
        return faults
    try:
        return Rubric(criteria)
    except ConfigError as error:
        return [((), str(error).removeprefix("Rubric: "))]


def _named(name: str, settings: object) -> object:
    if isinstance(settings, str):
        return {"name": name, "instructions": settings}
    return {**settings, "name": name} if isinstance(settings, Mapping) and settings.get("name", name) == name else settings


def _criterion(settings: object) -> Criterion | list[Fault]:
    if isinstance(settings, Criterion):
        return settings
    if not isinstance(settings, Mapping):
        return [((), f"must be a mapping with name and instructions, not {type(settings).__name__}")]
    try:
        return Criterion.from_content(settings)
    except ConfigError as error:
        return [(path, text.removeprefix(f"{_dotted(path)}: ")) for path, text in error.faults]


def _dotted(path: Sequence[str | int]) -> str:
    return ".".join(map(str, path))


def _of_file(path: str | Path) -> Rubric:
    content, place = read_settings(path, empty="it must hold a rubric", known="with the key rubric")
    if content.keys() != {"rubric"}:
        raise ConfigError(
            f"{place}: must have one key, rubric, with a list of criteria, not {', '.join(map(repr, sorted(content))) or 'none'}"
        )
    found = rubric_or_faults(content["rubric"])
    if isinstance(found, Rubric):
        return found
    raise place.named(with_faults([(("rubric", *path), f"{_dotted(('rubric', *path))}: {text}") for path, text in found], lambda _: ""))
