"""Response contents of a fake endpoint: the responders that write the text, and the JSON bodies of the OpenAI API.

A responder is the echo, the judge, or the user's own function. The judge needs no model. It compares a reference answer with a
candidate answer, and is deterministic, so a reward computed from it can be checked. The comparison ignores case, punctuation,
articles, thousands separators and the notation of numbers. It understands simple units and number words, and, on request, ignores the
order of a list. It does no algebra: ``x + 1`` and ``1 + x`` differ.

The JSON part parses requests and writes chats, chunks, embeddings, model lists and errors. The module knows nothing of HTTP and limits.
"""

from __future__ import annotations

import array
import base64
import json
import math
import re
import struct
import sys
import time
import unicodedata
from collections.abc import Callable
from fractions import Fraction
from hashlib import shake_256
from typing import Any, Literal

import msgspec

from qreward.errors import ConfigError
from qreward.server.import_string import load_object
from qreward.testing.spec import Responder
from qreward.testing.text import canonical, digest_of, echo_text, encode

_SMALL = {
    "zero": 0,
    "one": 1,
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
    "eleven": 11,
    "twelve": 12,
    "thirteen": 13,
    "fourteen": 14,
    "fifteen": 15,
    "sixteen": 16,
    "seventeen": 17,
    "eighteen": 18,
    "nineteen": 19,
    "twenty": 20,
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "sixty": 60,
    "seventy": 70,
    "eighty": 80,
    "ninety": 90,
}
_LARGE = {"hundred": 100, "thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000}
_PARTS = {"half": Fraction(1, 2), "halves": Fraction(1, 2), "quarter": Fraction(1, 4), "quarters": Fraction(1, 4)}

# Dimension -> names of a unit -> its size in the smallest unit listed here.
_TABLE = {
    "length": {"mm millimeter millimetre": 1, "cm centimeter centimetre": 10, "m meter metre": 1_000, "km kilometer kilometre": 1_000_000},
    "mass": {"mg milligram": 1, "g gram": 1_000, "kg kilogram": 1_000_000},
    "time": {"ms millisecond": 1, "s sec second": 1_000, "min minute": 60_000, "h hr hrs hour": 3_600_000},
}
_UNITS = {
    name: (kind, size)
    for kind, units in _TABLE.items()
    for names, size in units.items()
    for word in names.split()
    for name in ((word, word + "s") if len(word) > 2 else (word,))
}

_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?"
_FRACTION = rf"(?:[+-]?\d+\s+\d+\s*/\s*\d+|{_NUMBER}\s*/\s*{_NUMBER}|{_NUMBER})"
_QUANTITY = re.compile(rf"({_FRACTION})\s*(%|percent\b|[a-z]+\b)?")
_LONGEST_EXPONENT = 400  # as an exact fraction, 1e999999999 would take hundreds of megabytes


def same_answer(reference: str, candidate: str, any_order: bool = False) -> str | None:
    """Compare a candidate answer with the reference answer.

    Returns:
        The reason why they are equal, in a few words; None if they differ.

    Example:
        >>> same_answer("1,500 m", "1.5 km.")
        'same quantity'
    """
    wanted, given = tidy(reference), tidy(candidate)
    if reference.strip() == candidate.strip() or (plain(wanted) and plain(wanted) == plain(given)):
        return "same text"
    quantity = quantity_of(wanted)
    if quantity is not None and quantity == quantity_of(given):
        return "same quantity"
    return _same_list(wanted, given, any_order)


def _same_list(wanted: str, given: str, any_order: bool) -> str | None:
    left, right = ([item_key(item) for item in items(text)] for text in (wanted, given))
    if len(left) < 2 or len(left) != len(right):
        return None
    if left == right:
        return "same list"
    return "same list in another order" if any_order and sorted(left) == sorted(right) else None


def items(text: str) -> list[str]:
    """The items of a list written with commas, semicolons, bullets on lines, or ``and``."""
    parts = re.split(r"[,;\n]|\band\b", text)
    return [item for part in parts if (item := re.sub(r"^(?:[-*•]|\d+[.)])\s+", "", part.strip()))]


def item_key(item: str) -> str:
    """A comparison key: equal items have equal keys."""
    quantity = quantity_of(item)
    return plain(item) if quantity is None else f"{quantity[0]} {quantity[1]}"


def tidy(text: str) -> str:
    """Normalise case, characters and the notation of numbers. Commas and line breaks are kept."""
    text = unicodedata.normalize("NFKC", text.replace("\u2212", "-")).casefold().strip()
    text = text.replace("\u2044", "/")
    text = re.sub(r"(?<![\d.])\d{1,3}(?:,\d{3})+(?!\d)", lambda match: match[0].replace(",", ""), text)
    text = re.sub(r"[$€£¥]", "", text)
    text = re.sub(r"(?<=[a-z])-(?=[a-z])", " ", text)
    return "\n".join(_digits(line) for line in text.splitlines()).lstrip(" \t").rstrip(" \t.!?")


def plain(text: str) -> str:
    """The words without articles and without punctuation, except where punctuation is part of a number or a symbol."""
    text = re.sub(r"[\"'`\u2018\u2019\u201c\u201d()\[\]{}*_!?:;,]|(?<!\d)\.(?!\d)|\.(?!\d)", " ", text.replace("'", ""))
    text = re.sub(r"\s*([=+*/<>^])\s*", r"\1", text)
    words = text.split()
    # An article alone can be the whole answer: "A" as the letter of a choice.
    return " ".join([word for word in words if word not in ("a", "an", "the")] or words)


def quantity_of(text: str) -> tuple[str, Fraction] | None:
    """The dimension (``""`` for a bare number) and the value, if the whole text is one quantity; else None."""
    text = re.sub(r"^(?:the|an?)\s+", "", text.strip(" \t\n,;:!?\"'()[]*_`").rstrip("."))
    kinds, total, position = set(), Fraction(0), 0
    for match in _QUANTITY.finditer(text):
        if text[position : match.start()].strip() not in (("",) if not position else ("", "and", ",")):
            return None
        measured = _measure(match[1], match[2])
        if measured is None:
            return None
        kinds.add(measured[0])
        total, position = total + measured[1], match.end()
    parts = len(_QUANTITY.findall(text))
    # "1 h 30 min" is one quantity, "3 5" are two numbers.
    if not parts or text[position:].strip(" .") or len(kinds) != 1 or (parts > 1 and kinds & {"", "%"}):
        return None
    return kinds.pop(), total


def _measure(number: str, unit: str | None) -> tuple[str, Fraction] | None:
    value = _fraction(number)
    if value is None:
        return None
    if unit is None:
        return "", value
    if unit in ("%", "percent"):
        return "", value / 100
    if unit not in _UNITS:
        return None
    kind, size = _UNITS[unit]
    return kind, value * size


def _fraction(text: str) -> Fraction | None:
    exponent = re.search(r"e[+-]?(\d+)", text)
    if exponent and int(exponent[1][:9]) > _LONGEST_EXPONENT:
        return None
    top, _, bottom = text.partition("/")
    whole, _, rest = top.strip().rpartition(" ")
    try:
        part = Fraction(rest.strip().rstrip(".")) / (Fraction(bottom.strip().rstrip(".")) if bottom else 1)
    except (ValueError, ZeroDivisionError):
        return None
    if not whole.strip():
        return part
    return Fraction(whole.strip()) + (-part if whole.strip().startswith("-") else part)


def _digits(line: str) -> str:
    """Number words as digits: ``twenty one`` as 21, ``one half`` as 1/2, ``minus five`` as -5."""
    out: list[str] = []
    run: list[str] = []
    for word in [*re.findall(r"\S+", line), ""]:
        bare = word.rstrip(".,;:!?")
        if bare in _SMALL or bare in _LARGE or bare in _PARTS or (bare == "and" and run and run[-1] in _LARGE):
            run.append(bare)
            if bare == word:
                continue
            word = word[len(bare) :]  # noqa: PLW2901 - the rest is the punctuation that ends the run
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


_LABEL = re.compile(r"^[ \t]*(question|reference answer|candidate answer)[ \t]*:[ \t]*", re.IGNORECASE | re.MULTILINE)
_ANY_ORDER = re.compile(r"\b(?:in any order|order does(?: not|n't) matter)\b", re.IGNORECASE)


def judge(messages: list[Any]) -> str:
    """Judge the last user message; return JSON ``{"verdict", "score", "reason", "echo"}``.

    The message has the sections ``Question:``, ``Reference answer:`` and ``Candidate answer:``. Each label is at the start of a
    line, and its section ends at the next label. Only the first occurrence of a label counts, so a candidate answer in the last
    section cannot inject a reference answer.

    Example:
        >>> judge([{"role": "user", "content": "Reference answer: 1/2\\nCandidate answer: 50%"}])[:45]
        '{"verdict": "correct", "score": 1, "reason": '
    """
    reason, correct = _decide(sections(last_user_text(messages)))
    verdict = {"verdict": "correct" if correct else "incorrect", "score": int(correct), "reason": reason}
    return json.dumps({**verdict, "echo": digest_of(messages)[:8].hex()}, ensure_ascii=False)


def _decide(found: dict[str, str]) -> tuple[str, bool]:
    for label in ("reference answer", "candidate answer"):
        if not found.get(label):
            return f"the message has no {label}", False
    any_order = bool(_ANY_ORDER.search(found.get("question", "")))
    reason = same_answer(found["reference answer"], found["candidate answer"], any_order)
    return reason or "differs from the reference", reason is not None


def sections(text: str) -> dict[str, str]:
    """Label in lower case -> text of its section."""
    first: dict[str, re.Match[str]] = {}
    for match in _LABEL.finditer(text):
        first.setdefault(match[1].lower(), match)
    starts = sorted(first.values(), key=lambda match: match.start())
    ends = [*(match.start() for match in starts[1:]), len(text)]
    return {match[1].lower(): text[match.end() : end].strip() for match, end in zip(starts, ends, strict=False)}


def last_user_text(messages: list[Any]) -> str:
    """The text of the last user message; ``""`` if there is none."""
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, str):
                return content
            parts = content if isinstance(content, list) else []
            return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
    return ""


