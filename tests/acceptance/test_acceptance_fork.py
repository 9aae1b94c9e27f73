"""Forked workers and the streams of the blocking client: each process has its own, and neither disturbs the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qreward.testing import FakeEndpoint, FakeFleet, echo_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")

HI = [{"role": "user", "content": "hi"}]
PROGRAM = """
import multiprocessing, os, sys
from qreward import SyncQRewardClient
HI, MODEL = [{"role": "user", "content": "hi"}], "judge-7b"
client = SyncQRewardClient([sys.argv[1]])

def reads(_=None):
    one = "".join(client.stream_chat_completion(HI, MODEL, timeout=30))
    texts = ["", "", ""]
    for index, token in client.batch_stream_chat_completion([HI] * 3, MODEL, timeout=30):
        texts[index] += token
    said = client.chat_completion(HI, MODEL, timeout=30).choices[0].message.content
    return {one, said, *texts, *client.batch_chat_completion([HI] * 3, MODEL, timeout=30).texts()}

if __name__ == "__main__":
    print("parent", *reads())
    for leave in (os._exit, sys.exit):
        if (child := os.fork()) == 0:
            print("child", *reads())
            leave(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
    with multiprocessing.get_context("fork").Pool(3) as pool:
        print("pool", *set.union(*pool.map(reads, range(9))))
        pool.close()
        pool.join()
    print("parent", *reads())
"""


def test_forked_workers_read_streams_with_the_client_their_parent_has_used(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    with FakeFleet([FakeEndpoint("a")]) as fleet:
        command = [sys.executable, "-u", "-W", "error", str(path), str(fleet.endpoints[0].base_url)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            said, complaints = process.communicate(timeout=100)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its children, too
            raise AssertionError(f"it does not end, or a child does not: {process.communicate()}") from None
    assert (process.returncode, complaints) == (0, ""), said + complaints
    assert said.splitlines() == [f"{reader} {echo_of(HI)}" for reader in ("parent", "child", "child", "pool", "parent")]
