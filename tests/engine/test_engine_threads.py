"""Worker threads: reused, bounded, gone when idle, never waited for."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from qreward.engine import background
from qreward.engine.background import Workers

PATIENCE = 30.0
"""Seconds after which a test that should have been woken fails."""


def idle(workers: Workers) -> int:
    """Threads that wait for work."""
    return workers._idle


def busy(workers: Workers) -> int:
    """Threads that run a job."""
    return max(0, workers._threads - workers._idle)


def held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def until(condition: Callable[[], bool]) -> bool:
    """Looks again and again, for what a thread does after its last word."""
    deadline = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    return condition()


class Bodies:
    """Jobs that begin, and end when they are told to."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Semaphore(0), threading.Semaphore(0)
        self.threads: list[int] = []

    def __call__(self) -> None:
        self.threads.append(threading.get_ident())
        self.begun.release()
        assert self.may_end.acquire(timeout=PATIENCE)

    def have_begun(self, count: int) -> bool:
        return all(self.begun.acquire(timeout=PATIENCE) for _ in range(count))


def run_alone(workers: Workers, job: Callable[[], object]) -> None:
    """Have a job run, and wait until its worker is free again."""
    done = held()

    def work() -> Callable[[], object]:
        job()
        return done.release

    assert workers.run(work)
    assert done.acquire(timeout=PATIENCE)


def test_as_many_threads_as_are_needed_run_at_once_and_no_more_than_are_allowed() -> None:
    workers, bodies = Workers(3), Bodies()
    assert [workers.run(bodies) for _ in range(5)] == [True] * 3 + [False] * 2
    assert bodies.have_begun(3)
    assert len(set(bodies.threads)) == 3
    assert (busy(workers), idle(workers)) == (3, 0)
    bodies.may_end.release(3)
    assert until(lambda: idle(workers) == 3)
    assert busy(workers) == 0
    assert workers.run(bodies)
    bodies.may_end.release()


def test_a_report_that_hands_over_the_next_job_finds_its_own_worker_free() -> None:
    workers, order, done = Workers(1), [], held()

    def job(number: int) -> Callable[[], object]:
        order.append(number)
        return lambda: handed.append(workers.run(lambda: job(number + 1))) if number < 50 else done.release()

    handed: list[bool] = []
    assert workers.run(lambda: job(0))
    assert done.acquire(timeout=PATIENCE)
    assert order == list(range(51))
    assert handed == [True] * 50


def test_a_job_runs_in_a_daemon_thread_that_ends_when_it_was_idle_for_its_time() -> None:
    workers, seen = Workers(1, idle_seconds=0.01), list[threading.Thread]()
    run_alone(workers, lambda: seen.append(threading.current_thread()))
    assert (seen[0] is threading.current_thread(), seen[0].daemon, seen[0].name) == (False, True, "qreward-worker-1")
    assert until(lambda: idle(workers) == 0)
    seen[0].join(PATIENCE)
    assert not seen[0].is_alive()
    assert busy(workers) == 0
    run_alone(workers, lambda: seen.append(threading.current_thread()))
    assert seen[1] is not seen[0]


def test_a_thread_that_is_given_a_job_just_as_its_idle_time_runs_out_runs_it_and_lives_on() -> None:
    workers, done, ran = Workers(1, idle_seconds=0.01), held(), list[threading.Thread]()

    def note() -> None:
        ran.append(threading.current_thread())

    def last_job() -> Callable[[], object]:
        note()
        return done.release

    class Jobs(SimpleQueue[Any]):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            try:
                return super().get(block, timeout)
            except Empty:
                if len(ran) == 1:
                    assert workers.run(last_job)
                raise

    workers._jobs = Jobs()
    run_alone(workers, note)
    assert done.acquire(timeout=PATIENCE)
    assert ran[0] is ran[1]
    ran[0].join(PATIENCE)
    run_alone(workers, note)
    assert ran[2] is not ran[0], "the thread has ended after its next idle time, and takes no job with it"


