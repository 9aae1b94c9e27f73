"""How much memory something leaves behind."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable


def bytes_left_by(action: Callable[[], object]) -> int:
    """Bytes that are held after the action and were not before."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        action()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
