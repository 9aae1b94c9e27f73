"""The parts of an answer: JSON objects, reasoning, quotations, the judge's own words, numbers, choices and sentences. This module does not
know verdicts.

JSON is parsed leniently: common errors of models are accepted if they have only one possible meaning.
"""

from __future__ import annotations

import json
import math
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

DEEPEST = 32

_TOKEN = re.compile(
    r"""(?P<skipped>\s+|//[^\n]*|\#[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)
    |(?P<text>"[^"\\]*(?:\\.[^"\\]*)*"|'[^'\\]*(?:\\.[^'\\]*)*'
        |[“”„][^“”\\]*(?:\\.[^“”\\]*)*[“”]|[‘’][^’\\]*(?:\\.[^’\\]*)*’)
    |(?P<mark>[{}\[\],:])
    |(?P<word>[^\s{}\[\],:"'“”„‘’/\#]+)""",
    re.VERBOSE | re.DOTALL,
)
_DOUBTFUL = re.compile(r"[\d\"'“”„‘’]")
"""What a comment up to the end of its line must not hold: it may be the end of a text that the judge did not escape, and the value."""
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_WORDS = {"True": "true", "False": "false", "None": "null", "nan": "NaN"}
_ESCAPE = re.compile(r'\\(?:(u[0-9a-fA-F]{4}|["\\/bfnrt])|\n|(.))|"', re.DOTALL)
_SURROGATES = re.compile(r"[\ud800-\udfff]")


class NotAnObject(ValueError):
    """A text starts like a JSON object, but has an error that is not accepted."""


def object_at(text: str, start: int) -> tuple[dict[str, Any], int]:
    """Return the members of the object that starts at ``start``, and the index of its end. The time is linear in the length of the text."""
    try:
        members, end = _DECODER.raw_decode(text, start)
        if text.count("{", start, end) + text.count("[", start, end) <= DEEPEST:
            return members, end
    except (ValueError, RecursionError):  # not strict JSON
        pass
    strict, end = _rewritten(text, start)
    try:
        return json.loads(" ".join(strict), strict=False, object_pairs_hook=_members), end
    except ValueError as error:
        raise NotAnObject(str(error)) from None


def _rewritten(text: str, start: int) -> tuple[list[str], int]:
    strict: list[str] = []
    depth, at = 0, start
    while match := _TOKEN.match(text, at):
        at, piece, kind = match.end(), match[0], match.lastgroup
        if kind == "skipped":
            if piece[0] in "/#" and piece[1:2] != "*" and _DOUBTFUL.search(piece):
                raise NotAnObject("A comment may hide the value.")
            continue
        if kind == "text":
            piece = piece[1:-1]
            piece = f'"{_ESCAPE.sub(_escaped, piece)}"' if "\\" in piece or '"' in piece else f'"{piece}"'
        elif kind == "word":
            piece = _WORDS.get(piece, piece)
        elif piece == ":" and strict and _KEY.fullmatch(strict[-1]):
            strict[-1] = f'"{strict[-1]}"'
        elif piece in "}]" and strict[-1:] == [","] and strict[-2] not in ",{[":
            strict.pop()
        strict.append(piece)
        depth += (piece in "{[") - (piece in "}]")
        if depth <= 0:
            return strict, at
        if depth > DEEPEST:
            break
    raise NotAnObject("It is not closed, or has an error that is not accepted.")


def _escaped(match: re.Match[str]) -> str:
    if match[0] == '"':
        return '\\"'
    return match[0] if match[1] else "" if match[2] is None else match[2] if match[2] == "'" else f"\\\\{match[2]}"


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, given in pairs:
        key, value = _whole(name), _whole(given)
        if key in members and (members[key] != value or type(members[key]) is not type(value)):
            raise NotAnObject("A key has two different values.")
        members[key] = value
    return members


def _whole(value: Any) -> Any:
    """Return the value. In a text, U+FFFD replaces each lone surrogate that an escape made, because pydantic rejects lone surrogates."""
    if not isinstance(value, str) or not _SURROGATES.search(value):
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_members)

