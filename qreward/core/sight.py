"""What looks at a server from outside mean for its source.

A server's own word counts only as far as it agrees with what happens to its requests, so that one that always says "ready"
while it fails, or "not ready" while it serves, changes nothing:

L1  Not ready, then ready: it has returned. It is tried at once, not when its time out of service, or its gate's, is over. A source
    that failed while it said "ready" all along waits as ever.
L2  Ready once, then not ready, and no answer since the last look: it is not asked until it says otherwise, for a minute at most.
L3  No room, then room: its gate opens. What it asked us to wait (``Retry-After``) is still waited for.
L4  Requests wait inside, twice in a row and more than a few: its window does not grow. The elasticity of throughput shows the
    same, but only after a window too many.

What comes next is as without looks: one request goes first. Looks that say nothing, or cease, leave everything as it was.
"""

from __future__ import annotations

from enum import IntEnum
from math import inf

from qreward.core.adaptive import AdaptiveWindow
from qreward.core.health import LONGEST_OPEN
from qreward.core.outcome import Look
from qreward.core.source import Source

LONGEST_AWAY = 60.0
"""Seconds for which a source is not asked on its own word alone: then a request shows whether that is true."""
VALID = 2.0
"""Intervals for which a look holds, for the next one may be late."""
CROWD = 0.1
"""Waiting elements, as a share of those that are worked on, from which there is a queue: a few always wait for the next step."""


class Change(IntEnum):
    """What follows for the source."""

    NONE = 0
    LOST = 1
    """It is out of service."""
    BETTER = 2
    """It may take work sooner."""


class Sight:
    """The looks at one source so far.

    Example:
        >>> from random import Random
        >>> source, sight = Source("a", Random(0)), Sight()
        >>> source.health.eject(0.0, 5.0)
        >>> sight.take(1.0, source, Look(ready=False), 1.0), sight.take(2.0, source, Look(ready=True), 1.0), source.ready_at()
        (<Change.NONE: 0>, <Change.BETTER: 2>, 2.0)
    """

    __slots__ = ("_answers", "_away_since", "_believed", "_crowded", "_full", "_held_until", "_ready")

    def __init__(self) -> None:
        self._ready: bool | None = None
        self._full: bool | None = None
        self._crowded = False
        self._answers = 0
        self._believed = False  # it has said "ready", and served
        self._away_since = inf
        self._held_until = -inf  # out of service by L2

    def take(self, now: float, source: Source, look: Look, interval: float) -> Change:
        """One more look, ``interval`` seconds before the next: its source is changed; what follows for its tasks is returned."""
        answered, self._answers = source.tally.ok > self._answers, source.tally.ok
        was_ready, self._ready = self._ready, look.ready
        was_full, self._full = self._full, _is_full(look)
        self._see_crowd(now, source, look, VALID * interval)
        if look.ready is False:
            return self._keep_away(now, source, VALID * interval, answered)
        back = False
        if look.ready:
            self._believed, self._away_since = True, inf
            back = was_ready is not True
        better = back and self._bring_back(now, source)
        if back or (was_full and self._full is False):
            better |= source.gate.ease(now)
        return Change.BETTER if better else Change.NONE

    def _bring_back(self, now: float, source: Source) -> bool:
        health = source.health
        until = health.open_until
        of_another_kind = until > max(self._held_until, now + 1.5 * LONGEST_OPEN)  # an account that is used up
        if until <= now or of_another_kind:
            return False
        health.try_now(now)
        return True

    def _keep_away(self, now: float, source: Source, seconds: float, answered: bool) -> Change:
        health = source.health
        if answered or now - self._away_since > LONGEST_AWAY:
            self._believed = False
        if not self._believed or health.down:
            return Change.NONE
        self._away_since, self._held_until = min(self._away_since, now), now + seconds
        if not health.in_service:
            health.open_until = max(health.open_until, self._held_until)
            return Change.NONE
        health.eject(now, seconds)
        return Change.LOST

    def _see_crowd(self, now: float, source: Source, look: Look, seconds: float) -> None:
        was, self._crowded = self._crowded, (look.waiting or 0.0) >= max(1.0, CROWD * (look.running or 0.0))
        if isinstance(source.window, AdaptiveWindow):
            source.window.crowded_until = now + seconds if was and self._crowded else -inf


def _is_full(look: Look) -> bool | None:
    if look.waiting is None and (look.running is None or look.most is None):
        return None
    return bool(look.waiting) or (look.running is not None and look.most is not None and look.running >= look.most)
