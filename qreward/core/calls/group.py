"""What functions of one pool share: how many tries may be in flight, and whose turn it is."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING
from weakref import WeakSet

from qreward.core.calls.adapting import Adaptive, kept
from qreward.core.calls.ranked import Ranked
from qreward.core.calls.terms import Adapting

if TYPE_CHECKING:
    from qreward.core.calls.function import Function
    from qreward.core.calls.lane import Lane

ADAPTIVE_START = 32
"""Tries in flight with which an adaptive limit begins where nobody has set one."""


class Group:
    """Tries in flight, and how many there may be, over all keys of all functions of a pool.

    Attributes:
        limit: tries that may be in flight now; inf without a limit.
        adaptive: the limit that moves, or None.
        ready: keys with a call that waits for nothing but room, each in the rank of that call.
    """

    __slots__ = ("_most", "adaptive", "functions", "inflight", "limit", "ready")

    def __init__(self) -> None:
        self.limit: float = inf
        self.adaptive: Adaptive | None = None
        self.inflight = 0
        self.functions: WeakSet[Function] = WeakSet()
        self.ready: Ranked[Lane] = Ranked()
        self._most: float = inf

    def follow(self) -> None:
        """Hold what its functions say now: of several numbers the least."""
        terms = [function.terms for function in self.functions]
        self._most = min((each.most for each in terms if each.most is not None), default=inf)
        adapting = [each.adapting for each in terms if each.rate is None and each.adapting is not None]
        start = ADAPTIVE_START if self._most == inf else self._most
        self.adaptive = kept(self.adaptive, min(adapting, key=_strictness, default=None), start, self._most)
        self.settle()

    def settle(self) -> None:
        """The limit that moves has moved."""
        self.limit = self._most if self.adaptive is None else self.adaptive.limit


def _strictness(adapting: Adapting) -> tuple[float, ...]:
    return adapting.most, adapting.least, adapting.errors, inf if adapting.seconds is None else adapting.seconds
