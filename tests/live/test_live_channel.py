"""The channel of a process and the directory in which processes find each other."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
import time
from collections.abc import Callable
from http.client import RemoteDisconnected
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from live_tools import opened, own_directory

from qreward import ConfigError, Endpoint, QRewardClient
from qreward.engine.driver import LoopDriver
from qreward.live import channel
from qreward.live.processes import VERSION, directory, processes, request

SECRET = "planted-secret-0123456789"


def new_client(**settings: Any) -> QRewardClient:
    return QRewardClient([Endpoint("http://127.0.0.1:9/v1", name="gpu-0", api_key=SECRET, headers={"X-Team": SECRET}, **settings)])


def test_a_process_says_what_it_does_to_its_user_and_leaves_its_last_words_when_it_ends() -> None:
    client = new_client()
    with opened() as made:
        made.add(client._runtime)
        made.add(client._runtime)
        document = request(made.path, "GET", "/snapshot")
        assert (document["version"], document["pid"], list(document["clients"])) == (VERSION, os.getpid(), ["1"])
        assert stat.S_IMODE(made.path.parent.stat().st_mode) == 0o700
        assert [(each.pid, each.state) for each in processes(made.path.parent)] == [(os.getpid(), "running")]
        with pytest.raises(ConfigError, match="GET /snapshot and POST /ctl"):
            request(made.path, "GET", "/keys")
        made._write()
        made._runtimes.clear()  # a program that fails closes its clients before it ends
        made.close()
        (left,) = processes(made.path.parent)
        assert (left.state, list(left.document["clients"]), made.path.exists()) == ("ended", ["1"], False)


def test_no_key_header_or_argument_of_the_program_is_told() -> None:
    client = new_client()
    with opened() as made, mock.patch("sys.argv", ["/home/me/train.py", f"--key={SECRET}"]):
        made.add(client._runtime)
        made._write()
        request(made.path, "POST", "/ctl", {"action": "pause", "reason": "Bearer abcdef123456"})
        told = json.dumps(request(made.path, "GET", "/snapshot")) + next(made.path.parent.glob("*.json")).read_text()
    assert '"program": "train.py"' in told
    assert SECRET not in told
    assert "abcdef" not in told


def test_another_user_gets_no_answer() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert channel.peer_user(ours) == os.geteuid()
    with opened() as made, mock.patch.object(channel, "peer_user", return_value=os.geteuid() + 1):
        for method, body in (("GET", None), ("POST", {"action": "pause"})):
            with pytest.raises((RemoteDisconnected, ConnectionError)):
                request(made.path, method, "/snapshot", body)
        assert not made._changes


def test_a_directory_that_others_could_open_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_owner(path: Path) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 4_000_000_000)

    cases: dict[str, Callable[[Path], object]] = {
        "readable by others": lambda path: path.mkdir() or path.chmod(0o755),
        "a link": lambda path: path.symlink_to("/tmp"),
        "a file": lambda path: path.write_text(""),
        "of another user": lambda path: path.mkdir(0o700) or other_owner(path),
    }
    for name, make in cases.items():
        with own_directory() as folder:
            monkeypatch.setenv("QREWARD_LIVE_DIR", str(folder / "d"))
            make(folder / "d")
            with pytest.raises(ConfigError, match="QREWARD_LIVE_DIR"):
                assert directory() is name


def test_what_dead_processes_left_is_shown_and_removed() -> None:
    with own_directory() as folder:
        for pid in (2, 3, 4, 5):
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(str(folder / f"{pid}.sock"))
        document = {"version": VERSION, "at": time.time(), "clients": {}}
        (folder / "2.json").write_text(json.dumps(document))
        (folder / "3.json").write_text(json.dumps(document | {"ended": True, "at": time.time() - 4000}))
        (folder / "4.json").write_text('{"version": 1, "at"')
        (folder / "6.json").write_text(json.dumps(document | {"version": 99}))
        stopped = socket.create_server(str(folder / "7.sock"), family=socket.AF_UNIX)
        (folder / "7.json").write_text(json.dumps(document))
        with stopped:
            found = {each.pid: each.state for each in processes(folder, patience=0.05)}
        assert found == {2: "died", 6: "died, of another version of qreward", 7: "no answer"}
        assert sorted(path.name for path in folder.iterdir()) == ["2.json", "4.json", "6.json", "7.json", "7.sock"]


async def test_a_blocked_event_loop_is_told_by_another_thread_with_the_place_that_blocks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    client, told = new_client(), list[Any]()
    client._runtime.driver()
    monkeypatch.setattr(LoopDriver, "lag", lambda _: 3.5)
    with opened() as made:
        made.add(client._runtime)
        asker = threading.Thread(target=lambda: told.append(request(made.path, "GET", "/snapshot")))
        asker.start()
        asker.join()  # blocks the event loop
    (blocked,) = told[0]["blocked"]
    assert blocked["seconds"] == 3.5
    assert any("test_live_channel.py" in place and "in test_a_blocked_event_loop" in place for place in blocked["stack"])
    assert not any("asyncio" in place for place in blocked["stack"])
    await client.aclose()


def test_an_order_is_checked_recorded_with_its_reason_and_a_dry_run_changes_nothing() -> None:
    client = new_client()
    with opened() as made:
        made.add(client._runtime)
        cases = {
            "not an order": {"action": "stop"},
            "unknown field": {"action": "pause", "reasn": "x"},
            "there is no endpoint 'gpu-9'": {"action": "pause", "target": "gpu-9"},
            "the last endpoint": {"action": "drain", "target": "gpu-0"},
            "drain needs the name": {"action": "drain"},
            "there is no limit 'rmp'": {"action": "limit", "target": "gpu-0", "limits": {"rmp": 1}},
            "limit needs a limit": {"action": "limit", "target": "gpu-0"},
            "max_concurrency": {"action": "limit", "target": "gpu-0", "limits": {"max_concurrency": 0}},
            "there is no batch '7'": {"action": "cancel", "target": "7"},
            "at most 65536 bytes": {"action": "pause", "reason": "x" * 70_000},
        }
        for words, order in cases.items():
            with pytest.raises((ConfigError, BrokenPipeError, ConnectionResetError)) as raised:
                request(made.path, "POST", "/ctl", order)
            assert not isinstance(raised.value, ConfigError) or words in str(raised.value), words
        limit = {"action": "limit", "target": "gpu-0", "limits": {"max_concurrency": 2}, "reason": "hot"}
        said = request(made.path, "POST", "/ctl", limit | {"dry_run": True})
        assert said == {"effects": ["gpu-0: max_concurrency none -> 2"]}
        assert client.config.endpoints[0].limits.max_concurrency is None
        assert request(made.path, "POST", "/ctl", limit) == said
        assert client.config.endpoints[0].limits.max_concurrency == 2
        (change,) = request(made.path, "GET", "/snapshot")["changes"]
        assert (change["action"], change["target"], change["reason"], change["effects"]) == ("limit", "gpu-0", "hot", said["effects"])


def test_a_client_is_shown_if_the_environment_says_so_and_nothing_breaks_if_that_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with opened() as made:
        new_client()
        hidden = new_client()
        assert made.runtimes() == {}
        monkeypatch.setenv("QREWARD_LIVE", "1")
        shown = new_client()
        assert list(made.runtimes().values()) == [shown._runtime]
        assert "live" in repr(hidden.live()).lower()
        assert len(made.runtimes()) == 2
    with mock.patch.object(channel, "_channel", None):
        monkeypatch.setenv("QREWARD_LIVE", "1")
        monkeypatch.setenv("QREWARD_LIVE_DIR", "/proc/nowhere")
        new_client()
        assert "this process is not shown" in caplog.text
        with pytest.raises(ConfigError, match="/proc/nowhere"):
            hidden.live()
