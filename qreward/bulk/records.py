"""The records of a journal: lines of text, each with a checksum. Pure.

::

    <crc32> S<ordinal> <digest> <tokens> <cost>             the line was sent; it may cost so much
    <crc32> D<ordinal> <digest> <tokens> <cost> <result>    it is done, and has cost so much; the result is a line of the output
    <crc32> F<ordinal> <digest> <tokens> <cost> <result>    it failed
    <crc32> C<ordinal> <digest> <tokens> <cost>             it is not in flight any more, has no result, and has cost so much
    <crc32> B<number> <JSON>                                a provider batch: the lines that it holds, then its identifier, then its end
    <crc32> I<ordinal> <JSON>                               a block of the input that begins with this line
    <crc32> K<offset> <JSON>                                a summary of all records from this offset of the file to here

The first record is the header: a JSON object with what a run must have in common with those before it. An ordinal is the position of a line
in the input, from 0; the digest is that of the line. A cost is in US dollars, and 0 where no endpoint has a price.
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
    """Return a record of one line; ``result`` is that of ``DONE`` and ``FAILED``.

    Example:
        >>> line_record(STARTED, 7, 255, Spent(12))[9:]
        b'S000000000007 00000000000000ff 12 0.0\\n'
    """
    content = b"%c%012d %016x %d %r" % (kind, ordinal, digest, spent.tokens, spent.cost)
    return record(content if result is None else b"%b %b" % (content, result))


def is_valid(found: bytes | memoryview) -> bool:
    """Return whether a record, without line break, is as it was written."""
    try:
        return int(bytes(found[:8]), 16) == crc32(memoryview(found)[9:])
    except ValueError:
        return False


def number_of(found: bytes) -> int:
    """Return the ordinal, number or offset of a record."""
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
    """Return the result of a record, a line of the output."""
    return found.split(b" ", 5)[5]


class BlockMark(NamedTuple):
    """A block of the input by which a later run notices that it has not changed.

    Attributes:
        first: ordinal of its first line.
        lines: lines with content.
        rows: line breaks.
        size: bytes.
        digest: 128 bits of the hash of these bytes, as hexadecimal digits.
    """

    first: int
    lines: int
    rows: int
    size: int
    digest: str


class Summary(msgspec.Struct):
    """What a part of a journal says, so that its records need not be read one by one.

    Attributes:
        crc: CRC-32 of the part.
        results: base64 of three 64-bit numbers for each result: the ordinal, twice the place of its record plus 1 if it succeeded, and the
            digest; the low byte first.
        others: places of records of provider batches and blocks.
        spent: tokens and cost until here, without those of ``started``.
        started: lines without a result until here: ordinal, tokens, cost.
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
    """Return the record of a :class:`Summary` of what the journal holds from ``begin`` on."""
    text = b64encode(_little_endian(results).tobytes()).decode()
    left = [(ordinal, most.tokens, most.cost) for ordinal, most in started.items()]
    return record(b"K%012d %b" % (begin, msgspec.json.encode(Summary(crc, text, others, spent, left))))


def summaries_in(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where records of summaries begin and end. ``data`` begins with a record."""
    found = data.find(_BEGIN_OF_SUMMARY)  # many times as fast as a regular expression
    while found >= 0 and (end := data.find(b"\n", found)) >= 0:
        begin = found - 22
        if data[begin - 1 : begin] == b"\n" and data[begin + 9] == SUMMARY:  # else it is text of a result
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
