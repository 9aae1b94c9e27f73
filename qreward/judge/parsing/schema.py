"""The pydantic model of a verdict: its deciding field, its validation, its JSON schema, and the instruction in the prompt."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from enum import Enum
from math import inf, isfinite
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from pydantic import AliasChoices, BaseModel, Field, ValidationError, field_validator
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema

from qreward.errors import ConfigError
from qreward.judge.parsing.text import Scale, Unreadable, choice_of, is_level, number_of, phrases, spellings

M = TypeVar("M", bound=BaseModel)
_OF_REVISED, _OF_SCALE, _OF_SCORES = phrases("members_revised"), phrases("members_of_scale"), phrases("members_of_scores")
_REVISED = re.compile(rf"^(?:{_OF_REVISED})_|_(?:{_OF_REVISED})$")
_RIVALS = frozenset({"score", "rating", "grade", "overall", "preferred", "preference", "winner", "verdict"})
"""Names of members that state a score or a choice as the deciding field does."""
_SCALE = re.compile(rf"(?=(?:\w+_)?(?:{_OF_SCALE}|total_(?:points|marks))(?:_|$))(?:(?:{_OF_SCALE}|{_OF_SCORES})(?:_|$))+")
"""A name of a member that states a scale, such as ``max_possible_score``: it has no other words than these."""
_LOWEST = re.compile(r"(?:^|_)(?:min(?:imum)?|lowest|low|from)(?:_|$)")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_PAIR_NOUN = re.compile(r"^(?:the )?(?:response|assistant|answer) (?=[AB]$)", re.IGNORECASE)
_SCALE_NUMBER = re.compile(r"(?<![\d.])-?\d+(?:\.\d+)?")
_NUMERAL = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,8})(?:\.[0-9]{1,17})?")
_BOUNDS = {"minimum": "at least {}", "exclusiveMinimum": "more than {}", "maximum": "at most {}", "exclusiveMaximum": "less than {}"}
_IN_WORDS = {
    **_BOUNDS,
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "pattern": "matching {}",
    "format": "as {}",
}


class ScoreVerdict(BaseModel):
    """A score with a reason. The reason comes first, so that a judge writes the reason before the number.

    Example:
        >>> ScoreVerdict(reason="Right, but long.", score=7).score
        7.0
    """

    reason: str = Field(default="", description="why, in a few sentences")
    score: float


class YesNoVerdict(BaseModel):
    """Yes or no, with a reason. The values true and false are accepted for yes and no.

    Example:
        >>> YesNoVerdict(verdict="Yes").score
        1.0
    """

    reason: str = Field(default="", description="why, in a few sentences")
    verdict: Literal["yes", "no"]

    @field_validator("verdict", mode="before")
    @classmethod
    def _word(cls, value: object) -> object:
        if isinstance(value, bool):
            return "yes" if value else "no"
        return value.strip().lower() if isinstance(value, str) else value

    @property
    def score(self) -> float:
        """1.0 for yes, 0.0 for no."""
        return float(self.verdict == "yes")


class PreferenceVerdict(BaseModel):
    """The better of two responses, with a reason.

    Example:
        >>> PreferenceVerdict(preferred="tie").score
        0.5
    """

    reason: str = Field(default="", description="why, in a few sentences")
    preferred: Literal["A", "B", "tie"]

    @property
    def score(self) -> float:
        """1.0 for A, 0.0 for B, 0.5 for a tie."""
        return {"A": 1.0, "B": 0.0, "tie": 0.5}[self.preferred]


_DESCRIPTIONS: Mapping[type, str] = {
    ScoreVerdict: "A number, and why.",
    YesNoVerdict: "Yes or no, and why.",
    PreferenceVerdict: "Which of two responses is better, and why.",
}
"""Descriptions in the schemas of these models. Docstrings are not used here: a schema is part of the keys of cached answers, and a changed
docstring would make the cached answers useless."""


class FieldKind(NamedTuple):
    """Describes which values a field allows: numbers, a choice of texts, or neither."""

    number: bool = False
    options: Mapping[str, Any] = {}
    numerals: Mapping[float, Any] = {}
    limits: Scale | None = None
    bounds: Mapping[str, float] = {}

    def check(self, name: str | None, scale: Scale) -> None:
        """Raise ``ConfigError`` if the field ``name`` cannot have the scores of the scale."""
        for bound, number in self.bounds.items():
            if scale[0] < number if bound.lower().endswith("minimum") else scale[1] > number:
                limit = _IN_WORDS[bound].format(f"{number:g}")
                raise ConfigError(f"{name} is limited to {limit}, and the scale is {scale[0]:g} to {scale[1]:g}; set a scale within it")


class VerdictSchema(Generic[M]):
    """Reads verdicts of one pydantic model from the members of JSON objects.

    Attributes:
        name: the deciding field: ``score``, or else the only required field with a number or a choice. None if no field decides. Then only
            an object is accepted, and verdicts are compared by all fields but texts.
        kind: the values that the deciding field allows.
        scale: lowest and highest score; None if they are not known, or the deciding field holds no number.
    """

    def __init__(self, model: type[M], scale: Scale | None) -> None:
        raw = _raw_schema(model, by_alias=False, schema_generator=_PlainNumbers)
        defs, fields = raw.get("$defs", {}), model.model_fields
        nodes = _resolved(raw, defs).get("properties", {})
        kinds = {name: _kind(nodes.get(name, {}), defs) for name in fields}
        required = [name for name, info in fields.items() if info.is_required()]
        able = [name for name in required if kinds[name].number or kinds[name].options]
        self.model = model
        self.name = "score" if "score" in kinds else able[0] if len(able) == 1 else None
        self.kind = kinds[self.name] if self.name else FieldKind()
        self.scale = (scale or self.kind.limits) if self.kind.number else None
        keys = {name: _keys(name, info.validation_alias) for name, info in fields.items()}
        self._deciding_keys = keys[self.name] if self.name else [""]
        self.key = self._deciding_keys[0]
        self._known = {_folded(key): key for names in keys.values() for key in reversed(names)}
        deciding = [self.name] if self.name else required or list(keys)
        self._deciding = frozenset(_folded(key) for name in deciding for key in keys[name])

    def _named(self, members: Mapping[str, Any]) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
        """Return the members under the names of the fields, and the members that are no fields."""
        given, others = dict[str, Any](), list[tuple[str, Any]]()
        for key, value in members.items():
            own = self._known.get(_folded(key))
            if own is None:
                others.append((_folded(_CAMEL.sub("_", key)), value))
                own = key
            if own in given and not self._equal(given[own], value):
                raise Unreadable("The JSON object gives a member twice.")
            given[own] = value
        for name, value in others:
            other = self._known.get(_REVISED.sub("", name))
            if other in given and not self._equal(given[other], value):
                raise Unreadable("The JSON object gives a verdict and a revised one.")
        return given, others

    def _equal(self, one: Any, other: Any) -> bool:
        """Return whether two values of a member state the same verdict: ``7`` and ``"7"``."""
        read = self._read(one)
        return one == other or (read is not None and read == self._read(other))

    def _read(self, value: Any) -> Any:
        """Return the number or the choice that a member states; None if it states none."""
        with suppress(Unreadable):
            if self.kind.number:
                return number_of(value, self.scale)
            if self.kind.options:
                return choice_of(_PAIR_NOUN.sub("", value.strip()) if isinstance(value, str) else "", spellings(self.kind.options))
        return None

    def of_members(self, members: Mapping[str, Any]) -> M:
        given, others = self._named(members)
        deciding = next((key for key in self._deciding_keys if key in given), None)
        if deciding is not None and self.kind.number:
            written, number = given[deciding], number_of(given[deciding], self.scale)
            if self.kind.numerals and number not in self.kind.numerals:
                raise Unreadable(f"The score must be one of {', '.join(f'{own:g}' for own in self.kind.numerals)}.")
            # a whole number as it was written, because a float would lose digits
            usual = written if isinstance(written, int) else int(number) if number.is_integer() else number
            given[deciding] = self.kind.numerals.get(number, usual)
        elif deciding is not None and (choice := self._read(given[deciding])) is not None:  # the model may accept what is no option
            given[deciding] = choice
        elif deciding is None and self.name:
            raise Unreadable(f'The JSON object has no "{self.key}".')
        if deciding is not None:
            self._check_others(others, given[deciding])
        try:
            verdict = self.model.model_validate(given)
        except ValidationError as error:
            raise Unreadable(self._complaint(error)) from None
        if self.name and self.kind.number:
            made = _plain_value(getattr(verdict, self.name))
            number_of(float(made) if isinstance(made, Decimal) else made, None)
        return verdict

    def _check_others(self, others: Sequence[tuple[str, Any]], verdict: Any) -> None:
        """Raise :class:`Unreadable` if a member that the model does not have states another verdict, or another scale."""
        for name, value in others:
            if _REVISED.sub("", name) in _RIVALS and self._read(value) not in (None, self._read(verdict)):
                raise Unreadable("The JSON object gives two verdicts.")
            ends = [*map(float, _SCALE_NUMBER.findall(str(value)))] if self.scale and _SCALE.fullmatch(name) else []
            if not self.scale or not ends:
                continue
            if "range" in name and is_level(ends[0], ends[-1], self.scale):
                continue  # the levels of the rubric that the score is one of
            is_lowest, several = _LOWEST.search(name), len(ends) > 1
            low, high = is_lowest or several, not is_lowest or several
            if (low and ends[0] not in {self.scale[0], 0, 1}) or (high and ends[-1] != self.scale[1]):
                raise Unreadable("The JSON object names another scale beside its score.")

    def value_of(self, members: dict[str, Any]) -> object:
        """Return the value that is compared with that of another verdict; None if no member decides. Raises :class:`Unreadable`."""
        if self._deciding.isdisjoint(map(_folded, members)):
            return None
        verdict = self.of_members(members)
        if not self.name:
            fields = self.model.model_fields
            return {name: value for name, value in verdict if name in fields and fields[name].annotation is not str}
        if self.kind.number:
            return number_of(next(value for key, value in members.items() if _folded(key) in self._deciding), self.scale)
        return _plain_value(getattr(verdict, self.name))

    def _complaint(self, error: ValidationError) -> str:
        """Return a description of the error without pydantic's message and input, which may quote the answer."""
        first = error.errors()[0]
        place, kind = str(next(iter(first["loc"]), "")), first["type"].replace("_", " ")
        at = f' at "{place}"' if place in self._known.values() else ""
        kind = f"it must be {first['ctx']['expected']}" if first["type"] in ("literal_error", "enum") else kind
        return f"The JSON object does not fit{at}: {kind}."


