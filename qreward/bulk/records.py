"""The records of a journal. Each is a line with a JSON array. This module does no I/O.

::

    ["S", ordinal, digest, tokens, cost, null, checksum]       the line was sent; tokens and cost are its maximum
    ["D", ordinal, digest, tokens, cost, result, checksum]     the line succeeded; the result is a line of the output
    ["F", ordinal, digest, tokens, cost, result, checksum]     the line failed
    ["C", ordinal, digest, tokens, cost, null, checksum]       the line is no longer in flight and has no result
    ["B", number, 0, tokens, cost, event, checksum]            an event of a provider batch: its lines, its identifier, or its end

An ordinal is the position of a line in the input, counted from 0. The digest is the hash of the line. A cost is in US dollars, or 0 if no
endpoint has a price. The checksum is the CRC-32 of all that precedes it. The first line of a journal is not a record but the header: a JSON
object with the settings that all runs share.
"""

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
    """Return the line of a record. ``content`` must be JSON without line breaks.

    Example:
        >>> encode(STARTED, 7, 255, Spent(12))
        b'["S",7,255,12,0.0,null,1264012585]\\n'
    """
    found = b'["%b",%d,%d,%d,%r,%b' % (kind.encode(), number, digest, spent.tokens, spent.cost, content)
    return b"%b,%d]\n" % (found, crc32(found))


def decode(line: bytes) -> Record | None:
    """Return the record in a line; None if the line is incomplete or damaged.

    The content is not parsed, because parsers differ: a result with half a surrogate pair is JSON for some of them only.
    """
    found, _, checksum = line.rpartition(b",")
    if checksum != b"%d]\n" % crc32(found) or not found.startswith(b'["'):
        return None
    kind, number, digest, tokens, cost, content = found[1:].split(b",", 5)
    return Record(kind[1:-1].decode(), int(number), int(digest), Spent(int(tokens), float(cost)), content)
