"""The codec of embeddings in the OpenAI API. This module does not depend on HTTP or endpoints."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import EmbeddedError, Malformed, WireRequest
from qreward.codecs.chat import CHARS_PER_TOKEN
from qreward.errors import BadRequest, InvalidResponse
from qreward.results import Usage


class _Embeddings(msgspec.Struct, gc=False):
    """Holds the members of a response that are decoded on arrival. Vectors are decoded when they are needed."""

    data: list[msgspec.Raw] | None = None
    usage: Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Embeddings)


class EmbeddingsAnswer(msgspec.Struct, gc=False):
    """Holds a response with embeddings. ``body`` is the undecoded JSON."""

    body: bytes
    model: str
    usage: Usage | None

    def text(self) -> str:
        return ""

    def build(self) -> Any:
        """Return an openai ``CreateEmbeddingResponse`` with the vectors as floats, in the order of the input.

        Raises ``InvalidResponse`` if a vector is neither a list of floats nor base64.
        """
        from openai.types import CreateEmbeddingResponse  # noqa: PLC0415 - takes most of a second, and is often not needed

        response = jsonio.build(CreateEmbeddingResponse, self.body, partial(_completed, self.model))
        response.data = _in_order(response.data)
        return response


class EmbeddingsCodec:
    """Encodes requests to ``POST /embeddings``, and decodes the responses.

    The input is a text, a list of texts, a list of token ids, or a list of lists of token ids.
    """

    path = "/embeddings"

    def encode(self, call: WireRequest, model: str) -> bytes:
        return jsonio.write(
            model, "input", call.inputs, call.params, all_text=isinstance(call.inputs, str) or set(map(type, call.inputs)) <= {str, int}
        )

    def decode(self, body: bytes, call: WireRequest) -> EmbeddingsAnswer:
        try:
            seen = _DECODER.decode(body)
        except jsonio.REFUSED:
            seen = _read_leniently(body)
        if seen.error:
            raise EmbeddedError(seen.error)
        if not seen.data:
            raise Malformed("the answer has no data")
        count = len(inputs_of(call))
        if len(seen.data) != count:
            raise Malformed(f"the answer has {len(seen.data)} vectors for {count} input{'s'[: count != 1]}")
        return EmbeddingsAnswer(body, call.model, seen.usage)

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        """Return the prompt tokens and 0.0 output tokens. For texts, the prompt tokens are estimated from the number of characters."""
        return sum(len(item) / CHARS_PER_TOKEN if isinstance(item, str) else float(len(item)) for item in inputs_of(call)), 0.0

    def validate(self, inputs: Any) -> Any:
        """Return the input if the OpenAI API accepts its form. Raises ``BadRequest`` otherwise."""
        if isinstance(inputs, str):
            return inputs
        if inputs is None:
            raise BadRequest("input is None; leave it out of a batch, or give a text")
        if not isinstance(inputs, list | tuple):
            raise BadRequest(f"input is a {type(inputs).__name__}; send a text, a list of texts, or lists of token ids (.tolist())")
        if not inputs:
            raise BadRequest("input is empty; send at least one text")
        kinds, first = set(map(type, inputs)), type(inputs[0])
        if kinds not in _KINDS:
            index = next((place for place, item in enumerate(inputs) if type(item) is not first), 0)
            kind = type(inputs[index]).__name__
            raise BadRequest(f"input[{index}] is a {kind}; send texts only, token ids (int) only, or lists of token ids only")
        for index, tokens in enumerate(inputs if first in (list, tuple) else ()):
            if not tokens:
                raise BadRequest(f"input[{index}] is empty; send at least one token id")
            if set(map(type, tokens)) != {int}:
                place, bad = next((place, token) for place, token in enumerate(tokens) if type(token) is not int)
                raise BadRequest(f"input[{index}][{place}] is a {type(bad).__name__}; a list in a list holds token ids (int)")
        return inputs


EMBEDDINGS = EmbeddingsCodec()

_KINDS: tuple[set[type], ...] = ({str}, {int}, {list}, {tuple})


def inputs_of(call: WireRequest) -> list[Any]:
    """Return the inputs of an embeddings call as a list. A single text is one input, and so is a single list of token ids."""
    inputs = call.inputs
    return [inputs] if isinstance(inputs, str) or isinstance(inputs[0], int) else list(inputs)


def _read_leniently(body: bytes) -> _Embeddings:
    document = jsonio.read_object(body)
    data = document.get("data")
    raw = [msgspec.Raw(b"null")] * len(data) if isinstance(data, list) else None
    return _Embeddings(raw, jsonio.usage_of(document.get("usage")), document.get("error"))


def _completed(model: str, document: dict[str, Any]) -> dict[str, Any]:
    """Add the members that the openai type requires, and decode base64 vectors to floats."""
    data = [_completed_item(item, index) for index, item in enumerate(document["data"])]
    usage = {"prompt_tokens": 0, "total_tokens": 0}
    return {"object": "list", "model": model, **document, "usage": document.get("usage") or usage, "data": data}


def _completed_item(raw: object, index: int) -> dict[str, Any]:
    item = raw if isinstance(raw, dict) else {"embedding": raw}
    vector = item.get("embedding")
    try:
        floats = jsonio.base64_floats(vector) if isinstance(vector, str) else vector
    except ValueError:
        raise InvalidResponse(f"embedding {index} of the answer is a text, but not base64 of float32") from None
    if not isinstance(floats, list):
        raise InvalidResponse(f"embedding {index} of the answer is a {type(vector).__name__}, not a vector")
    return {"index": index, "object": "embedding", **item, "embedding": floats}


def _in_order(items: list[Any]) -> list[Any]:
    """Return the items sorted by ``index`` if each index from 0 to n-1 occurs once. Otherwise return them in the given order."""
    indexes = [item.index for item in items]
    if indexes == list(range(len(items))) or set(indexes) != set(range(len(items))):
        return items
    return sorted(items, key=lambda item: int(item.index))
