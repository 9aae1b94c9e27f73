"""The concurrency limiters to compare: the library's own, an oracle, and published algorithms.

Published algorithms keep their constants, but not their default bounds. Here the bounds are 1 to 2048, so that the algorithms are compared
and not their bounds. All of them are combined with the library's cooldown, so they get fewer rejections than the originals.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from random import Random

from qreward.scheduler.limits.concurrency import ConcurrencyLimit, Reject
from qreward.scheduler.source import Source, make_source
from qreward.settings.policies import Limits
from simulation.agenda import Agenda
from simulation.specs import Spec
from simulation.steps import Steps
from simulation.world import World

LEAST, MOST = 1, 2048
Make = Callable[[str, Random, World], Source]
"""Creates the source for a server."""


class Fixed(ConcurrencyLimit):
    """A semaphore with a fixed limit. Other code may change the limit."""

    def follow(self, agenda: Agenda, limit: Steps) -> None:
        """Set the limit by a known function of time."""
        for when in limit.changes():
            agenda.at(when, self._move, limit(when))

    def _move(self, limit: float) -> None:
        self.limit = max(1, int(limit))


class Known(Fixed):
    """A limit that is known to be right: a rejection amid successes does not mean that the server is full."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._good = 0  # successes since the last rejection

    def ok(self, _now: float, _sent_at: float, _tokens: int | None, _inflight: int, /) -> None:
        self._good += 1

    def rejected(self, _now: float, _sent_at: float, _order: int, hint: float | None, _others: int, /) -> Reject:
        good, self._good = self._good, 0
        return Reject.AWAY if hint is not None or good < self.limit / 2 else Reject.STRAY


class SlowStartAimd(Fixed):
    """inspect_ai's adaptive connections (design/adaptive-concurrency.md).

    The limit doubles each round until the first rejection. Then it grows by 5 % per round, and a rejection multiplies it by 0.8, at most
    once in 15 s. A round is as many successes as the limit, and counts only if 80 % of the limit was used.
    """

    COOLDOWN, CUT, GROWTH, SATURATED, SHORTEST = 15.0, 0.8, 0.05, 0.8, 4

    def __init__(self, start: int = 20) -> None:
        super().__init__(start)
        self._starting = True
        self._cut_at = -inf
        self._good = self._peak = 0

    def sent(self, _now: float, inflight: int, /) -> None:
        self._peak = max(self._peak, inflight)

    def ok(self, now: float, _sent_at: float, _tokens: int | None, inflight: int, /) -> None:
        if now - self._cut_at < self.COOLDOWN:
            return
        self._good += 1
        if self._good < max(self.limit, self.SHORTEST):
            return
        if self._peak >= self.SATURATED * self.limit:
            more = self.limit if self._starting else max(1, round(self.limit * self.GROWTH))
            self.limit = min(MOST, nice(self.limit + more, up=True))
        self._good, self._peak = 0, inflight

    def rejected(self, now: float, _sent_at: float, _order: int, _hint: float | None, others: int, /) -> Reject:
        if now - self._cut_at >= self.COOLDOWN:
            self._starting, self._cut_at = False, now
            self.limit = max(LEAST, nice(int(self.limit * self.CUT), up=False))
            self._good, self._peak = 0, others
        return Reject.AWAY


