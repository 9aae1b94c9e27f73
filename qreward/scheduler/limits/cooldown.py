"""The cooldown of a source that rejected requests because of overload: until when nothing is sent to it.

A hint (``Retry-After``) is obeyed exactly; ``failure_policy`` has already capped one that is too long. Without a hint the cooldown lasts
0.25 s, doubling while rejects continue. Afterwards one request is sent as a probe. The others follow when the probe was not rejected within
a few times the usual delay of a reject. The concurrency limit decides which rejects start a cooldown and which only mean that the source
is full.
"""

from __future__ import annotations

from math import inf
from random import Random

FIRST = 0.25
LONGEST = 3.2
"""Longest wait in seconds without a hint, before jitter of up to 1.5 times, so that sending resumes within 5 s of a source's return."""


class Cooldown:
    """Inactive, active until a time, or open for one probe.

    Attributes:
        opens_at: the time before which nothing may be sent.
        closed: cooldowns in a row without a successful probe; 0 while it is inactive.
        unheeded: seconds for which the source asked to wait, if that was capped; else None.
    """

    __slots__ = ("_asked", "_closed_at", "_probe_at", "_reject_after", "_rng", "closed", "opens_at", "uncapped_hint")

    def __init__(self, rng: Random) -> None:
        self.opens_at = -inf
        self._rng = rng
        self.closed = 0
        self.uncapped_hint: float | None = None
        self._closed_at = -inf
        self._asked = -inf  # the latest hint holds until then
        self._probe_at: float | None = None
        self._reject_after = 0.0  # seconds a reject takes, moving average

    def sent(self, now: float) -> None:
        """A request was sent. The first one after a cooldown is the probe; the next one ends the cooldown."""
        if self._probe_at is None:
            self._probe_at = now
            self.opens_at = now + max(FIRST, 3 * self._reject_after)
        else:
            self._open()

    def ok(self, sent_at: float) -> None:
        """An answer arrived."""
        if self._probe_at is not None and sent_at >= self._probe_at:
            self._open()

    def rejected(self, now: float, sent_at: float, hint: float | None) -> None:
        """A request was rejected. ``hint`` is the wait in seconds that the source requests, or None."""
        self._reject_after += 0.2 * (now - sent_at - self._reject_after)
        if sent_at >= self._closed_at:  # otherwise it was sent before this cooldown and adds no information
            self.closed = min(self.closed + 1, 8)
            self._closed_at = now
            self._probe_at = None
            pause = min(LONGEST, FIRST * 2.0 ** (self.closed - 1)) * self._rng.uniform(0.5, 1.5)
            self.opens_at = max(self.opens_at, now + pause)  # an earlier hint may be longer
        if hint is not None:
            self.opens_at, self._asked = max(self.opens_at, now + hint), max(self._asked, now + hint)
            self.closed, self._probe_at = max(1, self.closed), None  # a probe in flight was sent before this hint

    def hold(self, now: float, seconds: float) -> None:
        """Start a cooldown because a probe of the server reports that it is not ready. The first request afterwards is the probe."""
        self.opens_at = max(self.opens_at, now + seconds)
        self.closed, self._probe_at = max(1, self.closed), None

    def ease(self, now: float) -> bool:
        """End the cooldown because the server reports free capacity; a hint of the source still holds. True if that is earlier."""
        at = max(now, self._asked)
        if not self.closed or self._probe_at is not None or at >= self.opens_at:
            return False
        self.opens_at = at
        return True

    def _open(self) -> None:
        self.closed, self._probe_at, self.opens_at, self._asked = 0, None, -inf, -inf
