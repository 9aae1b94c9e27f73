"""Strict parsing of a judge's answer: a text becomes an instance of a pydantic model, and this a reward, or raises :class:`Unreadable`.

docs/design/judging.md has the rules and their reasons.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cached_property, lru_cache, partial
from math import isfinite, nan
from typing import Any, NamedTuple, get_args

import msgspec
from pydantic import BaseModel

from qreward import options
from qreward.codecs.base import described, is_whole
from qreward.decisions import FoundAnswer, confidence_of
from qreward.errors import ConfigError, QRewardError
from qreward.judge.parsing.forms import JSON, Form, form_of
from qreward.judge.parsing.reader import TextReader
from qreward.judge.parsing.schema import M, PreferenceVerdict, ScoreVerdict, VerdictSchema, YesNoVerdict, instruction, schema_of
from qreward.judge.parsing.text import NotAnObject, Unreadable, is_number, object_at, sentences, without_reasoning

__all__ = ["Form", "PreferenceVerdict", "ScoreVerdict", "Unreadable", "YesNoVerdict", "form_of", "instruction", "read", "schema_of"]

LONGEST = 100_000
"""The maximum number of characters of an answer, without its reasoning. This limit bounds the time that the parsing of a hostile answer can
take."""

_WRAPPED = re.compile(
    r"```\w{0,12}[ \t]*\n(?P<fenced>.*?)\n?[ \t]*```|<(?P<tag>answer|output|result|final|final_answer|judge?ment|evaluation)>(?P<tagged>.*)"
    r"</(?P=tag)>|(?P<mark>[\"'`])(?P<quoted>[^\n]{1,40})(?P=mark)[.]?",
    re.DOTALL | re.IGNORECASE,
)
_OTHER_MARKS = re.compile(r"[\n\"'`<\u201c\u201d]")


def read(text: str, model: type[M], *, scale: tuple[float, float] | None = None, reasoning: str | None = None, form: Form = JSON) -> M:
    """Return the verdict that a judge's answer states, as an instance of ``model``. Raises ``Unreadable`` unless it is one clear
    verdict."""
    schema: VerdictSchema[M]
    schema, reader = _prepared(model, scale, form)
    if not text.strip():
        raise Unreadable("The answer contains only reasoning." if reasoning else "The answer is empty.")
    if form.reads:
        stated = form.reads(without_reasoning(text)[1])
        if stated is None:
            raise Unreadable("The answer function finds no verdict.")
        return stated if isinstance(stated, model) else schema.of_members({schema.key: stated})
    whole = _whole_object(text)
    if whole is not None:
        return schema.of_members(whole)
    before, answer = without_reasoning(text)
    inside = _inside(answer)
    answer = inside if inside and not _OTHER_MARKS.search(inside) else answer
    members = _whole_object(answer)
    if members is not None:
        value = schema.value_of(members)
    elif len(answer) > LONGEST:
        raise Unreadable("The answer is too long.")
    else:
        value, members = reader.read(answer)
    if before.strip() and _may_be_a_verdict(before, value, reader):
        raise Unreadable("There may be another verdict before a closing reasoning tag that has no opening one.")
    return schema.of_members({schema.key: value} if members is None else members)


@lru_cache(maxsize=64)
def _prepared(model: type[Any], scale: tuple[float, float] | None, form: Form) -> tuple[VerdictSchema[Any], TextReader]:
    schema = VerdictSchema(model, scale)
    return schema, TextReader(schema, form)


def _inside(text: str) -> str:
    """Return the content if the text is one fenced block, tag or quotation. Otherwise return ``""``."""
    match = _WRAPPED.fullmatch(text.strip())
    return (match["fenced"] or match["tagged"] or match["quoted"] or "").strip() if match else ""


def _whole_object(text: str) -> dict[str, Any] | None:
    """Return the members of a JSON object if the whole text is the object, perhaps in a fence, tag or quotes; otherwise None."""
    inside = text.strip() if text.lstrip().startswith("{") else _inside(text)
    if not inside.startswith("{") or len(inside) > LONGEST:
        return None
    try:
        members, end = object_at(inside, 0)
    except NotAnObject:
        return None
    return members if end == len(inside) else None


def _may_be_a_verdict(before: str, value: object, reader: TextReader) -> bool:
    """Return whether the text before a closing reasoning tag without an opening tag may contain a verdict of the judge, because the judge
    may have quoted the tag from the judged text."""
    if len(before) > LONGEST or before.rstrip()[-1] not in ".!?)" or "<" in before:
        return True
    *found, end = sentences(f"{before.rstrip()}\n.")
    return not end.own or any(reader.differs(sentence.text, value) for sentence in found)


class ModelReply(NamedTuple):
    """An answer of a judge model: written, or the decisions that were ``found`` in one response."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    ending: str | None = None
    fingerprint: str = ""
    found: Sequence[FoundAnswer | QRewardError] | None = None

    def as_text(self) -> str:
        """Return the answer for a cache: decisions as JSON."""
        rows = [[confidence_of(each), each[1], *each[0]] for each in self.found or () if not isinstance(each, QRewardError)]
        return self.text if self.found is None else msgspec.json.encode(rows).decode()


