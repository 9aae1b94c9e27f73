"""One item that is judged: what is asked about it, what is known, and when that is enough. Knows nothing of who sends."""

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
    """One question to one juror.

    Attributes:
        juror: who is asked.
        messages: what is sent.
        sample: which of the juror's answers to the item.
        swapped: a pair in the other order.
        key: equal for what would be answered alike: all that is sent, and the form of the verdict.
    """

    juror: JudgeModel
    messages: Messages
    sample: int
    swapped: bool
    key: bytes

    def ballot(self) -> SampleRequest:
        """Begin it."""
        return SampleRequest(self.juror, self.messages, self.sample, swapped=self.swapped)


class PendingItem:
    """An item and its votes.

    Args:
        asks: what is asked, at least one question.
        decide: makes an outcome of what is known.
        index: the owner's number of the item.
        extra: fields of the item that its result carries.

    Attributes:
        known: what each ask came to, in their order; None while it is open.
        flights: of the asks that are under way, by place.
        done: it has its outcome, or nobody wants one.
        usage, trail, endpoint: of what was sent for it; what was sent for another and shared is the other's.
        sent: something was sent for it.
        born, begun, until: when it came, when its first request left, and when its time is over; inf if that is not known yet.
        timer: the loop's, which ends it in time, where no request of its own does.
    """

    __slots__ = (
        "asks", "begun", "born", "decide", "done", "endpoint", "extra", "flights", "index", "known", "owner", "sent", "timer", "trail",
        "until", "usage",
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
        self.flights: dict[int, InflightRequest] = {}
        self.done = self.sent = False
        self.usage: Usage | None = None
        self.trail: tuple[AttemptRecord, ...] = ()
        self.endpoint: str | None = None
        self.born, self.until = born, until
        self.begun: float | None = None
        self.timer: Any = None

    def tell(self, place: int, heard: Heard) -> None:
        """One ask has come to an end; perhaps the item with it."""
        self.flights.pop(place, None)
        if self.done:
            return
        self.known[place] = heard
        decided = self.decide(self.known)
        if decided is not None:
            self.end(decided)

    def end(self, decided: Any) -> None:
        """It is decided, or failed: what is still under way for it is not needed."""
        if not self.done:
            self.leave()
            error = error_of(decided)
            if error is not None:
                error.usage = self.usage
            self.owner.decided(self, decided)

    def leave(self) -> None:
        """Nobody wants its outcome any more."""
        self.done = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        flights, self.flights = list(dict.fromkeys(self.flights.values())), {}
        for flight in flights:
            flight.leave(self)

    def charge(self, ballot: SampleRequest) -> None:
        """What was sent for it counts as its own."""
        self.sent = True
        self.usage = added(self.usage, ballot.usage)
        self.trail += ballot.trail
        self.endpoint = ballot.endpoint or self.endpoint


Outcome = Callable[[PendingItem, Any], Any]
"""Makes what the user gets of a poll and what it was decided to be."""


def error_of(decided: Any) -> QRewardError | None:
    """The error, if that is what was decided."""
    return decided if isinstance(decided, QRewardError) else None
