"""Server-sent events out of bytes, as they come. Knows nothing of sockets, of JSON, or of what an event means.

The rules are those of the WHATWG HTML standard, section 9.2.6, but for three: an event at the end of the stream counts although no blank
line follows it (many servers leave it out), an event has a largest size, and a field ``error`` is data of an event of that name (so does
llama.cpp report errors). Bytes are kept as bytes: no line end is part of a character in UTF-8, so a character may come in two pieces.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

MOST_BYTES = 1 << 20
"""Largest event, in bytes: far above any chunk of a chat, far below what would hurt."""

_BOM = b"\xef\xbb\xbf"
_COMMENT = b":"
_LONGEST_RETRY = 9  # digits


class Event(msgspec.Struct, gc=False):
    """One event: its data, lines joined by a line feed, and what the server calls it (``""`` if it has no ``event:``)."""

    data: bytes
    name: str = ""


class EventTooLong(Exception):
    """An event, or one line of the stream, has more bytes than are allowed. The parser takes no more."""


class Parser:
    """Takes bytes, gives events; the pieces in which the bytes come make no difference.

    Args:
        most_bytes: the lines of one event may have so many bytes together, line ends and comments not counted; so may a comment.

    Attributes:
        last_id: the last ``id:`` that came, ``""`` if none did.
        retry: the last ``retry:`` that came, in milliseconds, or None.

    Example:
        >>> parser = Parser()
        >>> [*parser.feed(b": hello\\n\\ndata: one\\n\\ndata: tw"), *parser.feed(b"o\\n"), *parser.finish()]
        [Event(data=b'one', name=''), Event(data=b'two', name='')]
    """

    __slots__ = ("_after_cr", "_begun", "_complaint", "_data", "_most", "_name", "_partial", "_size", "_start", "last_id", "retry")

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._complaint = f"an event of the stream is longer than {most_bytes} bytes"
        self._start: bytes | None = b""  # what may be the beginning of a byte order mark; None once that is known
        self._partial: list[bytes] = []  # pieces of a line that has no end yet
        self._begun = 0  # bytes in them
        self._after_cr = False
        self._data: list[bytes] = []
        self._name = ""
        self._size = 0  # bytes of the lines of the event so far
        self.last_id = ""
        self.retry: int | None = None

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events that are complete with these bytes. Take all of them before the next call. Raises ``EventTooLong``."""
        if self._start is not None:
            data = self._after_mark(data)
        if self._size or self._begun or self._after_cr:
            end = data.find(b"\n\n")
            end = len(data) if end < 0 else end + 2
            yield from self._lines(data[:end])
            data = data[end:]
        if data[:6] == b"data: " and data[-2:] == b"\n\n" and data.find(b"\n") == len(data) - 2 <= self._most and b"\r" not in data:
            yield Event(data[6:-2])  # one whole event: what most reads bring
        elif data:
            plain = data.replace(b"\r\n", b"\n") if b"\r" in data else data
            yield from self._lines(data) if b"\r" in plain else self._blocks(plain)

    def _blocks(self, data: bytes) -> Iterator[Event]:
        """The short way, from where an event begins, with line feeds only."""
        *blocks, rest = data.split(b"\n\n")
        for block in blocks:
            if block[:6] == b"data: " and b"\n" not in block and len(block) <= self._most:
                yield Event(block[6:])
            elif block:
                yield from self._lines(block + b"\n\n")
        if rest:
            yield from self._lines(rest)

    def finish(self) -> Iterator[Event]:
        """The event that the end of the stream completes, if there is one. Raises ``EventTooLong``."""
        held, self._start = self._start, None
        yield from self._lines((held or b"") + b"\n\n")

    def _after_mark(self, data: bytes) -> bytes:
        """The data without a byte order mark; nothing while it may be the beginning of one."""
        data = (self._start or b"") + data
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._start = data
            return b""
        self._start = None
        return data.removeprefix(_BOM)

    def _lines(self, data: bytes) -> Iterator[Event]:
        """The long way: line by line."""
        if not data:
            return
        if self._after_cr:
            data = data.removeprefix(b"\n")
        self._after_cr = data.endswith(b"\r")
        lines = data.splitlines()
        last = lines.pop() if lines and not data.endswith((b"\n", b"\r")) else b""
        for line in lines:
            if self._begun:
                whole, self._partial, self._begun = b"".join([*self._partial, line]), [], 0
            else:
                whole = line
            event = self._line(whole)
            if event is not None:
                yield event
        if last:
            self._partial.append(last)
            self._begun += len(last)
            self._check(self._begun, comment=self._partial[0].startswith(_COMMENT))

    def _line(self, line: bytes) -> Event | None:
        """Read one line; the event, if it is the blank one that ends it."""
        if not line:
            return self._ended()
        comment = line.startswith(_COMMENT)
        self._check(len(line), comment=comment)
        if not comment:
            self._size += len(line)
            field, _, value = line.partition(b":")
            self._keep(field, value.removeprefix(b" "))
        return None

    def _keep(self, field: bytes, value: bytes) -> None:
        if field == b"data":
            self._data.append(value)
        elif field == b"error":
            self._data.append(value)
            self._name = "error"
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"id" and b"\0" not in value:
            self.last_id = value.decode("utf-8", "replace")
        elif field == b"retry" and value.isdigit() and len(value) <= _LONGEST_RETRY:
            self.retry = int(value)

    def _ended(self) -> Event | None:
        data, name = self._data, self._name
        self._size, self._data, self._name = 0, [], ""
        return Event(b"\n".join(data), name) if data else None

    def _check(self, size: int, *, comment: bool) -> None:
        if size + (0 if comment else self._size) > self._most:
            self._most, self._data = -1, []  # so that all that may still come is refused as well
            raise EventTooLong(self._complaint)
