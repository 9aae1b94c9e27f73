"""An incremental parser of server-sent events."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

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
