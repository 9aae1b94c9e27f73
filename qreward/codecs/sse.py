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

    __slots__ = ("_after_cr", "_data", "_most", "_name", "_partial", "_pending", "_size", "_start", "_too_long")

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._too_long = f"an event of the stream is longer than {most_bytes} bytes"
        self._start: bytes | None = b""  # possible beginning of a byte order mark; None after the first bytes
        self._partial: list[bytes] = []  # pieces of an incomplete line
        self._pending = 0  # total bytes of the pieces in ``_partial``
        self._after_cr = False
        self._data: list[bytes] = []
        self._name = ""
        self._size = 0  # bytes of the lines of the event so far

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield the events that these bytes complete. The caller must iterate to the end before the next call. Raises ``EventTooLong``."""
        if self._start is not None:
            data = self._after_mark(data)
        if self._size or self._pending or self._after_cr:
            end = data.find(b"\n\n")
            end = len(data) if end < 0 else end + 2
            yield from self._lines(data[:end])
            data = data[end:]
        if data[:6] == b"data: " and data[-2:] == b"\n\n" and data.find(b"\n") == len(data) - 2 <= self._most and b"\r" not in data:
            yield Event(data[6:-2])  # the bytes are exactly one event, as in most reads
            return
        plain = data.replace(b"\r\n", b"\n") if b"\r" in data else data
        if b"\r" in plain:
            yield from self._lines(data)
            return
        *blocks, rest = plain.split(b"\n\n")
        for block in blocks:
            if block[:6] == b"data: " and b"\n" not in block and len(block) <= self._most:
                yield Event(block[6:])  # the usual event
            elif block:
                yield from self._lines(block + b"\n\n")
        if rest:
            yield from self._lines(rest)

    def finish(self) -> Iterator[Event]:
        """Yield the last event of a stream that ended without a blank line. Raises ``EventTooLong``."""
        held, self._start = self._start, None
        yield from self._lines((held or b"") + b"\n\n")

    def _after_mark(self, data: bytes) -> bytes:
        """Return the data without a byte order mark. Return ``b""`` as long as the bytes may be the beginning of a byte order mark."""
        data = (self._start or b"") + data
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._start = data
            return b""
        self._start = None
        return data.removeprefix(_BOM)

    def _lines(self, data: bytes) -> Iterator[Event]:
        if not data:
            return
        if self._after_cr:
            data = data.removeprefix(b"\n")
        self._after_cr = data.endswith(b"\r")
        lines = data.splitlines()
        last = lines.pop() if lines and not data.endswith((b"\n", b"\r")) else b""
        for line in lines:
            if self._pending:
                whole, self._partial, self._pending = b"".join([*self._partial, line]), [], 0
            else:
                whole = line
            if whole:
                self._take(whole)
            else:
                if self._data:
                    yield Event(b"\n".join(self._data), self._name)
                self._size, self._data, self._name = 0, [], ""
        if last:
            self._partial.append(last)
            self._pending += len(last)
            self._check(self._pending, comment=self._partial[0].startswith(b":"))

    def _take(self, line: bytes) -> None:
        comment = line.startswith(b":")
        self._check(len(line), comment=comment)
        if comment:
            return
        self._size += len(line)
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field in (b"data", b"error"):
            self._data.append(value)
        if field == b"error":
            self._name = "error"
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")

    def _check(self, size: int, *, comment: bool) -> None:
        if size + (0 if comment else self._size) > self._most:
            self._most, self._data = -1, []  # rejects all further data as well
            raise EventTooLong(self._too_long)
