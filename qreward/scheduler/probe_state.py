"""Applies the results of probes (requests for the state of a server) to the source of that server.

The outcomes of requests take precedence over probes.

L1  If the server reports "ready" and did not report it before, the cooldown or the time out of service of its source ends, and one request
    is sent.
L2  If the server reported "ready", now reports "not ready", and has answered no request since the last probe, its source is sent only one
    request every 30 seconds until the server reports "ready". This is a cooldown, so that the source keeps its concurrency limit. If the
    server answers a request that was sent after a report of "not ready", this rule is suspended until the server reports "ready".
L3  If the server was full and is no longer full, the cooldown of its source ends, unless a ``Retry-After`` asks for a longer wait.
L4  While two probes in a row find many requests waiting inside the server, the concurrency limit of its source does not grow.

A probe that reports nothing changes nothing.
"""

from __future__ import annotations

from math import inf

from qreward.scheduler.health import OPEN
from qreward.scheduler.outcome import ProbeResult
from qreward.scheduler.source import Source

LONGEST_AWAY = 30.0
"""Maximum number of seconds for which no request is sent to a server that reports "not ready". Then one request is sent anyway."""
VALID, LEAST_VALID = 2.0, 2.0
"""``VALID``: number of probe intervals for which a probe result is valid. It is more than one, because the next probe may be late.
``LEAST_VALID``: number of seconds for which a probe result is valid at least."""
CROWD = 0.1
"""Minimum ratio of waiting items to running items at which a server counts as crowded. A lower ratio is usual."""


class ProbeState:
    """Keeps the state of the probes of one source, and applies each result to the source."""

    def __init__(self) -> None:
        self.trouble: str | None = None  # the problem of the probes that was logged last
        self._ready: bool | None = None
        self._full: bool | None = None
        self._crowded = False
        self._answers = self._requests = 0
        self._believed = False  # L2 applies: "ready" was reported, and no request sent after a later "not ready" was answered
        self._away_since = inf  # time of the first "not ready" since the last "ready"; inf if there is none
        self._asked_at = -inf  # time of the last "not ready" that came after a new request (a request sent since the probe before)
        self._held_until = -inf  # end of the last cooldown started by L2
        self._unready_at = -inf  # time of the last probe that did not report "ready"

    def take(self, now: float, source: Source, look: ProbeResult, interval: float) -> bool:
        """Apply the result of a probe that is made every ``interval`` seconds. Returns True if the availability of the source changed."""
        tally, valid_until = source.tally, now + max(LEAST_VALID, VALID * interval)
        answered, self._answers = tally.ok > self._answers, tally.ok
        asked, self._requests = tally.sent > self._requests, tally.sent
        was_ready, self._ready = self._ready, look.ready
        was_full, self._full = self._full, _is_full(look)
        was_crowded, self._crowded = self._crowded, (look.waiting or 0.0) >= max(1.0, CROWD * (look.running or 0.0))
        source.window.crowd(valid_until if was_crowded and self._crowded else -inf)
        if not look.ready:
            self._unready_at = now
        if look.ready is False:
            self._asked_at = now if asked else self._asked_at
            return self._is_away(now, source, valid_until, answered=answered)
        better = False
        if look.ready:
            better = was_ready is not True and self._is_back(now, source)
            self._believed, self._away_since = True, inf
        if was_full and self._full is False:
            better |= source.cooldown.ease(now)
        return better

    def _is_back(self, now: float, source: Source) -> bool:
        health = source.health
        if self._held_until > self._away_since:
            source.window.returned(now, source.inflight)
        of_another_kind = health.open_until > max(self._held_until, now + 1.5 * OPEN)  # away because its quota is used up
        tried = not of_another_kind and health.try_now(now, self._unready_at)
        return source.cooldown.ease(now) or tried

    def _is_away(self, now: float, source: Source, until: float, *, answered: bool) -> bool:
        health = source.health
        self._away_since = min(self._away_since, now)
        if source.proven > self._away_since:
            self._believed = False
        patient = now - max(self._away_since, self._asked_at) <= LONGEST_AWAY
        if answered or health.marked_unhealthy or not (self._believed and patient):
            return False
        self._held_until = until
        if not health.in_service:
            health.open_until = max(health.open_until, until)
            return False
        promising = source.available_soon(now)
        source.cooldown.hold(now, until - now)
        return promising


def _is_full(look: ProbeResult) -> bool | None:
    if look.waiting is None and (look.running is None or look.most is None):
        return None
    return bool(look.waiting) or (look.running is not None and look.most is not None and look.running >= look.most)