MOST = sys.float_info.max / 4
"""Maximum absolute value of the lowest and the highest number of a scale or range. This limit keeps all numbers of the mapping from scale
to range finite."""
DEFAULT_SCALE = (0.0, 10.0)
NAMED: Mapping[str, type[BaseModel]] = {"score": ScoreVerdict, "yes_no": YesNoVerdict}
"""Name in settings -> built-in verdict model."""


class ScoreFunctionError(Exception):
    """The user's code that turns a verdict into a number failed. Another request to the model would not help."""


class VerdictParser:
    """Parses an answer into a verdict and its reward."""

    def __init__(
        self,
        model: type[BaseModel],
        *,
        scale: tuple[float, float] | None = None,
        range: tuple[float, float] | None = (0.0, 1.0),  # noqa: A002 - the name in the settings
        score: Callable[[Any], float | None] | None = None,
        form: Form = JSON,
    ) -> None:
        if not isinstance(model, type) or not issubclass(model, BaseModel):
            raise ConfigError(f"verdict must be a pydantic model, not {model!r}")
        shape = VerdictSchema(model, None if scale is None else bounds("scale", scale))
        self.model, self.scale = model, shape.scale or DEFAULT_SCALE
        low, high = self.scale
        if low >= high:
            raise ConfigError(f"scale must be (lowest, highest), such as (0, 10), not ({low:g}, {high:g})")
        for number in shape.kind.numerals:
            if not low <= number <= high:
                raise ConfigError(f"scale ({low:g}, {high:g}) does not include {number:g}, a choice of {model.__name__}; widen scale")
        if score is None:
            shape.kind.check(shape.name, self.scale)
        self._range = None if range is None else bounds("range", range)
        self.form, self._options, self._is_number = form, shape.kind.options, shape.kind.number
        if form is not JSON and shape.name is None:
            raise ConfigError(f"answer: {model.__name__} has no single field that states the verdict, so only JSON can state it")
        if form.values and not self._is_number:
            raise ConfigError(
                f"answer.values: grades state a score, not a {model.__name__}; pairs need a judge of their own, without grades"
            )
        for grade, worth in form.values:
            if not low <= worth <= high:
                raise ConfigError(
                    f"answer.values: {grade!r} stands for {worth:g}, which is not on the scale ({low:g}, {high:g}); set scale"
                )
        self._score = options.callback("score", score)
        self._attribute = "" if score else _score_attribute(shape)

    @cached_property
    def instruction(self) -> str:
        if self.form is JSON:
            return instruction(self.model, self.scale)
        options = [name for name in self._options if name not in ("true", "false")]
        return self.form.instruction(self.scale, [] if self._is_number else options)

    @cached_property
    def schema(self) -> dict[str, Any]:
        return schema_of(self.model, self.scale)

    @property
    def ends(self) -> tuple[float, float] | None:
        """The lowest and highest reward; None with a score function, whose limits are not known."""
        if self._score is not None:
            return None
        return self._range or (self.scale if self._is_number else (0.0, 1.0))

    def read(self, reply: ModelReply) -> tuple[float, BaseModel]:
        """Return the reward and the verdict of an answer. Raises ``Unreadable``; ``ScoreFunctionError`` if the user's code failed."""
        if reply.refusal:
            raise Unreadable("The model declined to answer.")
        if not is_whole(reply.ending):
            raise Unreadable(f"The answer is not whole: {described(reply.ending)}.")
        parse = partial(read, scale=self.scale, reasoning=reply.reasoning, form=self.form)
        what = f"the answer function {self.form.name!r}" if self.form.reads else f"reading as {self.model.__name__}"
        verdict = called(what, parse, reply.text, self.model)
        if self._score is not None:
            name = f"the score function {getattr(self._score, '__qualname__', type(self._score).__name__)!r}"
            value = called(name, self._score, verdict)
        else:
            name = f"{self._attribute!r} of {self.model.__name__}"
            value = called(name, getattr, verdict, self._attribute)
            value = value.value if isinstance(value, Enum) else value
            value = float(value) if self._is_number and isinstance(value, str) else value
        if value is None:
            raise Unreadable("The score function finds no score in the verdict." if self._score else "The verdict gives no score.")
        number = finite(value, name)
        if self._range is None or self._score is not None:
            return number, verdict
        low, high = self.scale if self._is_number else (0.0, 1.0)
        if not low <= number <= high:
            raise ScoreFunctionError(
                f"{self.model.__name__} gives the score {number:g}, which is outside {low:g} to {high:g}; correct it, or pass score="
            )
        first, last = self._range
        reward = first + (last - first) * ((number - low) / (high - low))
        return min(max(reward, min(self._range)), max(self._range)), verdict  # against rounding


