"""Strict parsing of a judge's answer: a text in, an instance of a pydantic model or :class:`Unreadable` out.

An answer that is not clearly one verdict of the judge itself is rejected. A rejected answer costs another request; a wrong number would
become a reward. This package knows no client, no prompt and no clock.

========================= ================================================================================================
In an answer              Parsing
========================= ================================================================================================
reasoning                 ``<think>``, ``<thinking>``, ``<reasoning>`` and ``<thought>`` blocks are removed, and so is reasoning that the
                          server returns separately. Rejected: a block that is not closed, a second closing tag without an opening
                          one, another verdict before a lone ``</think>``.
one JSON object           accepted if it is the whole answer, or the whole content of its only fenced block.
an object in a text       accepted as a sentence of its own, or after a label ("My verdict: {...}"), outside of quotations.
errors in JSON            accepted: trailing commas, single and typographic quotes, ``True``/``None``, comments, line breaks in strings,
                          keys without quotes or in another case. Rejected: every other error, even next to a valid verdict.
a verdict in words        accepted if a whole sentence is the verdict and nothing else: a label and a value ("**Score:** 7/10",
                          "Final rating is 7.", "[RESULT] 4", "Verdict: yes", "Winner: B"), a heading or table row of the two,
                          ``<score>7</score>``, or a value in double brackets ("[[7]]", "[[A]]", "[[A>B]]").
a value alone             "7", "7/10", ``\\boxed{7}``, "Yes.", "Response A": accepted if it is the whole answer.
words of the task         "The final answer is 7", "Result: 7", "Total: 7", "Conclusion: 7", "7/10 tests passed": never a verdict.
a verdict in a sentence   "I would give it a 7", "Score: 7, because ...", "Response A is better": rejected, as it may be conditional.
a second verdict          rejected anywhere in the judge's own words, unless it is the same. Fractions for aspects ("Style: 6/10") may
                          precede the verdict.
text after the verdict    only labelled reasons ("Reason: ...", a heading "Strengths"). Rejected: any other text, and in the reasons
                          another number, in digits or words, or a possible revision ("wait", "correction", "I missed", "too high").
fractions                 "7/10" where 10 is the top of the scale. Rejected: any other denominator, as it may be another scale.
percentages               accepted on scales of 0 to 1 and 0 to 100, rejected on others.
decimals                  "7.5" and "7,5". Rejected: three digits after a comma, which may be thousands.
other numbers             rejected: ranges, "about 7", "7 or 8", sums, exponents, digits other than ASCII, leading zeros, NaN, infinity,
                          numbers outside the scale. In JSON, true and null are not numbers; the texts "7" and "7/10" are.
quotations                fenced blocks except ``json`` ones, lines after ``>``, quotation marks of all kinds, inline code, tags except
                          layout tags and tags around a value, and HTML comments are not the judge's own words. A text between two
                          quotations is never a verdict. Rejected: marks that do not pair.
reported speech           a text after "The candidate wrote:" is never a verdict, but counts as a second one.
length                    rejected: more than 100,000 characters without reasoning, so that parsing does not block other work.
========================= ================================================================================================
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from qreward.judge.parsing.json import NotAnObject, object_at
from qreward.judge.parsing.schema import M, PreferenceVerdict, ScoreVerdict, VerdictSchema, YesNoVerdict, instruction, schema_of
from qreward.judge.parsing.text import TextReader, Unreadable, sentences, without_reasoning

__all__ = ["PreferenceVerdict", "ScoreVerdict", "Unreadable", "YesNoVerdict", "instruction", "read", "schema_of"]

LONGEST = 100_000
"""The most characters of an answer, without its reasoning. Limits the time that a hostile answer can take to parse."""

_WRAPPED = re.compile(
    r"```\w{0,12}[ \t]*\n(?P<fenced>.*?)\n?[ \t]*```|<(?P<tag>answer|output|result|final|final_answer|judge?ment|evaluation)>(?P<tagged>.*)"
    r"</(?P=tag)>|(?P<mark>[\"'`])(?P<quoted>[^\n]{1,40})(?P=mark)[.]?",
    re.DOTALL | re.IGNORECASE,
)
_OTHER_MARKS = re.compile(r"[\n\"'`<\u201c\u201d]")


def read(text: str, model: type[M], *, scale: tuple[float, float] | None = None, reasoning: str | None = None) -> M:
    """Parse a judge's answer into a verdict, or reject it.

    The deciding field is ``score``. In a model without one it is the only required field that is a number, a bool or a choice.

    Args:
        text: the content of the answer.
        model: the pydantic model of the verdict.
        scale: lowest and highest number. None takes the field's own limits: ``ge`` and ``le`` if it has both, or its choices.
        reasoning: the reasoning that the server returned separately. It is never searched for a verdict.

    Returns:
        The verdict as an instance of ``model``.

    Raises:
        Unreadable: there is no verdict, or more than one, or it may be a quotation, or it is outside the scale.

    Example:
        >>> from qreward.judge.parsing import ScoreVerdict
        >>> read("<think>Hm.</think>It is right.\\n**Score: 7/10**", ScoreVerdict, scale=(0, 10)).score
        7.0
    """
    shape: VerdictSchema[M]
    shape, reader = _prepared(model, scale)
    if not text.strip():
        raise Unreadable("The answer contains only reasoning." if reasoning else "The answer is empty.")
    whole = _whole_object(text)
    if whole is not None:
        return shape.of_members(whole)
    before, answer = without_reasoning(text)
    answer = _unwrapped(answer)
    members = _whole_object(answer)
    if members is not None:
        value = shape.value_of(members)
    elif len(answer) > LONGEST:
        raise Unreadable("The answer is too long.")
    else:
        value, members = reader.read(answer, shape.value_of)
    if before.strip() and _may_be_a_verdict(before, value, reader):
        raise Unreadable("There may be another verdict before a closing reasoning tag that has no opening one.")
    return shape.of_members({shape.key: value} if members is None else members)


@lru_cache(maxsize=64)
def _prepared(model: type[Any], scale: tuple[float, float] | None) -> tuple[VerdictSchema[Any], TextReader]:
    shape = VerdictSchema.of(model, scale)
    return shape, TextReader(shape.name or "", shape.scale, None if shape.kind.number else shape.kind.options)


def _inside(text: str) -> str:
    """The content of a text that is one fenced block, tag or quotation, else ``""``."""
    match = _WRAPPED.fullmatch(text.strip())
    return (match["fenced"] or match["tagged"] or match["quoted"] or "").strip() if match else ""


def _unwrapped(answer: str) -> str:
    """The answer without the fence, tag or quotes around all of it, if its content is one line without other marks."""
    inside = _inside(answer)
    return inside if inside and not _OTHER_MARKS.search(inside) else answer


def _whole_object(text: str) -> dict[str, Any] | None:
    """The members of the JSON object that is a whole text, or the whole content of its fence, tag or quotes; None if there is none."""
    for inside in (text.strip(), _inside(text)):
        if inside.startswith("{") and len(inside) <= LONGEST:
            try:
                members, end = object_at(inside, 0)
            except NotAnObject:
                continue
            if end == len(inside):
                return members
    return None


def _may_be_a_verdict(before: str, value: object, reader: TextReader) -> bool:
    """Whether the text before a lone closing reasoning tag may contain the judge's own verdict. The tag may come from a judged text."""
    if len(before) > LONGEST or before.rstrip()[-1] not in ".!?)" or "<" in before:
        return True
    *found, end = sentences(f"{before.rstrip()}\n.")
    return not end.own or any(reader.differs(sentence.text, value) for sentence in found)
