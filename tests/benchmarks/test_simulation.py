"""The simulation benchmark: its servers do what their parameters say, its bounds hold, and its quick form runs.

Nothing here asks how good a controller is, but for the one that is told everything.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIMULATION = (
    *("agenda", "bounds", "closed_loop", "controllers", "doors", "engine", "fleets", "laws"),
    *("measure", "models", "report", "scenarios", "specs", "steps", "world"),
)


class Modules:
    """The modules of the benchmark by name; they are scripts beside the library, not a part of it."""

    def __init__(self) -> None:
        for name in SIMULATION:
            setattr(self, name, importlib.import_module(f"simulation.{name}"))

    def __getattr__(self, name: str) -> ModuleType:
        raise AttributeError(name)


@pytest.fixture(scope="module")
def sim() -> Iterator[Modules]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield Modules()


class Bench:
    """An engine, and when each of its requests was done."""

    def __init__(self, sim: Modules, law: Any) -> None:
        self.agenda = sim.agenda.Agenda()
        self.done: dict[str, float] = {}
        self.engine = sim.engine.make_engine(self.agenda, law, lambda name: self.done.__setitem__(name, round(self.agenda.now, 6)))

    def start(self, when: float, name: str, size: float) -> None:
        self.agenda.at(when, lambda _: self.engine.start(name, size))

    def stop(self, when: float, name: str) -> None:
        self.agenda.at(when, lambda _: self.engine.stop(name))

    def run(self, until: float = inf) -> None:
        while self.agenda.heap and self.agenda.heap[0][0] <= until:
            when, _, what, argument = self.agenda.heap[0]
            importlib.import_module("heapq").heappop(self.agenda.heap)
            self.agenda.now = when
            what(argument)
            self.agenda.settle()


# servers


def test_requests_share_a_server_and_speed_up_when_one_leaves(sim: Modules) -> None:
    bench = Bench(sim, sim.laws.Scoring(seconds=1.0, width=1))  # one unit of work a second in all
    bench.start(0.0, "long", 3.0)
    bench.start(0.0, "short", 1.0)
    bench.run()
    assert bench.done == {"short": 2.0, "long": 4.0}
    assert bench.engine.delivered() == pytest.approx(4.0)


def test_what_is_stopped_was_for_nothing_and_frees_its_share(sim: Modules) -> None:
    bench = Bench(sim, sim.laws.Scoring(seconds=1.0, width=1))
    bench.start(0.0, "kept", 2.0)
    bench.start(0.0, "stopped", 9.0)
    bench.stop(2.0, "stopped")
    bench.run()
    assert bench.done == {"kept": 3.0}
    assert bench.engine.wasted == pytest.approx(1.0)
    assert bench.engine.delivered() == pytest.approx(3.0)


def test_a_speed_that_changes_holds_for_what_is_under_way(sim: Modules) -> None:
    bench = Bench(sim, sim.laws.Alone(1.0, speeds=sim.steps.between(2.0, 4.0, 0.5)))
    bench.start(0.0, "request", 4.0)  # 2 units until 2 s, 1 until 4 s, 1 more
    bench.run()
    assert bench.done == {"request": 5.0}


def test_beyond_its_sequences_a_server_lets_requests_wait_in_line(sim: Modules) -> None:
    bench = Bench(sim, sim.laws.Shared(r1=1.0, h=1e12, seqs=2))
    for name in "abc":
        bench.start(0.0, name, 1.0)
    bench.run()
    assert bench.done == {"a": 1.0, "b": 1.0, "c": 2.0}


def test_an_admission_stalls_everything(sim: Modules) -> None:
    bench = Bench(sim, sim.laws.Shared(r1=1.0, h=1e12, stall=0.25))
    bench.start(0.0, "first", 1.0)
    bench.start(0.5, "second", 1.0)
    bench.run()
    assert bench.done == {"first": 1.5, "second": 1.75}


@given(seed=st.integers(0, 10_000))
@settings(max_examples=30)
def test_a_shared_engine_without_contention_is_the_separate_one(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        sim = Modules()
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


def test_a_server_that_thrashes_does_most_at_the_point(sim: Modules) -> None:
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
def test_a_rate_never_lets_in_more_than_it_allows_and_its_hint_is_true(limit: dict[str, Any], gaps: list[float]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        sim = Modules()
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


def test_tokens_that_are_charged_when_used_bring_a_bucket_into_debt(sim: Modules) -> None:
    door = sim.doors.Rate(60, burst=100, unit="tokens", used=True, hint="exact").door()
    job = sim.doors.Job(tokens=150.0, prompt=50)
    assert not door.refuses(0.0, 0, job)
    door.admit(0.0, job)
    door.settle(0.0, job)
    assert door.refuses(99.0, 1, job)
    assert door.hint(99.0, job) == pytest.approx(51.0)  # from -1 to 50, one a second


def test_a_cap_moves_by_its_schedule(sim: Modules) -> None:
    cap = sim.doors.Cap(sim.steps.steps(2, (10.0, 1), (20.0, 3)), told=None)
    assert [cap.refuses(now, 2, None) for now in (0.0, 10.0, 20.0)] == [True, True, False]
    assert [cap.refuses(25.0, held, None) for held in (2, 3)] == [False, True]


# time and measures


def test_the_integral_of_steps_and_a_walk_within_its_walls(sim: Modules) -> None:
    assert sim.steps.between(10.0, 20.0, 0.0, 2.0).integral(5.0, 25.0) == 20.0
    walk = sim.steps.Walk(20, 120, 64, 8, 5.0, 600.0).draw(Random(3))
    assert len(walk.times) == 121
    assert min(walk.values) >= 20
    assert max(walk.values) <= 120
    assert len(set(walk.values)) > 20


def test_recovery_is_when_the_new_capacity_is_used(sim: Modules) -> None:
    capacity = sim.steps.steps(10, (100.0, 20))
    used = [0.0]
    for second in range(200):
        used.append(used[-1] + (10.0 if second < 112 else 19.0))
    assert sim.measure.jumps(capacity) == [100.0]
    assert sim.measure.recovered(used, capacity, 100.0, 200.0, 0.85) == 12.0 - 1.0  # four of the five seconds are full
    assert sim.measure.recovered(used, capacity, 100.0, 110.0, 0.85) == 10.0


# bounds


def test_the_bound_of_caps_is_work_over_slots_or_the_longest_request(sim: Modules) -> None:
    spec = sim.specs.Spec(law=sim.laws.Alone(0.01), ttft=0.0, cap=sim.steps.hold(4))
    many = sim.bounds.Work(items=1000, mean=100.0, prompt=0.0, shortest=100.0, longest=100.0)
    assert sim.bounds.lower_bound([spec, spec], many) == pytest.approx(1000 * 1.0 / 8, abs=1e-3)
    assert sim.bounds.lower_bound([spec], replace(many, items=4, longest=900.0)) == pytest.approx(9.0)


def test_the_bound_of_a_window_by_the_clock_is_a_staircase(sim: Modules) -> None:
    spec = sim.specs.Spec(ttft=0.0, rates=(sim.doors.Rate(600),))
    work = sim.bounds.Work(items=1801, mean=100.0, prompt=0.0, shortest=50.0, longest=100.0)
    assert sim.bounds.lower_bound([spec], work) == pytest.approx(180.5, abs=1e-3)  # the fourth window, and half a second


def test_a_fleet_that_never_returns_has_no_bound(sim: Modules) -> None:
    spec = sim.specs.Spec(cap=sim.steps.hold(4), away=(0.0, inf))
    with pytest.raises(ValueError, match="never"):
        sim.bounds.lower_bound([spec], sim.bounds.Work(10, 100.0, 0.0, 50.0, 100.0))


def test_all_models_and_scenarios_have_a_capacity_and_a_bound(sim: Modules) -> None:
    assert len(sim.models.MODELS) == 38
    for model in sim.models.MODELS.values():
        spec = model.spec.drawn(Random(1))
        assert spec.capacity(spec.outputs.mean).integral(0.0, model.seconds) > 0, model.name
        assert spec.window(spec.outputs.mean)(0.0) >= 1, model.name
    for scenario in sim.scenarios.SCENARIOS.values():
        run = sim.fleets.Run.prepare(replace(scenario, items=min(scenario.items, 500)), "known", 1)
        assert 0 < run.undisturbed <= run.bound + 0.01 < inf, scenario.name


def test_a_telling_rate_says_what_is_left_and_when_all_of_it_is_back(sim: Modules) -> None:
    bucket = sim.doors.Rate(60, burst=10, told=True).door()
    window = sim.doors.Rate(60, told=True).door()
    for door in (bucket, window):
        for _ in range(4):
            assert not door.refuses(5.0, 0, sim.doors.Job(1.0))
            door.admit(5.0, sim.doors.Job(1.0))
    assert (bucket.says(5.0).limit, bucket.says(5.0).remaining, bucket.says(5.0).reset) == (60, 6, 4.0)
    assert (window.says(5.0).limit, window.says(5.0).remaining, window.says(5.0).reset) == (60, 56, 55.0)
    assert (bucket.says(9.0).remaining, window.says(60.0).remaining) == (10, 60)


def test_an_answer_tells_what_was_true_when_its_request_was_let_in(sim: Modules) -> None:
    told = sim.doors.Rate(600, burst=60, told=True)
    for rate, heard in ((told, True), (replace(told, told=False), False)):
        model = sim.models.Model("x", "x", sim.specs.Spec(rates=(rate,)))
        found = sim.closed_loop.run_model(model, "ours", 1, seconds=60.0)
        assert (found["rejects"] < 0.001) == heard  # who is told has no need to be turned away


# controllers


def test_the_oracle_uses_a_cap_to_the_full_and_is_never_turned_away(sim: Modules) -> None:
    found = sim.closed_loop.run_model(sim.models.MODELS["a3"], "known", 1)
    assert found["fraction"] == pytest.approx(1.0, abs=0.02)
    assert found["rejects"] == found["over_limit"] == found["lost"] == 0
    assert found["recovery"] == 0.0


def test_a_run_repeats_exactly_from_its_seed_and_differs_between_seeds(sim: Modules) -> None:
    def run(seed: int) -> dict[str, Any]:
        found: dict[str, Any] = sim.closed_loop.run_model(sim.models.MODELS["n7"], "aimd", seed, seconds=60.0)
        return {key: value for key, value in found.items() if key not in ("wall", "seed")}

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_slow_start_doubles_until_a_reject_and_cuts_once_in_an_episode(sim: Modules) -> None:
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


def test_gradient2_grows_while_latency_is_flat_and_yields_when_it_doubles(sim: Modules) -> None:
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


def test_a_window_from_a_file_decides_what_is_sent_and_when(sim: Modules, tmp_path: Path) -> None:
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


def fleet_run(sim: Modules, name: str, items: int, controller: str = "known") -> dict[str, Any]:
    record: dict[str, Any] = sim.fleets.Run.prepare(replace(sim.scenarios.SCENARIOS[name], items=items), controller, 1).play().record()
    return record


def test_no_bulk_beats_its_bound_and_none_loses_anything(sim: Modules) -> None:
    for name in ("S1", "S2", "S2h", "S3", "S5", "S6", "S8", "S9", "S10", "S11", "S12", "S15"):
        found = fleet_run(sim, name, 1000)
        assert found["ended"] == 1000, name
        assert found["ratio"] >= 0.99, name
        assert found["lost"] == found["over_limit"] == 0, name
        assert found["extra"] >= 0, name


def test_what_no_endpoint_can_serve_ends_as_an_error_and_is_not_counted_as_lost(sim: Modules) -> None:
    found = fleet_run(sim, "S14", 2000)
    assert found["ended"] == 2000
    assert found["lost"] == 0
    assert 1 <= found["figures"]["most tries"][0] <= 4


def test_a_bulk_that_never_ends_is_given_up_and_counted_as_lost(sim: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim.fleets, "STUCK", 0.0)
    monkeypatch.setattr(sim.fleets, "STUCK_LEAST", 1.0)
    found = fleet_run(sim, "S2", 1000)
    assert found["lost"] == 1000 - found["ended"] > 0


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
    sim: Modules, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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


# reporting


def record(model: str, controller: str, seed: int, fraction: float, **more: Any) -> dict[str, Any]:
    usual = {"rejects": 0.01, "p99": 2.0, "recovery": None}
    return {"model": model, "controller": controller, "seed": seed, "fraction": fraction, **usual, **more}


def test_a_cell_holds_means_and_latency_paired_by_seed(sim: Modules) -> None:
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


def test_where_faults_take_a_share_the_fraction_is_of_what_the_oracle_gets(sim: Modules) -> None:
    records = [record("n7", "ours", 1, 0.6), record("n7", "known", 1, 0.8)]
    assert sim.report.fraction(records, "n7", "ours") == pytest.approx(0.75)


def test_a_scenario_row_says_what_was_asked_and_missed(sim: Modules) -> None:
    usual = {"scenario": "S8", "controller": "ours", "items": 9, "extra": 0.0, "rejects": 0.0, "p99": 1.0, "wall": 1.0, "over_limit": 0}
    records = [
        {**usual, "ratio": 1.0, "lost": 0, "figures": {"back s": [10.0, 15.0, True], "sent": [3.0, None, True]}},
        {**usual, "ratio": 1.5, "lost": 2, "figures": {"back s": [20.0, 15.0, False], "sent": [4.0, None, True]}},
    ]
    row = sim.report.scenario_row(records, "S8", "ours")
    assert row[3] == "1.25 (1.00-1.50)"
    assert row[8] == "2", "the worst"
    assert row[-1] == "back s 15 (asked 15, missed in 1 of 2); sent 3.5"


def test_the_markdown_command_runs_nothing_and_writes_the_parts_there_are(
    sim: Modules, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
