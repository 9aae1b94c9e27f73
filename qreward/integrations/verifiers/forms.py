"""Converts a Pydantic model to a ``response_format``: the strict JSON schema that OpenAI's servers require. Knows no judge."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def strict_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the ``response_format`` for an answer that is an object with exactly the fields of the model."""
    return {"type": "json_schema", "json_schema": {"name": model.__name__, "schema": _closed(model.model_json_schema()), "strict": True}}


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(each) for name, each in schema.items() if name != "default"}
    if closed.get("type") == "object" and isinstance(closed.get("properties"), dict):
        closed |= {"additionalProperties": False, "required": list(closed["properties"])}
    return closed
