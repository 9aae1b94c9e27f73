"""What requests and responses of a fake endpoint are made of: texts, digests and scores, from which all responses are derived, and the
bodies of the OpenAI API. No model is needed."""

from __future__ import annotations

import array
import base64
import json
import math
import struct
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256, shake_256
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


# The API of OpenAI

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
