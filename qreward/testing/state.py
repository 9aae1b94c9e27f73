"""What one fake endpoint is at the moment: its settings and everything that follows from them. Knows nothing of HTTP."""

from __future__ import annotations

import random
import time
from fnmatch import fnmatchcase
from functools import lru_cache

from qreward.testing.admission import Gate, Rates
from qreward.testing.responders import writer_of
from qreward.testing.seen import Counters, Seen
from qreward.testing.spec import FakeEndpoint, Phase
from qreward.testing.timeline import Timeline

DEAD = Phase(behaviour="dead")


class State:
    """Settings, slots, rates, phases, draws and counters of one endpoint. Belongs to the running loop.

    Raises ``ConfigError`` if the responder cannot be imported.
    """

    def __init__(self, spec: FakeEndpoint) -> None:
        self.spec = spec
        self.write = writer_of(spec.responder)
        self.gate = Gate(spec.max_concurrency)
        self.killed = False
        self.reset()

    def reset(self) -> None:
        """As at the start: nothing seen, buckets full, phases and draws from their beginning. Slots in use stay in use."""
        self.epoch = time.monotonic()
        self.counters = Counters()
        self.gate.peak = self.gate.in_flight
        self.rates = Rates(self.spec)
        self._lay_phases()
        self._seed_faults()

    def configure(self, spec: FakeEndpoint) -> None:
        """Change the settings; what a setting does not touch goes on as it was."""
        before, self.spec = self.spec, spec
        self.write = writer_of(spec.responder)
        self.gate.limit = spec.max_concurrency
        self.gate.hand_over()
        if any(getattr(before, name) != getattr(spec, name) for name in ("rpm", "tpm", "burst", "burst_tokens")):
            self.rates = Rates(spec)
        if before.phases != spec.phases:
            self._lay_phases()
        if before.faults != spec.faults:
            self._seed_faults()

    def draw(self) -> str | None:
        """The fault of the next attempt, None if it goes well."""
        if not self._rates_of_faults:
            return None
        left = self._random.random()
        for kind, rate in self._rates_of_faults.items():
            left -= rate
            if left < 0:
                return kind
        return None

    def point(self) -> float:
        """The share of a body that comes before a fault that ends it."""
        fixed = self.spec.faults.point
        return self._points.random() if fixed is None else fixed

    def phase(self) -> Phase | None:
        """The phase that rules now, None if all is well."""
        return DEAD if self.killed else self.timeline.at(time.monotonic())

    def serves(self, model: str) -> bool:
        return _matches(self.spec.models, model)

    def seen(self) -> Seen:
        return self.counters.snapshot(self.spec.name, self.gate.in_flight, self.gate.peak)

    def _lay_phases(self) -> None:
        self.timeline = Timeline(self.spec.phases, self.epoch)

    def _seed_faults(self) -> None:
        self._rates_of_faults = self.spec.faults.rates()
        seed = f"{self.spec.faults.seed}/{self.spec.name}"
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._points = random.Random(f"{seed}/points")  # noqa: S311 - of its own, so that it changes no draw of a fault


@lru_cache(maxsize=4096)
def _matches(patterns: tuple[str, ...], model: str) -> bool:
    return any(fnmatchcase(model, pattern) for pattern in patterns)
