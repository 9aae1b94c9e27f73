"""The codec of requests to any route of a server."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import EmbeddedError, Malformed, WireRequest
from qreward.codecs.chat import CHARS_PER_TOKEN, characters, most_output
from qreward.results import Usage


class PassthroughAnswer(msgspec.Struct, gc=False):
    body: bytes
    usage: Usage | None

    def text(self) -> str:
        return ""

    def build(self) -> Any:
        return jsonio.read_object(self.body)


class PassthroughCodec:
    """Encodes ``POST`` requests to any route of a server, and decodes the responses."""

    native = True

    def __init__(self, path: str) -> None:
        self.path = path

    def encode(self, call: WireRequest, model: str) -> bytes:
        return jsonio.write(model, "model", model, call.params, all_text=True)

    def decode(self, body: bytes, call: WireRequest) -> PassthroughAnswer:  # noqa: ARG002 - part of the protocol
        document = jsonio.read_object(body)
        if document.get("error") or document.get("object") == "error":
            raise EmbeddedError(document)
        if not document:
            raise Malformed("the answer is an empty object")
        return PassthroughAnswer(body, jsonio.usage_of(document.get("usage")))

    def validate(self, inputs: Any) -> Any:
        return inputs

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        return characters(call.params) / CHARS_PER_TOKEN, most_output(call.params)


@lru_cache(maxsize=256)
def passthrough(path: str) -> PassthroughCodec:
    return PassthroughCodec(path)
