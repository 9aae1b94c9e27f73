"""How fast a server works on each of ``n`` requests at once, and the most it can do in all.

Work is counted in output tokens; a prefill of ``ttft`` seconds counts as the tokens a lone request gets in that time.
``Shared`` is an LLM server with continuous batching: with ``n`` sequences each gets ``r1 / (1 + n / h)`` tokens a second,
so throughput saturates at ``r1 * h`` (measured curves of vLLM on H100 and B200 have this shape); more than ``seqs`` wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Protocol

from simulation.steps import ONE, Steps

MOST = 2048
"""Largest number at once that is looked at."""
ENOUGH = 0.95
"""Share of the most throughput at which an oracle's window is large enough: beyond it only latency grows."""


class Law(Protocol):
    """The speed of one request among ``n``, as a function of time."""

    @property
    def stall(self) -> float:
        """Seconds for which an admission stops everything."""

    def speed(self, n: int, when: float) -> float:
        """Work a second of each of ``n`` requests."""

    def places(self, when: float) -> float:
        """How many are worked on at once; the rest wait in line."""

    def changes(self) -> tuple[float, ...]:
        """When the law changes."""


@dataclass(frozen=True)
class Alone:
    """Requests do not feel each other: ``tpot`` seconds a token, times ``speeds``."""

    tpot: float = 0.01
    speeds: Steps = ONE
    stall: float = 0.0

    def speed(self, n: int, when: float) -> float:  # noqa: ARG002 - the protocol's
        return self.speeds(when) / self.tpot

    def places(self, when: float) -> float:  # noqa: ARG002 - the protocol's
        return inf

    def changes(self) -> tuple[float, ...]:
        return self.speeds.changes()


@dataclass(frozen=True)
class Shared:
    """Continuous batching.

    Args:
        r1: tokens a second of a lone request.
        h: number at once at which each is half as fast.
        seqs: most sequences worked on at once, a replica.
        stall: seconds for which an admission stops decoding (prefill without chunks).
        speeds: factor on all speeds (brown-outs).
        replicas: how many servers stand behind the address, evenly loaded.
        thrash: number at once beyond which the cache thrashes: speed falls by 40 % until twice that number, and stays there.
    """

    r1: float = 60.0
    h: float = 48.0
    seqs: int = 256
    stall: float = 0.0
    speeds: Steps = ONE
    replicas: Steps = ONE
    thrash: Steps | None = None

    def speed(self, n: int, when: float) -> float:
        each = n / self.replicas(when)
        speed = self.speeds(when) * self.r1 / (1 + each / self.h)
        if self.thrash is not None and each > (point := self.thrash(when)):
            speed *= 1 - 0.4 * min(1.0, (each - point) / point)
        return speed

    def places(self, when: float) -> float:
        return self.seqs * self.replicas(when)

    def changes(self) -> tuple[float, ...]:
        return tuple(sorted({*self.speeds.changes(), *self.replicas.changes(), *(self.thrash.changes() if self.thrash else ())}))


@dataclass(frozen=True)
class Scoring:
    """A GPU reward model: ``seconds`` for a request as long as no more than ``width`` come at once, then in proportion."""

    seconds: float = 0.04
    width: int = 32
    stall: float = 0.0

    def speed(self, n: int, when: float) -> float:  # noqa: ARG002 - the protocol's
        return min(1.0, self.width / n) / self.seconds

    def places(self, when: float) -> float:  # noqa: ARG002 - the protocol's
        return inf

    def changes(self) -> tuple[float, ...]:
        return ()


@dataclass(frozen=True)
class Yield:
    """What a law gives in all, by the number at once, at one time.

    Args:
        law: the law.
        when: the time.
        size: mean work of a request, which matters if admissions stall.
        most: largest number at once that is let in.
    """

    law: Law
    when: float
    size: float
    most: int = MOST

    @cached_property
    def rates(self) -> list[float]:
        """Work a second with 1, 2, ... at once."""
        law, when = self.law, self.when
        numbers = range(1, int(min(self.most, law.places(when), MOST)) + 1)
        flat = [n * law.speed(n, when) for n in numbers]
        return [rate / (1 + law.stall * rate / self.size) for rate in flat]

    def best(self) -> float:
        """The most work a second."""
        return max(self.rates)

    def window(self) -> int:
        """The least number at once that gives nearly the most."""
        enough = ENOUGH * self.best()
        return next(n for n, rate in enumerate(self.rates, 1) if rate >= enough)
