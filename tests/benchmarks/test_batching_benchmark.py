"""The batching benchmark runs, its streams of calls are what it says, and its report says what the records say."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmark_tools import BENCHMARKS, MACHINE, cells, rewritten

from qreward.testing import run_in_virtual_time

SERVED = {"base": 0.1, "each": 0.0, "slots": 1, "max_batch": 32, "wait": None, "face": "queue"}


@pytest.fixture
def client(module: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports what runs in the processes of the queues."""
    monkeypatch.syspath_prepend(str(BENCHMARKS / "clients"))
    return module  # type: ignore[no-any-return]


def load_record(queue: str, cell: str, figures: dict[tuple[float, int], tuple[float, float]]) -> dict[str, Any]:
    """A record of loads from (rate, seed) -> (p50, p99)."""
    runs = [{"rate": rate, "seed": seed, "p50": p50, "p99": p99, "p99_later": 1 / p99} for (rate, seed), (p50, p99) in figures.items()]
    return {"round": 0, "queue": queue, "cell": cell, "runs": runs}


# running


def test_the_quick_run_measures_ours_in_all_parts(
    client: Callable[[str], Any], module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first job of each script has a process of its own, as all have in the benchmark; the others run here."""
    path, queues, batching, shared = tmp_path / "batching.json", module("batching_queues"), module("batching"), client("_batching")
    in_a_process, begun = batching.run_client, set[str]()

    def run_client(python: Path, script: str, args: list[str], timeout: float) -> Any:
        if script not in begun:
            begun.add(script)
            return in_a_process(python, script, args, timeout)
        job, opens = json.loads(args[0]), client(script.removesuffix(".py")).opens
        if job["case"] == "loads":
            return shared.loads(opens, job, run_in_virtual_time)
        return asyncio.run(shared.CASES[job["case"]](opens, job))

    monkeypatch.setattr(batching, "run_client", run_client)
    monkeypatch.setattr(sys, "argv", ["batching.py", "--quick", "--json", str(path)])
    batching.main()
    shown = capsys.readouterr().out
    parts = json.loads(path.read_text(encoding="utf-8"))["parts"]
    assert list(parts) == ["cpu", "busy", "loads"]
    for part, its in parts.items():
        assert not [record for record in its["records"] if "error" in record]
        wanted = list(queues.plan(part, batching.QUICK))
        assert [(record["queue"], record["cell"]) for record in its["records"]] == [(task.queue, task.cell) for task in wanted]
    assert all(record["us"] > 0 for record in parts["cpu"]["records"])
    assert all(1 <= record["batch"] <= 20 and record["p50"] >= 0.1 for record in parts["busy"]["records"])
    assert all(len(record["runs"]) == len(queues.LOADS) for record in parts["loads"]["records"])
    for name in (queues.BARE, queues.OURS, queues.SUBMIT, *queues.SERVICES):
        assert f"{name} " in shown or f"{name}\n" in shown


def test_a_queue_that_gives_a_wrong_result_fails_the_run(client: Callable[[str], Any]) -> None:
    shared = client("_batching")

    async def wrong(number: int) -> int:
        return number

    for case in (shared.closed_loop, shared.flood):
        with pytest.raises(SystemExit, match="a wrong result"):
            asyncio.run(case(lambda *_: shared.Queue(wrong), {"callers": 1, "calls": 10}))


def test_latencies_count_from_when_the_calls_came(client: Callable[[str], Any]) -> None:
    run, open_loop = client("batching_virtual_time").run, client("_batching").open_loop
    for name in ("batching_bare", "batching_qreward"):
        found = run(open_loop(client(name).opens, SERVED, [1.0, 1.05, 1.06]))
        assert found == pytest.approx({"p50": 0.14, "p99": 0.15, "p99_later": 0.15, "makespan": 0.2, "batch": 1.5}, abs=1e-5), name
    for arrivals, expected in (([5.0, 5.05, 6.01, 6.02], (0.19, 0.19)), ([5.0, 5.05, 6.2], (0.15, 0.1))):
        found = run(open_loop(client("batching_bare").opens, SERVED, arrivals))
        assert (found["p99"], found["p99_later"]) == pytest.approx(expected, abs=1e-5), "without those of the first second"
    runs = [run(open_loop(client("batching_qreward").opens, SERVED | {"wait": wait}, [0.0])) for wait in (None, 0.05)]
    assert [found["p50"] for found in runs] == pytest.approx([0.1, 0.15], abs=1e-4), "a fixed wait counts"


# planning


def test_in_each_round_all_queues_take_turns_in_each_cell_with_the_same_arrivals(module: Any) -> None:
    queues = module("batching_queues")
    tasks = list(queues.plan("cpu", queues.Sizes(rounds=2, seeds=1)))
    names, wanted = list(queues.PARTS["cpu"]), ["64 callers", "512 callers", "lone caller", "all at once"]
    assert [(task.round, task.cell, task.queue) for task in tasks] == [(n, cell, name) for n in (0, 1) for cell in wanted for name in names]
    poisson = [task for task in queues.plan("busy", queues.Sizes(rounds=3, seeds=1)) if task.cell == "poisson"]
    assert {(task.round, task.job["seed"]) for task in poisson} == {(0, 0), (1, 1), (2, 2)}
    assert len(poisson) == 3 * len(queues.PARTS["busy"])


# reporting


def test_cells_are_medians_with_their_range_and_say_what_failed(module: Any) -> None:
    report = module("batching_report")
    records = [{"round": n, "queue": "ours", "cell": "64 callers", "us": us} for n, us in enumerate([4.0, 9.0, 5.0])]
    records.append({"round": 0, "queue": "peer", "cell": "64 callers", "error": "status 1"})
    records.append({"round": 0, "queue": "ours", "cell": "lone caller", "us": 14.0})
    shown = [cells(line) for line in report.cpu_table(records).splitlines()]
    assert shown[0] == ["CPU us a call", "64 callers", "lone caller"]
    assert shown[2:] == [["ours", "5.0 (4.0-9.0)", "14.0 (14.0-14.0)"], ["peer", "failed", ""]]
    usual = {"queue": "ours", "cell": "even", "p99": 0.2, "makespan": 2.1234, "batch": 9.52}
    busy = [{"round": n, "p50": p50, **usual} for n, p50 in enumerate([0.15, 0.151, 0.19])]
    assert cells(report.busy_table(busy).splitlines()[2]) == ["ours", "151", "200", "2.12", "9.5"], "milliseconds"


def test_a_single_wait_is_compared_with_ours_load_by_load_and_seed_by_seed(module: Any) -> None:
    queues, report = module("batching_queues"), module("batching_report")
    name, service = next(iter(queues.SERVICES.items()))
    rates = [load * service.capacity() for load in queues.LOADS]
    wait = next(iter(queues.FIXED))
    ours = load_record(queues.OURS, name, {(rate, seed): (1.0 + 9 * seed, 2.0) for rate in rates for seed in (0, 1, 2)})
    p50 = dict(zip(rates, (2.0, 1.0, 0.995, 0.5), strict=True))
    theirs = load_record(wait, name, {(rate, seed): (p50[rate] * (1.0 + 9 * seed), 3.0) for rate in rates for seed in (0, 1, 2)})
    every = "2% (0.67), 20% (0.67), 50% (0.67), 80% (0.67)"
    lines = [cells(line) for line in report.waits_table([ours, theirs]).splitlines()]
    assert lines[2:] == [["GPU reward model", wait, "80% (0.50)", "-", every, "2.00", "1.50"]]


def test_the_markdown_command_writes_the_page_from_the_file(module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    records = [{"round": 0, "queue": "ours", "cell": "64 callers", "us": 4.0}]
    part = {"sizes": module("batching_queues").Sizes(rounds=7, seeds=1)._asdict(), "load_average": [0.5, 1.5], "records": records}
    batching = module("batching")
    text = rewritten(batching, batching, "batching", {"machine": MACHINE, "parts": {"cpu": part}}, monkeypatch, tmp_path)
    for expected in ("some CPU, 2 cores", "medians of 7 rounds", "0.5 to 1.5", "| ours ", "4.0 (4.0-4.0)"):
        assert expected in text
