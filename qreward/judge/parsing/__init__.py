"""Reads a judge's answer as a verdict, strictly: a text in, a pydantic model or :class:`Unreadable` out.

What is not clearly the judge's one verdict is refused: an answer that cannot be read is asked for again, a wrong number is a reward.
Knows no client, no prompt and no clock.

========================= ================================================================================================
In an answer              Reading
========================= ================================================================================================
thought                   ``<think>``, ``<thinking>``, ``<reasoning>``, ``<thought>`` blocks are left out; what the server gives
                          apart as reasoning too. Refused: a block that is not closed, a second lone closing tag. Before a lone
                          ``</think>`` there may be no other verdict.
one JSON object           read if it is the whole answer, or the whole of its one fenced block.
an object among words     read if it stands as a sentence of its own, or after a label ("My verdict: {...}"), outside of quotations.
slips in JSON             accepted: trailing commas, single and typographic quotes, ``True``/``None``, comments, line breaks in
                          strings, keys without quotes or in other letters. Refused: every other slip, beside a good verdict too.
a verdict in words        read if a whole sentence is the verdict and nothing else: a label and a value ("**Score:** 7/10",
                          "Final rating is 7.", "[RESULT] 4", "Verdict: yes", "Winner: B"), a heading or table row of the two,
                          ``<score>7</score>``, or a value in double brackets ("[[7]]", "[[A]]", "[[A>B]]").
a value alone             "7", "7/10", ``\\boxed{7}``, "Yes.", "Response A": read if it is the whole answer.
words of the task         "The final answer is 7", "Result: 7", "Total: 7", "Conclusion: 7", "7/10 tests passed": never a verdict.
verdicts in a sentence    "I would give it a 7", "Score: 7, because ...", "Response A is better": refused. They may hold conditions.
another verdict           anywhere in the judge's own words: refused, unless it is the same. Fractions of aspects ("Style: 6/10") may
                          come before the verdict.
after the verdict         only reasons that say so ("Reason: ...", a heading "Strengths"). Refused: all other words, and among the reasons
                          another number, in digits or words, or what may revise ("wait", "correction", "I missed", "too high").
fractions                 "7/10" where 10 is the top of the scale. Any other denominator: refused, as it may be another scale.
per cent                  on scales of 0 to 1 and 0 to 100. Elsewhere: refused.
decimals                  "7.5" and "7,5". Three digits after a comma may be thousands: refused.
no plain number           ranges, "about 7", "7 or 8", sums, exponents, other digits than ASCII's, leading zeros, NaN, infinity, what
                          is off the scale: refused. In JSON, true and null are no numbers; the texts "7" and "7/10" are.
quotations                fenced blocks but for ``json`` ones, lines after ``>``, quotation marks of all kinds, inline code, tags but
                          for those of layout and of a value, comments of HTML: not the judge's words, whatever they say. Between
                          two quotations nothing is read as a verdict. Refused: marks that do not pair.
reported speech           what follows "The candidate wrote:" gives no verdict, and stands against one.
length                    of more than 100,000 characters beside thought: refused, as reading must not hold up others.
========================= ================================================================================================
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from qreward.judge.parsing.json import NotAnObject, object_at
from qreward.judge.parsing.quotations import Unreadable, without_thought
from qreward.judge.parsing.schema import M, PreferenceVerdict, ScoreVerdict, Shape, YesNoVerdict, instruction, schema_of
from qreward.judge.parsing.text import TextReader, sentences

__all__ = ["PreferenceVerdict", "ScoreVerdict", "Unreadable", "YesNoVerdict", "instruction", "read", "schema_of"]

LONGEST = 100_000
"""Characters of an answer, its thought not counted, that are read at most: a bound to the time that a hostile one can take."""

_WRAPPED = re.compile(
    r"```\w{0,12}[ \t]*\n(?P<fenced>.*?)\n?[ \t]*```|<(?P<tag>answer|output|result|final|final_answer|judge?ment|evaluation)>(?P<tagged>.*)"
    r"</(?P=tag)>|(?P<mark>[\"'`])(?P<quoted>[^\n]{1,40})(?P=mark)[.]?",
    re.DOTALL | re.IGNORECASE,
)
_OTHER_MARKS = re.compile(r"[\n\"'`<\u201c\u201d]")


def read(text: str, model: type[M], *, scale: tuple[float, float] | None = None, reasoning: str | None = None) -> M:
    """Read a judge's answer as a verdict, or refuse it.

    The field ``score`` decides; if there is none, the only required field that is a number, a bool or a choice.

    Args:
        text: the answer's content.
        model: what the verdict is read as.
        scale: lowest and highest number; None takes the field's own ``ge`` and ``le`` if it has both.
        reasoning: what the server gave apart as the model's thought. Nothing is ever read from it.

    Raises:
        Unreadable: there is no verdict, or more than one, or it is not clear whose it is, or it is not on the scale.

    Example:
        >>> from qreward.judge.parsing import ScoreVerdict
        >>> read("<think>Hm.</think>It is right.\\n**Score: 7/10**", ScoreVerdict, scale=(0, 10)).score
        7.0
    """
    shape: Shape[M]
    shape, reader = _prepared(model, scale)
    if not text.strip():
        raise Unreadable("The answer holds thought alone." if reasoning else "The answer is empty.")
    whole = _whole_object(text)
    if whole is not None:
        return shape.of_members(whole)
    before, answer = without_thought(text)
    answer = _unwrapped(answer)
    members = _whole_object(answer)
    if members is not None:
        value = shape.value_of(members)
    elif len(answer) > LONGEST:
        raise Unreadable("The answer is too long.")
    else:
        value, members = reader.read(answer, shape.value_of)
    if before.strip() and _may_be_a_verdict(before, value, reader):
        raise Unreadable("There may be another verdict before the closing tag of a thought that nothing opened.")
    return shape.of_members({shape.key: value} if members is None else members)


@lru_cache(maxsize=64)
def _prepared(model: type[Any], scale: tuple[float, float] | None) -> tuple[Shape[Any], TextReader]:
    shape = Shape.of(model, scale)
    return shape, TextReader(shape.name or "", shape.scale, None if shape.number else dict(shape.options))


def _inside(text: str) -> str:
    """What stands in the one fenced block, tag or quotation that a text is, else nothing."""
    match = _WRAPPED.fullmatch(text.strip())
    return (match["fenced"] or match["tagged"] or match["quoted"] or "").strip() if match else ""


def _unwrapped(answer: str) -> str:
    """One line without other marks that an answer wraps as a whole is not quoted: it is the answer."""
    inside = _inside(answer)
    return inside if inside and not _OTHER_MARKS.search(inside) else answer


def _whole_object(text: str) -> dict[str, Any] | None:
    """The object that is all of a text, or all of what it wraps."""
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
    """Whether what stands before a lone closing tag of a thought may be the judge's own verdict, and the tag a judged text's."""
    if len(before) > LONGEST or before.rstrip()[-1] not in ".!?)" or "<" in before:
        return True
    *found, end = sentences(f"{before.rstrip()}\n.")
    return not end.own or any(reader.differs(sentence.text, value, before=True) for sentence in found)
