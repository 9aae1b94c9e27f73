"""Moved to ``merger``."""

from qreward.scoring.merger import MergedBatchWaiter as MergedBatchWaiter  # noqa: PLC0414
