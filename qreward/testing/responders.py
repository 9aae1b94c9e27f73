"""The texts of a fake endpoint's responses: the echo, the judge, or the user's own function."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from qreward.callables import load_object
from qreward.errors import ConfigError
from qreward.testing.text import digest_of, echo_text, text_of

Responder = Callable[[list[Any]], str]
Write = Callable[[list[Any], bytes], str]
"""A function that returns the text of the response, from the messages and their digest."""
RESPONDERS = ("echo", "judge")
"""Names of the built-in responders."""

_ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_SMALL = {word: value for value, word in enumerate(_ONES.split())}
_TENS = {word: 10 * value for value, word in enumerate(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], 2)}
_SPOKEN = re.compile(rf"\b(?:({'|'.join(_TENS)})(?: ({'|'.join(list(_SMALL)[1:10])}))?|({'|'.join(_SMALL)}))\b")
_PLAIN = r"(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,3}(?!\d))?"  # 1e999999999 as a fraction would take hundreds of megabytes
_NUMBER = re.compile(rf"(?<![\w.])([+-]?)(?:(\d+)\s+(?=\d+\s*/))?({_PLAIN})(?:\s*/\s*({_PLAIN}))?(\s*%|\s*percent\b)?")
_THOUSANDS = re.compile(r"(?<![\d.])\d{1,3}(?:,\d{3})+(?!\d)")
_PUNCTUATION = re.compile(r"[\"'`\u2018\u2019\u201c\u201d()\[\]{}*_!?:;,$€£¥]|\.(?!\d)")


def same_answer(reference: str, candidate: str, any_order: bool = False) -> bool:
    """Return whether a candidate answer equals the reference answer, as a text or as a list."""
    wanted, given = _normal(reference), _normal(candidate)
    if reference.strip() == candidate.strip() or (wanted and wanted == given):
        return True
    left, right = ([_normal(item) for item in _items(text)] for text in (reference, candidate))
    return 1 < len(left) == len(right) and (left == right or (any_order and sorted(left) == sorted(right)))


def _items(text: str) -> list[str]:
    """Return the items of a list. Commas, semicolons, line breaks and the word ``and`` separate items. Bullets are removed."""
    parts = re.split(r"[,;\n]|\band\b", _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text))
    return [item for part in parts if (item := re.sub(r"^(?:[-*•]|\d+[.)])\s+", "", part.strip()))]


def _normal(text: str) -> str:
    """Return a text in lower case, without articles and punctuation, and with its numbers, also words up to ninety-nine, as fractions."""
    text = unicodedata.normalize("NFKC", text.replace("\u2212", "-")).casefold().replace("\u2044", "/")
    text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text.replace("$", ""))
    text = re.sub(r"(?<=[a-z])-(?=[a-z])", " ", text).replace("'", "")
    text = _SPOKEN.sub(lambda match: str(_TENS.get(match[1], 0) + _SMALL.get(match[2] or match[3], 0)), text)
    text = _PUNCTUATION.sub(" ", _NUMBER.sub(_value, text))
    words = re.sub(r"\s*([=+*/<>^])\s*", r"\1", text).split()
    # An article alone can be the whole answer: "A" as the letter of a choice.
    return " ".join([word for word in words if word not in ("a", "an", "the")] or words)


def _value(match: re.Match[str]) -> str:
    sign, whole, top, bottom, percent = match.groups()
    try:
        value = Fraction(top.rstrip(".")) / Fraction((bottom or "1").rstrip(".")) + Fraction(whole or 0)
    except ZeroDivisionError:
        return match[0]
    return f" {(-1 if sign == '-' else 1) * value / (100 if percent else 1)} "


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
    """Judge the candidate answer in the messages. Return a JSON object with the members that the prompt asks for, or with ``verdict``,
    ``score``, ``reason`` and ``echo``. If it cannot judge, the response is a sentence, which no client can read as a verdict."""
    texts = [text_of([each]) for each in messages if isinstance(each, dict) and each.get("role") != "assistant"]
    found = _judged(texts)
    if not found.get("reference answer") or "candidate answer" not in found:
        missing = "Candidate answer:" if "candidate answer" not in found else "Reference answer:"
        return f"I cannot judge this, because the messages lack a single text after '{missing}'."
    right = same_answer(found["reference answer"], found["candidate answer"], bool(_ANY_ORDER.search(found.get("question", ""))))
    form = dict(MEMBER.findall("\n".join(texts)))  # a form that is repeated, or that a judged text contains, is before the last one
    if not form:
        verdict = {"verdict": "correct" if right else "incorrect", "score": int(right), "reason": _REASONS[right]}
        return json.dumps({**verdict, "echo": digest_of(messages)[:8].hex()}, ensure_ascii=False)
    members = {name: _member(words, right) for name, words in form.items()}
    if None in members.values():
        return "I cannot judge this, because a member of the form has neither limits nor options that I know."
    return json.dumps(members, ensure_ascii=False)


_REASONS = ("differs from the reference", "same text")


def _member(form: str, right: bool) -> Any:
    """Return the value of a member for a right or a wrong answer, from the form of the member; None if that is not known."""
    if form.startswith("text"):
        return _REASONS[right]
    if form.startswith("list of"):
        return []
    if form.startswith("true or false"):
        return right
    if choices := _CHOICES.match(form):
        options = json.loads(f"[{choices[1]}]")
        try:
            return (max if right else min)(options, key=float)
        except ValueError:
            named = [[option for option in options if str(option).strip().lower() in words] for words in (_WORST, _BEST)]
            return named[right][0] if all(len(each) == 1 for each in named) else None
    ends = range_of(form)
    return None if ends is None else int(ends[right]) if ends[right].is_integer() else ends[right]


def _judged(texts: list[str]) -> dict[str, str]:
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
    """Return the lowest and the highest number that the form of a member allows, or None if the form does not say both."""
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
