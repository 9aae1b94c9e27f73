"""The makespan benchmark runs, counts what it says it counts, and its report says what the records say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmark_tools import MACHINE, cells, quick, rewritten

from qreward.testing import FakeEndpoint, Faults, Latency, echo_of

NO_CORES = (None, None)


def record(client: str = "ours", seed: int = 1, ratio: float = 1.5, **more: Any) -> dict[str, Any]:
    usual = {"fleet": "some", "finished": True, "requests": 100, "right": 100, "wrong": 0, "lost": 0, "rejected": 7, "worked": 103}
    times = {"bound_s": 10.0, "wall_s": 10 * ratio, "cpu_s": 1.0, "load_before": 0.5, "open_upstream": 0, "reached_s": {"99%": 12.0}}
    return {"client": client, "seed": seed, "ratio": ratio, **usual, **times, **more}


def run_of(*records: dict[str, Any]) -> dict[str, Any]:
    client = {"name": "ours", "what": "ours, untuned", "settings": {"in_flight": 3}}
    options = {"seeds": [1, 2, 3], "cap": 12.0, "requests": None, "quick": False}
    return {
        "machine": MACHINE,
        "environments": {"peer": ["peer==1.0"]},
        "options": options,
        "clients": [client],
        "fleets": {"some": "two endpoints"},
        "records": list(records),
    }


def row_of(module: Any, *records: dict[str, Any]) -> list[str]:
    (line,) = [line for line in module("makespan_report").tables(run_of(*records)).splitlines() if line.startswith("| ours")]
    return cells(line)


# running


def test_the_quick_benchmark_counts_every_item_reject_and_request(tmp_path: Path) -> None:
    written, printed = quick("makespan.py", tmp_path / "makespan.json")
    ours, bare = written["records"]
    assert (ours["client"], bare["client"]) == ("qreward", "bare")
    assert ours["right"] == ours["requests"] > 0
    assert ours["lost"] == ours["wrong"] == ours["open"] == 0
    assert bare["right"] + bare["lost"] == bare["requests"]
    assert bare["lost"] == bare["rejected"] > 0, "it does not repeat what was turned away"
    for found in (ours, bare):
        assert found["finished"]
        assert found["sent"] == found["worked"] + found["rejected"]
        assert found["worked"] >= found["answered"] >= found["right"]
        assert found["ratio"] == pytest.approx(found["wall_s"] / found["bound_s"])
        assert f"| {found['client']} " in printed
    assert ours["ratio"] > 1, "a bound is a bound"


def test_a_bulk_that_does_not_end_is_stopped_and_its_open_requests_are_seen(module: Any) -> None:
    fleets, clients, runs = module("makespan_fleets"), module("makespan_clients"), module("makespan_runs")
    plan = fleets.Plan([FakeEndpoint("a", faults=Faults(hang=1))], fleets.conversations(5), bound=0.1)
    found = runs.run_bulk(clients.BARE, plan, cap=3, cores=NO_CORES)
    assert not found["finished"]
    assert (found["right"], found["lost"], found["open"]) == (0, 0, 5)
    assert found["sent"] == found["worked"] == found["open_upstream"] == clients.BARE.settings["in_flight"]
    assert module("makespan_report").extra(found) == 0
    assert found["reached_s"] == {"50%": None, "90%": None, "99%": None}


def test_a_wrong_answer_is_not_a_right_one_and_a_missing_one_is_neither(module: Any) -> None:
    first, second, third, _ = work = module("makespan_fleets").conversations(4)
    said = {"texts": [echo_of(first), echo_of(third), echo_of(second), None], "errors": {"RateLimited": 1}}
    found = module("makespan_runs").judged(said, work)
    assert [found[key] for key in ("requests", "right", "wrong", "lost", "open")] == [4, 1, 2, 1, 0]


# planning


def test_a_seed_changes_lengths_and_faults_and_repeats_itself_and_a_fleet_needs_about_ten_seconds(module: Any) -> None:
    fleets = module("makespan_fleets")
    work = fleets.conversations(40)
    assert len({json.dumps(each) for each in work}) == 40
    for fleet in fleets.FLEETS:
        assert fleet.build(1, work) == fleet.build(1, work)
        assert [{endpoint.latency.seed for endpoint in fleet.build(seed, work)} for seed in (1, 2)] == [{1}, {2}]
        faults = [{endpoint.faults.seed for endpoint in fleet.build(seed, work) if endpoint.faults.rates()} for seed in (1, 2)]
        assert faults in ([{1}, {2}], [set(), set()])
        plan = fleet.plan(seed=1)
        assert len(plan.work) == fleet.requests
        assert 8 < plan.bound < 12, fleet.name


def test_a_client_that_knows_the_slots_needs_what_its_slots_need_one_after_the_other(module: Any) -> None:
    fleets = module("makespan_fleets")
    work = fleets.conversations(7)
    ends = {
        "a": FakeEndpoint("a", max_concurrency=2, latency=Latency(base=1.0)),
        "b": FakeEndpoint("b", max_concurrency=1, latency=Latency(base=3.0)),
    }
    assert fleets.informed_pull([ends["a"]], work) == 4.0
    assert fleets.informed_pull(list(ends.values()), work) == 3.0
    assert fleets.informed_pull([ends["a"], FakeEndpoint("c", rpm=60)], work) is None
    assert all(fleet.plan(seed=1).informed > fleet.plan(seed=1).bound for fleet in fleets.FLEETS if fleet.name == "uneven")


# reporting


def test_a_row_is_the_median_over_the_seeds_with_its_spread_and_says_what_did_not_end_was_incomplete_or_failed(module: Any) -> None:
    row = row_of(module, record(ratio=1.2), record(seed=2, ratio=1.8, worked=110), record(seed=3, ratio=1.4, worked=100))
    assert row == ["ours", "1.40 (1.20-1.80)", "14.0 (12.0-18.0)", "12.0", "100", "0", "7", "3.0% (0.0%-10.0%)", "1.0"]
    stopped: dict[str, Any] = {"finished": False, "worked": 70, "right": 60, "open_upstream": 4, "reached_s": {"99%": None}}
    row = row_of(module, record(ratio=12, **stopped))
    assert row == ["ours", "did not finish: 60 of 100", "-", "-", "60", "0", "7", "6.0%", "1.0"]
    mixed = row_of(module, record(), record(seed=2), record(seed=3, ratio=12, **stopped))
    assert mixed[1:4] == ["1.50 (1.50-never), 1 of 3 did not finish", "15.0 (15.0-never)", "12.0 (12.0-never)"]
    row = row_of(module, record(), record(seed=2, ratio=0.5, right=90, lost=9, wrong=1))
    assert (row[1], row[5]) == ("1.00 (0.50-1.50), incomplete", "5 (0-10)")
    assert row_of(module, {"fleet": "some", "client": "ours", "seed": 1, "error": "status 1"}) == ["ours", "failed", *["-"] * 7]


def test_the_markdown_command_writes_the_page_from_the_file(module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = rewritten(module("makespan"), module("makespan"), "makespan", run_of(record()), monkeypatch, tmp_path)
    for expected in ("some CPU, 2 cores", "Seeds 1, 2, 3", "12 bounds", "`peer==1.0`", "`in_flight=3`", "#### Fleet `some`"):
        assert expected in text
