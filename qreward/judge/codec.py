"""The codec of a judge: it encodes requests for written verdicts, and reads an answer, from its bytes to a verdict and its reward."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cached_property, lru_cache, partial
from math import isfinite, nan
from typing import Any, NamedTuple, get_args

import msgspec
from pydantic import BaseModel

from qreward import options
from qreward.codecs import json as jsonio
from qreward.codecs.base import ABORTED, Malformed, WireRequest, described, is_whole
from qreward.codecs.chat import ChatAnswer, ChatCodec, first_of, joined
from qreward.decisions import FoundAnswer, confidence_of
from qreward.engine.instrumentation import LOG
from qreward.errors import ConfigError, QRewardError
from qreward.judge.parsing import ScoreVerdict, Unreadable, YesNoVerdict, instruction, read, schema_of
from qreward.judge.parsing.forms import JSON, Form
from qreward.judge.parsing.schema import VerdictSchema

_ENCODER = msgspec.json.Encoder()
_KEYS = msgspec.json.Encoder(enc_hook=repr)


def encoded(value: object) -> bytes:
    """Return a value as JSON, for use in a key. A lone surrogate is escaped, because UTF-8 cannot encode it."""
    try:
        return _KEYS.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value, enc_hook=repr), default=repr).encode()


class JudgeCodec(ChatCodec):
    """Encodes faster than ``ChatCodec``. The parameters are not checked here, because they were checked when the judge was created."""

    def encode(self, call: WireRequest, model: str) -> bytes:
        for message in call.inputs:
            for value in message.values():
                if type(value) is not str:
                    return super().encode(call, model)
        try:
            return _ENCODER.encode({"model": model, "messages": call.inputs, **call.params})
        except (TypeError, ValueError):  # lone surrogates in a text, or objects in the parameters
            return super().encode(call, model)


JUDGE = JudgeCodec(failures=ABORTED)  # the engine tries them again; a judge reads what else was cut off


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


@lru_cache(maxsize=64)
def log_unknown(ending: str) -> None:
    """Log, once for each ``finish_reason``, that a judge does not read answers with it."""
    LOG.warning("%s: a judge does not read such answers; if they are complete, set finish_reasons=[%r]", described(ending), ending[:40])


def fingerprint_of(model: object, system_fingerprint: object, metadata: object) -> str:
    """Return one text for the fields with which a server identifies the weights that wrote an answer: ``model``, ``system_fingerprint``
    (OpenAI) and ``metadata.weight_version`` (SGLang)."""
    version = metadata.get("weight_version") if isinstance(metadata, dict) else None
    model, system_fingerprint = model if type(model) is str else None, system_fingerprint if type(system_fingerprint) is str else None
    return repr((model, system_fingerprint, version if type(version) is str else None))


def parse_reply(answer: ChatAnswer) -> ModelReply:
    """Parse the body of an answer into a ``ModelReply``. A field with an unexpected type is not an error."""
    document: Any = None
    message: Any = None
    try:
        try:
            document = msgspec.json.decode(answer.body)
        except jsonio.REFUSED:
            document = jsonio.read_object(answer.body)  # lenient, and slower
        choices = document["choices"]
        message = (choices[0] if len(choices) == 1 else first_of(choices, [choice.get("index") for choice in choices]))["message"]
    except (Malformed, LookupError, TypeError, AttributeError):
        message = None
    document, message = document if isinstance(document, dict) else {}, message if isinstance(message, dict) else {}
    fingerprint = fingerprint_of(document.get("model"), document.get("system_fingerprint"), document.get("metadata"))
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    content = message.get("content")  # a refusal is a field of the message, or a part of its content
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    refusals = [joined(one) or "without a text" for one in (message.get("refusal"), *(part.get("refusal") for part in parts)) if one]
    return ModelReply(answer.text(), joined(reasoning), "\n".join(refusals), answer.finish_reason, fingerprint)


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
        for number, _ in shape.kind.numerals:
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
            given = called(name, self._score, verdict)
            reward = None if given is None else finite(given, name)
        else:
            reward = self._own_score(verdict)
        if reward is None:
            raise Unreadable("The score function finds no score in the verdict." if self._score else "The verdict gives no score.")
        return reward, verdict

    def _own_score(self, verdict: BaseModel) -> float | None:
        name = f"{self._attribute!r} of {self.model.__name__}"
        value = called(name, getattr, verdict, self._attribute)
        value = value.value if isinstance(value, Enum) else value
        if value is None:
            return None
        number = finite(float(value) if self._is_number and isinstance(value, str) else value, name)
        if self._range is None:
            return number
        low, high = self.scale if self._is_number else (0.0, 1.0)
        if not low <= number <= high:
            raise ScoreFunctionError(
                f"{self.model.__name__} gives the score {number:g}, which is outside {low:g} to {high:g}; correct it, or pass score="
            )
        first, last = self._range
        return min(max(first + (last - first) * ((number - low) / (high - low)), min(self._range)), max(self._range))  # against rounding


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
        if all(isinstance(end, int | float) and not isinstance(end, bool) and abs(end) <= MOST for end in value):
            return float(low), float(high)
    raise ConfigError(f"{name} must be two finite numbers, such as (0, 1), not {_shown(value)}")
