"""The state and the statistics of one fake endpoint: settings, limits, phases, random draws and counters."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import msgspec

from qreward.testing.admission import PromptCache, Rates, RequestAdmission, Timeline
from qreward.testing.responders import Write, writer_of
from qreward.testing.spec import FakeEndpoint, Phase


class Seen(msgspec.Struct, frozen=True):
    """Holds the statistics of one endpoint since the fleet started, or since ``reset()``.

    Attributes:
        name: name of the endpoint.
        requests: POST requests that arrived at a route of the endpoint. GET requests are not counted.
        answered: successful responses.
        rejected: requests rejected for lack of a slot or because of a rate limit.
        errors: kind of error -> count. The kinds are the names of the faults and phases, and ``bad_request``, ``unauthorized``,
            ``unknown_model``, ``responder`` (the responder raised an exception) and ``backend`` (a NaN score made the whole list fail).
            ``dead`` counts the requests that were in flight when the endpoint died. A ``hang`` is counted when it begins.
        in_flight: requests that hold a slot now.
        peak_in_flight: largest number of requests that held a slot at once.
        disconnects: requests whose client disconnected before the client had the response.
        duplicates: requests with the same messages, or the same input, as an earlier request.
        tokens: tokens of the successful responses, as counted against ``tpm``. Chats and embeddings count the tokens of ``usage``.
            Decisions count the prompt tokens and one token per question. All other routes, and the kind ``nim``, count the prompt tokens.
        computed: prompt tokens that were computed, with ``prefix_cache``.
        cached: prompt tokens that were found in the ``prefix_cache``.
    """

    name: str
    requests: int = 0
    answered: int = 0
    rejected: int = 0
    errors: dict[str, int] = {}
    in_flight: int = 0
    peak_in_flight: int = 0
    disconnects: int = 0
    duplicates: int = 0
    tokens: int = 0
    computed: int = 0
    cached: int = 0


DEAD = Phase(behaviour="dead")


class FakeEndpointState:
    """Holds the settings, slots, rate limits, phases, random draws and counters of one endpoint."""

    def __init__(self, spec: FakeEndpoint) -> None:
        self.spec = spec
        self.write = self.new_writer(spec)
        self.admission = RequestAdmission(spec.max_concurrency)
        self.killed = False
        self.phases_changed: Callable[[], None] = lambda: None  # called when the active phase may have changed
        self.reset()

    def reset(self) -> None:
        """Reset statistics, rate limits, phases and random draws. Slots in use stay in use, and a killed endpoint stays killed."""
        self.epoch = time.monotonic()
        self.counts: Counter[str] = Counter()  # the counts in Seen
        self.errors: Counter[str] = Counter()
        self._digests: set[bytes] = set()
        self.admission.peak = self.admission.in_flight
        self.rates = Rates(self.spec)
        self.timeline = Timeline(self.spec.phases, self.epoch)
        self._seed_faults()
        self._empty_cache()
        self.phases_changed()

    def configure(self, spec: FakeEndpoint) -> None:
        """Change the settings. State that does not depend on a changed setting is kept."""
        self.write = self.new_writer(spec)
        before, self.spec = self.spec, spec
        self.admission.limit = spec.max_concurrency
        self.admission.hand_over()
        if any(getattr(before, name) != getattr(spec, name) for name in ("rpm", "tpm", "burst")):
            self.rates = Rates(spec)
        if before.phases != spec.phases:
            self.timeline = Timeline(spec.phases, self.epoch)
        if before.faults != spec.faults:
            self._seed_faults()
        if before.prefix_cache != spec.prefix_cache:
            self._empty_cache()
        self.phases_changed()

    def kill(self, killed: bool = True) -> None:
        """Make the endpoint dead until ``kill(False)`` revives it. Both calls empty the prefix cache."""
        self.killed = killed
        self._empty_cache()
        self.phases_changed()

    def arrived(self) -> None:
        """Count the arrival of a request. The arrival may begin a phase with ``after_requests``."""
        now = time.monotonic()
        self.counts["requests"] += 1
        if self.timeline.count(self.counts["requests"], now):
            self.phases_changed()

    def recognise(self, digest: bytes) -> None:
        self.counts["duplicates"] += digest in self._digests
        self._digests.add(digest)

    def ended_in(self, problem: str | None, tokens: int = 0) -> None:
        """Count the end of a request: None for a successful response, ``rejected``, or the kind of error."""
        if problem is None:
            self.counts["answered"] += 1
            self.counts["tokens"] += tokens
        elif problem == "rejected":
            self.counts["rejected"] += 1
        else:
            self.errors[problem] += 1

    def draw(self) -> str | None:
        """Draw and return the fault of the next attempt; None for no fault."""
        if not self._rates_of_faults:
            return None
        left = self._random.random()
        for kind, rate in self._rates_of_faults.items():
            left -= rate
            if left < 0:
                return kind
        return None

    def point(self) -> float:
        """Return the share (0 to 1) of a body that is sent before a fault ends the body."""
        fixed = self.spec.faults.point
        return self._points.random() if fixed is None else fixed

    def phase(self) -> Phase | None:
        """Return the active phase; None in normal operation."""
        return DEAD if self.killed else self.timeline.at(time.monotonic())

    def serves(self, model: str) -> bool:
        return _matches(self.spec.models, model)

    def seen(self) -> Seen:
        admission = self.admission
        counts: dict[str, Any] = dict(self.counts)
        if self.cache is not None:
            counts |= {"computed": self.cache.computed, "cached": self.cache.hits}
        return Seen(
            self.spec.name,
            errors=dict(self.errors),
            in_flight=admission.in_flight,
            peak_in_flight=admission.peak,
            **counts,
        )

    def _empty_cache(self) -> None:
        """Start with an empty prefix cache. Requests in flight stay with the previous one."""
        self.cache = self.new_cache()

    def new_writer(self, spec: FakeEndpoint) -> Write:
        """Return the function that writes the responses to chats. Raises ``ConfigError`` if the responder cannot be imported."""
        return writer_of(spec.responder)

    def new_cache(self) -> PromptCache | None:
        cache = self.spec.prefix_cache
        return None if cache is None else PromptCache(cache.tokens, cache.block, cache.prefill)

    def _seed_faults(self) -> None:
        self._rates_of_faults = self.spec.faults.rates()
        seed = f"{self.spec.faults.seed}/{self.spec.name}"
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._points = random.Random(f"{seed}/points")  # noqa: S311 - separate, so that draws of points do not change the drawn faults


@lru_cache(maxsize=4096)
def _matches(patterns: tuple[str, ...], model: str) -> bool:
    return any(fnmatchcase(model, pattern) for pattern in patterns)
