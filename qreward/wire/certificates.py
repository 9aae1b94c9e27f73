"""What a TLS server shows of itself, valid or not: the version it speaks, and how long its certificate lasts.

Whether the certificate is to be trusted is not decided here: the transport does that.
"""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime

import msgspec

_UTC_TIME = 0x17
_VERSION = 0xA0


class Tls(msgspec.Struct, frozen=True):
    """One handshake.

    Attributes:
        version: such as ``TLSv1.3``.
        expires: when the certificate ends, or None if it cannot be read.
    """

    version: str
    expires: datetime | None

    def days(self, now: datetime) -> float | None:
        """Days that are left; negative once it has expired."""
        return None if self.expires is None else (self.expires - now).total_seconds() / 86400


async def shake_hands(host: str, port: int) -> Tls | None:
    """Connect once, verify nothing, send nothing; None if there is no TLS server."""
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=_unverified(), server_hostname=host)
    except (OSError, ValueError):  # ssl.SSLError is the first, a host that cannot be one the second
        return None
    try:
        line: ssl.SSLObject = writer.get_extra_info("ssl_object")
        return Tls(line.version() or "?", _expiry(line.getpeercert(binary_form=True)))
    finally:
        writer.transport.abort()


def expiry(certificate: bytes) -> datetime:
    """``notAfter`` of an X.509 certificate in DER (RFC 5280, section 4.1). Raises ``ValueError`` or ``IndexError`` for what is none."""
    _, start, _ = _element(certificate, 0)
    _, at, _ = _element(certificate, start)
    if certificate[at] == _VERSION:
        at = _element(certificate, at)[2]
    for _ in ("serial number", "signature", "issuer"):
        at = _element(certificate, at)[2]
    _, begins, _ = _element(certificate, at)
    tag, start, end = _element(certificate, _element(certificate, begins)[2])
    text = certificate[start:end].decode("ascii")
    if tag == _UTC_TIME:  # whose years have two digits
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Tag of the element that begins there, and where its content begins and ends."""
    tag, length, start = der[at], der[at + 1], at + 2
    if length >= 0x80:
        size = length & 0x7F
        length, start = int.from_bytes(der[start : start + size], "big"), start + size
    if start + length > len(der):
        raise ValueError("the certificate is cut off")
    return tag, start, start + length


def _expiry(certificate: bytes | None) -> datetime | None:
    try:
        return expiry(certificate or b"")
    except (ValueError, IndexError):
        return None


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
