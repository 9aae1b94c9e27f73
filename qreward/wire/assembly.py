"""From the chunks of a stream to the completion they make up. Knows the OpenAI dialect, not HTTP and not how a stream ends.

How members are put together: texts of a delta are joined, but for names and ids, of which the first counts; lists whose items have an
``index`` by that index, other lists one after the other; anything else by its last value. So members that the OpenAI API does not have
(``reasoning_content``, ``token_ids``, ...) come out as in an answer that was not streamed.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from msgspec import Raw

from qreward.results import Usage
from qreward.wire.chat import ChatAnswer, joined
from qreward.wire.endings import ending_of
from qreward.wire.stream_chat import NOTHING, ChatChunk, Choice, decoded, read_object

_CONSTANT = frozenset({"role", "id", "type", "object", "format"})
"""Texts that are no pieces of a longer one: servers send them once, or with every chunk."""

_OF_STREAMS = frozenset({"choices", "object", "obfuscation"})
"""Members of a chunk that say nothing of the completion."""

_FIRST = frozenset({"id", "created", "model"})


class Pieces(list[str]):
    """A text that is still growing: joined once, at the end."""


class Indexed(dict[int, dict[str, Any]]):
    """A list whose items say their place."""


class _Choice:
    """One choice so far."""

    __slots__ = ("ending", "logprobs", "message", "more")

    def __init__(self) -> None:
        self.message: dict[str, Any] = {}
        self.ending: Any = None
        self.logprobs: list[Raw] = []
        self.more: dict[str, Any] = {}

    def add(self, choice: Choice, length: int) -> int:
        """Take what a chunk of so many bytes says; returns how many bytes that keeps, roughly."""
        kept = 0
        for name, value in choice.delta.items():
            if type(value) is str and type(pieces := self.message.get(name)) is Pieces:
                pieces.append(value)
                kept += len(value)
            elif value is not None:
                _merge(self.message, name, joined(value) if name == "content" else value)
                kept += length
        if choice.logprobs != NOTHING:
            self.logprobs.append(choice.logprobs)
            kept += length
        if choice.more:
            _replace(self.more, choice.more)
            kept += length
        if choice.ending is not None:
            self.ending = choice.finish_reason
        return kept

    def document(self, index: int) -> dict[str, Any]:
        """The choice as an answer that was not streamed has it."""
        message = {"role": "assistant", "content": None, **_finished(self.message)}
        if type(self.message.get("tool_calls")) is Indexed:
            for call in message["tool_calls"]:
                call.pop("index", None)
        logprobs: dict[str, Any] = {}
        for each in self.logprobs:
            _merge(logprobs, "logprobs", decoded(each))
        return {"index": index, "message": message, "finish_reason": self.ending, "logprobs": None, **_finished(logprobs), **self.more}


class Assembly:
    """The answer that a stream has given so far, and at its end the whole (an ``Answered`` of ``qreward.results``).

    Args:
        model: the model the caller asked for.

    Attributes:
        usage: what the server said last of the tokens used; None if it never did.
        size: bytes kept, roughly.

    Example:
        >>> assembly = Assembly("judge-7b")
        >>> for text in (b"y", b"es"):
        ...     event = Event(b'{"choices": [{"index": 0, "delta": {"content": "' + text + b'"}}]}')
        ...     assembly.add(read_chunk(event, "judge-7b"))
        >>> assembly.text(), assembly.finished(1)
        ('yes', False)
    """

    __slots__ = ("_choices", "_edges", "_usage_body", "model", "size", "usage")

    def __init__(self, model: str) -> None:
        self.model = model
        self.usage: Usage | None = None
        self.size = 0
        self._choices: dict[int, _Choice] = {}
        self._edges: list[bytes] = []  # chunks of which more than the choices is read: the first, the last ones
        self._usage_body = b"{}"

    def add(self, chunk: ChatChunk) -> None:
        """Take the next chunk."""
        edge = not chunk.choices or not self._choices
        for choice in chunk.choices:
            known = self._choices.get(choice.index)
            if known is None:
                known = self._choices[choice.index] = _Choice()
            self.size += known.add(choice, len(chunk.body))
            edge = edge or known.ending is not None
        if chunk.usage is not None:
            self.usage, self._usage_body = chunk.usage, chunk.body
        if edge:
            self._edges.append(chunk.body)
            self.size += len(chunk.body)

    @property
    def empty(self) -> bool:
        """True while no choice has come."""
        return not self._choices

    def finished(self, choices: int) -> bool:
        """Whether so many choices have come, and all that came have ended."""
        return len(self._choices) >= choices and all(choice.ending is not None for choice in self._choices.values())

    @property
    def finish_reason(self) -> str | None:
        """How the first choice ended, None if it did not, or the server did not say."""
        first = self._choices.get(0)
        return None if first is None else ending_of(first.ending)

    def endings(self) -> list[str | None]:
        """How each choice ended."""
        return [ending_of(choice.ending) for choice in self._choices.values()]

    def heads(self) -> list[bytes]:
        """The chunks that say more than a piece of text: the first, those that end a choice, that with the usage."""
        return [*self._edges, self._usage_body]

    def text(self) -> str:
        """Content of the first choice, ``""`` if it has none."""
        first = self._choices.get(0)
        return "" if first is None else "".join(first.message.get("content", ()))

    def build(self) -> Any:
        """The openai ``ChatCompletion``; what the server left out or made odd is filled in or kept as it is."""
        body = json.dumps(self.document(), separators=(",", ":")).encode()
        return ChatAnswer(body, self.model, None, self.usage).build()

    def document(self) -> dict[str, Any]:
        """The completion as JSON would hold it."""
        whole: dict[str, Any] = {}
        for body in (*self._edges, self._usage_body):
            for name, value in read_object(body).items():
                if name not in _OF_STREAMS and value is not None:
                    whole[name] = (whole.get(name) or value) if name in _FIRST else value
        choices = [self._choices[index].document(index) for index in sorted(self._choices)]
        return {**whole, "object": "chat.completion", "choices": choices}


def _merge(into: dict[str, Any], name: str, value: Any) -> None:
    """Put a member of a delta to what came before it."""
    old = into.get(name)
    match value:
        case None | []:
            return
        case str() if name in _CONSTANT:
            into[name] = old or value
        case str() if type(old) is Pieces:
            old.append(value)
        case str():
            into[name] = Pieces([value])
        case dict():
            known = into[name] = old if type(old) is dict else {}
            for inner, each in value.items():
                _merge(known, inner, each)
        case list():
            into[name] = _merged_list(name, old, value)
        case _:
            into[name] = value


def _merged_list(name: str, old: Any, items: list[Any]) -> Indexed | list[Any]:
    if name == "tool_calls" or type(old) is Indexed or any(isinstance(item, dict) and "index" in item for item in items):
        known = old if type(old) is Indexed else Indexed()
        for item in items:
            _merge_item(known, item)
        return known
    if type(old) is not list:
        return list(items)
    old.extend(items)
    return old


def _merge_item(known: Indexed, item: Any) -> None:
    if isinstance(item, dict):
        entry = known.setdefault(_place(known, item), {})
        for name, value in item.items():
            if name == "function" and isinstance(value, dict) and _name_of(entry) == value.get("name"):
                value = {**value, "name": None}  # noqa: PLW2901 - sent again with each piece of the arguments, by some servers
            _merge(entry, name, value)


def _place(known: Indexed, item: dict[str, Any]) -> int:
    """Where a piece of a tool call belongs. Some servers send no index; some send 0 for each of several whole calls."""
    index, last = item.get("index"), max(known, default=-1)
    place = index if type(index) is int else max(last, 0)
    begun = known.get(place)
    another = begun is not None and _name_of(item) and item.get("id") and begun.get("id") not in (None, item["id"])
    return last + 1 if another else place


def _name_of(call: dict[str, Any]) -> str | None:
    function = call.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return "".join(name) if isinstance(name, str | Pieces) else None


def _replace(into: dict[str, Any], members: dict[str, Any]) -> None:
    """Put members that are no pieces of text to what came before them: lists go on, anything else is replaced."""
    for name, value in members.items():
        old = into.get(name)
        if isinstance(value, list) and isinstance(old, list):
            old.extend(value)
        elif isinstance(value, dict) and isinstance(old, dict):
            _replace(old, value)
        else:
            into[name] = copy.deepcopy(value)


def _finished(value: Any) -> Any:
    if type(value) is Pieces:
        return "".join(value)
    if type(value) is Indexed:
        return [_finished(value[place]) for place in sorted(value)]
    return {name: _finished(inner) for name, inner in value.items()} if type(value) is dict else value
