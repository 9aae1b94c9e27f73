"""The fleets of the simulation, played by the whole engine, whose servers can be looked at."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qreward.engine.probing import ProbingEngine
from qreward.scheduler.outcome import ProbeResult

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ON_THE_LINE = 0.005
"""Seconds a look takes."""


@contextmanager
def simulation() -> Iterator[None]:
    """In it, the modules of the simulation can be imported."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield
    finally:
        sys.path.remove(str(BENCHMARKS))


def look_at(server: Any, now: float, *, honest: bool = True) -> ProbeResult | None:
    """What a server says of itself; None is nothing, ever. One that is not honest always says that it is ready."""
    spec = server.spec
    if spec.dead is not None and spec.dead[0] <= now < spec.dead[1]:
        return ProbeResult(ready=False)
    away = spec.away is not None and spec.away[0] <= now < spec.away[1]
    places = spec.law.places(now)
    held = len(server.held)
    return ProbeResult(ready=not (away and honest), running=min(held, places), waiting=max(0.0, held - places), most=spec.limit(now))


def play(name: str, seed: int, probe: float | None, *, honest: bool = True, fleet: Any = None, **changes: Any) -> Any:
    """A scenario that has been played, its endpoints looked at every ``probe`` seconds."""
    with simulation():
        fleets, scenarios, world = (importlib.import_module(f"simulation.{each}") for each in ("fleets", "scenarios", "shell_world"))
    scenario = replace(scenarios.SCENARIOS[name], figures=None, **changes)
    if fleet is not None:
        scenario = replace(scenario, fleet=fleet)
    run = fleets.Run.prepare(scenario, "ours", seed, shell=True)
    stage = run.world

    class Wire(world.Wire):  # type: ignore[misc]
        async def look(self, endpoint: Any) -> ProbeResult:
            await asyncio.sleep(ON_THE_LINE)
            self._pump.enter()
            return look_at(self._servers[endpoint.name], self._loop.time(), honest=honest) or ProbeResult()

    def engine(*arguments: Any, **settings: Any) -> ProbingEngine:
        made = ProbingEngine(*arguments, **settings)
        made.watch_over(lambda: stage.sources)
        return made

    plain = stage._endpoint
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "Engine", engine)
        patch.setattr(world, "Wire", Wire)
        patch.setattr(stage, "_endpoint", lambda place: plain(place).model_copy(update={"probe": probe}))
        return run.play()
