"""The sources that may serve one set of models, the work that waits for them, and how to choose among them."""

from __future__ import annotations

from math import ceil, inf

from qreward.core.balance import Balancer
from qreward.core.endgame import Endgame
from qreward.core.lengths import Lengths
from qreward.core.queue import Queue
from qreward.core.source import Source

ONLINE = 30.0
"""Seconds after a single call in which another is expected."""
RESERVE, LEAST_WINDOW = 0.1, 8
"""Share of a window that bulks leave to single calls while there are any, and the window below which they leave nothing."""


def reserve(window: int) -> int:
    """Slots of a window that are kept for single calls."""
    return ceil(RESERVE * window) if window >= LEAST_WINDOW else 0


class Pool:
    """One route at run time. A source may be in several pools; its limits hold over all of them.

    Attributes:
        asked: the models for which it was chosen; the fleet's.
        lengths: of its answers.
        bulks: tasks under way that came from a bulk.
        online_until: until then single calls are expected.
        due: the wheel's.
    """

    __slots__ = ("__weakref__", "asked", "balancer", "bulks", "due", "endgame", "lengths", "name", "online_until", "queue", "sources")

    def __init__(self, name: str, sources: list[Source], balancer: Balancer) -> None:
        self.name = name
        self.asked: set[str] = set()
        self.sources: list[Source] = []
        self.balancer = balancer
        self.queue = Queue()
        self.lengths = Lengths()
        self.endgame = Endgame()
        self.bulks = 0
        self.online_until = -inf
        self.due = -1
        for source in sources:
            self.join(source)

    def join(self, source: Source) -> None:
        self.sources.append(source)
        source.pools.append(self)

    def leave(self, source: Source) -> None:
        self.sources.remove(source)
        source.pools.remove(self)
        self.balancer.forget(source)

    def has_other(self, source: Source) -> bool:
        """True if at least half of the pool, this source left out, is in service and not just being probed: it can be missed."""
        well = sum(other.health.in_service and other.health.allowed > 1 for other in self.sources if other is not source)
        return well > 0 and 2 * well >= len(self.sources) - 1

    def awaits(self, now: float, avoided: tuple[Source, ...]) -> bool:
        """Whether a source that is not avoided is worth waiting for."""
        return any(source not in avoided and source.worth_waiting_for(now) for source in self.sources)

    def gives_bulk_to(self, now: float, source: Source) -> bool:
        """Whether a source may take items of bulks: while single calls come, part of its window is kept for them."""
        if now < self.online_until:
            # while single calls wait no slot is kept free for them: whose turn it is goes first, but a bulk only within its part
            held = source.inflight - source.singles if self.queue.waiting else source.inflight
            if held >= source.window.limit - reserve(source.window.limit):
                return False
        return not (self.balancer.by_speed and self.endgame.holds_back(now, source, self))

    def __repr__(self) -> str:
        return f"<Pool {self.name!r} {len(self.queue)} waiting, {self.sources}>"
