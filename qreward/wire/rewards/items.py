"""What is scored, labelled, ranked or embedded: the items of a list, checked once, and roughly how much each costs.

Knows nothing of servers or of how an item is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from qreward.errors import BadRequest
from qreward.wire import jsonio
from qreward.wire.chat import CHARS_PER_TOKEN, CHAT, is_missing, joined

TEXT, PAIR, CHAT_ITEM, TOKENS, PARTS = "text", "pair", "chat", "tokens", "parts"
"""The shapes of items. Items of different shapes never share a request."""

_BYTES_AROUND = 16
"""Bytes of JSON around an item: quotes, brackets, a comma."""


class Pair(msgspec.Struct, frozen=True, gc=False):
    """A prompt and a response to it.

    Attributes:
        label: what the right answer is, for servers that want to know (OpenRLHF's ``labels``).
    """

    prompt: str
    response: str
    label: Any = None


class Chat(msgspec.Struct, frozen=True, gc=False):
    """A conversation whose last message is judged."""

    messages: list[Any]


class Parts(msgspec.Struct, frozen=True, gc=False):
    """Texts and pictures that are one item together, as moderations take them."""

    parts: list[Any]


def pair_item(raw: Any) -> str | Pair | Chat:
    """A text that is ready, ``(prompt, response)``, or a conversation; a prompt that is one becomes part of it.

    Raises ``BadRequest``.
    """
    if isinstance(raw, str):
        return raw
    if isinstance(raw, Pair):
        return _pair(raw.prompt, raw.response, raw.label)
    if isinstance(raw, Chat):
        return _chat(raw.messages)
    if isinstance(raw, Mapping):
        return _of_mapping(raw)
    if isinstance(raw, tuple) or (isinstance(raw, list) and len(raw) == 2 and isinstance(raw[1], str | None)):
        if len(raw) != 2:
            raise BadRequest(f"a tuple of {len(raw)} cannot be scored; a pair is (prompt, response)")
        return _pair(raw[0], raw[1], None)
    if isinstance(raw, list):
        return _chat(raw)
    _check_given(raw, "item")
    raise BadRequest(f"an item to score must be (prompt, response), a text or a list of messages, not a {type(raw).__name__}")


def text_item(raw: Any) -> str:
    """A text. Raises ``BadRequest``."""
    if isinstance(raw, str):
        return raw
    _check_given(raw, "text")
    raise BadRequest(f"the item must be a text, not a {type(raw).__name__}")


def token_item(raw: Any) -> str | list[int]:
    """A text, or the token ids of one. Raises ``BadRequest``."""
    if isinstance(raw, list | tuple) and raw and set(map(type, raw)) == {int}:
        return list(raw)
    if isinstance(raw, str) and raw:
        return raw
    _check_given(raw, "input")
    what = "an empty one" if raw in ("", [], ()) else f"a {type(raw).__name__}"
    raise BadRequest(f"the item must be a text, or a list of token ids (int), not {what}")


def parts_item(raw: Any) -> str | Parts:
    """A text, or a list of parts such as ``{"type": "text", "text": "..."}``, which is one item. Raises ``BadRequest``."""
    if isinstance(raw, str | Parts):
        return raw
    if isinstance(raw, list) and raw and all(isinstance(part, Mapping) for part in raw):
        return Parts(raw)
    _check_given(raw, "input")
    raise BadRequest(f"an item to moderate must be a text, or a list of parts (dicts) that are one input, not a {type(raw).__name__}")


def shape_of(item: Any) -> str:
    """``text``, ``pair``, ``chat``, ``tokens`` or ``parts``."""
    return _SHAPES[type(item)]


_SHAPES = {str: TEXT, Pair: PAIR, Chat: CHAT_ITEM, list: TOKENS, Parts: PARTS}


def tokens_in(item: Any) -> float:
    """Tokens of an item: those that are given count themselves, texts by their characters."""
    return float(len(item)) if isinstance(item, list) else _chars(item) / CHARS_PER_TOKEN


def bytes_in(item: Any) -> int:
    """Bytes of an item in a body, not less than it takes as UTF-8 unless it is full of escapes."""
    if isinstance(item, list):
        return sum(len(str(token)) + 1 for token in item) + _BYTES_AROUND
    text = item if isinstance(item, str) else item.prompt + item.response if isinstance(item, Pair) else ""
    if text or isinstance(item, str | Pair):
        return len(text.encode("utf-8", "surrogatepass")) + _BYTES_AROUND
    return len(jsonio.write("", "", item.messages if isinstance(item, Chat) else item.parts, {}, all_text=False))


def _chars(item: Any) -> int:
    match item:
        case str():
            return len(item)
        case Pair():
            return len(item.prompt) + len(item.response)
        case Chat():
            return sum(len(joined(message.get("content"))) for message in item.messages)
    return len(joined(item.parts))


def _of_mapping(raw: Mapping[Any, Any]) -> Pair | Chat:
    if "messages" in raw:
        return _chat(raw["messages"])
    if "response" not in raw or "prompt" not in raw:
        raise BadRequest("a dict must have 'prompt' and 'response', or 'messages'")
    return _pair(raw["prompt"], raw["response"], raw.get("label"))


def _check_given(value: object, name: str) -> None:
    """Raise ``BadRequest`` for None: what is missing, as when a generation failed, must not be scored as if it were there."""
    if value is None:
        raise BadRequest(f"the {name} is None; leave the item out, or give the {name}")


def _chat(messages: Any) -> Chat:
    """A conversation, whose last message is there."""
    _check_given(messages, "messages")
    checked = CHAT.validate(messages)
    if is_missing(checked[-1]):
        raise BadRequest("the last message, which is judged, has no content; leave the item out, or give the content")
    return Chat(checked)


def _pair(prompt: Any, response: Any, label: Any) -> Pair | Chat:
    _check_given(prompt, "prompt")
    _check_given(response, "response")
    if not isinstance(response, str):
        raise BadRequest(f"the response is a {type(response).__name__}; send a text")
    if isinstance(prompt, str):
        return Pair(prompt, response, label)
    return Chat([*CHAT.validate(prompt), {"role": "assistant", "content": response}])
