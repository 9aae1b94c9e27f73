"""The fleets and batches of the makespan benchmark. Their lower bound is computed by ``qreward.testing``.

The bound considers slots, rate limits, the drawn length of every response, and phases in time. It ignores hangs, and counts the work that a
dying endpoint has begun as done. In reality both can only make a client slower, so the bound remains a lower bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fakes.lower_bound import lower_bound

from qreward.testing import FakeEndpoint, Faults, Latency, Phase
from qreward.testing.bodies import digest_of

Conversation = list[dict[str, str]]
Endpoints = Sequence[FakeEndpoint]

TOKENS, SIGMA = 200.0, 0.5  # mean and spread of the lognormal output lengths
HANGING, DIES_AT = 0.05, 0.2  # share of requests; share of the bound of the same fleet without a dying endpoint
QUESTION = (
    "### Question {index}\nA tank holds {index} litres. It is filled at 12 litres a minute and leaks 3 litres a minute. How long does it "
    "take until it is full?\n\n### Answer to be judged\nThe net rate is 12 - 3 = 9 litres a minute, so {index} / 9 minutes.\n\n"
    "### Task\nScore the answer from 0 to 10, then one sentence that says what decided it."
)


@dataclass(frozen=True)
class Plan:
    """The fleet and the batch for all clients of one seed. ``bound`` and ``informed`` (see ``informed_pull``) are in seconds."""

    endpoints: Endpoints
    work: list[Conversation] = field(repr=False)
    bound: float
    informed: float | None = None


@dataclass(frozen=True)
class Fleet:
    """A kind of fleet.

    Attributes:
        name: its name for ``--fleets`` and on the page.
        title: its description, in a line of Markdown.
        requests: number of conversations of its batch.
        build: returns the endpoints for a seed and the conversations.
    """

    name: str
    title: str
    requests: int
    build: Callable[[int, Sequence[Conversation]], Endpoints]

    def plan(self, seed: int, requests: int | None = None) -> Plan:
        """Return the endpoints, the batch and the bound of a seed. ``requests`` replaces the number of conversations."""
        work = conversations(requests or self.requests)
        endpoints = self.build(seed, work)
        return Plan(endpoints, work, lower_bound(endpoints, work), informed_pull(endpoints, work))


def informed_pull(endpoints: Endpoints, work: Sequence[Conversation]) -> float | None:
    """Return the seconds that a client would need that knows all slots beforehand, but not how long an answer will be.

    Each free slot takes the next conversation, those of the fastest endpoint first. None if the endpoints have other limits or faults.
    """
    if any(each.max_concurrency is None or each.rpm or each.phases or each.faults != Faults() for each in endpoints):
        return None
    free = [(0.0, each.latency.per_token, slot, place) for place, each in enumerate(endpoints) for slot in range(each.max_concurrency or 0)]
    heapq.heapify(free)
    for messages in work:
        now, per_token, slot, place = free[0]
        latency = endpoints[place].latency
        heapq.heapreplace(free, (now + latency.seconds(latency.draw(digest_of(messages))), per_token, slot, place))
    return max(now for now, *_ in free)


def conversations(count: int) -> list[Conversation]:
    """Return this many judge conversations, all different."""
    return [[{"role": "user", "content": QUESTION.format(index=1000 + index)}] for index in range(count)]


def _lengths(seed: int, per_token: float, base: float = 0.05) -> Latency:
    return Latency(base=base, per_token=per_token, tokens=TOKENS, sigma=SIGMA, seed=seed)


UNEVEN = ((32, 0.0036), (16, 0.0024), (16, 0.0048), (8, 0.0030), (4, 0.0024), (2, 0.0060))
"""Slots and seconds per token."""


def uneven(seed: int, _work: Sequence[Conversation]) -> Endpoints:
    return [
        FakeEndpoint(f"slots-{slots}-{number}", max_concurrency=slots, latency=_lengths(seed, per_token))
        for number, (slots, per_token) in enumerate(UNEVEN)
    ]


LIMITED = (40, 25, 16, 10, 6, 3)
"""Requests per second; as many are admitted at once."""


def limited(seed: int, _work: Sequence[Conversation]) -> Endpoints:
    return [
        FakeEndpoint(f"rate-{rate}", rpm=60 * rate, burst=rate, retry_after="seconds", latency=_lengths(seed, 0.0015)) for rate in LIMITED
    ]


BROKEN = (("whole-0", 0.0025), ("whole-1", 0.0025), ("hangs", 0.0025), ("dies", 0.0030), ("whole-2", 0.0035))
"""Seconds per token. Each endpoint has ``BROKEN_SLOTS`` slots and a queue."""
BROKEN_SLOTS = 16


def broken(seed: int, work: Sequence[Conversation]) -> Endpoints:
    dies_at = DIES_AT * lower_bound(_broken(seed), work)
    return _broken(seed, dies={"phases": (Phase(behaviour="dead", start=dies_at),)})


def _broken(seed: int, **more: dict[str, Any]) -> Endpoints:
    faults = {"hangs": {"faults": Faults(hang=HANGING, seed=seed)}, **more}
    return [
        FakeEndpoint(name, max_concurrency=BROKEN_SLOTS, over_cap="queue", latency=_lengths(seed, per_token), **faults.get(name, {}))
        for name, per_token in BROKEN
    ]


def quick(seed: int, _work: Sequence[Conversation]) -> Endpoints:
    return [FakeEndpoint(f"slots-{slots}", max_concurrency=slots, latency=_lengths(seed, 0.0001, base=0.005)) for slots in (4, 2)]


FLEETS = (
    Fleet(
        "uneven",
        f"{len(UNEVEN)} endpoints with {', '.join(str(slots) for slots, _ in UNEVEN)} slots and "
        f"{', '.join(f'{1000 * per_token:g}' for _, per_token in UNEVEN)} ms a token; further requests get 429 without a hint",
        1000,
        uneven,
    ),
    Fleet(
        "limited",
        f"{len(LIMITED)} endpoints that admit {', '.join(map(str, LIMITED))} requests a second (a second's worth at once); further "
        "requests get 429 with `Retry-After` in whole seconds",
        1100,
        limited,
    ),
    Fleet(
        "broken",
        f"{len(BROKEN)} endpoints of {BROKEN_SLOTS} slots with a queue; one never answers {HANGING:.0%} of its requests, and one dies "
        f"for good after {DIES_AT:.0%} of the time that the whole fleet would need",
        1000,
        broken,
    ),
)
QUICK = Fleet("quick", "2 endpoints with 4 and 2 slots; further requests get 429 without a hint", 80, quick)
