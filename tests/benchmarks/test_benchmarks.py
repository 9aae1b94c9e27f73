"""The benchmarks of the cost of a request, of a chunk, and of memory: they run, and their reports say what the records say."""

from __future__ import annotations

import http.client
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmark_tools import BENCHMARKS, MACHINE, cells, quick, record, rewritten

from qreward import PrefixAffinity
from qreward.codecs.chat_stream import Parser


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("script", "warm_up", "clients"),
    [
        ("overhead.py", 64, ["bare", "qreward-batch", "qreward-calls", "qreward-gather"]),
        ("streaming.py", 16, ["bare", "qreward-batch", "qreward-chunks", "qreward-tokens"]),
        ("drop_in.py", 16, ["pool-httpx2", "qreward-httpx2"]),
        ("drop_in.py --streamed --clients qreward-httpx", 16, ["qreward-httpx"]),
    ],
)
def test_a_quick_run_measures_all_clients_and_sends_nothing_twice(script: str, warm_up: int, clients: list[str], tmp_path: Path) -> None:
    name, *more = script.split()
    written, printed = quick(name, tmp_path / "run.json", *more)
    assert sorted(found["client"] for found in written["records"]) == clients
    for found in written["records"]:
        assert found["right"] == found["requests"] > 0
        assert found["served"] == 1 + warm_up + found["requests"], "first call, warm-up, window"
        assert found["cpu_us"] > 0
        assert f"| {found['client']} " in printed


def test_a_client_whose_answers_are_wrong_or_cut_short_fails_the_run(module: Any) -> None:
    processes, clients = module("_processes"), module("overhead_clients")
    with processes.Server(core=None) as server:
        streams = {"core": None, "gc": False, "pieces": server.chunks}
        wrong = clients.command_line(server.urls(0), "another verdict", 2, 4, core=None, gc=False)
        longer = clients.command_line(server.urls(pause_ms=0), f"{server.verdict} And a chunk that never comes.", 2, 4, **streams)
        scripts = ["stream_bare.py", "stream_qreward_tokens.py", "stream_qreward_chunks.py", "stream_qreward_batch.py"]
        for script, line in [("bare.py", wrong), *((script, longer) for script in scripts)]:
            with pytest.raises(processes.ClientFailed, match="4 of 4 verdicts were missing or wrong"):
                processes.run_client(Path(sys.executable), script, line, 60.0)


def test_the_server_counts_what_is_served_and_open_and_costs_are_of_a_call_or_a_chunk(module: Any) -> None:
    processes, clients = module("_processes"), module("overhead_clients")
    with processes.Server(core=None) as server:

        def run(script: str, delay: int, calls: int, *more: str, **settings: Any) -> Any:
            line = clients.command_line(server.urls(delay), server.verdict, 8, calls, core=None, gc=False, **settings)
            return processes.run_client(Path(sys.executable), script, [*line, *more], 60.0)

        assert run("bare_timeout.py", 20, 16)["right"] == 16
        assert server.stats() == {"served": 1 + 8 + 16, "peak": 8}
        assert server.stats()["served"] == 0
        whole, piece = (run("bare.py", 0, 16, pieces=pieces) for pieces in (1, 10**9))
        assert whole["cpu_us"] > 1
        assert piece["cpu_us"] < 1e-3
        profiled = run("bare.py", 0, 1500, "--profile")
    assert sum(profiled["profile"].values()) == pytest.approx(profiled["cpu_us"])
    assert {"aiohttp", "asyncio", "gc"} <= set(profiled["profile"])


def streamed(url: str) -> list[bytes]:
    """What a stream is read as, read by read."""
    host, path = url.removeprefix("http://").split("/", 1)
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.request("POST", f"/{path}/chat/completions", body=b"{}")
    with connection.getresponse() as response:
        assert response.headers["content-type"] == "text/event-stream"
        reads = list(iter(lambda: response.read1(1 << 20), b""))
    connection.close()
    return reads


def test_a_paced_stream_comes_chunk_by_chunk_and_a_stream_without_pause_is_the_same(module: Any) -> None:
    with module("_processes").Server(core=None) as server:
        reads = streamed(server.urls(pause_ms=2)[0])
        assert b"".join(streamed(server.urls(pause_ms=0)[0])) == b"".join(reads)
        assert server.stats()["served"] == 2
    assert len(reads) > server.chunks / 2, "a machine that is busy may let some come together"
    *events, done = Parser().feed(b"".join(reads))
    assert done.data == b"[DONE]"
    *texts, last, usage = [json.loads(each.data) for each in events]
    assert len(events) == server.chunks
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in texts) == server.verdict
    assert (last["choices"][0]["finish_reason"], usage["choices"], usage["usage"]["completion_tokens"]) == ("stop", [], 62)


def test_the_quick_memory_benchmark_reads_a_bulk_no_further_ahead_than_it_must(tmp_path: Path) -> None:
    result = quick("memory.py", tmp_path / "memory.json")[0]["result"]
    assert (result["items"], result["failed"]) == (20_000, 0)
    assert result["most_ahead"] <= 512 + PrefixAffinity().look_ahead + 256, "what is in flight, the look-ahead and a turn of reading"


# planning


def test_every_client_has_its_file_its_pinned_environment_and_a_name_of_its_own(module: Any) -> None:
    pinned, bulks, queues = module("overhead_clients").ENVIRONMENTS, module("makespan_clients"), module("batching_queues")
    benchmarks = [module(name).CLIENTS for name in ("overhead_clients", "streaming_clients", "drop_in")]
    for clients in (*benchmarks, (*bulks.CLIENTS, *bulks.CANDIDATES, bulks.BARE)):
        assert len({client.name for client in clients}) == len(clients)
        for client in clients:
            assert (BENCHMARKS / "clients" / client.script).is_file(), client.name
            assert client.environment is None or all("==" in pin for pin in pinned[client.environment]), client.name
    for peer in (peer for part in queues.PARTS.values() for peer in part.values()):
        assert (BENCHMARKS / "clients" / peer.script).is_file()
        assert peer.environment is None or all("==" in pin for pin in queues.ENVIRONMENTS[peer.environment])
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


def test_tables_compare_with_bare_and_the_sdk_and_a_failed_client_has_a_row_that_says_so(module: Any) -> None:
    report = module("_rounds_report")
    runs = [("bare", 100.0, False), ("ours", 150.0, False), ("bare", 80.0, True), ("ours", 88.0, True)]
    records = [record(client, 0, cost, gc=gc, delay_ms=0) for client, cost, gc in runs]
    failed = {"client": "peer", "round": 0, "in_flight": 64, "delay_ms": 0, "gc": False, "error": "status 1"}
    rows = {row[0]: row for row in map(cells, report.cell_table([*records, failed], module("overhead").LAYOUT).splitlines())}
    assert rows["ours"] == ["ours", "150", "1.50", "-", "1.0", "2", "3", "4", "1", "88", "1.10"], "relaxed collection has its own columns"
    assert rows["peer"] == ["peer", "failed", *["-"] * 6, "0", "-", "-"]

    costs = {"bare": 20.0, "ours": 25.0, "openai-aiohttp": 100.0, "openai": 250.0}
    shown = report.cell_table([record(client, 0, cost, pause_ms=50) for client, cost in costs.items()], module("streaming").LAYOUT)
    head = ["client", "us a chunk", "/ bare", "/ openai-aiohttp", "/ openai", "RSS MB", "lag ms", "chunks/s", "peak", "n"]
    assert [cells(line) for line in shown.splitlines()[::3]] == [
        head,
        ["ours", "25.0", "1.25", "0.250", "0.100", "1.0", "2", "3", "4", "1"],
    ]


def test_the_markdown_command_writes_only_its_section_of_the_page(module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = {"machine": MACHINE, "environments": {"peer": ["peer==1.0"]}, "options": {"rounds": 3}}
    run["records"] = [record("bare", 0, 100.0, delay_ms=0)]
    text = rewritten(module("overhead"), module("_rounds"), "overhead memory", run, monkeypatch, tmp_path)
    for expected in ("some CPU, 2 cores", "3 rounds", "`peer==1.0`", "#### 64 in flight, 0 ms server delay", "| bare ", "old memory"):
        assert expected in text
    assert "old overhead" not in text
    with pytest.raises(ValueError, match="bulk:begin"):
        module("_pages").rewrite_section(tmp_path / "page.md", "bulk", "new")


def test_the_page_has_the_sections_that_the_commands_write(module: Any) -> None:
    page = module("_pages").PAGE.read_text(encoding="utf-8")
    for name in ("overhead", "memory", "streaming", "makespan", "batching", "bulk", "bulk-peers", "drop-in", "drop-in-streamed", "judging"):
        assert page.count(f"<!-- {name}:begin -->") == page.count(f"<!-- {name}:end -->") == 1, name
