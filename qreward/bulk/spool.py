"""The file of one provider batch, on disk: its requests as they are uploaded, and what is needed of each line when its result arrives.

A batch can hold 200 MB of requests and take a day, so memory holds 60 bytes of a line. Knows nothing of HTTP and of what a result means.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO

import msgspec

from qreward.records import AttemptRecord

PIECE = 1 << 20
"""Bytes of a file that are read at once."""


class SpooledLine(msgspec.Struct):
    """What is kept of a line beside its request.

    Attributes:
        ordinal, digest, custom_id, place: as of an :class:`~qreward.bulk.batches.Entry`.
        tokens, cost: what is reserved for it.
        inputs: inputs of an embeddings request.
        attempts: those that failed.
    """

    ordinal: int
    digest: int
    custom_id: str
    place: str
    tokens: int = 0
    cost: float = 0.0
    inputs: int = 1
    attempts: list[AttemptRecord] = []


def _file(folder: Path) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder)  # closed with the spool


_LINE = msgspec.msgpack.Decoder(SpooledLine)


class Spool:
    """The lines of one file, in the order in which they were added. Its temporary files disappear when it is closed.

    Args:
        folder: where the temporary files are made.

    Attributes:
        size: bytes of the requests.
        inputs: inputs of all lines.
        ordinals, digests, tokens, costs: of all lines.

    Example:
        >>> spool = Spool(Path("."))
        >>> spool.add(SpooledLine(7, 1, "id-7", "in.jsonl:8"), b"{}")
        >>> spool.take(7).place, spool.take(7), len(spool)
        ('in.jsonl:8', None, 1)
        >>> spool.close()
    """

    def __init__(self, folder: Path) -> None:
        self._files = _file(folder), _file(folder)  # requests, lines
        self.size = self.inputs = 0
        self.ordinals, self.digests, self.tokens, self.costs = array("Q"), array("Q"), array("Q"), array("d")
        self._ends = array("Q", [0]), array("Q", [0])  # of requests and of lines, each with the beginning of the first
        self._order: array[int] | None = None
        self._taken = bytearray()

    def __len__(self) -> int:
        return len(self.ordinals)

    @property
    def left(self) -> int:
        """Lines that were not taken."""
        return len(self) - sum(self._taken)

    def add(self, line: SpooledLine, request: bytes) -> None:
        """Add a line. Raises ``OSError`` if the disk is full."""
        content = msgspec.msgpack.encode(line)
        for file, ends, data in zip(self._files, self._ends, (request, content), strict=True):
            file.write(data)
            ends.append(ends[-1] + len(data))
        self.size += len(request)
        self.inputs += line.inputs
        self.ordinals.append(line.ordinal)
        self.digests.append(line.digest)
        self.tokens.append(line.tokens)
        self.costs.append(line.cost)
        self._taken.append(0)
        self._order = None

    def take(self, ordinal: int) -> SpooledLine | None:
        """Return a line by its ordinal, once; None if it is not here or was taken."""
        position = self._position(ordinal)
        return None if position is None else self._take_at(position)

    def _take_at(self, position: int) -> SpooledLine | None:
        if self._taken[position]:
            return None
        self._taken[position] = 1
        return _LINE.decode(self._read(1, position))

    def take_rest(self) -> Iterator[SpooledLine]:
        """Take all lines that are left."""
        for position in range(len(self)):
            if (line := self._take_at(position)) is not None:
                yield line

    def request(self, ordinal: int) -> bytes:
        """Return the request of a line that was taken."""
        position = self._position(ordinal)
        assert position is not None
        return self._read(0, position)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the requests as one text."""
        self._files[0].flush()
        offset = 0
        while piece := os.pread(self._files[0].fileno(), PIECE, offset):
            yield piece
            offset += len(piece)

    def _position(self, ordinal: int) -> int | None:
        if self._order is None:
            self._order = array("I", sorted(range(len(self)), key=self.ordinals.__getitem__))
        place = bisect_left(self._order, ordinal, key=self.ordinals.__getitem__)
        found = place < len(self) and self.ordinals[self._order[place]] == ordinal
        return self._order[place] if found else None

    def _read(self, which: int, position: int) -> bytes:
        file = self._files[which]
        file.flush()
        begin, end = self._ends[which][position : position + 2]
        return os.pread(file.fileno(), end - begin, begin)

    def close(self) -> None:
        for file in self._files:
            file.close()
