"""The portal and the life of the process: the end, forks, other kinds of loop. Each test is a program of its own."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

PRELUDE = """
import asyncio, atexit, os, sys, threading
from qreward import ClientClosed
from qreward.engine.portal import portal

async def pid():
    await asyncio.sleep(0)
    return os.getpid()

def print(*values, **_):  # a line at a time, whichever thread or process writes
    os.write(1, (" ".join(map(str, values)) + "\\n").encode())

async def numbers():
    try:
        number = 0
        while True:
            await asyncio.sleep(0)
            yield number
            number += 1
    finally:
        await asyncio.sleep(0)
        print("generator closed", flush=True)

async def work(started):
    started.set()
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0)
        print("work ended", flush=True)

def in_background(call, *arguments):
    def run():
        try:
            call(*arguments)
        except ClientClosed:
            pass
    threading.Thread(target=run, daemon=True).start()

def joined(child):
    _, status = os.waitpid(child, 0)
    assert status == 0, status
"""


def run(program: str, code: int = 0) -> list[str]:
    """What a program prints; it must end well and say nothing else, although every warning is shown."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", PRELUDE + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    slow = re.compile(r"Executing <.* took [0-9.]+ seconds")  # asyncio's report of a slow step, which a busy machine causes
    told = [line for line in done.stderr.splitlines() if not slow.fullmatch(line)]
    assert (done.returncode, told) == (code, []), done.stderr
    return done.stdout.splitlines()


def test_the_thread_is_started_by_the_first_call_and_the_end_of_the_process_ends_work_that_is_under_way() -> None:
    program = """
print(threading.active_count())
portal().call(pid)
print(threading.active_count())
started = threading.Event()
in_background(portal().call, work, started)
started.wait()
stream = portal().iterate(numbers())
print(next(stream), next(stream))
"""
    assert sorted(run(program)) == ["0 1", "1", "2", "generator closed", "work ended"]


def test_after_the_end_a_call_is_refused_and_starts_no_thread() -> None:
    program = """
import qreward.engine.portal as room
atexit.unregister(room._at_exit)
def last():
    try:
        portal().call(pid)
    except ClientClosed as error:
        print(error)
atexit.register(last)  # those registered first run last
atexit.register(room._at_exit)
print(portal().call(pid) == os.getpid())
"""
    assert run(program) == ["True", "the process is ending; blocking calls are refused"]


def test_a_forked_child_has_a_portal_of_its_own_and_the_parents_goes_on() -> None:
    program = """
started = threading.Event()
in_background(portal().call, work, started)
started.wait()
before = portal()
assert before.call(pid) == os.getpid()
if (child := os.fork()) == 0:
    assert portal() is not before and before.ended
    assert portal().call(pid) == os.getpid()
    if (grandchild := os.fork()) == 0:
        assert portal().call(pid) == os.getpid()
        print("grandchild", flush=True)
        os._exit(0)
    joined(grandchild)
    assert portal().call(pid) == os.getpid()
    print("child", flush=True)
    sys.exit(0)
joined(child)
assert portal() is before and before.call(pid) == os.getpid()
print("parent", flush=True)
"""
    assert run(program) == ["grandchild", "child", "parent", "work ended"]


def test_a_stream_of_the_parent_is_an_error_in_the_child_and_goes_on_in_the_parent() -> None:
    program = """
stream = portal().iterate(numbers(), 4)
unbegun = portal().iterate(numbers(), 4)
print(next(stream))
if (child := os.fork()) == 0:
    for one in (stream, unbegun):
        read = []
        try:
            read.extend(one)
        except ClientClosed as error:
            print("forked from the one that began it" in str(error), len(read) < 6, flush=True)
    sys.exit(0)
joined(child)
print(next(stream), next(stream), *[next(stream) for _ in range(20)][-1:], flush=True)
stream.close()
"""
    assert run(program) == ["0", "True True", "True True", "1 2 22", "generator closed"]


def test_a_child_that_is_forked_in_the_portals_thread_or_while_another_thread_holds_a_lock_is_not_stuck() -> None:
    program = """
import qreward.engine.portal as room
def hold(lock):
    with lock:
        held.set()
        go_on.wait()
for lock in (room._starting, portal()._lock):
    held, go_on = threading.Event(), threading.Event()
    threading.Thread(target=hold, args=[lock], daemon=True).start()
    held.wait()
    if (child := os.fork()) == 0:
        assert portal().call(pid) == os.getpid()
        os._exit(0)
    joined(child)
    go_on.set()
    assert portal().call(pid) == os.getpid()
async def fork():
    if (child := os.fork()) == 0:
        asyncio.events._set_running_loop(None)  # as multiprocessing does
        assert portal().call(pid) == os.getpid()
        os._exit(0)
    joined(child)
portal().call(fork)
assert portal().call(pid) == os.getpid()
"""
    assert run(program) == []


def test_the_loop_is_of_the_kind_that_the_program_has_chosen() -> None:
    pytest.importorskip("uvloop")
    program = """
import uvloop, warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of policies, since Python 3.14
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
async def kind():
    return type(asyncio.get_running_loop()).__module__
print(portal().call(kind))
print(next(portal().iterate(numbers())))
"""
    assert sorted(run(program)) == ["0", "generator closed", "uvloop"]
