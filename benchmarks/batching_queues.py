"""The queues that the batching benchmark compares, and the measurements in their order. Runs and prints nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from _environments import python_of

ENVIRONMENTS = {"ray": ("ray[serve]==2.60.0",), "batchers": ("async-batcher==0.2.2", "batched==0.1.5")}
MAX_BATCH = 32
LONE = 20_000  # calls of a single caller; fewer for queues in which each call waits for a timer


class Peer(NamedTuple):
    """A queue with its settings: its script, its environment (None is that of the benchmark), and its options."""

    script: str
    environment: str | None = None
    wait: float | None = None
    """Seconds that a batch waits for more items; None is the default of the library."""
    more: dict[str, Any] = {}  # noqa: RUF012 - never changed
    lone: int = LONE
    most_slots: int = 10**9

    def python(self) -> Path:
        """Return the interpreter of its environment."""
        return Path(sys.executable) if self.environment is None else python_of(self.environment, ENVIRONMENTS[self.environment])

    def settings(self) -> dict[str, Any]:
        """Return the settings passed to its script."""
        return {"max_batch": MAX_BATCH, "wait": self.wait, **self.more}


def ours(face: str, wait: float | None = None) -> Peer:
    return Peer("batching_qreward.py", None, wait, {"face": face})


def ray(wait: float | None = None, **more: Any) -> Peer:
    return Peer("batching_ray.py", "ray", wait, more, LONE if wait == 0 else 200)


OURS, SUBMIT, BARE = "qreward @batch", "qreward submit", "bare"
WAITS = (0.01, 0.05, 0.1, 0.2)
FIXED = {f"slot first, {wait * 1000:g} ms": ours("decorator", wait) for wait in WAITS}
"""Our queue with a fixed wait. The wait counts from the arrival of the first item, and batches fill while no slot is free. This is the best
possible use of a fixed wait."""
RAYS = {"Ray Serve, 0 ms": ray(0.0), "Ray Serve, 10 ms (default)": ray()} | {
    f"Ray Serve, {wait * 1000:g} ms": ray(wait) for wait in WAITS[1:]
}
BATCHERS = {
    "async-batcher, 10 ms (default)": Peer("batching_async_batcher.py", "batchers", lone=200),
    "batched, 5 ms (default)": Peer("batching_batched.py", "batchers", lone=400, most_slots=1),
}
PARTS: dict[str, dict[str, Peer]] = {
    "cpu": {
        BARE: Peer("batching_bare.py"),
        OURS: ours("decorator"),
        SUBMIT: ours("queue"),
        "async-batcher, 0 ms": Peer("batching_async_batcher.py", "batchers", 0.0),
        **BATCHERS,
        "Ray Serve, 0 ms": ray(0.0),
        "Ray Serve, 0 ms, no metrics": ray(0.0, metrics=False),
        "Ray Serve, 10 ms (default)": ray(),
    },
    "busy": {OURS: ours("decorator"), **BATCHERS, **RAYS},
    "loads": {OURS: ours("decorator"), **BATCHERS, **FIXED, **RAYS},
}
QUICK = (BARE, OURS, SUBMIT, "slot first, 50 ms")


class Service(NamedTuple):
    """The service that processes the batches, with ``slots`` batches at once: a batch of n items takes ``base + each * n`` seconds."""

    base: float
    each: float
    slots: int

    def capacity(self) -> float:
        """Return the number of items per second if all batches are full."""
        return self.slots * MAX_BATCH / (self.base + self.each * MAX_BATCH)

    def job(self) -> dict[str, Any]:
        return self._asdict()


FLAT = Service(0.1, 0.0, 1)
SERVICES = {
    "GPU reward model: 20 + 1.5 n ms and 5 ms on the way, 1 slot": Service(0.025, 0.0015, 1),
    "100 ms whatever the size, 1 slot": FLAT,
    "cloud: 300 + 5 n ms, 8 slots": Service(0.3, 0.005, 8),
}
LOADS = (0.02, 0.2, 0.5, 0.8)
BUSY_RATE = 100.0  # calls a second


class Sizes(NamedTuple):
    """The numbers of rounds, seeds and calls."""

    rounds: int
    seeds: int
    calls: int = 60_000
    flood: int = 20_000
    busy: int = 200
    requests: int = 4_000
    quick: bool = False

    def lone(self, peer: Peer) -> int:
        return min(peer.lone, self.calls)


class Task(NamedTuple):
    """One measurement: its round, its queue, its cell of the table, and the job of its process."""

    round: int
    queue: str
    cell: str
    peer: Peer
    job: dict[str, Any]


def plan(part: str, sizes: Sizes) -> Iterator[Task]:
    """Yield the measurements of a part in order: by round, then by cell, then by queue."""
    for number in range(1 if part == "loads" else sizes.rounds):
        for cell, asked in _cells(part, sizes, number).items():
            for name, peer in PARTS[part].items():
                if asked["slots"] <= peer.most_slots and not (sizes.quick and name not in QUICK):
                    job = peer.settings() | asked
                    if asked.get("callers") == 1:
                        job["calls"] = sizes.lone(peer)
                    yield Task(number, name, cell, peer, job)


def _cells(part: str, sizes: Sizes, number: int) -> dict[str, dict[str, Any]]:
    if part == "cpu":
        closed = {"case": "callers", "slots": 1, "calls": sizes.calls}
        crowds = {f"{callers} callers": closed | {"callers": callers} for callers in (64, 512)}
        return crowds | {"lone caller": closed | {"callers": 1}, "all at once": {"case": "flood", "slots": 1, "calls": sizes.flood}}
    if part == "busy":
        stream = {"case": "busy", "rate": BUSY_RATE, "calls": sizes.busy, "seed": number, **FLAT.job()}
        return {kind: stream | {"arrivals": kind} for kind in ("even", "poisson")}
    asked = {"case": "loads", "seeds": list(range(sizes.seeds)), "calls": sizes.requests}
    return {name: asked | service.job() | {"rates": [load * service.capacity() for load in LOADS]} for name, service in SERVICES.items()}
