"""The faults of a fake endpoint. ``FAULTS`` maps each name of a fault in ``Faults`` to the behaviour of the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from qreward.testing.openai_api import error

BLANKS = b" \r\n\t\n" * 200
MALFORMED = b"<html><body><h1>Service page</h1></body></html>"
UPSTREAM_FAILED = error("Provider returned error", "upstream_error", 502)
TRICKLE_BYTES = 16
_NOISE = (b": keep-alive\n\n", b"\n", b"no field of any kind\n", b"x-unknown: 1\r\n", b"id: 7\r\n\r\n", b"retry: 1000\r", b":\r\r")


class Fault(NamedTuple):
    """Describes the behaviour of the server in a fault. A fault occurs at once, or while the server sends the body of the response."""

    at_once: bool = False
    status: int = 200
    then: Literal["answer", "reset", "hang_up", "wait"] = "answer"
    cut: bool = False
    body: bytes | None = None
    content_type: str = "application/json"
    prefix: bytes = b""
    pieces: int = 0
    tail: bytes | None = None
    noise: tuple[bytes, ...] = ()
    fails: bool = True


NO_FAULT = Fault(fails=False)
FAULTS: Mapping[str, Fault] = {
    "reset": Fault(at_once=True, then="reset"),
    "error_500": Fault(at_once=True, status=500),
    "error_503": Fault(at_once=True, status=503),
    "hang": Fault(at_once=True, then="wait"),
    "truncated": Fault(cut=True, tail=b""),
    "error_in_200": Fault(body=UPSTREAM_FAILED, tail=b"data: " + UPSTREAM_FAILED + b"\n\n"),
    "cut": Fault(cut=True, then="hang_up", tail=b""),
    "malformed": Fault(body=MALFORMED, content_type="text/html", tail=b'data: {"id": "chatcmpl-\n\n'),
    "stall": Fault(cut=True, then="wait", tail=b""),
    "slow_trickle": Fault(pieces=TRICKLE_BYTES, fails=False),
    "noise": Fault(prefix=BLANKS, noise=_NOISE, fails=False),
}
