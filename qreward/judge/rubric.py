"""Rubrics: the criteria by which a response is judged, and the score that is computed from the answers to all criteria. This module must
not import models or requests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from math import isnan
from operator import mul
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, field_validator, model_validator

from qreward.decisions import Choice, DecisionAnswer, FoundAnswer, Option, Question, Score, YesNo, answers_of, confidence_of
from qreward.errors import BadRequest, ConfigError
from qreward.judge.types import CriterionResult, CriterionResults
from qreward.settings.base import NOT_BOOL, Policy, Portion, explain, faults_at, repeated, with_faults, wrong
from qreward.settings.files import read_settings

MOST_CHOICES = 20
"""Maximum number of choices. A chat model reports the log probabilities of 20 tokens, and a rubric should work with every model."""

_Weight = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False), NOT_BOOL]  # so that no sum of weights overflows
_Value = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), NOT_BOOL]


class Criterion(Policy):
    """Defines one criterion of a :class:`Rubric`.

    Args:
        name: name of the criterion in verdicts and errors.
        instructions: a statement about the response, which is true or false; or a question, for a criterion with levels or choices.
        weight: weight in the score of the rubric. Use a negative weight, which lowers the score, for a statement that should not be true.
            A criterion with a ``gate`` may have the weight 0.
        levels: the labels of 2 to 10 levels, the worst first, or a mapping from labels to descriptions. The model answers with a level.
        choices: 2 to ``MOST_CHOICES`` options, each with its value from 0 to 1. The model answers with one of them. Without ``levels`` and
            ``choices``, the answer is yes or no.
        gate: a threshold above 0 and at most 1. If the value of this criterion is below the threshold, the score of the whole rubric is 0.
            None for no gate.

    Raises:
        ConfigError: an argument is missing or invalid.

    Example:
        >>> tone = Criterion("tone", "What is the tone?", choices={"calm": 1, "dry": 0.5, "rude": 0})
        >>> tone.value({"calm": 0.5, "dry": 0.5, "rude": 0.0})
        0.75
    """

    elsewhere: ClassVar[Mapping[str, str]] = {"kind": "leave it out, as levels or choices say it"}

    name: str = Field(min_length=1)
    instructions: str = Field(min_length=1)
    weight: _Weight = 1.0
    levels: tuple[str, ...] | dict[str, str] | None = None
    choices: dict[str, _Value] | None = None
    gate: Portion | None = None

    def __init__(self, name: str | None = None, instructions: str | None = None, /, **data: Any) -> None:
        data |= {key: value for key, value in (("name", name), ("instructions", instructions)) if value is not None}
        super().__init__(**data)

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: object) -> object:
        if isinstance(data, Criterion):
            return data
        given = {"instructions": data} if isinstance(data, str) else data
        if not isinstance(given, Mapping):
            raise ValueError(f"must be a mapping with name and instructions, not {type(data).__name__}")
        # tables have None or NaN for what a criterion has not
        given = {name: value for name, value in given.items() if not (value is None or (isinstance(value, float) and isnan(value)))}
        return {"name": given["instructions"], **given} if "instructions" in given else given

    @field_validator("levels", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        if isinstance(value, str) or not (value is None or isinstance(value, Sequence | Mapping)):
            raise ValueError("must be a list of labels such as ['bad', 'good'], or a mapping from labels to descriptions")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Criterion:
        if self.levels is not None and self.choices is not None:
            raise ValueError("has levels and choices; give it one of them")
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
    def option_values(self) -> tuple[float, ...]:
        """The value of each option of the question, from 0 to 1. Yes has 1 and no has 0. The values of levels rise in equal steps."""
        if self.choices is not None:
            return tuple(self.choices.values())
        steps = len(self.question.options) - 1
        return (1.0, 0.0) if self.levels is None else tuple(level / steps for level in range(steps + 1))

    def value(self, distribution: Mapping[Option, float]) -> float:
        """Return the expected value, from 0 to 1.

        Args:
            distribution: the probability of each option of the question, in the order of the options.
        """
        return _expected(tuple(distribution.values()), self.option_values)

    def result(self, answer: DecisionAnswer) -> CriterionResult:
        """Return the outcome of the criterion in a decision. Raises the error of a failed answer."""
        distribution = answer.probabilities
        return CriterionResult(self.value(distribution), self.weight, answer.confidence, distribution, gate=self.gate)


class DecidedCriteria(Mapping[str, CriterionResult]):
    """Maps the name of each criterion to its outcome, made from the answers of one request when the first outcome is read."""

    def __init__(self, criteria: Sequence[Criterion], found: Sequence[FoundAnswer]) -> None:
        self._criteria, self._found = criteria, found

    def scores(self) -> list[float]:
        """Return the value of each criterion."""
        return [_expected(found[0], each.option_values) for each, found in zip(self._criteria, self._found, strict=True)]

    def confidences(self) -> list[float]:
        return list(map(confidence_of, self._found))

    @cached_property
    def _results(self) -> CriterionResults:
        answers = answers_of([each.question for each in self._criteria], self._found)
        return CriterionResults((each.name, each.result(answer)) for each, answer in zip(self._criteria, answers, strict=True))

    def __getitem__(self, name: str) -> CriterionResult:
        return self._results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._criteria)

    def __repr__(self) -> str:
        return repr(self._results)

    def __reduce__(self) -> tuple[Any, ...]:
        return CriterionResults, (dict(self._results),)  # the criteria are left out; otherwise each verdict would hold a copy of them


def _expected(probabilities: Sequence[float], values: Sequence[float]) -> float:
    expected: float = sum(map(mul, probabilities, values))
    return expected if 0.0 <= expected <= 1.0 else min(1.0, max(0.0, expected))  # rounding may exceed the ends


@dataclass(frozen=True)
class Rubric:
    """Holds the criteria by which a response is judged.

    For each criterion, its weight is multiplied by its value. The score is the sum of these products, divided by the sum of the positive
    weights, and clipped to 0..1. The value of a criterion is the probability of yes, the expected level from 0 to 1, or the expected value
    of its choices. HealthBench has the same formula for values of 0 and 1 (https://arxiv.org/abs/2505.08775). If the value of a criterion
    is below its ``gate``, the score is 0.

    Args:
        criteria: the criteria. At least one criterion must have a positive weight, and the names of the criteria must differ.

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
            raise ConfigError("criteria must be a list with at least one Criterion; for settings use Rubric.load")
        if name := repeated(each.name for each in criteria):
            raise ConfigError(f"the name {name!r} is there twice; criteria need names that differ")
        if not any(each.weight > 0 for each in criteria):
            raise ConfigError("no criterion has a positive weight, so every score would be 0; give at least one a positive weight")
        object.__setattr__(self, "criteria", tuple(criteria))

    def settings(self) -> list[dict[str, Any]]:
        """Return the criteria as plain values. :meth:`load` makes an equal rubric from them."""
        return [each.model_dump(exclude_defaults=True) for each in self.criteria]

    @cached_property
    def _sums(self) -> tuple[tuple[tuple[int, float], ...], tuple[float, ...], float, float]:
        """The gates with the places of their criteria, all weights, the sum of the positive ones, and the sum of the absolute ones."""
        gates = tuple((place, each.gate) for place, each in enumerate(self.criteria) if each.gate is not None)
        weights = tuple(each.weight for each in self.criteria)
        return gates, weights, sum(weight for weight in weights if weight > 0), sum(map(abs, weights))

    def in_words(self) -> str:
        """Return a text that lists the criteria with their weights, for a question about all criteria together."""
        weighed = [f"- {each.instructions} ({f'{each.weight:g}' if each.gate is None else 'must be met'})" for each in self.criteria]
        return "\n".join(["Judge by these criteria, each with its weight:", *weighed])

    def score(self, values: Sequence[float]) -> float:
        """Return the score, from 0 to 1. ``values`` has the value of each criterion."""
        gates, weights, best, _ = self._sums
        for place, gate in gates:
            if values[place] < gate:
                return 0.0
        total: float = sum(map(mul, weights, values))
        return min(1.0, max(0.0, total / best))

    def confidence(self, values: Sequence[float], confidences: Sequence[float]) -> float:
        """Return the confidence in the score, from the value and the confidence of each criterion.

        If gates make the score 0, the confidence in the score is the highest confidence of the criteria with these gates. Otherwise the
        confidence is the mean of all confidences, weighted by the absolute weights. It is at most the lowest confidence of a criterion with
        a gate.
        """
        gates, weights, _, most = self._sums
        if shut := [confidences[place] for place, gate in gates if values[place] < gate]:
            return max(shut)
        mean: float = sum(map(mul, map(abs, weights), confidences)) / most
        return min([mean, *(confidences[place] for place, _ in gates)])

    @classmethod
    def load(cls, source: Rubric | Sequence[Any] | Mapping[str, Any] | str | Path) -> Rubric:
        """Make a rubric from settings.

        Args:
            source: a list of mappings with the arguments of :class:`Criterion`, or of their instructions, which are then their names too;
                or a mapping from the name of each criterion to its other arguments or its instructions; or the path of a YAML, JSON or
                TOML file with such a list or mapping under the key ``rubric``. A ``Rubric`` is returned unchanged.

        Raises:
            ConfigError: the settings are invalid or cannot be read. The message names the file and the setting.

        Example:
            >>> rubric = Rubric.load({"right": "It is right.", "clear": {"instructions": "It is clear.", "weight": 2}})
            >>> [each.name for each in rubric.criteria]
            ['right', 'clear']
        """
        place = None
        content: Mapping[str, Any] = {"rubric": source}
        if isinstance(source, str | Path):
            content, place = read_settings(source, empty="it must hold a rubric", known="with the key rubric")
        try:
            return _RubricFile.from_content(content).rubric
        except ConfigError as error:
            raise (with_faults(error.faults, lambda _: "") if place is None else place.named(error)) from None


_BULLET = re.compile(r"\s*(?:[-*\u2022]|\d+[.)])\s+")


def rubric_of_item(value: object) -> Rubric:
    """Return the rubric in a field of an item: a list of criteria, a mapping, JSON with either, or text with a criterion in each line.

    A criterion without a name has its instructions as its name. Raises ``BadRequest`` that lists all faults with their places.
    """
    if isinstance(value, str) and (text := value.strip())[:1] in ("[", "{"):
        try:
            value = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise BadRequest(f"it begins like JSON, but is not JSON: {error}") from None
    elif isinstance(value, str):
        value = [_BULLET.sub("", line, count=1).strip() for line in text.splitlines() if line.strip()]
    if isinstance(value, Sized) and not value:
        raise BadRequest("it is empty")
    if isinstance(value, Mapping) and isinstance(value.get("criteria"), Sequence) and not isinstance(value["criteria"], str):
        if others := sorted(map(str, value.keys() - {"criteria"})):
            raise BadRequest(f"{others[0]!r} beside 'criteria' is not known; a rubric has only criteria")
        value = value["criteria"]
    try:
        return rubric_of(value)
    except ConfigError as error:
        raise BadRequest(str(error).replace("\n", "; ")) from None


def rubric_of(source: object) -> Rubric:
    """Return the rubric in settings that are not a file. Raises ``ConfigError`` with all faults and their paths."""
    if isinstance(source, Rubric):
        return source
    try:
        if isinstance(source, Mapping):
            settings = {str(name): {"instructions": each} if isinstance(each, str) else each for name, each in source.items()}
            named = {name: {"name": name, **each} if isinstance(each, Mapping) else each for name, each in settings.items()}
            criteria = _BY_NAME.validate_python(named)
            if other := [name for name, each in criteria.items() if each.name != name]:
                raise wrong(((other[0], "name"), "differs from the key, which is the name of the criterion; leave it out"))
            return Rubric([*criteria.values()])
        if isinstance(source, Sequence) and not isinstance(source, str | bytes):
            return Rubric(_IN_ORDER.validate_python([*source]))
    except ValidationError as error:
        raise with_faults(explain(error, Criterion).faults, lambda _: "") from None
    kind = type(source).__name__
    raise ConfigError(f"must be a list of criteria, a mapping from their names, or the path of a file, not {kind}")


_IN_ORDER, _BY_NAME = TypeAdapter(list[Criterion]), TypeAdapter(dict[str, Criterion])


def read_rubric(value: object) -> object:
    """Return the rubric in the value of a setting, or None."""
    if value is None:
        return None
    try:
        return Rubric.load(value) if isinstance(value, str | Path) else rubric_of(value)
    except ConfigError as error:
        raise wrong(*faults_at((), error)) from None


class _RubricFile(Policy):
    rubric: Annotated[Rubric, BeforeValidator(read_rubric)]
