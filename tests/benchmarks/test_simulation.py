"""The simulation benchmark: its servers do what their parameters say, its bounds hold, its engine agrees with the core, its commands run.

Nothing here asks how good a controller is, but for the one that is told everything and the one that pushes.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from heapq import heappop
from math import inf
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from benchmark_tools import quick
from hypothesis import given, settings
from hypothesis import strategies as st
from scale import SCALE

from qreward.errors import RateLimited
from qreward.scheduler.outcome import CANCELLED
from qreward.settings.policies import Priority
from qreward.testing.virtual_time import run_in_virtual_time

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = (
    *("agenda", "bounds", "closed_loop", "controllers", "doors", "engine", "fleets", "laws", "measure", "models"),
    *("pump", "push", "report", "scenarios", "shell_world", "specs", "stage", "steps", "world"),
)
SEEDS = range(1, 6)
NEAR = 0.05
"""Share by which a mean ratio may differ. Events of one time come in another order, so that single runs are other runs."""


@pytest.fixture(scope="module")
def sim() -> Iterator[Any]:
    """The modules of the benchmark by name; they are scripts beside the library, not a part of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield SimpleNamespace(**{name: importlib.import_module(f"simulation.{name}") for name in MODULES})


class Bench:
    """An engine, and when each of its requests was done."""

    def __init__(self, sim: Any, law: Any) -> None:
        self.agenda = sim.agenda.Agenda()
        self.done: dict[str, float] = {}
        self.engine = sim.engine.make_engine(self.agenda, law, lambda name: self.done.__setitem__(name, round(self.agenda.now, 6)))

    def start(self, when: float, name: str, size: float) -> None:
        self.agenda.at(when, lambda _: self.engine.start(name, size))

    def stop(self, when: float, name: str) -> None:
        self.agenda.at(when, lambda _: self.engine.stop(name))

    def run(self, until: float = inf) -> None:
        while self.agenda.heap and self.agenda.heap[0][0] <= until:
            self.agenda.now, _, what, argument = heappop(self.agenda.heap)
            what(argument)
            self.agenda.settle()


# servers


def test_requests_share_a_server_and_speed_up_when_one_leaves(sim: Any) -> None:
    bench = Bench(sim, sim.laws.Scoring(seconds=1.0, width=1))  # one unit of work a second in all
    bench.start(0.0, "long", 3.0)
    bench.start(0.0, "short", 1.0)
    bench.run()
    assert bench.done == {"short": 2.0, "long": 4.0}
    assert bench.engine.delivered() == pytest.approx(4.0)


def test_what_is_stopped_was_for_nothing_and_frees_its_share(sim: Any) -> None:
    bench = Bench(sim, sim.laws.Scoring(seconds=1.0, width=1))
    bench.start(0.0, "kept", 2.0)
    bench.start(0.0, "stopped", 9.0)
    bench.stop(2.0, "stopped")
    bench.run()
    assert bench.done == {"kept": 3.0}
    assert bench.engine.wasted == pytest.approx(1.0)
    assert bench.engine.delivered() == pytest.approx(3.0)


def test_a_speed_that_changes_holds_for_what_is_under_way(sim: Any) -> None:
    bench = Bench(sim, sim.laws.Alone(1.0, speeds=sim.steps.between(2.0, 4.0, 0.5)))
    bench.start(0.0, "request", 4.0)  # 2 units until 2 s, 1 until 4 s, 1 more
    bench.run()
    assert bench.done == {"request": 5.0}


def test_beyond_its_sequences_a_server_lets_requests_wait_in_line(sim: Any) -> None:
    bench = Bench(sim, sim.laws.Shared(r1=1.0, h=1e12, seqs=2))
    for name in "abc":
        bench.start(0.0, name, 1.0)
    bench.run()
    assert bench.done == {"a": 1.0, "b": 1.0, "c": 2.0}


def test_an_admission_stalls_everything(sim: Any) -> None:
    bench = Bench(sim, sim.laws.Shared(r1=1.0, h=1e12, stall=0.25))
    bench.start(0.0, "first", 1.0)
    bench.start(0.5, "second", 1.0)
    bench.run()
    assert bench.done == {"first": 1.5, "second": 1.75}


