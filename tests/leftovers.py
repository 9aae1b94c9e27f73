"""A count of everything that a client may leave behind."""

from __future__ import annotations

from typing import Any

from qreward import Judge, QRewardClient
from qreward.scheduler.task import Attempt, Task


def leftovers(client: QRewardClient, judge: Judge | None = None) -> dict[str, int]:
    """Everything of the client, and of the judge, that should be gone when nothing is under way; empty if it is."""
    runtime: Any = client._runtime
    sources, drivers = runtime.fleet.sources(), list(runtime.engine._drivers.values())
    pools = [pool for source in sources for pool in source.pools]
    timed = [item for items in runtime.engine.scheduler.wheel._buckets.values() for item in items]
    counts = {
        "slots": sum(source.inflight for source in sources),
        "due": sum(isinstance(item, Task | Attempt) for item in timed),
        "queued": sum(len(pool.queue) for pool in pools),
        "batch items": sum(pool.batch_inflight for pool in pools),
        "commands": len(runtime.engine.scheduler.out),
        "waiters": sum(len(driver.waiters) for driver in drivers),
        "attempts": sum(len(driver._attempts) for driver in drivers),
        "mergers": len(runtime._mergers),
        "judged": 0 if judge is None else len(judge._running),
    }
    return {what: count for what, count in counts.items() if count}
