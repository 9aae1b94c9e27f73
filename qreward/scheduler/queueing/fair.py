"""Turns in proportion to cost: start-time fair queueing (Goyal, Vin and Cheng 1996).

Each flow has a tag: the cost it was served, on a common clock. The flow with the least goes next and moves on by what that
request costs, so over any time two flows that have something waiting throughout differ by at most one request of each.
A flow that comes, or comes back, starts at the clock: it has no credit for the past, and nothing to catch up with.
The clock moves on by the cost over the number of flows, as in WF2Q+ (Bennett and Zhang 1997), so that an endless row of
newcomers starves nobody. It never leaves the reach of the request that was served last.

What a request really used is known only later. The difference is charged with the flow's next request.
Knows nothing of tasks, levels or time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heappop, heappush, heapreplace
from typing import Generic, TypeVar

MOST_OWED = 64.0
"""Times its charge that a request can cost in addition: one absurd answer must not lock a flow out. So what a flow owes is
bounded by what it has under way."""
FEW = 8
"""Flows below which nobody looks for those that can be forgotten."""


class Flow:
    """One of those that take turns.

    Attributes:
        tag: where it stands on the clock, in units of cost.
        owed: what its answers used beyond their charge; negative if they used less.
    """

    __slots__ = ("owed", "tag")

    tag: float
    owed: float

    def waits(self) -> bool:
        """Whether it has something to be served."""
        raise NotImplementedError


Key = TypeVar("Key", bound=Hashable)
F = TypeVar("F", bound=Flow)


class FairHeap(Generic[F]):
    """Flows by tag, ties in turn. A flow that moved on is put in its place, and one that is through is left out, when it is met."""

    __slots__ = ("_heap", "_joined", "_number", "_waits")

    def __init__(self, waits: Callable[[F], bool]) -> None:
        self._waits = waits
        self._heap: list[tuple[float, int, F]] = []
        self._joined: set[F] = set()
        self._number = 0

    def join(self, flow: F) -> None:
        """Let a flow take part, if it does not yet."""
        if flow not in self._joined:
            self._joined.add(flow)
            heappush(self._heap, self._place(flow))

    def first(self) -> F | None:
        """Whose turn it is; None if nobody waits."""
        heap = self._heap
        while heap:
            tag, _, flow = heap[0]
            if not self._waits(flow):
                heappop(heap)
                self._joined.remove(flow)
            elif flow.tag > tag:
                heapreplace(heap, self._place(flow))
            else:
                return flow
        return None

    def least(self, flow: F) -> float:
        """The tag of whose turn it is, or of the flow if that is less."""
        if self._heap and self._heap[0][2] is flow and self._heap[0][0] == flow.tag:
            return flow.tag
        first = self.first()
        return flow.tag if first is None else min(flow.tag, first.tag)

    def clear(self) -> None:
        self._heap.clear()
        self._joined.clear()

    def __len__(self) -> int:
        return len(self._heap)

    def _place(self, flow: F) -> tuple[float, int, F]:
        self._number += 1
        return flow.tag, self._number, flow


class Fair(Generic[Key, F]):
    """The flows that share something. While there is one only, nothing is counted.

    Attributes:
        alone: the only flow, or None if there are several or none.
        flows: all that are known, those that wait for nothing included.
    """

    __slots__ = ("_clock", "_few", "_turns", "alone", "flows")

    def __init__(self) -> None:
        self.flows: dict[Key, F] = {}
        self._turns: FairHeap[F] = FairHeap(lambda flow: flow.waits())
        self._clock = 0.0
        self._few = FEW
        self.alone: F | None = None

    def add(self, key: Key, flow: F) -> None:
        """Let in a flow that is not known."""
        if len(self.flows) >= self._few:
            self._forget_idle()
        flow.tag, flow.owed = self._clock, 0.0
        self.flows[key] = flow
        if self.alone is not None:
            self._turns.join(self.alone)
        self.alone = flow if len(self.flows) == 1 else None

    def awake(self, flow: F) -> None:
        """A flow is about to have something waiting. To be told only while there are several."""
        if not flow.waits():
            flow.tag = max(flow.tag, self._clock)
            flow.owed = max(flow.owed, 0.0)
        self._turns.join(flow)

    def first(self) -> F | None:
        """Whose turn it is; None if nobody waits."""
        alone = self.alone
        if alone is None:
            return self._turns.first()
        return alone if alone.waits() else None

    def charge(self, flow: F, cost: float) -> None:
        """A flow is served a request that is expected to cost so much."""
        low = self._turns.least(flow)
        due = max(cost + flow.owed, 0.0)
        flow.owed = min(cost + flow.owed, 0.0)
        # one that is served out of turn, because others cannot be served now, gets ahead no further than that
        flow.tag = max(flow.tag, min(flow.tag + due, low + MOST_OWED * due))
        self._clock = max(low, min(self._clock + due / max(1, len(self._turns)), low + due))

    def settle(self, key: Key, charge: float, used: float) -> None:
        """A request that was charged so much has used so much."""
        if self.alone is None and (flow := self.flows.get(key)) is not None:
            flow.owed += min(used - charge, MOST_OWED * charge)

    def forget(self, key: Key) -> None:
        """A flow does not come again."""
        if self.flows.pop(key, None) is None:
            return
        self.alone = None
        if len(self.flows) <= 1:
            self._turns.clear()
            for left in self.flows.values():
                self.alone = left
                left.owed = 0.0

    def clear(self) -> None:
        """Nobody waits: whoever comes starts anew."""
        if self.alone is None:
            self._turns.clear()
        self.flows.clear()
        self.alone = None
        self._clock = 0.0

    def _forget_idle(self) -> None:
        """Those that wait for nothing and that the clock has passed: nothing of them is worth remembering."""
        clock = self._clock
        self.flows = {key: flow for key, flow in self.flows.items() if flow.tag > clock or flow.waits()}
        self._few = max(FEW, 2 * len(self.flows))