@given(seed=st.integers(0, 10_000))
@settings(max_examples=30 * SCALE)
def test_a_shared_engine_without_contention_is_the_separate_one(sim: Any, seed: int) -> None:
    rng = Random(seed)
    plan = [(rng.uniform(0, 5), f"r{place}", rng.uniform(0.1, 5), rng.uniform(0, 9)) for place in range(12)]
    law = sim.laws.Alone(0.5)
    benches = [Bench(sim, law), Bench(sim, replace(law, speeds=sim.steps.steps(1.0, (1e6, 1.0))))]
    for bench in benches:
        for when, name, size, stopped in plan:
            bench.start(when, name, size)
            if stopped < 3:
                bench.stop(when + stopped, name)
        bench.run()
    separate, sharing = benches
    assert type(separate.engine) is not type(sharing.engine)
    assert separate.done == pytest.approx(sharing.done), f"seed {seed}"
    assert separate.engine.wasted == pytest.approx(sharing.engine.wasted, abs=1e-5), f"seed {seed}"


def test_a_server_that_thrashes_does_most_at_the_point(sim: Any) -> None:
    found = sim.laws.Yield(sim.laws.Shared(thrash=sim.steps.hold(128)), 0.0, 209.0)
    assert found.rates.index(found.best()) + 1 == 128
    assert found.best() == pytest.approx(128 * 60 / (1 + 128 / 48))
    assert found.rates[255] == pytest.approx(0.6 * 256 * 60 / (1 + 256 / 48))
    assert found.rates[found.window() - 1] >= 0.95 * found.best() > found.rates[found.window() - 2]


RATES: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    amount=st.integers(1, 50),
    period=st.sampled_from([1.0, 7.0, 60.0]),
    burst=st.sampled_from([None, 1, 10]),
    hint=st.sampled_from([None, "exact", "second", 2.0]),
)


@given(limit=RATES, gaps=st.lists(st.floats(0, 3, allow_nan=False), min_size=1, max_size=200))
def test_a_rate_never_lets_in_more_than_it_allows_and_its_hint_is_true(sim: Any, limit: dict[str, Any], gaps: list[float]) -> None:
    rate = sim.doors.Rate(**limit)
    door, job, now = rate.door(), sim.doors.Job(1.0), 0.0
    for gap in gaps:
        now += gap
        if not door.refuses(now, 0, job):
            door.admit(now, job)
        elif limit["hint"] in ("exact", "second"):
            now += door.hint(now, job) + 1e-9
            assert not door.refuses(now, 0, job)
            door.admit(now, job)
        assert door.granted <= rate.staircase(now) + 1e-6


def test_tokens_that_are_charged_when_used_bring_a_bucket_into_debt(sim: Any) -> None:
    door = sim.doors.Rate(60, burst=100, unit="tokens", used=True, hint="exact").door()
    job = sim.doors.Job(tokens=150.0, prompt=50)
    assert not door.refuses(0.0, 0, job)
    door.admit(0.0, job)
    door.settle(0.0, job)
    assert door.refuses(99.0, 1, job)
    assert door.hint(99.0, job) == pytest.approx(51.0)  # from -1 to 50, one a second


def test_a_cap_moves_by_its_schedule(sim: Any) -> None:
    cap = sim.doors.Cap(sim.steps.steps(2, (10.0, 1), (20.0, 3)), told=None)
    assert [cap.refuses(now, 2, None) for now in (0.0, 10.0, 20.0)] == [True, True, False]
    assert [cap.refuses(25.0, held, None) for held in (2, 3)] == [False, True]


# time and measures


def test_the_integral_of_steps_and_a_walk_within_its_walls(sim: Any) -> None:
    assert sim.steps.between(10.0, 20.0, 0.0, 2.0).integral(5.0, 25.0) == 20.0
    walk = sim.steps.Walk(20, 120, 64, 8, 5.0, 600.0).draw(Random(3))
    assert len(walk.times) == 121
    assert min(walk.values) >= 20
    assert max(walk.values) <= 120
    assert len(set(walk.values)) > 20


def test_recovery_is_when_the_new_capacity_is_used(sim: Any) -> None:
    capacity = sim.steps.steps(10, (100.0, 20))
    used = [0.0]
    for second in range(200):
        used.append(used[-1] + (10.0 if second < 112 else 19.0))
    assert sim.measure.jumps(capacity) == [100.0]
    assert sim.measure.recovered(used, capacity, 100.0, 200.0, 0.85) == 12.0 - 1.0  # four of the five seconds are full
    assert sim.measure.recovered(used, capacity, 100.0, 110.0, 0.85) == 10.0


