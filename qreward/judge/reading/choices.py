"""Choices in words: "Yes.", "Verdict: no", "[[A]]", "Response B is better", "It's a tie". Knows no JSON and no model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from qreward.judge.reading.attribution import is_anothers
from qreward.judge.reading.phrases import LEAD, SEPARATOR, Said, Sentence, sentences
from qreward.judge.reading.unreadable import Unreadable

_NOUN = r"(?:(?:the )?(?:response|assistant|answer|option|candidate|model|output|completion) )?"
_LABELS = (
    "verdict|answer|judge?ment|decision|conclusion|result|choice|preference|winner|(?:better|best|preferred|winning)(?: (?:response|answer|"
    "assistant|option|one))?|evaluation|assessment|rating|overall|final"
)
_TERM = (
    r"(?= *(?:$|[.!;:)|](?=$|\W)|[-\u2013\u2014] )|,? (?:because|since|as|given|due)\b|"
    r",(?! ?(?:and |or |but |actually |rather |maybe |perhaps |wait))| \(|\ufffc)"
)
_RUNNING = r"(?= (?:it|this|the|that|they|there|i)\b)"
_ADVERBS = r"(?:(?:slightly|clearly|much|significantly|overall|definitely|marginally|somewhat|far|the|a|also|therefore|thus|still) )*"
_RANKS = {">>": 0, ">": 0, "=": 1, "<": 2, "<<": 2}
_RANKED = re.compile(r"⟪ ?A ?(>>|>|=|<<|<) ?B ?⟫|⟪ ?B ?(>>|>|=|<<|<) ?A ?⟫")


class Choices:
    """Reads one of some choices.

    Args:
        name: of the field, which may be its label.
        options: how each choice may be written -> what it is.

    Example:
        >>> Choices("verdict", {"yes": True, "no": False}).said("Verdict: **Yes**.", "")
        [Said(value=True, weight='own')]
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        self.pair = {"A", "B", "tie"} <= self.options.keys()
        self.plain = {"yes", "no", "true", "false"} >= self.options.keys() or self.pair
        if self.pair:
            self.options |= {"draw": self.options["tie"]} | ({} if "C" in options else {"C": self.options["tie"]})
        one = "|".join(sorted((_written(option) for option in self.options), key=len, reverse=True))
        noun = _NOUN if self.pair else ""
        labels = rf"(?:{re.escape(name.replace('_', ' '))}|{name}|{_LABELS})"
        self._one = rf"(?:the )?{noun}[⟪⟦\[\"']?(?P<option>{one})(?!\w)[⟫⟧\]\"']?"
        self._any = self._compiled(rf"(?<!\w)(?:{one}|tied)(?!\w)")
        self._alone = self._compiled(rf"{self._one} ?[.!]?")
        self._label = self._compiled(rf"{LEAD}{labels}{SEPARATOR}(?:a )?{self._one}{_TERM}")
        self._heading = (self._compiled(rf"{LEAD}{labels} ?[:\uff1a]?"), self._compiled(self._one))
        self._first = self._compiled(rf"{self._one}(?:{_TERM}|{_RUNNING})")
        self._both = self._compiled(rf"{self._one} ?(?:/|,? ?\band\b|,? ?\bor\b|,) ?{noun}(?:{one})(?= ?(?:$|[.,;!?]))")
        self._inside = self._compiled(rf"\b{labels} ?(?::|is|=) ?{self._one}")
        self._ending = self._compiled(rf"(?<!\w){self._one}[.!]*$")
        self._brackets = self._compiled(rf"⟪ ?{noun}(?P<option>{one}) ?⟫")
        self._better = [self._compiled(pattern) for pattern in _wins()] if self.pair else []

    def _compiled(self, pattern: str) -> re.Pattern[str]:
        return re.compile(pattern, re.IGNORECASE)

    def said(self, words: str, doubtful: str) -> list[Said]:
        """What an answer states, in order."""
        return [said for sentence in sentences(words, doubtful, self._heading) if self._telling(sentence) for said in self._of(sentence)]

    def _telling(self, sentence: Sentence) -> bool:
        return self.names(sentence.text) or (self.pair and "equal" in sentence.text.lower())

    def names(self, text: str) -> bool:
        """Whether a choice stands anywhere in a text."""
        return bool(self._any.search(text))

    def _of(self, sentence: Sentence) -> Iterator[Said]:
        text = sentence.text
        if sentence.doubtful or text.endswith("?"):
            yield from self._doubts(text, sentence)
            return
        if self.plain and self._both.match(text):
            raise Unreadable("The answer gives two verdicts at once.")
        stated = self._stated(text, sentence)
        if stated is not None:
            yield Said(stated, "own")
        yield from (doubt for doubt in self._doubts(text, sentence) if doubt.value != stated)

    def _stated(self, text: str, sentence: Sentence) -> Any:
        """The choice a sentence makes, or None."""
        ranked = _RANKED.search(text) if self.pair else None
        if ranked:
            return None if is_anothers(text[: ranked.start()]) else self._rank(ranked)
        brackets = list(self._brackets.finditer(text))
        if brackets:
            others = is_anothers(text[: brackets[0].start()]) or is_anothers(text[brackets[0].end() :])
            return None if others or len(brackets) > 1 else self._value(brackets[0])
        found = self._alone.fullmatch(text) or self._label.match(text)
        if not found and self.plain and sentence.first:
            found = self._first.match(text)
        found = found or next((match for pattern in self._better if (match := pattern.match(text))), None)
        return self._value(found) if found else None

    def _doubts(self, text: str, sentence: Sentence) -> Iterator[Said]:
        tail = text[-60:]
        found = [*self._inside.finditer(text), *self._brackets.finditer(text)]
        found += list(self._ending.finditer(tail)) if sentence.last and self.plain and not self.pair else []
        if self.plain:
            found += [match] if (match := self._first.match(text)) else []
        if sentence.doubtful:
            found += list(self._alone.finditer(text, 0, 60))
            found += [match for pattern in self._better if (match := pattern.match(text))]
        yield from (Said(value, "doubt") for match in found if (value := self._value(match)) is not None)

    def _rank(self, match: re.Match[str]) -> Any:
        place = _RANKS[match[1]] if match[1] else 2 - _RANKS[match[2]]
        return self.options[("A", "tie", "B")[place]]

    def _value(self, match: re.Match[str]) -> Any:
        """A single letter counts in the case in which it was asked for: "a" is an article."""
        written = match["option"]
        for option, value in self.options.items():
            if written == option or (len(option) > 1 and written.lower() == option.lower()):
                return value
        return self.options["tie"] if written.lower().startswith(("equally", "tied")) and self.pair else None


def _written(option: str) -> str:
    return f"(?-i:{option})" if len(option) == 1 else re.escape(option)


def _wins() -> list[str]:
    """How a judge says of a pair which one is better."""
    one = r"(?P<option>(?-i:[AB]))"
    rank = r"(?:better|best|preferred|preferable|superior|stronger|winner)(?: (?:response|answer|assistant|one|choice|option|of the two))*"
    than = rf"(?: (?:than|to|over) {_NOUN}(?-i:[AB]))?(?: overall)?"
    choose = r"(?:prefer|choose|pick|select|favou?r|vote for|go with|go for)"
    return [
        rf"{LEAD}{_NOUN}{one} (?:is|was) {_ADVERBS}{rank}{than}{_TERM}",
        rf"{LEAD}{_NOUN}{one} wins{_TERM}",
        rf"{LEAD}(?:i|we)(?: would|['\u2019]d)? {choose} {_NOUN}{one}{than}{_TERM}",
        rf"{LEAD}(?:it|this|that)(?: is|['\u2019]s)? (?:a )?(?P<option>tie|draw){_TERM}",
        rf"(?:both|the two|they)(?: (?:responses|answers|assistants))? are (?P<option>equally (?:good|bad)|tied){_TERM}",
    ]
