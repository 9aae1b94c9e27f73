"""What an answer to a judge's request says, besides its words: thoughts, a refusal, and whether it came to its end."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from qreward.wire import jsonio
from qreward.wire.base import Malformed
from qreward.wire.chat import ChatAnswer, joined


class Heard(NamedTuple):
    """One answer.

    Attributes:
        text: its words.
        reasoning: what the server gave apart as thoughts, ``""`` if nothing.
        refusal: the model's words if it declined, else ``""``.
        finished: False if it was cut off at its token limit.
    """

    text: str
    reasoning: str = ""
    refusal: str = ""
    finished: bool = True


class _Message(msgspec.Struct, gc=False):
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct, gc=False):
    message: _Message | None = None
    finish_reason: str | None = None


class _Rest(msgspec.Struct, gc=False):
    choices: list[_Choice]


_DECODER = msgspec.json.Decoder(_Rest)


def hear(answer: ChatAnswer) -> Heard:
    """Read what stands around the words of an answer; servers that put odd things there are read as far as can be."""
    text = answer.text()
    try:
        choice = _DECODER.decode(answer.body).choices[0]
    except (*jsonio.REFUSED, IndexError):
        return _oddly(text, answer.body)
    message = choice.message or _Message()
    return Heard(text, message.reasoning_content or message.reasoning or "", message.refusal or "", choice.finish_reason != "length")


def _oddly(text: str, body: bytes) -> Heard:
    try:
        choice: Any = jsonio.read_object(body)["choices"][0]
        message = choice["message"]
    except (Malformed, LookupError, TypeError):
        return Heard(text)
    refusal, reasoning = message.get("refusal"), message.get("reasoning_content") or message.get("reasoning")
    return Heard(text, joined(reasoning), joined(refusal), choice.get("finish_reason") != "length")