Write = Callable[[list[Any], bytes], str]
"""Maps messages and their digest to the text of the response."""


def writer_of(responder: str | Responder) -> Write:
    """The function for the setting ``responder``. Raises ``ConfigError`` if it cannot be imported."""
    if responder == "echo":
        return lambda _messages, digest: echo_text(digest)
    function: Responder = judge if responder == "judge" else _import(responder) if isinstance(responder, str) else responder
    return lambda messages, _digest: str(function(messages))


def _import(path: str) -> Responder:
    found = load_object(path, "responder", "my_fakes:answer")
    if not callable(found):
        raise ConfigError(f"the responder {path!r} must be a function, not a {type(found).__name__}")
    return found  # type: ignore[no-any-return]


_MOST_INPUTS = 2048  # of one embeddings request, as at OpenAI
_DIMENSIONS = 16
_UNEMBEDDABLE: tuple[Any, ...] = (None, "", [])


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = False


class ChatRequest(msgspec.Struct):
    """The fields of a chat request that have an effect. All other fields are accepted and ignored."""

    model: str
    messages: list[Any]
    stream: bool | None = False
    n: int | None = 1
    stream_options: StreamOptions | None = None


class EmbeddingsRequest(msgspec.Struct):
    """The fields of an embeddings request that have an effect."""

    model: str
    input: str | list[Any]
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: int | None = None

    def items(self) -> list[Any]:
        """The inputs as a list. A list of numbers is one tokenised input. Raises ``ValueError`` for an empty or invalid input."""
        whole = isinstance(self.input, str) or (bool(self.input) and all(isinstance(each, int) for each in self.input))
        found: list[Any] = [self.input] if whole else list(self.input)
        if not found or len(found) > _MOST_INPUTS or any(each in _UNEMBEDDABLE for each in found):
            raise ValueError(f"'input' must be 1 to {_MOST_INPUTS} texts or token lists, none of them empty")
        return found