def nice(limit: int, *, up: bool) -> int:
    """Return the limit, rounded to a multiple of 5 if it is above 10."""
    if limit <= 10:
        return limit
    return -(-limit // 5) * 5 if up else limit // 5 * 5


class Gradient2(Fixed):
    """Netflix concurrency-limits: ``Gradient2Limit`` in a ``WindowedLimit``, plus a cut to 0.9 on a drop, which the original ignores.

    After at least one second and ten responses, the mean latency is compared with its long-term average over 600 such samples.
    """

    SMOOTHING, TOLERANCE, QUEUE, LONG, WARM_UP, CUT = 0.2, 1.5, 4, 600, 10, 0.9
    SAMPLE_SECONDS, SAMPLE_ANSWERS = 1.0, 10

    def __init__(self, start: int = 20) -> None:
        super().__init__(start)
        self._estimate = float(start)
        self._long = self._samples = 0.0
        self._dropped_at = -inf
        self._open(0.0)

    def _open(self, now: float) -> None:
        self._until = now + self.SAMPLE_SECONDS
        self._seconds, self._answers, self._peak = 0.0, 0, 0

    def sent(self, _now: float, inflight: int, /) -> None:
        self._peak = max(self._peak, inflight)

    def ok(self, now: float, sent_at: float, _tokens: int | None, _inflight: int, /) -> None:
        self._seconds += now - sent_at
        self._answers += 1
        if now >= self._until and self._answers >= self.SAMPLE_ANSWERS:
            self._update(self._seconds / self._answers)
            self._open(now)

    def rejected(self, now: float, _sent_at: float, _order: int, _hint: float | None, _others: int, /) -> Reject:
        if now - self._dropped_at >= self.SAMPLE_SECONDS:
            self._dropped_at = now
            self._set(self._estimate * self.CUT)
            self._open(now)
        return Reject.AWAY

    def _update(self, short: float) -> None:
        self._samples += 1
        weight = 1 / self._samples if self._samples <= self.WARM_UP else 2 / (self.LONG + 1)
        self._long += (short - self._long) * weight
        if self._long / short > 2:
            self._long *= 0.95
        if self._peak < self._estimate / 2:
            return
        gradient = max(0.5, min(1.0, self.TOLERANCE * self._long / short))
        self._set(self._estimate * (1 - self.SMOOTHING) + (self._estimate * gradient + self.QUEUE) * self.SMOOTHING)

    def _set(self, estimate: float) -> None:
        self._estimate = max(LEAST, min(MOST, estimate))
        self.limit = int(self._estimate)


def _ours(name: str, rng: Random, _world: World, limits: Limits | None) -> Source:
    return make_source(name, rng, limits or Limits())


def _fixed(name: str, rng: Random, _world: World, limits: Limits | None, window: Callable[[], Fixed]) -> Source:
    return Source(name, rng, limits, window=window())


def _known(name: str, rng: Random, world: World, limits: Limits | None, spec: Spec, mean: float) -> Source:
    window = spec.window(mean)
    known = Known(int(window(0.0)))
    known.follow(world.agenda, window)
    if limits is None and spec.rates:
        minutes = {rate.unit: rate.amount * 60 / rate.period for rate in spec.rates}
        limits = Limits(rpm=minutes.get("requests"), tpm=minutes.get("tokens"))
    return Source(name, rng, limits, window=known)


OURS = "ours"
PUSH = "push64"
NAMES = (OURS, "fixed64", "aimd", "gradient2", PUSH, "known")
"""Names of the controllers. ``ours`` is the library's source with default settings. ``fixed64`` is a semaphore behind the library's queue.
``push64`` is one semaphore for each server, without the library's queue (see ``push``). ``known`` gets the best concurrency limit and the
rate limits at every time. The other controllers must find them.
"""


def controller(name: str, spec: Spec, mean: float, *, limits: Limits | None = None) -> Make:
    """Return the factory of the source for a server.

    Args:
        name: one of ``NAMES``.
        spec: the server; only ``known`` uses it.
        mean: mean output tokens of a request.
        limits: limits configured in the client.
    """
    makers: dict[str, Callable[..., Source]] = {
        OURS: _ours,
        "fixed64": partial(_fixed, window=partial(Fixed, 64)),
        "aimd": partial(_fixed, window=SlowStartAimd),
        PUSH: partial(_fixed, window=partial(Fixed, 64)),
        "gradient2": partial(_fixed, window=Gradient2),
        "known": partial(_known, spec=spec, mean=mean),
    }
    return partial(makers[name], limits=limits)
