"""Requests that are passed on as they are, and answered as they are answered. Knows JSON, not what it means."""

from __future__ import annotations

from typing import Any

import msgspec

from qreward.integrations.openai.asked import MEMBERS
from qreward.results import Usage
from qreward.wire import jsonio
from qreward.wire.base import Call, EmbeddedError
from qreward.wire.chat import CHARS_PER_TOKEN


class _Seen(msgspec.Struct, gc=False):
    """The part of an answer that is read."""

    usage: Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Seen)


class PlainAnswer(msgspec.Struct, gc=False):
    """An answer as it came."""

    body: bytes
    model: str
    usage: Usage | None

    def text(self) -> str:
        """``""``: where its words stand is not known here."""
        return ""

    def build(self) -> bytes:
        """The JSON."""
        return self.body


class PlainCodec:
    """``POST`` to one path, whole: not merged with others, and not split.

    Attributes:
        name: of the operation, for telemetry.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = path.rpartition("/")[2]
        self._member = MEMBERS[path]

    def encode(self, call: Call, model: str) -> bytes:
        """The JSON body. Raises ``BadRequest`` for what JSON cannot hold."""
        return jsonio.write(model, self._member, call.inputs, call.params, all_text=False)

    def decode(self, body: bytes, call: Call) -> PlainAnswer:
        """The answer. Raises ``Malformed`` or ``EmbeddedError``."""
        try:
            seen = _DECODER.decode(body)
        except jsonio.REFUSED:
            document = jsonio.read_object(body)
            seen = _Seen(jsonio.usage_of(document.get("usage")), document.get("error"))
        if seen.error:
            raise EmbeddedError(seen.error)
        return PlainAnswer(body, call.model, seen.usage)

    def validate(self, inputs: Any) -> Any:
        """The inputs; it is the server that knows what they may be."""
        return inputs

    def estimate_tokens(self, call: Call) -> tuple[float, float]:
        """Inputs by their length, output by ``max_tokens``, which only completions have."""
        inputs, most, choices = call.inputs, call.params.get("max_tokens"), call.params.get("n")
        prompt = len(str(inputs)) / CHARS_PER_TOKEN
        if not isinstance(most, int):
            return prompt, 0.0
        prompts = len(inputs) if isinstance(inputs, list) and inputs and not isinstance(inputs[0], int) else 1
        return prompt, float(most * prompts * (choices if isinstance(choices, int) else 1))
