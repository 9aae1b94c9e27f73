"""``qreward ps``, ``top`` and ``ctl``, and what a process leaves that is killed, ends or forks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from live_tools import opened, own_directory
from test_live_channel import new_client

from qreward import BatchCancelled, QRewardClient
from qreward.cli import main
from qreward.live.channel import Order, steer
from qreward.live.processes import processes, request
from qreward.scheduler.outcome import Answer

CHATS = [[{"role": "user", "content": str(number)}] for number in range(40)]


def said(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(list(arguments)) == status
    captured = capsys.readouterr()
    return captured.err if status else captured.out


def test_the_commands_find_the_process_say_what_it_does_and_steer_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    client, file = new_client(), tmp_path / "qreward.json"
    file.write_text(json.dumps({"endpoints": [{"base_url": "http://127.0.0.1:9/v1", "name": "gpu-0"}]}))
    with opened() as made:
        assert "0 answered" in said(capsys, "top", "--once")
        made.add(client._runtime)
        assert f"{os.getpid()}  " in said(capsys, "ps")
        (listed,) = json.loads(said(capsys, "ps", "--json"))
        assert (listed["pid"], listed["state"], list(listed["clients"])) == (os.getpid(), "running", ["1"])
        assert "gpu-0" in said(capsys, "top", "--once")
        assert json.loads(said(capsys, "top", "--once", "--json"))[0]["pid"] == os.getpid()
        assert "would be: gpu-0: nothing new" in said(capsys, "ctl", "pause", "--dry-run")
        assert "paused" not in said(capsys, "top", "--once")
        said(capsys, "ctl", "pause", "gpu-0", "--reason", "new weights", "--pid", str(os.getpid()))
        assert "paused: new weights" in said(capsys, "top", "--once")
        said(capsys, "ctl", "resume")
        limit = ("ctl", "limit", "gpu-0", "--max-concurrency", "2", "--rpm", "none", "--keep", str(file), "--reason", "hot")
        assert "overlay" not in said(capsys, *limit, "--dry-run")
        effects = json.loads(said(capsys, *limit, "--json"))["effects"]
        assert effects[:2] == ["gpu-0: max_concurrency none -> 2", "gpu-0: rpm none -> none"]
        assert effects[2].endswith("qreward.json.overlay.json")
        assert QRewardClient.from_config(file).config.endpoints[0].limits.max_concurrency == 2
        assert client.config.endpoints[0].limits.max_concurrency == 2
        assert "belong to limit" in said(capsys, "ctl", "pause", "--rpm", "3", status=2)
        assert "does not answer" in said(capsys, "ctl", "pause", "--pid", "1", status=2)
    with own_directory():
        assert "no process runs" in said(capsys, "ctl", "pause", status=2)
        assert "no program shows itself" in said(capsys, "ps")


class Backend:
    async def send(self, _endpoint: object, _call: object) -> Answer:
        await asyncio.sleep(1)
        return Answer(SimpleNamespace(usage=None))

    async def aclose(self) -> None:
        """Hold nothing."""


@pytest.mark.virtual_time
async def test_orders_reach_the_work_that_they_name() -> None:
    endpoints: list[Any] = [{"base_url": f"http://{name}:1/v1", "name": name, "limits": {"max_concurrency": 2}} for name in ("a", "b")]
    client = QRewardClient(endpoints, backend_factory=Backend, telemetry=None)
    runtimes = {1: new_client()._runtime, 2: client._runtime}
    batch = asyncio.ensure_future(client.batch_chat_completion(CHATS, model="judge"))
    other = asyncio.ensure_future(client.batch_chat_completion(CHATS[:4], model="judge"))
    await asyncio.sleep(1.5)
    assert steer(runtimes, Order("drain", "a")) == ["a: 2 in flight are finished, others take the rest"]
    with pytest.raises(Exception, match=r"'b' is the last endpoint of '\*', so \d+ waiting requests would fail; pause it instead"):
        steer(runtimes, Order("drain", "b"))
    assert steer(runtimes, Order("restore", "a")) == ["a: back in service"]
    assert steer(runtimes, Order("limit", "b", {"max_concurrency": 8, "tpm": 1e9})) == ["b: max_concurrency 2 -> 8", "b: tpm none -> 1e+09"]
    first, second = client.snapshot().batches
    assert (first.total, second.total) == (40, 4)
    order = Order("cancel", str(first.number), reason="wrong prompt", dry_run=True)
    assert steer(runtimes, order) == [f"batch {first.number} ends: its items without a result get BatchCancelled"]
    await asyncio.sleep(0.1)
    assert not batch.done()
    order.dry_run = False
    steer(runtimes, order)
    results = await batch
    assert {type(error) for error in results.errors.values()} == {BatchCancelled}
    assert (len(results), (await other).stats.ok) == (40, 4)
    await client.aclose()


PROGRAM = """
import os, sys
from qreward import Endpoint, QRewardClient
from qreward.live.channel import open_channel
client = QRewardClient([Endpoint("http://127.0.0.1:9/v1", name="gpu-0")])
open_channel()._write()
print("ready", flush=True)
if sys.argv[1] == "fork":
    child = os.fork()
    if not child:
        open_channel()._write()
        print("child", flush=True)
        sys.stdin.readline()
        os._exit(0)
sys.stdin.readline()
if sys.argv[1] == "fork":
    os.waitpid(child, 0)
raise SystemExit("an error")
"""


def started(how: str) -> subprocess.Popen[str]:
    environment = os.environ | {"QREWARD_LIVE": "1"}
    made = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env=environment,
    )  # fmt: skip
    assert made.stdout is not None
    assert made.stdout.readline() == "ready\n"
    return made


def test_a_killed_process_is_known_by_its_last_state_one_that_ends_says_so_and_a_forked_one_shows_itself() -> None:
    with own_directory() as folder:
        with started("kill") as killed, started("end") as ended:
            assert {each.pid: each.state for each in processes(folder)} == {killed.pid: "running", ended.pid: "running"}
            killed.send_signal(signal.SIGKILL)
            ended.communicate("\n")
            killed.communicate()
        found = {each.pid: each for each in processes(folder)}
        assert {pid: each.state for pid, each in found.items()} == {killed.pid: "died", ended.pid: "ended"}
        assert [each.document["clients"]["1"]["endpoints"][0]["name"] for each in found.values()] == ["gpu-0", "gpu-0"]
        assert not list(folder.glob("*.sock"))
    with own_directory() as folder, started("fork") as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "child\n"
        running = [each for each in processes(folder) if each.state == "running"]
        assert len(running) == 2
        assert [request(folder / f"{each.pid}.sock", "GET", "/snapshot")["pid"] for each in running] == [each.pid for each in running]
        parent.communicate("\n\n")


def test_top_redraws_itself_in_a_terminal_until_it_is_interrupted() -> None:
    client, screen = new_client(), b""
    with opened() as made:
        made.add(client._runtime)
        ours, theirs = pty.openpty()
        command = [sys.executable, "-W", "ignore", "-m", "qreward", "top", "--interval", "0.2"]
        with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | {"COLUMNS": "120"}) as top:
            os.close(theirs)
            while screen.count(b"gpu-0") < 2:  # twice: it was drawn again
                screen += os.read(ours, 65536)
            top.send_signal(signal.SIGINT)
            with contextlib.suppress(OSError):  # the other end is closed
                while os.read(ours, 65536):
                    pass
            assert top.wait(20) == 130
        os.close(ours)
