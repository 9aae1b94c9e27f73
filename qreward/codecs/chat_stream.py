"""Streams: bytes become server-sent events, events become chunks of chat completions, and chunks become a completion."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import chain, takewhile
from typing import Any

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import LENGTH, EmbeddedError, Malformed, ending_of, is_failure
from qreward.codecs.chat import ChatAnswer, completed, joined, paired
from qreward.codecs.error_body import error_in
from qreward.results import Usage

MOST_BYTES = 1 << 20
"""Maximum number of bytes of an event. Chunks of a chat are far smaller."""

_BOM = b"\xef\xbb\xbf"


class Event(msgspec.Struct, gc=False):
    """Holds one event. The lines of ``data`` are joined by line feeds. ``name`` is ``""`` for an event without an ``event:`` field."""

    data: bytes
    name: str = ""


class EventTooLong(Exception):
    """An event, or one line of the stream, exceeds the size limit. The parser accepts no further data."""


class Parser:
    """Parses bytes into events. The result does not depend on how the bytes are split into chunks."""

    __slots__ = ("_after_cr", "_held", "_most", "_size", "_start", "_too_long")

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._too_long = f"an event of the stream is longer than {most_bytes} bytes"
        self._start: bytes | None = b""  # possible beginning of a byte order mark; None after the first bytes
        self._after_cr = False
        self._held: list[bytes] = []  # pieces of an event that is not complete
        self._size = 0  # total bytes of these pieces

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield the events that these bytes complete. The caller must iterate to the end before the next call. Raises ``EventTooLong``."""
        if self._start is not None:
            data = self._start + data
            is_short = len(data) < len(_BOM) and _BOM.startswith(data)
            self._start, data = (data, b"") if is_short else (None, data.removeprefix(_BOM))
        if data and (self._after_cr or b"\r" in data):
            data = data.removeprefix(b"\n") if self._after_cr else data
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not self._held and data[:6] == b"data: " and data.find(b"\n") == len(data) - 2 <= self._most and data[-1:] == b"\n":
            yield Event(data[6:-2])  # the bytes are exactly one event, as in most reads
            return
        if self._held:
            if b"\n\n" not in data and not (data.startswith(b"\n") and self._held[-1].endswith(b"\n")):
                self._hold(data)  # not joined with each piece, which would take quadratic time
                return
            data, self._held, self._size = b"".join([*self._held, data]), [], 0
        *blocks, rest = data.split(b"\n\n")
        for block in blocks:
            if block[:6] == b"data: " and b"\n" not in block and len(block) <= self._most:
                yield Event(block[6:])  # the usual event
            elif block and (event := self._event(block)) is not None:
                yield event
        self._hold(rest)

    def finish(self) -> Iterator[Event]:
        """Yield the last event of a stream that ended without a blank line. Raises ``EventTooLong``."""
        return self.feed(b"\n\n")

    def _hold(self, piece: bytes) -> None:
        if not piece:
            return
        self._held.append(piece)
        self._size += len(piece)
        if len(piece) > self._most or self._size > 4 * self._most:  # comments do not count, and are dropped
            whole = b"\n".join(self._lines(b"".join(self._held)))
            self._held, self._size = [whole] * bool(whole), len(whole)

    def _event(self, block: bytes) -> Event | None:
        data, name = list[bytes](), ""
        for line in self._lines(block):
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field in (b"data", b"error"):
                data.append(value)
                name = "error" if field == b"error" else name
            elif field == b"event":
                name = value.decode("utf-8", "replace")
        return Event(b"\n".join(data), name) if data else None

    def _lines(self, text: bytes) -> list[bytes]:
        """Return the lines of an event without comments, and the last line. Raises ``EventTooLong``."""
        *lines, last = text.split(b"\n")
        own = [line for line in lines if not line.startswith(b":")] + [last]
        size = sum(map(len, own if not last.startswith(b":") else own[:-1]))
        if max(size, *map(len, lines), len(last)) > self._most:
            self._most, self._held = -1, []  # rejects all further data as well
            raise EventTooLong(self._too_long)
        return own


_HEARTBEATS = frozenset({"ping", "heartbeat", "keepalive", "keep-alive"})
"""Names of events that only keep the connection open. Their data has no meaning."""
_EMPTY: tuple[object, ...] = (None, [], "", True, False)
"""Values of events without a name that, like numbers, only keep the connection open."""


