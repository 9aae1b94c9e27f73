"""The sources that may serve one set of models, the work that waits for them, and how to choose among them."""

from __future__ import annotations

from qreward.core.balance import Balancer
from qreward.core.queue import Queue
from qreward.core.source import Source


class Pool:
    """One route at run time. A source may be in several pools; its limits hold over all of them."""

    __slots__ = ("balancer", "name", "queue", "sources")

    def __init__(self, name: str, sources: list[Source], balancer: Balancer) -> None:
        self.name = name
        self.sources: list[Source] = []
        self.balancer = balancer
        self.queue = Queue()
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

    def __repr__(self) -> str:
        return f"<Pool {self.name!r} {len(self.queue)} waiting, {self.sources}>"