# bounds


def test_the_bound_of_caps_is_work_over_slots_or_the_longest_request(sim: Any) -> None:
    spec = sim.specs.Spec(law=sim.laws.Alone(0.01), ttft=0.0, cap=sim.steps.hold(4))
    many = sim.bounds.Work(items=1000, mean=100.0, prompt=0.0, shortest=100.0, longest=100.0)
    assert sim.bounds.lower_bound([spec, spec], many) == pytest.approx(1000 * 1.0 / 8, abs=1e-3)
    assert sim.bounds.lower_bound([spec], replace(many, items=4, longest=900.0)) == pytest.approx(9.0)


def test_the_bound_of_a_window_by_the_clock_is_a_staircase(sim: Any) -> None:
    spec = sim.specs.Spec(ttft=0.0, rates=(sim.doors.Rate(600),))
    work = sim.bounds.Work(items=1801, mean=100.0, prompt=0.0, shortest=50.0, longest=100.0)
    assert sim.bounds.lower_bound([spec], work) == pytest.approx(180.5, abs=1e-3)  # the fourth window, and half a second


def test_a_fleet_that_never_returns_has_no_bound(sim: Any) -> None:
    spec = sim.specs.Spec(cap=sim.steps.hold(4), away=(0.0, inf))
    with pytest.raises(ValueError, match="never"):
        sim.bounds.lower_bound([spec], sim.bounds.Work(10, 100.0, 0.0, 50.0, 100.0))


def test_all_models_and_scenarios_have_a_capacity_and_a_bound(sim: Any) -> None:
    assert len(sim.models.MODELS) == 38
    for model in sim.models.MODELS.values():
        spec = model.spec.drawn(Random(1))
        assert spec.capacity(spec.outputs.mean).integral(0.0, model.seconds) > 0, model.name
        assert spec.window(spec.outputs.mean)(0.0) >= 1, model.name
    for scenario in sim.scenarios.SCENARIOS.values():
        run = sim.fleets.Run.prepare(replace(scenario, items=min(scenario.items, 500)), "known", 1)
        assert 0 < run.undisturbed <= run.bound + 0.01 < inf, scenario.name


def test_a_telling_rate_says_what_is_left_and_when_all_of_it_is_back(sim: Any) -> None:
    bucket = sim.doors.Rate(60, burst=10, told=True).door()
    window = sim.doors.Rate(60, told=True).door()
    for door in (bucket, window):
        for _ in range(4):
            assert not door.refuses(5.0, 0, sim.doors.Job(1.0))
            door.admit(5.0, sim.doors.Job(1.0))
    assert (bucket.says(5.0).limit, bucket.says(5.0).remaining, bucket.says(5.0).reset) == (60, 6, 4.0)
    assert (window.says(5.0).limit, window.says(5.0).remaining, window.says(5.0).reset) == (60, 56, 55.0)
    assert (bucket.says(9.0).remaining, window.says(60.0).remaining) == (10, 60)


def test_an_answer_tells_what_was_true_when_its_request_was_let_in(sim: Any) -> None:
    told = sim.doors.Rate(600, burst=60, told=True)
    for rate, heard in ((told, True), (replace(told, told=False), False)):
        model = sim.models.Model("x", "x", sim.specs.Spec(rates=(rate,)))
        found = sim.closed_loop.run_model(model, "ours", 1, seconds=60.0)
        assert (found["rejects"] < 0.001) == heard  # who is told has no need to be turned away


# controllers


def test_the_oracle_uses_a_cap_to_the_full_and_is_never_turned_away(sim: Any) -> None:
    found = sim.closed_loop.run_model(sim.models.MODELS["a3"], "known", 1)
    assert found["fraction"] == pytest.approx(1.0, abs=0.02)
    assert found["rejects"] == found["over_limit"] == found["lost"] == 0
    assert found["recovery"] == 0.0


def test_a_run_repeats_exactly_from_its_seed_and_differs_between_seeds(sim: Any) -> None:
    def run(seed: int) -> dict[str, Any]:
        found: dict[str, Any] = sim.closed_loop.run_model(sim.models.MODELS["n7"], "aimd", seed, seconds=60.0)
        return {key: value for key, value in found.items() if key not in ("wall", "seed")}

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_slow_start_doubles_until_a_reject_and_cuts_once_in_an_episode(sim: Any) -> None:
    window = sim.controllers.SlowStartAimd()
    for _ in range(20):
        window.sent(0.0, 20)
    for _ in range(20):
        window.ok(1.0, 0.0, None, 19)
    assert window.limit == 40
    assert window.rejected(2.0, 1.9, None, 30)
    window.rejected(2.1, 1.9, None, 29)
    assert window.limit == 30  # 32, rounded down to a nice number
    window.rejected(20.0, 19.9, None, 20)
    assert window.limit == 20  # 24 likewise


