"""Moved to ``sizing``."""

from qreward.scoring.sizing import KnownLists as KnownLists  # noqa: PLC0414
