"""The numbers, the choices and the sentences of an answer."""

from __future__ import annotations

import math
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from qreward.judge.parsing.quotes import GAP, Unreadable

Scale = tuple[float, float]

WIDE = {ord(wide): plain for wide, plain in zip("０１２３４５６７８９［］【】＜＞＝：／", "0123456789[][]<>=:/", strict=True)}
"""The plain forms of full-width digits and marks."""

# Numbers. Digits are ASCII. A comma before three digits may separate thousands; any other comma is a decimal comma.

DIGITS = r"[+\-\u2212]?(?:(?:0|[1-9][0-9]{0,8})(?:[.,][0-9]{1,17})?|\.[0-9]{1,17})"
_UNIT = r"(?: ?(?:points?|pts|stars?)\b| ?\u5206)?"
SCORE = rf"(?P<number>{DIGITS})(?: ?(?P<percent>%)|{_UNIT}(?:(?: ?/ ?| \(?(?:out )?of )(?P<top>{DIGITS})\)?)?{_UNIT})"
_SCORE_ALONE = re.compile(SCORE, re.IGNORECASE)
ANY_NUMBER = re.compile(r"(?<![\w.,])[+\-\u2212]?\d+(?:[.,]\d+)?|(?<=[-\u2013])\d+(?:[.,]\d+)?")


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a finite number, and no bool. An integer that no float can hold is not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def number_of(value: object, scale: Scale | None) -> float:
    """Return a member of a JSON object as a number on the scale. The member may be a number, or a text such as ``7`` or ``7/10``."""
    if isinstance(value, str) and (match := _SCORE_ALONE.fullmatch(value.strip().translate(WIDE))):
        return score_of(match, scale)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _on_scale(value, scale)
    raise Unreadable("The score is not a number.")


def score_of(match: re.Match[str], scale: Scale | None) -> float:
    if re.search(r",\d{3}$", match["number"]):
        raise Unreadable("The score is not one plain number.")
    value = Decimal(plain_number(match["number"]))
    if match["percent"]:
        if scale not in ((0, 1), (0, 100)):
            raise Unreadable("The score is a percentage, which this scale does not allow.")
        value = value / 100 if scale == (0, 1) else value
    if match["top"] and (scale is None or float(plain_number(match["top"])) != scale[1]):
        raise Unreadable("The score is a fraction of something other than the top of the scale.")
    return _on_scale(value, scale)


def plain_number(number: str) -> str:
    return number.replace(",", ".").replace("\u2212", "-")


def _on_scale(value: float | Decimal, scale: Scale | None) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise Unreadable("The score must be a finite number.")
    if scale and not scale[0] <= number <= scale[1]:
        raise Unreadable(f"The score must be from {scale[0]:g} to {scale[1]:g}.")
    return number


def spans_scale(low: float, high: float, scale: Scale | None) -> bool:
    """Return whether a range is the scale. It may begin at 0 or 1 too."""
    return scale is not None and low in {scale[0], 0, 1} and high == scale[1]


def is_level(low: float, high: float, scale: Scale | None) -> bool:
    """Return whether a range is a small part of the scale, as a level of a rubric is, and no scale of its own."""
    return scale is not None and max(1, scale[0]) < low < high <= scale[1] and high - low < (scale[1] - scale[0]) / 2


# Choices.


