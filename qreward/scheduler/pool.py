"""A pool: the sources of one route, the queue of tasks that wait for them, and the balancer that chooses among them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import ceil, inf

from qreward.scheduler.endpoint_state import Source
from qreward.scheduler.load_balancing import Balancer
from qreward.scheduler.queueing.queue import Queue
from qreward.scheduler.request import BatchFeed
from qreward.scheduler.stats.output_lengths import OutputLengths
from qreward.scheduler.tail_guard import TailGuard

ONLINE = 30.0
"""Seconds after an interactive request (one outside of a batch) in which another is expected."""
RESERVE, LEAST_WINDOW = 0.1, 8
"""Share of a concurrency limit that is reserved for interactive requests while some are expected, and the least limit with a reserve."""


def reserve(window: int) -> int:
    """Return the slots of a concurrency limit that are reserved for interactive requests."""
    return ceil(RESERVE * window) if window >= LEAST_WINDOW else 0


class Pool:
    """One route at run time. A source may be in several pools; its limits apply to all of them together.

    Attributes:
        asked: the models that were routed to it; maintained by the fleet.
        lengths: output lengths of its answers.
        in_service, back: how many of its sources are ``in_service``, and how many ``is_back``; see ``Health``.
        bulks: started tasks that came from a batch and have not ended.
        interactive_until: interactive requests are expected until then.
        feeds: the open batches.
        down_since: since when no source is alive while batches wait; inf while one is alive, or without batches.
        due: used by the timer wheel.
    """

    __slots__ = (
        "__weakref__",
        "_alive",
        "_found",
        "asked",
        "back",
        "balancer",
        "bulks",
        "down_since",
        "due",
        "endgame",
        "feeds",
        "in_service",
        "interactive_until",
        "lengths",
        "name",
        "queue",
        "sources",
    )  # fmt: skip

    def __init__(self, name: str, sources: list[Source], balancer: Balancer) -> None:
        self.name = name
        self.asked: set[str] = set()
        self.sources: list[Source] = []
        self.in_service = self.back = 0
        self._found = 0  # index of the last source found to be available soon
        self.balancer = balancer
        self.queue = Queue()
        self.lengths = OutputLengths()
        self.endgame = TailGuard()
        self.bulks = 0
        self.interactive_until = -inf
        self.feeds: dict[BatchFeed, None] = {}
        self.down_since = inf
        self._alive: Source | None = None  # the source that was found alive last
        self.due = -1
        for source in sources:
            self.join(source)

    def join(self, source: Source) -> None:
        self.sources.append(source)
        source.pools.append(self)
        self.in_service += source.health.in_service
        self.back += source.health.is_back

    def leave(self, source: Source) -> None:
        self.sources.remove(source)
        source.pools.remove(self)
        self.in_service -= source.health.in_service
        self.back -= source.health.is_back
        self.balancer.forget(source)

    def has_other(self, source: Source) -> bool:
        """Return whether the pool can do without this source: at least half of the others are in service and not half-open for a probe."""
        well = self.back - source.health.is_back
        return well > 0 and 2 * well >= len(self.sources) - 1

    def is_alive(self) -> bool:
        """Return whether any source is alive."""
        alive = self._alive
        if alive is None or self not in alive.pools or not alive.is_alive():
            alive = self._alive = next((source for source in self.sources if source.is_alive()), None)
        return alive is not None

    def awaits(self, now: float, avoided: tuple[Source, ...]) -> bool:
        """Return whether a source outside of ``avoided`` is available soon."""
        return next(self._worth_waiting_for(now, avoided), None) is not None

    def usable(self, now: float, most: int) -> tuple[Source, ...]:
        """Return up to ``most`` sources that are available soon."""
        return tuple(islice(self._worth_waiting_for(now), most))

    def _worth_waiting_for(self, now: float, avoided: tuple[Source, ...] = ()) -> Iterator[Source]:
        """Yield the sources that are available soon. The search starts where the last one was found, to check few sources."""
        if not self.in_service:
            return
        size, first = len(self.sources), self._found
        for place in range(first, first + size):
            source = self.sources[place % size]
            if source not in avoided and source.available_soon(now):
                self._found = place % size
                yield source

    def gives_bulk_to(self, now: float, source: Source) -> bool:
        """Return whether a source may take batch items. While interactive requests are expected, some slots are reserved for them."""
        if now < self.interactive_until:
            # while interactive requests wait no slot is kept free: the queue's order decides, but batch items keep to their share
            held = source.inflight - source.singles if self.queue.waiting else source.inflight
            if held >= source.window.limit - reserve(source.window.limit):
                return False
        return not (self.balancer.by_speed and self.endgame.holds_back(now, source, self))

    def __repr__(self) -> str:
        return f"<Pool {self.name!r} {len(self.queue)} waiting, {self.sources}>"
