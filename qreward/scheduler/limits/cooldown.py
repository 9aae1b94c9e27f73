"""When a source that said "too much" may be asked again.

A hint (``Retry-After``) is obeyed to the letter; one that is too long was shortened before it comes here. Without one the gate
closes for 0.25 s, doubling while rejects go on.
After it one request goes first; the rest follow when that one was not turned away within a few reject delays.
Which rejects mean that, and which only that the source is full, its window decides.
"""

from __future__ import annotations

from math import inf
from random import Random

FIRST = 0.25
LONGEST = 3.2
"""Longest wait without a hint, before jitter of up to 1.5: resumption within 5 s of a source's return."""


class Cooldown:
    """Open, closed until a time, or open for one probe.

    Attributes:
        opens_at: the time before which nothing may be sent.
        closed: how often it closed without a probe that held; 0 while it is open.
        unheeded: seconds for which the source asked to be left alone, if that is more than it is; else None.
    """

    __slots__ = ("_asked", "_closed_at", "_probe_at", "_reject_after", "_rng", "closed", "opens_at", "unheeded")

    def __init__(self, rng: Random) -> None:
        self.opens_at = -inf
        self._rng = rng
        self.closed = 0
        self.unheeded: float | None = None
        self._closed_at = -inf
        self._asked = -inf  # until when a hint holds
        self._probe_at: float | None = None
        self._reject_after = 0.0  # seconds a reject takes, moving average

    def sent(self, now: float) -> None:
        """A request was sent: the first after a closing is the probe, the first after that opens the gate for good."""
        if self._probe_at is None:
            self._probe_at = now
            self.opens_at = now + max(FIRST, 3 * self._reject_after)
        else:
            self._open()

    def ok(self, sent_at: float) -> None:
        """An answer came."""
        if self._probe_at is not None and sent_at >= self._probe_at:
            self._open()

    def rejected(self, now: float, sent_at: float, hint: float | None) -> None:
        """Turned away; ``hint`` is the wait in seconds that the source asks for."""
        self._reject_after += 0.2 * (now - sent_at - self._reject_after)
        if sent_at >= self._closed_at:  # else it was under way when the gate closed, and tells nothing new
            self.closed = min(self.closed + 1, 8)
            self._closed_at = now
            self._probe_at = None
            pause = min(LONGEST, FIRST * 2.0 ** (self.closed - 1)) * self._rng.uniform(0.5, 1.5)
            self.opens_at = max(self.opens_at, now + pause)  # a longer hint may hold already
        if hint is not None:
            self.opens_at, self._asked = max(self.opens_at, now + hint), max(self._asked, now + hint)
            self.closed, self._probe_at = max(1, self.closed), None  # a probe under way was sent before this was said

    def hold(self, now: float, seconds: float) -> None:
        """It is said to take nothing for now. Who comes first afterwards is the probe."""
        self.opens_at = max(self.opens_at, now + seconds)
        self.closed, self._probe_at = max(1, self.closed), None

    def ease(self, now: float) -> bool:
        """It is said to have room again: only what the source itself asked us to wait is still waited for. True if that is less."""
        at = max(now, self._asked)
        if not self.closed or self._probe_at is not None or at >= self.opens_at:
            return False
        self.opens_at = at
        return True

    def _open(self) -> None:
        self.closed, self._probe_at, self.opens_at, self._asked = 0, None, -inf, -inf
