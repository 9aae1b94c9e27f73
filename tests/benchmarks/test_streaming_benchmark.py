"""The streaming benchmark runs, its server streams what it says, and its report says what the records say. No time is judged."""

from __future__ import annotations

import http.client
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmark_tools import cells, quick, record

from qreward.codecs.sse import Parser

OURS_AND_BARE = {
    "bare": "stream_bare.py",
    "qreward-tokens": "stream_qreward_tokens.py",
    "qreward-chunks": "stream_qreward_chunks.py",
    "qreward-batch": "stream_qreward_batch.py",
}


def bodies(url: str) -> list[bytes]:
    """What a stream is read as, read by read."""
    host, path = url.removeprefix("http://").split("/", 1)
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.request("POST", f"/{path}/chat/completions", body=b"{}")
    with connection.getresponse() as response:
        assert response.headers["content-type"] == "text/event-stream"
        reads = list(iter(lambda: response.read1(1 << 20), b""))
    connection.close()
    return reads


# running


def test_the_quick_run_measures_ours_and_bare(tmp_path: Path) -> None:
    found, printed = quick("streaming.py", tmp_path / "streaming.json")
    records = found["records"]
    assert {found["client"] for found in records} == set(OURS_AND_BARE)
    for found in records:
        assert found["right"] == found["requests"] > 0
        assert found["served"] == 1 + 16 + found["requests"], "first stream, warm-up, window; nothing sent twice"
        assert found["peak"] == 16, "as many streams at once as are wanted"
        assert found["cpu_us"] > 0
        assert f"| {found['client']} " in printed


def test_a_client_whose_streams_do_not_come_to_the_whole_text_fails_the_run(module: Any) -> None:
    processes, clients = module("_processes"), module("overhead_clients")
    with processes.Server(core=None) as server:
        longer = server.verdict + " And a chunk that never comes."
        wanted = clients.command_line(server.urls(pause_ms=0), longer, 2, 4, core=None, gc=False, pieces=server.chunks)
        for script in OURS_AND_BARE.values():
            with pytest.raises(processes.ClientFailed, match="4 of 4 verdicts were missing or wrong"):
                processes.run_client(Path(sys.executable), script, wanted, 60.0)


def test_costs_are_of_a_chunk(module: Any) -> None:
    processes, clients = module("_processes"), module("overhead_clients")
    with processes.Server(core=None) as server:
        wanted = [clients.command_line(server.urls(0), server.verdict, 4, 8, core=None, gc=False, pieces=pieces) for pieces in (1, 10**9)]
        whole, piece = (processes.run_client(Path(sys.executable), "bare.py", each, 60.0) for each in wanted)
    assert whole["cpu_us"] > 1
    assert piece["cpu_us"] < 1e-3
    assert whole["right"] == piece["right"] == 8


# the server


def test_a_paced_stream_comes_chunk_by_chunk_and_a_stream_without_pause_is_the_same(module: Any) -> None:
    with module("_processes").Server(core=None) as server:
        (paced, *_), (whole, *_) = server.urls(pause_ms=2), server.urls(pause_ms=0)
        reads = bodies(paced)
        assert b"".join(bodies(whole)) == b"".join(reads)
        assert server.stats()["served"] == 2
    assert len(reads) > server.chunks / 2, "a machine that is busy may let some come together"
    said: list[Any] = [json.loads(event.data) if event.data != b"[DONE]" else None for event in Parser().feed(b"".join(reads))]
    *events, done = said
    assert done is None
    assert len(events) == server.chunks
    *texts, last, usage = events
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in texts) == server.verdict
    assert last["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 62


def test_a_stream_that_is_left_is_closed_in_the_books(module: Any) -> None:
    with module("_processes").Server(core=None) as server:
        host = server.urls(pause_ms=20)[0].removeprefix("http://").split("/", 1)[0]
        connection = http.client.HTTPConnection(host, timeout=30)
        connection.request("POST", "/s20/v1/chat/completions", body=b"{}")
        response = connection.getresponse()
        assert response.read1(10)
        assert server.stats() == {"served": 0, "peak": 1}
        response.close()
        connection.close()
        bodies(server.urls(pause_ms=20)[0])  # as long as the other would have lasted
        assert server.stats()["served"] == 2
        assert server.stats()["peak"] == 0, "nothing is open"


# planning and reporting


def test_all_in_flight_begin_together_once_or_more_often(module: Any) -> None:
    streaming = module("streaming")
    assert [streaming.streams(None, in_flight, {"pause_ms": 50}) for in_flight in (16, 64, 512)] == [128, 128, 512]
    assert [streaming.streams(None, in_flight, {"pause_ms": 0}) for in_flight in (16, 64, 512)] == [1024, 1024, 1024]


def test_each_number_of_streams_and_each_pause_has_a_table_in_which_a_chunk_is_compared_with_bare_and_with_the_sdk(module: Any) -> None:
    costs = {"bare": 20.0, "ours": 25.0, "openai-aiohttp": 100.0, "openai": 250.0}
    records = [record(client, 0, cost, pause_ms=50) for client, cost in costs.items()]
    others = [record("bare", 0, 30.0, in_flight=512, pause_ms=50), record("bare", 0, 5.0, pause_ms=0)]
    report, layout = module("_rounds_report"), module("streaming").LAYOUT
    shown = report.cell_table(records, layout).splitlines()
    head = ["client", "us a chunk", "/ bare", "/ openai-aiohttp", "/ openai", "RSS MB", "lag ms", "chunks/s", "peak", "n"]
    assert [cells(shown[0]), cells(shown[3])] == [head, ["ours", "25.0", "1.25", "0.250", "0.100", "1.0", "2", "3", "4", "1"]]
    headings = [line for line in report.tables({"records": [*records, *others]}, layout).splitlines() if line.startswith("####")]
    assert headings == [f"#### {cell} ms between chunks" for cell in ("64 streams, 50", "512 streams, 50", "64 streams, 0")]


def test_the_profile_takes_the_clients_of_either_benchmark(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = module("profile_overhead")
    for options, expected in (
        ([], ["bare", "qreward-calls", "qreward-batch"]),
        (["--pause", "50"], ["bare", "qreward-tokens", "qreward-batch"]),
    ):
        monkeypatch.setattr(sys, "argv", ["profile_overhead.py", *options])
        assert [client.name for client in profile.arguments().chosen] == expected
    monkeypatch.setattr(sys, "argv", ["profile_overhead.py", "--clients", "qreward-tokens"])
    with pytest.raises(SystemExit):
        profile.arguments()