class ChunkChoice(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    index: int = 0
    delta: dict[str, Any] = {}
    finish_reason: Any = None
    logprobs: Any = None
    more: dict[str, Any] | None = msgspec.field(default=None, name="(more)")

    @property
    def ending(self) -> str | None:
        return ending_of(self.finish_reason)

    @property
    def has_output(self) -> bool:
        return any(value and name != "role" for name, value in self.delta.items())


class _Usual(msgspec.Struct, gc=False):
    choices: list[ChunkChoice] = []
    usage: Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Usual)


class ChatChunk(msgspec.Struct, gc=False):
    body: bytes
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None
    text: str
    is_whole: bool = False  # it has whole messages in place of deltas

    @property
    def finish_reason(self) -> str | None:
        return next((choice.ending for choice in self.choices if choice.index == 0), None)

    @property
    def has_output(self) -> bool:
        return any(choice.has_output for choice in self.choices)

    def build(self) -> Any:
        return jsonio.build("chat.ChatCompletionChunk", self.body, partial(completed, "chat.completion.chunk", "delta", self.model))


def read_chunk(event: Event, model: str) -> ChatChunk | None:
    """Return the chunk in an event, or None for an event without a chunk, such as a ping. Raises ``EmbeddedError`` and ``Malformed``."""
    body = event.data
    if event.name != "error":
        try:
            seen = _DECODER.decode(body)
        except jsonio.REFUSED:
            return _read_leniently(event, model)
        if seen.choices and not seen.error:
            return ChatChunk(body, model, seen.choices, seen.usage, _text(seen.choices))
    return _read_leniently(event, model)


def _text(choices: list[ChunkChoice]) -> str:
    return "".join([joined(choice.delta.get("content")) for choice in choices if choice.index == 0])


def _read_leniently(event: Event, model: str) -> ChatChunk | None:
    body = event.data
    if event.name == "error":
        try:
            raise EmbeddedError(jsonio.read_leniently(body))
        except Malformed:
            raise EmbeddedError(body.decode("utf-8", "replace")) from None
    if not body.strip() or event.name.lower() in _HEARTBEATS:
        return None
    document = jsonio.read(body)
    if document in _EMPTY or type(document) in (int, float):
        return None
    if not isinstance(document, dict):
        raise Malformed(f"the event is a JSON {type(document).__name__} instead of an object")
    if error_in(document) is not None:
        raise EmbeddedError(document.get("error") or document)
    raw, usage = document.get("choices"), jsonio.usage_of(document.get("usage"))
    if not isinstance(raw, list):
        return None if usage is None else ChatChunk(body, model, [], usage, "")
    choices = [_lenient_choice(choice) for choice in raw if isinstance(choice, dict)]
    is_whole = any(
        isinstance(choice, dict) and isinstance(choice.get("message"), dict) and not isinstance(choice.get("delta"), dict) for choice in raw
    )
    return ChatChunk(body, model, choices, usage, _text(choices), is_whole)


def _lenient_choice(raw: dict[str, Any]) -> ChunkChoice:
    members = {name: value for name, value in raw.items() if value is not None}
    if error := members.pop("error", None):
        raise EmbeddedError(error)
    delta, message = members.pop("delta", None), members.pop("message", None)  # a server that does not stream sends a message
    found = delta if isinstance(delta, dict) else message
    index = members.pop("index", 0)
    finish, logprobs = members.pop("finish_reason", None), members.pop("logprobs", None)
    return ChunkChoice(index if type(index) is int else 0, found if isinstance(found, dict) else {}, finish, logprobs, members or None)


def tells_usage_only(chunk: Any) -> bool:
    return not chunk.choices and chunk.usage is not None


_CONSTANT = frozenset({"role", "id", "type", "object", "format"})
"""Names of members whose texts are not concatenated. Servers send the complete text, in one chunk or in every chunk."""

_OF_STREAMS = frozenset({"choices", "object", "obfuscation"})
"""Names of members of a chunk that are not copied to the completion."""

_FIRST = frozenset({"id", "created", "model"})

_HIGH, _LOW = "\ud800", "\udc00"  # the first high and the first low surrogate: the two halves of a character in UTF-16


_Values = dict[str, list[Any]]
"""Name of a member -> its values in all chunks. They are merged when the completion is made."""


