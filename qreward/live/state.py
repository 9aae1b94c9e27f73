"""PROVISIONAL: the snapshot of one client, until ``snapshot`` takes its place."""
from __future__ import annotations

from typing import Any

from qreward.engine.batch import BatchWaiter
from qreward.engine.snapshots import stats_of


def snapshot(runtime: Any) -> dict[str, Any]:
    now = runtime.clock()
    with runtime.engine.lock:
        rows = []
        for source in runtime.fleet.sources():
            stats = stats_of(source, now)
            state = stats.state
            rows.append({"name": source.name, "state": state.obstacle, "ready_in": state.ready_in, "in_flight": state.in_flight, "limit": state.window,
                "limit_why": state.why_window, "p50": stats.p50, "p95": stats.p95, "answered": stats.answered, "rejected": stats.rejected, "failed": stats.failed})
    waiting = sum(len(p.queue) for p in {p for s in runtime.fleet.sources() for p in s.pools})
    batches = [{"number": w.number, "model": w._pool.name, "done": w._tallies.ok + w._tallies.failed, "failed": w._tallies.failed, "total": w._size} for d in runtime.engine.drivers() for w in list(d.waiters) if isinstance(w, BatchWaiter)]
    return {"totals": {"answered": sum(r["answered"] for r in rows), "waiting": waiting, "in_flight": sum(r["in_flight"] for r in rows)}, "endpoints": rows, "batches": batches, "why": [f"{waiting} wait"] if waiting else []}
