"""The pydantic model of a verdict: its deciding field, its validation, its JSON schema and its instruction for the prompt.

The strict JSON schema uses only what OpenAI's strict mode, its fine-tuned models and guided decoding all accept. Every object is closed and
requires all its members, and no keyword limits a value: limits are written into descriptions, and enforced when an answer is parsed.
Source: https://platform.openai.com/docs/guides/structured-outputs#supported-schemas
"""

from __future__ import annotations

import enum
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite
from typing import Annotated, Any, Generic, Literal, NewType, TypeVar, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel, Field, ValidationError, field_validator
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo

from qreward.errors import ConfigError
from qreward.judge.parsing.quotations import Unreadable
from qreward.judge.parsing.text import Scale, number_of, shown

M = TypeVar("M", bound=BaseModel)
_NUMBERS = (int, float, Decimal)
_UNIONS = (Union, types.UnionType)
_REVISED = re.compile(r"^(?:final|revised|corrected|updated|adjusted|new|actual)_")
_NUMERAL = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,8})(?:\.[0-9]{1,17})?")
_SAID = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "pattern": "matching {}",
    "format": "as {}",
}
_UNSAID = frozenset({"title", "default", "examples", "discriminator", "uniqueItems", "deprecated", "readOnly", "writeOnly"})
_KEPT = frozenset({"type", "enum", "description", "$ref", "$defs", "anyOf", "items", "properties"})


class ScoreVerdict(BaseModel):
    """A number, and why.

    The reason comes first, so that a judge writes it before the number.

    Example:
        >>> ScoreVerdict(reason="Right, but long.", score=7).score
        7.0
    """

    reason: str = Field("", description="why, in a few sentences")
    score: float


class YesNoVerdict(BaseModel):
    """Yes or no, and why.

    The values true and false are accepted for yes and no.

    Example:
        >>> YesNoVerdict(verdict="Yes").score
        1.0
    """

    reason: str = Field("", description="why, in a few sentences")
    verdict: Literal["yes", "no"]

    @field_validator("verdict", mode="before")
    @classmethod
    def _word(cls, value: object) -> object:
        if isinstance(value, bool):
            return "yes" if value else "no"
        return value.strip().lower() if isinstance(value, str) else value

    @property
    def score(self) -> float:
        """1 for yes, 0 for no."""
        return float(self.verdict == "yes")


class PreferenceVerdict(BaseModel):
    """Which of two responses is better, and why.

    Example:
        >>> PreferenceVerdict(preferred="tie").score
        0.5
    """

    reason: str = Field("", description="why, in a few sentences")
    preferred: Literal["A", "B", "tie"]

    @property
    def score(self) -> float:
        """1 for A, 0 for B, 0.5 for a tie."""
        return {"A": 1.0, "B": 0.0, "tie": 0.5}[self.preferred]


