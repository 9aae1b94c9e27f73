"""What telemetry says of a request: its operation, and the parameters that the conventions name. Never its content."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from qreward.telemetry import names

Attributes = dict[str, Any]

MOST_STOPS, LONGEST_TEXT = 8, 64
"""Stop sequences that are told, and characters of each."""


def attributes_of(params: Mapping[str, Any]) -> Attributes:
    """The parameters of a request as attributes. What is not of the type it should be is left out.

    Example:
        >>> attributes_of({"temperature": 0, "n": 1, "stop": "END", "user": "me", "response_format": {"type": "json_object"}})
        {'gen_ai.request.temperature': 0, 'gen_ai.request.stop_sequences': ('END',), 'gen_ai.output.type': 'json'}
    """
    found: Attributes = {}
    for name, value in params.items():
        attribute = names.REQUEST_NUMBERS.get(name)
        if attribute is not None:
            if _is_number(value):
                found[attribute] = value
        elif (make := _OTHERS.get(name)) is not None:
            made = make(value)
            if made is not None:
                found[made[0]] = made[1]
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _choices(value: object) -> tuple[str, Any] | None:
    return (names.CHOICE_COUNT, value) if type(value) is int and value != 1 else None


def _stops(value: object) -> tuple[str, Any] | None:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple):
        return None
    texts = tuple(text[:LONGEST_TEXT] for text in listed[:MOST_STOPS] if isinstance(text, str))
    return (names.STOP_SEQUENCES, texts) if texts else None


def _reasoning(value: object) -> tuple[str, Any] | None:
    return (names.REASONING_LEVEL, value[:LONGEST_TEXT]) if isinstance(value, str) else None


def _output(value: object) -> tuple[str, Any] | None:
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind in ("json_object", "json_schema"):
        return names.OUTPUT_TYPE, "json"
    return (names.OUTPUT_TYPE, "text") if kind == "text" else None


_OTHERS = {"n": _choices, "stop": _stops, "reasoning_effort": _reasoning, "response_format": _output}
