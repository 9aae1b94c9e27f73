"""A watcher that looks by itself: when it looks, that it stops at once and leaves no thread, and what a forked child does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qreward.functions import watcher as watcher_module
from qreward.functions.config import ScheduleConfig
from qreward.functions.watcher import ConfigWatcher

NAME = "qreward-config-watcher"


class Time:
    """A clock that stands still until `pass_on`; stopping needs no time."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self._waiting = threading.Semaphore(0)
        self._passed = threading.Semaphore(0)

    def wait(self, stopping: threading.Event, seconds: float) -> bool:
        self.waits.append(seconds)
        self._waiting.release()
        while not self._passed.acquire(timeout=0.002):
            if stopping.is_set():
                return True
        return stopping.is_set()

    def pass_on(self) -> None:
        """Let one interval pass; returns when what follows is done."""
        assert self._waiting.acquire(timeout=20)
        self._passed.release()
        assert self._waiting.acquire(timeout=20)
        self._waiting.release()


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


@pytest.fixture(autouse=True)
def no_thread_is_left_behind() -> Iterator[None]:
    assert threads() == []
    yield
    for thread in threads():  # those that were stopped in their own thread
        thread.join(20)
    assert threads() == []


def counting(answers: list[Any]) -> Any:
    """A callback that gives one answer after the other, and None from then on."""
    return lambda: answers.pop(0) if answers else None


def test_a_watcher_looks_when_started_and_then_after_each_interval() -> None:
    config, clock = ScheduleConfig(), Time()
    answers: list[Any] = [{"timeout": 1}, {"timeout": 2}, {"timeout": 0}, {"timeout": 3}]
    watcher = ConfigWatcher(config, callback=counting(answers), poll_interval=7)
    watcher._wait = clock.wait  # type: ignore[assignment]
    assert config.timeout is None
    with watcher as entered:
        assert entered is watcher
        assert config.timeout == 1.0
        for expected in (2.0, 2.0, 3.0):  # a wrong one does not end it
            clock.pass_on()
            assert config.timeout == expected
        assert set(clock.waits) == {7.0}
        assert watcher.running
        assert repr(watcher) == "<ConfigWatcher callback, running>"
    assert not watcher.running
    assert repr(watcher) == "<ConfigWatcher callback>"


def test_starting_and_stopping_twice_is_as_once_and_a_watcher_may_be_started_again() -> None:
    looks: list[int] = []
    watcher = ConfigWatcher(ScheduleConfig(), callback=lambda: looks.append(1))
    watcher._wait = Time().wait  # type: ignore[assignment]
    watcher.stop()
    for count in (1, 2):
        watcher.start()
        watcher.start()
        assert (len(looks), len(threads())) == (count, 1)
        assert threads()[0].daemon
        watcher.stop()
        watcher.stop()
        assert threads() == []


def test_a_callback_that_hangs_delays_a_stop_only_so_long_and_changes_nothing_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher_module, "STOP_TIMEOUT", 0.01)
    config, clock = ScheduleConfig(), Time()
    hangs, release = threading.Event(), threading.Event()

    def ask() -> dict[str, int] | None:
        if threading.current_thread().name != NAME:
            return None if not release.is_set() else {"timeout": 5}
        hangs.set()
        release.wait(20)
        return {"timeout": 5}

    watcher = ConfigWatcher(config, callback=ask)
    watcher._wait = clock.wait  # type: ignore[assignment]
    watcher.start()
    clock._passed.release()
    assert hangs.wait(20)
    (thread,) = threads()
    watcher.stop()
    assert not watcher.running
    assert thread.is_alive()
    release.set()
    thread.join(20)
    assert config.timeout is None
    watcher.start()
    assert config.timeout == 5.0, "what was not taken over then is seen again"
    watcher.stop()


def test_a_change_that_was_read_during_a_stop_is_applied_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, clock, path = ScheduleConfig(), Time(), tmp_path / "s.json"
    watcher = ConfigWatcher(config, file=path)
    watcher._wait = clock.wait  # type: ignore[assignment]
    read = watcher_module.read_settings

    def read_and_stop(file: Path) -> Any:
        if threading.current_thread().name == NAME:
            watcher.stop()
        return read(file)

    monkeypatch.setattr(watcher_module, "read_settings", read_and_stop)
    path.write_text('{"timeout": 5}')
    watcher.start()
    (thread,) = threads()
    path.write_text('{"timeout": 9}')
    clock._passed.release()
    thread.join(20)
    assert config.timeout == 5.0
    with watcher:
        assert config.timeout == 9.0


def test_threads_and_callbacks_that_poll_at_once_take_over_each_change_once() -> None:
    config = ScheduleConfig()
    heard: list[object] = []
    answers: list[Any] = [{"timeout": 5}, {"timeout": 6}]
    watcher = ConfigWatcher(config, callback=counting(answers))
    config.on_change(lambda _, names: (heard.append(names), watcher.poll_once()))
    lookers = [threading.Thread(target=watcher.poll_once) for _ in range(8)]
    for looker in lookers:
        looker.start()
    for looker in lookers:
        looker.join()
    assert heard == [{"timeout"}] * 2
    assert config.timeout == 6.0


FORK = """
import os, sys, threading
from qreward.functions.config import ScheduleConfig
from qreward.functions.watcher import ConfigWatcher
config, path, asked, release = ScheduleConfig(), sys.argv[1], threading.Event(), threading.Event()
changed = threading.Event()
config.on_change(lambda *_: changed.set())

class Reading:
    # whoever looks in the parent's thread is in the midst of it when the parent forks
    def wait(self, stopping, seconds):
        if os.getpid() == parent and not asked.is_set():
            with watcher._looking:
                asked.set()
                release.wait()
        return stopping.wait(0.01)

parent = os.getpid()
watcher = ConfigWatcher(config, file=path)
watcher._wait = Reading().wait
watcher.start()
asked.wait()
changed.clear()
if (child := os.fork()) == 0:
    ok = watcher.running
    with open(path + ".new", "w") as file:
        file.write('{"timeout": 7}')
    os.replace(path + ".new", path)
    changed.wait(20)
    watcher.stop()
    os._exit(0 if ok and config.timeout == 7 and not watcher.running and threading.active_count() == 1 else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
release.set()
changed.wait(20)
watcher.stop()
print(status, config.timeout)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_goes_on_watching_and_so_does_the_parent(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"timeout": 1}')
    done = subprocess.run([sys.executable, "-c", FORK, str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "0 7.0\n", done.stderr


def test_a_program_ends_while_a_watcher_runs() -> None:
    script = """
from qreward.functions.config import ScheduleConfig
from qreward.functions.watcher import ConfigWatcher
ConfigWatcher(ScheduleConfig(), callback=dict, poll_interval=3600).start()
print("end")
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("end\n", "")