@dataclass(frozen=True)
class VerdictSchema(Generic[M]):
    """A verdict model and its deciding field.

    Attributes:
        model: the pydantic model.
        name: name of the deciding field. None if there is none: then only a JSON object is accepted, and all its fields decide.
        number: True if the deciding field is a number.
        options: the spellings of its choices, each with its value; empty if it is not a choice.
        scale: lowest and highest number.
        numerals: the only numbers that the field allows, each with its value in the model; empty if it allows any number.
    """

    model: type[M]
    name: str | None
    number: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    scale: Scale | None = None
    numerals: tuple[tuple[float, Any], ...] = ()

    @classmethod
    def of(cls, model: type[M], scale: Scale | None) -> VerdictSchema[M]:
        """The shape of ``model``. The deciding field is ``score``, else the only required field that is a number, a bool or a choice."""
        able = [name for name, info in model.model_fields.items() if info.is_required() and any(_kind(info.annotation))]
        name = "score" if "score" in model.model_fields else able[0] if len(able) == 1 else ""
        if not name:
            return cls(model, None)
        info = model.model_fields[name]
        number, options = _kind(info.annotation)
        numerals = _numerals(info.annotation) or ()
        numbers = [numeral for numeral, _ in numerals]
        own = scale or _bounds(info) or ((min(numbers), max(numbers)) if numbers else None)
        return cls(model, name, number, tuple(options.items()), own if number else None, numerals if number else ())

    @property
    def key(self) -> str:
        """The name of the deciding field in JSON."""
        return _keys(self.name, self.model.model_fields[self.name])[0] if self.name else ""

    def names(self, keys: set[str]) -> bool:
        """Whether any of these member names is that of the deciding field, or of a required field if there is no deciding one."""
        fields = self.model.model_fields
        needed = [self.name] if self.name else [name for name, info in fields.items() if info.is_required()] or list(fields)
        return not {_folded(key) for key in keys}.isdisjoint(_folded(key) for name in needed for key in _keys(name, fields[name]))

    def of_members(self, members: Mapping[str, Any]) -> M:
        """The verdict from the members of a JSON object. Raises :class:`Unreadable`."""
        mine = {_folded(key): key for name, info in self.model.model_fields.items() for key in reversed(_keys(name, info))}
        given: dict[str, Any] = {}
        for key, value in members.items():
            known = mine.get(_folded(key), key)
            if known in given and given[known] != value:
                raise Unreadable("The JSON object gives a member twice.")
            given[known] = value
        strange = [(_REVISED.sub("", _folded(key)), value) for key, value in given.items() if _folded(key) not in mine]
        if any(mine.get(key) in given and given[mine[key]] != value for key, value in strange):
            raise Unreadable("The JSON object gives a verdict and a revised one.")
        if self.name and not self.names(set(given)):
            raise Unreadable(f'The JSON object has no "{self.key}".')
        if self.name and self.number:
            key = next(key for key in _keys(self.name, self.model.model_fields[self.name]) if key in given)
            given[key] = self._same(number_of(given[key], self.scale), given[key])
        try:
            verdict = self.model.model_validate(given)
        except ValidationError as error:
            raise Unreadable(self._complaint(error)) from None
        if self.name and self.number:
            made = _plain_value(getattr(verdict, self.name))
            number_of(float(made) if isinstance(made, Decimal) else made, None)
        return verdict

    def value_of(self, members: dict[str, Any]) -> object:
        """The value by which verdicts are compared; None if the members lack the deciding field. Raises as ``of_members`` does."""
        if not self.names(set(members)):
            return None
        verdict = self.of_members(members)
        if not self.name:
            fields = self.model.model_fields
            return {name: value for name, value in verdict if name in fields and fields[name].annotation is not str}
        if self.number:
            return number_of(next(value for key, value in members.items() if self.names({key})), self.scale)
        return _plain_value(getattr(verdict, self.name))

    def _same(self, number: float, written: Any) -> Any:
        """The number as the model accepts it: one of its choices if it has any. An integer keeps digits that a float would lose."""
        if self.numerals:
            choices = [value for own, value in self.numerals if own == number]
            if not choices:
                raise Unreadable(f"The score must be one of {', '.join(shown(own) for own, _ in self.numerals)}.")
            return choices[0]
        return written if isinstance(written, int) else int(number) if number.is_integer() else number

    def _complaint(self, error: ValidationError) -> str:
        """Pydantic's error type, and the member if it is the model's. Its message and input are left out, as they may quote the answer."""
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = str(next(iter(first["loc"]), ""))
        known = {key for name, info in self.model.model_fields.items() for key in _keys(name, info)}
        kind = first["type"].replace("_", " ")
        return f'The JSON object does not fit at "{place}": {kind}.' if place in known else f"The JSON object does not fit: {kind}."


def _folded(key: str) -> str:
    return key.strip().casefold().replace(" ", "_").replace("-", "_")


