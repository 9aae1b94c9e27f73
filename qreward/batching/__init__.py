"""Many callers, one call: ``@batch`` and ``BatchQueue`` merge single items into batches of one function.

The decisions are in ``backlog``, ``forming`` and ``cap``, which know no clock and no asyncio; ``desk`` and ``running`` carry them
out in an event loop. Nothing here knows HTTP or endpoints. ``Backlog``, ``Item`` and ``halves`` are the seam for those who send
lists in another way.
"""

from __future__ import annotations

from qreward.batching.backlog import Backlog, Item, halves
from qreward.batching.decorator import batch
from qreward.batching.in_flight import batch_contexts
from qreward.batching.queue import BatchQueue
from qreward.batching.settings import BatchRecord, Settings
from qreward.batching.stats import QueueStats
from qreward.batching.streaming import CallerStream

__all__ = ["Backlog", "BatchQueue", "BatchRecord", "CallerStream", "Item", "QueueStats", "Settings", "batch", "batch_contexts", "halves"]
