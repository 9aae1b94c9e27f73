"""Merges single items from many callers into batch calls of one function: ``@batch`` and ``BatchQueue``.

``backlog`` and ``policy`` decide which items form a batch and when the batch is sent. They use neither a clock nor asyncio. ``worker`` and
``in_flight`` run the batches in an event loop. No module here depends on HTTP or endpoints. ``Backlog``, ``Item`` and ``halves`` are
public for code that sends lists in its own way.
"""

from __future__ import annotations

from qreward.batching.backlog import Backlog, Item, halves
from qreward.batching.decorator import batch
from qreward.batching.in_flight import batch_contexts
from qreward.batching.queue import BatchQueue, CallerStream
from qreward.batching.settings import BatchRecord, BatchSettings
from qreward.batching.stats import QueueStats

__all__ = [
    "Backlog",
    "BatchQueue",
    "BatchRecord",
    "BatchSettings",
    "CallerStream",
    "Item",
    "QueueStats",
    "batch",
    "batch_contexts",
    "halves",
]
