"""How a judge is told the form of its verdict: a strict JSON schema for servers that take one, and a sentence for the others.

The schema keeps to what OpenAI's strict mode, its fine-tuned models and guided decoding all take: every object is closed and
requires all its members, and no keyword limits a value; limits stand in descriptions, and reading holds them.
Source: https://platform.openai.com/docs/guides/structured-outputs#supported-schemas
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema

from qreward.errors import ConfigError
from qreward.judge.reading.numbers import Scale, shown
from qreward.judge.reading.shape import Shape

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


def schema_of(model: type[BaseModel], scale: Scale | None = None, *, field: str = "score") -> dict[str, Any]:
    """The strict JSON schema of a verdict, for ``response_format``.

    Raises:
        ConfigError: the model has something that no strict schema states, such as a member of any type or a mapping.

    Example:
        >>> from qreward.judge.reading import ScoreVerdict
        >>> schema_of(ScoreVerdict, (0, 10))["properties"]["score"]
        {'type': 'number', 'description': 'from 0 to 10'}
    """
    shape = Shape.of(model, field, scale)
    try:
        raw = model.model_json_schema(mode="validation")
    except PydanticInvalidForJsonSchema as error:
        raise ConfigError(f"{model.__name__} has no JSON schema: {error.message}") from None
    strict = _strict(raw, model.__name__)
    if "$ref" in strict:  # a model that holds itself; the root must be an object of its own
        strict = {**strict["$defs"][strict["$ref"].rpartition("/")[2]], "$defs": strict["$defs"]}
    if shape.number and scale and not shape.numerals:  # choices say themselves what may be said
        member = strict["properties"][shape.key]
        strict["properties"][shape.key] = _described(member, _span(scale))
    return strict


def instruction(model: type[BaseModel], scale: Scale | None = None, *, field: str = "score") -> str:
    """The sentence that asks for a verdict's form in the prompt itself.

    Example:
        >>> from qreward.judge.reading import ScoreVerdict
        >>> print(instruction(ScoreVerdict, (0, 10)))
        Answer with one JSON object and nothing else, with these members in this order:
        "reason": text, why, in a few sentences
        "score": number, from 0 to 10
    """
    schema = schema_of(model, scale, field=field)
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
    told = node.get("description", "").partition("\n\n")[0].strip()  # of a docstring, its first paragraph
    return _described(kept | ({"description": told} if told else {}), limits)


def _rewritten(node: dict[str, Any]) -> dict[str, Any]:
    """The same in the keywords that strict mode knows."""
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


def _span(scale: Scale) -> str:
    return f"from {shown(scale[0])} to {shown(scale[1])}"


def _words(node: dict[str, Any], defs: dict[str, Any]) -> str:
    """A member in words, for a reader who knows no JSON schema."""
    told = node.get("description")
    if "$ref" in node:
        node = defs[node["$ref"].rpartition("/")[2]]
    return ", ".join(part for part in (_type_words(node, defs), told or node.get("description")) if part)


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
