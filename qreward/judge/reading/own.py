"""Tells a judge's own words and objects from what it quotes, in one walk over the answer. Knows no verdict.

Quoted is: fenced blocks but for ``json`` ones, lines after ``>``, text in quotation marks or inline code, text in tags. Marks that
do not pair leave it open what is quoted, so the answer is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from qreward.judge.reading.attribution import introduces_anothers, is_anothers, rest_of
from qreward.judge.reading.lenient import NotAnObject, object_at
from qreward.judge.reading.tags import TAG, Tag, after_closing
from qreward.judge.reading.unreadable import Unreadable

GAP = "\ufffc"
"""Stands in a judge's words where something was quoted or an object stood."""

_UNPAIRED = "It is not clear what the answer quotes: its {} do not pair."
_NEXT = re.compile(r"[\n{}\"\u201c\u201d\u201e\u00ab\u00bb\u300c\u300d\u300e\u300f'\u2018`<]")
_LINE = re.compile(r"[ \t]*(?:(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>[^`\n]*)(?:\n|$)|(?P<quote>>)|(?P<blank>(?:\n|$)))")
_JSON = re.compile(r"jsonc?|json5|javascript|js", re.IGNORECASE)
_SINGLE = re.compile(
    r"'(?=\S)((?:[^'\n]|(?<=\w)'(?=\w)){1,400})(?<=\S)'(?!\w)|"
    r"\u2018((?:[^\u2018\u2019\n]|(?<=\w)\u2019(?=\w)){1,400})\u2019(?!\w)"
)
_CODE = re.compile(r"(`{1,4})(?!`)([^\n]{1,400}?)(?<!`)\1(?!`)")
_TICKS = re.compile(r"`+")
_BARE = re.compile(r"\s?[+\-\u2212]?[\w.,/ ]{1,12}%?\s?\Z")
_NUMERIC = re.compile(r"\s?[+\-\u2212]?[0-9][0-9.,/ ]{0,9}%?\s?\Z")
_SEPARATOR = re.compile(r"[:=\uff1a]\s?$")
_MAY_BE_OBJECT = re.compile(r"\{\s{0,200}[\w}/#\"'\u201c\u201d\u201e\u2018\u2019]")
_PAIRS = {"\u201c": "\u201d", "\u201e": "\u201c\u201d", "\u00ab": "\u00bb", "\u300c": "\u300d", "\u300e": "\u300f"}
_QUOTES = frozenset("\"'`\u2018\u201c\u201e\u00ab\u300c")
_LATER = frozenset("\u201d\u00bb\u300d\u300f")
_STARTS_OWN = frozenset("#-*+|{[`<~0123456789")


@dataclass(frozen=True, slots=True)
class Found:
    """An object, and whether the words around it leave it to the judge."""

    members: dict[str, Any]
    own: bool


@dataclass
class Own:
    """What is left of an answer.

    Attributes:
        words: the judge's own, with a :data:`GAP` where something else stood.
        doubtful: lines of which it is not known whose they are.
        objects: the objects that stood among the words.
        broken: names of members that something shows which is no object.
    """

    words: str = ""
    doubtful: str = ""
    objects: list[Found] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)


def own_of(text: str) -> Own:
    """Walk over ``text``; raises :class:`Unreadable` where it cannot be told what is quoted.

    Example:
        >>> own_of('It says "Score: 10". Score: 2').words
        'It says \\ufffc. Score: 2'
    """
    return _Walk(text).walk()


