"""How long the lists are that each endpoint takes, found out once and kept for as long as the endpoint is there.

Shared by all collectors of a client, in all its loops, so under the engine's lock. Knows no items and no HTTP.
"""

from __future__ import annotations

from collections.abc import Hashable

from qreward.codecs.rewards.base import ALONE, MergeLimits
from qreward.scheduler.endpoint_state import Source
from qreward.scheduler.outcome import ProbeResult

LONE_REJECTS = 2
"""Lists that a source turns away one after another, while it has nothing else of ours, before shorter ones are tried there."""
MOST_PATIENCE = 64
"""Most lists that such a source takes before a longer one is tried again."""
REFUSED_PATIENCE = 1000
"""Lists that a source takes before one is tried again that is longer than what it refused; doubled each time that fails."""


class Known:
    """The lists that one source takes, of one kind.

    A server that limits the items of a list may have a place for each (Text Embeddings Inference): a list longer than all of them is never
    let in, and all that is said is that there is no room. So shorter ones are tried. If not even one item is let in it was not the
    length, and lists are whole again; if one is, the next are as long, and then longer as far as that goes.

    A list that was refused while its halves were taken was too long, too. That may have been its items' size, so that after many lists a
    longer one is tried again.

    Args:
        usual: what the source's kind takes.
        cap: most items of a list for reasons of our own, or None.

    Attributes:
        limits: of a list now.
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
        """The server says how many items a list may have, which counts instead of what is usual."""
        if self._counts_items and self._usual != ALONE and items != self._told:
            self._told = items
            self._begin(self._usual.of_items(items))

    def refused(self, most: int) -> None:
        """It takes no longer lists than this, whatever its kind usually takes."""
        if self._most is not self._usual:
            self._refused_patience *= 2
        self._answered = 0
        self._most = self._most.with_items(most)
        self.limits = self.limits.with_items(most)

    def turned_away(self, length: int) -> None:
        """A list came back for want of room, though there was nothing else of ours."""
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
        """A list was answered."""
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
    """What is known of the lists of all sources of a client."""

    def __init__(self) -> None:
        self._known: dict[Source, dict[Hashable, Known]] = {}
        self._told: dict[Source, int] = {}

    def at(self, source: Source, usual: MergeLimits, cap: int | None) -> Known:
        """What is known of lists at a source; lists with the same limits count as one kind. For ``usual`` and ``cap`` see ``Known``."""
        kinds = self._known.get(source)
        if kinds is None:
            self._forget_removed()
            kinds = self._known[source] = {}
        known = kinds.get((usual, cap))
        if known is None:
            known = kinds[usual, cap] = Known(usual, cap)
            if source in self._told:
                known.told(self._told[source])
        return known

    def look(self, source: Source, look: ProbeResult) -> None:
        """A server was looked at."""
        if look.items is None:
            return
        self._told[source] = look.items
        for known in self._known.get(source, {}).values():
            known.told(look.items)

    def _forget_removed(self) -> None:
        self._known = {source: known for source, known in self._known.items() if not source.removed}
        self._told = {source: told for source, told in self._told.items() if not source.removed}
