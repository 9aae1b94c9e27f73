"""Settings of the whole process, which the package changes only if the program calls ``tune_gc``."""

from __future__ import annotations

import gc


def tune_gc() -> None:
    """Make the cyclic garbage collector run less often: ``gc.set_threshold(50_000, 20, 100)``.

    With thousands of requests in flight and Python's default threshold (700), the collector repeatedly traverses live objects without
    finding garbage. This work slows down the package and the program. A library must not change the setting on its own, so call this
    function once at the start of a process that sends many requests. ``gc.set_threshold(700, 10, 10)`` restores the default.

    Example:
        >>> from qreward import tune_gc
        >>> tune_gc()
    """
    gc.set_threshold(50_000, 20, 100)