def called(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the user's code. Its exceptions become ``ScoreFunctionError``, except those that must not be caught."""
    try:
        return function(*arguments)
    except (Unreadable, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ScoreFunctionError(f"{name} raised {type(error).__name__}: {error}") from error


def _score_attribute(shape: VerdictSchema[Any]) -> str:
    model = shape.model
    if "score" not in model.model_fields and isinstance(getattr(model, "score", None), property):
        return "score"
    if shape.name is not None:
        annotation = model.model_fields[shape.name].annotation
        if shape.kind.number or annotation is bool or {*get_args(annotation)} == {bool, type(None)}:
            return shape.name
    what = "a 'score' that is not a number" if "score" in model.model_fields else "no field for the score"
    raise ConfigError(f"{model.__name__} has {what}; name a number 'score', or pass score=, a function from a verdict to a number")


def finite(value: Any, of: str) -> float:
    cause = None
    try:
        number = nan if isinstance(value, str | bytes) else float(value)  # also of numpy
    except Exception as error:
        number, cause = nan, error
    if not isfinite(number):
        raise ScoreFunctionError(f"{of} returned {_shown(value)}, which is not a finite number") from cause
    return number


def _shown(value: object) -> str:
    """Return an invalid value for an error message; of a long one only the type."""
    return f"a {type(value).__name__}" if len(shown := repr(value)) > 100 else shown


def bounds(name: str, value: object) -> tuple[float, float]:
    if isinstance(value, tuple | list) and len(value) == 2:
        low, high = value
        if all(is_number(end) and abs(end) <= MOST for end in value):
            return float(low), float(high)
    raise ConfigError(f"{name} must be two finite numbers, such as (0, 1), not {_shown(value)}")
