"""Separates the judge's own words from reasoning, quotations, code and JSON. This module does not know verdicts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from qreward.judge.parsing.json import NotAnObject, object_at

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
    r"(?P<begin>(?:^|>)[ \t*_#-]*(?:\d[.)][ \t]*)?)?"
    r"<(?P<tag>(?P<label>(?:final_|overall_)?(?:score|rating|grade|verdict)|preferred|preference|winner|decision))>"
    r"\s{0,9}(?P<value>[^<>\n]{1,40})\s{0,9}</(?P=tag)>(?P<end>(?=[ \t*_]*(?:$|<|[.!/]|out of|points)))?",
    re.IGNORECASE | re.MULTILINE,
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
_PARAGRAPH_END = re.compile(r"\n\s*\n|\Z")

MOST_BROKEN = 4
"""The number of broken objects in an answer with marked verdicts that are looked at. Each look may take as long as the answer."""

ValueOf = Callable[[dict[str, Any]], Any]
"""A function from the members of a JSON object to the value of the verdict that they state; None if the object is not a verdict."""
Found = list[tuple[Any, dict[str, Any]]]
"""The JSON objects of an answer that state a verdict, in their order. An entry has the value of the verdict and the object's members."""


def own_words(text: str, value_of: ValueOf, *, marked: bool = False) -> tuple[str, Found]:  # noqa: C901 - one loop over the marks
    """Return the judge's own words, and the verdicts in JSON among them."""
    text = text.replace(OBJECT, GAP).replace("\r\n", "\n").replace("\r", "\n")
    if "<" in text:
        text = _VALUE_TAG.sub(lambda tag: tag[0] if marked and None in (tag["begin"], tag["end"]) else _with_label(tag), text)
        text = _BLOCK_TAG.sub("\n", _INLINE_TAG.sub("", text))
    out: list[str] = []
    found: Found = []
    last = _last_closers(text) if marked else {}
    at, closer, broken = 0, "", 0
    while begins := _MARK_BEGINS.search(text, at):
        start, before = begins.start(), at
        mark = _MARK.match(text, start)
        at = mark.end() if mark else start + 1
        if closer:
            if mark and _closes(mark, closer) and (not marked or _may_close(mark)):
                out.append(GAP)
                closer = ""
            continue
        if not mark or (mark["brace"] and broken == MOST_BROKEN):
            out.append(text[before:at])
            continue
        out.append(text[before:start])
        if mark["brace"] or _JSON_BLOCK.match(text, start):
            try:
                words, at = _object(text, start, value_of, found)
            except Unreadable:
                if not marked:
                    raise
                broken, words = broken + 1, mark[0]
        elif marked:
            words, closer, at = _opened_leniently(mark, last)
            out = [] if mark["closing"] else out
        else:
            words, closer = _opened(mark, runs_on=bool(_RUNS_ON.match(text, at)))
        out.append(words)
    if closer:
        raise Unreadable(_UNPAIRED)
    return "".join([*out, text[at:]]), found


def _with_label(tag: re.Match[str]) -> str:
    return f"{tag['begin'] or ''}{tag['label'].replace('_', ' ')}: {tag['value']}"


_BAD_JSON = "The answer's JSON is not complete or not correct."
_UNPAIRED = "It is not clear what the answer quotes: its quotation marks, fences or tags do not pair."


def _opened(mark: re.Match[str], *, runs_on: bool) -> tuple[str, str]:
    """Return two texts: the replacement for a mark, and the closing mark of the quotation that the mark opens; ``""`` for no quotation."""
    if mark["block"]:
        if runs_on:
            raise Unreadable("It is not clear where a block quote of the answer ends.")
        return GAP, ""
    if mark["apostrophe"] or mark[0] == "-->":  # may be the true end of a quotation, if the quoted text contained a closing mark
        return mark[0] + GAP, ""
    if mark[0].endswith("/>"):
        return " ", ""
    if mark["closing"] or (mark["quote"] and mark[0] not in _CLOSERS):
        raise Unreadable(_UNPAIRED)
    if mark["tag"]:
        return "", f"</{mark['tag'].lower()}"
    return "\n" if mark["fence"] else "", _closer(mark)


def _closer(mark: re.Match[str]) -> str:
    return mark["fence"] or mark["ticks"] or (f"</{mark['tag'].lower()}" if mark["tag"] else _CLOSERS.get(mark[0]) or "-->")


def _last_closers(text: str) -> dict[str, int]:
    last: dict[str, int] = {}
    for mark in _MARK.finditer(text):
        if mark["closing"]:
            last[_closer(mark)] = mark.start()
        elif not mark["tag"] and _may_close(mark):
            last[mark[0].strip()] = mark.start()
    return last


def _may_close(mark: re.Match[str]) -> bool:
    follows = mark.string[mark.end() : mark.end() + 1]
    return mark[0] not in "\"'" or not (follows.isascii() and follows.isalnum())


def _opened_leniently(mark: re.Match[str], last: dict[str, int]) -> tuple[str, str, int]:
    """Return the replacement for a mark, its closing mark, and the place from which to go on. See :func:`own_words`."""
    text, at = mark.string, mark.end()
    precedes, follows = text[mark.start() - 1 : mark.start()] if mark.start() else "", text[at : at + 1]
    ends_word = mark[0] in "\"'" and ((precedes.isascii() and precedes.isalnum()) or not follows.strip())
    if mark["apostrophe"] or mark[0] == "-->" or mark[0].endswith("/>") or (ends_word and not (mark["quote"] and precedes.isalpha())):
        return mark[0], "", at  # no quotation mark, or the mark of an inch
    if mark["closing"]:
        return GAP, "", at
    if mark["block"] or ends_word or (mark["quote"] and mark[0] not in _CLOSERS):
        return GAP, "", _paragraph_end(text, at)
    closer = _closer(mark)
    if any(last.get(one, -1) >= at for one in ([closer] if len(closer) > 2 or closer[0] in "`~" else closer)):
        return "\n" if mark["fence"] else "", closer, at
    line = text[max(0, mark.start() - 80) : mark.start()].rpartition("\n")[2] + text[at : at + 80].partition("\n")[0]
    if mark["fence"] or mark["comment"] or (mark["tag"] and not line.strip()):
        raise Unreadable(_UNPAIRED)
    return (mark[0], "", at) if mark["tag"] or mark["single"] else (GAP, "", _paragraph_end(text, at))


def _paragraph_end(text: str, at: int) -> int:
    end = _PARAGRAPH_END.search(text, at)
    return end.start() if end else len(text)


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
