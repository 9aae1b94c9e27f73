"""The response format of a judge's requests, and their encoding. This module knows no prompt and no verdict.

``Formats`` remembers which ``response_format`` the servers of a model accept. ``JudgeCodec`` encodes chat completions without checking
again the parameters that all requests of a judge share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from qreward.codecs.base import WireRequest
from qreward.codecs.chat import ChatCodec
from qreward.codecs.finish_reason import ABORTED
from qreward.errors import BadRequest, QRewardError
from qreward.judge.config import ResponseFormat

LADDER: tuple[ResponseFormat, ...] = ("json_schema", "json_object", "none")
"""Response formats, from the strictest to the one that every server accepts."""

_ABOUT_FORM = re.compile(r"(?i)response.?format|json.?schema|json.?object|guided|structured.?output|grammar|xgrammar|outlines")


class Formats:
    """The response format that is sent to one model.

    ``auto`` starts with the first format of ``LADDER`` and moves to the next one when a server rejects it. If the endpoints of a route
    differ, all are sent the first format that every one of them accepts.

    Args:
        wanted: the user's setting.
        schema: JSON schema of a verdict.
        name: name of that schema.

    Attributes:
        current: the format of new requests.
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
        """The parameters that a format adds to the body of a request."""
        return {"response_format": self._sent[form]} if form in self._sent else {}

    def fall_back(self, form: ResponseFormat, error: QRewardError, model: str) -> bool:
        """Whether a request that failed in this format should be sent again in the next one. If so, new requests use the next format."""
        if not self._auto or form == LADDER[-1] or not complains(error, model):
            return False
        if self.current == form:
            self.current = LADDER[LADDER.index(form) + 1]
        return True


def complains(error: QRewardError, model: str) -> bool:
    """Whether an endpoint rejects a request because of its response format."""
    if not isinstance(error, BadRequest) or error.status_code not in (400, 422):
        return False
    said = str(error)
    _, _, words = said.partition(f" for model {model!r}: ")  # the text before contains names, such as the endpoint's, that could match
    return _ABOUT_FORM.search(words or said) is not None


class JudgeCodec(ChatCodec):
    """``ChatCodec`` for requests whose parameters, including the JSON schema, were checked when the judge was created."""

    def encode(self, call: WireRequest, model: str) -> bytes:
        """The JSON body. Raises ``BadRequest`` for values that JSON cannot represent."""
        if all(_is_text(message) for message in call.inputs):
            try:
                return _ENCODER.encode({"model": model, "messages": call.inputs, **call.params})
            except (TypeError, ValueError):
                pass  # lone surrogates in a text, or objects in the parameters: the slower encoder handles them
        return super().encode(call, model)

    def takes(self, ending: str) -> bool:
        """Whether an answer with this finish reason is accepted as an answer.

        Only an answer that the server gave up is rejected, so that the engine retries it unchanged. The judge handles other incomplete
        answers itself: it does not parse them, and sends the request again.
        """
        return ending not in ABORTED


_ENCODER = msgspec.json.Encoder()


def _is_text(message: Any) -> bool:
    return all(type(value) is str for value in message.values())


JUDGE = JudgeCodec()
