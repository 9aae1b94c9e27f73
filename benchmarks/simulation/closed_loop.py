"""Measures how much of the unknown capacity of one endpoint is used: unlimited work, one source, ten minutes of virtual time."""

from __future__ import annotations

import time
from random import Random
from typing import Any

from simulation.controllers import controller
from simulation.measure import jumps, quantile, recovered
from simulation.models import Model
from simulation.server import Server
from simulation.specs import Spec
from simulation.steps import Steps
from simulation.world import World

RECOVERED = 0.85
"""Share (0 to 1) of a changed capacity. When it is used, the change counts as found."""
GLANCE = 10
"""Seconds between two recorded values of the limit."""


def run_model(model: Model, name: str, seed: int, *, seconds: float | None = None, timeout: float | None = None) -> dict[str, Any]:
    """Make one run, and return its figures.

    Args:
        model: the server.
        name: name of the controller.
        seed: seed of all randomness.
        seconds: duration in virtual seconds; by default that of the model.
        timeout: timeout of an attempt in seconds; by default the source learns it.

    Returns:
        ``fraction`` of the capacity used, ``rejects`` per request sent, ``p99`` latency, mean seconds of ``recovery`` (or None),
        ``over_limit``, ``lost`` tasks, ``answers``, requests ``sent``, the limit every 10 s (``limits``), and ``wall`` seconds.
    """
    began, label = time.perf_counter(), f"{model.name}/{seed}"
    seconds = model.seconds if seconds is None else seconds
    spec = model.spec.drawn(Random(f"{label}: server"))
    world = World(label)
    server = world.add(spec, controller(name, spec, spec.outputs.mean))
    source, useful, limits = world.sources[0], [], []
    source.attempt_timeout = timeout

    def look() -> None:
        useful.append(server.useful())
        if len(useful) % GLANCE == 1:
            limits.append(source.window.limit)

    world.every(1.0, look)
    bulk = world.bulk(spec.outputs.jobs(Random(f"{label}: jobs")))
    world.run(seconds)
    capacity = spec.capacity(spec.outputs.mean)
    tally = source.tally
    return {
        "model": model.name,
        "controller": name,
        "seed": seed,
        "fraction": share_used(server, spec, capacity, seconds),
        "rejects": tally.rejected / max(1, tally.sent),
        "p99": quantile(bulk.latencies, 0.99),
        "recovery": recovery(useful, capacity, seconds) if model.recovery else None,
        "over_limit": world.over_limit,
        "lost": len(bulk.failed),
        "answers": tally.ok,
        "sent": tally.sent,
        "limits": limits,
        "wall": time.perf_counter() - began,
    }


def share_used(server: Server, spec: Spec, capacity: Steps, seconds: float) -> float:
    """Return the used share of the capacity; with rate limits, the admitted amount divided by the amount that the tightest allows."""
    if server.rates:
        return max(door.granted / rate.allowed(seconds) for door, rate in zip(server.rates, spec.rates, strict=True))
    return server.useful() / capacity.integral(0.0, seconds)


def recovery(useful: list[float], capacity: Steps, seconds: float) -> float | None:
    """Return the mean recovery time in seconds over all changes of the capacity, or None if there are none."""
    changes = [when for when in jumps(capacity) if when < seconds]
    took = [
        recovered(useful, capacity, when, min(end, seconds), RECOVERED)
        for when, end in zip(changes, [*changes[1:], seconds], strict=False)  # without a change, the second list has one more element
    ]
    return sum(took) / len(took) if took else None