def _plain_value(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


def _keys(name: str, info: FieldInfo) -> list[str]:
    alias = info.validation_alias or info.alias
    if isinstance(alias, AliasChoices):
        return [choice for choice in alias.choices if isinstance(choice, str)] or [name]
    return [alias] if isinstance(alias, str) else [name]


def _kind(annotation: Any) -> tuple[bool, dict[str, Any]]:
    """``(whether a type is a number, the spellings of its choices with their values)``."""
    annotation = _plain(annotation)
    if annotation is bool:
        return False, {"yes": True, "no": False, "true": True, "false": False}
    if _numerals(annotation) is not None:
        return True, {}
    choices = _choices(annotation)
    texts = bool(choices) and all(isinstance(value, str) and value.strip() for value in choices)
    return False, {value: value for value in choices} if texts else {}


def _numerals(annotation: Any) -> tuple[tuple[float, Any], ...] | None:
    """The numbers that a type allows, each with its own value. Empty if it allows any number, None if it is not a number."""
    if (annotation := _plain(annotation)) in _NUMBERS:
        return ()
    if get_origin(annotation) in _UNIONS:
        parts = [_numerals(part) for part in get_args(annotation) if part is not type(None)]
        found = [part for part in parts if part is not None]
        if not found or len(found) < len(parts):
            return None
        return () if () in found else tuple(choice for part in found for choice in part)
    choices = _choices(annotation)
    told = tuple((number, value) for value in choices if (number := _numeral(value)) is not None)
    return told if told and len(told) == len(choices) else None


def _plain(annotation: Any) -> Any:
    """A type without ``Annotated``, ``NewType`` and type aliases."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":  # Python 3.12 or later, or typing_extensions
            annotation = annotation.__value__
        else:
            return annotation


def _choices(annotation: Any) -> tuple[Any, ...]:
    """The values of a literal or an enum; empty for other types."""
    if get_origin(annotation) is Literal:
        return tuple(_plain_value(value) for value in get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return tuple(member.value for member in annotation)
    return ()


def _numeral(value: Any) -> float | None:
    """The number of a choice that is a number or the text of one; None for others."""
    if isinstance(value, bool) or (isinstance(value, str) and not _NUMERAL.fullmatch(value)):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def _bounds(info: FieldInfo) -> Scale | None:
    """The scale from a field's ``ge`` and ``le``; None unless it has both. In an optional type they may be limits of the inner type."""
    limits = list(info.metadata)
    parts = [part for part in get_args(info.annotation) if part is not type(None)] if get_origin(info.annotation) in _UNIONS else []
    if len(parts) == 1 and get_origin(parts[0]) is Annotated:
        limits += [one for item in get_args(parts[0])[1:] for one in (item.metadata if isinstance(item, FieldInfo) else [item])]
    low = [limit.ge for limit in limits if getattr(limit, "ge", None) is not None]
    high = [limit.le for limit in limits if getattr(limit, "le", None) is not None]
    return (float(max(low)), float(min(high))) if low and high else None


def schema_of(model: type[BaseModel], scale: Scale | None = None) -> dict[str, Any]:
    """The strict JSON schema of a verdict, for ``response_format``.

    Raises:
        ConfigError: the model has a member that a strict schema cannot express, such as ``Any`` or a mapping.

    Example:
        >>> from qreward.judge.parsing import ScoreVerdict
        >>> schema_of(ScoreVerdict, (0, 10))["properties"]["score"]
        {'type': 'number', 'description': 'from 0 to 10'}
    """
    shape = VerdictSchema.of(model, scale)
    try:
        raw = model.model_json_schema(mode="validation")
    except PydanticInvalidForJsonSchema as error:
        raise ConfigError(f"{model.__name__} has no JSON schema: {error.message}") from None
    strict = _strict(raw, model.__name__)
    if "$ref" in strict:  # a recursive model; the root must be an object, not a reference
        strict = {**strict["$defs"][strict["$ref"].rpartition("/")[2]], "$defs": strict["$defs"]}
    if shape.number and scale and not shape.numerals:  # choices state the allowed values themselves
        span = f"from {shown(scale[0])} to {shown(scale[1])}"
        strict["properties"][shape.key] = _described(strict["properties"][shape.key], span)
    return strict


def instruction(model: type[BaseModel], scale: Scale | None = None) -> str:
    """The instruction for the prompt that describes the form of a verdict.

    Example:
        >>> from qreward.judge.parsing import ScoreVerdict
        >>> print(instruction(ScoreVerdict, (0, 10)))
        Answer with one JSON object and nothing else, with these members in this order:
        "reason": text, why, in a few sentences
        "score": number, from 0 to 10
    """
    schema = schema_of(model, scale)
    lines = [f'"{name}": {_words(member, schema.get("$defs", {}))}' for name, member in schema["properties"].items()]
    return "\n".join(["Answer with one JSON object and nothing else, with these members in this order:", *lines])


def _strict(node: dict[str, Any], where: str) -> dict[str, Any]:
    node = _rewritten(node)
    strange = node.keys() - _KEPT - _SAID.keys() - _UNSAID - {"required", "additionalProperties"}
    if strange or node.get("additionalProperties") not in (None, False, True) or not node.keys() & {"type", "enum", "$ref", "anyOf"}:
        raise ConfigError(f"{where} cannot be asked for by a strict JSON schema: give it a plain type.")
    if "$ref" in node and "properties" not in node:
        return {"$ref": node["$ref"]} | ({"$defs": _each(node["$defs"], "")} if "$defs" in node else {})
    kept: dict[str, Any] = {key: node[key] for key in ("type", "enum") if key in node}
    if node.get("type") == "object":
        if "properties" not in node:
            raise ConfigError(f"{where} cannot be asked for by a strict JSON schema: an object must name its members.")
        kept |= {"properties": _each(node["properties"], where), "required": list(node["properties"]), "additionalProperties": False}
    if node.get("type") == "array":
        kept["items"] = _strict(node.get("items", {}), f"{where}[]")
    if "anyOf" in node:
        kept["anyOf"] = [_strict(one, where) for one in node["anyOf"]]
    if "$defs" in node:
        kept["$defs"] = _each(node["$defs"], "")
    limits = ", ".join(said.format(node[key]) for key, said in _SAID.items() if key in node)
    told = node.get("description", "").partition("\n\n")[0].strip()  # only the first paragraph of a docstring
    return _described(kept | ({"description": told} if told else {}), limits)


def _rewritten(node: dict[str, Any]) -> dict[str, Any]:
    """The node in keywords that strict mode supports."""
    node = dict(node)
    if "const" in node:
        node["enum"] = [node.pop("const")]
    if "oneOf" in node:
        node["anyOf"] = node.pop("oneOf")
    if len(node.get("allOf", [])) == 1:
        node |= node.pop("allOf")[0]
    if "enum" in node and "type" not in node:
        kinds = {type(value) for value in node["enum"]}
        names = {str: "string", int: "integer", float: "number", bool: "boolean"}
        if len(kinds) == 1 and (name := names.get(next(iter(kinds)))):
            node["type"] = name
    return node


def _each(nodes: dict[str, Any], where: str) -> dict[str, Any]:
    return {name: _strict(node, f"{where}.{name}".lstrip(".")) for name, node in nodes.items()}


def _described(node: dict[str, Any], more: str) -> dict[str, Any]:
    if not more or "$ref" in node:
        return node
    return node | {"description": f"{node['description']}; {more}" if node.get("description") else more}


def _words(node: dict[str, Any], defs: dict[str, Any]) -> str:
    """A member described in words."""
    target = defs[node["$ref"].rpartition("/")[2]] if "$ref" in node else node
    return ", ".join(filter(None, (_type_words(target, defs), node.get("description") or target.get("description"))))


def _type_words(node: dict[str, Any], defs: dict[str, Any]) -> str:
    if "enum" in node:
        return "one of " + ", ".join(f'"{value}"' if isinstance(value, str) else str(value).lower() for value in node["enum"])
    if "anyOf" in node:
        return " or ".join(_type_words(defs[one["$ref"].rpartition("/")[2]] if "$ref" in one else one, defs) for one in node["anyOf"])
    if node.get("type") == "array":
        return f"list of {_words(node['items'], defs)}"
    if node.get("type") == "object":
        return "object with " + ", ".join(f'"{name}"' for name in node["properties"])
    kind = str(node.get("type", ""))
    return {"string": "text", "boolean": "true or false", "integer": "whole number"}.get(kind, kind)
