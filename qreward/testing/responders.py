"""The texts of a fake endpoint's responses: the echo, the judge, or the user's own function."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from qreward.errors import ConfigError
from qreward.server.import_string import load_object
from qreward.testing.text import digest_of, echo_text, text_of

Responder = Callable[[list[Any]], str]
Write = Callable[[list[Any], bytes], str]
"""A function that returns the text of the response, from the messages and their digest."""
RESPONDERS = ("echo", "judge")
"""Names of the built-in responders."""

_ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL = {word: value for value, word in enumerate(_ONES.split())} | {word: 10 * value for value, word in enumerate(_TENS.split(), 2)}
_LARGE = {"hundred": 100, "thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000}
_PARTS = {"half": Fraction(1, 2), "halves": Fraction(1, 2), "quarter": Fraction(1, 4), "quarters": Fraction(1, 4)}

# Dimension -> names of a unit -> size of this unit, in the smallest unit of the same dimension in this table.
_TABLE = {
    "length": {"mm millimeter millimetre": 1, "cm centimeter centimetre": 10, "m meter metre": 1_000, "km kilometer kilometre": 1_000_000},
    "mass": {"mg milligram": 1, "g gram": 1_000, "kg kilogram": 1_000_000},
    "time": {"ms millisecond": 1, "s sec second": 1_000, "min minute": 60_000, "h hr hrs hour": 3_600_000},
}
_UNITS: dict[str, tuple[str, Fraction | int]] = {
    name: (kind, size)
    for kind, units in _TABLE.items()
    for names, size in units.items()
    for word in names.split()
    for name in ((word, word + "s") if len(word) > 2 else (word,))
}
_UNITS |= dict.fromkeys(("%", "percent"), ("", Fraction(1, 100)))

_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d{1,3})?"  # 1e999999999 as a fraction would take hundreds of megabytes
_FRACTION = rf"(?:[+-]?\d+\s+\d+\s*/\s*\d+|{_NUMBER}\s*/\s*{_NUMBER}|{_NUMBER})"
_QUANTITY = re.compile(rf"({_FRACTION})\s*(%|percent\b|[a-z]+\b)?")


def same_answer(reference: str, candidate: str, any_order: bool = False) -> str | None:
    """Compare a candidate answer with the reference answer.

    Returns:
        The reason why the answers are equal, in a few words; None if the answers differ.

    Example:
        >>> same_answer("1,500 m", "1.5 km.")
        'same quantity'
    """
    wanted, given = _tidy(reference), _tidy(candidate)
    if reference.strip() == candidate.strip() or (_plain(wanted) and _plain(wanted) == _plain(given)):
        return "same text"
    quantity = _quantity(wanted)
    if quantity is not None and quantity == _quantity(given):
        return "same quantity"
    left, right = ([_key(item) for item in _items(text)] for text in (wanted, given))
    if len(left) < 2 or len(left) != len(right):
        return None
    if left == right:
        return "same list"
    return "same list in another order" if any_order and sorted(left) == sorted(right) else None


def _items(text: str) -> list[str]:
    """Return the items of a list. Commas, semicolons, line breaks and the word ``and`` separate items. Bullets are removed."""
    parts = re.split(r"[,;\n]|\band\b", text)
    return [item for part in parts if (item := re.sub(r"^(?:[-*•]|\d+[.)])\s+", "", part.strip()))]


def _key(item: str) -> str:
    quantity = _quantity(item)
    return _plain(item) if quantity is None else f"{quantity[0]} {quantity[1]}"


def _tidy(text: str) -> str:
    """Normalise case, characters and the notation of numbers. Commas and line breaks are kept."""
    text = unicodedata.normalize("NFKC", text.replace("\u2212", "-")).casefold().strip()
    text = text.replace("\u2044", "/")
    text = re.sub(r"(?<![\d.])\d{1,3}(?:,\d{3})+(?!\d)", lambda match: match[0].replace(",", ""), text)
    text = re.sub(r"[$€£¥]", "", text)
    text = re.sub(r"(?<=[a-z])-(?=[a-z])", " ", text)
    return "\n".join(_digits(line) for line in text.splitlines()).lstrip(" \t").rstrip(" \t.!?")


def _plain(text: str) -> str:
    """Return the words of a text without articles and punctuation. Punctuation within numbers, and symbols such as ``+``, are kept."""
    text = re.sub(r"[\"'`\u2018\u2019\u201c\u201d()\[\]{}*_!?:;,]|(?<!\d)\.(?!\d)|\.(?!\d)", " ", text.replace("'", ""))
    text = re.sub(r"\s*([=+*/<>^])\s*", r"\1", text)
    words = text.split()
    # An article alone can be the whole answer: "A" as the letter of a choice.
    return " ".join([word for word in words if word not in ("a", "an", "the")] or words)


def _quantity(text: str) -> tuple[str, Fraction] | None:
    """Return the dimension and the value of a quantity. The dimension is ``""`` for a number without a unit."""
    text = re.sub(r"^(?:the|an?)\s+", "", text.strip(" \t\n,;:!?\"'()[]*_`").rstrip("."))
    kinds, total, position = set(), Fraction(0), 0
    for match in _QUANTITY.finditer(text):
        if text[position : match.start()].strip() not in (("",) if not position else ("", "and", ",")):
            return None
        measured = _measure(match[1], match[2] or "")
        if measured is None:
            return None
        kinds.add(measured[0])
        total, position = total + measured[1], match.end()
    parts = len(_QUANTITY.findall(text))
    # "1 h 30 min" is one quantity, but "3 5" is two numbers.
    if not parts or text[position:].strip(" .") or len(kinds) != 1 or (parts > 1 and kinds & {"", "%"}):
        return None
    return kinds.pop(), total


def _measure(number: str, unit: str) -> tuple[str, Fraction] | None:
    if unit and unit not in _UNITS:
        return None
    kind, size = _UNITS.get(unit, ("", 1))
    top, _, bottom = number.partition("/")
    whole, _, rest = top.strip().rpartition(" ")
    try:
        value = Fraction(rest.rstrip(".")) / Fraction(bottom.strip().rstrip(".") or 1)
    except (ValueError, ZeroDivisionError):
        return None
    if whole.strip():
        value = Fraction(whole.strip()) + (-value if whole.startswith("-") else value)
    return kind, value * size


def _digits(line: str) -> str:
    """Return a line with number words written as digits: ``twenty one`` as 21, ``one half`` as 1/2, ``minus five`` as -5."""
    out: list[str] = []
    run: list[str] = []
    for word in [*re.findall(r"\S+", line), ""]:
        bare = word.rstrip(".,;:!?")
        if bare in _SMALL or bare in _LARGE or bare in _PARTS or (bare == "and" and run and run[-1] in _LARGE):
            run.append(bare)
            if bare == word:
                continue
            word = word[len(bare) :]  # noqa: PLW2901 - keeps only the punctuation, which ends the run
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
                return " ".join(str(_SMALL.get(each, each)) for each in run) + tail  # "one two three" is a sequence, not one number
            group += _SMALL[word]
        elif word == "hundred":
            group = max(1, group) * 100
        elif word in _LARGE:
            total, group = total + max(1, group) * _LARGE[word], 0
    return str(total + group) + tail


MEMBER = re.compile(r'^"(\w+)": (text|true or false|one of .*|(?:whole )?number\b.*|list of .*)', re.MULTILINE)
_NUMBER_IN_FORM = r"(-?\d[\d.]*(?:e[+-]\d+)?)"
_RANGES = (
    re.compile(rf"from {_NUMBER_IN_FORM} to {_NUMBER_IN_FORM}"),
    re.compile(rf"at least {_NUMBER_IN_FORM}, at most {_NUMBER_IN_FORM}"),
)
_LABEL = re.compile(r"^[ \t]*(question|reference answer|candidate answer)[ \t]*:[ \t]*", re.IGNORECASE | re.MULTILINE)
# What a prompt of ``Judge`` may have after the last judged text: its notes and its question, the form of the answer, and a note on an
# earlier answer.
_AFTER = re.compile(
    r"^(?:[ \t]*Question(?:, to be answered yes or no)?[ \t]*:|Where it differs from the reference answer\b|What stands between lines of "
    r"backticks\b|Answer with one JSON object\b|\(An earlier answer could not be used:)",
    re.IGNORECASE | re.MULTILINE,
)
_FENCED = re.compile(r"^(?P<fence>`{3,})[^`\n]*\n(?P<inside>.*?)^(?P=fence)[ \t]*$", re.DOTALL | re.MULTILINE)
_ANY_ORDER = re.compile(r"\b(?:in any order|order does(?: not|n't) matter)\b", re.IGNORECASE)
_CHOICES = re.compile(r"one of ((?:\"[^\"]*\"|-?\d[\d.]*)(?:, (?:\"[^\"]*\"|-?\d[\d.]*))*)")
_BEST = ("yes", "true", "correct", "right", "pass")
_WORST = ("no", "false", "incorrect", "wrong", "fail")


def judge(messages: list[Any]) -> str:
    """Judge the candidate answer in the messages. Return a JSON object with the members that the prompt asks for.

    A prompt of :class:`qreward.judge.Judge` describes the form of the answer. A right candidate answer gets the highest number, yes or
    true. A wrong one gets the lowest number, no or false. A prompt without such a form gets the members ``verdict``, ``score`` (1 or 0),
    ``reason`` and ``echo``.

    The last message with the label ``Candidate answer:`` counts, except messages of the assistant. The reference answer is in the same
    message, or in a message without a candidate answer. If a text is missing, if there are two reference answers, or if the form has a
    member with other options, the response is a sentence, which no client can read as a verdict.

    Example:
        >>> judge([{"role": "user", "content": "Reference answer: 1/2\\nCandidate answer: 50%"}])[:45]
        '{"verdict": "correct", "score": 1, "reason": '
        >>> form = 'Answer with one JSON object:\\n"score": number, from 1 to 5'
        >>> judge([{"role": "user", "content": f"Reference answer: 1/2\\nCandidate answer: 50%\\n\\n{form}"}])
        '{"score": 5}'
    """
    texts = [text_of([each]) for each in messages if isinstance(each, dict) and each.get("role") != "assistant"]
    found = _judged(texts)
    if not found.get("reference answer") or "candidate answer" not in found:
        missing = "Candidate answer:" if "candidate answer" not in found else "Reference answer:"
        return f"I cannot judge this, because the messages lack a single text after '{missing}'."
    reason = same_answer(found["reference answer"], found["candidate answer"], bool(_ANY_ORDER.search(found.get("question", ""))))
    form = dict(MEMBER.findall("\n".join(texts)))  # a form that is repeated, or that a judged text contains, is before the last one
    if not form:
        verdict = {"verdict": "correct" if reason else "incorrect", "score": int(bool(reason)), "reason": reason or _DIFFERS}
        return json.dumps({**verdict, "echo": digest_of(messages)[:8].hex()}, ensure_ascii=False)
    try:
        return json.dumps({name: _member(words, reason) for name, words in form.items()}, ensure_ascii=False)
    except _UnknownForm:
        return "I cannot judge this, because a member of the form has neither limits nor options that I know."


_DIFFERS = "differs from the reference"


class _UnknownForm(Exception):
    """The judge does not know which value of a member is for a right answer."""


def _member(form: str, reason: str | None) -> Any:
    """Return the value of a member, from its form and the reason why the answer is right; None if it is wrong."""
    if form.startswith("text"):
        return reason or _DIFFERS
    if form.startswith("list of"):
        return []
    if form.startswith("true or false"):
        return reason is not None
    if choices := _CHOICES.match(form):
        worst, best = _ends(json.loads(f"[{choices[1]}]"))
    else:
        worst, best = (_plain_number(end) for end in range_of(form) or (None, None))
    if worst is None or best is None:
        raise _UnknownForm
    return best if reason else worst


def _ends(options: list[Any]) -> tuple[Any, Any]:
    """Return the options for a wrong and for a right answer. None if there is no such option, or more than one."""
    try:
        return min(options, key=float), max(options, key=float)
    except ValueError:
        named = [[option for option in options if str(option).strip().lower() in words] for words in (_WORST, _BEST)]
        worst, best = (each[0] if len(each) == 1 else None for each in named)
        return worst, best


def _plain_number(number: float | None) -> float | None:
    return int(number) if number is not None and number.is_integer() else number


def _judged(texts: list[str]) -> dict[str, str]:
    """Return the sections of the judged message."""
    found = [sections(text) for text in texts]
    judged = next((each for each in reversed(found) if "candidate answer" in each), {})
    others = {name: text for each in found if "candidate answer" not in each for name, text in each.items()}
    if judged.get("reference answer") and others.get("reference answer"):
        return {"candidate answer": judged["candidate answer"]}
    return {**others, **judged}


def sections(text: str) -> dict[str, str]:
    """Return a mapping from each label, in lower case, to the text of its section."""
    blocks = [match.span() for match in _FENCED.finditer(text)]

    def outside(pattern: re.Pattern[str]) -> list[re.Match[str]]:
        return [match for match in pattern.finditer(text) if not any(start <= match.start() < end for start, end in blocks)]

    first: dict[str, re.Match[str]] = {}
    for match in outside(_LABEL):
        first.setdefault(match[1].lower(), match)
    ends = sorted({match.start() for match in (*first.values(), *outside(_AFTER))} | {len(text)})
    found = {name: text[match.end() : next(end for end in ends if end > match.start())].strip() for name, match in first.items()}
    return {name: block["inside"].strip() if (block := _FENCED.fullmatch(section)) else section for name, section in found.items()}


def range_of(form: str) -> tuple[float, float] | None:
    """Return the lowest and the highest number that the form of a member allows. Return None if the form does not say both.

    Example:
        >>> range_of("number, how good it is; from 1 to 5")
        (1.0, 5.0)
    """
    found = next((ranges[-1] for pattern in _RANGES if (ranges := pattern.findall(form))), None)
    return None if found is None else (float(found[0]), float(found[1]))


def writer_of(responder: str | Responder) -> Write:
    """Return the function that writes the responses for the setting ``responder``."""
    if responder == "echo":
        return lambda _messages, digest: echo_text(digest)
    function: Any = judge if responder == "judge" else responder
    if isinstance(function, str):
        function = load_object(function, "responder", "my_fakes:answer")
        if not callable(function):
            raise ConfigError(f"the responder {responder!r} must be a function, not a {type(function).__name__}")
    return lambda messages, _digest: str(function(messages))
