"""Answers prompts that list labelled options and ask for one label. The answer is a first token with log probabilities.

Any client may write the prompt. A prompt consists of an input, a question, lines such as ``A: calm``, ``0: poor`` or ``yes: it is right``,
and a last line that asks for one label. The module also contains the fake tokenizer, in which each label is one token. This module does not
use HTTP.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from qreward.decisions import Option
from qreward.testing.bodies import text_of
from qreward.testing.responders import Asked, JudgeRead, SyntheticJudge

_LINE = re.compile(r"[ \t]*(?:[-*][ \t]+)?[(\[\"']?([A-Z]|\d|[Yy]es|[Nn]o)[)\]\"']?(?:[ \t]*[:.)=][ \t]*|[ \t]+-[ \t]+)(.*)")
_LEAD = re.compile(r"(?:Question|Rate|Is (?:this|the following) true|Criterion|Statement)[:?][ \t]*", re.IGNORECASE)
_MOST_AFTER = 4  # maximum number of lines after the list of options
_YES_OR_NO = re.compile(r"\byes\b\W+or\W+no\b", re.IGNORECASE)
_BOOLS = {"yes": True, "true": True, "no": False, "false": False}
_SEQUENCES = (string.ascii_uppercase, string.digits)
_OTHERS = ("I", "The", "It", "**", "<think>", "\n", "Answer", "This", "Based", "Sure", "Let", "In", "-", "To", "Okay", "My", "We", "Well")
_NEVER = -9999.0  # the log probability of an impossible token, as OpenAI and vLLM write it
_VARIANTS = ((0.9, str), (0.07, " {}".format), (0.03, str.swapcase))  # share of a label's probability, and the spelling that gets it
_MOST_WITH_VARIANTS = 6  # maximum number of labels whose variants fit among 20 tokens


class LabelledPrompt(NamedTuple):
    """Holds a prompt that asks for one label.

    Attributes:
        input: the text before the question.
        asked: the question.
        labels: the label of each option, in the order of the options of the question.
    """

    input: str
    asked: Asked
    labels: tuple[str, ...]


def read_prompt(given: str | Sequence[Mapping[str, Any]]) -> LabelledPrompt | None:
    """Find the question and the labels in a prompt. Return None if the prompt lists no labelled options.

    Example:
        >>> read_prompt("It is 4.\\n\\nQuestion: Tone?\\nA: calm\\nB: rude\\nAnswer with one letter.").asked.options
        ('calm', 'rude')
    """
    lines = text_of(given).split("\n")
    begin, end = _options(lines)
    if begin == end:
        begin = next((place for place in range(len(lines) - 1, max(-1, len(lines) - 3), -1) if _YES_OR_NO.search(lines[place])), 0)
        if not begin:
            return None
    found = [match for line in lines[begin:end] if (match := _LINE.fullmatch(line))]
    first = _first_of_question(lines, begin)
    question = _LEAD.sub("", "\n".join(lines[first:begin]), count=1).strip()
    asked, labels = _asked(question, [match[1] for match in found], [match[2].strip() for match in found])
    return LabelledPrompt("\n".join(lines[:first]).strip(), asked, tuple(labels))


def _options(lines: list[str]) -> tuple[int, int]:
    """Return the range of lines that contains the last list of labelled options. The range is empty if no list is near the end."""
    end = len(lines)
    while end > max(0, len(lines) - _MOST_AFTER):
        begin = end
        while begin > 0 and _LINE.fullmatch(lines[begin - 1]):
            begin -= 1
        for start in range(begin, end):  # the first lines of the range may be a question that looks like an option
            found = [match[1] for line in lines[start:end] if (match := _LINE.fullmatch(line))]
            if _complete(found):
                return start, end
        end = begin - 1 if begin == end else begin
    return 0, 0


def _complete(labels: list[str]) -> bool:
    """Return whether labels are a complete list: A, B, C and so on, or 0, 1, 2 and so on, or yes and no.

    A list with only ``yes`` or only ``no`` is also complete, because a prompt may describe only one of the two.
    """
    if {label.lower() for label in labels} <= {"yes", "no"}:
        return len(labels) <= 2
    return len(labels) > 1 and any("".join(labels) == sequence[: len(labels)] for sequence in _SEQUENCES)


def _first_of_question(lines: list[str], end: int) -> int:
    """Return the index of the first line of the question that ends before the line with the index ``end``."""
    for place in range(end - 1, -1, -1):
        if _LEAD.match(lines[place]):
            return place
    for place in range(end - 1, -1, -1):
        if not lines[place].strip() and any(line.strip() for line in lines[place:end]):
            return place + 1
    return 0


def _asked(text: str, labels: list[str], names: list[str]) -> tuple[Asked, list[str]]:
    if not labels or labels[0].lower() in _BOOLS:
        return Asked("yes_no", text, (True, False)), ["yes", "no"]
    values = [_BOOLS.get(name.lower()) for name in names]
    if sorted(map(str, values)) == ["False", "True"]:  # vLLM writes a predicate as a choice between false and true
        return Asked("yes_no", text, (True, False)), [labels[values.index(True)], labels[values.index(False)]]
    options: tuple[Option, ...] = tuple(names)
    return Asked("score" if labels[0].isdigit() else "choice", text, options), labels


class NextToken(NamedTuple):
    """Holds the possible first tokens of an answer and their probabilities, which add up to 1. The most probable token is first."""

    tokens: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, prompt: LabelledPrompt, judge: SyntheticJudge) -> NextToken:
        """Return the possible first tokens of a judge's answer to a prompt.

        If the prompt has at most six labels, 10 % of the probability of each label goes to two variants of the label: one with a leading
        space, and one in the other letter case. The probability that the judge gives to no label goes to other tokens.

        Raises:
            ConfigError: the input has a truth that does not fit the question.
        """
        read = judge.read(prompt.input, prompt.asked)
        spelled = _VARIANTS if len(prompt.labels) <= _MOST_WITH_VARIANTS else ((1.0, str),)
        tokens: dict[str, float] = {}
        for label, number in zip(prompt.labels, read.probabilities, strict=True):
            for share, spell in spelled:
                token = spell(label)
                tokens[token] = tokens.get(token, 0.0) + share * number * read.label_mass
        for token, number in _others(prompt.labels, 1 - read.label_mass):
            tokens[token] = number
        return cls(tuple(sorted(tokens.items(), key=lambda pair: -pair[1])))

    @property
    def content(self) -> str:
        """The most probable token."""
        return self.tokens[0][0]

    def logprobs(self, most: int, ids: Iterable[int] = ()) -> dict[str, Any]:
        """Return the member ``logprobs`` of a chat completion.

        Args:
            most: number of tokens to list, the most probable first. ``most`` has no effect if ``ids`` has known tokens.
            ids: ids of tokens to list instead, after the most probable token.
        """
        known, wanted = dict(self.tokens), [text for each in ids if (text := TOKENIZER.text([each]))]
        chosen = list(dict.fromkeys((self.content, *wanted))) if wanted else [token for token, _ in self.tokens[:most]]
        top = [_entry(token, known.get(token, 0.0)) for token in chosen]
        return {"content": [{**_entry(*self.tokens[0]), "top_logprobs": top}], "refusal": None}


def _others(labels: Sequence[str], mass: float) -> list[tuple[str, float]]:
    """Return tokens that are not labels, with their probabilities. The probabilities add up to ``mass``.

    Each token has half of the probability that remains after the tokens before it. The last token has the remaining probability.
    """
    taken = {label.casefold() for label in labels}
    tokens = [token for token in _OTHERS if token.casefold() not in taken]
    shares = [0.5 ** (place + 1) for place in range(len(tokens) - 1)]
    return [(token, max(0.0, mass) * share) for token, share in zip(tokens, [*shares, 1 - math.fsum(shares)], strict=True)]


def _entry(token: str, number: float) -> dict[str, Any]:
    return {"token": token, "logprob": math.log(number) if number > 0 else _NEVER, "bytes": list(token.encode())}


class FakeTokenizer:
    """Converts texts to tokens, and tokens to texts.

    A label is one token, with or without a leading space. Any other character is one token.
    """

    def __init__(self) -> None:
        words = [
            *_SEQUENCES[0],
            *_SEQUENCES[0].lower(),
            *_SEQUENCES[1],
            "yes",
            "no",
            "Yes",
            "No",
            "YES",
            "NO",
            "true",
            "false",
            "True",
            "False",
        ]
        spelled = [form for word in words for form in (word, f" {word}")]
        self._ids = {word: number for number, word in enumerate(spelled, 1)}
        self._words = {number: word for word, number in self._ids.items()}
        self._first = 1000  # id of character 0
        self._piece = re.compile(
            rf"(?<![A-Za-z0-9])(?:{'|'.join(sorted(map(re.escape, spelled), key=len, reverse=True))})(?![A-Za-z0-9])|.", re.DOTALL
        )

    @property
    def size(self) -> int:
        """The number of ids. Ids begin at 0."""
        return self._first + 0x110000

    def ids(self, text: str) -> list[int]:
        """Return the ids of the tokens of a text."""
        return [self._ids.get(piece) or self._first + ord(piece) for piece in self._piece.findall(text)]

    def text(self, ids: Iterable[int]) -> str:
        """Return the text of the tokens with these ids. Unknown ids have no text."""
        return "".join(self._words.get(each) or (chr(each - self._first) if self._first <= each < self.size else "") for each in ids)


TOKENIZER = FakeTokenizer()


def score_labels(prompt: str, ids: Sequence[int], judge: SyntheticJudge) -> list[float]:
    """Return the probability that each token of ``ids`` follows a prompt. The probability is 0 for a token that is no label of the prompt.

    If the prompt lists no labelled options, the tokens of ``ids`` are the labels, and the whole prompt is the input of the judge.

    Raises:
        ConfigError: the input has a truth that does not fit the question.
    """
    texts = [TOKENIZER.text([each]) for each in ids]
    found = read_prompt(prompt)
    if found is None:
        asked = Asked("yes_no", "", (True, False)) if len(ids) == 2 else Asked("choice", "", tuple(map(str, range(len(ids)))))
        read: JudgeRead = judge.read(prompt, asked) if len(ids) > 1 else JudgeRead((1.0,), judge.label_mass, refused=False)
        return [number * read.label_mass for number in read.probabilities]
    read = judge.read(found.input, found.asked)
    of_label = {label.casefold(): number * read.label_mass for label, number in zip(found.labels, read.probabilities, strict=True)}
    return [of_label.get(text.strip().casefold(), 0.0) for text in texts]
