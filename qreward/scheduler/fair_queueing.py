"""Fair queueing by cost: start-time fair queueing (Goyal, Vin and Cheng 1996).

A *flow* is one participant, such as a tenant or a batch. Each flow has a *tag*, which is its position on a virtual clock. The clock counts
cost, not time. The flow with the lowest tag is served next, and its tag advances by the cost of the request. Between two flows that always
have requests waiting, the cost served differs by at most one request of each flow. A flow that is new, or was idle, starts at the present
value of the clock, so it has neither credit nor debt.

With each request that is served, the clock advances by the cost of this request divided by the number of flows with waiting requests, as in
WF2Q+ (Bennett and Zhang 1997). So an endless sequence of new flows cannot starve a flow. The clock never passes the position at which the
request that was served last ends.

The real cost of a request is known only after its answer. The difference between the real cost and the charge is added to the next charge
of the flow. This module does not depend on tasks, priority levels or time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from qreward.scheduler.heap import IndexedHeap

MOST_OWED = 64.0
"""Factor on the first charge of a request. When the real cost is known, at most the product is charged in addition. Without this bound, a
wrong token count in one answer could lock out a flow."""
FEW = 8
"""Minimum number of flows before idle flows are removed."""


class Flow:
    """A flow is one participant in fair queueing."""

    __slots__ = ("owed", "tag")

    tag: float  # its position on the virtual clock, in units of cost
    owed: float  # real cost of its answered requests less their charges; not yet added to its tag

    def waits(self) -> bool:
        """Return whether a request of this flow waits."""
        raise NotImplementedError


Key = TypeVar("Key", bound=Hashable)
F = TypeVar("F", bound=Flow)


class FairHeap(IndexedHeap[F]):
    """Orders flows by their tags. Flows with equal tags take turns.

    When a flow reaches the top, its position is updated; an idle flow is removed.
    """

    def __init__(self, waits: Callable[[F], bool]) -> None:
        super().__init__()
        self._waits = waits

    def join(self, flow: F) -> None:
        """Add a flow if it is not in the heap."""
        if flow not in self:
            self.put(flow, flow.tag)

    def first(self) -> F | None:
        """Return the flow to be served next, or None if no flow has requests waiting."""
        while (flow := super().first()) is not None:
            if not self._waits(flow):
                self.drop(flow)
            elif flow.tag > self._heap[0][0]:
                self.put(flow, flow.tag)
            else:
                return flow
        return None

    def least(self, flow: F) -> float:
        """Return the lower of two tags: the tag of the flow to be served next, and the tag of ``flow``."""
        first = self.first()
        return flow.tag if first is None else min(flow.tag, first.tag)


class Fair(Generic[Key, F]):
    """Decides which of several flows is served next. While there is only one flow, nothing is charged."""

    def __init__(self) -> None:
        self.flows: dict[Key, F] = {}  # all known flows, including idle flows
        self._turns: FairHeap[F] = FairHeap(lambda flow: flow.waits())
        self._clock = 0.0
        self._few = FEW
        self.alone: F | None = None  # the only flow, or None if there are several or none

    def add(self, key: Key, flow: F) -> None:
        """Add a new flow."""
        if len(self.flows) >= self._few:
            self._forget_idle()
        flow.tag, flow.owed = self._clock, 0.0
        self.flows[key] = flow
        if self.alone is not None:
            self._turns.join(self.alone)
        self.alone = flow if len(self.flows) == 1 else None

    def awake(self, flow: F) -> None:
        """Prepare a flow to which a request is about to be added. Call this only while there are several flows."""
        if not flow.waits():
            flow.tag = max(flow.tag, self._clock)
            flow.owed = max(flow.owed, 0.0)
        self._turns.join(flow)

    def first(self) -> F | None:
        """Return the flow to be served next, or None if no flow has requests waiting."""
        alone = self.alone
        if alone is None:
            return self._turns.first()
        return alone if alone.waits() else None

    def charge(self, flow: F, cost: float) -> None:
        """Charge a flow the expected cost of a request that is served."""
        low = self._turns.least(flow)
        due = max(cost + flow.owed, 0.0)
        flow.owed = min(cost + flow.owed, 0.0)
        # a flow is served out of turn if the other flows cannot be served now; it gets ahead of them by a bounded amount
        flow.tag = max(flow.tag, min(flow.tag + due, low + MOST_OWED * due))
        self._clock = max(low, min(self._clock + due / max(1, len(self._turns)), low + due))

    def settle(self, key: Key, charge: float, used: float) -> None:
        """Record the real cost of a request that was charged ``charge``."""
        if self.alone is None and (flow := self.flows.get(key)) is not None:
            flow.owed += min(used - charge, MOST_OWED * charge)

    def forget(self, key: Key) -> None:
        """Remove a flow for good."""
        if self.flows.pop(key, None) is None:
            return
        self.alone = None
        if len(self.flows) <= 1:
            self._turns.empty()
            for left in self.flows.values():
                self.alone = left
                left.owed = 0.0

    def clear(self) -> None:
        """Remove all flows, because no request waits."""
        if self.alone is None:
            self._turns.empty()
        self.flows.clear()
        self.alone = None
        self._clock = 0.0

    def _forget_idle(self) -> None:
        """Remove idle flows whose tag the clock has passed. Their tag is not needed: if such a flow returns, it starts at the clock."""
        clock = self._clock
        self.flows = {key: flow for key, flow in self.flows.items() if flow.tag > clock or flow.waits()}
        self._few = max(FEW, 2 * len(self.flows))
