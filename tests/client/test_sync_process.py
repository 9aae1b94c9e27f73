"""The blocking client over real connections, and the life of the process: its end without ``close()``, forks, spawned children."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from qreward.testing import FakeEndpoint, FakeFleet, Latency

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


def run(program: str, fleet: FakeFleet, folder: Path) -> list[str]:
    """What a program prints; it must end well and say nothing else, although every warning is shown."""
    path = folder / "program.py"  # a file, for children that are spawned import it
    made = f"client = SyncQRewardClient([{fleet.endpoints[0].base_url!r}])\n"
    path.write_text(PRELUDE + made + program)
    done = subprocess.run([sys.executable, "-W", "error", str(path)], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def test_a_process_ends_cleanly_with_requests_under_way_and_with_a_client_that_is_closed(tmp_path: Path) -> None:
    program = """
from qreward import ClientClosed
with SyncQRewardClient.from_config(client.config) as other:
    print(asks(other))
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
        assert run(program, fleet, tmp_path) == ["9"]
        assert fleet.seen("a").requests < 1000


def test_the_client_goes_to_other_processes_as_an_argument(tmp_path: Path) -> None:
    program = """
import multiprocessing
if __name__ == "__main__":
    asks(client)
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, pool.map(asks, [client] * 4), flush=True)
            pool.close()
            pool.join()
"""
    with FakeFleet([FakeEndpoint("a")]) as fleet:
        assert run(program, fleet, tmp_path) == [f"{method} [9, 9, 9, 9]" for method in ("fork", "spawn")]
