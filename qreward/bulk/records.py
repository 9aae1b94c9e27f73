"""The records of a journal."""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from qreward.bulk.budget import NOTHING, Spent

FORMAT = "qreward journal 3"
STARTED, DONE, FAILED, WITHDRAWN, BATCH = "SDFCB"


class Record(NamedTuple):
    """A record, without its checksum. ``content`` is a result or the event of a provider batch, as JSON."""

    kind: str
    number: int
    digest: int
    spent: Spent
    content: bytes


def encode(kind: str, number: int, digest: int = 0, spent: Spent = NOTHING, content: bytes = b"null") -> bytes:
    """Return the line of a record. ``content`` must be JSON without line breaks."""
    found = b'["%b",%d,%d,%d,%r,%b' % (kind.encode(), number, digest, spent.tokens, spent.cost, content)
    return b"%b,%d]\n" % (found, crc32(found))


def decode(line: bytes) -> Record | None:
    """Return the record in a line; None if the line is incomplete or damaged."""
    found, _, checksum = line.rpartition(b",")
    if checksum != b"%d]\n" % crc32(found) or not found.startswith(b'["'):
        return None
    kind, number, digest, tokens, cost, content = found[1:].split(b",", 5)
    return Record(kind[1:-1].decode(), int(number), int(digest), Spent(int(tokens), float(cost)), content)
