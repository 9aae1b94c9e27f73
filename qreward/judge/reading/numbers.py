"""Numbers as judges write them: ``7``, ``7.5``, ``7,5``, ``7/10``, ``7 out of 10``, ``[[7]]``, ``70%``. Knows nothing of labels.

Digits are ASCII. A comma is a decimal comma unless three digits follow it, which may be thousands: refused. A fraction is read where
its denominator is the top of the scale and refused where it is not: "4/5" on a scale to 10 may be 4 of another scale or 4 of 5
points, and a wrong guess would be a reward. Per cent are read on scales of 0 to 1 and 0 to 100, where they have one meaning.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal

from qreward.judge.reading.unreadable import Unreadable

Scale = tuple[float, float]

NUMBER = r"[+\-\u2212]?(?:0|[1-9][0-9]{0,8})(?:[.,][0-9]{1,17})?|[+\-\u2212]?\.[0-9]{1,17}"
_OVER = r"(?: ?/ ?| ?\(?(?:out of|of|over) (?:a (?:possible|maximum) (?:of )?)?)(?P<{0}>{1})(?P<{0}_end>\))?"
_UNIT = r"(?: ?(?:points?|pts|stars?)\b| ?\u5206)?"
VALUE = re.compile(
    rf"(?P<open>[⟪⟦\[]?) ?(?P<number>{NUMBER})(?: ?(?P<percent>%))?(?:{_OVER.format('inner', NUMBER)})? ?(?P<close>[⟫⟧\]]?)"
    rf"{_UNIT}(?:{_OVER.format('outer', NUMBER)})?{_UNIT}",
    re.IGNORECASE,
)
TAIL = re.compile(
    r" *(?:$|[.!;)|](?=$|[\s.!)|])|,(?= *(?![ \d+\-.\u2212/])\S)|,$|:(?= +[^\d\s])|[-\u2013\u2014](?= +[^\d\s])|\((?!\d)|(?<= )\ufffc|"
    r"[\u2600-\u27bf\u2b50-\u2b55\U0001f300-\U0001faff\u3002](?!\d)|(?:because|since|as|due|given|overall|based|which)\b)",
    re.IGNORECASE,
)
_BETWEEN = r"(?:or|to|maybe|perhaps|possibly|probably|might|could|between|and|even|rather|actually|instead)"
_HEDGED = re.compile(rf"(?:\b{_BETWEEN}\b[^\d\n]{{0,20}}|[~\u2248\u00b1]\s?)\d", re.IGNORECASE)
_OTHER_SCALE = re.compile(r"\b(?:scale|range|max|maximum|out of)\b(.{0,60})", re.IGNORECASE)
_DIGITS = re.compile(r"\d+(?:\.\d+)?")
_PAIRS = {"": "", "[": "]", "⟪": "⟫", "⟦": "⟧"}


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a text: what it comes to, and where it ends. ``over`` is whether it was written as a part of the top."""

    value: float
    end: int
    over: bool
    bracketed: bool


def number_at(text: str, start: int, scale: Scale | None, *, alone: bool = False) -> Number | None:
    """The number that begins at ``start`` and is followed by nothing that may change it, or None.

    Args:
        alone: nothing but a full stop may follow.

    Raises:
        Unreadable: it is clear what is meant, and it is not on the scale.

    Example:
        >>> number_at("7/10, since", 0, (0, 10)).value
        7.0
        >>> number_at("7 or 8", 0, (0, 10))
    """
    match = VALUE.match(text, start)
    if not match or not _is_whole(text, match, alone=alone):
        return None
    over = match["inner"] or match["outer"]
    value = _plain(match["number"])
    if value is None or (over and match["percent"]) or (match["inner"] and match["outer"]):
        raise Unreadable("The score is not one plain number.")
    if match["percent"]:
        value = _of_percent(value, scale)
    if over and (scale is None or _plain(over) != Decimal(str(scale[1]))):
        raise Unreadable("The score is a fraction of something other than the top of the scale.")
    return Number(on_scale(float(value), scale), match.end(), bool(over), bool(match["open"]))


def _is_whole(text: str, match: re.Match[str], *, alone: bool) -> bool:
    if _PAIRS[match["open"]] != match["close"] or match["number"][0] == "." == match["number"][-1]:
        return False
    rest = text[match.end() : match.end() + 200]
    if alone:
        return rest.strip() in ("", ".", "!")
    return bool(TAIL.match(rest)) and not _HEDGED.search(rest)


def other_scale(text: str, scale: Scale | None) -> bool:
    """Whether a clause names a scale whose ends are not those of ``scale``; where ours begins at 0 or 1, either will do."""
    named = {Decimal(digits) for found in _OTHER_SCALE.finditer(text) for digits in _DIGITS.findall(found[1][:60]) if digits.isascii()}
    if not scale or not named:
        return False
    low, high = (Decimal(str(end)) for end in scale)
    return max(named) != high or not named <= {low, high} | ({Decimal(0), Decimal(1)} if low in (0, 1) else set())


def on_scale(value: float, scale: Scale | None) -> float:
    """``value``, if it is finite and on the scale; raises :class:`Unreadable` if not."""
    if not math.isfinite(value):
        raise Unreadable("The score must be a finite number.")
    if scale and not scale[0] <= value <= scale[1]:
        raise Unreadable(f"The score must be from {shown(scale[0])} to {shown(scale[1])}.")
    return value


def number_of(value: object, scale: Scale | None) -> float:
    """A member of a JSON object as a number: a number, or a text that is one; true and false are none.

    Example:
        >>> number_of("7/10", (0, 10))
        7.0
    """
    if isinstance(value, str):
        found = number_at(value.strip(), 0, scale, alone=True)
        if found and not value.strip().endswith(("!", ".")):
            return found.value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return on_scale(float(value), scale)
        except OverflowError:
            return on_scale(math.inf, scale)
    raise Unreadable("The score is not a number.")


def shown(end: float) -> str:
    """An end of a scale as a person writes it.

    Example:
        >>> shown(10.0), shown(0.5)
        ('10', '0.5')
    """
    return f"{end:g}"


def _plain(digits: str) -> Decimal | None:
    sign = digits.replace("\u2212", "-")
    if re.search(r",\d{3}$", sign) or sign[-1] in ".,":
        return None
    return Decimal(sign.replace(",", "."))


def _of_percent(value: Decimal, scale: Scale | None) -> Decimal:
    if scale == (0, 1):
        return value / 100
    if scale == (0, 100):
        return value
    raise Unreadable("The score is a percentage, which this scale has none of.")