def spellings(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a choice with all their spellings. A choice between A, B and tie is also made by the marks of benchmarks."""
    if not {"A", "B", "tie"} <= options.keys():
        return options
    a, b, tie = options["A"], options["B"], options["tie"]
    ranks = {"A>>B": a, "A>B": a, "A=B": tie, "A<B": b, "A<<B": b, "B>>A": b, "B>A": b, "B=A": tie, "B<A": a, "B<<A": a}
    return {"draw": tie, "C": tie, **ranks, **options}


def choice_of(word: str, values: Mapping[str, Any]) -> Any:
    """Return the value of an option. Its case matters only if two options differ in nothing else. Raises :class:`Unreadable`."""
    if word in values:
        return values[word]
    found = [value for option, value in values.items() if option.casefold() == word.casefold()]
    if len(found) != 1:  # none, if "t\u0131e" matches "tie" because case is ignored
        raise Unreadable("The answer writes a choice in other letters.")
    return found[0]


# The words in eight languages, from ``vocabulary.toml``.

_TABLES: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("vocabulary.toml").read_text(encoding="utf-8"))
_WITHOUT_SPACES = ("zh", "ja", "ko")
"""Languages that put no spaces between words, or join endings to them."""


def vocabulary(notion: str) -> str:
    """Return a part of a regular expression that matches the words of a table."""
    table = {language: text.replace("\n", "") for language, text in _TABLES[notion].items()}
    spaced = "|".join(text for language, text in table.items() if language not in _WITHOUT_SPACES)
    return "|".join([rf"\b(?:{spaced})\b", *(text for language, text in table.items() if language in _WITHOUT_SPACES)])


def phrases(notion: str) -> str:
    """Return a part of a regular expression that matches the texts of a table as they are, without word boundaries."""
    return "|".join(text.replace("\n", "") for text in _TABLES[notion].values())


def any_word(*parts: str) -> re.Pattern[str]:
    return re.compile("|".join(parts), re.IGNORECASE | re.MULTILINE)


# Sentences.

_BOXED = re.compile(r"\$?\\boxed\{ ?(?:\\text\{)?([^{}\n]{1,30})\}?\}\$?")
_MATH = re.compile(r"(?<!\w)(?:\$([^$\n]{1,20})\$|\\[(\[]([^\n]{1,20}?)\\[)\]])(?!\w)")
_EMPHASIS = re.compile(r"(?<![0-9A-Za-z])[*_]+|[*_]+(?![0-9A-Za-z])")
_BULLET = re.compile(r"^(?:(?:#{1,6}|[-+*\u2022]|\(?\d{1,2}[.)])[ \t]+)+")
_SPACES = re.compile(r"[ \t\u00a0\u202f]+")
_ENDS = re.compile(r" (?<=[.!?\u3002\uff01\uff1f] )(?<!\.\. )(?<!\b[A-Za-z]\.[A-Za-z]\. )(?<!\bvs\. )(?<!\bcf\. )(?<!\bviz\. )")
_WIDE_STOP = re.compile(r"[\u3002\uff01\uff1f]")
_OTHERS = vocabulary("others")
SAYS = any_word(vocabulary("says"))
PERSON = any_word(vocabulary("person"))
SHOWS = any_word(vocabulary("shows"))
NAMES_ANOTHER = any_word(_OTHERS)
_OWN = any_word(vocabulary("own"))
_SPEAKS = re.compile(rf"(?:{vocabulary('speaks')})(?:[^:：.,!?]{{0,40}}[:：]|[^\w:：.,!?;{GAP}]*)$", re.IGNORECASE)
_SPEAKS_WITHIN = re.compile(rf"(?:{vocabulary('speaks')})[^:：.,]{{0,20}}[:：]", re.IGNORECASE)
HEADS_SPEECH = re.compile(rf"(?!they|he|she|it)(?:the )?(?:(?:{_OTHERS})[ の的의]{{0,2}}){{1,3}} ?[:：]?", re.IGNORECASE)


class Sentence(NamedTuple):
    """Holds a sentence outside of quotations, without markup."""

    text: str
    own: bool
    first: bool = True


def sentences(text: str, *, marked: bool = False) -> Iterator[Sentence]:
    report, gaps, all_gaps = "", 0, text.count(GAP)
    for raw in text.split("\n"):
        line = _line(raw)
        if not line:
            report = "" if report == "paragraph" else report
            continue
        report = "paragraph" if report == "next" else report
        titled = raw.lstrip().startswith("#") or (raw.strip().startswith("**") and raw.strip().endswith("**"))
        for place, part in enumerate(filter(None, map(str.strip, _ENDS.split(line)))):
            if report == "title" and part == GAP:
                report = ""  # what the title announces is quoted
            yield Sentence(part, not report and (marked or gaps in (0, all_gaps)), not place)
            gaps += part.count(GAP)
            report = report or _introduces(part, titled=titled)


def _line(raw: str) -> str:
    line = _SPACES.sub(" ", raw).strip(" \u200b\ufeff")
    if line.startswith("|"):
        line = ": ".join(cell.strip() for cell in line.strip("| ").split("|"))
    line = _BULLET.sub("", line, count=1)
    if "$" in line or "\\" in line:
        line = _MATH.sub(lambda found: found[1] or found[2], _BOXED.sub(r"\1", line))
    if "*" in line or "_" in line:
        line = _EMPHASIS.sub("", line)
    return _WIDE_STOP.sub(r"\g<0> ", line).strip()


def _introduces(part: str, *, titled: bool) -> str:
    """Return how far the reported speech reaches that a sentence introduces: the ``paragraph``, the ``next`` one, the text below a
    ``title``, or the rest of the ``answer``; ``""`` for none."""
    names = bool(NAMES_ANOTHER.search(part))
    if names and _SPEAKS.search(part):
        return "answer"
    if (titled or part[-1] in ":：") and HEADS_SPEECH.fullmatch(part):
        return "title"
    if names and _SPEAKS_WITHIN.search(part):
        return "paragraph"
    if part[-1] not in ":：":
        return ""
    own = _OWN.search(part) or PERSON.search(part)
    return "next" if SHOWS.search(part) or ((names or SAYS.search(part)) and not own) else ""
