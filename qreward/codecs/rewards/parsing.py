"""Strict parsing of lists in responses: numbers must be finite, and each row must belong to one item."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from typing import Any

from qreward.codecs import json as jsonio
from qreward.codecs.base import EmbeddedError, Malformed, described, ending_of, is_failure


class InvalidRow(Exception):
    """One row of a response has no valid value. The message describes the fault."""


def read(body: bytes) -> Any:
    """Return the decoded body. Raises ``Malformed``, or ``EmbeddedError`` if the body is an error (see ``is_error``)."""
    document = jsonio.read(body)
    if isinstance(document, dict) and is_error(document):
        raise EmbeddedError(document)
    return document


def is_error(document: dict[str, Any]) -> bool:
    return bool(document.get("error")) or document.get("object") == "error" or ("message" in document and "type" in document)


def check_ending(reason: object) -> None:
    if is_failure(ending := ending_of(reason)):
        raise InvalidRow(f"it is not whole: {described(ending)}")


def member(document: Any, name: str) -> list[Any]:
    """Return the list in the member ``name`` of the response, or the response itself if the name is ``""``."""
    found = (document.get(name) if isinstance(document, dict) else None) if name else document
    if not isinstance(found, list):
        raise Malformed(f"the answer has no {name}" if name else "the answer is not an array of results")
    return found


def as_many(rows: list[Any], count: int, what: str) -> list[Any]:
    if len(rows) != count:
        raise Malformed(f"the answer has {len(rows)} {what} for {count} item{'s'[: count != 1]}")
    return rows


def in_order(rows: list[Any], count: int) -> list[Any]:
    rows = as_many(rows, count, "results")
    order = order_of([row.get("index") if isinstance(row, dict) else None for row in rows])
    return rows if order is None else [rows[place] for place in order]


def order_of(indexes: list[Any]) -> list[int] | None:
    """Return the place of each item's row; None if no row has an index. Raises ``Malformed`` if the indexes do not match the items."""
    if all(index is None for index in indexes):
        return None
    if not all(type(index) is int for index in indexes) or set(indexes) != set(range(len(indexes))):
        raise Malformed("the indexes of the results do not match the items")
    return sorted(range(len(indexes)), key=indexes.__getitem__)


def number(raw: Any, what: str = "score") -> float:
    """Return a finite number. Raises ``InvalidRow`` for anything else, including null, NaN and true."""
    if (type(raw) is float or type(raw) is int) and (value := jsonio.finite(raw)) is not None:
        return value
    raise InvalidRow(f"its {what} is {safe_repr(raw)}, not a finite number")


def is_number(raw: Any) -> bool:
    return type(raw) in (float, int) and jsonio.finite(raw) is not None


def numbers(raw: Any, what: str) -> list[float]:
    """Return a non-empty list of finite numbers. A string is decoded as base64 of little-endian float32, as in the OpenAI API."""
    try:
        values = jsonio.base64_floats(raw) if isinstance(raw, str) else raw
    except ValueError:
        raise InvalidRow(f"its {what} is a text, but not base64 of float32") from None
    if not isinstance(values, list) or not values:
        raise InvalidRow(f"its {what} is {safe_repr(raw)}, not a list of numbers")
    if set(map(type, values)) == {float} and all(map(math.isfinite, values)):
        return values
    return [number(value, what) for value in values]


def row_of(raw: Any) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise InvalidRow(f"its result is {safe_repr(raw)}, not an object")
    if is_error(raw):
        raise InvalidRow("the server reports an error for it")
    return raw


def check_labels(best: Any, values: Sequence[float], names: Sequence[str]) -> None:
    """Raise ``InvalidRow`` if ``best``, the server's name of the most probable class, is that of another class in ``names``."""
    if best in names and len(names) == len(values) and values[names.index(best)] < (most := max(values)):
        raise InvalidRow(
            f"the server calls its most probable class {best!r}, and labels calls it {names[values.index(most)]!r}; "
            "give labels in the order of the model"
        )


def by_position(values: Sequence[float], label: int | str | None, names: Sequence[str], *, last: bool, what: str) -> float:
    if isinstance(label, str):
        if label not in names:
            raise InvalidRow(f"its {what} has no {label!r}; label may be a position, or one of the names in labels ({safe_names(names)})")
        label = names.index(label)
    if label is None:
        if len(values) > 1 and not last:
            raise InvalidRow(f"its {what} has {len(values)} numbers; select the reward with RewardModel(label=...)")
        label = -1
    if not -len(values) <= label < len(values):
        raise InvalidRow(f"its {what} has {len(values)} number{'s'[: len(values) != 1]}, and none at position {label}")
    return values[label]


def labelled(row: Any) -> dict[str, float]:
    """Return the score of each label in a row. The order of the scores has no meaning, because servers sort by score."""
    if not isinstance(row, list) or not row:
        raise InvalidRow(f"its result is {safe_repr(row)}, not a list of labels")
    found: dict[str, float] = {}
    for entry in map(row_of, row):
        label = entry.get("label")
        if not isinstance(label, str) or label in found:
            raise InvalidRow("its labels are not distinct names")
        found[label] = number(entry.get("score"))
    return found


def by_name(attributes: dict[str, Any], label: int | str | None, usual: str) -> Any:
    if isinstance(label, int):
        return by_position(list(attributes.values()), label, (), last=False, what="answer")
    if label is None:
        label = usual if usual in attributes or len(attributes) != 1 else next(iter(attributes))
    if label not in attributes:
        raise InvalidRow(f"it has {safe_names(attributes)}; select the reward with RewardModel(label=...)")
    return attributes[label]


def safe_repr(raw: Any) -> str:
    if raw is None:
        return "null"
    if isinstance(raw, bool | float):
        return str(raw).lower()
    return _KINDS.get(type(raw), "something else")


def safe_names(names: Collection[str]) -> str:
    words = [name for name in names if _WORD.fullmatch(name)]
    return ", ".join(words) if words and len(words) == len(names) else f"{len(names)} names" if names else "no names"


_WORD = re.compile(r"[A-Za-z][A-Za-z_]{0,30}\d?")
_KINDS = {int: "a number too large", str: "a text", list: "a list", dict: "an object"}