class _Walk:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.own = text, 0, Own()
        self.out: list[str] = []
        self.doubtful: list[str] = []
        self.braces = 0
        self.labelled = ""
        self.fenced = self.lazy = False

    def walk(self) -> Own:
        self.line()
        while self.at < len(self.text):
            found = _NEXT.search(self.text, self.at)
            self.out.append(self.text[self.at : found.start() if found else len(self.text)])
            if not found:
                break
            self.at = found.start()
            self.step(found[0])
        if self.braces:
            self.own.broken.add("")
        if self.labelled:
            raise Unreadable(_UNPAIRED.format("tags"))
        self.own.words, self.own.doubtful = "".join(self.out), "".join(self.doubtful)
        return self.own

    def step(self, mark: str) -> None:
        if mark == "\n":
            self.put("\n", 1)
            self.line()
        elif mark == "{":
            self.object()
        elif mark == "}":
            self.braces -= 1
            if self.braces < 0:
                raise Unreadable("The answer holds a closing brace that nothing opened.")
            self.put("}", 1)
        elif mark == "<":
            self.tag()
        elif mark == "`":
            fence = _LINE.match(self.text, self.at)
            if fence and fence["fence"]:
                if not self.fenced and not fence["info"].strip():  # it may as well close as open
                    raise Unreadable(_UNPAIRED.format("fences"))
                self.fence(fence)
                return
            self.short(_CODE.match(self.text, self.at), 2)
        elif mark in "'\u2018":
            before = self.text[self.at - 1 : self.at]
            self.short(None if before.isalnum() else _SINGLE.match(self.text, self.at), 1)
        else:
            self.quotation(mark)

    def put(self, words: str, width: int) -> None:
        self.out.append(words)
        self.at += width

    def line(self) -> None:
        """What the beginning of a line tells."""
        while True:
            match = _LINE.match(self.text, self.at)
            if match and match["fence"]:
                self.fence(match)
                return
            if match and match["quote"]:
                self.lazy = True
                self.skip_line(None)
                return
            if self.lazy and not (match and match["blank"] is not None) and self.text[self.at : self.at + 1] not in _STARTS_OWN:
                self.skip_line(self.doubtful)
                return
            self.lazy = False
            return

    def skip_line(self, keep: list[str] | None) -> None:
        end = self.text.find("\n", self.at)
        end = len(self.text) if end < 0 else end
        if keep is not None:
            keep.append(self.text[self.at : end] + "\n")
        self.put(GAP, end - self.at)

    def fence(self, match: re.Match[str]) -> None:
        if self.fenced:
            self.fenced = False
            self.put("\n", match.end("fence") - self.at)
        elif _JSON.fullmatch(match["info"].strip()):
            self.fenced = True
            self.put("\n", match.end() - self.at)
        else:
            closing = re.compile(rf"^[ \t]*{re.escape(match['fence'][0])}{{{len(match['fence'])},}}[ \t]*$", re.MULTILINE)
            end = closing.search(self.text, match.end())
            if not end:
                raise Unreadable(_UNPAIRED.format("fences"))
            self.put(f"\n{GAP}", end.end() - self.at)

    def object(self) -> None:
        if not _MAY_BE_OBJECT.match(self.text, self.at):
            self.braces += 1
            self.put("{", 1)
            return
        try:
            members, end = object_at(self.text, self.at)
        except NotAnObject as broken:
            self.own.broken |= broken.keys | ({""} if broken.cut else set())
            self.braces += broken.opened
            self.put(self.text[self.at : broken.at], broken.at - self.at)
            return
        quoted = self.text[self.at - 1 : self.at] in _QUOTES if self.at else False
        anothers = quoted or introduces_anothers("".join(self.out[-8:])) or is_anothers(rest_of(self.text[end : end + 200]))
        self.own.objects.append(Found(members, own=not anothers))
        self.put(GAP, end - self.at)

    def tag(self) -> None:
        if self.text.startswith("<!--", self.at):
            comment_end = self.text.find("-->", self.at)
            if comment_end < 0:
                raise Unreadable(_UNPAIRED.format("tags"))
            self.put(GAP, comment_end + 3 - self.at)
            return
        match = TAG.match(self.text, self.at)
        tag = Tag(match) if match else None
        if not match or not tag or (tag.words is None and not tag.closing and self.text[self.at - 1 : self.at].isalnum()):
            self.put("<", 1)
            return
        if tag.words is not None:
            self.label(tag)
            self.put(tag.words, match.end() - self.at)
            return
        end = after_closing(self.text, tag, match.end())
        if end is None:
            raise Unreadable(_UNPAIRED.format("tags"))
        self.put(GAP, end - self.at)

    def label(self, tag: Tag) -> None:
        """Tags that name a value hold it and nothing else: one that is not closed would name what comes next."""
        if tag.labels and (tag.closing != bool(self.labelled) or self.labelled not in ("", tag.name)):
            raise Unreadable(_UNPAIRED.format("tags"))
        self.labelled = ("" if tag.closing else tag.name) if tag.labels else self.labelled

    def short(self, match: re.Match[str] | None, group: int) -> None:
        """Inline code and single quotes, which are an apostrophe or a stray mark where they do not pair."""
        if not match:
            run = _TICKS.match(self.text, self.at)
            stray = run[0] if run else self.text[self.at]
            self.put(stray, len(stray))
            return
        inside = match[group] or match[match.re.groups]
        apart = not self.text[self.at - 1 : self.at].isalnum()
        self.put(self.inside(inside, always=group == 2 and apart), len(match[0]))

    def inside(self, inside: str, *, always: bool = False) -> str:
        """A quoted value right after a label is how the value is written."""
        if always and _NUMERIC.match(inside):
            return inside
        return inside if _BARE.match(inside) and _SEPARATOR.search("".join(self.out[-3:])[-8:]) else GAP

    def quotation(self, mark: str) -> None:
        if mark == '"' and self.text[self.at - 1 : self.at].isdigit():  # inches, seconds
            self.put(mark, 1)
            return
        if mark in _LATER or (mark == '"' and not _opens(self.text, self.at)):
            raise Unreadable(_UNPAIRED.format("quotation marks"))
        end = _closing(self.text, self.at, mark)
        if end is None:
            raise Unreadable(_UNPAIRED.format("quotation marks"))
        self.put(self.inside(self.text[self.at + 1 : end - 1]), end - self.at)


def _opens(text: str, at: int) -> bool:
    """Whether the straight quotation mark at ``at`` can begin a quotation: by what stands on its two sides."""
    before, after = text[at - 1 : at] if at else "", text[at + 1 : at + 2]
    starts = not before or before.isspace() or before in "([{<:=,/*_|>-\u2013\u2014\u2018'\u201c~#`"
    return starts and bool(after) and (after.isalnum() or after in "{[(<\u201c\u2018'\"+-\u2212$\\*_#.`~/|>&@%\u2026")


def _closing(text: str, at: int, mark: str) -> int | None:
    """Where the quotation that begins at ``at`` ends, quotations in it counted."""
    closers = _PAIRS.get(mark, '"')
    marks = re.compile(rf"\\.|[{mark}{closers}]", re.DOTALL)
    depth = 1
    for found in marks.finditer(text, at + 1):
        if found[0][0] == "\\":
            continue
        opens = found[0] == mark and found[0] not in closers if mark != '"' else _opens(text, found.start())
        depth += 1 if opens else -1
        if not depth:
            return found.end()
    return None
