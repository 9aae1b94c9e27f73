"""The records of a journal are lines of text. Each has a checksum. This module does no I/O.

::

    <crc32> S<ordinal> <digest> <tokens> <cost>             the line was sent; tokens and cost are its maximum
    <crc32> D<ordinal> <digest> <tokens> <cost> <result>    the line succeeded; the result is a line of the output
    <crc32> F<ordinal> <digest> <tokens> <cost> <result>    the line failed
    <crc32> C<ordinal> <digest> <tokens> <cost>             the line is no longer in flight and has no result
    <crc32> B<number> <JSON>                                an event of a provider batch: its lines, its identifier, or its end
    <crc32> I<ordinal> <JSON>                               a block of the input that begins with this line
    <crc32> K<offset> <JSON>                                a summary of all records from this offset of the file to here

The first record is the header: a JSON object with the settings that all runs on the journal share. An ordinal is the position of a line in
the input, counted from 0. The digest is the hash of the line. A cost is in US dollars, or 0 if no endpoint has a price.
"""

from __future__ import annotations

import sys
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from zlib import crc32

import msgspec

from qreward.bulk.budget import Spent

FORMAT = "qreward journal 2"
STARTED, DONE, FAILED, WITHDRAWN, BATCH, BLOCK, SUMMARY = b"SDFCBIK"


def record(content: bytes) -> bytes:
    return b"%08x %b\n" % (crc32(content), content)


def line_record(kind: int, ordinal: int, digest: int, spent: Spent, result: bytes | None = None) -> bytes:
    """Return a record of one line. Only ``DONE`` and ``FAILED`` have a result.

    Example:
        >>> line_record(STARTED, 7, 255, Spent(12))[9:]
        b'S000000000007 00000000000000ff 12 0.0\\n'
    """
    content = b"%c%012d %016x %d %r" % (kind, ordinal, digest, spent.tokens, spent.cost)
    return record(content if result is None else b"%b %b" % (content, result))


def is_valid(found: bytes | memoryview) -> bool:
    """Return whether the checksum of a record matches. The record is passed without its line break."""
    try:
        return int(bytes(found[:8]), 16) == crc32(memoryview(found)[9:])
    except ValueError:
        return False


def number_of(found: bytes) -> int:
    """Return the number after the letter of a record: an ordinal, the number of a batch, or an offset."""
    return int(found[10:22])


def digest_of(found: bytes) -> int:
    return int(found[23:39], 16)


def spent_of(found: bytes) -> Spent:
    _, _, _, tokens, cost = found.split(b" ", 5)[:5]
    return Spent(int(tokens), float(cost))


def content_of(found: bytes) -> bytes:
    """Return the JSON of a record of a batch, a block or a summary."""
    return found[23:]


def result_of(found: bytes) -> bytes:
    """Return the result in a record, which is a line of the output."""
    return found.split(b" ", 5)[5]


class BlockMark(NamedTuple):
    """Position, size and hash of a block of the input. A later run compares these values to see whether the block has changed.

    Attributes:
        first: ordinal of the block's first line.
        lines: number of lines that are not blank.
        rows: number of line breaks.
        size: number of bytes.
        digest: 128-bit hash of these bytes, in hexadecimal.
    """

    first: int
    lines: int
    rows: int
    size: int
    digest: str


class Summary(msgspec.Struct):
    """A summary of one part of a journal. With a summary, the records of the part need not be read one by one.

    Attributes:
        crc: CRC-32 of the part.
        results: three little-endian 64-bit numbers for each result, in base64. The first is the ordinal. The second is twice the offset of
            the record, plus 1 if the line succeeded. The third is the digest.
        others: offsets of the records of provider batches and blocks.
        spent: tokens and cost from the beginning of the journal to the end of the part. The lines in ``started`` are not included.
        started: the lines that were sent and have no result: ordinal, tokens and cost of each.
    """

    crc: int
    results: str
    others: list[int]
    spent: Spent
    started: list[tuple[int, int, float]]

    def triples(self) -> tuple[array[int], array[int], array[int]]:
        """Return the columns of ``results``."""
        numbers = _little_endian(array("Q", b64decode(self.results)))
        return numbers[0::3], numbers[1::3], numbers[2::3]


def summary_record(begin: int, crc: int, results: array[int], others: list[int], spent: Spent, started: Mapping[int, Spent]) -> bytes:
    """Return a summary record. It summarizes all records of the journal from the offset ``begin`` to the place of the summary record."""
    text = b64encode(_little_endian(results).tobytes()).decode()
    left = [(ordinal, most.tokens, most.cost) for ordinal, most in started.items()]
    return record(b"K%012d %b" % (begin, msgspec.json.encode(Summary(crc, text, others, spent, left))))


def summaries_in(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each summary record in ``data``, which must begin with a record."""
    found = data.find(_BEGIN_OF_SUMMARY)  # ``find`` is many times as fast as a regular expression
    while found >= 0 and (end := data.find(b"\n", found)) >= 0:
        begin = found - 22
        if data[begin - 1 : begin] == b"\n" and data[begin + 9] == SUMMARY:  # if not, the text is part of a result
            yield begin, end
        found = data.find(_BEGIN_OF_SUMMARY, end)


def read_summary(found: bytes) -> Summary:
    return _SUMMARY.decode(content_of(found))


_BEGIN_OF_SUMMARY = b' {"crc":'
_SUMMARY = msgspec.json.Decoder(Summary)


def _little_endian(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers
