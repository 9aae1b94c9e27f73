"""The benchmarks run, and their reports say what the records say. Nothing here looks at how long anything took."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmark_tools import BENCHMARKS, cells, quick, record

from qreward import PrefixAffinity

OURS_AND_BARE = {"bare", "qreward-batch", "qreward-calls", "qreward-gather"}


# running


def test_the_quick_overhead_benchmark_measures_ours_and_bare(tmp_path: Path) -> None:
    found, printed = quick("overhead.py", tmp_path / "overhead.json")
    records = found["records"]
    assert {record["client"] for record in records} == OURS_AND_BARE
    for found in records:
        assert found["right"] == found["requests"] > 0
        assert found["served"] == 1 + 64 + found["requests"], "first call, warm-up, window; nothing sent twice"
        assert found["cpu_us"] > 0
        assert found["rss_mb"] >= 0
        assert found["lag_ms"] >= 0
        assert f"| {found['client']} " in printed


def test_a_client_whose_answers_are_wrong_fails_the_run(module: Any) -> None:
    processes, clients = module("_processes"), module("overhead_clients")
    with processes.Server(core=None) as server:
        wanted = clients.command_line(server.urls(0), "another verdict", 2, 4, core=None, gc=False)
        with pytest.raises(processes.ClientFailed, match="4 of 4 verdicts were missing or wrong"):
            processes.run_client(Path(sys.executable), "bare.py", wanted, 60.0)


def test_the_server_delays_as_the_path_says_and_counts_what_is_open(module: Any) -> None:
    processes, clients = module("_processes"), module("overhead_clients")
    with processes.Server(core=None) as server:
        wanted = clients.command_line(server.urls(20), server.verdict, 8, 16, core=None, gc=True)
        found = processes.run_client(Path(sys.executable), "bare_timeout.py", wanted, 60.0)
        seen = server.stats()
        assert server.stats()["served"] == 0
    assert found["right"] == 16
    assert seen == {"served": 1 + 8 + 16, "peak": 8}


def test_the_profile_splits_all_of_the_time_by_package(module: Any) -> None:
    processes, clients = module("_processes"), module("overhead_clients")
    with processes.Server(core=None) as server:
        wanted = clients.command_line(server.urls(0), server.verdict, 16, 1500, core=None, gc=False)
        found = processes.run_client(Path(sys.executable), "bare.py", [*wanted, "--profile"], 60.0)
    assert sum(found["profile"].values()) == pytest.approx(found["cpu_us"])
    assert {"aiohttp", "asyncio", "gc"} <= set(found["profile"])


def test_the_profile_counts_a_collection_once_and_to_nobody_else(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS / "clients"))
    many: list[list[int]] = [[] for _ in range(200_000)]
    sampler = module("_sampler").Sampler()
    try:
        for _ in range(8):
            gc.collect()
    finally:
        shares = sampler.stop()
    assert len(many) == 200_000
    assert shares["gc"] > 0.95, shares


def test_the_profile_table_shows_what_ours_is_over_bare(module: Any) -> None:
    shown = module("profile_overhead").profile_table(
        {"bare": {"aiohttp": 40.0, "json": 0.1}, "ours": {"aiohttp": 42.5, "qreward.scheduler": 5.0}}
    )
    assert [line.split() for line in shown.splitlines()[2:]] == [
        ["|", "aiohttp", "|", "40.0", "|", "42.5", "|", "+2.5", "|"],
        ["|", "qreward.scheduler", "|", "0.0", "|", "5.0", "|", "+5.0", "|"],
        ["|", "other", "|", "0.1", "|", "0.0", "|", "-0.1", "|"],
        ["|", "all", "|", "40.1", "|", "47.5", "|", "+7.4", "|"],
    ]


def test_the_quick_memory_benchmark_reads_a_bulk_no_further_ahead_than_it_must(tmp_path: Path) -> None:
    result = quick("memory.py", tmp_path / "memory.json")[0]["result"]
    assert result["items"] == 20_000
    assert result["failed"] == 0
    assert result["most_ahead"] <= 512 + PrefixAffinity().look_ahead + 256, "what is in flight, the look-ahead and a turn of reading"
    assert result["rss_mb"] >= 0


# planning


def test_a_window_is_sized_by_cost_delay_and_places_in_flight_and_slow_peers_sit_rounds_out(module: Any) -> None:
    client = module("overhead_clients").Client("some", "some.py", cost=800)
    assert client.requests(in_flight=64, delay_ms=0) == 1000, "0.8 s of CPU time"
    assert client.requests(in_flight=64, delay_ms=200) == 800, "2.5 s at 320 a second"
    assert client.requests(in_flight=2048, delay_ms=0) == 4096, "two waves"
    slow = module("overhead_clients").Client("slow", "slow.py", share=0.4)
    assert [slow.takes_part(number) for number in range(5)] == [True, False, True, False, False]


def test_every_client_has_its_file_its_pinned_environment_and_a_name_of_its_own(module: Any) -> None:
    pinned, bulks, drop_ins = module("overhead_clients").ENVIRONMENTS, module("makespan_clients"), module("drop_in").CLIENTS
    benchmarks = [module("overhead_clients").CLIENTS, module("streaming_clients").CLIENTS, drop_ins]
    for clients in (*benchmarks, (*bulks.CLIENTS, *bulks.CANDIDATES, bulks.BARE)):
        assert len({client.name for client in clients}) == len(clients)
        for client in clients:
            assert (BENCHMARKS / "clients" / client.script).is_file(), client.name
            assert client.environment is None or all("==" in pin for pin in pinned[client.environment]), client.name
    assert {client.environment for client in drop_ins} == {None}
    assert bulks.OURS.settings == {}, "ours is told only the URLs"


def test_peers_run_without_the_settings_of_the_shell_they_are_started_from(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "no_proxy", "PYTHONPATH", "OPENAI_API_KEY", "QREWARD_CONFIG"):
        monkeypatch.setenv(name, "unwanted")
    assert "unwanted" not in module("_processes").clean_environment().values()


# reporting


def test_ratios_are_paired_by_round_before_the_median_is_taken(module: Any) -> None:
    report = module("_rounds_report")
    costs = [("bare", 0, 100.0), ("ours", 0, 120.0), ("bare", 1, 200.0), ("ours", 1, 220.0), ("ours", 2, 9.0)]
    assert report.ratios([record(*cost) for cost in costs], "ours", "bare") == [1.2, 1.1]
    assert report.spread([1.2, 1.1, 1.5], "{:.2f}") == "1.20 (1.10-1.50)"


def test_relaxed_garbage_collection_has_columns_of_its_own_and_a_failed_client_a_row_that_says_so(module: Any) -> None:
    runs = [("bare", 100.0, False), ("ours", 150.0, False), ("bare", 80.0, True), ("ours", 88.0, True)]
    records = [record(client, 0, cost, gc=gc, delay_ms=0) for client, cost, gc in runs]
    failed = {"client": "peer", "round": 0, "in_flight": 64, "delay_ms": 0, "gc": False, "error": "status 1"}
    rows = {
        row[0]: row for row in map(cells, module("_rounds_report").cell_table([*records, failed], module("overhead").LAYOUT).splitlines())
    }
    assert rows["ours"] == ["ours", "150", "1.50", "-", "1.0", "2", "3", "4", "1", "88", "1.10"]
    assert rows["peer"] == ["peer", "failed", *["-"] * 6, "0", "-", "-"]


def test_only_the_marked_section_of_the_page_is_rewritten(module: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- overhead:begin -->\nold\n<!-- overhead:end -->\nafter\n", encoding="utf-8")
    module("_pages").rewrite_section(page, "overhead", "new")
    assert page.read_text(encoding="utf-8") == "before\n<!-- overhead:begin -->\nnew\n<!-- overhead:end -->\nafter\n"
    with pytest.raises(ValueError, match="memory:begin"):
        module("_pages").rewrite_section(page, "memory", "new")


def test_the_markdown_command_measures_nothing_and_writes_the_page_from_the_file(
    module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    overhead, page, saved = module("overhead"), tmp_path / "page.md", tmp_path / "overhead.json"
    page.write_text("<!-- overhead:begin --><!-- overhead:end -->", encoding="utf-8")
    machine = {"cpu": "some CPU", "cores": "2", "system": "Linux", "python": "CPython 3.11"}
    run = {
        "machine": machine,
        "environments": {"peer": ["peer==1.0"]},
        "options": {"rounds": 3},
        "records": [record("bare", 0, 100.0, delay_ms=0)],
    }
    saved.write_text(json.dumps(run), encoding="utf-8")
    monkeypatch.setattr(module("_rounds"), "PAGE", page)
    monkeypatch.setattr(sys, "argv", ["overhead.py", "--json", str(saved), "--markdown"])
    overhead.main()
    text = page.read_text(encoding="utf-8")
    for expected in ("some CPU, 2 cores", "3 rounds", "`peer==1.0`", "#### 64 in flight, 0 ms server delay", "| bare "):
        assert expected in text
    assert json.loads(saved.read_text(encoding="utf-8")) == run


def test_the_page_has_the_sections_that_the_commands_write(module: Any) -> None:
    page = module("_pages").PAGE.read_text(encoding="utf-8")
    for name in ("overhead", "memory", "streaming", "makespan", "batching", "bulk", "bulk-peers"):
        assert page.count(f"<!-- {name}:begin -->") == page.count(f"<!-- {name}:end -->") == 1