_CHAT = msgspec.json.Decoder(ChatRequest)
_EMBEDDINGS = msgspec.json.Decoder(EmbeddingsRequest)


def read_chat(body: bytes) -> ChatRequest:
    """Parse a chat request. Raises ``ValueError``."""
    asked: ChatRequest = _read(_CHAT, body)
    if not asked.messages or not 1 <= (asked.n or 1) <= 128:
        raise ValueError("'messages' must not be empty and 'n' must be from 1 to 128")
    return asked


def read_embeddings(body: bytes) -> EmbeddingsRequest:
    """Parse an embeddings request. Raises ``ValueError``."""
    asked: EmbeddingsRequest = _read(_EMBEDDINGS, body)
    asked.items()
    if asked.dimensions is not None and not 1 <= asked.dimensions <= 4096:
        raise ValueError("'dimensions' must be from 1 to 4096")
    return asked


def _read(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        try:  # lone surrogates and NaN: real servers accept them, strict decoders do not
            return msgspec.convert(json.loads(body), decoder.type)
        except (ValueError, RecursionError):
            raise ValueError(str(error)) from None


def usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def chat_completion(asked: ChatRequest, digest: bytes, content: str, used: dict[str, int]) -> bytes:
    message = {"role": "assistant", "content": content, "refusal": None}
    choices = [{"index": index, "message": message, "logprobs": None, "finish_reason": "stop"} for index in range(asked.n or 1)]
    return encode(_head(asked.model, digest, "chat.completion") | {"choices": choices, "usage": used})


class Chunks:
    """The server-sent events of one streamed chat.

    The text is split into ``tokens`` pieces. If it has fewer characters than that, some pieces are empty.
    """

    def __init__(self, asked: ChatRequest, digest: bytes, content: str, used: dict[str, int]) -> None:
        self._head = _head(asked.model, digest, "chat.completion.chunk")
        self._indices = range(asked.n or 1)
        self._content = content
        self._used = used if asked.stream_options is not None and asked.stream_options.include_usage else None

    def first(self) -> bytes:
        return self._event({"role": "assistant", "content": ""})

    def piece(self, number: int, tokens: int) -> bytes:
        """The event of token ``number``, from 0."""
        start, end = (len(self._content) * edge // tokens for edge in (number, number + 1))
        return self._event({"content": self._content[start:end]})

    def last(self) -> bytes:
        closing = self._event({}, "stop")
        if self._used is not None:
            closing += event(self._head | {"choices": [], "usage": self._used})
        return closing + b"data: [DONE]\n\n"

    def _event(self, delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"delta": delta, "logprobs": None, "finish_reason": finish}
        return b"".join(event(self._head | {"choices": [{"index": index, **choice}]}) for index in self._indices)


def event(body: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(body) + b"\n\n"


def embeddings(asked: EmbeddingsRequest, prompt: int) -> bytes:
    """The body of an embeddings response. The vectors are in the order of the inputs, and each depends on its own input alone."""
    vectors = [vector(canonical(each), asked.dimensions or _DIMENSIONS) for each in asked.items()]
    as_text = asked.encoding_format == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _base64(numbers) if as_text else numbers.tolist()}
        for index, numbers in enumerate(vectors)
    ]
    used = {"prompt_tokens": prompt, "total_tokens": prompt}
    return encode({"object": "list", "model": asked.model, "data": data, "usage": used})


def vector(encoded: bytes, dimensions: int) -> array.array[float]:
    """A unit vector of 32-bit floats, derived from the text by SHAKE-256."""
    words = struct.unpack(f"<{dimensions}i", shake_256(encoded).digest(4 * dimensions))
    length = math.sqrt(math.fsum(word * word for word in words)) or 1.0
    return array.array("f", [word / length for word in words])


def _base64(numbers: array.array[float]) -> str:
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()


def models(patterns: tuple[str, ...]) -> bytes:
    """The body of a model list. A pattern with ``*`` is listed as one matching name; patterns with ``?`` or ``[`` are left out."""
    names = [pattern.replace("*", "fake") for pattern in patterns if not set(pattern) & set("?[")]
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "qreward"} for name in names]
    return encode({"object": "list", "data": data})


def error(message: str, kind: str, code: str | int | None = None) -> bytes:
    return encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


def _head(model: str, digest: bytes, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{digest[:12].hex()}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": "fp_fake",
    }
