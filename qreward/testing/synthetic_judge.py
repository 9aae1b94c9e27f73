"""A synthetic judge: it returns probabilities for typed questions, with known truth, bias, temperature and errors."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

from pydantic import Field

from qreward.decisions import Option, Question, Score, YesNo
from qreward.errors import ConfigError
from qreward.settings.base import Policy
from qreward.testing.text import softmax, text_of

_TRUTH = re.compile(r"(?<![\w.])truth(?:\[([^\]\n]*)\])?=((?:(?!\btruth[\[=])[^\n\"\\;])*)")
_WORDS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_LEAST = 1e-6  # smallest probability of an option, so that each probability has a logarithm
_SPREAD = 2.0  # standard deviation of the logits of a truth that is drawn from a hash
_REFUSED_MASS = 0.001  # share (0 to 1) of the label mass that a refused question keeps
_NORMAL = NormalDist()


class Asked(NamedTuple):
    kind: Literal["yes_no", "score", "choice"]
    text: str
    options: tuple[Option, ...]
    name: str | None = None

    @classmethod
    def of(cls, question: Question | Asked) -> Asked:
        if isinstance(question, Asked):
            return question
        kind: Any = "yes_no" if isinstance(question, YesNo) else "score" if isinstance(question, Score) else "choice"
        return cls(kind, question.instructions, question.options, question.name)

    @property
    def key(self) -> str:
        """The first line of the instructions."""
        return self.text.strip().partition("\n")[0].strip()

    def places(self) -> list[float]:
        count = len(self.options)
        if self.kind == "score":
            return [level / max(1, count - 1) for level in range(count)]
        return [1.0] + [0.0] * (count - 1)


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
        noise: with None, the judge reports the probabilities of :func:`truth_of`. With a number, the judge observes the true answer with
            normal noise. The number is the standard deviation of the noise, and the distance between options is 1. The judge then reports
            the posterior probabilities, so the judge is calibrated. Its answer to a ``YesNo`` is right with probability
            ``Phi(1 / (2 * noise))``: 0.99 for 0.215, 0.9 for 0.39, and 0.75 for 0.74.
        label_mass: probability that the judge answers with one of the options, and not with some other token.
        refuse: probability that the judge declines a question. If the API has no refusals, the label mass of such a question is multiplied
            by 0.001 instead.
        seed: seed of the random draws. Judges with equal noise and different seeds err about different inputs.

    Example:
        >>> right = YesNo("The answer is right.")
        >>> [round(number, 3) for number in SyntheticJudge().distribution("It is 4. truth=0.8", right)]
        [0.8, 0.2]
        >>> [round(number, 3) for number in SyntheticJudge(temperature=0.5).distribution("It is 4. truth=0.8", right)]
        [0.941, 0.059]
    """

    bias: float = Field(default=0.0, allow_inf_nan=False)
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    noise: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    label_mass: float = Field(default=1.0, gt=0, le=1)
    refuse: float = Field(default=0.0, ge=0, le=1)
    seed: int = 0

    def distribution(self, given: str | Sequence[Mapping[str, Any]], question: Question | Asked) -> tuple[float, ...]:
        """Return the probability of each option, in the order of the question's options; their sum is 1.

        Raises:
            ConfigError: the input has a truth that does not fit the question.
        """
        return self.read(given, question).probabilities

    def read(self, given: str | Sequence[Mapping[str, Any]], question: Question | Asked) -> JudgeRead:
        """Return the distribution, the label mass, and whether the judge refuses to answer.

        Raises:
            ConfigError: the input has a truth that does not fit the question.
        """
        asked, text = Asked.of(question), text_of(given)
        logits = self.seen(text, asked)
        biased = [(logit + self.bias * place) / self.temperature for logit, place in zip(logits, asked.places(), strict=True)]
        refused = self.refuse > 0 and uniform("refuse", self.seed, text, asked) < self.refuse
        return JudgeRead(tuple(softmax(biased)), self.label_mass * (_REFUSED_MASS if refused else 1.0), refused)

    def seen(self, text: str, asked: Asked) -> list[float]:
        """Return the logit of each option, before bias and temperature."""
        truth = truth_of(text, asked)
        if self.noise is None:
            return [math.log(max(number, _LEAST)) for number in truth]
        true, square = _drawn(truth, text, asked), self.noise**2
        if asked.kind == "score":
            seen = true + self.noise * _normal("noise", self.seed, text, asked)
            return [-((seen - level) ** 2) / (2 * square) for level in range(len(truth))]
        # The options are the corners of a simplex with edges of length 1. The logits are those of the posterior under normal noise, if all
        # corners are equally likely.
        corner = math.sqrt(0.5)
        seen_at = [corner * (place == true) + self.noise * _normal(f"noise {place}", self.seed, text, asked) for place in range(len(truth))]
        return [corner * seen / square for seen in seen_at]


