"""Keeps a slow source from one of the last items of a batch if faster sources will finish that item sooner.

The rule is earliest completion time, as in list scheduling for unequal machines (HEFT, Topcuoglu et al., IEEE TPDS 2002). Output lengths
are not known beforehand, and long answers end last, so the comparison assumes an answer that is longer than most.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from qreward.scheduler.stats.output_lengths import LONG

if TYPE_CHECKING:
    from qreward.scheduler.endpoint_state import Source
    from qreward.scheduler.pool import Pool

MARGIN = 2.0
"""A source's finish time may be this many times that of the faster ones. A strict 1.3 halves the copies but leaves capacity idle
(simulated)."""
SWAY = 1.1
"""Tolerance for small changes of seconds per token between two evaluations of the pool."""
REFRESH, SHARE = 0.1, 0.1
"""Least seconds between two evaluations of the pool, and the time between them as a share of the remaining time of its batches."""
LONGEST = 5.0
"""Most seconds between two evaluations."""


class TailGuard:
    """Decides which sources are too slow for the remaining items of a pool's batches."""

    __slots__ = ("_limit", "_look_at")

    def __init__(self) -> None:
        self._look_at = -inf
        self._limit = inf

    def holds_back(self, now: float, source: Source, pool: Pool) -> bool:
        """Return whether the source should leave the remaining batch items to faster sources."""
        if now >= self._look_at:
            self._limit, drain = self._slowest(now, pool)
            self._look_at = now + max(REFRESH, min(SHARE * drain, LONGEST))
        return self._limit < inf and pool.lengths.pace(source.latency) > SWAY * self._limit

    @staticmethod
    def _slowest(now: float, pool: Pool) -> tuple[float, float]:
        """Return the highest seconds per token that still helps, and the seconds until all items are taken.

        The first is inf while much is left or little is known.
        """
        left, lengths = pool.queue.left(), pool.lengths
        long = lengths.at(1 - LONG)
        if left == inf or not long:
            return inf, 0.0
        rates = [(lengths.pace(source.latency), source.rate()) for source in pool.sources if source.available_soon(now)]
        rate = 0.0
        quickest = slowest = limit = inf
        for pace, each in sorted((pace, each) for pace, each in rates if pace):
            if not rate:
                quickest = pace
            elif limit == inf and long * pace > MARGIN * (left / rate + long * quickest):
                limit = slowest
            slowest = pace
            rate += each
        return limit, left / rate if rate else 0.0
