"""Strict parsing of a judge's answer: a text becomes an instance of a pydantic model, or raises :class:`Unreadable`.

docs/design/judging.md has the rules and their reasons.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from qreward.judge.parsing.forms import JSON, Form, form_of
from qreward.judge.parsing.quotes import NotAnObject, Unreadable, object_at, without_reasoning
from qreward.judge.parsing.reader import TextReader
from qreward.judge.parsing.schema import M, PreferenceVerdict, ScoreVerdict, VerdictSchema, YesNoVerdict, instruction, schema_of
from qreward.judge.parsing.text import sentences

__all__ = ["Form", "PreferenceVerdict", "ScoreVerdict", "Unreadable", "YesNoVerdict", "form_of", "instruction", "read", "schema_of"]

LONGEST = 100_000
"""The maximum number of characters of an answer, without its reasoning. This limit bounds the time that the parsing of a hostile answer can
take."""

_WRAPPED = re.compile(
    r"```\w{0,12}[ \t]*\n(?P<fenced>.*?)\n?[ \t]*```|<(?P<tag>answer|output|result|final|final_answer|judge?ment|evaluation)>(?P<tagged>.*)"
    r"</(?P=tag)>|(?P<mark>[\"'`])(?P<quoted>[^\n]{1,40})(?P=mark)[.]?",
    re.DOTALL | re.IGNORECASE,
)
_OTHER_MARKS = re.compile(r"[\n\"'`<\u201c\u201d]")


def read(text: str, model: type[M], *, scale: tuple[float, float] | None = None, reasoning: str | None = None, form: Form = JSON) -> M:
    """Return the verdict that a judge's answer states, as an instance of ``model``. Raises ``Unreadable`` unless it is one clear
    verdict."""
    schema: VerdictSchema[M]
    schema, reader = _prepared(model, scale, form)
    if not text.strip():
        raise Unreadable("The answer contains only reasoning." if reasoning else "The answer is empty.")
    if form.reads:
        stated = form.reads(without_reasoning(text)[1])
        if stated is None:
            raise Unreadable("The answer function finds no verdict.")
        return stated if isinstance(stated, model) else schema.of_members({schema.key: stated})
    whole = _whole_object(text)
    if whole is not None:
        return schema.of_members(whole)
    before, answer = without_reasoning(text)
    inside = _inside(answer)
    answer = inside if inside and not _OTHER_MARKS.search(inside) else answer
    members = _whole_object(answer)
    if members is not None:
        value = schema.value_of(members)
    elif len(answer) > LONGEST:
        raise Unreadable("The answer is too long.")
    else:
        value, members = reader.read(answer)
    if before.strip() and _may_be_a_verdict(before, value, reader):
        raise Unreadable("There may be another verdict before a closing reasoning tag that has no opening one.")
    return schema.of_members({schema.key: value} if members is None else members)


@lru_cache(maxsize=64)
def _prepared(model: type[Any], scale: tuple[float, float] | None, form: Form) -> tuple[VerdictSchema[Any], TextReader]:
    schema = VerdictSchema(model, scale)
    return schema, TextReader(schema, form)


def _inside(text: str) -> str:
    """Return the content if the text is one fenced block, tag or quotation. Otherwise return ``""``."""
    match = _WRAPPED.fullmatch(text.strip())
    return (match["fenced"] or match["tagged"] or match["quoted"] or "").strip() if match else ""


def _whole_object(text: str) -> dict[str, Any] | None:
    """Return the members of a JSON object if the whole text is the object, perhaps in a fence, tag or quotes; otherwise None."""
    inside = text.strip() if text.lstrip().startswith("{") else _inside(text)
    if not inside.startswith("{") or len(inside) > LONGEST:
        return None
    try:
        members, end = object_at(inside, 0)
    except NotAnObject:
        return None
    return members if end == len(inside) else None


def _may_be_a_verdict(before: str, value: object, reader: TextReader) -> bool:
    """Return whether the text before a closing reasoning tag without an opening tag may contain a verdict of the judge, because the judge
    may have quoted the tag from the judged text."""
    if len(before) > LONGEST or before.rstrip()[-1] not in ".!?)" or "<" in before:
        return True
    *found, end = sentences(f"{before.rstrip()}\n.")
    return not end.own or any(reader.differs(sentence.text, value) for sentence in found)