GAP = "\ufffc"
"""The character that replaces a quotation."""
OBJECT = "\ue000"
"""The character that replaces a JSON object with a verdict."""
VALUE = "\ue001"
"""The character before and after a value that stands in the form that was asked for, such as ``[[7]]``."""


class Unreadable(ValueError):
    """The answer is not accepted as a verdict."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


_THOUGHT = re.compile(r"</?(?:(?:seed:)?think|thinking|reasoning|thought)>|\[/?THINK\]|\u25c1/?think\u25b7", re.IGNORECASE)


def without_reasoning(text: str) -> tuple[str, str]:
    """Return the text before a closing tag that has no opening tag, or ``""``; and the answer without reasoning blocks."""
    kept: list[str] = []
    start, opened, before = 0, "", ""
    for tag in _THOUGHT.finditer(text):
        closing, name = "/" in tag[0], tag[0].lower().replace("/", "")
        if opened:
            if closing and name == opened:
                start, opened = tag.end(), ""
        elif not closing:
            kept.append(text[start : tag.start()])
            opened = name
        elif before:  # raised at once, because collecting the text before each of many tags would take quadratic time
            raise Unreadable("The answer has two closing reasoning tags without opening ones.")
        else:
            before, start = text[: tag.start()] or " ", tag.end()
    if opened:
        raise Unreadable("The reasoning of the answer is not closed.")
    answer = "".join([*kept, text[start:]])
    if answer.strip() and not text[start:].strip():
        raise Unreadable("The answer ends with reasoning, which may revise what precedes it.")
    return before, answer


_VALUE_TAG = re.compile(
    r"<(?P<label>(?:final_|overall_)?(?:score|rating|grade|verdict)|preferred|preference|winner|decision)>"
    r"\s{0,9}([^<>\n]{1,40})\s{0,9}</(?P=label)>",
    re.IGNORECASE,
)
_INLINE_TAG = re.compile(r"</?(?:b|strong|i|em|u|span|sub|sup|small|font|center|mark)(?:\s[^<>\n]{0,200})?>", re.IGNORECASE)
_BLOCK_TAG = re.compile(
    r"</?(?:br|p|div|h[1-6]|[uo]l|li|hr|table|tbody|thead|tr|t[dh]|evaluation|assessment|analysis|rationale|explanation|feedback|critique|"
    r"review|judge?ment|reason)(?:\s[^<>\n]{0,200})?/?>|<\|[^|<>\n]{1,40}\|>",
    re.IGNORECASE,
)
_MARK_BEGINS = re.compile("[-~>`<{\"'“”„«»「」『』‘’]")
_MARK = re.compile(
    r"""(?<![^\n])(?P<fence>`{3,}|~{3,})[^`\n]*$
    |(?<![^\n])(?P<block>>)[^\n]*(?:\n[ \t]*>[^\n]*)*
    |(?P<ticks>`+)
    |<(?:(?P<closing>/)|(?<!\w<))(?P<tag>[A-Za-z][\w.-]{0,40})(?:\s[^<>\n]{0,200})?>
    |(?P<comment><!--|-->)
    |(?P<quote>["“”„«»「」『』])
    |(?P<single>(?<!\w)['‘])|(?P<apostrophe>['’](?!\w))
    |(?P<brace>(?<![\w}^_])\{)""",
    re.VERBOSE | re.MULTILINE,
)
_CLOSERS = {'"': '"', "“": "”", "„": "“”", "«": "»", "「": "」", "『": "』", "'": "'’", "‘": "'’"}
_LIKE_JSON = re.compile(r"\{\s{0,200}(?:[\"'“”„‘’]|[\w -]{1,60}:|/[*/]|\#)")
_JSON_BLOCK = re.compile(r"```[ \t]*(?:json[c5]?)[ \t]*\n\s*(?=\{)", re.IGNORECASE)
_BLOCK_END = re.compile(r"\s*```[ \t]*(?=\n|\Z)")
_RUNS_ON = re.compile(r"\n[ \t]*\S")
_BAD_JSON = "The answer's JSON is not complete or not correct."
_UNPAIRED = "It is not clear what the answer quotes: its quotation marks, fences or tags do not pair."

ValueOf = Callable[[dict[str, Any]], Any]
"""A function from the members of a JSON object to the value of the verdict that they state; None if the object is not a verdict."""
Found = list[tuple[Any, dict[str, Any]]]
"""The JSON objects of an answer that state a verdict, in their order. An entry has the value of the verdict and the object's members."""


def own_words(text: str, value_of: ValueOf) -> tuple[str, Found]:  # noqa: C901 - one loop over the marks
    """Return the judge's own words, and the verdicts in JSON among them. Raises ``Unreadable`` if a mark of a quotation does not pair."""
    text = text.replace(OBJECT, GAP).replace("\r\n", "\n").replace("\r", "\n")
    if "<" in text:
        text = _VALUE_TAG.sub(lambda tag: f"{tag['label'].replace('_', ' ')}: {tag[2]}", text)
        text = _BLOCK_TAG.sub("\n", _INLINE_TAG.sub("", text))
    out: list[str] = []
    found: Found = []
    at, opener, closer, depth = 0, "", "", 0
    while begins := _MARK_BEGINS.search(text, at):
        start, before = begins.start(), at
        mark = _MARK.match(text, start)
        at = mark.end() if mark else start + 1
        if depth:
            if mark and _closes(mark, closer):
                depth -= 1
                out += [] if depth else [GAP]
            elif mark and mark["quote"] and mark[0] == opener:
                depth += 1
            continue
        if not mark or (mark[0] == '"' and text[start - 1 : start].isdigit()):  # the mark of an inch
            out.append(text[before:at])
            continue
        out.append(text[before:start])
        if mark["brace"] or _JSON_BLOCK.match(text, start):
            words, at = _object(text, start, value_of, found)
        elif mark["block"]:
            if _RUNS_ON.match(text, at):
                raise Unreadable("It is not clear where a block quote of the answer ends.")
            words = GAP
        elif mark["apostrophe"] or mark[0] == "-->":  # may be the true end of a quotation, if the quoted text contained a closing mark
            words = mark[0] + GAP
        elif mark[0].endswith("/>"):
            words = " "
        elif mark["closing"] or (mark["quote"] and mark[0] not in _CLOSERS):
            raise Unreadable(_UNPAIRED)
        else:
            opener, depth = mark[0], 1
            closer = mark["fence"] or mark["ticks"] or (f"</{mark['tag'].lower()}" if mark["tag"] else _CLOSERS.get(opener) or "-->")
            words = "\n" if mark["fence"] else ""
        out.append(words)
    if depth:
        raise Unreadable(_UNPAIRED)
    return "".join([*out, text[at:]]), found


def _closes(mark: re.Match[str], closer: str) -> bool:
    if closer[0] == "<":
        return bool(mark["closing"]) and f"</{mark['tag'].lower()}" == closer
    if mark["fence"] and mark[0].strip() == mark["fence"]:
        return mark["fence"].startswith(closer)
    return mark[0] == closer or (bool(mark["quote"] or mark["single"] or mark["apostrophe"]) and mark[0] in closer)


def _object(text: str, start: int, value_of: ValueOf, found: Found) -> tuple[str, int]:
    block = _JSON_BLOCK.match(text, start)
    start = block.end() if block else start
    if not block and not _LIKE_JSON.match(text, start):
        return "{", start + 1
    try:
        members, end = object_at(text, start)
    except NotAnObject:
        raise Unreadable(_BAD_JSON) from None
    value = value_of(members)
    words = "{}" if value is None else OBJECT
    if value is not None:
        found.append((value, members))
    if not block:
        return words, end
    closing = _BLOCK_END.match(text, end)
    if not closing:
        raise Unreadable(_BAD_JSON)
    return f"\n{words}\n", closing.end()


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
