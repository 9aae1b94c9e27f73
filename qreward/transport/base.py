"""The seams of the wire: ``Transport`` moves bytes, ``Codec`` turns a call into bytes and bytes into an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from qreward.codecs.base import Reply


class ByteStream(Protocol):
    """An HTTP answer whose body is still to come. ``headers`` is case-insensitive. One task reads at a time."""

    status: int
    headers: Mapping[str, str]

    async def read(self) -> bytes:
        """What has come since the last time, waiting for at least one byte; ``b""`` at the end of the body.

        Raises ``TransportError``. Then, and on cancellation, the connection is closed.
        """

    async def drain(self, seconds: float) -> None:
        """Give the connection back for other requests if the body ends within so many seconds, else close it. Raises nothing."""

    async def aclose(self) -> None:
        """Leave. The connection is closed at once, unless the body was read to its end. May be called again, and while another reads."""


class Transport(Protocol):
    """Connections to one endpoint, of one event loop."""

    async def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Reply:
        """POST once, never silently twice. Raises ``TransportError``; on cancellation the connection is closed."""

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        """GET, with the endpoint's headers. Raises ``TransportError``; on cancellation the connection is closed."""

    async def stream(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> ByteStream:
        """As ``post``, but returns as soon as status and headers are there."""

    async def aclose(self) -> None:
        """Close all connections."""
