"""Applies the results of probes (health and metrics requests to a server) to its source.

A probe result counts only as far as it agrees with what happens to real requests. A server that always reports "ready" while it fails, or
"not ready" while it serves, changes nothing:

L1  Not ready, then ready: the server has returned. It is sent a request at once, without waiting for the end of its time out of service or
    its cooldown. A source that failed while it reported "ready" throughout waits as usual.
L2  Ready once, then not ready, and no answer since the last probe: the source is sent nothing until a probe reports ready, except for one
    request every half a minute. This uses the cooldown, not the health, because the source returns with the concurrency limit it had. A
    source that answers a request sent after it reported "not ready" is not believed until it reports "ready".
L3  Full, then not full: its cooldown ends. A ``Retry-After`` is still obeyed.
L4  More than a few requests wait inside the server, in two probes in a row: its concurrency limit does not grow. The elasticity of
    throughput shows the same, but only after one increase too many.

After such a change one request goes first, as without probes. Probes that report nothing, or stop, leave everything unchanged.
"""

from __future__ import annotations

from enum import IntEnum
from math import inf

from qreward.scheduler.health import LONGEST_OPEN
from qreward.scheduler.outcome import ProbeResult
from qreward.scheduler.state import Source

LONGEST_AWAY = 30.0
"""Seconds for which a source is sent nothing because of probes alone; then a request checks whether they are right."""
VALID, LEAST_VALID = 2.0, 2.0
"""For how long a probe result holds: so many probe intervals, since the next probe may be late, and at least so many seconds."""
CROWD = 0.1
"""Waiting items, as a share of those being processed, from which the server has a queue: a few always wait for its next step."""


class ProbeEffect(IntEnum):
    """Effect of a probe on the source."""

    NONE = 0
    LOST = 1
    """The source is no longer available soon."""
    BETTER = 2
    """The source may accept work sooner."""


class ProbeState:
    """State of the probes of one source.

    Example:
        >>> from random import Random
        >>> source, probes = Source("a", Random(0)), ProbeState()
        >>> source.health.eject(0.0, 5.0)
        >>> probes.take(1.0, source, ProbeResult(ready=False), 1.0), probes.take(2.0, source, ProbeResult(ready=True), 1.0)
        (<ProbeEffect.NONE: 0>, <ProbeEffect.BETTER: 2>)
        >>> source.ready_at(2.0)
        2.0
    """

    def __init__(self) -> None:
        self._ready: bool | None = None
        self._full: bool | None = None
        self._crowded = False
        self._answers = self._requests = 0
        self._believed = False  # it has reported "ready", and its requests did not contradict it
        self._away_since = inf  # since when it reports "not ready"
        self._asked_at = -inf  # last probe that found it had been sent a request while it reported "not ready"
        self._held_until = -inf  # sent nothing until then, by L2
        self._unready_at = -inf  # last probe that did not report "ready"

    def take(self, now: float, source: Source, look: ProbeResult, interval: float) -> ProbeEffect:
        """Apply a probe result to the source, and return the effect on its tasks. The next probe comes ``interval`` seconds later."""
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
            better |= source.cooldown.ease(now)
        return ProbeEffect.BETTER if better else ProbeEffect.NONE

    def _is_back(self, now: float, source: Source) -> bool:
        health = source.health
        if self._held_until > self._away_since:
            source.window.returned(now, source.inflight)
        of_another_kind = health.open_until > max(self._held_until, now + 1.5 * LONGEST_OPEN)  # out of service because its quota is used up
        tried = not of_another_kind and health.try_now(now, self._unready_at)
        return source.cooldown.ease(now) or tried

    def _is_away(self, now: float, source: Source, seconds: float, *, answered: bool) -> ProbeEffect:
        health, self._unready_at = source.health, now
        self._away_since = min(self._away_since, now)
        if source.proven > self._away_since:
            self._believed = False
        patient = now - max(self._away_since, self._asked_at) <= LONGEST_AWAY
        if answered or health.marked_unhealthy or not (self._believed and patient):
            return ProbeEffect.NONE
        self._held_until = now + seconds
        if not health.in_service:
            health.open_until = max(health.open_until, self._held_until)
            return ProbeEffect.NONE
        promising = source.available_soon(now)
        source.cooldown.hold(now, seconds)
        return ProbeEffect.LOST if promising else ProbeEffect.NONE

    def _see_crowd(self, now: float, source: Source, look: ProbeResult, seconds: float) -> None:
        was, self._crowded = self._crowded, (look.waiting or 0.0) >= max(1.0, CROWD * (look.running or 0.0))
        source.window.crowd(now + seconds if was and self._crowded else -inf)


def _is_full(look: ProbeResult) -> bool | None:
    if look.waiting is None and (look.running is None or look.most is None):
        return None
    return bool(look.waiting) or (look.running is not None and look.most is not None and look.running >= look.most)
