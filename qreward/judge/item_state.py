"""The state of one item: its requests, their outcomes so far, and whether these decide the item. It sends nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from qreward.errors import QRewardError
from qreward.judge.aggregation import Decide, Heard
from qreward.judge.prompts import Messages
from qreward.judge.sampling import JudgeModel, SampleRequest, added
from qreward.results import AttemptRecord, Usage

if TYPE_CHECKING:
    from qreward.judge.singleflight import Dispatcher, InflightRequest


class JudgeRequest(NamedTuple):
    """One request about an item to one judge model.

    Attributes:
        juror: the judge model.
        messages: the messages to send.
        sample: number of the sample, from 0.
        swapped: True if the responses of a pair are shown in reverse order.
        key: digest of the request without its headers, and of the verdict's form. Requests with equal keys can share an answer.
    """

    judge_model: JudgeModel
    messages: Messages
    sample: int
    swapped: bool
    key: bytes

    def sample_request(self) -> SampleRequest:
        """Create the request's state."""
        return SampleRequest(self.judge_model, self.messages, self.sample, swapped=self.swapped)


class JudgeItem:
    """An item and its votes.

    Args:
        asks: its requests, at least one.
        decide: aggregates the outcomes known so far.
        owner: the dispatcher that receives the item's outcome.
        index: number of the item in its batch.
        born: when the item arrived, on the engine's clock.
        until: when its time is over, on the engine's clock; inf if that is not known yet.
        extra: fields of the item that its result carries.

    Attributes:
        known: outcome of each request, in the order of ``asks``; None while it is pending.
        flights: the requests in flight, by place in ``asks``.
        done: the item has its outcome, or no caller waits for one.
        usage, trail, endpoint: of the requests charged to this item. A shared request is charged to one item only.
        sent: True if a request was charged to this item.
        begun: when its first request was sent, on the engine's clock.
        timer: ends the item on time where no request of its own does.
    """

    __slots__ = (
        "asks",
        "begun",
        "born",
        "decide",
        "done",
        "endpoint",
        "extra",
        "index",
        "inflight",
        "known",
        "owner",
        "sent",
        "timer",
        "trail",
        "until",
        "usage",
    )  # fmt: skip

    def __init__(
        self,
        asks: Sequence[JudgeRequest],
        decide: Decide,
        owner: Dispatcher,
        index: int,
        born: float,
        until: float,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.extra = extra
        self.asks, self.decide, self.owner, self.index = asks, decide, owner, index
        self.known: list[Heard] = [None] * len(asks)
        self.inflight: dict[int, InflightRequest] = {}
        self.done = self.sent = False
        self.usage: Usage | None = None
        self.trail: tuple[AttemptRecord, ...] = ()
        self.endpoint: str | None = None
        self.born, self.until = born, until
        self.begun: float | None = None
        self.timer: Any = None

    def tell(self, place: int, heard: Heard) -> None:
        """Record the outcome of the request at ``place``. It may decide the item."""
        self.inflight.pop(place, None)
        if self.done:
            return
        self.known[place] = heard
        decided = self.decide(self.known)
        if decided is not None:
            self.end(decided)

    def end(self, decided: Any) -> None:
        """End the item with its outcome or error, and leave the requests still in flight."""
        if not self.done:
            self.leave()
            error = error_of(decided)
            if error is not None:
                error.usage = self.usage
            self.owner.decided(self, decided)

    def leave(self) -> None:
        """Stop waiting: no caller needs the outcome any more."""
        self.done = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        inflight, self.inflight = list(dict.fromkeys(self.inflight.values())), {}
        for inflight_request in inflight:
            inflight_request.leave(self)

    def charge(self, sample_request: SampleRequest) -> None:
        """Charge a request to this item: add its usage and its failed attempts."""
        self.sent = True
        self.usage = added(self.usage, sample_request.usage)
        self.trail += sample_request.trail
        self.endpoint = sample_request.endpoint or self.endpoint


Outcome = Callable[[JudgeItem, Any], Any]
"""Makes the user's result from an item and its aggregated votes."""


def error_of(decided: Any) -> QRewardError | None:
    """The error, if the item failed."""
    return decided if isinstance(decided, QRewardError) else None
