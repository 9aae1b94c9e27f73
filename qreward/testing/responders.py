"""The texts and decisions of a fake endpoint: the echo, the judge that compares, the user's own function, and the synthetic judge."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from fractions import Fraction
from hashlib import blake2b
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

from pydantic import Field

from qreward.callables import load_object
from qreward.decisions import Option
from qreward.errors import ConfigError
from qreward.settings.base import Policy
from qreward.testing.bodies import digest_of, echo_text, softmax, text_of

Responder = Callable[[list[Any]], str]
Write = Callable[[list[Any], bytes], str]  # a function that returns the text of the response, from the messages and their digest
RESPONDERS = ("echo", "judge")  # names of the built-in responders

_ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_WORDS = [*_ONES.split(), *(f"{ten} {one}".removesuffix(" zero") for ten in _TENS.split() for one in _ONES.split()[:10])]
_SPOKEN = re.compile(rf"\b(?:{'|'.join(sorted(_WORDS, key=len, reverse=True))})\b")
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
    text = _SPOKEN.sub(lambda match: str(_WORDS.index(match[0])), text)
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


# The synthetic judge: it returns probabilities for typed questions, with known truth, bias, temperature and errors

_TRUTH = re.compile(r"(?<![\w.])truth(?:\[([^\]\n]*)\])?=((?:(?!\btruth[\[=])[^\n\"\\;])*)")
_YES_OR_NO = {"yes": "1", "true": "1", "no": "0", "false": "0"}
_LEAST = 1e-6  # smallest probability of an option, so that each probability has a logarithm
_SPREAD = 2.0  # standard deviation of the logits of a truth that is drawn from a hash
_REFUSED_MASS = 0.001  # share (0 to 1) of the label mass that a refused question keeps


class Asked(NamedTuple):
    kind: Literal["yes_no", "score", "choice"]
    text: str
    options: tuple[Option, ...]
    name: str | None = None

    @property
    def key(self) -> str:
        """The first line of the instructions."""
        return self.text.strip().partition("\n")[0].strip()


class JudgeRead(NamedTuple):
    probabilities: tuple[float, ...]
    label_mass: float
    refused: bool

    @property
    def place(self) -> int:
        """The index of the most probable option."""
        return self.probabilities.index(max(self.probabilities))


class SyntheticJudge(Policy):
    """Answers questions as a judge with known faults. The answers depend only on ``seed``, the input and the question.

    Args:
        bias: number that is added to the logit of yes, of the highest level, and of the first choice. Lower levels of a score get a
            proportional part of this number.
        temperature: number by which all logits are divided. Below 1 the judge is overconfident, and above 1 the judge is underconfident.
        noise: with None, the judge reports the probabilities that the truth in the text states. With a number, the judge observes the true
            answer with normal noise. The number is the standard deviation of the noise, and the distance between options is 1. The judge
            then reports the posterior probabilities, so the judge is calibrated. Its answer to a ``YesNo`` is right with probability
            ``Phi(1 / (2 * noise))``: 0.99 for 0.215, 0.9 for 0.39, and 0.75 for 0.74.
        label_mass: probability that the judge answers with one of the options, and not with some other token.
        refuse: probability that the judge declines a question. If the API has no refusals, the label mass of such a question is multiplied
            by 0.001 instead.
        seed: seed of the random draws. Judges with equal noise and different seeds err about different inputs.

    Example:
        >>> SyntheticJudge(noise=0.39, temperature=0.5).bias      # right in nine of ten cases, and too sure
        0.0
    """

    bias: float = Field(default=0.0, allow_inf_nan=False)
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    noise: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    label_mass: float = Field(default=1.0, gt=0, le=1)
    refuse: float = Field(default=0.0, ge=0, le=1)
    seed: int = 0

    def read(self, text: str, asked: Asked) -> JudgeRead:
        """Answer a question about a text. Raises ``ConfigError`` if the text has a truth that does not fit the question."""
        text, last = text.strip(), max(1, len(asked.options) - 1)
        logits = self.seen(text, asked)
        favour = [self.bias * (place / last if asked.kind == "score" else place == 0) for place in range(len(logits))]
        biased = [(logit + bias) / self.temperature for logit, bias in zip(logits, favour, strict=True)]
        refused = self.refuse > 0 and uniform("refuse", self.seed, text, asked) < self.refuse
        return JudgeRead(tuple(softmax(biased)), self.label_mass * (_REFUSED_MASS if refused else 1.0), refused)

    def seen(self, text: str, asked: Asked) -> list[float]:
        """Return the logit of each option, before bias and temperature."""
        truth = truth_of(text, asked)
        if self.noise is None:
            return [math.log(max(number, _LEAST)) for number in truth]
        true, square = drawn(truth, text, asked), self.noise**2
        if asked.kind == "score":
            seen = true + self.noise * normal("noise", self.seed, text, asked)
            return [-((seen - level) ** 2) / (2 * square) for level in range(len(truth))]
        # The options are the corners of a simplex with edges of length 1. The logits are those of the posterior under normal noise, if all
        # corners are equally likely.
        corner = math.sqrt(0.5)
        seen_at = [corner * (place == true) + self.noise * normal(f"noise {place}", self.seed, text, asked) for place in range(len(truth))]
        return [corner * seen / square for seen in seen_at]


def truth_of(text: str, asked: Asked) -> tuple[float, ...]:
    """Return the true probability of each option. Raises ``ConfigError`` if the text has a truth that does not fit the question."""
    own, general = stated_truths(text, asked)
    if own is not None:
        return _stated(own, asked)
    if not general:
        return _hashed(text, asked)
    return _best([_number(value, asked) for value in general], asked) if asked.kind == "choice" else _stated(general[0], asked)


def stated_truths(text: str, asked: Asked) -> tuple[str | None, list[str]]:
    """Return the value of the truth that names this question (None without one), and the values of the truths for all questions."""
    found: list[tuple[str, str]] = _TRUTH.findall(text) if "truth" in text else []
    own = next((value for name, value in found if name and name in (asked.name, asked.key)), None)
    general = [value for name, value in found if not name]
    return own, [] if own is not None or (asked.kind == "choice" and len(general) < 2) else general


def _stated(value: str, asked: Asked) -> tuple[float, ...]:
    """Return the distribution that the value of a truth states: a number, yes or no, a level, or a choice."""
    wanted, names = value.strip().lower(), [str(option).lower() for option in asked.options]
    if asked.kind == "yes_no":
        return _placed(_number(_YES_OR_NO.get(wanted, value), asked), asked)
    named = [name == wanted for name in names]
    if not any(named):  # a prompt may show an option together with a description of the option
        named = [name.startswith((f"{wanted}: ", f"{wanted} - ", f"{wanted} (")) for name in names]
    if any(named):
        return tuple(map(float, named))
    if asked.kind == "choice":
        raise ConfigError(f"truth={value!r} is not one of the choices of {asked.text!r}: {asked.options}")
    return _placed(_number(value, asked), asked)


def _number(value: str, asked: Asked) -> float:
    try:
        number = float(value.split(maxsplit=1)[0])
    except (ValueError, IndexError):
        number = math.nan
    if not 0 <= number <= 1:
        raise ConfigError(f"truth={value!r} is neither an option of {asked.text!r} nor a number from 0 to 1")
    return number


def _placed(place: float, asked: Asked) -> tuple[float, ...]:
    """Return a distribution over the two options next to a place between the lowest option (0) and the highest (1)."""
    if asked.kind == "yes_no":
        return place, 1 - place
    at = place * (len(asked.options) - 1)
    return tuple(max(0.0, 1 - abs(at - level)) for level in range(len(asked.options)))


def _best(numbers: list[float], asked: Asked) -> tuple[float, ...]:
    if len(numbers) > len(asked.options):
        raise ConfigError(f"the input states truth= {len(numbers)} times, but {asked.text!r} has only {len(asked.options)} options")
    best = [place for place, number in enumerate(numbers) if number == max(numbers)]
    if len(best) > 1 and len(asked.options) > len(numbers):
        best = [len(numbers)]
    return tuple((place in best) / len(best) for place in range(len(asked.options)))


def _hashed(text: str, asked: Asked) -> tuple[float, ...]:
    if asked.kind == "choice":
        return tuple(softmax([_SPREAD * normal(f"truth {place}", 0, text, asked) for place in range(len(asked.options))]))
    spread = _SPREAD * math.sqrt(2) if asked.kind == "yes_no" else 1.0  # the difference of two logits
    return _placed(1 / (1 + math.exp(-spread * normal("truth", 0, text, asked))), asked)


def drawn(truth: Sequence[float], text: str, asked: Asked) -> int:
    """Draw the index of the true option from its distribution."""
    left = uniform("answer", 0, text, asked)
    for place, number in enumerate(truth):
        left -= number
        if left < 0:
            return place
    return max(range(len(truth)), key=truth.__getitem__)


def uniform(use: str, seed: int, text: str, asked: Asked) -> float:
    """Return a number between 0 and 1 that depends only on the arguments. Among the fields of the question, only the key has an effect."""
    encoded = [each.encode(errors="surrogatepass") for each in (text, asked.key)]
    key = blake2b(b"".join(len(each).to_bytes(8, "big") + each for each in encoded), digest_size=16).digest()
    return (int.from_bytes(blake2b(f"{seed}/{use}".encode(), key=key, digest_size=8).digest(), "big") + 0.5) / 2**64


def normal(use: str, seed: int, text: str, asked: Asked) -> float:
    return NormalDist().inv_cdf(uniform(use, seed, text, asked))
