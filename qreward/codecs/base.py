"""The types shared by codecs and transports: requests, replies and errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol
from zlib import crc32

import msgspec

from qreward.codecs import finish_reason
from qreward.results import Answered

RESERVED = frozenset({"model", "messages", "input"})
"""Names of the members of a request body that a codec writes from the model and the inputs of a call. No parameter may have one of these
names. A ``ListCodec`` reserves further names."""


class WireRequest(msgspec.Struct, eq=False):
    """Holds one request of a caller, before an endpoint is chosen for the request."""

    codec: Codec
    model: str
    inputs: Any
    params: Mapping[str, Any]
    headers: Mapping[str, str] | None
    group: object = None
    level: int | None = None  # the priority of the task, which the scheduler sets if the endpoint is told of it

    __repr__ = object.__repr__  # shows neither headers nor prompts


def hash_of_group(group: object, start: int = 0) -> int:
    """Return a hash of a ``group`` that is equal in all processes. For nested groups, ``start`` is the hash of the outer groups."""
    return crc32(repr(group).encode("utf-8", "backslashreplace"), start)


class Codec(Protocol):
    """Encodes and decodes one kind of request, such as a chat completion. ``path`` is the path of the API."""

    path: str

    def encode(self, call: WireRequest, model: str) -> bytes:
        """Return the JSON body. ``model`` is the model's name at the server. Raises ``BadRequest`` if JSON cannot represent a value."""

    def decode(self, body: bytes, call: WireRequest) -> Answered:
        """Return the decoded response. Raises ``Malformed``, ``EmbeddedError`` or ``Unfinished``."""

    def validate(self, inputs: Any) -> Any:
        """Return the inputs in a form that ``encode`` accepts."""

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        """Return a rough estimate of the prompt tokens and the maximum output tokens of a call."""


class Unbound:
    """Base of codecs in whose place another one encodes the request when an endpoint is chosen; see ``rewards.registry.bound``."""

    path = ""

    def encode(self, call: WireRequest, model: str) -> bytes:  # noqa: ARG002 - as all codecs have it
        raise TypeError("the body depends on the endpoint; bind the call to an endpoint first")

    def decode(self, body: bytes, call: WireRequest) -> Any:  # noqa: ARG002 - as all codecs have it
        raise TypeError("the response depends on the endpoint; bind the call to an endpoint first")


class Malformed(Exception):
    """The body is not a valid response. The message describes the fault."""


class EmbeddedError(Exception):
    """The body contains an ``error`` although the status is 2xx."""

    def __init__(self, body: object) -> None:
        super().__init__("error in a successful answer")
        self.body = body


class Unfinished(Exception):
    """The response is incomplete. ``ending`` is the ``finish_reason`` of the incomplete choice."""

    def __init__(self, ending: str) -> None:
        super().__init__(finish_reason.described(ending))
        self.ending = ending


def with_priority(body: bytes, call: WireRequest) -> bytes:
    """Return the JSON body of a request with the member ``priority``, unless the caller has set it."""
    if call.level is None or "priority" in (call.params or ()):
        return body
    return b'%b,"priority":%d}' % (body[:-1], call.level)


class Reply(msgspec.Struct, eq=False):
    """Holds a complete HTTP response. The names in ``headers`` are case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    __repr__ = object.__repr__


class TransportError(Exception):
    """No complete response was received. The message contains no secrets."""

    def __init__(self, message: str, *, sent: bool = True, timeout: bool = False, local: bool = False, malformed: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        self.timeout = timeout
        self.local = local
        self.malformed = malformed
