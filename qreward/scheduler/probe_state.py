"""What looks at a server from outside mean for its source.

A server's own word counts only as far as it agrees with what happens to its requests, so that one that always says "ready"
while it fails, or "not ready" while it serves, changes nothing:

L1  Not ready, then ready: it has returned. It is tried at once, not when its time out of service, or its gate's, is over. A source
    that failed while it said "ready" all along waits as ever.
L2  Ready once, then not ready, and no answer since the last look: it is not asked until it says otherwise, but for one request in
    half a minute. That is its gate's matter, not its health's, for it comes back with the window that it had. One that answers
    what it was sent after it had said "not ready" is not believed until it says "ready".
L3  No room, then room: its gate opens. What it asked us to wait (``Retry-After``) is still waited for.
L4  Requests wait inside, twice in a row and more than a few: its window does not grow. The elasticity of throughput shows the
    same, but only after a window too many.

What comes next is as without looks: one request goes first. Looks that say nothing, or cease, leave everything as it was.
"""

from __future__ import annotations

from enum import IntEnum
from math import inf

from qreward.quota.lease import inner_of
from qreward.scheduler.endpoint_state import Source
from qreward.scheduler.health import LONGEST_OPEN
from qreward.scheduler.limits.adaptive import AdaptiveLimit
from qreward.scheduler.outcome import ProbeResult

LONGEST_AWAY = 30.0
"""Seconds for which a source is not asked on its own word alone; then a request shows whether that is true."""
VALID, LEAST_VALID = 2.0, 2.0
"""Intervals for which a look holds, for the next one may be late, and seconds."""
CROWD = 0.1
"""Waiting elements, as a share of those that are worked on, from which there is a queue: a few always wait for the next step."""


class ProbeEffect(IntEnum):
    """What follows for the source."""

    NONE = 0
    LOST = 1
    """It is not worth waiting for."""
    BETTER = 2
    """It may take work sooner."""


class ProbeState:
    """The looks at one source so far.

    Example:
        >>> from random import Random
        >>> source, sight = Source("a", Random(0)), Sight()
        >>> source.health.eject(0.0, 5.0)
        >>> sight.take(1.0, source, Look(ready=False), 1.0), sight.take(2.0, source, Look(ready=True), 1.0), source.ready_at(2.0)
        (<Change.NONE: 0>, <Change.BETTER: 2>, 2.0)
    """

    __slots__ = (
        "_answers", "_asked_at", "_away_since", "_believed", "_crowded", "_full", "_held_until", "_ready", "_requests", "_unready_at",
    )  # fmt: skip

    def __init__(self) -> None:
        self._ready: bool | None = None
        self._full: bool | None = None
        self._crowded = False
        self._answers = self._requests = 0
        self._believed = False  # it has said "ready", and done as it said
        self._away_since = inf  # says that it is not ready
        self._asked_at = -inf  # when it was last seen to have been sent something while it said so
        self._held_until = -inf  # not asked, by L2
        self._unready_at = -inf  # when it last did not say "ready"

    def take(self, now: float, source: Source, look: ProbeResult, interval: float) -> ProbeEffect:
        """One more look, ``interval`` seconds before the next: its source is changed; what follows for its tasks is returned."""
        tally, holds = source.tally, max(LEAST_VALID, VALID * interval)
        answered, self._answers = tally.ok > self._answers, tally.ok
        asked, self._requests = tally.sent > self._requests, tally.sent
        was_ready, self._ready = self._ready, look.ready
        was_full, self._full = self._full, _is_full(look)
        self._see_crowd(now, source, look, holds)
        if look.ready is False:
            self._asked_at = now if asked else self._asked_at
            return self._is_away(now, source, holds, answered=answered)
        better = False
        if look.ready:
            better = was_ready is not True and self._is_back(now, source)
            self._believed, self._away_since = True, inf
        else:
            self._unready_at = now
        if was_full and self._full is False:
            better |= source.gate.ease(now)
        return ProbeEffect.BETTER if better else ProbeEffect.NONE

    def _is_back(self, now: float, source: Source) -> bool:
        health, window = source.health, inner_of(source.window)
        if self._held_until > self._away_since and isinstance(window, AdaptiveLimit):
            window.returned(now, source.inflight)
        of_another_kind = health.open_until > max(self._held_until, now + 1.5 * LONGEST_OPEN)  # an account that is used up
        tried = not of_another_kind and health.try_now(now, self._unready_at)
        return source.gate.ease(now) or tried

    def _is_away(self, now: float, source: Source, seconds: float, *, answered: bool) -> ProbeEffect:
        health, self._unready_at = source.health, now
        self._away_since = min(self._away_since, now)
        if source.proven > self._away_since:
            self._believed = False
        patient = now - max(self._away_since, self._asked_at) <= LONGEST_AWAY
        if answered or health.down or not (self._believed and patient):
            return ProbeEffect.NONE
        self._held_until = now + seconds
        if not health.in_service:
            health.open_until = max(health.open_until, self._held_until)
            return ProbeEffect.NONE
        promising = source.worth_waiting_for(now)
        source.gate.hold(now, seconds)
        return ProbeEffect.LOST if promising else ProbeEffect.NONE

    def _see_crowd(self, now: float, source: Source, look: ProbeResult, seconds: float) -> None:
        was, self._crowded = self._crowded, (look.waiting or 0.0) >= max(1.0, CROWD * (look.running or 0.0))
        window = inner_of(source.window)
        if isinstance(window, AdaptiveLimit):
            window.crowded_until = now + seconds if was and self._crowded else -inf


def _is_full(look: ProbeResult) -> bool | None:
    if look.waiting is None and (look.running is None or look.most is None):
        return None
    return bool(look.waiting) or (look.running is not None and look.most is not None and look.running >= look.most)
