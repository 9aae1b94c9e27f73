"""Speed models of a server: its speed for each of ``n`` concurrent requests, and its maximum throughput.

Work is measured in output tokens. A prefill of ``ttft`` seconds counts as the tokens that a single request gets in that time.
``Shared`` is an LLM server with continuous batching: each of ``n`` sequences gets ``r1 / (1 + n / h)`` tokens per second,
so throughput saturates at ``r1 * h`` (measured curves of vLLM on H100 and B200 have this shape). Sequences beyond ``seqs`` wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Protocol

from simulation.steps import ONE, Steps

MOST = 2048
"""Largest number of concurrent requests for which throughput is computed."""
ENOUGH = 0.95
"""Share (0 to 1) of the maximum throughput that the limit of the oracle must reach. With a higher limit, mainly the latency grows."""


class Law(Protocol):
    """The speed of each of ``n`` concurrent requests, as a function of time."""

    @property
    def stall(self) -> float:
        """Seconds for which all requests pause when a request is admitted."""

    def speed(self, n: int, when: float) -> float:
        """Work per second on each of ``n`` requests."""

    def places(self, when: float) -> float:
        """Return the largest number of requests that are processed at once; further requests wait in a queue."""

    def changes(self) -> tuple[float, ...]:
        """Return the times at which the model changes."""


@dataclass(frozen=True)
class Alone:
    """Requests do not affect each other: each token takes ``tpot`` seconds; ``speeds`` is a factor on the speed."""

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
        r1: tokens per second of a single request.
        h: number of concurrent requests at which each is half as fast.
        seqs: most sequences processed at once per replica.
        stall: seconds for which an admission stops decoding (prefill without chunks).
        speeds: factor on all speeds (brown-outs).
        replicas: number of evenly loaded servers behind the address.
        thrash: number of concurrent requests per replica beyond which the cache thrashes. The speed falls by up to 40 %, which is reached
            at twice that number.
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
    """A GPU reward model: up to ``width`` concurrent requests take ``seconds`` each; beyond that, the time grows in proportion."""

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
    """The total throughput of a speed model at one time, by the number of concurrent requests.

    Args:
        law: the speed model.
        when: the time in seconds.
        size: mean work of a request, which matters if admissions stall.
        most: most concurrent requests that are admitted.
    """

    law: Law
    when: float
    size: float
    most: int = MOST

    @cached_property
    def rates(self) -> list[float]:
        """Work per second with 1, 2, ... concurrent requests."""
        law, when = self.law, self.when
        numbers = range(1, int(min(self.most, law.places(when), MOST)) + 1)
        flat = [n * law.speed(n, when) for n in numbers]
        return [rate / (1 + law.stall * rate / self.size) for rate in flat]

    def best(self) -> float:
        """Return the maximum work per second."""
        return max(self.rates)

    def window(self) -> int:
        """Return the smallest number of concurrent requests with nearly the maximum throughput."""
        enough = ENOUGH * self.best()
        return next(n for n, rate in enumerate(self.rates, 1) if rate >= enough)