def test_many_callers_lose_nothing_and_the_bound_holds() -> None:
    workers, callers, lock = Workers(5), 12, threading.Lock()
    now, peak, ran = 0, 0, 0

    def job(done: threading.Lock) -> Callable[[], object]:
        nonlocal now, peak, ran
        with lock:
            now, ran = now + 1, ran + 1
            peak = max(peak, now)
        time.sleep(0)
        with lock:
            now -= 1
        return done.release

    def caller() -> None:
        done = held()
        for _ in range(100):
            while not workers.run(lambda: job(done)):
                time.sleep(0)
            assert done.acquire(timeout=PATIENCE)

    started = [threading.Thread(target=caller) for _ in range(callers)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(PATIENCE)
    assert ran == callers * 100
    assert peak <= 5
    assert idle(workers) <= 5


def test_an_idle_thread_keeps_nothing_of_its_last_job_alive() -> None:
    class Thing:
        pass

    workers, thing = Workers(1, idle_seconds=10 * PATIENCE), Thing()
    gone = weakref.ref(thing)

    def job(thing: Thing) -> Callable[[], object]:
        return lambda: thing

    assert workers.run(lambda thing=thing: job(thing))  # type: ignore[misc]
    del thing
    assert until(lambda: gone() is None)


def test_a_job_that_raises_against_its_promise_is_told_of_and_its_worker_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", told.append)

    def breaks() -> None:
        raise KeyError("promised not to")

    for job in (breaks, lambda: breaks):  # in the job, and in its report
        workers = Workers(1)
        told.clear()
        assert workers.run(job)
        assert until(lambda workers=workers: bool(told) and idle(workers) == 1)  # type: ignore[misc]
        assert isinstance(told[0].exc_value, KeyError)
        run_alone(workers, lambda: None)
        assert busy(workers) == 0


def test_where_the_system_gives_no_further_thread_the_answer_is_no_and_without_any_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    workers, bodies = Workers(3), Bodies()
    assert workers.run(bodies)

    class NoThread:
        def __init__(self, **_: object) -> None: ...
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(background.threading, "Thread", NoThread)
    assert not workers.run(bodies)
    assert busy(workers) == 1
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Workers(3).run(bodies)
    bodies.may_end.release()


# the end of the process, and forks


def output_of(script: str) -> str:
    prelude = """
import os, threading, time
from qreward.engine.background import Workers, SHARED
idle = lambda workers: workers._idle
busy = lambda workers: max(0, workers._threads - workers._idle)
"""
    done = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(script)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_hung_job_does_not_keep_the_process() -> None:
    script = """
        begun = threading.Lock(); begun.acquire()
        def hang():
            begun.release()
            time.sleep(3600)
        assert SHARED.run(hang)
        begun.acquire()
        print("ended")
    """
    assert output_of(script) == "ended\n"


def test_a_forked_child_begins_with_threads_of_its_own_and_the_parent_keeps_its() -> None:
    script = """
        import warnings; warnings.simplefilter("ignore")  # from 3.12 on, a fork beside threads is warned of
        workers = Workers(2)
        def run():
            done = threading.Lock(); done.acquire()
            assert workers.run(lambda: done.release)
            return done.acquire(timeout=20)
        def hang():
            time.sleep(3600)
        assert run() and workers.run(hang)
        assert run() and (busy(workers), idle(workers)) == (1, 1)
        workers._lock.acquire()  # as another thread might at this moment
        child = os.fork()
        if child == 0:
            fine = (busy(workers), idle(workers)) == (0, 0) and run() and (busy(workers), idle(workers)) == (0, 1)
            os._exit(0 if fine else 1)
        workers._lock.release()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), run(), busy(workers), idle(workers))
    """
    assert output_of(script) == "0 True 1 1\n"