class _Choice:
    __slots__ = ("ending", "goes_on", "message", "more")

    def __init__(self) -> None:
        self.message: _Values = {}
        self.ending: Any = None
        self.goes_on = False  # True after output that followed an ending
        self.more: _Values = {}  # of ``logprobs``, and of members outside the API

    def add(self, choice: ChunkChoice, length: int) -> int:
        """Keep the choice of a chunk. ``length`` is the size of the chunk in bytes. Return the approximate number of bytes kept."""
        kept = 0
        self.goes_on = self.goes_on or (self.ending is not None and choice.has_output)
        for name, value in choice.delta.items():
            known = self.message.get(name)
            if type(value) is str and known is not None:
                if name not in _CONSTANT or not known[-1]:
                    known.append(value)
                    kept += len(value)
            elif value is not None:
                kept += length
                _keep(self.message, name, joined(value) if name == "content" else value)
        if choice.logprobs is not None or choice.more:
            kept += length
            for name, value in {"logprobs": choice.logprobs, **(choice.more or {})}.items():
                _keep(self.more, name, value)
        if (ending := choice.ending) is not None:
            earlier = ending_of(self.ending)
            if self.goes_on or is_failure(ending) or not (earlier == LENGTH or is_failure(earlier)):
                self.ending = choice.finish_reason
        return kept

    def text(self) -> str:
        return paired("".join(self.message.get("content", ())))

    def document(self, index: int) -> dict[str, Any]:
        message = {"role": "assistant", "content": None, **_merged(self.message)}
        more = _merged(self.more, joins=False)
        return {"index": index, "message": message, "finish_reason": self.ending, "logprobs": None, **more}


class StreamAccumulator:
    __slots__ = ("_choices", "_edges", "_half", "_usage_body", "model", "size", "usage")

    def __init__(self, model: str) -> None:
        self.model = model
        self.usage: Usage | None = None
        self.size = 0
        self._choices: dict[int, _Choice] = {}
        self._edges: list[bytes] = []  # the first and last chunks; their members other than ``choices`` are copied
        self._usage_body = b"{}"
        self._half = ""  # the first half of a character whose second half is still to come

    def add(self, chunk: ChatChunk) -> None:
        if chunk.is_whole and self._choices:
            self._drop_repeated(chunk)
        if self._half or _HIGH <= chunk.text[-1:] < _LOW:
            text, self._half = paired(self._half + chunk.text), ""
            if _HIGH <= text[-1:] < _LOW and chunk.finish_reason is None:
                text, self._half = text[:-1], text[-1]
            chunk.text = text
        edge = not chunk.choices or not self._choices
        for choice in chunk.choices:
            known = self._choices.get(choice.index)
            if known is None:
                known = self._choices[choice.index] = _Choice()
            self.size += known.add(choice, len(chunk.body))
            edge = edge or known.ending is not None
        if chunk.usage is not None and (self.usage is None or chunk.usage != Usage()):
            self.usage, self._usage_body = chunk.usage, chunk.body
        if edge:
            self._edges.append(chunk.body)
            self.size += len(chunk.body)

    def _drop_repeated(self, chunk: ChatChunk) -> None:
        """Drop what earlier chunks had already. Some servers, such as MiniMax, end a stream with the whole message."""
        document = jsonio.read_object(chunk.body)
        for choice, raw in zip(chunk.choices, (each for each in document["choices"] if isinstance(each, dict)), strict=True):
            if isinstance(raw.get("delta"), dict):
                continue
            if (known := self._choices.get(choice.index)) is not None:
                said, repeated = known.text(), joined(choice.delta.get("content")).strip()
                if said.strip() and repeated not in ("", said.strip()):
                    raise Malformed("a message in place of a delta differs from the text before it")
                old = known.message.keys() - (set() if said else {"content"})
                choice.delta = {name: value for name, value in choice.delta.items() if name not in old}
            raw.pop("message", None)
            raw["delta"] = choice.delta
        chunk.text = _text(chunk.choices)
        chunk.body = json.dumps(document).encode()

    @property
    def count(self) -> int:
        return len(self._choices)

    @property
    def ended(self) -> bool:
        return all(choice.ending is not None for choice in self._choices.values())

    @property
    def goes_on(self) -> bool:
        """True if a choice had output after its ending. The endings of such a server do not show whether the answer is complete."""
        return any(choice.goes_on for choice in self._choices.values())

    def finished(self, choices: int) -> bool:
        """Return True if at least ``choices`` choices were received, and all received choices have ended and had no output since."""
        return self.count >= choices and self.ended and not self.goes_on

    @property
    def finish_reason(self) -> str | None:
        first = self._choices.get(0)
        return None if first is None else ending_of(first.ending)

    def endings(self) -> list[str | None]:
        return [ending_of(self._choices[index].ending) for index in sorted(self._choices)]

    def heads(self) -> list[bytes]:
        return [*self._edges, self._usage_body]

    def text(self) -> str:
        first = self._choices.get(0)
        return "" if first is None else first.text()

    def build(self) -> Any:
        body = json.dumps(self.document(), separators=(",", ":")).encode()
        return ChatAnswer(body, self.model, None, self.usage).build()

    def document(self) -> dict[str, Any]:
        whole: dict[str, Any] = {}
        for body in self.heads():
            for name, value in jsonio.read_object(body).items():
                if name not in _OF_STREAMS and value is not None:
                    whole[name] = (whole.get(name) or value) if name in _FIRST else value
        choices = [self._choices[index].document(index) for index in sorted(self._choices)]
        return {**whole, "object": "chat.completion", "choices": choices}


