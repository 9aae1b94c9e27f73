"""The lines of one provider batch, stored on disk.

The disk holds the requests to upload. It also holds the details of each line, which are needed when the result of the line arrives. A batch
can hold 200 MB of requests and take a day, so only about 60 bytes per line are kept in memory. This module makes no HTTP requests and does
not interpret results.
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
"""Number of bytes of a file that are read at once."""


class SpooledLine(msgspec.Struct):
    """The details of a line, without its request.

    Attributes:
        ordinal, digest, custom_id, place: as in :class:`~qreward.bulk.batches.Entry`.
        tokens, cost: the tokens and US dollars that are reserved for the line.
        inputs: number of inputs of an embeddings request; 1 for any other request.
        attempts: the failed attempts of the line.
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
    """Stores the lines of one provider batch on disk, in the order in which they were added. ``close`` removes the temporary files.

    Args:
        folder: folder for the temporary files.

    Attributes:
        size: total bytes of the requests.
        inputs: total inputs of the lines.
        ordinals, digests, tokens, costs: these fields of all lines, as arrays.

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
        self._ends = array("Q", [0]), array("Q", [0])  # a first 0, then the offset where each request (or each line) ends
        self._order: array[int] | None = None
        self._taken = bytearray()

    def __len__(self) -> int:
        return len(self.ordinals)

    @property
    def left(self) -> int:
        """The number of lines that were not taken."""
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
        """Return the line with this ordinal; None if the spool has no such line, or if the line was taken before."""
        position = self._position(ordinal)
        return None if position is None else self._take_at(position)

    def _take_at(self, position: int) -> SpooledLine | None:
        if self._taken[position]:
            return None
        self._taken[position] = 1
        return _LINE.decode(self._read(1, position))

    def take_rest(self) -> Iterator[SpooledLine]:
        """Yield each line that was not taken before. A line counts as taken once it is yielded."""
        for position in range(len(self)):
            if (line := self._take_at(position)) is not None:
                yield line

    def request(self, ordinal: int) -> bytes:
        """Return the request of the line with this ordinal."""
        position = self._position(ordinal)
        assert position is not None
        return self._read(0, position)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the content of the file to upload, in pieces of 1 MB."""
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
