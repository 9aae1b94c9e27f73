"""Observers: who is told what a client does, one frozen event at a time. Plain words, for whoever wants to listen; knows no engine.

An observer is given to a client, ``QRewardClient(..., observers=[mine])``. Its methods are called in the event loop of the call, so they
must be quick and must not block. One that raises is told nothing more, which is logged once; the call never notices.

In time, the events of one call are ``call_started``, then for each attempt ``attempt_started`` and ``attempt_ended``, amid them
``first_chunk`` if its answer is streamed, and ``call_ended``. The attempt that lost a race may end after its call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Literal

import msgspec

from qreward.errors import QRewardError

AttemptType = Literal["original", "retry", "hedge"]
AttemptOutcome = Literal["won", "failed", "cancelled", "discarded"]
"""``cancelled``: stopped by us or by the caller, as the loser of a hedge is; ``discarded``: it answered, but another had been quicker."""
CallOutcome = Literal["ok", "failed", "cancelled"]
"""``cancelled``: given up by its caller."""


class CallStarted(msgspec.Struct, frozen=True, gc=False):
    """A request was made; it may wait in the queue. An item of a batch starts when it is sent for the first time.

    Attributes:
        call: a number of its own in this process, the same in all events of the call.
        operation: ``chat``, ``embeddings``, ...
        model: the model that was asked for.
        route: pattern of the route that serves it.
        streamed: its answer comes in pieces.
    """

    call: int
    operation: str
    model: str
    route: str
    streamed: bool


class AttemptStarted(msgspec.Struct, frozen=True, gc=False):
    """A request is being sent to an endpoint: the ``number``-th attempt of its call."""

    call: int
    number: int
    type: AttemptType
    endpoint: str


class FirstChunk(msgspec.Struct, frozen=True, gc=False):
    """The first piece of a streamed answer is there, ``seconds`` after the call was made."""

    call: int
    endpoint: str
    seconds: float


class AttemptEnded(msgspec.Struct, frozen=True, gc=False):
    """An attempt is over.

    Attributes:
        seconds: how long it took.
        status_code: HTTP status of a failure, if there was an answer.
        error: what went wrong if its ``outcome`` is ``failed``.
    """

    call: int
    number: int
    type: AttemptType
    endpoint: str
    outcome: AttemptOutcome
    seconds: float
    status_code: int | None = None
    error: QRewardError | None = None


class CallEnded(msgspec.Struct, frozen=True, gc=False):
    """A request is over.

    Attributes:
        model, route, operation: as when it started.
        outcome: see ``CallOutcome``.
        endpoint: who answered, or None.
        seconds: from start to end, queueing and all attempts included.
        queued: seconds before its first attempt; all of them if there was none.
        attempts, hedges: how often it was sent, and how often of them while another attempt was under way.
        prompt_tokens, completion_tokens: what the server said it used.
        error: what its caller gets, or None.
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
    """Hears of events. Extend it and write the methods you want; an object of another class that has some of them will do as well.

    Example:
        >>> class Slow(Observer):
        ...     def call_ended(self, event: CallEnded) -> None:
        ...         if event.seconds > 30:
        ...             print(f"{event.model} took {event.seconds:.0f} s over {event.attempts} attempts")
    """

    def call_started(self, event: CallStarted, /) -> None:
        """A request was made."""

    def attempt_started(self, event: AttemptStarted, /) -> None:
        """It is being sent."""

    def first_chunk(self, event: FirstChunk, /) -> None:
        """Its answer begins to come."""

    def attempt_ended(self, event: AttemptEnded, /) -> None:
        """An attempt is over."""

    def call_ended(self, event: CallEnded, /) -> None:
        """The request is over."""


class MetricsCallback(Observer):
    """Calls a function with a plain mapping at the end of each call: the members of :class:`CallEnded`, the error as its class's name.

    Args:
        callback: is given the mapping. What it returns is ignored.

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
"""Headers that an attempt carries besides its own, such as ``traceparent``. Set around its sending, read by the wire."""


def with_carried(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """The headers of a call and those that are carried; the call's own win."""
    carried = CARRIED.get()
    if carried is None:
        return headers
    if not headers:
        return carried
    own = {name.lower() for name in headers}
    return {**{name: value for name, value in carried.items() if name.lower() not in own}, **headers}