def _keep(into: _Values, name: str, value: Any) -> None:
    if value is not None and value != []:
        into.setdefault(name, []).append(value)


def _merged(members: _Values, *, joins: bool = True) -> dict[str, Any]:
    """Return the members of a completion. Each has the values of the member in all chunks. ``joins`` is False for texts that replace
    earlier ones."""
    return {name: _member(name, values, joins) for name, values in members.items()}


def _member(name: str, values: list[Any], joins: bool) -> Any:
    kind = type(values[-1])
    run = list(takewhile(lambda value: type(value) is kind, reversed(values)))[::-1]  # a value of another type replaces those before it
    if kind is str and joins:
        return next(filter(None, run), "") if name in _CONSTANT else paired("".join(run))
    if kind is dict:
        members: _Values = {}
        for value in run:
            for inner, each in value.items():
                _keep(members, inner, each)
        return _merged(members, joins=joins)
    if kind is not list:
        return values[-1]
    if name == "tool_calls" or any(isinstance(item, dict) and "index" in item for items in run for item in items):
        return _by_index(name, run)
    return list(chain.from_iterable(run))


def _by_index(name: str, lists: list[list[Any]]) -> list[dict[str, Any]]:
    """Return the items of a list that came in parts. Servers may leave out the index of a tool call, or give several calls the same one."""
    entries, names, ids, last = dict[int, _Values](), dict[int, str](), dict[int, str](), -1
    tries = Counter[int]()  # place -> how often its arguments were read and were not whole
    begun: dict[Any, int] = {}  # index and id, either of them, or neither -> place of the item that had them last
    for items in lists:
        for number, item in enumerate(filter(lambda item: isinstance(item, dict), items)):
            index, function = item.get("index") if type(item.get("index")) is int else None, item.get("function")
            identity = str(item.get("id") or "")
            own = function.get("name") if isinstance(function, dict) and isinstance(function.get("name"), str) else None
            place = begun.get((index, identity), begun.get((index, ""), index or 0))
            if own and place in entries:
                if identity:
                    another = ids.get(place, identity) != identity
                else:
                    arguments = _whole_at_most(entries[place], own == names.get(place), function) if tries[place] < _MOST_TRIES else ""
                    another = bool(arguments) and _is_object(arguments)
                    tries[place] += bool(arguments)
                place = last + 1 if another or (index is None and number > 0) else place
            last = max(last, place)
            begun |= dict.fromkeys(((index, identity), (index, ""), (None, "")), place)
            if identity:
                ids.setdefault(place, identity)
            repeated = own == names.get(place)  # some servers repeat the name with each piece of the arguments
            if own and not repeated:
                names[place] = names.get(place, "") + own
            entry = entries.setdefault(place, {})
            for member, value in item.items():
                if name != "tool_calls" or member != "index":
                    _keep(entry, member, {**value, "name": None} if own and repeated and member == "function" else value)
    return [_merged(entries[place]) for place in sorted(entries)]


_MOST_PARTS = 5000  # of a call that may be whole, so that the time for a hostile stream is short
_MOST_TRIES = 50  # to read the arguments of one call


def _whole_at_most(call: _Values, same_name: bool, function: dict[str, Any]) -> str:
    """Return the arguments of a call if they may be whole, so that the name in ``function`` begins another call; otherwise "". Some servers
    repeat the name with each piece of the arguments."""
    parts = call.get("function", [])
    if len(parts) > _MOST_PARTS or (same_name and not str(function.get("arguments")).lstrip().startswith("{")):
        return ""
    pieces = (each.get("arguments") for each in reversed(parts) if isinstance(each, dict))
    texts = filter(None, (piece for piece in pieces if isinstance(piece, str)))
    last = next(texts, "")
    return "".join([*texts][::-1]) + last if last.rstrip().endswith("}") else ""


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