def test_gradient2_grows_while_latency_is_flat_and_yields_when_it_doubles(sim: Any) -> None:
    window, now = sim.controllers.Gradient2(), 0.0

    def samples(count: int, latency: float) -> None:
        nonlocal now
        for _ in range(10 * count):
            now += 0.11
            window.sent(now, window.limit)
            window.ok(now, now - latency, None, window.limit - 1)

    samples(30, 1.0)
    grown = window.limit
    assert grown > 30
    samples(10, 3.0)
    assert window.limit < grown
    before = window.limit
    assert window.rejected(now + 2.0, now, None, 3)
    assert window.limit == pytest.approx(before * 0.9, abs=1)


PROTOTYPE = """
class Window:
    def __init__(self, rng):
        self.limit, self.inflight, self.shut = 5, 0, 0.0
    def delay(self, now):
        return float("inf") if self.inflight >= self.limit else max(0.0, self.shut - now)
    def sent(self, now):
        self.inflight += 1
    def ok(self, now, sent_at, tokens=None):
        self.inflight -= 1
    def rejected(self, now, sent_at, hint=None):
        self.inflight -= 1
        self.shut = now + 0.5
    def cancelled(self, *_):
        self.inflight -= 1
"""


def test_a_window_from_a_file_decides_what_is_sent_and_when(sim: Any, tmp_path: Path) -> None:
    path = tmp_path / "window.py"
    path.write_text(PROTOTYPE, encoding="utf-8")
    model = replace(sim.models.MODELS["a2"], spec=sim.specs.Spec(cap=sim.steps.hold(3)))
    found = sim.closed_loop.run_model(model, "prototype", 1, seconds=100.0, prototype=path)
    assert found["fraction"] > 0.9
    assert 340 < found["sent"] - found["answers"] < 400, "two more than fit are turned away each time the half second is over"
    assert found["over_limit"] == 0
    assert set(found["limits"]) == {5}
    with pytest.raises(SystemExit, match="cannot be loaded"):
        sim.controllers.load_prototype(tmp_path / "nothing.py")


# fleets


def played(sim: Any, name: str, seed: int = 1, *, shell: bool = True, controller: str = "ours", **changes: Any) -> Any:
    return sim.fleets.Run.prepare(replace(sim.scenarios.SCENARIOS[name], **changes), controller, seed, shell=shell).play()


def test_no_bulk_beats_its_bound_and_none_loses_anything_through_the_core_or_the_engine(sim: Any) -> None:
    wrong = []
    for name in ("S1", "S2", "S2h", "S3", "S5", "S6", "S8", "S9", "S10", "S11", "S12", "S14", "S15"):
        for shell, controller in ((False, "known"), (True, "ours")):
            found = played(sim, name, shell=shell, controller=controller, items=300, figures=None).record()
            lost = found["ended"] != 300 or found["lost"] or found["over_limit"] or found["extra"] < 0
            if lost or (name != "S14" and found["ratio"] < 0.99):
                wrong.append((name, shell, found))
    assert not wrong


def test_what_no_endpoint_can_serve_ends_as_an_error_and_is_not_counted_as_lost(sim: Any) -> None:
    found = played(sim, "S14", shell=False, controller="known", items=2000).record()
    assert (found["ended"], found["lost"]) == (2000, 0)
    assert 1 <= found["figures"]["max attempts"][0] <= 4


def test_a_bulk_that_never_ends_is_given_up_and_what_it_held_is_given_back(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim.fleets, "STUCK", 0.0)
    monkeypatch.setattr(sim.fleets, "STUCK_LEAST", 1.0)
    for shell in (False, True):
        run = played(sim, "S2", shell=shell, items=1000)
        assert run.record()["lost"] == 1000 - run.bulk.ended > 0
    assert not any(server.held for server in run.servers)


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


def test_single_calls_are_answered_beside_a_bulk(sim: Any) -> None:
    run = played(sim, "S12", items=1000, figures=None)
    assert run.online.ended > run.bulk.last  # two a second
    assert run.record()["lost"] == 0
    assert run.online.tokens > 0


