"""Where a fleet runs: in a thread, in a child process; and that nothing is left when it ends."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import subprocess
import sys
import threading
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from fleet_tools import serving, user
from shared_tools import each, until

from qreward.errors import ConfigError
from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency, echo_of
from qreward.testing.fleet import InProcess


def ask(fleet: FakeFleet, name: str, text: str = "hi") -> tuple[int, str]:
    """One chat without asyncio."""
    url = urlsplit(fleet.urls[name])
    connection = HTTPConnection(url.hostname or "", url.port, timeout=30)
    try:
        connection.request("POST", url.path + "/chat/completions", json.dumps({"model": "m", "messages": user(text)}))
        response = connection.getresponse()
        body = json.loads(response.read())
        return response.status, body["choices"][0]["message"]["content"] if response.status == 200 else ""
    finally:
        connection.close()


@each("process", [False, True])
def test_with_serves_from_sync_code(process: bool) -> None:
    threads = threading.active_count()
    with FakeFleet([FakeEndpoint("a"), FakeEndpoint("b", models=["judge-*"])], process=process) as fleet:
        assert ask(fleet, "a") == (200, echo_of(user("hi")))
        assert [endpoint.base_url for endpoint in fleet.endpoints] == list(fleet.urls.values())
        assert [(endpoint.name, endpoint.models) for endpoint in fleet.endpoints] == [("a", ("*",)), ("b", ("judge-*",))]
        assert all(urlsplit(url).hostname == "127.0.0.1" for url in fleet.urls.values())
        assert fleet.seen("a").answered == 1
    assert threading.active_count() == threads
    assert fleet.seen("a").answered == 1, "what was seen is still known after the end"


def test_every_control_works_on_a_child_process() -> None:
    with FakeFleet([FakeEndpoint("a", api_key="right-key"), FakeEndpoint("b", responder="fleet_responder:shout")], process=True) as fleet:
        assert ask(fleet, "a")[0] == 401
        assert [endpoint.api_key and endpoint.api_key.get_secret_value() for endpoint in fleet.endpoints] == ["right-key", None]
        fleet.set("a", api_key=None, faults=Faults(error_503=1))
        assert ask(fleet, "a")[0] == 503
        assert fleet.seen("a").errors == {"unauthorized": 1, "error_503": 1}
        fleet.set("a", faults=Faults())
        fleet.reset()
        assert (ask(fleet, "a")[0], fleet.seen("a").requests) == (200, 1)
        assert ask(fleet, "b", "quiet") == (200, "QUIET")
        with pytest.raises(ConfigError, match="responder 'no_such_module:f': there is no module"):
            fleet.set("b", responder="no_such_module:f")
        assert ask(fleet, "b", "quiet") == (200, "QUIET")


@each("process", [False, True])
def test_a_responder_is_found_in_the_working_directory_or_ends_the_start(
    process: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    module = f"answers_here_{process}".lower()
    (tmp_path / f"{module}.py").write_text("def answer(messages):\n    return 'from here'\n")
    with FakeFleet([FakeEndpoint("a", responder=f"{module}:answer")], process=process) as fleet:
        assert ask(fleet, "a") == (200, "from here")
    missing = FakeFleet([FakeEndpoint("a", responder="no_such_module:f")], process=process)
    with pytest.raises(ConfigError, match="endpoint 'a': responder 'no_such_module:f': there is no module 'no_such_module'"), missing:
        pytest.fail("it started")
    with pytest.raises(ConfigError, match="module:function"), FakeFleet([FakeEndpoint("a", responder=str)], process=True):
        pytest.fail("it started")


async def test_a_port_can_be_chosen_and_one_that_is_taken_ends_the_start_and_frees_the_others() -> None:
    async with serving(FakeEndpoint("a")) as client:
        port = urlsplit(client.fleet.urls["a"]).port
        with pytest.raises(OSError, match="in use"):
            async with FakeFleet([FakeEndpoint("x"), FakeEndpoint("y", port=port)]):
                pytest.fail("it started")
    gc.collect()  # a socket left open would warn here, and warnings are errors
    async with serving(FakeEndpoint("a", port=port)) as client:
        assert urlsplit(client.fleet.urls["a"]).port == port
        assert (await client.chat("a")).status == 200


async def test_closing_ends_hung_requests_and_idle_connections_at_once_and_leaves_no_task() -> None:
    endpoints = [FakeEndpoint("a", faults=Faults(hang=1)), FakeEndpoint("b", latency=Latency(per_token=1, base=60)), FakeEndpoint("idle")]
    async with aiohttp.ClientSession() as session:
        async with FakeFleet(endpoints) as fleet:
            async with session.get(fleet.urls["idle"] + "/models") as response:
                await response.read()
            body = {"model": "m", "messages": user("hi")}
            urls = [fleet.urls[name] + "/chat/completions" for name in "ab"]
            tasks = [asyncio.create_task(session.post(url, json={**body, "stream": stream})) for url in urls for stream in (True, False)]
            await until(lambda: sum(fleet.seen(name).in_flight for name in "ab") == 4)
        assert asyncio.all_tasks() - set(tasks) == {asyncio.current_task()}
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, aiohttp.ClientError) for end in ends), ends
    assert fleet.seen("a").disconnects == 0


def test_a_fleet_can_be_run_again_but_not_twice_at_once() -> None:
    fleet = FakeFleet([FakeEndpoint("a")])
    with pytest.raises(RuntimeError, match="not running"):
        fleet.endpoints  # noqa: B018
    for _ in range(2):
        with fleet:
            assert ask(fleet, "a")[0] == 200
            assert fleet.seen("a").requests == 1
            with pytest.raises(RuntimeError, match="running already"), fleet:
                pytest.fail("it started twice")
    with pytest.raises(RuntimeError, match="not running"):
        fleet.kill("a")


def test_a_responder_may_use_its_fleet() -> None:
    def responder(messages: list[dict[str, str]]) -> str:
        fleet.kill("b")
        fleet.set("a", api_key="key")
        return str(fleet.seen("a").requests)

    with FakeFleet([FakeEndpoint("a", responder=responder), FakeEndpoint("b")]) as fleet:
        assert ask(fleet, "a") == (200, "1")
        assert ask(fleet, "a")[0] == 401
        with pytest.raises(ConnectionRefusedError):
            ask(fleet, "b")


def test_a_child_that_dies_is_an_error_and_not_a_wait() -> None:
    fleet = FakeFleet([FakeEndpoint("a")], process=True)
    with pytest.raises(RuntimeError, match="has ended"), fleet:  # noqa: PT012 - leaving it is part of the claim
        assert isinstance(fleet._host, InProcess)
        fleet._host._child.kill()
        fleet._host._child.wait()
        fleet.seen("a")


def test_a_forked_child_does_not_wait_for_the_fleet_of_its_parent() -> None:
    script = """
import os, urllib.request, warnings
from qreward.errors import ClientClosed
from qreward.testing import FakeEndpoint, FakeFleet
warnings.simplefilter("ignore")  # from 3.12 on, a fork beside threads is warned of
with FakeFleet([FakeEndpoint("a")]) as fleet:
    if (child := os.fork()) == 0:
        try:
            fleet.seen("a")
        except ClientClosed:
            print("not its own", flush=True)
    else:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        urllib.request.urlopen(fleet.urls["a"] + "/models").close()
print("left", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines() == ["not its own", "left", "0", "left"]


async def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = """
import sys
from qreward.testing import FakeEndpoint, FakeFleet
with FakeFleet([FakeEndpoint("a")], process=True) as fleet:
    print(fleet._host._child.pid, fleet.urls["a"], flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:  # noqa: ASYNC220 - nothing else runs
        assert parent.stdout is not None
        child = int(parent.stdout.readline().split()[0])
        parent.send_signal(signal.SIGKILL)
    await until(lambda: not alive(child))


def alive(pid: int) -> bool:
    """Whether a process still runs; one that waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
