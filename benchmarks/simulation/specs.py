"""The parameters of a model server, and its capacity as a function of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import exp, log
from random import Random

from simulation.doors import Job, Rate
from simulation.laws import MOST, Alone, Law, Scoring, Yield
from simulation.steps import Steps, Walk, over


@dataclass(frozen=True, slots=True)
class Outputs:
    """Lengths in tokens. Outputs are lognormal: ``mean`` is their mean, ``sigma`` that of the logarithm. Prompts are (share, tokens).

    Example:
        >>> next(Outputs(200.0, 0.0).jobs(Random(1))).tokens
        200.0
    """

    mean: float = 200.0
    sigma: float = 0.8
    prompts: tuple[tuple[float, int], ...] = ()

    def jobs(self, rng: Random) -> Iterator[Job]:
        """Yield jobs without end."""
        mu, sigma, prompts = log(self.mean) - self.sigma**2 / 2, self.sigma, self.prompts
        while True:
            tokens = exp(rng.gauss(mu, sigma))
            yield Job(tokens, rng.choices([size for _, size in prompts], [share for share, _ in prompts])[0] if prompts else 0)


DEFAULT_COLUMNS = Outputs()
ALONE = Alone()


@dataclass(frozen=True)
class Spec:
    """One server.

    Args:
        law: its speed model.
        ttft: seconds to the first token of a single request, in addition to the time of its tokens.
        cap: most requests that it holds at once; None for no limit.
        cap_hint: ``Retry-After`` of a rejection by the cap, in seconds.
        rates: rate limits on requests or tokens.
        reject_after: seconds until a rejection arrives.
        away: (from, to) in seconds: all requests are rejected with 503.
        dead: (from, to) in seconds: requests held at the start are never answered, and new requests fail after ``dead_after`` seconds.
        stray: share of requests rejected with 503 at random.
        resets, broken, hangs: shares of requests whose connection is reset, whose response is unreadable, that are never answered.
        sudden: share of requests that fail after ``sudden_after`` seconds without any work.
        usage: whether responses report their tokens.
        outputs: lengths of its requests, if it is the only server.
    """

    law: Law = ALONE
    ttft: float = 0.15
    cap: Steps | Walk | None = None
    cap_hint: float | None = None
    rates: tuple[Rate, ...] = ()
    reject_after: float = 0.03
    away: tuple[float, float] | None = None
    dead: tuple[float, float] | None = None
    dead_after: float = 5.0
    stray: float = 0.0
    resets: float = 0.0
    broken: float = 0.0
    hangs: float = 0.0
    sudden: float = 0.0
    sudden_after: float = 0.03
    usage: bool = True
    outputs: Outputs = DEFAULT_COLUMNS

    def drawn(self, rng: Random) -> Spec:
        """Return a copy in which the random parameters of the server are drawn."""
        return replace(self, cap=self.cap.draw(rng)) if isinstance(self.cap, Walk) else self

    @property
    def prefill(self) -> float:
        """Work before the first token, in tokens."""
        return 0.0 if isinstance(self.law, Scoring) else self.ttft * self.law.speed(1, 0.0)

    def limit(self, when: float) -> int:
        """Return the largest number of requests that it can hold at once, at most ``MOST``."""
        assert not isinstance(self.cap, Walk), "drawn() first"
        return MOST if self.cap is None else min(MOST, int(self.cap(when)))

    def _times(self) -> tuple[float, ...]:
        assert not isinstance(self.cap, Walk), "drawn() first"
        return (*self.law.changes(), *(self.cap.changes() if self.cap else ()), *(self.away or ()), *(self.dead or ()))

    def _open(self, when: float) -> bool:
        return not any(span and span[0] <= when < span[1] for span in (self.away, self.dead))

    def capacity(self, mean: float) -> Steps:
        """Work per second with the best number of concurrent requests of ``mean`` tokens. Rate limits are ignored."""
        size = mean + self.prefill
        return over(self._times(), lambda when: Yield(self.law, when, size, self.limit(when)).best() if self._open(when) else 0.0)

    def window(self, mean: float) -> Steps:
        """Return the limit of the oracle: the cap, or the smallest number of concurrent requests with nearly the maximum throughput."""
        size = mean + self.prefill

        def best(when: float) -> float:
            return self.limit(when) if isinstance(self.law, Alone) else Yield(self.law, when, size, self.limit(when)).window()

        return over(self._times(), best)
