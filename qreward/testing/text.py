"""Digests of requests: what makes an answer recognisable, and its length repeatable.

Knows JSON, nothing of HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Literal

import msgspec


def encode(value: Any, order: Literal["sorted"] | None = None) -> bytes:
    """JSON without blanks. Lone surrogates, which strict encoders refuse, are escaped as the standard library does."""
    try:
        return msgspec.json.encode(value, order=order)
    except UnicodeEncodeError:
        escaped = json.dumps(value, sort_keys=order is not None, separators=(",", ":"))
    try:  # two halves of one character, as a decoder reads them
        return msgspec.json.encode(json.loads(escaped), order=order)
    except UnicodeEncodeError:
        return escaped.encode()


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and no blanks: the same bytes whoever encoded the request."""
    return encode(value, "sorted")


def digest_of(value: Any) -> bytes:
    """SHA-256 over the canonical messages of a chat, or over the input of an embedding."""
    return sha256(canonical(value)).digest()


def echo_of(messages: Sequence[Any]) -> str:
    """The answer every ``echo`` endpoint gives to these messages, so that a mixed-up answer is noticed.

    Example:
        >>> echo_of([{"role": "user", "content": "hi"}])
        '{"echo":"4e79873118cd9be7"}'
    """
    return echo_text(digest_of(messages))


def echo_text(digest: bytes) -> str:
    """The same, from the digest."""
    return f'{{"echo":"{digest[:8].hex()}"}}'


def count_tokens(encoded: bytes) -> int:
    """Prompt tokens, by the rule of thumb of four bytes a token."""
    return max(1, len(encoded) // 4)
