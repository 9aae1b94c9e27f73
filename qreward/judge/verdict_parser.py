"""``VerdictParser``: the form in which a judge must answer, and the conversion of an answer into a reward.

The text itself is parsed by ``judge.parsing``. This module adds scale, range and the user's score function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cached_property
from math import isfinite, nan
from typing import Any, get_args

from pydantic import BaseModel

from qreward import options
from qreward.codecs.finish_reason import described
from qreward.errors import ConfigError
from qreward.judge.parsing import ScoreVerdict, Unreadable, YesNoVerdict, instruction, read, schema_of
from qreward.judge.parsing.schema import VerdictSchema
from qreward.judge.reply import ModelReply
from qreward.server.import_string import load_object
from qreward.spelling import did_you_mean

_LONG = 100
"""Characters of an invalid value in an error message."""
MOST = sys.float_info.max / 4
"""The largest absolute end of a scale or range. Within it, every number of the mapping from scale to range is finite."""

DEFAULT_COLUMNS = (0.0, 10.0)
"""The default scale of a score."""

NAMED: Mapping[str, type[BaseModel]] = {"score": ScoreVerdict, "yes_no": YesNoVerdict}


class VerdictParser:
    """Parses an answer into a verdict and its reward.

    Args:
        model: the pydantic model of an answer.
        scale: lowest and highest score that a judge may give. None takes the limits of the model's own field (``ge`` and ``le``, or the
            numbers of its literal or enum), else ``DEFAULT_COLUMNS``.
        range: lowest and highest reward, to which the ends of the scale are mapped linearly. None returns scores unchanged.
        score: a function from a verdict to its reward, which is used as it is. It returns None for an answer that is not a verdict. Without
            a function the reward is the model's score, mapped by scale and range.

    Raises:
        ConfigError: the model has no score, or the scale or range is invalid.
    """

    def __init__(
        self,
        model: type[BaseModel],
        *,
        scale: tuple[float, float] | None = None,
        range: tuple[float, float] | None = (0.0, 1.0),  # noqa: A002 - the name in the settings
        score: Callable[[Any], float | None] | None = None,
    ) -> None:
        if not isinstance(model, type) or not issubclass(model, BaseModel):
            raise ConfigError(f"verdict must be a pydantic model, not {model!r}")
        shape = VerdictSchema.of(model, None if scale is None else bounds("scale", scale))
        self.model = model
        self.scale = shape.scale or DEFAULT_COLUMNS
        if self.scale[0] >= self.scale[1]:
            raise ConfigError(f"scale must be (lowest, highest), such as (0, 10), not ({self.scale[0]:g}, {self.scale[1]:g})")
        _check_choices(shape, self.scale)
        self._range = None if range is None else bounds("range", range)
        self._given = options.callback("score", score)
        self._own = _worth_of(shape, self._mapped, self.scale) if score is None else None

    @cached_property
    def instruction(self) -> str:
        """The sentence of the prompt that tells the judge how to answer."""
        return instruction(self.model, self.scale)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """JSON schema of an answer."""
        return schema_of(self.model, self.scale)

    def read(self, heard: ModelReply) -> tuple[float, BaseModel]:
        """The reward and the verdict of an answer.

        Raises:
            Unreadable: the answer has no verdict, or one outside the scale, or it was refused or is incomplete.
            ScoreFunctionError: the user's ``score`` function or verdict model failed.
        """
        if heard.refusal:
            raise Unreadable("The model declined to answer.")
        if not heard.whole:
            raise Unreadable(f"The answer is not whole: {described(heard.ending)}.")
        verdict = read(heard.text, self.model, scale=self.scale, reasoning=heard.reasoning)
        worth = self._given_worth(verdict) if self._own is None else self._own(verdict)
        if worth is None:
            raise Unreadable("The score function finds no score in the verdict." if self._given else "The verdict gives no score.")
        return worth, verdict

    def _given_worth(self, verdict: BaseModel) -> float | None:
        assert self._given is not None
        called = f"the score function {getattr(self._given, '__qualname__', type(self._given).__name__)!r}"
        try:
            worth = self._given(verdict)
        except (Unreadable, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # whatever it raises, the item must end
            raise ScoreFunctionError(f"{called} raised {type(error).__name__}: {error}") from error
        return None if worth is None else _number(worth, called)

    def _mapped(self, said: float, low: float, high: float) -> float:
        """Map a number from ``low`` to ``high`` linearly to the range of rewards."""
        if self._range is None:
            return said
        if not low <= said <= high:
            raise ScoreFunctionError(
                f"{self.model.__name__} gives the score {said:g}, which is outside {low:g} to {high:g}; correct it, or pass score="
            )
        first, last = self._range
        return first + (last - first) * ((said - low) / (high - low))


class ScoreFunctionError(Exception):
    """The user's own code, which turns a verdict into a number, failed. Another request to the model would not help."""


