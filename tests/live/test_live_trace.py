"""The trace of a client: valid Chrome trace JSON without content, in which no two attempts of a slot overlap."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from qreward import ConfigError, QRewardClient
from qreward.cli import main
from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency

KEY, PROMPT = "sk-planted-key", "planted prompt"
CHATS = [[{"role": "user", "content": f"{PROMPT} {number}"}] for number in range(150)]


async def test_each_attempt_is_an_event_in_a_lane_of_its_endpoint_and_nothing_is_content(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    fakes = [
        FakeEndpoint("gpu-0", latency=Latency(base=0.01, sigma=1), api_key=KEY),
        FakeEndpoint("gpu-1", latency=Latency(base=0.02), faults=Faults(error_500=0.2)),
    ]
    async with FakeFleet(fakes) as fleet, QRewardClient(fleet.endpoints, telemetry=None) as client:
        with client.trace(path):
            batch = await client.batch_chat_completion(CHATS, model="judge-7b")
        await client.chat_completion(CHATS[0], model="judge-7b")
    text = path.read_text()
    assert KEY not in text
    assert PROMPT not in text
    events = json.loads(text)
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"gpu-0", "gpu-1"} <= set(names.values())
    attempts = [event for event in events if event["ph"] == "X"]
    assert len(attempts) == sum(len(result.attempts) for result in batch)
    assert {event["args"]["status"] for event in attempts if event["args"]["outcome"] == "failed"} == {500}
    lanes = defaultdict(list)
    for event in attempts:
        assert (event["pid"], event["tid"]) in names
        lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert [lane for lane in lanes.values() if any(one[1] > other[0] for one, other in pairwise(sorted(lane)))] == []


def test_a_trace_on_a_full_disk_is_logged_once_and_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    trace = QRewardClient(["http://127.0.0.1:9/v1"]).trace("/dev/full")
    for _ in range(2):
        trace.close()
    (record,) = caplog.records
    assert record.getMessage() == "the trace '/dev/full' is not complete: No space left on device"


def test_a_run_writes_a_trace_and_a_file_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tmp_path / "in.jsonl"
    given.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in CHATS[:5]))
    with FakeFleet([FakeEndpoint("a")]) as fleet:
        monkeypatch.setenv("OPENAI_BASE_URL", fleet.urls["a"])
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        arguments = ["run", str(given), "--output", str(tmp_path / "out.jsonl"), "--model", "m", "--progress", "none"]
        assert main([*arguments, "--trace", str(tmp_path / "t.json")]) == 0
    assert sum(event["ph"] == "X" for event in json.loads((tmp_path / "t.json").read_text())) == 5
    with pytest.raises(ConfigError, match=r"the trace .* cannot be written: No such file"):
        QRewardClient(["http://127.0.0.1:9/v1"]).trace(tmp_path / "none" / "t.json")
    capsys.readouterr()