def _folded(key: str) -> str:
    return key.strip().casefold().replace(" ", "_").replace("-", "_")


def _plain_value(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _keys(name: str, alias: object) -> list[str]:
    """Return the names of a field in JSON."""
    return [each for each in (alias.choices if isinstance(alias, AliasChoices) else [alias]) if isinstance(each, str)] or [name]


def _kind(node: dict[str, Any], defs: dict[str, Any]) -> FieldKind:
    node = _resolved(node, defs)
    if node.get("type") == "boolean" and "enum" not in node:
        return FieldKind(options={"yes": True, "no": False, "true": True, "false": False})
    parts = [part for one in node.get("anyOf", [node]) if (part := _resolved(one, defs)).get("type") != "null"]
    values = [value for part in parts for value in part.get("enum", [float if part.get("type") in ("number", "integer") else None])]
    numbers = [number for value in values if (number := _numeral(value)) is not None]
    if values and len(numbers) == len(values):
        numerals = {number: values[numbers.index(number)] for number in numbers}
        return FieldKind(True, numerals=numerals, limits=(min(numbers), max(numbers)))
    if values and all(value is float or _numeral(value) is not None for value in values):
        parts = [_inclusive(part) if part.get("type") == "integer" else part for part in parts]
        low, high = ([part[name] for part in parts if name in part] for name in ("minimum", "maximum"))
        bounds = {name: float(parts[0][name]) for name in _BOUNDS if name in parts[0]} if len(parts) == 1 else {}
        return FieldKind(True, limits=(float(max(low)), float(min(high))) if low and high else None, bounds=bounds)
    choices = node.get("enum", [])
    texts = bool(choices) and all(isinstance(value, str) and value.strip() for value in choices)
    return FieldKind(options={value: value for value in choices} if texts else {})


def _inclusive(part: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a whole number with ``ge`` and ``le`` in place of ``gt`` and ``lt``."""
    part = dict(part)
    if "exclusiveMinimum" in part:
        part["minimum"] = max(part.get("minimum", -inf), part.pop("exclusiveMinimum") + 1)
    if "exclusiveMaximum" in part:
        part["maximum"] = min(part.get("maximum", inf), part.pop("exclusiveMaximum") - 1)
    return part


def _numeral(value: Any) -> float | None:
    """Return the number of a choice such as ``7`` or ``"7"``, or None if the choice is not a finite number."""
    if isinstance(value, bool) or not (isinstance(value, int | float) or (isinstance(value, str) and _NUMERAL.fullmatch(value))):
        return None
    number = float(value) if isinstance(value, str) or abs(value) <= sys.float_info.max else inf
    return number if isfinite(number) else None


class _PlainNumbers(GenerateJsonSchema):
    """Describes a ``Decimal`` as a number. Pydantic describes a ``Decimal`` as a number or a text."""

    def decimal_schema(self, schema: Any) -> dict[str, Any]:
        return self.float_schema(schema)


def _raw_schema(model: type[BaseModel], **how: Any) -> dict[str, Any]:
    try:
        return model.model_json_schema(**how)
    except PydanticInvalidForJsonSchema as error:
        raise ConfigError(f"{model.__name__} has no JSON schema: {error.message}") from None


def _resolved(node: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    node = _rewritten(node)
    return _rewritten(defs[node["$ref"].rpartition("/")[2]]) if "$ref" in node else node


def schema_of(model: type[BaseModel], scale: Scale | None = None) -> dict[str, Any]:
    shape = VerdictSchema(model, scale)
    strict = _strict(_raw_schema(model), model.__name__)
    if "$ref" in strict:  # a recursive model; the root must be an object, not a reference
        strict = {**strict["$defs"][strict["$ref"].rpartition("/")[2]], "$defs": strict["$defs"]}
    if model in _DESCRIPTIONS:
        strict["description"] = _DESCRIPTIONS[model]
    if shape.kind.number and scale and not shape.kind.numerals:  # choices state the allowed values themselves
        span = f"from {scale[0]:g} to {scale[1]:g}"
        strict["properties"][shape.key] = _described(strict["properties"][shape.key], span)
    return strict


def instruction(model: type[BaseModel], scale: Scale | None = None) -> str:
    schema = schema_of(model, scale)
    lines = [f'"{name}": {_words(member, schema.get("$defs", {}))}' for name, member in schema["properties"].items()]
    return "\n".join(["Answer with one JSON object and nothing else, with these members in this order:", *lines])


def _strict(node: dict[str, Any], where: str) -> dict[str, Any]:
    node = _rewritten(node)
    if not node.keys() & {"type", "enum", "$ref", "anyOf"}:
        raise ConfigError(f"{where} cannot be described by a strict JSON schema: give it a plain type.")
    if "$ref" in node:
        return {"$ref": node["$ref"]} | ({"$defs": _each(node["$defs"], "")} if "$defs" in node else {})
    kept: dict[str, Any] = {key: node[key] for key in ("type", "enum") if key in node}
    if node.get("type") == "object":
        if "properties" not in node:
            raise ConfigError(f"{where} cannot be described by a strict JSON schema: an object must name its members.")
        kept |= {"properties": _each(node["properties"], where), "required": list(node["properties"]), "additionalProperties": False}
    if node.get("type") == "array":
        kept["items"] = _strict(node.get("items", {}), f"{where}[]")
    if "anyOf" in node:
        kept["anyOf"] = [_strict(one, where) for one in node["anyOf"]]
    if "$defs" in node:
        kept["$defs"] = _each(node["$defs"], "")
    limits = ", ".join(words.format(node[key]) for key, words in _IN_WORDS.items() if key in node)
    description = node.get("description", "").partition("\n\n")[0].strip()  # only the first paragraph of a docstring
    return _described(kept | ({"description": description} if description else {}), limits)


def _rewritten(node: dict[str, Any]) -> dict[str, Any]:
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
