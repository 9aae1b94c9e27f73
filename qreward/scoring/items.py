"""Moved to ``merge_queue`` and ``merger``."""

from qreward.scoring.merge_queue import MergedItem as MergedItem  # noqa: PLC0414
from qreward.scoring.merger import ItemWaiter as ItemWaiter  # noqa: PLC0414
