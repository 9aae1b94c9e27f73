"""What number and choice phrases share: a judge's words in sentences, freed of markup, and the words that may lead to a verdict."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from qreward.judge.reading.attribution import is_anothers, reports

Joins = tuple[re.Pattern[str], re.Pattern[str]]
Weight = Literal["own", "final", "aspect", "doubt"]


@dataclass(frozen=True, slots=True)
class Said:
    """One value that an answer states.

    Attributes:
        value: what it is.
        weight: ``own`` and ``final`` give a verdict; an ``aspect`` gives way to a final one; a ``doubt`` (it may be another's
            word) only ever stands against one.
    """

    value: Any
    weight: Weight


@dataclass(frozen=True, slots=True)
class Sentence:
    text: str
    doubtful: bool
    first: bool = False
    last: bool = False


_BOXED = re.compile(r"\$?\\boxed\{ ?(?:\\text\{)?([^{}\n]{1,30})\}?\}\$?")
_MATH = re.compile(r"(?<!\w)(?:\$([^$\n]{1,20})\$|\\\(([^\n]{1,20}?)\\\))(?!\w)")
_EMPHASIS = re.compile(r"(?<![0-9A-Za-z])[*_]+|[*_]+(?![0-9A-Za-z])")
_BULLET = re.compile(r"^[ \t]*(?:(?:#{1,6}|[-+*\u2022]|\(?\d{1,2}[.)])[ \t]+)*")
_ENDS = re.compile(
    r"(?<=[\u3002\uff01\uff1f])(?=.)|"
    r"(?<=[.!?;])(?<!\.\.\.)(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bvs\.)(?<!\bcf\.)(?<!\bviz\.)(?<!\bno\.)[ \t]+|"
    r",[ \t]+(?=(?:so|therefore|thus|hence)\s+(?:i|my|the)\b|"
    r"i(?:['\u2019](?:d|ll)| would| will)? (?:give|rate|score|assign|award|grade)\b|"
    r"(?:the|my) (?:final |overall )?(?:score|rating|verdict|answer|grade) is\b)",
    re.IGNORECASE,
)
_SPEECH = re.compile(
    r"\b(?:wrote|writes|sa(?:ys|id)|claim(?:s|ed)|stat(?:es|ed)|answer(?:s|ed)|repl(?:ies|ied)|responds|responded|reads|asserts|adds|"
    r"(?:end|begin|start|conclude)(?:s|ed)? with|quot(?:e|es|ed)|declares)(?: (?:this|that|the following|as follows))? ?[:\uff1a]",
    re.IGNORECASE,
)
_SPACES = re.compile(r"[ \t\u00a0\u202f]+")

_LEADS = (
    "my|the|your|a|an|overall|final|total|aggregate|combined|numerical|numeric|single|resulting|summary|quality|reward|judge|so|thus|"
    "therefore|hence|here|is|as|in|conclusion|to|conclude|sum|up|this|judge's|i|and|then|now|finally|accordingly|judgment|out|come|"
    "evaluation|assigned|given|verdict|decision|"
    "think|believe|conclude|find|that|opinion|here['\u2019]s|that['\u2019]s"
)
LEAD = rf"(?:(?:{_LEADS})(?:[ ,:]+|$)){{0,6}}"
SEPARATOR = r"(?: ?(?:[:=\uff1a]|->|=>|\u2192|[-\u2013\u2014](?= ))(?: is)? ?| (?:is|was|would be|will be):? | )"


def sentences(words: str, doubtful: str, joins: Joins) -> list[Sentence]:
    """The sentences of an answer in order, doubtful ones last.

    Args:
        joins: what a line is that is a heading, and what the line below it begins with that belongs to it.
    """
    found = [sentence for line, is_doubtful in _lines(_clean(words), joins) for sentence in _parts(line, doubtful=is_doubtful)]
    count = len(found)
    found = [Sentence(one.text, one.doubtful, first=index == 0, last=index == count - 1) for index, one in enumerate(found)]
    return [*found, *(sentence for line, _ in _lines(_clean(doubtful), None) for sentence in _parts(line, doubtful=True))]


def _clean(words: str) -> str:
    words = _SPACES.sub(" ", words.replace("\r\n", "\n").replace("\r", "\n"))
    words = _BOXED.sub(r"⟦\1⟧", words.replace("[[", "⟪").replace("]]", "⟫"))
    words = _MATH.sub(lambda found: found[1] or found[2], words)
    return _EMPHASIS.sub("", words)


def _lines(words: str, joins: Joins | None) -> Iterator[tuple[str, bool]]:
    """Lines without their markup; what follows "The candidate wrote:" is doubtful, blank lines or not, up to the next blank line."""
    announced, anothers, heading = False, False, ""
    for raw in words.split("\n"):
        line = _BULLET.sub("", raw).strip()
        if not line:
            anothers = anothers and announced
            continue
        if line.startswith("|"):
            line = ": ".join(cell.strip() for cell in line.strip("| ").split("|"))
        anothers = anothers or announced
        announced = (raw.lstrip().startswith("#") or line.endswith((":", "\uff1a"))) and is_anothers(line)
        if heading and joins and joins[1].match(line):
            line = f"{heading}: {line}"
        elif heading:
            yield heading, anothers
        heading = ""
        if joins and joins[0].fullmatch(line):
            heading = line.rstrip(": \uff1a")
            continue
        yield line, anothers
        anothers = anothers or _speaks(line)
    if heading:
        yield heading, anothers


def _speaks(text: str) -> bool:
    """Whether a text goes over into another's speech, with no marks around it."""
    speech = _SPEECH.search(text) if ":" in text or "\uff1a" in text else None
    return bool(speech and text[speech.end() :].strip(" .,\ufffc"))


def _parts(line: str, *, doubtful: bool) -> Iterator[Sentence]:
    for part in _ENDS.split(line):
        if part.strip():
            yield Sentence(part.strip(), doubtful)
            doubtful = doubtful or _speaks(part) or (part.rstrip()[-1] not in ".!?;" and reports(part))
