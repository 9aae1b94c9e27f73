"""The codec of embeddings in the OpenAI API."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import EmbeddedError, Malformed, Unbound, WireRequest, WithoutText
from qreward.codecs.chat import CHARS_PER_TOKEN
from qreward.codecs.rewards import parsing
from qreward.errors import BadRequest
from qreward.results import Usage


class _Item(msgspec.Struct, gc=False):
    embedding: list[float] | str
    index: int | None = None


class _Embeddings(msgspec.Struct, gc=False):
    data: list[_Item] | None = None
    usage: Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Embeddings)


class EmbeddingsAnswer(WithoutText, gc=False):
    body: bytes
    model: str
    usage: Usage | None

    def build(self) -> Any:
        response = jsonio.build("CreateEmbeddingResponse", self.body, partial(_completed, self.model))
        order = parsing.order_of([item.index for item in response.data])
        response.data = response.data if order is None else [response.data[place] for place in order]
        return response


class EmbeddingsCodec(Unbound):
    """``partial`` allows answers in which some vectors are not valid: ``embedding`` is then null in the body of the answer."""

    def __init__(self, path: str, native: bool, partial: bool) -> None:
        self.path, self.native, self.partial = path, native, partial

    def encode(self, call: WireRequest, model: str) -> bytes:
        return jsonio.write(
            model, "input", call.inputs, call.params, all_text=isinstance(call.inputs, str) or set(map(type, call.inputs)) <= {str, int}
        )

    def decode(self, body: bytes, call: WireRequest) -> EmbeddingsAnswer:
        """Return the response, with one vector of finite numbers for each input. Raises ``Malformed`` or ``EmbeddedError``."""
        checked = True
        try:
            seen = _DECODER.decode(body)
        except jsonio.REFUSED:
            seen, checked = _read_leniently(body), False
        if seen.error:
            raise EmbeddedError(seen.error)
        if not seen.data:
            raise Malformed("the answer has no data")
        count = len(inputs_of(call))
        if len(seen.data) != count:
            raise Malformed(f"the answer has {len(seen.data)} vectors for {count} input{'s'[: count != 1]}")
        parsing.order_of([item.index for item in seen.data])
        faults = dict[int, str]()
        for place, item in enumerate(seen.data):
            if not checked or type(item.embedding) is str or not item.embedding:
                try:
                    parsing.numbers(item.embedding, "embedding")
                except parsing.InvalidRow as error:
                    faults[place] = str(error)
        if faults and (not self.partial or len(faults) == count):
            place, fault = next(iter(faults.items()))
            raise Malformed(f"embedding {place} of the answer is not valid: {fault}")
        if faults:
            document = jsonio.read_object(body)
            rows = [{**_row_of(row), **({"embedding": None} if place in faults else {})} for place, row in enumerate(document["data"])]
            body = jsonio.dumps({**document, "data": rows})
        return EmbeddingsAnswer(body, call.model, seen.usage)

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        return sum(len(item) / CHARS_PER_TOKEN if isinstance(item, str) else float(len(item)) for item in inputs_of(call)), 0.0

    def validate(self, inputs: Any) -> Any:
        if isinstance(inputs, str):
            return str.__str__(inputs)
        if inputs is None:
            raise BadRequest("input is None; leave it out of a batch, or give a text")
        if not isinstance(inputs, list | tuple):
            raise BadRequest(f"input is a {type(inputs).__name__}; send a text, a list of texts, or lists of token ids (.tolist())")
        if not inputs:
            raise BadRequest("input is empty; send at least one text")
        kinds, first = set(map(type, inputs)), type(inputs[0])
        if all(issubclass(kind, str) for kind in kinds):
            return inputs if kinds == {str} else list(map(str.__str__, inputs))
        if kinds not in ({int}, {list}, {tuple}):
            index = next((place for place, item in enumerate(inputs) if type(item) is not first), 0)
            kind = type(inputs[index]).__name__
            raise BadRequest(f"input[{index}] is a {kind}; send texts only, token ids (int) only, or lists of token ids only")
        for index, tokens in enumerate(() if first is int else inputs):
            if not tokens:
                raise BadRequest(f"input[{index}] is empty; send at least one token id")
            if set(map(type, tokens)) != {int}:
                place, bad = next((place, token) for place, token in enumerate(tokens) if type(token) is not int)
                raise BadRequest(f"input[{index}][{place}] is a {type(bad).__name__}; a list in a list holds token ids (int)")
        return inputs


embeddings_codec = cache(EmbeddingsCodec)
EMBEDDINGS, MERGED_EMBEDDINGS = (embeddings_codec("/embeddings", False, partial) for partial in (False, True))


def inputs_of(call: WireRequest) -> list[Any]:
    """Return the inputs of an embeddings call as a list. A single text is one input, and so is a single list of token ids."""
    inputs = call.inputs
    return [inputs] if isinstance(inputs, str) or isinstance(inputs[0], int) else list(inputs)


def _read_leniently(body: bytes) -> _Embeddings:
    document = jsonio.read_object(body)
    usage, error, data = jsonio.usage_of(document.get("usage")), document.get("error"), document.get("data")
    if error or not isinstance(data, list):
        return _Embeddings(None, usage, error)
    return _Embeddings([_Item(row["embedding"], row.get("index")) for row in map(_row_of, data)], usage)


def _row_of(raw: Any) -> dict[str, Any]:
    return {"embedding": None, **raw} if isinstance(raw, dict) else {"embedding": raw}


def _completed(model: str, document: dict[str, Any]) -> dict[str, Any]:
    data = []
    for index, raw in enumerate(document["data"]):
        item = {"index": index, "object": "embedding", **_row_of(raw)}
        if isinstance(item["embedding"], str):
            item["embedding"] = jsonio.base64_floats(item["embedding"])
        data.append(item)
    usage = {"prompt_tokens": 0, "total_tokens": 0}
    return {"object": "list", "model": model, **document, "usage": document.get("usage") or usage, "data": data}