def test_a_server_that_dies_is_lost_sight_of_and_comes_back(sim: Any) -> None:
    run = played(sim, "S8", items=5000)
    record = run.record()
    begin, end = run.specs[0].dead or (0.0, 0.0)
    assert 0 < record["figures"]["s until noticed"][0] < end - begin
    assert any(source is run.world.sources[0] for _, source in run.world.lost_sight)
    assert record["lost"] == 0


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


# the baseline that pushes


def fleet(sim: Any, items: int, *caps: int | None, **each: Any) -> Any:
    """A scenario on servers with these caps; None takes everything."""
    specs = [sim.specs.Spec(cap=None if cap is None else sim.steps.hold(cap), **each) for cap in caps]
    return replace(sim.scenarios.SCENARIOS["S2-500"], items=items, fleet=lambda _bound: tuple(specs))


def play(sim: Any, scenario: Any, seed: int = 1) -> Any:
    return sim.fleets.Run.prepare(scenario, "push64", seed).play()


def test_where_everything_is_taken_it_loses_nothing_and_keeps_to_its_semaphores(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    most: list[int] = []
    receive = sim.push.Server.receive

    def counted(server: Any, attempt: Any) -> None:
        receive(server, attempt)
        most.append(len(server.held))

    monkeypatch.setattr(sim.push.Server, "receive", counted)
    record = play(sim, fleet(sim, 1000, None, None)).record()
    assert (record["lost"], record["ended"], record["rejects"], record["extra"]) == (0, 1000, 0, 0)
    assert max(most) == 64


def test_what_is_turned_away_keeps_its_place_and_is_lost_after_ten_retries(sim: Any) -> None:
    run = play(sim, fleet(sim, 400, 1))
    record = run.record()
    assert record["lost"] > 0
    assert record["ended"] == 400
    assert {task.tries for task in run.bulk.failed} == {sim.push.RETRIES + 1}
    assert all(source.inflight == 0 for source in run.world.sources)


def test_a_hang_costs_the_whole_time_limit(sim: Any) -> None:
    record = play(sim, fleet(sim, 200, None, hangs=0.02)).record()
    assert record["lost"] == 0
    assert record["makespan"] > sim.push.TIMEOUT


def test_each_request_goes_to_the_endpoint_that_was_given_the_fewest(sim: Any) -> None:
    run = play(sim, fleet(sim, 999, None, None, None))
    assert [source.tally.sent for source in run.world.sources] == [333, 333, 333]


# the command


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(BENCHMARKS / "simulate.py"), *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=100, check=False)


def test_the_quick_simulation_runs_two_models_and_a_bulk(tmp_path: Path) -> None:
    path = tmp_path / "simulation.json"
    done = command("--quick", "--json", str(path))
    assert done.returncode == 0, done.stderr
    run = json.loads(path.read_text(encoding="utf-8"))
    assert {(record["model"], record["controller"]) for record in run["models"]} == {("a", "ours"), ("b", "ours"), ("b", "known")}
    for record in run["models"]:
        assert 0.2 < record["fraction"] <= 1.05
        assert 0 <= record["rejects"] < 0.5
        assert record["over_limit"] == record["lost"] == 0
    (bulk,) = run["scenarios"]
    assert bulk["ended"] == bulk["items"] == 500
    assert bulk["ratio"] >= 0.99
    assert bulk["over_limit"] == bulk["lost"] == 0
    for expected in ("| a cap 64 ", "| b vLLM ", "| mean / worst, rejects ", "| S2-500 8 mixed, short bulk "):
        assert expected in done.stdout


def test_two_processes_give_what_one_gives(tmp_path: Path) -> None:
    runs = []
    for processes in ("1", "2"):
        path = tmp_path / f"{processes}.json"
        done = command("--only", "a", "S2-500", "--seeds", "2", "--processes", processes, "--controllers", "fixed64", "--json", str(path))
        assert done.returncode == 0, done.stderr
        run = json.loads(path.read_text(encoding="utf-8"))
        runs.append([{**record, "wall": None} for record in (*run["models"], *run["scenarios"])])
    assert runs[0] == runs[1]
    assert [record["seed"] for record in runs[0]] == [1, 2, 1, 2]


