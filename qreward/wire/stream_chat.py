"""Chunks of a streamed chat completion: how they are read. Knows JSON and the OpenAI dialect, not HTTP and not how a stream ends.

What servers send is read as it comes: the usual form of a chunk by one decoder (0.4 us), anything else the long way.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import msgspec

from qreward.results import Usage
from qreward.wire import jsonio
from qreward.wire.base import EmbeddedError, Malformed
from qreward.wire.chat import joined
from qreward.wire.endings import ending_of
from qreward.wire.sse import Event

NOTHING = msgspec.Raw(b"null")


class Choice(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """What a chunk says of one choice.

    Attributes:
        logprobs: JSON as it came, ``null`` if there are none: few look at them, and they are far longer than the text.
        more: members that the OpenAI API does not have, such as ``stop_reason`` and ``token_ids``.
    """

    index: int = 0
    delta: dict[str, Any] = {}
    finish_reason: Any = None
    logprobs: msgspec.Raw = NOTHING
    more: dict[str, Any] | None = msgspec.field(default=None, name="(more)")

    @property
    def ending(self) -> str | None:
        """Why the choice ended, if it did: some servers say ``""`` or ``"null"`` where they mean that it goes on."""
        return ending_of(self.finish_reason)


class _Usual(msgspec.Struct, gc=False):
    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Usual)
_OBJECT = msgspec.json.Decoder(dict[str, Any])


class ChatChunk(msgspec.Struct, gc=False):
    """One chunk as it came: its bytes, and the little that is read of every chunk.

    Attributes:
        body: the JSON.
        model: the model the caller asked for.
        text: what it adds to the content of the first choice, often ``""``.
        usage: tokens used so far, if it says.
    """

    body: bytes
    model: str
    choices: list[Choice]
    usage: Usage | None
    text: str

    @property
    def finish_reason(self) -> str | None:
        """Why the first choice ended, in the chunk that ends it."""
        return next((choice.ending for choice in self.choices if choice.index == 0), None)

    @property
    def has_output(self) -> bool:
        """Whether the model said something here, in any choice: content, reasoning, a tool call. The first such is the first token."""
        return any(value and name != "role" for choice in self.choices for name, value in choice.delta.items())

    def build(self) -> Any:
        """The openai ``ChatCompletionChunk``; what the server left out or made odd is filled in or kept as it is."""
        chunk = _chunk_type()
        try:
            return chunk.model_validate_json(self.body)
        except ValueError:
            return chunk.construct(**_completed(jsonio.read_object(self.body), self.model))


@cache
def _chunk_type() -> Any:
    from openai.types.chat import ChatCompletionChunk  # noqa: PLC0415 - takes most of a second, and many never ask

    return ChatCompletionChunk


def read_chunk(event: Event, model: str) -> ChatChunk | None:
    """The chunk in an event; None if there is none, as in a ping.

    Args:
        model: what the caller asked for.

    Raises:
        EmbeddedError: the event tells of an error.
        Malformed: it is neither.

    Example:
        >>> read_chunk(Event(b'{"choices": [{"index": 0, "delta": {"content": "yes"}}]}'), "judge-7b").text
        'yes'
    """
    body = event.data
    if event.name != "error":
        try:
            seen = _DECODER.decode(body)
        except jsonio.REFUSED:
            pass
        else:
            if seen.choices and not seen.error:
                return ChatChunk(body, model, seen.choices, seen.usage, _text(seen.choices))
    return _read_oddly(event, model)


def whole_chunk(body: bytes, model: str) -> ChatChunk:
    """A complete answer as one chunk, for a server that does not stream. Raises ``Malformed``, ``EmbeddedError``."""
    chunk = _read_oddly(Event(body), model)
    if chunk is None:
        raise Malformed("the answer has no choices")
    return chunk


def read_object(body: bytes) -> dict[str, Any]:
    """The members of a chunk, leniently. Raises ``Malformed``."""
    try:
        return _OBJECT.decode(body)
    except jsonio.REFUSED:
        return jsonio.read_object(body)


def decoded(raw: msgspec.Raw) -> Any:
    """What was left undecoded, as plain data."""
    try:
        return msgspec.json.decode(raw)
    except jsonio.REFUSED:
        return jsonio.read_leniently(bytes(raw))


def _text(choices: list[Choice]) -> str:
    for choice in choices:
        if choice.index == 0:
            content = choice.delta.get("content")
            return content if type(content) is str else joined(content)
    return ""


def _read_oddly(event: Event, model: str) -> ChatChunk | None:
    """The long way, for errors, odd types, unknown members of a choice, and what is not quite JSON."""
    body = event.data
    if event.name == "error":
        raise EmbeddedError(_document_or_text(body))
    if not body.strip():
        return None
    document = read_object(body)
    if error := document.get("error") or (document if document.get("object") == "error" else None):
        raise EmbeddedError(error)
    raw, usage = document.get("choices"), jsonio.usage_of(document.get("usage"))
    if not isinstance(raw, list):
        return None if usage is None else ChatChunk(body, model, [], usage, "")
    choices = [_odd_choice(choice) for choice in raw if isinstance(choice, dict)]
    return ChatChunk(body, model, choices, usage, _text(choices))


def _document_or_text(body: bytes) -> Any:
    try:
        return jsonio.read_leniently(body)
    except Malformed:
        return body.decode("utf-8", "replace")


def _odd_choice(raw: dict[str, Any]) -> Choice:
    members = {name: value for name, value in raw.items() if value is not None}
    if error := members.pop("error", None):
        raise EmbeddedError(error)
    index, delta = members.pop("index", 0), _delta(members)
    finish, logprobs = members.pop("finish_reason", None), members.pop("logprobs", None)
    raw_logprobs = NOTHING if logprobs is None else msgspec.Raw(json.dumps(logprobs).encode())
    return Choice(index if type(index) is int else 0, delta, finish, raw_logprobs, members or None)


def _delta(members: dict[str, Any]) -> dict[str, Any]:
    """Takes ``delta`` out of the members of a choice, or the ``message`` of a server that does not stream."""
    delta, message = members.pop("delta", None), members.pop("message", None)
    found = delta if isinstance(delta, dict) else message
    return found if isinstance(found, dict) else {}


def _completed(document: dict[str, Any], model: str) -> dict[str, Any]:
    """The chunk with the members that openai's type promises."""
    raw = document.get("choices")
    choices = [_completed_choice(choice, index) for index, choice in enumerate(raw if isinstance(raw, list) else [])]
    filled = {"id": "", "created": 0, "model": model, **document}
    return {**filled, "object": "chat.completion.chunk", "choices": choices}


def _completed_choice(raw: object, place: int) -> dict[str, Any]:
    choice = dict(raw) if isinstance(raw, dict) else {}
    delta = _delta(choice)
    if isinstance(delta.get("content"), list):
        delta = {**delta, "content": joined(delta["content"])}
    if type(choice.get("index")) is not int:
        choice["index"] = place
    return {"finish_reason": None, **choice, "delta": delta}
