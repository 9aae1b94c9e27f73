"""The blocking client over real connections, and the life of the process: its end without ``close()``, forks, spawned children."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency

PRELUDE = """
import os, sys, threading
from qreward.sync_client import SyncQRewardClient

HI = [{"role": "user", "content": "hi"}]

def asks(client, count=8):
    batch = client.batch_chat_completion([HI] * count, "judge-7b", timeout=30)
    assert not batch.errors, batch.errors
    assert client.chat_completion(HI, "judge-7b", timeout=30).choices
    return count + 1

def joined(child):
    _, status = os.waitpid(child, 0)
    assert status == 0, status
"""


def start(program: str, fleet: FakeFleet, folder: Path) -> subprocess.Popen[str]:
    path = folder / "program.py"  # a file, for children that are spawned import it
    made = f"client = SyncQRewardClient([{fleet.endpoints[0].base_url!r}])\n"
    path.write_text(PRELUDE + made + program)
    command = [sys.executable, "-W", "error", str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def output(process: subprocess.Popen[str]) -> list[str]:
    """What a program prints; it must end well and say nothing else, although every warning is shown."""
    try:
        printed, complaints = process.communicate(timeout=100)
    finally:
        process.kill()
    assert (process.returncode, complaints) == (0, ""), complaints
    return printed.splitlines()


def run(program: str, fleet: FakeFleet, folder: Path) -> list[str]:
    return output(start(program, fleet, folder))


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it never happens"
        time.sleep(0.01)


def test_a_process_ends_cleanly_with_requests_under_way(tmp_path: Path) -> None:
    program = """
from qreward import ClientClosed
arrived = threading.Event()
def items():
    for number in range(1000):
        if number == 50:
            arrived.set()
        yield HI
def work():
    try:
        client.batch_chat_completion(items(), "judge-7b")
    except ClientClosed:
        pass
threading.Thread(target=work, daemon=True).start()
arrived.wait()
"""
    with FakeFleet([FakeEndpoint("a", latency=Latency(base=0.2))]) as fleet:
        assert run(program, fleet, tmp_path) == []
        assert fleet.seen("a").requests < 1000


def test_a_process_ends_cleanly_with_a_client_that_is_closed_and_one_that_is_not(tmp_path: Path) -> None:
    program = """
with SyncQRewardClient.from_config(client.config) as other:
    print(asks(other), asks(client))
"""
    with FakeFleet([FakeEndpoint("a")]) as fleet:
        assert run(program, fleet, tmp_path) == ["9 9"]


def test_a_forked_child_uses_the_client_it_inherits_and_the_parents_goes_on(tmp_path: Path) -> None:
    program = """
asks(client)
for leave in (os._exit, sys.exit):
    if (child := os.fork()) == 0:
        print("child", asks(client), client.stats()["%s"].won, flush=True)
        leave(0)
    joined(child)
print("parent", asks(client), client.stats()["%s"].won, flush=True)
"""
    with FakeFleet([FakeEndpoint("a")]) as fleet:
        name = fleet.endpoints[0].base_url.split("/")[2]
        assert run(program.replace("%s", name), fleet, tmp_path) == ["child 9 9", "child 9 9", "parent 9 18"]


def test_the_client_goes_to_other_processes_as_an_argument(tmp_path: Path) -> None:
    program = """
import multiprocessing
if __name__ == "__main__":
    asks(client)
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, pool.map(asks, [client] * 4), flush=True)
            pool.close()
            pool.join()
"""
    with FakeFleet([FakeEndpoint("a")]) as fleet:
        assert run(program, fleet, tmp_path) == [f"{method} [9, 9, 9, 9]" for method in ("fork", "spawn", "forkserver")]


def test_an_interrupt_from_the_keyboard_ends_the_program_with_its_requests(tmp_path: Path) -> None:
    program = """
try:
    client.batch_chat_completion([HI] * 100, "judge-7b")
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    with FakeFleet([FakeEndpoint("a", faults=Faults(hang=1.0))]) as fleet:
        process = start(program, fleet, tmp_path)
        wait_until(lambda: fleet.seen("a").in_flight > 0)
        process.send_signal(signal.SIGINT)
        assert output(process) == ["interrupted"]
        wait_until(lambda: fleet.seen("a").in_flight == 0)
