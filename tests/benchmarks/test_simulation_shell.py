"""The scenarios through the whole engine: an agenda on an event loop, servers behind a wire, and agreement with the core alone."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qreward.errors import RateLimited
from qreward.scheduler.outcome import CANCELLED
from qreward.settings.policies import Priority
from qreward.testing.virtual_time import run_in_virtual_time

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = ("agenda", "doors", "fleets", "laws", "pump", "scenarios", "shell_world", "specs", "stage", "steps", "world")
SEEDS = range(1, 6)
NEAR = 0.05
"""Share by which a mean ratio may differ. Events of one time come in another order, so that single runs are other runs."""


@pytest.fixture(scope="module")
def sim() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield SimpleNamespace(**{name: importlib.import_module(f"simulation.{name}") for name in MODULES})


def played(sim: Any, name: str, seed: int = 1, *, shell: bool = True, **changes: Any) -> Any:
    return sim.fleets.Run.prepare(replace(sim.scenarios.SCENARIOS[name], **changes), "ours", seed, shell=shell).play()


# an agenda on a loop


def test_events_happen_at_their_times_and_in_their_order_when_the_loop_comes_to_them(sim: Any) -> None:
    seen = []

    async def main() -> None:
        agenda = sim.agenda.Agenda()
        pump = sim.pump.Pump(agenda, asyncio.get_running_loop())
        for when, name in ((3.0, "c"), (1.0, "a"), (3.0, "d")):
            agenda.at(when, lambda said: seen.append((said, agenda.now)), name)
        pump.enter()
        await asyncio.sleep(2.0)
        pump.enter()
        assert agenda.now == pytest.approx(2.0)
        agenda.at(2.5, lambda said: seen.append((said, agenda.now)), "b")  # sooner than what the timer was set for
        await asyncio.sleep(2.0)
        pump.close()

    run_in_virtual_time(main())
    assert [name for name, _ in seen] == ["a", "b", "c", "d"]
    assert [when for _, when in seen] == pytest.approx([1.0, 2.5, 3.0, 3.0])


# a server behind a wire


def wired(sim: Any, spec: Any, play: Any) -> Any:
    """Let a coroutine use the wire of a world with one server."""

    async def main() -> None:
        world = sim.shell_world.ShellWorld("test")
        server = world.add(spec)
        world.pump = sim.pump.Pump(world.agenda, asyncio.get_running_loop())
        try:
            await play(sim.shell_world.Wire(world), server)
        finally:
            world.pump.close()

    run_in_virtual_time(main())


def test_a_request_takes_the_servers_time_and_one_too_many_is_turned_away(sim: Any) -> None:
    async def play(wire: Any, server: Any) -> None:
        loop, endpoint, job = asyncio.get_running_loop(), SimpleNamespace(name="s0"), sim.doors.Job(100.0)
        first = asyncio.create_task(wire.send(endpoint, job))
        await asyncio.sleep(1.0)
        refused = await wire.send(endpoint, job)
        assert isinstance(refused.error, RateLimited)
        assert loop.time() == pytest.approx(1.0 + spec.reject_after)
        assert (await first).output_tokens == 100
        assert loop.time() == pytest.approx(2.0)
        assert server.held == {}

    spec = sim.specs.Spec(law=sim.laws.Alone(0.02), ttft=0.0, cap=sim.steps.hold(1))
    wired(sim, spec, play)


def test_a_call_that_is_cancelled_is_stopped_at_its_server_and_its_work_was_for_nothing(sim: Any) -> None:
    async def play(wire: Any, server: Any) -> None:
        call = asyncio.create_task(wire.send(SimpleNamespace(name="s0"), sim.doors.Job(100.0)))
        await asyncio.sleep(0.5)
        assert len(server.held) == 1
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert server.held == {}
        await asyncio.sleep(5.0)
        assert server.useful() == pytest.approx(0.0, abs=1e-3)

    wired(sim, sim.specs.Spec(law=sim.laws.Alone(0.02), ttft=0.0), play)


# bulks


def test_the_shell_is_played_by_the_engine_and_only_if_it_is_wanted(sim: Any) -> None:
    for shell, world in ((False, sim.world.World), (True, sim.shell_world.ShellWorld)):
        run = played(sim, "S2-500", shell=shell, items=50)
        assert type(run.world) is world
        assert (run.world.sources[0].handle is run.servers[0]) != shell


def test_the_engine_finishes_a_bulk_as_near_to_its_bound_as_the_core_alone(sim: Any) -> None:
    pairs = [[played(sim, "S2-500", seed, shell=shell).record() for shell in (False, True)] for seed in SEEDS]
    for core, engine in pairs:
        assert engine["lost"] == engine["over_limit"] == 0, f"seed {engine['seed']}"
        assert engine["ended"] == 500
        assert engine["bound"] == core["bound"], "the same jobs on the same servers"
        assert engine["ratio"] >= 0.99
    for what in ("ratio", "p99"):
        core, engine = (sum(pair[place][what] for pair in pairs) for place in (0, 1))
        assert engine == pytest.approx(core, rel=NEAR), (what, [[record[what] for record in pair] for pair in pairs])


def test_the_engine_loses_nothing_and_leaves_nothing_behind_on_any_fleet(sim: Any) -> None:
    for name in ("S2h", "S3", "S5", "S6", "S8", "S9", "S10", "S11", "S14", "S15"):
        record = played(sim, name, items=300, figures=None).record()
        assert record["ended"] == 300, name
        assert record["lost"] == record["over_limit"] == 0, name
        assert record["extra"] >= 0, name


def test_single_calls_are_answered_beside_a_bulk(sim: Any) -> None:
    run = played(sim, "S12", items=1000, figures=None)
    assert run.online.ended > run.bulk.last  # two a second
    assert run.record()["lost"] == 0
    assert run.online.tokens > 0


def test_a_server_that_dies_is_lost_sight_of_and_comes_back(sim: Any) -> None:
    run = played(sim, "S8", items=5000)
    record = run.record()
    begin, end = run.specs[0].dead or (0.0, 0.0)
    assert 0 < record["figures"]["noticed s"][0] < end - begin
    assert any(source is run.world.sources[0] for _, source in run.world.lost_sight)
    assert record["lost"] == 0


def test_a_bulk_that_never_ends_is_given_up_and_what_it_held_is_given_back(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim.fleets, "STUCK", 0.0)
    monkeypatch.setattr(sim.fleets, "STUCK_LEAST", 1.0)
    run = played(sim, "S2", items=1000)
    assert run.record()["lost"] == 1000 - run.bulk.ended > 0
    assert not any(server.held for server in run.servers)


# faults of an engine are seen


def test_a_source_beyond_its_window_is_noted(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = importlib.import_module("qreward.scheduler.state").Source
    full = source.ready_at
    monkeypatch.setattr(source, "ready_at", lambda self, now: 0.0 if self.inflight >= self.window.limit else full(self, now))
    for shell in (False, True):
        assert played(sim, "S2-500", items=100, shell=shell).record()["over_limit"] > 0


def test_a_slot_that_is_not_given_back_is_an_error(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    event = sim.stage.Watched.event

    def forgetful(self: Any, now: float, attempt: Any, outcome: Any) -> None:
        event(self, now, attempt, outcome)
        if outcome is CANCELLED:
            attempt.source.inflight += 1

    monkeypatch.setattr(sim.stage.Watched, "event", forgetful)
    with pytest.raises(RuntimeError, match=r"left behind: \d+ slots"):
        played(sim, "S2-500")


def test_a_result_that_is_not_passed_on_is_an_error(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bulk = importlib.import_module("qreward.engine.batch").BatchWaiter
    settle = bulk._settle
    monkeypatch.setattr(bulk, "_settle", lambda self, result: None if result.index == 7 else settle(self, result))
    with pytest.raises(RuntimeError, match="50 ended, 49 were told, 49 counted"):
        played(sim, "S2-500", items=50)


def test_a_single_call_is_counted_for_its_caller(sim: Any) -> None:
    ledger = sim.stage.Ledger(whole=True)
    world = sim.shell_world.ShellWorld("test")
    world.add(sim.specs.Spec(law=sim.laws.Alone(0.02), ttft=0.0))
    bulk = world.bulk([sim.doors.Job(200.0)], 1)
    world.agenda.at(1.0, lambda _: world.submit(sim.doors.Job(50.0), ledger, Priority.HIGH))
    world.run(60.0, bulk)
    assert list(ledger.latencies) == pytest.approx([1.0])
    assert bulk.last == pytest.approx(4.0)


# the command


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(BENCHMARKS / "simulate.py"), *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=100, check=False)


def test_the_quick_shell_plays_one_bulk_and_no_model(tmp_path: Path) -> None:
    path = tmp_path / "shell.json"
    done = command("--quick", "--shell", "--json", str(path))
    assert done.returncode == 0, done.stderr
    assert "| S2-500 8 mixed, short bulk " in done.stdout
    run = json.loads(path.read_text(encoding="utf-8"))
    (bulk,) = run["scenarios"]
    assert run["models"] == []
    assert run["options"]["shell"] is True
    assert bulk["ended"] == bulk["items"] == 500
    assert bulk["lost"] == bulk["over_limit"] == 0
    refused = command("--json", str(path), "--markdown")
    assert refused.returncode != 0
    assert "of --shell" in refused.stderr
