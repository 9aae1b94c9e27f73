"""The form of a verdict: what a judge is asked to answer in, and what number an answer comes to.

The reading of texts is done in ``reading``; this room knows what is wanted of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cached_property
from math import isfinite
from typing import Any

from pydantic import BaseModel

from qreward.errors import ConfigError
from qreward.judge.hearing import Heard
from qreward.judge.reading import ScoreVerdict, Unreadable, YesNoVerdict, instruction, read, schema_of
from qreward.judge.reading.shape import Shape

USUAL = (0.0, 10.0)
"""The scale of a score where nothing says another."""

NAMED: Mapping[str, type[BaseModel]] = {"score": ScoreVerdict, "yes_no": YesNoVerdict}


class VerdictForm:
    """What an answer must be, and what it is worth.

    Args:
        model: the pydantic model of an answer.
        scale: lowest and highest score that the judge is asked for; None is what the model's own field says (``ge`` and ``le``), else
            ``USUAL``.
        range: what the ends of the scale are as rewards; None leaves scores as they are.
        score: the reward of a verdict, taken as it is, or None if the verdict is none; None takes the model's score, by scale and range.

    Raises:
        ConfigError: no number can be had from such a model, or the scale or range is no range.
    """

    def __init__(
        self,
        model: type[BaseModel],
        *,
        scale: tuple[float, float] | None = None,
        range: tuple[float, float] | None = (0.0, 1.0),  # noqa: A002 - the word of the settings
        score: Callable[[Any], float | None] | None = None,
    ) -> None:
        if not isinstance(model, type) or not issubclass(model, BaseModel):
            raise ConfigError(f"verdict must be a pydantic model, not {model!r}")
        shape = Shape.of(model, "score", None if scale is None else bounds("scale", scale))
        self.model = model
        self.scale = shape.scale or USUAL
        if self.scale[0] >= self.scale[1]:
            raise ConfigError(f"scale must rise, such as (0, 10), not {scale!r}")
        self._range = None if range is None else bounds("range", range)
        self._score = score if score is not None else _worth_of(shape, self._mapped, self.scale)

    @cached_property
    def instruction(self) -> str:
        """Tells the judge in words how to answer."""
        return instruction(self.model, self.scale)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """JSON schema of an answer."""
        return schema_of(self.model, self.scale)

    def read(self, heard: Heard) -> tuple[float, BaseModel]:
        """The reward and the verdict that an answer says.

        Raises:
            Unreadable: it says none, or one outside the scale.
        """
        if heard.refusal:
            raise Unreadable("The model declined to answer.")
        verdict = read(heard.text, self.model, scale=self.scale, reasoning=heard.reasoning, finished=heard.finished)
        worth = self._score(verdict)
        if worth is None:
            raise Unreadable("The score function finds no score in the verdict.")
        if not isfinite(worth):
            raise Unreadable("The score of the verdict is no finite number.")
        return float(worth), verdict

    def _mapped(self, said: float, low: float, high: float) -> float:
        """A number between two others, as a reward."""
        if self._range is None:
            return said
        first, last = self._range
        return first + (last - first) * ((said - low) / (high - low))


def _worth_of(shape: Shape[Any], mapped: Callable[[float, float, float], float], scale: tuple[float, float]) -> Callable[[Any], float]:
    """What the verdicts of a model are worth: a number by the scale, yes and no (and a choice's own ``score``) as its ends."""
    model = shape.model
    low, high = scale if shape.number else (0.0, 1.0)
    if "score" in model.model_fields or isinstance(getattr(model, "score", None), property):
        name = "score"
    elif shape.name is not None and (shape.number or model.model_fields[shape.name].annotation is bool):
        name = shape.name
    else:
        raise ConfigError(f"{model.__name__} has no field that is its score; call a number 'score', or give score=...")
    return lambda verdict: mapped(float(getattr(verdict, name)), low, high)


def bounds(name: str, value: object) -> tuple[float, float]:
    if isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(end, int | float) and isfinite(end) for end in value):
        return float(value[0]), float(value[1])
    raise ConfigError(f"{name} must be two finite numbers, such as (0, 1), not {value!r}")


def verdict_named(name: str) -> type[BaseModel]:
    """The model that a setting names: ``score``, ``yes_no``, or ``module:Class``.

    Raises:
        ConfigError: there is none.
    """
    if name in NAMED:
        return NAMED[name]
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute) if attribute else None
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"verdict: cannot import {name!r}: {error}") from None
    if found is None:
        raise ConfigError(f"verdict must be 'score', 'yes_no' or 'module:Class', not {name!r}")
    return found  # type: ignore[no-any-return]
