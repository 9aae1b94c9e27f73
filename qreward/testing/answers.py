"""Bodies in the shapes of the OpenAI API: chats, chunks, embeddings, models, errors; and reading the requests for them.

Knows JSON, nothing of HTTP, time or limits.
"""

from __future__ import annotations

import array
import base64
import json
import math
import struct
import sys
import time
from hashlib import shake_256
from typing import Any, Literal

import msgspec

from qreward.testing.text import canonical, encode

_MOST_INPUTS = 2048  # of one embeddings request, as at OpenAI
_DIMENSIONS = 16
_UNEMBEDDABLE: tuple[Any, ...] = (None, "", [])


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = False


class ChatRequest(msgspec.Struct):
    """What is read of a chat request; everything else in it is accepted and has no effect."""

    model: str
    messages: list[Any]
    stream: bool | None = False
    n: int | None = 1
    stream_options: StreamOptions | None = None


class EmbeddingsRequest(msgspec.Struct):
    """What is read of an embeddings request."""

    model: str
    input: str | list[Any]
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: int | None = None

    def items(self) -> list[Any]:
        """The single inputs. A list of numbers is one tokenised input. Raises ``ValueError`` for what cannot be embedded."""
        whole = isinstance(self.input, str) or (bool(self.input) and all(isinstance(each, int) for each in self.input))
        found: list[Any] = [self.input] if whole else list(self.input)
        if not found or len(found) > _MOST_INPUTS or any(each in _UNEMBEDDABLE for each in found):
            raise ValueError(f"'input' must be 1 to {_MOST_INPUTS} texts or token lists, none of them empty")
        return found


_CHAT = msgspec.json.Decoder(ChatRequest)
_EMBEDDINGS = msgspec.json.Decoder(EmbeddingsRequest)


def read_chat(body: bytes) -> ChatRequest:
    """Raises ``ValueError`` for what is not a chat request."""
    asked: ChatRequest = _read(_CHAT, body)
    if not asked.messages or not 1 <= (asked.n or 1) <= 128:
        raise ValueError("'messages' must not be empty and 'n' must be from 1 to 128")
    return asked


def read_embeddings(body: bytes) -> EmbeddingsRequest:
    """Raises ``ValueError`` for what is not an embeddings request."""
    asked: EmbeddingsRequest = _read(_EMBEDDINGS, body)
    asked.items()
    if asked.dimensions is not None and not 1 <= asked.dimensions <= 4096:
        raise ValueError("'dimensions' must be from 1 to 4096")
    return asked


def _read(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        try:  # lone surrogates and NaN, which strict decoders refuse and real servers take
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
    """The events of one streamed chat.

    The answer has ``tokens`` pieces; if its text has fewer characters than that, some pieces are empty.
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
    """Vectors in the order of the inputs, each depending on its own input alone."""
    vectors = [vector(canonical(each), asked.dimensions or _DIMENSIONS) for each in asked.items()]
    as_text = asked.encoding_format == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _base64(numbers) if as_text else numbers.tolist()}
        for index, numbers in enumerate(vectors)
    ]
    used = {"prompt_tokens": prompt, "total_tokens": prompt}
    return encode({"object": "list", "model": asked.model, "data": data, "usage": used})


def vector(encoded: bytes, dimensions: int) -> array.array[float]:
    """A unit vector of 32-bit floats, drawn from the text by SHAKE-256."""
    words = struct.unpack(f"<{dimensions}i", shake_256(encoded).digest(4 * dimensions))
    length = math.sqrt(math.fsum(word * word for word in words)) or 1.0
    return array.array("f", [word / length for word in words])


def _base64(numbers: array.array[float]) -> str:
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()


def models(patterns: tuple[str, ...]) -> bytes:
    """The list of models; a pattern is represented by one model that matches it."""
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
