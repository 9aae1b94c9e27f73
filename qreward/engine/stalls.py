"""Logs one warning when no item of a route has ended for ten seconds although work waits, and further ones at growing intervals.

A loop driver looks every few seconds while it has work, so a request costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from qreward.engine.instrumentation import LOG
from qreward.results import Explanation
from qreward.scheduler.pool import Pool
from qreward.scheduler.why import explain

FIRST, GROWTH, LONGEST = 10.0, 2.0, 86400.0
"""``FIRST``: seconds without progress before the first warning. ``GROWTH``: factor on the seconds before each further warning.
``LONGEST``: after so many seconds there are no more warnings."""
EVERY, BLOCKED = 5.0, 5.0
"""``EVERY``: seconds between two looks. ``BLOCKED``: seconds by which a look must be late to show that the event loop was blocked."""


@dataclass(slots=True)
class _Seen:
    ended: int
    since: float  # when the last item ended
    due: float = FIRST  # seconds without progress before the next warning


class StallWatch:
    """Watches the pools of one engine. ``elsewhere`` returns explanations of work that waits outside of the scheduler."""

    def __init__(self, pools: Callable[[], Iterable[Pool]], elsewhere: Callable[[], Iterable[Explanation]]) -> None:
        self._pools, self._elsewhere = pools, elsewhere
        self._seen: dict[Pool, _Seen] = {}

    def look(self, engine: Any, began: float) -> bool:
        """Warn of work that does not move. Returns False if there is no work, so that nobody needs to look.

        ``began`` is the time at which this look was planned: the time of the previous look, or that at which the work began.
        """
        warnings: list[str] = []
        with engine.lock:
            now = engine.clock()
            blocked = now - began - EVERY
            seen, self._seen = self._seen, {}
            for pool in self._pools():
                if not pool.live and not pool.feeds:
                    continue
                known = self._seen[pool] = seen.get(pool) or _Seen(-1, began)
                if known.ended != pool.ended or _streams(pool):
                    known.ended = pool.ended
                    faults = [each.fault.at for each in pool.sources if each.fault is not None]
                    ends = [began, *(each.answered_at for each in pool.sources), *faults]
                    known.since = now if blocked >= BLOCKED else max(ends)
                elif known.due <= now - known.since < LONGEST and (why := self._why(now, pool)) is not None:
                    warnings.append(f"nothing has ended for {now - known.since:.0f} s: {why}")
                    known.due = max(known.due * GROWTH, now - known.since + FIRST)
        if blocked >= BLOCKED:
            warnings = [f"the event loop was blocked for {blocked:.1f} s by code that does not yield; nothing was sent or read meanwhile"]
        for text in warnings:
            LOG.warning("%s", text)
        return any(now - known.since < LONGEST for known in self._seen.values())

    def _why(self, now: float, pool: Pool) -> str | None:
        """Return why the work waits. Return None if it is as usual: the requests in flight take no longer than others did."""
        found = explain(now, pool)
        if found.code == "input" and (elsewhere := list(self._elsewhere())):
            return elsewhere[0].text
        usual = found.code in ("running", "ready") or (
            found.code == "concurrency_limit" and any(each.latency.mean for each in pool.sources)
        )
        return None if usual else found.text


def _streams(pool: Pool) -> bool:
    """Return whether a stream is being delivered."""
    return any(each.committed and each.holds_since is None for source in pool.sources for each in source.attempts)
