"""What one model server is, as parameters; and how much it can do, as a function of time."""

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
    """Output lengths in tokens: lognormal with this mean; ``sigma`` is that of the logarithm. Prompts by (share, tokens).

    Example:
        >>> next(Outputs(200.0, 0.0).jobs(Random(1))).tokens
        200.0
    """

    mean: float = 200.0
    sigma: float = 0.8
    prompts: tuple[tuple[float, int], ...] = ()

    def jobs(self, rng: Random) -> Iterator[Job]:
        """Without end."""
        mu, sigma, prompts = log(self.mean) - self.sigma**2 / 2, self.sigma, self.prompts
        while True:
            tokens = exp(rng.gauss(mu, sigma))
            yield Job(tokens, rng.choices([size for _, size in prompts], [share for share, _ in prompts])[0] if prompts else 0)


USUAL = Outputs()
ALONE = Alone()


@dataclass(frozen=True)
class Spec:
    """One server.

    Args:
        law: how fast it works.
        ttft: seconds to the first token of a lone request, before its tokens count.
        cap: most requests it holds at once; None is any number.
        cap_hint: ``Retry-After`` of a reject by the cap.
        rates: limits on requests or tokens a time.
        reject_after: seconds until a reject is back.
        away: (from, to) in which everything is answered with 503.
        dead: (from, to) in which nobody is there: what it holds then is never answered, new requests fail after ``dead_after``.
        stray: share answered with 503 for no reason.
        resets, broken, hangs: shares that fail on the way, that come back unreadable, that are never answered.
        sudden: share that fails within ``sudden_after`` seconds and takes no work.
        usage: whether answers tell their tokens.
        outputs: what it is asked for, where it is the only server.
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
    outputs: Outputs = USUAL

    def drawn(self, rng: Random) -> Spec:
        """With what is random about the server itself decided."""
        return replace(self, cap=self.cap.draw(rng)) if isinstance(self.cap, Walk) else self

    @property
    def prefill(self) -> float:
        """Work that comes before the first token, as tokens."""
        return 0.0 if isinstance(self.law, Scoring) else self.ttft * self.law.speed(1, 0.0)

    def limit(self, when: float) -> int:
        """Most it can hold at once, as far as it matters."""
        assert not isinstance(self.cap, Walk), "drawn() first"
        return MOST if self.cap is None else min(MOST, int(self.cap(when)))

    def _times(self) -> tuple[float, ...]:
        assert not isinstance(self.cap, Walk), "drawn() first"
        return (*self.law.changes(), *(self.cap.changes() if self.cap else ()), *(self.away or ()), *(self.dead or ()))

    def _open(self, when: float) -> bool:
        return not any(span and span[0] <= when < span[1] for span in (self.away, self.dead))

    def capacity(self, mean: float) -> Steps:
        """Work a second at the best number of requests at once, rates left out; ``mean`` tokens are a request's."""
        size = mean + self.prefill
        return over(self._times(), lambda when: Yield(self.law, when, size, self.limit(when)).best() if self._open(when) else 0.0)

    def window(self, mean: float) -> Steps:
        """The window an oracle would set: the cap, or the least number at once that gives nearly the most."""
        size = mean + self.prefill

        def best(when: float) -> float:
            return self.limit(when) if isinstance(self.law, Alone) else Yield(self.law, when, size, self.limit(when)).window()

        return over(self._times(), best)
