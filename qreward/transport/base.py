"""The interfaces of HTTP backends: ``HttpTransport`` sends requests and ``ByteStream`` reads a response body. They move bytes only.

Codecs (``qreward.codecs.base.Codec``) turn requests into bytes and bytes into answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from qreward.codecs.base import Reply


class ByteStream(Protocol):
    """An HTTP response whose body has not been read yet. ``headers`` is case-insensitive. One task reads at a time."""

    status: int
    headers: Mapping[str, str]

    async def read(self) -> bytes:
        """Return the bytes that have arrived since the last call, waiting for at least one; ``b""`` at the end of the body.

        Raises ``TransportError``. In that case, and on cancellation, the connection is closed.
        """

    async def drain(self, seconds: float) -> None:
        """Release the connection for other requests if the body ends within ``seconds``, else close it. Raises nothing."""

    async def aclose(self) -> None:
        """Close the stream. The connection is closed immediately, unless the body was read to its end.

        Can be called more than once, and while another task reads.
        """


class HttpTransport(Protocol):
    """Connections to one endpoint, in one event loop."""

    async def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Reply:
        """POST exactly once, without automatic retries. Raises ``TransportError``. On cancellation the connection is closed."""

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        """GET, with the endpoint's headers. Raises ``TransportError``; on cancellation the connection is closed."""

    async def stream(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> ByteStream:
        """As ``post``, but returns as soon as the status and headers have arrived."""

    async def aclose(self) -> None:
        """Close all connections."""
