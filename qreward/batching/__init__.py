"""Merges single items from many callers into batch calls of one function: ``@batch`` and ``BatchQueue``."""

from __future__ import annotations

from qreward.batching.decorator import batch
from qreward.batching.queue import BatchQueue
from qreward.batching.settings import BatchRecord, BatchSettings, QueueStats

__all__ = ["BatchQueue", "BatchRecord", "BatchSettings", "QueueStats", "batch"]
