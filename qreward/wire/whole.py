"""Reads an answer that comes in pieces to its end, up to a cap. For what is not on the hot path."""

from __future__ import annotations

from qreward.wire import troubles
from qreward.wire.base import ByteStream, Reply


async def read_whole(stream: ByteStream, cap: int) -> Reply:
    """The whole answer, of at most ``cap`` bytes. Raises ``TransportError``; the stream is left in any case."""
    pieces, size = [], 0
    try:
        while piece := await stream.read():
            pieces.append(piece)
            size += len(piece)
            if size > cap:
                raise troubles.too_long(cap)
        return Reply(stream.status, stream.headers, b"".join(pieces))
    finally:
        await stream.aclose()
