"""Digests of requests, from which the echo text and the length of a response are derived."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Literal

import msgspec


def encode(value: Any, order: Literal["sorted"] | None = None) -> bytes:
    """JSON without whitespace. Lone surrogates, which msgspec refuses, are escaped as the standard library does."""
    try:
        return msgspec.json.encode(value, order=order)
    except UnicodeEncodeError:
        escaped = json.dumps(value, sort_keys=order is not None, separators=(",", ":"))
    try:  # a surrogate pair decodes to one character
        return msgspec.json.encode(json.loads(escaped), order=order)
    except UnicodeEncodeError:
        return escaped.encode()


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and no whitespace: the same bytes for any encoding of the same request."""
    return encode(value, "sorted")


def digest_of(value: Any) -> bytes:
    """SHA-256 of the canonical messages of a chat, or of the input of an embedding."""
    return sha256(canonical(value)).digest()


def echo_of(messages: Sequence[Any]) -> str:
    """The response of every ``echo`` endpoint to these messages. A test can compare it to detect mixed-up responses.

    Example:
        >>> echo_of([{"role": "user", "content": "hi"}])
        '{"echo":"4e79873118cd9be7"}'
    """
    return echo_text(digest_of(messages))


def echo_text(digest: bytes) -> str:
    """The response of an ``echo`` endpoint, from the digest of the messages."""
    return f'{{"echo":"{digest[:8].hex()}"}}'


def count_tokens(encoded: bytes) -> int:
    """Prompt tokens, estimated at four bytes per token; at least 1."""
    return max(1, len(encoded) // 4)
