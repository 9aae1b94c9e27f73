"""The types shared by codecs and transports: requests, replies and errors."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from qreward.results import Answered

RESERVED = frozenset({"model", "messages", "input"})
"""Names of the members of a request body that a codec writes from the model and the inputs of a call. No parameter may have one of these
names. A ``ListCodec`` reserves further names."""


class WireRequest(msgspec.Struct, eq=False):
    """Holds the content of one request, before an endpoint is chosen for it: the ``call`` of codecs and backends, the payload of a task."""

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


class Codec:
    """Encodes and decodes one kind of request, such as a chat completion. ``path`` is the path of the API. It is relative to ``base_url``,
    or to the root of the server if ``native`` is true."""

    path: str = ""
    native: bool = False

    def encode(self, call: WireRequest, model: str) -> bytes:
        """Return the JSON body. ``model`` is the model's name at the server. Raises ``BadRequest`` if JSON cannot represent a value."""
        raise NotImplementedError

    def decode(self, body: bytes, call: WireRequest) -> Answered:
        """Return the decoded response. Raises ``Malformed``, ``EmbeddedError`` or ``Unfinished``."""
        raise NotImplementedError

    def validate(self, inputs: Any) -> Any:
        """Return the inputs in a form that ``encode`` accepts. Raises ``BadRequest``, which becomes the error of an item of a batch."""
        return inputs

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        """Return a rough estimate of the prompt tokens and the maximum output tokens of a call."""
        raise NotImplementedError


class Unbound(Codec):
    """Base of codecs in whose place another one encodes the request when an endpoint is chosen; see ``rewards.kinds.bound``."""


class Malformed(Exception):
    """The body is not a valid response. The message describes the fault."""


class Ignored(Malformed):
    """The server has ignored a part of the request, or does not do what the request needs. It would do so again."""


class EmbeddedError(Exception):
    """The body contains an ``error`` although the status is 2xx."""

    def __init__(self, body: object) -> None:
        super().__init__("error in a successful answer")
        self.body = body


class Unfinished(Exception):
    """The response is incomplete. ``ending`` is the ``finish_reason`` of the incomplete choice."""

    def __init__(self, ending: str) -> None:
        super().__init__(described(ending))
        self.ending = ending


class WithoutText(msgspec.Struct, gc=False):
    """Base of decoded responses that have no text."""

    def text(self) -> str:
        return ""


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
        self.sent, self.timeout, self.local, self.malformed = sent, timeout, local, malformed


# what a finish_reason means

LENGTH = "length"
"""The ``finish_reason`` of a response that was cut off at the token limit of the request."""
WORDS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
ABORTED, WITHHELD, _WHOLE, _CUT = (frozenset(WORDS["finish_reasons"][kind]) for kind in ("aborted", "withheld", "whole", "cut"))
"""Values of ``finish_reason`` that mean that the server aborted the generation, or withheld a part of the response."""
_SHOWN = 40  # maximum number of characters of a reason in an error message
_MEANINGS = {
    LENGTH: "cut off at its token limit (raise max_tokens)",
    **dict.fromkeys(WITHHELD, "a part withheld by the server's content filter"),
    **dict.fromkeys(ABORTED, "given up by the server before its end"),
}


def ending_of(reason: object) -> str | None:
    """Return a finish reason in lower case, or None if there is no reason. Reasons that mean ``length`` become ``"length"``. Of a reason
    with two parts, such as Gemini's ``content_filter: RECITATION``, the part that means a failure is returned."""
    if isinstance(reason, dict):
        reason = reason.get("type", "unknown")
    if reason is None:
        return None
    ending = str(reason).strip().lower()
    ending = next(filter(is_failure, ending.split(": ")), ending)
    return None if ending in ("", "null") else LENGTH if ending in _CUT else ending


def is_whole(ending: str | None) -> bool:
    return ending is None or ending in _WHOLE


def is_failure(ending: str | None) -> bool:
    return ending in ABORTED or ending in WITHHELD


def described(ending: str | None) -> str:
    shown = str(ending)[:_SHOWN]
    meaning = _MEANINGS.get(shown, "which is not known to end a complete answer")
    return f"finish_reason {shown!r}, {meaning}"
