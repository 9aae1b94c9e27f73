"""Says in words what a source's numbers mean now: whether it may be asked, and if not, why and for how long."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from qreward.core.advertised import Meter
from qreward.core.pace import Pace
from qreward.core.source import Source


class Standing(NamedTuple):
    """What keeps a source from being asked.

    Attributes:
        reason: in a few words; ``ready`` if nothing does.
        seconds: until then it is not asked; 0 if it may be asked now, inf if that depends on an event.
    """

    reason: str
    seconds: float


def standing(now: float, source: Source) -> Standing:
    """Why a source may not be asked now, the longest obstacle first."""
    health = source.health
    if source.removed:
        return Standing("removed", inf)
    if health.down:
        return Standing("marked unhealthy", inf)
    waits = [(at - now, reason) for at, reason in _times(source) if at > now]
    if waits:
        seconds, reason = max(waits)
        return Standing(reason, seconds)
    if source.inflight >= health.allowed:
        return Standing(f"coming back: {health.allowed:g} at a time", inf)
    if source.inflight >= source.window.limit:
        return Standing("window full", inf)
    return Standing("ready", 0.0)


def _times(source: Source) -> list[tuple[float, str]]:
    turned_away = "it turned requests away"
    if source.gate.unheeded is not None:
        turned_away += f"; it asked for {source.gate.unheeded:.4g} s, which max_retry_after shortens"
    times = [(source.health.open_until, "out of service after failures"), (source.gate.opens_at, turned_away)]
    if source.learned is not None and source.learned.rate is not None:
        times.append((source.learned.ready_at, f"paced at {source.learned.rate:.3g} requests/s, learned from rejects"))
    for pace, unit in ((source.requests, "requests"), (source.tokens, "tokens")):
        if pace is not None:
            times.append((pace.ready_at, _limit(pace, unit)))
    return times


def _limit(pace: Pace | Meter, unit: str) -> str:
    if pace.ready_at == inf:
        return "waiting for its share"
    return f"no {unit} left, as it says itself" if pace.rate == inf else f"limit of {pace.rate:.3g} {unit}/s"


def why_window(source: Source) -> str:
    """Why its window is what it is."""
    return str(getattr(source.window, "reason", "fixed"))
