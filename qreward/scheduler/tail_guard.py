"""The end of a bulk: a slow source does not take one of the last items if the quick ones will be done with it sooner.

Earliest completion time, as in list scheduling for unequal machines (HEFT, Topcuoglu et al., IEEE TPDS 2002). Lengths are
not known beforehand, and it is the long answers that end last: the comparison is made for one that is longer than most.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from qreward.scheduler.stats.output_lengths import LONG

if TYPE_CHECKING:
    from qreward.scheduler.endpoint_state import Source
    from qreward.scheduler.pool import Pool

MARGIN = 2.0
"""Times the others' end that a source's own may be. A strict 1.3 halves the copies but leaves capacity idle (simulated)."""
SWAY = 1.1
"""Paces move a little between two looks: a source is not held back for that."""
REFRESH, SHARE = 0.1, 0.1
"""Least seconds between two looks at the whole pool, and the share of the time that is left which passes between them."""
LONGEST = 5.0
"""Most seconds between two looks."""


class TailGuard:
    """Which sources are too slow for what is left of a pool's bulks."""

    __slots__ = ("_limit", "_look_at")

    def __init__(self) -> None:
        self._look_at = -inf
        self._limit = inf

    def holds_back(self, now: float, source: Source, pool: Pool) -> bool:
        """Whether the source should leave the rest of the bulks to the others."""
        if now >= self._look_at:
            self._limit, drain = self._slowest(now, pool)
            self._look_at = now + max(REFRESH, min(SHARE * drain, LONGEST))
        return self._limit < inf and pool.lengths.pace(source.latency) > SWAY * self._limit

    @staticmethod
    def _slowest(now: float, pool: Pool) -> tuple[float, float]:
        """The slowest pace (seconds a token) that still helps, inf while much is left or little known; and seconds until all is taken."""
        left, lengths = pool.queue.left(), pool.lengths
        long = lengths.at(1 - LONG)
        if left == inf or not long:
            return inf, 0.0
        rates = [(lengths.pace(source.latency), source.rate()) for source in pool.sources if source.worth_waiting_for(now)]
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
