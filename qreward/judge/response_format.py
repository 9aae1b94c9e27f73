"""How a server is asked for JSON, and what each model's servers were found to take. Knows no prompt and no verdict.

How a judge's requests are written: as chat completions, but that what all of them share is not looked through each time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from qreward.codecs.base import WireRequest
from qreward.codecs.chat import ChatCodec
from qreward.codecs.finish_reason import GIVEN_UP
from qreward.errors import BadRequest, QRewardError
from qreward.judge.config import ResponseFormat

LADDER: tuple[ResponseFormat, ...] = ("json_schema", "json_object", "none")
"""From what ties a server down most to what every server takes."""

_ABOUT_FORM = re.compile(r"(?i)response.?format|json.?schema|json.?object|guided|structured.?output|grammar|xgrammar|outlines")


class Formats:
    """What is sent to one model to get JSON. ``auto`` begins at the top of the ladder and remembers each step that it had to go down.

    Endpoints of a route that differ meet at what all of them take.

    Args:
        wanted: as the user set it.
        schema: JSON schema of a verdict.
        name: of that schema.
    """

    __slots__ = ("_auto", "_sent", "current")

    def __init__(self, wanted: ResponseFormat, schema: Mapping[str, Any], name: str) -> None:
        self._auto = wanted == "auto"
        self.current: ResponseFormat = LADDER[0] if wanted == "auto" else wanted
        self._sent: dict[ResponseFormat, dict[str, Any]] = {
            "json_schema": {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}},
            "json_object": {"type": "json_object"},
        }

    def params(self, form: ResponseFormat) -> dict[str, Any]:
        """What goes into the body of a request."""
        return {"response_format": self._sent[form]} if form in self._sent else {}

    def gives_way(self, form: ResponseFormat, error: QRewardError, model: str) -> bool:
        """Whether a request that was refused in this form is worth sending in another; from then on all are sent so."""
        if not self._auto or form == LADDER[-1] or not complains(error, model):
            return False
        if self.current == form:
            self.current = LADDER[LADDER.index(form) + 1]
        return True


def complains(error: QRewardError, model: str) -> bool:
    """Whether an endpoint refuses a request for the way in which it asks for JSON."""
    if not isinstance(error, BadRequest) or error.status_code not in (400, 422):
        return False
    said = str(error)
    _, _, words = said.partition(f" for model {model!r}: ")  # before it are names, of the endpoint among them, that may be any words
    return _ABOUT_FORM.search(words or said) is not None


class JudgeCodec(ChatCodec):
    """``ChatCodec`` for calls whose params were checked when the judge was made, a whole JSON schema among them."""

    def encode(self, call: WireRequest, model: str) -> bytes:
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
