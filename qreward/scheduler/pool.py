"""The sources that may serve one set of models, the work that waits for them, and how to choose among them."""

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
        in_service, back: how many of its sources are in service, and how many of them ``is_back`` is true of, see ``Health``.
        bulks: tasks under way that came from a bulk.
        online_until: until then single calls are expected.
        feeds: the batches that are read for it.
        down_since: since when no source is alive for the batches that wait; inf while one is, or without batches.
        due: the wheel's.
    """

    __slots__ = (
        "__weakref__", "_alive", "_found", "asked", "back", "balancer", "bulks", "down_since", "due", "endgame", "feeds",
        "in_service", "lengths", "name", "online_until", "queue", "sources",
    )  # fmt: skip

    def __init__(self, name: str, sources: list[Source], balancer: Balancer) -> None:
        self.name = name
        self.asked: set[str] = set()
        self.sources: list[Source] = []
        self.in_service = self.back = 0
        self._found = 0  # where among them one was last found that is worth waiting for
        self.balancer = balancer
        self.queue = Queue()
        self.lengths = OutputLengths()
        self.endgame = TailGuard()
        self.bulks = 0
        self.online_until = -inf
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
        """True if at least half of the pool, this source left out, is in service and not just being probed: it can be missed."""
        well = self.back - source.health.is_back
        return well > 0 and 2 * well >= len(self.sources) - 1

    def is_alive(self) -> bool:
        """Whether any source is alive."""
        alive = self._alive
        if alive is None or self not in alive.pools or not alive.is_alive():
            alive = self._alive = next((source for source in self.sources if source.is_alive()), None)
        return alive is not None

    def awaits(self, now: float, avoided: tuple[Source, ...]) -> bool:
        """Whether a source that is not avoided is worth waiting for."""
        return next(self._worth_waiting_for(now, avoided), None) is not None

    def usable(self, now: float, most: int) -> tuple[Source, ...]:
        """So many sources that are worth waiting for, or all that are if they are fewer."""
        return tuple(islice(self._worth_waiting_for(now), most))

    def _worth_waiting_for(self, now: float, avoided: tuple[Source, ...] = ()) -> Iterator[Source]:
        """Begins where one was found the last time: as long as there are many, few have to be looked at."""
        if not self.in_service:
            return
        size, first = len(self.sources), self._found
        for place in range(first, first + size):
            source = self.sources[place % size]
            if source not in avoided and source.worth_waiting_for(now):
                self._found = place % size
                yield source

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
