"""Scores in words: "Score: 7/10", "Rating: [[7]]", "I give it a 7". Knows no JSON and no model.

A sentence states a score where it is the sentence's business: a label at its beginning and the number right after it. The same
words further inside a sentence ("it ends with Score: 10") may be another's, so they only ever stand against a score.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from qreward.judge.reading.attribution import is_anothers
from qreward.judge.reading.numbers import NUMBER, VALUE, Scale, number_at, other_scale
from qreward.judge.reading.phrases import LEAD, SEPARATOR, Said, Sentence, sentences
from qreward.judge.reading.unreadable import Unreadable

_CHINESE = r"(?:\u6700\u7ec8|\u603b\u4f53)?(?:\u8bc4\u5206|\u5f97\u5206|\u5206\u6570|\u6253\u5206)|\u603b\u5206"
_LAST = r"(?:overall|final|total)(?: (?:answer|verdict|result|score|rating|grade))?"
_SOFT = r"\[result\]|verdict|judge?ment|evaluation|assessment|result|decision|conclusion"
_OTHERS = r"(?:response|answer|candidate|solution|summary|output|essay|completion|assistant|submission|text)"
_OF = rf"(?: (?:for|of) (?:the|this|that) (?:(?:candidate|assistant|model|student)(?:'s)? )?{_OTHERS})?"
_RANGE = r"(?: ?[(\[](?P<range>[^()\[\]]{0,40})[)\]])?"
_ASPECT = re.compile(r"(?P<head>[^\W\d][^:=\d]{1,40}?) ?[:=\uff1a] ?(?=[⟪⟦\[]?[+\-\u2212]?\.?\d)")
_GIVE = (
    r"(?:i|we)(?:['\u2019]d|['\u2019]ll| would| will| must| have to)?(?: (?:therefore|thus|personally|only|hereby))? "
    r"(?:give|rate|score|grade|award|assign|gave|rated|scored)"
    rf"(?: (?:(?:the|this|that) (?:(?:candidate|assistant|model|student)(?:'s)? )?{_OTHERS}|it|this|that))?"
)
_EARN = rf"(?:it|this|that|(?:the|this|that) {_OTHERS}) (?:deserves|merits|gets|earns|receives)"
_GIVING = (
    rf"(?:{_GIVE}|{_EARN})(?: (?:a|an|as|at|with|the|solid|strong|full|perfect))*"
    r"(?: (?:final |overall |total )?(?:score|rating|grade|mark) of)? "
)
_VERBAL = re.compile(rf"{LEAD}{_GIVING}", re.IGNORECASE)
_VERBAL_INSIDE = re.compile(rf"(?<!\w){_GIVING}", re.IGNORECASE)
_BEGINS = re.compile(r"[⟪⟦\[\"]?[+\-\u2212]?\.?\d")
_VAGUE = re.compile(
    r"(?:[^\w\n]{0,4}(?:not|about|around|approximately|approx|roughly|between|at|least|most|less|more|greater|lower|higher|than|nearly|"
    r"almost|maybe|perhaps|probably|either|from|up|to|under|over|above|below|somewhere|circa|ca|a|an|the|in|range|of|minus|is)\b)"
    r"{0,5}[^\w\n]{0,4}\d|[^\w\n]{0,3}(?:nan|inf|infinity|n/a|none|null|unknown|undefined)\b",
    re.IGNORECASE,
)
_SAYS = r"(?:sa(?:ys?|id)|claim\w*|wr[io]t\w*|puts?|demand\w*|ask\w*|insist\w*|assert\w*|stat\w*|suggest\w*|request\w*|would have)"
_QUALIFIED = re.compile(
    rf"\W*(?:(?:only )?if|unless|were|had|provided|assuming|supposing|when|is what|was what|according to|per the|{_SAYS}|"
    rf"(?:as|so|at least|or) (?:\w+ ){{0,3}}{_SAYS}|(?:max(?:imum)?|possible|hypothetical\w*|ideally|in theory|at best|at most))\b",
    re.IGNORECASE,
)
_SUM = re.compile(r"(?<![\w.])[+\-\u2212] ?\d|\b(?:minus|less|but|however|plus|deduct\w*|subtract\w*)\b[^.\n]{0,40}\d", re.IGNORECASE)
_TELLING = re.compile(r"\d|\b(?:nan|inf|infinity|n/a|none|null|unknown|undefined)\b", re.IGNORECASE)
_INSTEAD = re.compile(r"\b(?:adjusted|revised|corrected|updated|actual|real|true|new|modified|deserved|fair)\b", re.IGNORECASE)
_LONE = re.compile(rf"{NUMBER}[.!]?")
_FRACTION = re.compile(r"(?<![\w.,/\-+])(?=\d{1,9}(?:[.,]\d{1,17})?(?: ?/ ?| out of )\d)", re.IGNORECASE)
_CONCLUDES = re.compile(r"\b(?:final|overall|total|aggregate|combined)\b|\u6700\u7ec8|\u603b", re.IGNORECASE)


class Scores:
    """Reads the scores of one kind of verdict: made once for a field and a scale.

    Example:
        >>> Scores("score", (0, 10)).said("It is right.\\nScore: 7/10", "")
        [Said(value=7.0, weight='own')]
    """

    def __init__(self, name: str, scale: Scale | None) -> None:
        own = re.escape(name.replace("_", " ").lower()).replace(r"\ ", "[ _]")
        core = rf"(?:final[ _]|overall[ _]|total[ _])?(?:score|rating|grade|{own})|{_CHINESE}"
        self.scale = scale
        self._label = re.compile(
            rf"(?P<lead>{LEAD})(?P<label>{core}|{_LAST}|{_SOFT})(?P<of>{_OF}){_RANGE}(?P<separator>{SEPARATOR})", re.IGNORECASE
        )
        self._heading = re.compile(rf"{LEAD}(?:{core}|{_LAST}|{_SOFT}){_OF}{_RANGE} ?[:\uff1a]?", re.IGNORECASE)
        self._inside = re.compile(rf"(?<!\w)(?:{core})(?: for [\w ]{{1,30}})?{_RANGE}(?:{SEPARATOR}| of )", re.IGNORECASE)
        self._core = re.compile(core, re.IGNORECASE)

    def said(self, words: str, doubtful: str) -> list[Said]:
        """What an answer states, in order; raises :class:`Unreadable` where it states something that is no score."""
        bare = number_at(words.strip(), 0, self.scale, alone=True) if len(words) < 200 else None
        found = sentences(words, doubtful, (self._heading, _BEGINS))
        if bare is None and len(found) == 1:
            bare = number_at(found[0].text, 0, self.scale, alone=True)
        if bare:
            return [Said(bare.value, "own")]
        return [said for sentence in found if _TELLING.search(sentence.text) for said in self._of(sentence)]

    def _of(self, sentence: Sentence) -> Iterator[Said]:
        own = not sentence.doubtful and not sentence.text.endswith("?")
        stated = self._stated(sentence.text) if own else self._reported(sentence.text)
        if not stated:
            yield from self._doubts(sentence)
            return
        said, end = stated
        yield said if own else Said(said.value, "doubt")
        yield from self._beside(sentence.text[end:])

    def _reported(self, text: str) -> tuple[Said, int] | None:
        """What a sentence states that may be another's, who may state what it likes."""
        try:
            return self._stated(text)
        except Unreadable:
            return None

    def _stated(self, text: str) -> tuple[Said, int] | None:
        """What a sentence states, and where in it the number ends."""
        label = self._label.match(text)
        if label:
            return self._labelled(text, label)
        verbal = _VERBAL.match(text)
        start = verbal.end() if verbal else 0
        number = number_at(text, start, self.scale) if VALUE.match(text, start) else None
        if number and (verbal or number.over or number.bracketed):
            self._unqualified(text[number.end :])
            return Said(number.value, "own"), number.end
        return self._bracketed(text)

    def _labelled(self, text: str, label: re.Match[str]) -> tuple[Said, int] | None:
        number = number_at(text, label.end(), self.scale)
        if number:
            self._unqualified(f"scale {label['range'] or ''}. ")
            self._unqualified(text[number.end :])
            return Said(number.value, "final" if _is_last(label) else "own"), number.end
        if self._core.fullmatch(label["label"]) and _VAGUE.match(text, label.end()):
            raise Unreadable("The score is not one plain number on the scale.")
        return self._bracketed(text)

    def _unqualified(self, rest: str) -> None:
        """Raises if a number's sentence goes on with another scale, a condition, a sum, or with whose number it is."""
        if other_scale(rest, self.scale) or _QUALIFIED.match(rest) or _SUM.search(rest):
            raise Unreadable("The score is not one plain number on the scale, given without conditions.")

    def _bracketed(self, text: str) -> tuple[Said, int] | None:
        """A number in double brackets, which nobody writes by chance, unless its clause puts it into another's mouth."""
        start = text.find("⟪")
        number = number_at(text, start, self.scale) if start >= 0 and text.find("⟪", start + 1) < 0 else None
        if number is None or is_anothers(text[max(0, start - 200) : start]) or is_anothers(text[number.end : number.end + 200]):
            return None
        return Said(number.value, "own"), number.end

    def _doubts(self, sentence: Sentence) -> Iterator[Said]:
        """What looks like a score and may be another's, or of one aspect."""
        text = sentence.text
        aspect = None if sentence.doubtful else _ASPECT.match(text)
        if aspect and len(aspect["head"].split()) <= 4 and not is_anothers(aspect["head"]):
            if self._core.search(aspect["head"]) and (value := self._loose(text, aspect.end())) is not None:
                plain = self._core.fullmatch(aspect["head"]) or _INSTEAD.search(aspect["head"])
                yield Said(value, "doubt" if plain else "aspect")
            return
        yield from self._beside(text)
        if _LONE.fullmatch(text) and (value := self._loose(text, 0)) is not None:
            yield Said(value, "doubt")

    def _beside(self, text: str) -> Iterator[Said]:
        """Scores further inside a sentence."""
        starts = [found.end() for pattern in (self._inside, _FRACTION, _VERBAL_INSIDE) for found in pattern.finditer(text)]
        starts += [found.start() for found in re.finditer("⟪", text)]
        yield from (Said(value, "doubt") for value in {self._loose(text, start) for start in starts} if value is not None)

    def _loose(self, text: str, start: int) -> float | None:
        """A number where another's may stand: what is off the scale, or of another, is none of our business."""
        match = VALUE.match(text, start)
        try:
            number = number_at(match[0], 0, self.scale, alone=True) if match else None
        except Unreadable:
            return None
        return number.value if number else None


def _is_last(label: re.Match[str]) -> bool:
    return bool(_CONCLUDES.search(f"{label['lead']} {label['label']}".replace("_", " ")))
