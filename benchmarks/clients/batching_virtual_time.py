"""An event loop whose clock jumps to the next timer, for environments without qreward.

It does what ``qreward.testing.VirtualTimeLoop`` does, with the standard library alone. The two give the same figures.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any

TURN = 1e-9
"""Seconds by which the clock advances in one iteration of the loop. Otherwise a timer whose remaining time is too small for a float would
set itself again forever."""


class JumpingSelector(selectors.DefaultSelector):
    """Waits by advancing the clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if timeout is None and not events:
            raise RuntimeError("nothing will ever happen again")
        self.now += max(TURN, 0.0 if events or timeout is None else timeout)
        return events


class Loop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self) -> None:
        self._clock = JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Return the seconds since the loop was made."""
        return self._clock.now


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Do what ``asyncio.run`` does, in virtual time. Remaining tasks are cancelled."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(main)
