"""The end of a served process: a signal finishes what is under way and refuses what is new; a second one, or the time, cuts it off."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from server_tools import Lengths
from shared_tools import until

from qreward.server import RewardServer

SCORER = """
import time
from pathlib import Path

def score(completions, metadata):
    here = Path(__file__).parent
    (here / "begun").touch()
    while not (here / "go").exists():
        time.sleep(0.01)
    return [float(len(text)) for text in completions]
"""


class Process:
    """``qreward serve`` in a process of its own."""

    def __init__(self, popen: subprocess.Popen[str], folder: Path) -> None:
        self.popen = popen
        self.folder = folder
        assert popen.stderr is not None
        said = popen.stderr.readline()
        assert " is served at http://127.0.0.1:" in said, said
        self.url = said.split(" is served at ")[1].split(";")[0]

    def wait_for(self, name: str) -> None:
        for _ in range(1000):
            if (self.folder / name).exists():
                return
            threading.Event().wait(0.01)
        raise AssertionError(f"there is no {name}")

    def get_until(self, path: str, status: int) -> httpx.Response:
        """Ask until it answers so."""
        for _ in range(1000):
            answer = httpx.get(f"{self.url}{path}", trust_env=False)
            if answer.status_code == status:
                return answer
            threading.Event().wait(0.01)
        raise AssertionError(f"{path} never answered {status}")

    def end(self) -> tuple[int, str]:
        _, said = self.popen.communicate(timeout=20)
        return self.popen.returncode, said


@contextmanager
def process(folder: Path, *args: str) -> Iterator[Process]:
    (folder / "slow_scorer.py").write_text(SCORER)
    program = "import sys; from qreward.cli import main; sys.exit(main())"
    command = [sys.executable, "-W", "error", "-c", program, "serve", "slow_scorer:score", "--port", "0", *args]
    with subprocess.Popen(command, cwd=folder, env=dict(os.environ), stderr=subprocess.PIPE, text=True) as popen:
        try:
            yield Process(popen, folder)
        finally:
            popen.kill()


def post(url: str, count: int = 1) -> Any:
    return httpx.post(f"{url}/get_reward", json={"query": ["abc"] * count}, timeout=30, trust_env=False)


def test_a_signal_finishes_what_is_queued_refuses_what_is_new_and_exits_with_0(tmp_path: Path) -> None:
    with process(tmp_path, "--max-batch-size", "1") as server, ThreadPoolExecutor(4) as pool:
        callers: list[Future[Any]] = [pool.submit(post, server.url, 2) for _ in range(4)]
        server.wait_for("begun")
        while "qreward_serve_batch_queue_length 7" not in httpx.get(f"{server.url}/metrics", trust_env=False).text:
            threading.Event().wait(0.01)
        server.popen.terminate()
        assert server.get_until("/health", 503).json() == {"status": "draining"}
        refused = post(server.url)
        assert (refused.status_code, refused.headers["connection"]) == (503, "close")
        assert refused.json()["error"]["type"] == "draining"
        (tmp_path / "go").touch()
        assert [caller.result(20).json()["rewards"] for caller in callers] == [[3.0, 3.0]] * 4
        assert server.end() == (0, "")


def test_what_is_not_done_in_time_is_answered_503_and_a_scorer_that_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    with process(tmp_path, "--drain-timeout", "0.05") as server, ThreadPoolExecutor(1) as pool:
        caller = pool.submit(post, server.url)
        server.wait_for("begun")
        server.popen.send_signal(signal.SIGINT)
        assert caller.result(20).status_code == 503
        assert server.end() == (1, "")


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with process(tmp_path, "--drain-timeout", "300") as server, ThreadPoolExecutor(1) as pool:
        caller = pool.submit(post, server.url)
        server.wait_for("begun")
        server.popen.terminate()
        server.get_until("/health", 503)
        server.popen.send_signal(signal.SIGINT)
        assert caller.result(20).status_code == 503
        assert server.end()[0] == 1


async def test_a_request_that_was_still_coming_in_when_the_end_began_is_answered() -> None:
    async with RewardServer(Lengths(), port=0, drain_timeout=20.0) as server:
        parts = urlsplit(server.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        body = json.dumps({"query": ["abc"]}).encode()
        writer.write(f"POST /get_reward HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body[:5])
        await until(lambda: server.service.pending == 5)
        end = asyncio.ensure_future(server.service.drain())
        await until(lambda: server.service.draining)
        await asyncio.sleep(0.02)
        writer.write(body[5:])
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b'{"rewards":[3.0],"scores":[3.0],"extra_logs":{}}')
        assert b"connection: close" in answer
        assert await end
        writer.close()
        await writer.wait_closed()


async def test_a_server_that_is_left_with_something_under_way_says_whether_all_was_done() -> None:
    scorer, idle = Lengths(held=True), RewardServer(Lengths(), port=0)
    async with idle:
        pass
    assert idle.all_done
    async with httpx.AsyncClient(trust_env=False) as client:
        async with RewardServer(scorer, port=0, drain_timeout=0.01) as busy:
            caller = asyncio.ensure_future(client.post(f"{busy.url}/get_reward", json={"query": ["a"]}))
            await until(lambda: scorer.batches)
        assert not busy.all_done
        assert (await caller).status_code == 503


def is_served(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_a_server_that_is_cancelled_while_it_starts_or_ends_serves_nothing_more() -> None:
    async def serve(port: int, go: asyncio.Event) -> None:
        async with RewardServer(Lengths(), port=port):
            await go.wait()

    async def left_after(turns: int, *, ending: bool) -> str | None:
        port, go = free_port(), asyncio.Event()
        serving = asyncio.ensure_future(serve(port, go))
        if ending:
            await until(lambda: is_served(port))
            go.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        serving.cancel()
        await asyncio.wait([serving])
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            _, left = await asyncio.wait(left, timeout=10)
        wrong = is_served(port) or left or not (serving.cancelled() or serving.exception() is None)
        return f"{turns} turns, ending={ending}: {left}" if wrong else None

    before = asyncio.all_tasks() - {asyncio.current_task()}
    assert not before
    wrong = [await left_after(turns, ending=ending) for ending in (False, True) for turns in range(8)]
    assert [line for line in wrong if line] == []
