"""JSON as models write it: read where the slip leaves no doubt, refused where a repair would be a guess.

Taken beyond JSON: trailing commas, single and typographic quotes, ``True``/``False``/``None``, comments, line breaks in strings,
keys without quotes. Refused: what is not closed, quotes that are not escaped, the same key twice with two values, anything else.
Each character is visited once: a failure says how far it came, and the search goes on from there. Knows nothing of verdicts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_SPACE = re.compile(r"(?:\s+|//[^\n]*|#[^\n]*|/\*(?:[^*]|\*(?!/)){0,200}\*/)*")
_NUMBER = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,308})(?:\.[0-9]{1,308})?(?:[eE][+-]?[0-9]{1,4})?(?![\w.+/%-])")
_WORD = re.compile(r"-?[A-Za-z_][A-Za-z0-9_-]{0,63}(?![\w.-])")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_CLOSERS = {'"': '"', "'": "'", "“": "“”", "”": "”", "„": "“”", "‘": "’", "’": "’"}  # noqa: RUF001
_CHUNKS = {closers: re.compile(rf"[^\\{closers}]*") for closers in _CLOSERS.values()}
_SHORT = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "'": "'", "\\": "\\", "/": "/", "\n": ""}
_WORDS = {
    "true": True,
    "True": True,
    "false": False,
    "False": False,
    "null": None,
    "None": None,
    "NaN": float("nan"),
    "nan": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
}
DEEPEST = 32


@dataclass
class NotAnObject(Exception):
    """What began like an object is none.

    Attributes:
        at: how far it was read.
        cut: the text ended inside it.
        opened: braces that it had opened and not closed.
        keys: names of members it had shown, at any depth.
    """

    at: int
    cut: bool
    opened: int
    keys: frozenset[str]


def object_at(text: str, start: int) -> tuple[dict[str, Any], int]:
    """The object that begins at ``start``, and where it ends; raises :class:`NotAnObject`.

    Example:
        >>> object_at("{'score': 7, ok: True,}", 0)
        ({'score': 7, 'ok': True}, 23)
    """
    return _Reader(text, start).read()


class _Stop(Exception):
    pass


class _Reader:
    """One descent over the text; ``at`` only ever grows."""

    def __init__(self, text: str, start: int) -> None:
        self.text, self.at, self.depth, self.braces = text, start, 0, 0
        self.keys: set[str] = set()

    def read(self) -> tuple[dict[str, Any], int]:
        try:
            return self.members(), self.at
        except _Stop:
            cut = self.at >= len(self.text)
            raise NotAnObject(self.at, cut, self.braces, frozenset(self.keys)) from None

    def peek(self) -> str:
        space = _SPACE.match(self.text, self.at)
        self.at = space.end() if space else self.at
        return self.text[self.at : self.at + 1]

    def enter(self) -> None:
        self.at += 1
        self.depth += 1
        if self.depth > DEEPEST:
            raise _Stop

    def members(self) -> dict[str, Any]:
        self.braces += 1
        self.enter()
        found: dict[str, Any] = {}
        while self.peek() != "}":
            key = self.key()
            if self.peek() != ":":
                raise _Stop
            self.at += 1
            value = self.value()
            if key in found and (found[key] != value or type(found[key]) is not type(value)):
                raise _Stop
            found[key] = value
            self.comma("}")
        self.leave()
        self.braces -= 1
        return found

    def items(self) -> list[Any]:
        self.enter()
        found: list[Any] = []
        while self.peek() != "]":
            found.append(self.value())
            self.comma("]")
        self.leave()
        return found

    def leave(self) -> None:
        self.at += 1
        self.depth -= 1

    def comma(self, closer: str) -> None:
        following = self.peek()
        if following == ",":
            self.at += 1
        elif following != closer:
            raise _Stop

    def key(self) -> str:
        key = self.string() if self.peek() in _CLOSERS and self.peek() else self.token(_WORD)
        self.keys.add(key)
        return key

    def token(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if not match:
            raise _Stop
        self.at = match.end()
        return match[0]

    def value(self) -> Any:
        first = self.peek()
        if first == "{":
            return self.members()
        if first == "[":
            return self.items()
        if first and first in _CLOSERS:
            return self.string()
        if _NUMBER.match(self.text, self.at):
            digits = self.token(_NUMBER)
            return float(digits) if set(digits) & set(".eE") else int(digits)
        word = self.token(_WORD)
        if word not in _WORDS:
            raise _Stop
        return _WORDS[word]

    def string(self) -> str:
        closers = _CLOSERS[self.text[self.at]]
        chunk, parts = _CHUNKS[closers], []
        self.at += 1
        while True:
            parts.append(self.token(chunk))
            if self.at >= len(self.text):
                raise _Stop
            if self.text[self.at] != "\\":
                self.at += 1
                return _joined(parts)
            parts.append(self.escape())

    def escape(self) -> str:
        match = _ESCAPE.match(self.text, self.at)
        if not match:
            self.at = len(self.text)
            raise _Stop
        self.at = match.end()
        return chr(int(match[1], 16)) if match[1] else _SHORT.get(match[2], match[0])


def _joined(parts: list[str]) -> str:
    """Halves of a character that were escaped one by one come together; a half alone becomes U+FFFD."""
    text = "".join(parts)
    if not _SURROGATES.search(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
