"""Merges single items from many callers into batch calls of one function: ``@batch`` and ``BatchQueue``.

``collector`` decides which items form a batch and when the batch is sent. It uses neither a clock nor asyncio. ``worker`` and ``in_flight``
run the batches in an event loop. No module here depends on HTTP or endpoints.
"""

from __future__ import annotations

from qreward.batching.decorator import batch
from qreward.batching.queue import BatchQueue, CallerStream
from qreward.batching.settings import BatchRecord, BatchSettings
from qreward.batching.stats import QueueStats

__all__ = [
    "BatchQueue",
    "BatchRecord",
    "BatchSettings",
    "CallerStream",
    "QueueStats",
    "batch",
]
