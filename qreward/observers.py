"""Observers receive an immutable event for each step of a client's calls: ``QRewardClient(..., observers=[mine])``.

The first event of a call is ``call_started``, and the last is ``call_ended``, except that a hedged attempt that loses may end later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Literal

import msgspec

from qreward.errors import QRewardError

AttemptType = Literal["original", "retry", "hedge"]
AttemptOutcome = Literal["won", "failed", "cancelled", "discarded"]
"""``cancelled``: the caller stopped it, or another attempt had won. ``discarded``: it was answered after another attempt had won."""
CallOutcome = Literal["ok", "failed", "cancelled"]


class CallStarted(msgspec.Struct, frozen=True, gc=False):
    """A call started, and may still wait in the queue. For an item of a batch, the call starts when the item is first sent.

    Attributes:
        call: number of the call, unique in this process and the same in all events of the call.
        operation: such as ``chat`` or ``embeddings``.
        model, route: the requested model, and the pattern of its route.
        streamed: True if the response is streamed.
    """

    call: int
    operation: str
    model: str
    route: str
    streamed: bool


class AttemptStarted(msgspec.Struct, frozen=True, gc=False):
    """A request is about to be sent to an endpoint. ``number`` is that of the attempt within the call, from 1."""

    call: int
    number: int
    type: AttemptType
    endpoint: str


class FirstChunk(msgspec.Struct, frozen=True, gc=False):
    """The first chunk of a streamed response was received, so many seconds after the start of the call."""

    call: int
    endpoint: str
    seconds: float


class AttemptEnded(msgspec.Struct, frozen=True, gc=False):
    """An attempt ended. ``seconds`` is its duration, and ``status_code`` that of a failure, if there was a response."""

    call: int
    number: int
    type: AttemptType
    endpoint: str
    outcome: AttemptOutcome
    seconds: float
    status_code: int | None = None
    error: QRewardError | None = None


class CallEnded(msgspec.Struct, frozen=True, gc=False):
    """A call ended.

    Attributes:
        endpoint: name of the endpoint that responded, or None.
        seconds: from start to end, including the time in the queue and all attempts.
        queued: seconds before the first attempt; equal to ``seconds`` if there was no attempt.
        hedges: number of attempts that were sent while another attempt of the call was in flight.
        prompt_tokens, completion_tokens: tokens, as reported by the server.
        error: the exception that the caller receives, or None.
    """

    call: int
    operation: str
    model: str
    route: str
    outcome: CallOutcome
    endpoint: str | None
    seconds: float
    queued: float
    attempts: int
    hedges: int
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    error: BaseException | None = None


class Observer:
    """Base class of observers. Any other object with some of these methods works as well.

    The methods run in the event loop of the call, so they must be fast and must not block. If one raises, a warning is logged and the
    observer is not called again; the call is not affected.

    Example:
        >>> class Slow(Observer):
        ...     def call_ended(self, event: CallEnded) -> None:
        ...         if event.seconds > 30:
        ...             print(f"{event.model} took {event.seconds:.0f} s over {event.attempts} attempts")
    """

    def call_started(self, event: CallStarted, /) -> None:
        """Called when a call starts."""

    def attempt_started(self, event: AttemptStarted, /) -> None:
        """Called when an attempt is about to be sent."""

    def first_chunk(self, event: FirstChunk, /) -> None:
        """Called for the first chunk of a streamed response."""

    def attempt_ended(self, event: AttemptEnded, /) -> None:
        """Called when an attempt ends."""

    def call_ended(self, event: CallEnded, /) -> None:
        """Called when a call ends."""


class MetricsCallback(Observer):
    """Calls a function at the end of each call with a mapping of the fields of :class:`CallEnded`; ``error`` is the name of its class.

    Example:
        >>> seen = []
        >>> MetricsCallback(seen.append).call_ended(CallEnded(1, "chat", "m", "*", "ok", "gpu-0", 1.5, 0.1, 1, 0))
        >>> seen[0]["endpoint"], seen[0]["seconds"], seen[0]["error"]
        ('gpu-0', 1.5, None)
    """

    def __init__(self, callback: Callable[[Mapping[str, Any]], object]) -> None:
        self._callback = callback

    def call_ended(self, event: CallEnded, /) -> None:
        metrics = msgspec.structs.asdict(event)
        metrics["error"] = None if event.error is None else type(event.error).__name__
        self._callback(metrics)


CARRIED: ContextVar[Mapping[str, str] | None] = ContextVar("qreward-carried", default=None)
"""Additional headers of an attempt, such as ``traceparent``. They are set while the attempt is sent, and the HTTP backend reads them."""


def with_carried(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return the headers of a call with those in ``CARRIED``. A header of the call takes precedence."""
    carried = CARRIED.get()
    if carried is None:
        return headers
    if not headers:
        return carried
    own = {name.lower() for name in headers}
    return {**{name: value for name, value in carried.items() if name.lower() not in own}, **headers}
