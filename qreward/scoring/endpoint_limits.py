"""How many items each endpoint accepts in one request, learned once and kept until the endpoint is removed.

All mergers of a client share these limits, in all its event loops, so they are used under the engine's lock. This module knows no items and
no HTTP.
"""

from __future__ import annotations

from collections.abc import Hashable

from qreward.codecs.rewards.base import ALONE, MergeLimits
from qreward.scheduler.outcome import ProbeResult
from qreward.scheduler.state import Source

LONE_REJECTS = 2
"""Successive rejections by an endpoint that has no other request of this client, before shorter requests are tried there."""
MOST_PATIENCE = 64
"""Maximum number of answered requests after such a rejection before a longer one is tried."""
REFUSED_PATIENCE = 1000
"""Answered requests after a refusal before a longer one is tried. Doubled each time the longer one is refused."""


class EndpointLimits:
    """The limits of requests to one endpoint, for items of one kind.

    A server that limits the number of items may hold a queue slot for each item (Text Embeddings Inference). It never accepts a request
    with more items than slots, and reports only that it has no capacity. Therefore shorter requests are tried. If even a single item is
    rejected, the length was not the cause and the full limit applies again. If a request is accepted, the next ones have the same length,
    and later ones double it up to the limit.

    A request that was refused while its halves were accepted was also too long. The size of its items may have been the cause, so a
    longer request is tried again after many answers.

    Args:
        usual: the limits of this kind of server.
        cap: the client's own maximum number of items, or None.

    Attributes:
        limits: the current limits of one request.
    """

    __slots__ = ("_answered", "_cap", "_counts_items", "_most", "_patience", "_refused_patience", "_rejects", "_taken", "_told", "_usual",
                 "limits")  # fmt: skip

    def __init__(self, usual: MergeLimits, cap: int | None) -> None:
        self._counts_items = usual.items is not None
        self._cap, self._told = cap, usual.items
        self._patience, self._refused_patience = 1, REFUSED_PATIENCE
        self._begin(usual)

    def _begin(self, usual: MergeLimits) -> None:
        self.limits = self._most = self._usual = usual.with_items(self._cap)
        self._rejects = self._taken = self._answered = 0

    def told(self, items: int) -> None:
        """Apply the maximum number of items that the server reports. It replaces that of its kind."""
        if self._counts_items and self._usual != ALONE and items != self._told:
            self._told = items
            self._begin(self._usual.of_items(items))

    def refused(self, most: int) -> None:
        """Limit requests to ``most`` items, because a longer request was refused while its halves were accepted."""
        if self._most is not self._usual:
            self._refused_patience *= 2
        self._answered = 0
        self._most = self._most.with_items(most)
        self.limits = self.limits.with_items(most)

    def turned_away(self, length: int) -> None:
        """Record a rejection for lack of capacity while the endpoint had no other request of this client."""
        self._rejects += 1
        if not self._counts_items or self._rejects < LONE_REJECTS:
            return
        if self._taken == 0 and self._rejects == LONE_REJECTS:
            self._patience = min(2 * self._patience, MOST_PATIENCE)
        if length > 1:
            self.limits = self._most.with_items(length // 2)
        else:
            self.limits, self._rejects = self._most, 0

    def took(self) -> None:
        """Record an answered request."""
        self._rejects = 0
        if self.limits is not self._most:
            self._taken += 1
            if self._taken >= self._patience:
                self._taken = 0
                self.limits = self._most.with_items(2 * (self.limits.items or 1))
        elif self._most is not self._usual:
            self._answered += 1
            if self._answered >= self._refused_patience:
                self._answered = 0
                self.limits = self._most = self._usual.with_items(2 * (self._most.items or 1))


class KnownLists:
    """The learned limits of all endpoints of a client."""

    def __init__(self) -> None:
        self._known: dict[Source, dict[Hashable, EndpointLimits]] = {}
        self._told: dict[Source, int] = {}

    def at(self, source: Source, usual: MergeLimits, cap: int | None) -> EndpointLimits:
        """The limits of requests to an endpoint. Items with equal ``usual`` and ``cap`` (see ``EndpointLimits``) count as one kind."""
        kinds = self._known.get(source)
        if kinds is None:
            self._forget_removed()
            kinds = self._known[source] = {}
        known = kinds.get((usual, cap))
        if known is None:
            known = kinds[usual, cap] = EndpointLimits(usual, cap)
            if source in self._told:
                known.told(self._told[source])
        return known

    def look(self, source: Source, look: ProbeResult) -> None:
        """Apply the result of a probe."""
        if look.items is None:
            return
        self._told[source] = look.items
        for known in self._known.get(source, {}).values():
            known.told(look.items)

    def _forget_removed(self) -> None:
        self._known = {source: known for source, known in self._known.items() if not source.removed}
        self._told = {source: told for source, told in self._told.items() if not source.removed}