def test_a_wrong_command_is_refused_with_what_is_wrong(
    sim: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate = importlib.import_module("simulate")
    for line, complaint in (
        ("--markdown", "--markdown needs --json"),
        ("--only n99", "there is no n99"),
        ("--controllers prototype", "needs --prototype"),
        ("--shell --models", "--shell plays scenarios"),
        ("--shell --controllers ours aimd", "--shell plays scenarios"),
    ):
        monkeypatch.setattr(sys, "argv", ["simulate.py", *line.split()])
        with pytest.raises(SystemExit, match="2"):
            simulate.main()
        assert complaint in capsys.readouterr().err


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


# reporting


def record(model: str, controller: str, seed: int, fraction: float, **more: Any) -> dict[str, Any]:
    usual = {"rejects": 0.01, "p99": 2.0, "recovery": None}
    return {"model": model, "controller": controller, "seed": seed, "fraction": fraction, **usual, **more}


def test_a_cell_holds_means_and_latency_paired_by_seed(sim: Any) -> None:
    records = [
        record("b3", "ours", 1, 0.8, p99=3.0, recovery=4.0),
        record("b3", "ours", 2, 0.9, p99=6.0, recovery=8.0),
        record("b3", "known", 1, 0.95, p99=1.0),
        record("b3", "known", 2, 0.95, p99=3.0),
        record("a", "ours", 1, 0.7),
    ]
    assert sim.report.model_cell(records, "b3", "ours") == "0.85/1.0% i2.5 r6"
    assert sim.report.model_cell(records, "a", "ours") == "0.70/1.0%"
    assert sim.report.model_cell(records, "a", "aimd") == "-"
    assert sim.report.summary(records, "ours") == "0.775 / 0.70, 1.0%"


def test_where_faults_take_a_share_the_fraction_is_of_what_the_oracle_gets(sim: Any) -> None:
    records = [record("n7", "ours", 1, 0.6), record("n7", "known", 1, 0.8)]
    assert sim.report.fraction(records, "n7", "ours") == pytest.approx(0.75)


def test_a_scenario_row_says_its_targets_and_which_were_missed(sim: Any) -> None:
    usual = {"scenario": "S8", "controller": "ours", "items": 9, "extra": 0.0, "rejects": 0.0, "p99": 1.0, "wall": 1.0, "over_limit": 0}
    records = [
        {**usual, "ratio": 1.0, "lost": 0, "figures": {"back s": [10.0, 15.0, True], "sent": [3.0, None, True]}},
        {**usual, "ratio": 1.5, "lost": 2, "figures": {"back s": [20.0, 15.0, False], "sent": [4.0, None, True]}},
    ]
    row = sim.report.scenario_row(records, "S8", "ours")
    assert row[3] == "1.25 (1.00-1.50)"
    assert row[8] == "2", "the worst"
    assert row[-1] == "back s 15 (target 15, missed in 1 of 2); sent 3.5"


def test_the_markdown_command_runs_nothing_and_writes_the_parts_there_are(
    sim: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    simulate, page, saved = importlib.import_module("simulate"), tmp_path / "page.md", tmp_path / "simulation.json"
    page.write_text("<!-- models:begin -->\n<!-- models:end --><!-- scenarios:begin -->old<!-- scenarios:end -->", encoding="utf-8")
    machine = {"cpu": "some CPU", "cores": "2", "system": "Linux", "python": "CPython 3.11"}
    options = {"seeds": 1, "controllers": ["ours"]}
    run = {"machine": machine, "options": options, "models": [record("a", "ours", 1, 0.7)], "scenarios": []}
    saved.write_text(json.dumps(run), encoding="utf-8")
    monkeypatch.setattr(simulate, "PAGE", page)
    monkeypatch.setattr(sys, "argv", ["simulate.py", "--json", str(saved), "--markdown"])
    simulate.main()
    text = page.read_text(encoding="utf-8")
    assert "| a cap 64 " in text
    assert "0.70/1.0%" in text
    assert "some CPU" in text
    assert "<!-- scenarios:begin -->old" in text


def test_the_quick_run_of_steps_has_a_figure_for_each_strategy(tmp_path: Path) -> None:
    run, printed = quick("steps.py", tmp_path / "steps.json")
    assert {record["strategy"] for record in run["records"]} == {"expected_finish", "least_connections", "power_of_two", "round_robin"}
    assert all(len(record["seconds"]) == 10 and min(record["seconds"]) > 0 for record in run["records"])
    assert "| 2 equal, 64 sequences |" in printed
