"""Requests and responses of the OpenAI API: parses chats and embeddings, and writes chats, chunks, embeddings, model lists and errors."""

from __future__ import annotations

import array
import base64
import math
import struct
import time
from hashlib import shake_256
from typing import Any, Literal

import msgspec

from qreward.testing.text import canonical, encode

_MOST_INPUTS = 2048  # maximum number of inputs of one embeddings request, as at OpenAI
_DIMENSIONS = 16  # numbers in a vector, unless the request sets ``dimensions``
_UNEMBEDDABLE: tuple[Any, ...] = (None, "", [])


class StreamOptionsBody(msgspec.Struct):
    include_usage: bool | None = False


class ChatRequest(msgspec.Struct):
    """Holds the fields of a chat request that have an effect. All other fields are accepted and ignored."""

    model: str
    messages: list[Any]
    stream: bool | None = False
    n: int | None = 1
    stream_options: StreamOptionsBody | None = None

    def __post_init__(self) -> None:
        if not 1 <= (self.n or 1) <= 128:
            raise ValueError("'n' must be from 1 to 128")


class EmbeddingsRequest(msgspec.Struct):
    """Holds the fields of an embeddings request that have an effect. All other fields are accepted and ignored."""

    input: str | list[Any]
    model: str = "fake"
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: int | None = None

    def __post_init__(self) -> None:
        items = self.items()
        if not items or len(items) > _MOST_INPUTS or any(each in _UNEMBEDDABLE for each in items):
            raise ValueError(f"'input' must be 1 to {_MOST_INPUTS} texts or token lists, none of them empty")
        if self.dimensions is not None and not 1 <= self.dimensions <= 4096:
            raise ValueError("'dimensions' must be from 1 to 4096")

    def items(self) -> list[Any]:
        return listed(self.input)


def listed(given: Any) -> list[Any]:
    """Return the items of an input. A text is one item, and so is a list of numbers, which the client has tokenised."""
    if isinstance(given, str) or (isinstance(given, list) and given and isinstance(given[0], int)):
        return [given]
    return given if isinstance(given, list) else []


def usage(prompt: int, completion: int, cached: int | None = None) -> dict[str, Any]:
    """Return the member ``usage``. ``cached`` is the number of prompt tokens read from a prefix cache, or None without a cache."""
    used = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return used if cached is None else {**used, "prompt_tokens_details": {"cached_tokens": cached}}


def chat_completion(request: ChatRequest, digest: bytes, content: str, used: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, "refusal": None}
    choices = [{"index": index, "message": message, "logprobs": None, "finish_reason": "stop"} for index in range(request.n or 1)]
    return _head(request.model, digest, "chat.completion") | {"choices": choices, "usage": used}


class Chunks:
    def __init__(self, request: ChatRequest, digest: bytes, content: str, used: dict[str, Any]) -> None:
        self._head = _head(request.model, digest, "chat.completion.chunk")
        self._indices = range(request.n or 1)
        self._content = content
        self._used = used if request.stream_options is not None and request.stream_options.include_usage else None

    def first(self) -> bytes:
        return self._event({"role": "assistant", "content": ""})

    def piece(self, number: int, tokens: int) -> bytes:
        return self._event({"content": self._text(number, tokens)})

    def last(self) -> bytes:
        closing = self._event({}, "stop")
        if self._used is not None:
            closing += sse(self._head | {"choices": [], "usage": self._used})
        return closing + b"data: [DONE]\n\n"

    def failed(self) -> bytes | None:
        """Return the last events of a stream that an error of the server ends. None if the server cuts the stream off."""
        return None

    def _text(self, number: int, tokens: int) -> str:
        start, end = (len(self._content) * edge // tokens for edge in (number, number + 1))
        return self._content[start:end]

    def _event(self, delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"delta": delta, "logprobs": None, "finish_reason": finish}
        return b"".join(sse(self._head | {"choices": [{"index": index, **choice}]}) for index in self._indices)


def sse(body: Any) -> bytes:
    return b"data: " + encode(body) + b"\n\n"


def embeddings(request: EmbeddingsRequest, prompt: int) -> dict[str, Any]:
    """Return the body of an embeddings response. The vectors are in the order of the inputs. Each vector depends only on its own input."""
    data = []
    for index, each in enumerate(request.items()):
        numbers = vector(canonical(each), request.dimensions or _DIMENSIONS)
        as_text = request.encoding_format == "base64"
        embedding = base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode() if as_text else numbers.tolist()
        data.append({"object": "embedding", "index": index, "embedding": embedding})
    used = {"prompt_tokens": prompt, "total_tokens": prompt}
    return {"object": "list", "model": request.model, "data": data, "usage": used}


def vector(encoded: bytes, dimensions: int) -> array.array[float]:
    """Return a unit vector of 32-bit floats, derived from the text by SHAKE-256."""
    words = struct.unpack(f"<{dimensions}i", shake_256(encoded).digest(4 * dimensions))
    length = math.sqrt(math.fsum(word * word for word in words)) or 1.0
    return array.array("f", [word / length for word in words])


def models(patterns: tuple[str, ...]) -> dict[str, Any]:
    """Return the body of a model list. A pattern is listed as it is, because an invented name would be wrong for most clients."""
    return {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "qreward"} for name in patterns]}


def error(message: str, kind: str, code: str | int | None = None, param: str | None = None) -> bytes:
    return encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def _head(model: str, digest: bytes, kind: str) -> dict[str, Any]:
    created = int(time.time())
    return {"id": f"chatcmpl-{digest[:12].hex()}", "object": kind, "created": created, "model": model, "system_fingerprint": "fp_fake"}
