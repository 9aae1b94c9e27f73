"""What passes between codecs and transports: a call, its reply, and the errors of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from qreward.codecs import finish_reason as endings
from qreward.results import Answered


class WireRequest:
    """One logical request, before it is known which endpoint takes it.

    Attributes:
        codec: how it is written and read.
        model: the model the caller asked for.
        inputs: messages of a chat, or the input of an embedding.
        params: everything else of the JSON body, as the caller gave it.
        headers: extra headers of this call, or None.
    """

    __slots__ = ("codec", "headers", "inputs", "model", "params")

    def __init__(self, codec: Codec, model: str, inputs: Any, params: Mapping[str, Any], headers: Mapping[str, str] | None) -> None:
        self.codec = codec
        self.model = model
        self.inputs = inputs
        self.params = params
        self.headers = headers


class Codec(Protocol):
    """One kind of request, such as a chat completion. Stateless."""

    path: str
    """Path under the endpoint's base URL, such as ``/chat/completions``."""

    def encode(self, call: WireRequest, model: str) -> bytes:
        """The JSON body, ``model`` being the server's name for it. Raises ``BadRequest`` for what JSON cannot hold."""

    def decode(self, body: bytes, call: WireRequest) -> Answered:
        """The answer to a call. Raises ``Malformed`` if this is none, ``EmbeddedError`` if it is an error in disguise, ``Unfinished`` if
        it ended in a way that the codec does not take."""

    def validate(self, inputs: Any) -> Any:
        """The inputs, ready to be sent. Raises ``BadRequest`` for a wrong shape, saying where and what to change."""

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        """Rough (prompt, most output) tokens of a call, to reserve before it is sent."""


class Malformed(Exception):
    """A body that is not an answer; the message says what is wrong with it."""


class EmbeddedError(Exception):
    """A body that carries an ``error`` although its status says success."""

    def __init__(self, body: object) -> None:
        super().__init__("error in a successful answer")
        self.body = body


class Unfinished(Exception):
    """An answer that is not whole, by how one of its choices ended.

    Attributes:
        ending: the ``finish_reason``.
    """

    def __init__(self, ending: str) -> None:
        super().__init__(endings.described(ending))
        self.ending = ending


class Reply:
    """A complete HTTP answer. ``headers`` is case-insensitive."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


class TransportError(Exception):
    """No complete answer. The message says what happened without naming secrets.

    Attributes:
        sent: False only if the request was certainly not processed.
        timeout: a time limit of the transport passed.
        local: our own machine is at fault (no file descriptor left).
        malformed: the peer does not speak HTTP properly, or its answer is too large.
    """

    def __init__(self, message: str, *, sent: bool = True, timeout: bool = False, local: bool = False, malformed: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        self.timeout = timeout
        self.local = local
        self.malformed = malformed
