"""A pydantic model as the ``response_format`` of a request: the strict JSON schema that OpenAI's servers ask for. Knows no judge."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def strict_schema(model: type[BaseModel]) -> dict[str, Any]:
    """What goes into a request so that the answer is an object of the model, with all of its fields and no others."""
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
