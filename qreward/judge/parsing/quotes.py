"""Separates the judge's own words from reasoning, quotations, code and JSON. This module does not know verdicts.

JSON is parsed leniently: common errors of models are accepted if they have only one possible meaning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
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
_DOUBTFUL = re.compile(r"[\d\"'“”„‘’]")
"""What a comment up to the end of its line must not hold: it may be the end of a text that the judge did not escape, and the value."""
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
            if piece[0] in "/#" and piece[1:2] != "*" and _DOUBTFUL.search(piece):
                raise NotAnObject("A comment may hide the value.")
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

GAP = "\ufffc"
"""The character that replaces a quotation."""
OBJECT = "\ue000"
"""The character that replaces a JSON object with a verdict."""
VALUE = "\ue001"
"""The character before and after a value that stands in the form that was asked for, such as ``[[7]]``."""


class Unreadable(ValueError):
    """The answer is not accepted as a verdict."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


_THOUGHT = re.compile(r"</?(?:(?:seed:)?think|thinking|reasoning|thought)>|\[/?THINK\]|\u25c1/?think\u25b7", re.IGNORECASE)


def without_reasoning(text: str) -> tuple[str, str]:
    """Return the text before a closing tag that has no opening tag, or ``""``; and the answer without reasoning blocks."""
    kept: list[str] = []
    start, opened, before = 0, "", ""
    for tag in _THOUGHT.finditer(text):
        closing, name = "/" in tag[0], tag[0].lower().replace("/", "")
        if opened:
            if closing and name == opened:
                start, opened = tag.end(), ""
        elif not closing:
            kept.append(text[start : tag.start()])
            opened = name
        elif before:  # raised at once, because collecting the text before each of many tags would take quadratic time
            raise Unreadable("The answer has two closing reasoning tags without opening ones.")
        else:
            before, start = text[: tag.start()] or " ", tag.end()
    if opened:
        raise Unreadable("The reasoning of the answer is not closed.")
    answer = "".join([*kept, text[start:]])
    if answer.strip() and not text[start:].strip():
        raise Unreadable("The answer ends with reasoning, which may revise what precedes it.")
    return before, answer


_VALUE_TAG = re.compile(
    r"<(?P<label>(?:final_|overall_)?(?:score|rating|grade|verdict)|preferred|preference|winner|decision)>"
    r"\s{0,9}([^<>\n]{1,40})\s{0,9}</(?P=label)>",
    re.IGNORECASE,
)
_INLINE_TAG = re.compile(r"</?(?:b|strong|i|em|u|span|sub|sup|small|font|center|mark)(?:\s[^<>\n]{0,200})?>", re.IGNORECASE)
_BLOCK_TAG = re.compile(
    r"</?(?:br|p|div|h[1-6]|[uo]l|li|hr|table|tbody|thead|tr|t[dh]|evaluation|assessment|analysis|rationale|explanation|feedback|critique|"
    r"review|judge?ment|reason)(?:\s[^<>\n]{0,200})?/?>|<\|[^|<>\n]{1,40}\|>",
    re.IGNORECASE,
)
_MARK_BEGINS = re.compile("[-~>`<{\"'“”„«»「」『』‘’]")
_MARK = re.compile(
    r"""(?<![^\n])(?P<fence>`{3,}|~{3,})[^`\n]*$
    |(?<![^\n])(?P<block>>)[^\n]*(?:\n[ \t]*>[^\n]*)*
    |(?P<ticks>`+)
    |<(?:(?P<closing>/)|(?<!\w<))(?P<tag>[A-Za-z][\w.-]{0,40})(?:\s[^<>\n]{0,200})?>
    |(?P<comment><!--|-->)
    |(?P<quote>["“”„«»「」『』])
    |(?P<single>(?<!\w)['‘])|(?P<apostrophe>['’](?!\w))
    |(?P<brace>(?<![\w}^_])\{)""",
    re.VERBOSE | re.MULTILINE,
)
_CLOSERS = {'"': '"', "“": "”", "„": "“”", "«": "»", "「": "」", "『": "』", "'": "'’", "‘": "'’"}
_LIKE_JSON = re.compile(r"\{\s{0,200}(?:[\"'“”„‘’]|[\w -]{1,60}:|/[*/]|\#)")
_JSON_BLOCK = re.compile(r"```[ \t]*(?:json[c5]?)[ \t]*\n\s*(?=\{)", re.IGNORECASE)
_BLOCK_END = re.compile(r"\s*```[ \t]*(?=\n|\Z)")
_RUNS_ON = re.compile(r"\n[ \t]*\S")
_BAD_JSON = "The answer's JSON is not complete or not correct."
_UNPAIRED = "It is not clear what the answer quotes: its quotation marks, fences or tags do not pair."

