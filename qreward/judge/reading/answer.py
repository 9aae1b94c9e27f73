"""An answer, read: thought off, objects and words taken together, and one verdict or none."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from qreward.judge.reading.attribution import introduces_anothers
from qreward.judge.reading.choices import Choices
from qreward.judge.reading.lenient import NotAnObject, object_at
from qreward.judge.reading.own import Own, own_of
from qreward.judge.reading.phrases import Said
from qreward.judge.reading.scores import Scores
from qreward.judge.reading.shape import M, Shape
from qreward.judge.reading.thought import without_thought
from qreward.judge.reading.unreadable import Unreadable

LONGEST = 100_000
"""Characters of an answer, its thought not counted, that are read at most: a bound to the time that a hostile one can take."""

_FENCED = re.compile(r"\s*```[ \t]*(?:json[c5]?)?[ \t]*\n(.*?)\n?[ \t]*```\s*\Z", re.DOTALL | re.IGNORECASE)
_WHOLE_FENCE = re.compile(r"\s*```[ \t]*\w{0,12}[ \t]*\n([^`]*?)\n?[ \t]*```\s*\Z")
_TELLING = re.compile(
    r"\b(?:score|rating|grade|overall|total|final)\b\W{0,8}(?:(?:is|was|of)\b)?\W{0,8}\d|\b(?:verdict|winner|preferred)[^\w\n]{0,6}[:=]|"
    r"\b(?:give|rate|grade|award|deserves?|merits)\b[^.\n]{0,40}\d|\d ?/ ?\d|\[\[|boxed|<score|<rating",
    re.IGNORECASE,
)
_MEMBER = re.compile(r"[\"']([\w -]{1,60})[\"'] ?:")
_OPENING = frozenset("\"'`(<[{:\u201c\u2018\u201e\u00ab\u300c>")
_WHOLE_TAG = re.compile(r"\s*<(answer|output|result|final|final_answer|judge?ment|evaluation)>(.*)</\1>\s*\Z", re.DOTALL | re.IGNORECASE)
_WHOLE_QUOTE = re.compile(r"\s*(?:\"([^\"\n]{1,40})\"|`([^`\n]{1,40})`|'([^'\n]{1,40})'|\u201c([^\u201c\u201d\n]{1,40})\u201d)[.]?\s*\Z")


def read(
    text: str,
    model: type[M],
    *,
    scale: tuple[float, float] | None = None,
    field: str | None = "score",
    reasoning: str | None = None,
    finished: bool = True,
) -> M:
    """Read a judge's answer as a verdict, or refuse: what is not clearly the judge's one verdict is none.

    Args:
        text: the answer's content.
        model: what the verdict is read as.
        scale: lowest and highest number; None takes the field's own ``ge`` and ``le`` if it has both.
        field: of ``model``: the one that decides. If it is None or there is none of that name, the only required one that is a
            number, a bool or a choice does.
        reasoning: what the server gave apart as the model's thought. Nothing is ever read from it.
        finished: the model ended its answer itself. Of one that was cut only a whole object counts.

    Raises:
        Unreadable: there is no verdict, or more than one, or it is not told whose it is, or it is not on the scale.

    Example:
        >>> from qreward.judge.reading import ScoreVerdict
        >>> read("<think>Hm.</think>It is right.\\n**Score: 7/10**", ScoreVerdict, scale=(0, 10)).score
        7.0
    """
    shape: Shape[M] = _shape(model, field, scale)
    if not text.strip():
        raise Unreadable("The answer holds thought alone." if reasoning else "The answer is empty.")
    whole = _whole_object(text)
    if whole is not None:
        return shape.of_members(whole)
    before, answer = without_thought(text)
    verdict = _verdict(answer, shape, finished=finished)
    if before.strip() and _another(before, verdict, shape):
        raise Unreadable("The answer gives one verdict before a closing tag of a thought and another after it.")
    return verdict


_shape = lru_cache(maxsize=64)(Shape.of)


def _whole_object(text: str) -> dict[str, Any] | None:
    """The object that is all of a text, or all of its one fenced block."""
    fenced = _FENCED.match(text) if text.lstrip().startswith("```") else None
    inside = (fenced[1] if fenced else text).strip()
    if len(inside) > LONGEST or not inside.startswith("{"):
        return None
    try:
        members, end = object_at(inside, 0)
    except NotAnObject:
        return None
    return members if end == len(inside) else None


def _verdict(answer: str, shape: Shape[M], *, finished: bool) -> M:
    if not answer.strip():
        raise Unreadable("The answer is empty but for its thought.")
    whole = _whole_object(answer)
    if whole is not None:
        return shape.of_members(whole)
    if not finished:
        raise Unreadable("The answer was cut before its end.")
    if len(answer) > LONGEST:
        raise Unreadable("The answer is too long.")
    own = own_of(_unwrapped(answer))
    if own.broken and (shape.names(own.broken) or "" in own.broken):
        raise Unreadable("The answer's JSON is not complete or not correct.")
    return _settled(own, shape)


def _unwrapped(answer: str) -> str:
    """What an answer wraps as a whole is not quoted: it is the answer."""
    for pattern in (_WHOLE_FENCE, _WHOLE_TAG, _WHOLE_QUOTE):
        match = pattern.match(answer)
        if not match:
            continue
        inside = next(group for group in reversed(match.groups()) if group is not None)
        if pattern is _WHOLE_TAG and f"{match[1].lower()}>" in inside.lower():
            continue
        answer = inside
    return answer


def _settled(own: Own, shape: Shape[M]) -> M:
    """One verdict of all that the judge states, which must not differ."""
    verdicts = [(found.own, shape.of_members(found.members)) for found in own.objects if shape.names(set(found.members))]
    said = _said(own, shape)
    told = [verdict for is_own, verdict in verdicts if is_own]
    told = told or [shape.of_value(one.value) for one in said if one.weight in ("own", "final")][-1:]
    if not told:
        wanted = f'"{shape.key}"' if shape.name else "object"
        raise Unreadable(f"There is no {wanted} in the answer that is clearly the judge's.")
    verdict = told[-1]
    against = [shape.substance(other) for _, other in verdicts]
    against += [shape.substance(shape.of_value(one.value)) for one in _not_summed_up(said)]
    if any(other != shape.substance(verdict) for other in against):
        raise Unreadable("The answer gives more than one verdict.")
    return verdict


def _not_summed_up(said: list[Said]) -> list[Said]:
    """All but the scores of aspects that a final score follows."""
    finals = [index for index, one in enumerate(said) if one.weight == "final"]
    return [one for index, one in enumerate(said) if one.weight != "aspect" or not finals or index > finals[0]]


def _said(own: Own, shape: Shape[M]) -> list[Said]:
    reader = _reader(shape)
    return reader.said(own.words, own.doubtful) if reader else []


@lru_cache(maxsize=64)
def _reader(shape: Shape[Any]) -> Scores | Choices | None:
    """What reads this shape's words: made once, as its patterns are costly to make."""
    if shape.name and shape.number:
        return Scores(shape.name, shape.scale)
    return Choices(shape.name, dict(shape.options)) if shape.name and shape.options else None


def _another(before: str, verdict: M, shape: Shape[M]) -> bool:
    """Whether what stands before a stray closing tag may be the judge's own verdict, and the tag a judged text's."""
    if len(before) > LONGEST or introduces_anothers(before) or before.rstrip()[-1] in _OPENING:
        return True
    try:
        own = own_of(before)
        said = [shape.of_value(one.value) for one in _said(own, shape) if one.weight in ("own", "final")]
        said += [shape.of_members(found.members) for found in own.objects if found.own and shape.names(set(found.members))]
    except Unreadable:
        reader = _reader(shape)
        if isinstance(reader, Choices) and reader.names(before):
            return True
        return bool(_TELLING.search(before)) or shape.names({found[1] for found in _MEMBER.finditer(before)})
    return shape.names(own.broken) or any(shape.substance(one) != shape.substance(verdict) for one in said)
