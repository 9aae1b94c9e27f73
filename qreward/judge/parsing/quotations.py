"""Extract the judge's own words from an answer: reasoning and quotations are removed, JSON objects are collected.

This module knows no verdicts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from qreward.judge.parsing.json import NotAnObject, object_at

GAP = "\ufffc"
"""Replaces a quotation in the judge's own words."""
OBJECT = "\ue000"
"""Replaces a JSON object that is a verdict."""


class Unreadable(ValueError):
    """An answer is not accepted as a verdict.

    Attributes:
        why: one short sentence that can be sent to the judge with the repeated request. It never quotes the answer, so a judged text
            cannot inject instructions through it.

    Example:
        >>> Unreadable("The answer is empty.").why
        'The answer is empty.'
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


_THOUGHT = re.compile(r"<(/?)(think|thinking|reasoning|thought)>", re.IGNORECASE)


def without_reasoning(text: str) -> tuple[str, str]:
    """Remove the reasoning blocks of an answer.

    A chat template may put the opening tag into the prompt, so that the answer contains only the closing one. A closing tag after a block,
    or a second lone one, may come from a judged text. Then it is unclear which side of it is the judge's.

    Returns:
        ``(text before a lone closing tag or "", answer)``.

    Raises:
        Unreadable: a block is not closed (the answer was cut off during reasoning), the tags do not pair, or the answer ends with
            reasoning.

    Example:
        >>> without_thought("<think>7 or 8?</think>Score: 8")
        ('', 'Score: 8')
        >>> without_thought("7 or 8?\\n</think>\\nScore: 8")
        ('7 or 8?\\n', '\\nScore: 8')
    """
    kept: list[str] = []
    start, opened, blocks, before = 0, "", 0, ""
    for tag in _THOUGHT.finditer(text):
        closing, name = bool(tag[1]), tag[2].lower()
        if opened:
            if closing and name == opened:
                start, opened, blocks = tag.end(), "", blocks + 1
        elif not closing:
            kept.append(text[start : tag.start()])
            opened = name
        elif blocks or before:
            raise Unreadable("The answer holds a closing tag of a thought that nothing opened.")
        else:
            before, start = text[: tag.start()] or " ", tag.end()
    if opened:
        raise Unreadable("The answer ends before its thinking does.")
    answer = "".join([*kept, text[start:]])
    if answer.strip() and blocks and not text[start:].strip():
        raise Unreadable("The answer ends with thought, which may take back what stands before it.")
    return before, answer


_VALUE_TAG = re.compile(
    r"<((?:final_|overall_)?(?:score|rating|grade|verdict)|preferred|preference|winner|decision)>\s{0,9}([^<>\n]{1,40})\s{0,9}</\1>",
    re.IGNORECASE,
)
_INLINE_TAG = re.compile(r"</?(?:b|strong|i|em|u|span|sub|sup|small|font|center|mark)(?:\s[^<>\n]{0,200})?>", re.IGNORECASE)
_BLOCK_TAG = re.compile(
    r"</?(?:br|p|div|h[1-6]|[uo]l|li|hr|table|tbody|thead|tr|t[dh]|evaluation|assessment|analysis|rationale|explanation|feedback|critique|"
    r"review|judge?ment|reason)(?:\s[^<>\n]{0,200})?/?>|<\|[^|<>\n]{1,40}\|>",
    re.IGNORECASE,
)
_MARK_BEGINS = re.compile("[-~>`<{\"'“”„«»「」『』‘’]")  # noqa: RUF001
_MARK = re.compile(
    r"""(?<![^\n])(?P<fence>`{3,}|~{3,})[^`\n]*$
    |(?<![^\n])(?P<block>>)[^\n]*(?:\n[ \t]*>[^\n]*)*
    |(?P<ticks>`+)
    |<(?:(?P<closing>/)|(?<!\w<))(?P<tag>[A-Za-z][\w.-]{0,40})(?:\s[^<>\n]{0,200})?>
    |(?P<comment><!--|-->)
    |(?P<quote>["“”„«»「」『』])
    |(?P<single>(?<!\w)['‘])|(?P<apostrophe>['’](?!\w))
    |(?P<brace>(?<![\w}^_])\{)""",  # noqa: RUF001
    re.VERBOSE | re.MULTILINE,
)
_CLOSERS = {'"': '"', "“": "”", "„": "“”", "«": "»", "「": "」", "『": "』", "'": "'’", "‘": "'’"}  # noqa: RUF001
_LIKE_JSON = re.compile(r"\{\s{0,200}(?:[\"'“”„‘’]|[\w -]{1,60}:|/[*/]|\#)")  # noqa: RUF001
_JSON_BLOCK = re.compile(r"```[ \t]*(?:json[c5]?)[ \t]*\n\s*(?=\{)", re.IGNORECASE)
_BLOCK_END = re.compile(r"\s*```[ \t]*(?=\n|\Z)")
_RUNS_ON = re.compile(r"\n[ \t]*\S")


class Objects(NamedTuple):
    """Collects the JSON objects in an answer that are verdicts.

    Attributes:
        found: the value and the members of each, in order.
        value_of: returns the value of an object's members; None if it is not a verdict.
    """

    found: list[tuple[Any, dict[str, Any]]]
    value_of: Callable[[dict[str, Any]], Any]


def own_words(text: str, objects: Objects) -> str:
    """The judge's own words, with a :data:`GAP` for each quotation and an :data:`OBJECT` for each verdict in JSON.

    Quotations are: text in quotation marks, inline code, fenced blocks (except a ``json`` block with one object), lines after ``>``, HTML
    comments, and tags other than layout tags and tags around a value. Inside a quotation only its closing mark has a meaning.

    Raises:
        Unreadable: the marks do not pair, or an object is incomplete or invalid.

    Example:
        >>> own_words('It says "Score: 10". Score: 2', Objects([], lambda members: None))
        'It says \ufffc. Score: 2'
    """
    text = text.replace(OBJECT, GAP).replace("\r\n", "\n").replace("\r", "\n")
    if "<" in text:
        text = _BLOCK_TAG.sub("\n", _INLINE_TAG.sub("", _VALUE_TAG.sub(lambda tag: f"\n{tag[1].replace('_', ' ')}: {tag[2]}\n", text)))
    out: list[str] = []
    at, closer = 0, ""
    while begins := _MARK_BEGINS.search(text, at):
        start, before = begins.start(), at
        mark = _MARK.match(text, start)
        at = mark.end() if mark else start + 1
        if closer:
            if mark and _closes(mark, closer):
                out.append(GAP)
                closer = ""
            continue
        if not mark:
            out.append(text[before:at])
            continue
        out.append(text[before:start])
        if mark["brace"] or _JSON_BLOCK.match(text, start):
            words, at = _object(text, start, objects)
        else:
            words, closer = _opened(mark, runs_on=bool(_RUNS_ON.match(text, at)))
        out.append(words)
    if closer:
        raise _UNPAIRED
    return "".join([*out, text[at:]])


_UNPAIRED = Unreadable("It is not clear what the answer quotes: its quotation marks, fences or tags do not pair.")


def _opened(mark: re.Match[str], *, runs_on: bool) -> tuple[str, str]:
    """The text that replaces a mark outside of quotations, and the mark that closes the quotation it opens; ``""`` if it opens none."""
    if mark["block"]:
        if runs_on:
            raise Unreadable("It is not clear where a block quote of the answer ends.")
        return GAP, ""
    if mark["apostrophe"] or mark[0] == "-->":  # it may be the real end of a quotation that the quoted text closed earlier
        return mark[0] + GAP, ""
    if mark[0].endswith("/>"):
        return " ", ""
    if mark["closing"] or (mark["quote"] and mark[0] not in _CLOSERS):
        raise _UNPAIRED
    if mark["tag"]:
        return "", f"</{mark['tag'].lower()}"
    return "\n" if mark["fence"] else "", mark["fence"] or mark["ticks"] or (_CLOSERS.get(mark[0]) or "-->")


def _closes(mark: re.Match[str], closer: str) -> bool:
    if closer[0] == "<":
        return bool(mark["closing"]) and f"</{mark['tag'].lower()}" == closer
    if mark["fence"] and mark[0].strip() == mark["fence"]:
        return mark["fence"].startswith(closer)
    return mark[0] == closer or (bool(mark["quote"] or mark["single"] or mark["apostrophe"]) and mark[0] in closer)


def _object(text: str, start: int, objects: Objects) -> tuple[str, int]:
    """The replacement for an object that may start at ``start``, alone or in a ``json`` block, and the index of its end."""
    block = _JSON_BLOCK.match(text, start)
    start = block.end() if block else start
    if not block and not _LIKE_JSON.match(text, start):
        return "{", start + 1
    try:
        members, end = object_at(text, start)
    except NotAnObject:
        raise Unreadable("The answer's JSON is not complete or not correct.") from None
    value = objects.value_of(members)
    words = "{}" if value is None else OBJECT
    if value is not None:
        objects.found.append((value, members))
    if not block:
        return words, end
    closing = _BLOCK_END.match(text, end)
    if not closing:
        raise Unreadable("The answer's JSON is not complete or not correct.")
    return f"\n{words}\n", closing.end()
