"""Applies the results of probes (health and metrics requests to a server) to the source of that server.

The outcomes of requests take precedence over probes. A server that reports "ready" while its requests fail is treated as failing. A server
that reports "not ready" while it answers requests is treated as working.

L1  If the server reports "ready" and did not report it before, the cooldown or the time out of service of its source ends, and one request
    is sent.
L2  If the server reported "ready", now reports "not ready", and has answered no request since the last probe, its source is sent only one
    request every 30 seconds until the server reports "ready". The rule starts a cooldown instead of taking the source out of service, so
    that the source keeps its concurrency limit. If the server answers a request that was sent after a report of "not ready", this rule is
    suspended until the server reports "ready".
L3  If the server was full and is no longer full, the cooldown of its source ends, unless a ``Retry-After`` asks for a longer wait.
L4  While two probes in a row find many requests waiting inside the server, the concurrency limit of its source does not grow. Without this
    rule, the limit would first be raised too far, and would be lowered again when the raise did not increase throughput.

A probe that reports nothing changes nothing.
"""

from __future__ import annotations

from enum import IntEnum
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
"""Minimum ratio of waiting items to running items at which a server counts as crowded. At least one item must wait. A lower ratio is usual:
a few items always wait for the server's next step."""


class ProbeEffect(IntEnum):
    """The effect that a probe had on the source."""

    NONE = 0
    LOST = 1
    """Before the probe the source was expected to accept work within about a second. Now this is no longer expected."""
    BETTER = 2
    """The source may be sent a request sooner than before."""


class ProbeState:
    """Keeps the state of the probes of one source, and applies each result to the source.

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
        self._believed = False  # L2 applies: "ready" was reported, and no request sent after a later "not ready" was answered
        self._away_since = inf  # time of the first "not ready" since the last "ready"; inf if there is none
        self._asked_at = -inf  # time of the last "not ready" that came after a new request (a request sent since the probe before)
        self._held_until = -inf  # end of the last cooldown started by L2
        self._unready_at = -inf  # time of the last probe that did not report "ready"

    def take(self, now: float, source: Source, look: ProbeResult, interval: float) -> ProbeEffect:
        """Apply a probe result.

        Args:
            now: the time of the result, in seconds.
            source: the source that was probed.
            look: the result of the probe.
            interval: seconds until the next probe.

        Returns:
            How the availability of the source changed.
        """
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
        of_another_kind = health.open_until > max(self._held_until, now + 1.5 * OPEN)  # away because its quota is used up

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
