"""Forked workers and the streams of the blocking client: each process has its own, and neither disturbs the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qreward.testing import FakeEndpoint, FakeFleet, Latency, echo_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")

HI = [{"role": "user", "content": "hi"}]
PRELUDE = """
import asyncio, os, sys, threading, time
from qreward import QRewardClient, SyncQRewardClient
HI, MODEL = [{"role": "user", "content": "hi"}], "judge-7b"

def reads(client):
    one = "".join(client.stream_chat_completion(HI, MODEL, timeout=30))
    texts = ["", "", ""]
    for index, token in client.batch_stream_chat_completion([HI] * 3, MODEL, timeout=30):
        texts[index] += token
    said = client.chat_completion(HI, MODEL, timeout=30).choices[0].message.content
    return {one, said, *texts, *client.batch_chat_completion([HI] * 3, MODEL, timeout=30).texts()}

def told(read):
    try:
        return read()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def joined(child):
    _, status = os.waitpid(child, 0)
    assert status == 0, status
"""
SLOW = Latency(base=0.02, per_token=0.01, tokens=25)
ELSEWHERE = "RuntimeError: a stream must be read in the event loop that began it, not in another thread or a forked process"
LOST = "ClientClosed: the request was dropped: the process is ending, or was forked from the one that began it"
ANSWER = echo_of(HI)


def run(program: str, fleet: FakeFleet, folder: Path) -> list[str]:
    """What a program prints; it must end well and say nothing else, although every warning is shown."""
    path = folder / "program.py"
    path.write_text(f"{PRELUDE}URL = {fleet.endpoints[0].base_url!r}\n{program}")
    command = [sys.executable, "-u", "-W", "error", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        said, complaints = process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its children, too
        raise AssertionError(f"it does not end, or a child does not: {process.communicate()}") from None
    assert (process.returncode, complaints) == (0, ""), said + complaints
    return said.splitlines()


def test_forked_workers_read_streams_with_the_client_their_parent_has_used(tmp_path: Path) -> None:
    program = """
import multiprocessing
client = SyncQRewardClient([URL])
def work(_):
    return reads(client)
if __name__ == "__main__":
    print("parent", *reads(client))
    for leave in (os._exit, sys.exit):
        if (child := os.fork()) == 0:
            print("child", *reads(client))
            leave(0)
        joined(child)
    with multiprocessing.get_context("fork").Pool(3) as pool:
        print("pool", *set.union(*pool.map(work, range(9))))
        pool.close()
        pool.join()
    print("parent", *reads(client))
"""
    with FakeFleet([FakeEndpoint("a")]) as fleet:
        assert run(program, fleet, tmp_path) == [f"{reader} {ANSWER}" for reader in ("parent", "child", "child", "pool", "parent")]


def test_a_stream_and_a_batch_of_them_go_on_in_the_parent_and_are_clear_errors_in_the_child(tmp_path: Path) -> None:
    program = """
client = SyncQRewardClient([URL])
stream, unbegun = client.stream_chat_completion(HI, MODEL), client.stream_chat_completion(HI, MODEL)
batch = client.batch_stream_chat_completion([HI] * 4, MODEL)
tokens, pieces = iter(stream), iter(batch)
begun, texts = next(tokens), [""] * 4
index, texts[0] = next(pieces)
assert index == 0
children = []
for leave in (os._exit, sys.exit):
    if (child := os.fork()) == 0:
        read = []
        lines = [told(lambda: read.extend(tokens)), told(lambda: list(stream)), told(stream.final)]
        lines.append(f"{stream.result} {stream.text.startswith(begun)}")
        stream.close()
        lines += [told(lambda: list(pieces)), told(batch.results)]
        batch.close()
        lines.append(" ".join(["".join(unbegun), *reads(client)]))
        sys.stdout.write("\\n".join(lines) + "\\n")
        client.close()
        leave(0)
    children.append(child)
for child in children:
    joined(child)
for index, token in pieces:
    texts[index] += token
print(begun + "".join(tokens), stream.final().choices[0].message.content, "".join(unbegun))
print(*set(texts), *set(batch.results().texts()))
"""
    with FakeFleet([FakeEndpoint("a", latency=SLOW)]) as fleet:
        child = [LOST, ELSEWHERE, ELSEWHERE, "None True", LOST, ELSEWHERE, f"{ANSWER} {ANSWER}"]
        assert run(program, fleet, tmp_path) == [*child, *child, f"{ANSWER} {ANSWER} {ANSWER}", f"{ANSWER} {ANSWER}"]
        assert fleet.seen("a").disconnects == 0


def test_an_awaited_stream_is_a_clear_error_in_a_child_that_is_forked_inside_the_loop(tmp_path: Path) -> None:
    program = """
client = QRewardClient([URL])
async def read(tokens):
    return "".join([token async for token in tokens])
async def child(tokens, stream, batch):
    for work in (read(tokens), stream.final(), batch.results()):
        try:
            print(await work)
        except RuntimeError as error:
            print(f"RuntimeError: {error}")
    await stream.aclose()
    print((await client.stream_chat_completion(HI, MODEL).final()).choices[0].message.content)
    await client.aclose()
async def main():
    async with client:
        stream, batch = client.stream_chat_completion(HI, MODEL), client.batch_stream_chat_completion([HI] * 2, MODEL)
        tokens = aiter(stream)
        begun = await anext(tokens)
        events = batch.events()
        await anext(events)
        if (process := os.fork()) == 0:
            asyncio.events._set_running_loop(None)  # as multiprocessing does
            asyncio.run(child(tokens, stream, batch))
            os._exit(0)
        await asyncio.to_thread(joined, process)
        print(begun + await read(tokens))
asyncio.run(main())
"""
    with FakeFleet([FakeEndpoint("a", latency=SLOW)]) as fleet:
        assert run(program, fleet, tmp_path) == [*[ELSEWHERE] * 3, ANSWER, ANSWER]


def test_workers_that_are_forked_at_any_moment_are_not_stuck(tmp_path: Path) -> None:
    program = """
client = SyncQRewardClient([URL])
reads(client)
ending, counts = threading.Event(), []
def busy():
    count = 0
    while not ending.is_set():
        assert len(reads(client)) == 1
        count += 1
    counts.append(count)
threads = [threading.Thread(target=busy) for _ in range(4)]
for thread in threads:
    thread.start()
children = []
for number in range(12):
    time.sleep(0.001 * number)
    if (child := os.fork()) == 0:
        os._exit(0 if len(reads(client)) == 1 else 1)
    children.append(child)
for child in children:
    joined(child)
ending.set()
for thread in threads:
    thread.join()
print(len(counts), min(counts) > 0)
"""
    with FakeFleet([FakeEndpoint("a", latency=Latency(base=0.002))]) as fleet:
        assert run(program, fleet, tmp_path) == ["4 True"]
