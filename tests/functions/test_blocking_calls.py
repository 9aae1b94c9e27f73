"""Blocking calls: every try that was sent is reported, whoever starts it; and what the loop thread that runs their timer may not break."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from typing import Any

import pytest
from virtual_threads import VirtualThreads

from qreward import RequestTimeout, schedule
from qreward.engine.portal import portal
from qreward.functions.calls import BlockingCall, Time, replaced_time
from qreward.functions.config import ScheduleConfig
from qreward.functions.function import ScheduledFunction
from qreward.scheduler.functions import Call
from qreward.testing.virtual_time import run_in_virtual_time


class Scene:
    """One function that runs one try at a time, in the thread of its caller, and a clock that is set by hand."""

    def __init__(self, **settings: Any) -> None:
        self.now = 0.0
        self.member = ScheduledFunction(lambda: "done", ScheduleConfig(max_concurrency=1, **settings))
        self.engine = self.member.engine
        self.engine.clock = lambda: self.now
        self.call = Call(self.member, None, self.member.options, None)
        self.call.waiter = BlockingCall(self.engine, lambda: "done", inline=True)

    def slots(self) -> int:
        return self.engine.scheduler.inflight


def test_a_try_that_is_started_after_its_caller_has_left_gives_its_slot_back(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, start = Scene(), BlockingCall._start

    def late(self: BlockingCall, attempt: Any) -> None:
        self.leave(attempt.task)  # what the caller's own thread does meanwhile
        start(self, attempt)

    monkeypatch.setattr(BlockingCall, "_start", late)
    scene.engine.apply(lambda now: scene.engine.scheduler.submit(now, scene.call))
    assert scene.call.done
    assert scene.slots() == 0


def test_a_try_that_is_started_when_its_call_has_just_timed_out_gives_its_slot_back(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, start = Scene(timeout=1.0), BlockingCall._start

    def times_out(self: BlockingCall, attempt: Any) -> None:
        start(self, attempt)
        scene.now = 10.0
        scene.engine.apply(scene.engine.scheduler.tick)  # as the loop thread does

    monkeypatch.setattr(BlockingCall, "_start", times_out)
    assert isinstance(scene.call.waiter.result(scene.call), RequestTimeout)
    assert scene.slots() == 0


def test_a_caller_for_whose_timer_no_thread_can_be_started_gives_its_slot_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThreads(Time):
        def keep(self, engine: Any, wake: float | None) -> None:
            raise RuntimeError("can't start new thread")

    scene = Scene()
    monkeypatch.setattr(scene.engine.scheduler, "next_wake", lambda: 5.0)  # another call of the pool waits for a time
    with replaced_time(NoThreads()), pytest.raises(RuntimeError, match="new thread"):
        scene.call.waiter.result(scene.call)
    assert scene.slots() == 0


def test_a_caller_that_is_interrupted_before_its_call_is_submitted_sees_the_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lock:
        def __enter__(self) -> None:
            if not entered:
                entered.append(1)
                raise KeyboardInterrupt

        def __exit__(self, *_: object) -> None:
            pass

    entered: list[int] = []
    records: list[Any] = []
    scene = Scene(metrics_callback=records.append)
    monkeypatch.setattr(scene.engine, "lock", Lock())
    with pytest.raises(KeyboardInterrupt):
        scene.member.call_blocking((), {})
    assert (records, scene.member.stats().calls) == ([], 0)
    assert scene.member.call_blocking((), {}) == "done"
    assert len(records) == 1


def test_a_blocking_call_inside_a_try_of_another_has_a_thread_and_a_time_limit_of_its_own() -> None:
    with VirtualThreads() as threads:

        @schedule(timeout=2.0)
        def inner(seconds: float) -> float:
            threads.sleep(seconds)
            return threads.now()

        @schedule(timeout=10.0, hedged_request_time=60.0)
        def outer(seconds: float) -> float:
            return inner(seconds)

        assert outer(1.0) == pytest.approx(1.0, abs=0.1)
        with pytest.raises(RequestTimeout, match="timeout of 2 s"):
            outer(9.0)
        assert threads.now() == pytest.approx(3.0, abs=0.1)


def test_a_blocking_call_in_the_portals_own_thread_is_timed_by_another_loop() -> None:
    never = threading.Event()

    @schedule(timeout=0.05)
    def hangs() -> None:
        never.wait(30)

    async def callback() -> None:
        hangs()

    with pytest.raises(RequestTimeout):
        portal().call(callback)
    never.set()


def test_a_call_that_waits_is_timed_although_the_loop_that_was_told_when_has_ended() -> None:
    class TooBusy(Exception):
        status_code, retry_after = 429, 0.05

    @schedule(pool="left", max_concurrency=1)
    async def awaited() -> None:
        waiter.start()
        while blocking.stats().waiting == 0:  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.001)
        raise TooBusy

    @schedule(pool="left", max_concurrency=1, retry_times=1, retry_interval=0)
    def blocking() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise TooBusy
        return "done"

    tries: list[int] = []
    found: list[str] = []
    waiter = threading.Thread(target=lambda: found.append(blocking()))
    with pytest.raises(TooBusy):
        asyncio.run(awaited())
    waiter.join(30)
    assert found == ["done"]


def test_a_function_that_is_dropped_is_freed_although_its_timer_was_set() -> None:
    def use_and_drop() -> weakref.ref[Any]:
        member = ScheduledFunction(lambda: time.sleep(0.05), ScheduleConfig(timeout=3600))
        member.call_blocking((), {})
        return weakref.ref(member.engine)

    freed = use_and_drop()
    deadline = time.monotonic() + 10
    while freed() is not None and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert freed() is None


def test_in_a_virtual_loop_a_blocking_call_takes_no_real_time() -> None:
    tries: list[float] = []

    @schedule(retry_times=2, retry_interval=3600, timeout=1e6, limit_size=1, limit_window=1e4)
    def score() -> int:
        tries.append(asyncio.get_running_loop().time())
        return 1 // (len(tries) - 1)

    async def main() -> int:
        return score()

    assert run_in_virtual_time(main()) == 1
    assert tries[1] - tries[0] == pytest.approx(1e4, abs=0.1)


def test_a_program_ends_at_once_although_a_try_hangs_and_timers_are_set() -> None:
    script = """
        import os, time
        from qreward import RequestTimeout, schedule

        @schedule(timeout=0.05)
        def hangs():
            time.sleep(3600)

        @schedule(timeout=3600)
        def quick():
            return 7

        def both():
            try:
                hangs()
            except RequestTimeout:
                return quick()

        import warnings; warnings.simplefilter("ignore")  # from 3.12 on, a fork beside threads is warned of
        print(both(), flush=True)
        child = os.fork()
        if not child:
            os._exit(both())
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), both())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("7\n7 7\n", "", 0)


def test_a_call_that_would_wait_for_its_retry_when_the_process_has_ended_its_timers_is_refused_and_does_not_hang() -> None:
    script = """
        import atexit

        def last():
            from qreward import ClientClosed, schedule

            @schedule(retry_times=1)
            def fails():
                raise ConnectionError

            try:
                fails()
            except ClientClosed as error:
                print(error)

        atexit.register(last)  # before qreward is imported, so it runs when the timers have ended
        import qreward.engine.portal
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("the process is ending; blocking calls are refused\n", "")
