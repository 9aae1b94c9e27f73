"""One rewarder serves any loops, threads and forks of a process over real connections, and the process ends without a word about them."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from shared_tools import until
from trainers_tools import ended_quietly, fleet_of, settings_of

from qreward.integrations.trainers import rewarder
from qreward.integrations.trainers.rewarder import close_all
from qreward.testing import FakeFleet, Faults

ITEMS = [{"prompt": f"{at} + {at}?", "response": str(2 * at + at % 2), "reference": str(2 * at)} for at in range(24)]
RIGHT = [float(at % 2 == 0) for at in range(24)]

BEGIN = """
import asyncio, atexit, gc, json, os, sys, threading, time
def look(pid=os.getpid()):
    import aiohttp
    for thing in gc.get_objects():
        if isinstance(thing, aiohttp.ClientSession | aiohttp.BaseConnector) and not thing.closed and os.getpid() == pid:
            print("Unclosed", thing)
atexit.register(look)  # first, so that it comes last
from qreward.integrations.trainers import rewarder
ITEMS, RIGHT = json.loads(sys.argv[1])
here = rewarder(deadline=20.0)
def check(scored):
    found = [each.score(None) for each in scored]
    assert found == RIGHT, found
def forever(loop):
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop
async def many():
    return await here.score_many(ITEMS)
"""

ENDS = """
from qreward.engine.driver import LoopDriver
import uvloop
close = LoopDriver._close
async def slowly(self):
    await asyncio.sleep(0.2)
    await close(self)
LoopDriver._close = slowly
check(asyncio.run(many()))
check(asyncio.run(many()))
for make in (asyncio.new_event_loop, uvloop.new_event_loop):
    check(asyncio.run_coroutine_threadsafe(many(), forever(make())).result())
check(here.score_blocking(ITEMS))
"""
"""Loops that were closed, loops in daemon threads that are never closed and take their time to close, and the portal's."""

FORKS = """
check(here.score_blocking(ITEMS))
child = os.fork()
check(rewarder(deadline=20.0).score_blocking(ITEMS))
if child:
    assert os.waitpid(child, 0)[1] == 0
"""

ABRUPT = """
import uvloop
stopped, closed = asyncio.new_event_loop(), asyncio.new_event_loop()
check(stopped.run_until_complete(many()))
check(closed.run_until_complete(many()))
closed.close()
def serve():
    loop = uvloop.new_event_loop()
    check(loop.run_until_complete(many()))
    loop.close()
thread = threading.Thread(target=serve)
thread.start()
thread.join()
trainers = asyncio.new_event_loop()
runs = threading.Thread(target=trainers.run_forever, daemon=True)
def stop():
    trainers.call_soon_threadsafe(trainers.stop)
atexit.register(stop)
runs.start()
check(asyncio.run_coroutine_threadsafe(many(), trainers).result())
"""
"""Loops that stopped, were closed without ado, or are stopped by the trainer at exit. Development mode tells of what they leave."""


@pytest.fixture(scope="module")
def fleet() -> Iterator[FakeFleet]:
    with fleet_of() as made:
        yield made


@pytest.fixture
def settings(fleet: FakeFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    file = settings_of(fleet, tmp_path)
    monkeypatch.setenv("QREWARD_REWARD", str(file))
    yield file
    close_all()


@pytest.mark.parametrize(("program", "dev"), [(ENDS, True), (FORKS, True), (ABRUPT, False)], ids=["ends", "forks", "abrupt"])
def test_a_process_ends_and_prints_nothing_about_what_it_left_open(settings: Path, program: str, dev: bool) -> None:
    ended_quietly(BEGIN + program, settings, json.dumps([ITEMS, RIGHT]), dev=dev)


def test_a_process_ends_while_a_reward_is_under_way_in_a_daemon_thread(tmp_path: Path) -> None:
    with fleet_of(Faults(hang=1.0)) as fleet:
        program = """
asyncio.run_coroutine_threadsafe(many(), forever(asyncio.new_event_loop()))
while not os.path.exists(sys.argv[2]):  # until the fleet has them
    time.sleep(0.01)
"""
        begun = tmp_path / "begun"

        async def watch() -> None:
            await until(lambda: fleet.seen("judge-0").in_flight > 0)
            begun.touch()

        watching = threading.Thread(target=asyncio.run, args=(watch(),))
        watching.start()
        ended_quietly(BEGIN + program, settings_of(fleet, tmp_path), json.dumps([ITEMS, RIGHT]), str(begun))
        watching.join()
        assert fleet.seen("judge-0").requests > 0


def test_threads_share_one_loop_and_are_served_beside_loops_of_other_threads(settings: Path) -> None:
    here = rewarder(deadline=20.0)
    with ThreadPoolExecutor(32) as threads:
        loops = [threads.submit(asyncio.run, _many()) for _ in range(3)]
        found = list(threads.map(lambda item: here.score_blocking([item])[0].score(None), ITEMS * 4))
        assert all(_rewards(each.result()) == RIGHT for each in loops)
    assert found == RIGHT * 4
    assert [thread.name for thread in threading.enumerate()].count("qreward-portal") == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_in_the_middle_of_other_threads_work_does_not_hold_up_the_child(settings: Path) -> None:
    here = rewarder(deadline=20.0)
    with ThreadPoolExecutor(8) as threads:
        busy = [threads.submit(here.score_blocking, [{**item, "prompt": f"busy {item['prompt']}"}]) for item in ITEMS * 4]
        child = os.fork()
        if child == 0:
            os._exit(int(_rewards(rewarder(deadline=20.0).score_blocking(ITEMS)) != RIGHT))
        assert os.waitpid(child, 0)[1] == 0
        assert all(each.result()[0].ok for each in busy)


@pytest.mark.real_time
async def test_closing_a_rewarder_leaves_the_client_open_for_the_others_of_the_process(settings: Path) -> None:
    given = _content(settings)
    for other in (given, {**given, "deadline": 7.0}):
        closed, before = rewarder(given, deadline=20.0), rewarder(other, deadline=20.0)
        await closed.aclose()
        for each in (before, rewarder(other, deadline=20.0), closed):
            assert _rewards(await each.score_many(ITEMS)) == RIGHT


def _content(settings: Path) -> dict[str, Any]:
    return dict(json.loads(settings.read_text(encoding="utf-8")))


async def _many() -> list[Any]:
    return await rewarder(deadline=20.0).score_many(ITEMS)


def _rewards(scored: list[Any]) -> list[float | None]:
    return [each.score(None) for each in scored]
