"""A lenient JSON parser for the output of models. Common errors are accepted if they have only one possible meaning."""

from __future__ import annotations

import json
import re
from typing import Any

DEEPEST = 32

_TOKEN = re.compile(
    r"""(?P<skipped>\s+|//[^\n]*|\#[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)
    |(?P<text>"[^"\\]*(?:\\.[^"\\]*)*"|'[^'\\]*(?:\\.[^'\\]*)*'
        |[“”„][^“”\\]*(?:\\.[^“”\\]*)*[“”]|[‘’][^’\\]*(?:\\.[^’\\]*)*’)
    |(?P<mark>[{}\[\],:])
    |(?P<word>[^\s{}\[\],:"'“”„‘’/\#]+)""",
    re.VERBOSE | re.DOTALL,
)
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_WORDS = {"True": "true", "False": "false", "None": "null", "nan": "NaN"}
_ESCAPE = re.compile(r'\\(?:(u[0-9a-fA-F]{4}|["\\/bfnrt])|\n|(.))|"', re.DOTALL)
_SURROGATES = re.compile(r"[\ud800-\udfff]")


class NotAnObject(ValueError):
    """A text starts like a JSON object, but has an error that is not accepted."""


def object_at(text: str, start: int) -> tuple[dict[str, Any], int]:
    """Return the members of the object that starts at ``start``, and the index of its end. The time is linear in the length of the text."""
    try:
        members, end = _DECODER.raw_decode(text, start)
        if text.count("{", start, end) + text.count("[", start, end) <= DEEPEST:
            return members, end
    except (ValueError, RecursionError):  # not strict JSON
        pass
    strict, end = _rewritten(text, start)
    try:
        return json.loads(" ".join(strict), strict=False, object_pairs_hook=_members), end
    except ValueError as error:
        raise NotAnObject(str(error)) from None


def _rewritten(text: str, start: int) -> tuple[list[str], int]:
    strict: list[str] = []
    depth, at = 0, start
    while match := _TOKEN.match(text, at):
        at, piece, kind = match.end(), match[0], match.lastgroup
        if kind == "skipped":
            continue
        if kind == "text":
            piece = piece[1:-1]
            piece = f'"{_ESCAPE.sub(_escaped, piece)}"' if "\\" in piece or '"' in piece else f'"{piece}"'
        elif kind == "word":
            piece = _WORDS.get(piece, piece)
        elif piece == ":" and strict and _KEY.fullmatch(strict[-1]):
            strict[-1] = f'"{strict[-1]}"'
        elif piece in "}]" and strict[-1:] == [","] and strict[-2] not in ",{[":
            strict.pop()
        strict.append(piece)
        depth += (piece in "{[") - (piece in "}]")
        if depth <= 0:
            return strict, at
        if depth > DEEPEST:
            break
    raise NotAnObject("It is not closed, or has an error that is not accepted.")


def _escaped(match: re.Match[str]) -> str:
    if match[0] == '"':
        return '\\"'
    return match[0] if match[1] else "" if match[2] is None else match[2] if match[2] == "'" else f"\\\\{match[2]}"


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, given in pairs:
        key, value = _whole(name), _whole(given)
        if key in members and (members[key] != value or type(members[key]) is not type(value)):
            raise NotAnObject("A key has two different values.")
        members[key] = value
    return members


def _whole(value: Any) -> Any:
    """Return the value. In a text, U+FFFD replaces each lone surrogate that an escape made, because pydantic rejects lone surrogates."""
    if not isinstance(value, str) or not _SURROGATES.search(value):
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_members)
