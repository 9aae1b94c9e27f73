"""When two short answers are the same: a reference and a candidate, compared as a careful person would.

Tolerant of case, punctuation, articles, thousands separators, the way a number is written, simple units, number words,
and, where asked, the order of a list. Not a mathematician: ``x + 1`` and ``1 + x`` differ. Pure.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

_SMALL = {
    "zero": 0,
    "one": 1,
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
    "eleven": 11,
    "twelve": 12,
    "thirteen": 13,
    "fourteen": 14,
    "fifteen": 15,
    "sixteen": 16,
    "seventeen": 17,
    "eighteen": 18,
    "nineteen": 19,
    "twenty": 20,
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "sixty": 60,
    "seventy": 70,
    "eighty": 80,
    "ninety": 90,
}
_LARGE = {"hundred": 100, "thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000}
_PARTS = {"half": Fraction(1, 2), "halves": Fraction(1, 2), "quarter": Fraction(1, 4), "quarters": Fraction(1, 4)}

# What is measured -> names of a unit -> how many of the smallest one here it is.
_TABLE = {
    "length": {"mm millimeter millimetre": 1, "cm centimeter centimetre": 10, "m meter metre": 1_000, "km kilometer kilometre": 1_000_000},
    "mass": {"mg milligram": 1, "g gram": 1_000, "kg kilogram": 1_000_000},
    "time": {"ms millisecond": 1, "s sec second": 1_000, "min minute": 60_000, "h hr hrs hour": 3_600_000},
}
_UNITS = {
    name: (kind, size)
    for kind, units in _TABLE.items()
    for names, size in units.items()
    for word in names.split()
    for name in ((word, word + "s") if len(word) > 2 else (word,))
}

_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?"
_FRACTION = rf"(?:[+-]?\d+\s+\d+\s*/\s*\d+|{_NUMBER}\s*/\s*{_NUMBER}|{_NUMBER})"
_QUANTITY = re.compile(rf"({_FRACTION})\s*(%|percent\b|[a-z]+\b)?")
_LONGEST_EXPONENT = 400  # 1e999999999 would be a number of a gigabyte


def same_answer(reference: str, candidate: str, any_order: bool = False) -> str | None:
    """Why the candidate says the same as the reference, in a few words; None if it does not.

    Example:
        >>> same_answer("1,500 m", "1.5 km.")
        'same quantity'
    """
    wanted, given = tidy(reference), tidy(candidate)
    if reference.strip() == candidate.strip() or (plain(wanted) and plain(wanted) == plain(given)):
        return "same text"
    quantity = quantity_of(wanted)
    if quantity is not None and quantity == quantity_of(given):
        return "same quantity"
    return _same_list(wanted, given, any_order)


def _same_list(wanted: str, given: str, any_order: bool) -> str | None:
    left, right = ([item_key(item) for item in items(text)] for text in (wanted, given))
    if len(left) < 2 or len(left) != len(right):
        return None
    if left == right:
        return "same list"
    return "same list in another order" if any_order and sorted(left) == sorted(right) else None


def items(text: str) -> list[str]:
    """The items of a list written with commas, semicolons, bullets on lines, or ``and``."""
    parts = re.split(r"[,;\n]|\band\b", text)
    return [item for part in parts if (item := re.sub(r"^(?:[-*•]|\d+[.)])\s+", "", part.strip()))]


def item_key(item: str) -> str:
    """A text that is equal for equal items."""
    quantity = quantity_of(item)
    return plain(item) if quantity is None else f"{quantity[0]} {quantity[1]}"


def tidy(text: str) -> str:
    """One case, one way of writing characters and numbers; structure (commas, lines) is kept."""
    text = unicodedata.normalize("NFKC", text.replace("\u2212", "-")).casefold().strip()
    text = text.replace("\u2044", "/")
    text = re.sub(r"(?<![\d.])\d{1,3}(?:,\d{3})+(?!\d)", lambda match: match[0].replace(",", ""), text)
    text = re.sub(r"[$€£¥]", "", text)
    text = re.sub(r"(?<=[a-z])-(?=[a-z])", " ", text)
    return "\n".join(_digits(line) for line in text.splitlines()).lstrip(" \t").rstrip(" \t.!?")


def plain(text: str) -> str:
    """The words alone: no articles, no punctuation but what makes a number or a symbol what it is."""
    text = re.sub(r"[\"'`\u2018\u2019\u201c\u201d()\[\]{}*_!?:;,]|(?<!\d)\.(?!\d)|\.(?!\d)", " ", text.replace("'", ""))
    text = re.sub(r"\s*([=+*/<>^])\s*", r"\1", text)
    words = text.split()
    # An article alone is an answer: the letter of a choice.
    return " ".join([word for word in words if word not in ("a", "an", "the")] or words)


def quantity_of(text: str) -> tuple[str, Fraction] | None:
    """What is measured (``""`` for a bare number) and how much, if the whole text is one quantity."""
    text = re.sub(r"^(?:the|an?)\s+", "", text.strip(" \t\n,;:!?\"'()[]*_`").rstrip("."))
    kinds, total, position = set(), Fraction(0), 0
    for match in _QUANTITY.finditer(text):
        if text[position : match.start()].strip() not in (("",) if not position else ("", "and", ",")):
            return None
        measured = _measure(match[1], match[2])
        if measured is None:
            return None
        kinds.add(measured[0])
        total, position = total + measured[1], match.end()
    parts = len(_QUANTITY.findall(text))
    # "1 h 30 min" is one quantity, "3 5" are two numbers.
    if not parts or text[position:].strip(" .") or len(kinds) != 1 or (parts > 1 and kinds & {"", "%"}):
        return None
    return kinds.pop(), total


def _measure(number: str, unit: str | None) -> tuple[str, Fraction] | None:
    value = _fraction(number)
    if value is None:
        return None
    if unit is None:
        return "", value
    if unit in ("%", "percent"):
        return "", value / 100
    if unit not in _UNITS:
        return None
    kind, size = _UNITS[unit]
    return kind, value * size


def _fraction(text: str) -> Fraction | None:
    exponent = re.search(r"e[+-]?(\d+)", text)
    if exponent and int(exponent[1][:9]) > _LONGEST_EXPONENT:
        return None
    top, _, bottom = text.partition("/")
    whole, _, rest = top.strip().rpartition(" ")
    try:
        part = Fraction(rest.strip().rstrip(".")) / (Fraction(bottom.strip().rstrip(".")) if bottom else 1)
    except (ValueError, ZeroDivisionError):
        return None
    if not whole.strip():
        return part
    return Fraction(whole.strip()) + (-part if whole.strip().startswith("-") else part)


def _digits(line: str) -> str:
    """Number words as digits: ``twenty one`` as 21, ``one half`` as 1/2, ``minus five`` as -5."""
    out: list[str] = []
    run: list[str] = []
    for word in [*re.findall(r"\S+", line), ""]:
        bare = word.rstrip(".,;:!?")
        if bare in _SMALL or bare in _LARGE or bare in _PARTS or (bare == "and" and run and run[-1] in _LARGE):
            run.append(bare)
            if bare == word:
                continue
            word = word[len(bare) :]  # noqa: PLW2901 - what is left is the punctuation that ends the run
            out.append(_spoken(run) + word)
            run = []
            continue
        if run:
            out.append(_spoken(run))
            run = []
        out.append(word)
    return re.sub(r"\b(?:minus|negative)\s+(?=\d)", "-", " ".join(out)).strip()


def _spoken(run: list[str]) -> str:
    tail = ""
    while run and run[-1] == "and":
        run, tail = run[:-1], " and" + tail
    if run[-1] in _PARTS:
        count = Fraction(_SMALL.get(run[0], 1)) if len(run) <= 2 else None
        return (str(count * _PARTS[run[-1]]) if count is not None else " ".join(run)) + tail
    total, group = 0, 0
    for previous, word in zip(["", *run], run, strict=False):
        if word in _SMALL:
            if previous in _SMALL and not (_SMALL[previous] >= 20 and 0 < _SMALL[word] < 10):
                return " ".join(str(_SMALL.get(each, each)) for each in run) + tail  # "one two three" counts, it is no number
            group += _SMALL[word]
        elif word == "hundred":
            group = max(1, group) * 100
        elif word in _LARGE:
            total, group = total + max(1, group) * _LARGE[word], 0
    return str(total + group) + tail
