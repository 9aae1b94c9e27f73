"""Ctrl-C, pressed in a real terminal: what was done is told, what was under way is closed, and the program ends."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from acceptance_tools import until

from qreward.testing import FakeEndpoint, FakeFleet, Latency

pytest.importorskip("termios")
from terminal import CTRL_C, Terminal

PRELUDE = """
import asyncio, atexit, time
from qreward import QRewardClient, SyncQRewardClient
URL = %r
ITEMS = [[{"role": "user", "content": f"question {number}"}] for number in range(400)]
done = []
def on_result(result):
    done.append(result)
    if len(done) == 100:
        half_way()
def half_way():
    print("HALF WAY")
"""
RUNS = {
    "asyncio.run": 'asyncio.run(QRewardClient([URL]).batch_chat_completion(ITEMS, "judge-7b", progress=True, on_result=on_result))',
    "blocking": 'SyncQRewardClient([URL]).batch_chat_completion(ITEMS, "judge-7b", progress=True, on_result=on_result)',
}
INTERRUPTED = -2  # the exit code of a program that ended by SIGINT


def fleet() -> FakeFleet:
    return FakeFleet([FakeEndpoint("a", latency=Latency(base=0.05, per_token=0.002, tokens=20))])


def program(fleet: FakeFleet, text: str) -> str:
    return PRELUDE % fleet.endpoints[0].base_url + text


def lines_of(shown: str) -> list[str]:
    """What can be read in the end: of a line that was drawn again and again, the last."""
    return [line.rstrip("\r").rpartition("\r")[2] for line in shown.splitlines()]


def nothing_is_open(fleet: FakeFleet) -> None:
    asyncio.run(until(lambda: fleet.seen("a").in_flight == 0))
    assert fleet.seen("a").requests < 400


@pytest.mark.parametrize("kind", RUNS)
def test_the_bar_and_the_interrupt_say_how_far_the_batch_came(kind: str, tmp_path: Path) -> None:
    told = 'atexit.register(lambda: print("TOLD", len(done)))\n'
    with fleet() as fakes, Terminal(program(fakes, told + RUNS[kind]), tmp_path) as terminal:
        terminal.wait_for("HALF WAY")
        terminal.type(CTRL_C)
        assert terminal.wait() == INTERRUPTED
        nothing_is_open(fakes)
    lines = lines_of(terminal.shown)
    (note,) = [line for line in lines if "items were done" in line]
    found = re.fullmatch(r"(\d+) of 400 items were done when the batch was given up; on_result received each of them", note)
    assert found is not None, note
    assert 100 <= int(found[1]) < 400
    assert f"TOLD {found[1]}" in lines
    bars = [line for line in lines if "req/s" in line]
    assert f" {found[1]}/400 [" in bars[-1]
    assert lines.count("KeyboardInterrupt") == 1
    assert terminal.shown.count("Traceback") == (2 if kind == "asyncio.run" else 1)  # asyncio shows where it was cancelled, too


@pytest.mark.parametrize("kind", RUNS)
def test_a_program_that_catches_the_interrupt_goes_on_with_its_client(kind: str, tmp_path: Path) -> None:
    text = f"""
client = {"QRewardClient" if kind == "asyncio.run" else "SyncQRewardClient"}([URL])
try:
    {RUNS[kind].replace("QRewardClient([URL])", "client").replace("Syncclient", "client")}
except KeyboardInterrupt:
    told = len(done)
    rest = {"asyncio.run" if kind == "asyncio.run" else ""}(client.batch_chat_completion(ITEMS[:20], "judge-7b"))
    print("REST", rest.stats.ok, len(done) - told, [stats.state.in_flight for stats in client.stats().values()])
"""
    with fleet() as fakes, Terminal(program(fakes, text), tmp_path) as terminal:
        terminal.wait_for("HALF WAY")
        terminal.type(CTRL_C)
        assert terminal.wait() == 0
        nothing_is_open(fakes)
    assert "REST 20 0 [0]" in lines_of(terminal.shown)


FOREVER = """
import sys, threading, traceback
import qreward.engine.portal as room
room.GRACE = 1000.0
"""
ENDLESS_INPUT = """
async def items():
    try:
        for item in ITEMS:
            yield item
        await asyncio.sleep(1000)
    finally:
        while sum(map(asyncio.Task.cancelling, asyncio.all_tasks())) > 2:  # this and its batch
            await asyncio.sleep(0.01)
        print("ONCE")
        await asyncio.sleep(1000)
"""
"""It waits until the requests are closed: asyncio loses a callback if an interrupt is raised just before it runs it, and hangs."""


def interrupt_twice(text: str, folder: Path) -> None:
    """Run a program that does not end at the first Ctrl-C, and see that it ends at the second, with one traceback and nothing open."""
    with fleet() as fakes, Terminal(program(fakes, text), folder) as terminal:
        terminal.wait_for("HALF WAY")
        terminal.type(CTRL_C)
        terminal.wait_for("ONCE")
        terminal.type(CTRL_C)
        assert terminal.wait() == INTERRUPTED
        asyncio.run(until(lambda: fakes.seen("a").in_flight == 0))
    assert len(re.findall(r"KeyboardInterrupt(?=[\r\n])", terminal.shown)) == 1  # the bar may be drawn into the same line


@pytest.mark.parametrize("kind", RUNS)
def test_a_second_ctrl_c_ends_an_input_that_does_not_close(kind: str, tmp_path: Path) -> None:
    interrupt_twice(FOREVER + ENDLESS_INPUT + RUNS[kind].replace("(ITEMS,", "(items(),"), tmp_path)
