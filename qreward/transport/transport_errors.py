"""The errors of connections, with one message each for all backends, and ``read_whole``, which reads a body up to a size limit.

A message must not contain the text of a library's exception, which may hold a URL or headers. ``read_whole`` is not for the hot path.
"""

from __future__ import annotations

import errno

from qreward.codecs.base import Reply, TransportError
from qreward.transport.base import ByteStream

_LOCAL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")
"""OpenSSL's reasons for an answer to the ClientHello that is not TLS."""


def is_local(error: BaseException) -> bool:
    """Return True if this machine, not the endpoint, caused the error: it has no file descriptors, buffers or memory left."""
    return isinstance(error, OSError) and error.errno in _LOCAL


def no_room(reason: str) -> TransportError:
    return TransportError(f"this machine cannot open another connection ({reason}); raise `ulimit -n`", sent=False, local=True)


def closed() -> TransportError:
    return TransportError("the client was closed before the request was sent; make a new one", sent=False)


def no_connection(reason: str, advice: str = "check base_url, and that the server is up") -> TransportError:
    return TransportError(f"no connection ({reason}); {advice}", sent=False)


def not_tls() -> TransportError:
    return no_connection("the server does not speak TLS at this port", "write base_url with http://, or with the port for https")


def no_connection_in_time() -> TransportError:
    return TransportError("no connection within timeouts.connect; check base_url, and that the server is up", sent=False, timeout=True)


def silence() -> TransportError:
    return TransportError("no data for longer than timeouts.read", timeout=True)


def not_http(reason: str) -> TransportError:
    return TransportError(f"the answer is not proper HTTP ({reason})", malformed=True)


def too_long(cap: int) -> TransportError:
    return TransportError(f"the answer is longer than max_response_bytes ({cap}); raise it, or ask for less", malformed=True)


def broken(reason: str) -> TransportError:
    return TransportError(f"the connection broke before the answer was complete ({reason})")


async def read_whole(stream: ByteStream, cap: int) -> Reply:
    """Return the whole response, whose body may have ``cap`` bytes at most. Raises ``TransportError``. The stream is always closed."""
    pieces, size = [], 0
    try:
        while piece := await stream.read():
            pieces.append(piece)
            size += len(piece)
            if size > cap:
                raise too_long(cap)
        return Reply(stream.status, stream.headers, b"".join(pieces))
    finally:
        await stream.aclose()
