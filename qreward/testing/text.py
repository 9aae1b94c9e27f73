"""Texts, digests and scores of requests, from which the responses of a fake endpoint are derived. No model is needed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal

import msgspec

BYTES_PER_TOKEN = 4  # bytes of a token, as prompts and answers are estimated


def encode(value: Any, order: Literal["sorted"] | None = None) -> bytes:
    """Return a value as JSON without whitespace. Lone surrogates are escaped as in the standard library, because msgspec refuses them."""
    try:
        return msgspec.json.encode(value, order=order)
    except UnicodeEncodeError:
        value = json.loads(json.dumps(value))  # a surrogate pair becomes one character
        text = json.dumps(value, ensure_ascii=False, sort_keys=order is not None, separators=(",", ":"))
        return text.encode(errors="backslashreplace")


def canonical(value: Any) -> bytes:
    """Return a value as JSON with sorted keys and without whitespace. All encodings of one request give equal bytes."""
    return encode(value, "sorted")


def digest_of(value: Any) -> bytes:
    """Return the SHA-256 of the canonical JSON of a value: the messages of a chat, or the input of an embedding."""
    return sha256(canonical(value)).digest()


def echo_of(messages: Sequence[Any]) -> str:
    """Return the response of every ``echo`` endpoint to these messages.

    A test can compare this text with the responses that the test gets, to detect mixed-up responses.

    Example:
        >>> echo_of([{"role": "user", "content": "hi"}])
        '{"echo":"4e79873118cd9be7"}'
    """
    return echo_text(digest_of(messages))


def echo_text(digest: bytes) -> str:
    return f'{{"echo":"{digest[:8].hex()}"}}'


def text_of(given: str | Sequence[Mapping[str, Any]]) -> str:
    """Return the text of an input. The contents of messages are joined with empty lines between them, as in vLLM."""
    if isinstance(given, str):
        return given.strip()
    return "\n\n".join(_content(message.get("content")) for message in given).strip()


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return "" if content is None else str(content)


def count_tokens(encoded: bytes) -> int:
    """Return the number of prompt tokens, estimated at four bytes per token; at least 1."""
    return max(1, len(encoded) // BYTES_PER_TOKEN)


NAN = "<<nan>>"
"""Marker that gives an item the score NaN. vLLM and SGLang return null for the item. TEI (HTTP 424) and OpenRLHF (HTTP 500) fail the whole
list. NIM writes ``nan``. The marker has no effect on the OpenAI routes."""
REFUSED = "<<refuse>>"
"""Marker that makes a server refuse the whole list that contains the item, as an invalid request."""


def score_of(item: Any) -> float:
    """Return the raw score of an item.

    Example:
        >>> score_of("good") == score_of("good"), -10 <= score_of(["q", "a"]) < 10
        (True, True)
    """
    return int.from_bytes(digest_of(item)[:4], "big") / 2**32 * 20 - 10


def logits_of(item: Any, labels: Sequence[str]) -> list[float]:
    """Return the raw score of an item for each class. If the item contains ``NAN``, each score is NaN, which JSON has as null."""
    if is_nan(item):
        return [math.nan] * len(labels)
    return [score_of(item)] if len(labels) == 1 else [score_of([label, item]) for label in labels]


def is_nan(item: Any) -> bool:
    return NAN in encode(item).decode()


def probabilities_of(logits: Sequence[float]) -> list[float]:
    """Return the sigmoid of a single logit, or the softmax of several logits."""
    return [1 / (1 + math.exp(-logits[0]))] if len(logits) == 1 else softmax(logits)


def softmax(logits: Sequence[float]) -> list[float]:
    top = max(logits)
    powers = [math.exp(logit - top) for logit in logits]
    return [power / sum(powers) for power in powers]