def truth_of(given: str | Sequence[Mapping[str, Any]], question: Question | Asked) -> tuple[float, ...]:
    """Return the true probability of each option, in the order of the options of the question.

    The docstring of this module describes how an input states the truth.

    Raises:
        ConfigError: the input has a truth that does not fit the question.

    Example:
        >>> truth_of("It is 4. truth=0.75", Score("How good?", levels=["bad", "fair", "good"]))
        (0.0, 0.5, 0.5)
    """
    asked, text = Asked.of(question), text_of(given)
    own, general = stated_truths(text, asked)
    if own is not None:
        return _stated(own, asked)
    if asked.kind == "choice" and general:
        return _best([_number(value, asked) for value in general], asked)
    return _placed(_number(general[0], asked), asked) if general else _hashed(text, asked)


def true_answer(given: str | Sequence[Mapping[str, Any]], question: Question | Asked) -> Option:
    """Return the true option, which is the gold label. A hash of the input and the question draws the option from the distribution that
    :func:`truth_of` returns.

    Raises:
        ConfigError: the input has a truth that does not fit the question.

    Example:
        >>> true_answer("It is 4. truth=1", YesNo("The answer is right."))
        True
    """
    asked, text = Asked.of(question), text_of(given)
    return asked.options[_drawn(truth_of(text, asked), text, asked)]


def stated_truths(text: str, asked: Asked) -> tuple[str | None, list[str]]:
    """Return the value of the truth that names this question (None without one), and the values of the truths for all questions."""
    found = _truths(text)
    own = next((value for name, value in found if name and name in (asked.name, asked.key)), None)
    general = [value for name, value in found if not name]
    return own, [] if own is not None or (asked.kind == "choice" and len(general) < 2) else general


@lru_cache(maxsize=1024)
def _truths(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(_TRUTH.findall(text)) if "truth" in text else ()


def _stated(value: str, asked: Asked) -> tuple[float, ...]:
    """Return the distribution that the value of a truth states, if the truth names its question."""
    wanted, names = value.strip().lower(), [str(option).lower() for option in asked.options]
    if asked.kind != "yes_no":  # a prompt may show an option together with a description of the option
        named = (
            [name == wanted for name in names]
            if wanted in names
            else [name.startswith((f"{wanted}: ", f"{wanted} - ", f"{wanted} (")) for name in names]
        )
        if any(named):
            return tuple(map(float, named))
    if asked.kind == "choice":
        raise ConfigError(f"truth={value!r} is not one of the choices of {asked.text!r}: {asked.options}")
    return _placed(_number(value, asked), asked)


def _number(value: str, asked: Asked) -> float:
    if asked.kind == "yes_no" and (word := _WORDS.get(value.strip().lower())) is not None:
        return word
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
        return tuple(softmax([_SPREAD * _normal(f"truth {place}", 0, text, asked) for place in range(len(asked.options))]))
    spread = _SPREAD * math.sqrt(2) if asked.kind == "yes_no" else 1.0  # the difference of two logits
    return _placed(1 / (1 + math.exp(-spread * _normal("truth", 0, text, asked))), asked)


def _drawn(truth: Sequence[float], text: str, asked: Asked) -> int:
    left = uniform("answer", 0, text, asked)
    for place, number in enumerate(truth):
        left -= number
        if left < 0:
            return place
    return max(range(len(truth)), key=truth.__getitem__)


def uniform(use: str, seed: int, text: str, asked: Asked) -> float:
    """Return a number between 0 and 1 that depends only on the arguments. Among the fields of the question, only the key has an effect."""
    digest = blake2b(f"{seed}/{use}".encode(), key=_key(text, asked.key), digest_size=8).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2**64


@lru_cache(maxsize=4096)
def _key(*texts: str) -> bytes:
    digest = blake2b(digest_size=16)
    for text in texts:
        encoded = text.encode(errors="surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.digest()


def _normal(use: str, seed: int, text: str, asked: Asked) -> float:
    return _NORMAL.inv_cdf(uniform(use, seed, text, asked))
