"""Probes on the fleets of the simulation, played by the whole engine: nothing gets worse, nor by a server that lies."""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from qreward.engine.probing import ProbingEngine
from qreward.scheduler.outcome import ProbeResult

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROBE = 1.0
SEEDS = (1, 2)
ON_THE_LINE = 0.005
"""Seconds a look takes."""


def look_at(server: Any, now: float, *, honest: bool = True) -> ProbeResult:
    """What a server says of itself. One that is not honest always says that it is ready."""
    spec = server.spec
    if spec.dead is not None and spec.dead[0] <= now < spec.dead[1]:
        return ProbeResult(ready=False)
    away = spec.away is not None and spec.away[0] <= now < spec.away[1]
    places = spec.law.places(now)
    held = len(server.held)
    return ProbeResult(ready=not (away and honest), running=min(held, places), waiting=max(0.0, held - places), most=spec.limit(now))


def play(name: str, seed: int, probe: float | None, *, honest: bool = True, **changes: Any) -> Any:
    """A scenario that has been played, its endpoints looked at every ``probe`` seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        fleets, scenarios, world = (importlib.import_module(f"simulation.{each}") for each in ("fleets", "scenarios", "shell_world"))
    scenario = replace(scenarios.SCENARIOS[name], figures=None, **changes)
    run = fleets.Run.prepare(scenario, "ours", seed, shell=True)
    stage = run.world

    class Wire(world.Wire):  # type: ignore[name-defined]
        async def look(self, endpoint: Any) -> ProbeResult:
            await asyncio.sleep(ON_THE_LINE)
            self._pump.enter()
            return look_at(self._servers[endpoint.name], self._loop.time(), honest=honest)

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


def test_probes_cost_no_bulk_anything_nor_do_those_of_a_server_that_always_says_ready() -> None:
    wrong = []
    for name, items in (("S2-500", 500), ("S9", 1000), ("S11", 1000)):
        without = [play(name, seed, None, items=items).record() for seed in SEEDS]
        for honest in (True, False):
            probed = [play(name, seed, PROBE, items=items, honest=honest).record() for seed in SEEDS]
            assert all(each["lost"] == each["over_limit"] == 0 and each["ended"] == items for each in probed), name
            for what, more in (("ratio", 0.05), ("extra", 0.02), ("rejects", 0.05)):
                before, after = (mean(each[what] for each in runs) for runs in (without, probed))
                if after > before * (1 + more) + 0.01:
                    wrong.append((name, honest, what, before, after))
    assert wrong == []


def test_servers_that_queue_without_a_word_are_not_overfilled() -> None:
    def fleet(_: float) -> Any:
        from simulation.laws import Shared
        from simulation.specs import Spec

        return (Spec(law=Shared(seqs=64)),) * 4

    blind, looking = ([play("S6", seed, probe, items=600, fleet=fleet).record() for seed in SEEDS] for probe in (None, PROBE))
    for what in ("ratio", "p99", "extra"):
        assert mean(each[what] for each in looking) <= mean(each[what] for each in blind) * 1.02, what
