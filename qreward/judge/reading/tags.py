"""Tags in an answer: those that name a score, those that only lay out, and all others, whose text is another's."""

from __future__ import annotations

import re

TAG = re.compile(r"<(?P<closing>/?)(?P<name>[A-Za-z][\w.-]{0,40})(?:\s[^<>\n]{0,200})?(?P<empty>/?)>|<\|[^|<>\n]{1,40}\|>")
_LABELS = frozenset({"score", "rating", "grade", "final_score", "overall_score", "total_score", "final_rating", "overall", "total"})
_LABELS |= {"verdict", "final_verdict", "preferred", "preference", "winner", "choice", "decision"}
_INLINE = frozenset({"b", "strong", "i", "em", "u", "span", "sub", "sup", "small", "font", "center", "mark"})
_BLOCKS = frozenset({"br", "p", "div", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "hr"})
_BLOCKS |= {"table", "tbody", "thead", "tr", "td", "th", "s", "eos", "bos"}
_BLOCKS |= {"evaluation", "assessment", "analysis", "rationale", "explanation", "feedback", "critique", "review"}
_BLOCKS |= {"judgment", "judgement", "reason"}


class Tag:
    """One tag.

    Attributes:
        name: in small letters.
        labels: it names a value.
        closing: it ends one.
        words: what it comes to among a judge's words; None if it opens or closes another's text.
    """

    def __init__(self, match: re.Match[str]) -> None:
        self.name = (match["name"] or "").lower().replace("-", "_")
        self.labels = self.name in _LABELS
        self.closing = bool(match["closing"])
        self.words = self._words(empty=bool(match["empty"]))

    def _words(self, *, empty: bool) -> str | None:
        if self.name in _INLINE:
            return ""
        if self.name in _LABELS:
            return "\n" if self.closing else f"\n{self.name.replace('_', ' ')}: "
        return "\n" if empty or not self.name or self.name in _BLOCKS else None


def after_closing(text: str, tag: Tag, start: int) -> int | None:
    """Where the text ends that ``tag`` opens, tags of its name in it counted; None if it does not, or ``tag`` is a closing one."""
    depth = 1
    if tag.closing:
        return None
    same = re.compile(rf"<(/?){re.escape(tag.name).replace('_', '[_-]')}(?:\s[^<>\n]{{0,200}})?>", re.IGNORECASE)
    for match in same.finditer(text, start):
        depth += -1 if match[1] else 1
        if not depth:
            return match.end()
    return None
