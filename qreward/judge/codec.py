"""How a judge's requests are written: as chat completions, but that what all of them share is not looked through each time."""

from __future__ import annotations

from typing import Any

import msgspec

from qreward.wire.base import Call
from qreward.wire.chat import ChatCodec
from qreward.wire.endings import GIVEN_UP


class JudgeCodec(ChatCodec):
    """``ChatCodec`` for calls whose params were checked when the judge was made, a whole JSON schema among them."""

    def encode(self, call: Call, model: str) -> bytes:
        """The JSON body. Raises ``BadRequest`` for what JSON cannot hold."""
        if all(_is_text(message) for message in call.inputs):
            try:
                return _ENCODER.encode({"model": model, "messages": call.inputs, **call.params})
            except (TypeError, ValueError):
                pass  # lone surrogates in a text, objects in the params: there is a slower way
        return super().encode(call, model)

    def takes(self, ending: str) -> bool:
        """An answer that is not whole is not read, but asked for again by the judge; what the server gave up is sent again as it is."""
        return ending not in GIVEN_UP


_ENCODER = msgspec.json.Encoder()


def _is_text(message: Any) -> bool:
    return all(type(value) is str for value in message.values())


JUDGE = JudgeCodec()
