"""Settings of the process that belong to the host, changed only when it asks for it."""

from __future__ import annotations

import gc


def tune_gc() -> None:
    """Let the cyclic garbage collector run less often: ``gc.set_threshold(50_000, 20, 100)``.

    With thousands of requests in flight Python's default threshold (700) makes the collector walk live objects over and over,
    in this library's work and in the host's alike, though no garbage is there. A library must not change that on its own;
    call this once at start-up of a process that sends much. ``gc.set_threshold(700, 10, 10)`` restores the default.

    Example:
        >>> from qreward import tune_gc
        >>> tune_gc()
    """
    gc.set_threshold(50_000, 20, 100)