ValueOf = Callable[[dict[str, Any]], Any]
"""A function from the members of a JSON object to the value of the verdict that they state; None if the object is not a verdict."""
Found = list[tuple[Any, dict[str, Any]]]
"""The JSON objects of an answer that state a verdict, in their order. An entry has the value of the verdict and the object's members."""


def own_words(text: str, value_of: ValueOf) -> tuple[str, Found]:  # noqa: C901 - one loop over the marks
    """Return the judge's own words, and the verdicts in JSON among them. Raises ``Unreadable`` if a mark of a quotation does not pair."""
    text = text.replace(OBJECT, GAP).replace("\r\n", "\n").replace("\r", "\n")
    if "<" in text:
        text = _VALUE_TAG.sub(lambda tag: f"{tag['label'].replace('_', ' ')}: {tag[2]}", text)
        text = _BLOCK_TAG.sub("\n", _INLINE_TAG.sub("", text))
    out: list[str] = []
    found: Found = []
    at, opener, closer, depth = 0, "", "", 0
    while begins := _MARK_BEGINS.search(text, at):
        start, before = begins.start(), at
        mark = _MARK.match(text, start)
        at = mark.end() if mark else start + 1
        if depth:
            if mark and _closes(mark, closer):
                depth -= 1
                out += [] if depth else [GAP]
            elif mark and mark["quote"] and mark[0] == opener:
                depth += 1
            continue
        if not mark or (mark[0] == '"' and text[start - 1 : start].isdigit()):  # the mark of an inch
            out.append(text[before:at])
            continue
        out.append(text[before:start])
        if mark["brace"] or _JSON_BLOCK.match(text, start):
            words, at = _object(text, start, value_of, found)
        elif mark["block"]:
            if _RUNS_ON.match(text, at):
                raise Unreadable("It is not clear where a block quote of the answer ends.")
            words = GAP
        elif mark["apostrophe"] or mark[0] == "-->":  # may be the true end of a quotation, if the quoted text contained a closing mark
            words = mark[0] + GAP
        elif mark[0].endswith("/>"):
            words = " "
        elif mark["closing"] or (mark["quote"] and mark[0] not in _CLOSERS):
            raise Unreadable(_UNPAIRED)
        else:
            opener, depth = mark[0], 1
            closer = mark["fence"] or mark["ticks"] or (f"</{mark['tag'].lower()}" if mark["tag"] else _CLOSERS.get(opener) or "-->")
            words = "\n" if mark["fence"] else ""
        out.append(words)
    if depth:
        raise Unreadable(_UNPAIRED)
    return "".join([*out, text[at:]]), found


def _closes(mark: re.Match[str], closer: str) -> bool:
    if closer[0] == "<":
        return bool(mark["closing"]) and f"</{mark['tag'].lower()}" == closer
    if mark["fence"] and mark[0].strip() == mark["fence"]:
        return mark["fence"].startswith(closer)
    return mark[0] == closer or (bool(mark["quote"] or mark["single"] or mark["apostrophe"]) and mark[0] in closer)


def _object(text: str, start: int, value_of: ValueOf, found: Found) -> tuple[str, int]:
    block = _JSON_BLOCK.match(text, start)
    start = block.end() if block else start
    if not block and not _LIKE_JSON.match(text, start):
        return "{", start + 1
    try:
        members, end = object_at(text, start)
    except NotAnObject:
        raise Unreadable(_BAD_JSON) from None
    value = value_of(members)
    words = "{}" if value is None else OBJECT
    if value is not None:
        found.append((value, members))
    if not block:
        return words, end
    closing = _BLOCK_END.match(text, end)
    if not closing:
        raise Unreadable(_BAD_JSON)
    return f"\n{words}\n", closing.end()