def _number(value: Any, of: str) -> float:
    """The user code's return value as a float. Raises ``ScoreFunctionError`` if it is not a finite number."""
    try:
        number = nan if isinstance(value, str | bytes) else float(value)
    except Exception as error:
        raise ScoreFunctionError(f"{of} returned {_shown(value)}, which is not a number") from error
    if not isfinite(number):
        raise ScoreFunctionError(f"{of} returned {_shown(value)}, which is not a finite number")
    return number


def _shown(value: object) -> str:
    return f"a {type(value).__name__}" if len(told := repr(value)) > _LONG else told


def _check_choices(shape: VerdictSchema[Any], scale: tuple[float, float]) -> None:
    outside = [number for number, _ in shape.numerals if not scale[0] <= number <= scale[1]]
    if outside:
        raise ConfigError(
            f"scale ({scale[0]:g}, {scale[1]:g}) does not include {outside[0]:g}, a choice of {shape.model.__name__}; widen scale"
        )


def _worth_of(
    shape: VerdictSchema[Any], mapped: Callable[[float, float, float], float], scale: tuple[float, float]
) -> Callable[[Any], float | None]:
    """The function from a verdict to its reward.

    A model whose deciding field is a number is mapped from ``scale``. Other models, with a bool or a ``score`` property, are mapped from
    0 to 1.
    """
    model = shape.model
    low, high = scale if shape.number else (0.0, 1.0)
    if "score" not in model.model_fields and isinstance(getattr(model, "score", None), property):
        name = "score"
    elif shape.name is not None and (shape.number or _is_bool(model.model_fields[shape.name].annotation)):
        name = shape.name
    else:
        what = "a 'score' that is not a number" if "score" in model.model_fields else "no field for the score"
        raise ConfigError(f"{model.__name__} has {what}; name a number 'score', or pass score=, a function from a verdict to a number")

    def worth(verdict: Any) -> float | None:
        try:
            said = getattr(verdict, name)
        except Exception as error:
            raise ScoreFunctionError(f"{name!r} of {model.__name__} raised {type(error).__name__}: {error}") from error
        said = said.value if isinstance(said, Enum) else said
        if said is None:
            return None
        return mapped(_number(float(said) if shape.number and isinstance(said, str) else said, f"{name!r} of {model.__name__}"), low, high)

    return worth


def _is_bool(annotation: Any) -> bool:
    return annotation is bool or {*get_args(annotation)} == {bool, type(None)}


def bounds(name: str, value: object) -> tuple[float, float]:
    """A pair of finite numbers, at most ``MOST`` in absolute value. Raises ``ConfigError``."""
    if isinstance(value, tuple | list) and len(value) == 2:
        low, high = value
        if all(isinstance(end, int | float) and not isinstance(end, bool) and abs(end) <= MOST for end in value):
            return float(low), float(high)
    raise ConfigError(f"{name} must be two finite numbers, such as (0, 1), not {_shown(value)}")


def verdict_named(name: str) -> type[BaseModel]:
    """The verdict model that a setting names: ``score``, ``yes_no``, or ``module:Class``.

    Modules in the working directory are found.

    Raises:
        ConfigError: there is no such model.
    """
    if name in NAMED:
        return NAMED[name]
    if ":" not in name:
        raise ConfigError(f"verdict must be 'score', 'yes_no' or 'module:Class', not {name!r}; {did_you_mean(name, NAMED)}")
    return load_object(name, "verdict", "my_verdicts:Correct")  # type: ignore[no-any-return]
