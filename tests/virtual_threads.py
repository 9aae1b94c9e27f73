"""Virtual time for blocking callers: threads that run one at a time, and a thread whose event loop runs on virtual time.

The event loop takes the place of the one that runs the timers of blocking callers. Before each step it lets the threads run whose wait is
over, one after the other, each until it waits again; when all of them wait, its clock jumps to the next timer. So every run has the same
order of events. A thread that blocks on anything else (``time.sleep``, a socket) blocks all threads.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, Self, TypeVar

from qreward.engine.background import MOST, Job
from qreward.engine.portal import Portal
from qreward.functions.calls import Inbox, Time, replaced_time
from qreward.testing import Deadlock
from qreward.testing.virtual_time import VirtualTimeLoop

T = TypeVar("T")

PATIENCE = 60.0
"""Real seconds that a thread may run without waiting in virtual time."""


class VirtualThread(Generic[T]):
    """A thread that a test has started with ``spawn``."""

    def __init__(self, threads: VirtualThreads, function: Callable[[], T]) -> None:
        self._threads, self._function = threads, function
        self._ended: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def join(self) -> T:
        """Wait in virtual time until the function has ended. Return its result, or raise its exception."""
        value, error = self._threads.take(self._ended)
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def work(self) -> None:
        try:
            self._ended.put((self._function(), None))
        except BaseException as error:
            self._ended.put((None, error))


class _Loop(VirtualTimeLoop):
    """A virtual loop that lets threads run before it looks at its timers."""

    def __init__(self, let_run: Callable[[float | None], bool]) -> None:
        super().__init__()
        select = self._clock.select

        def select_after_threads(timeout: float | None = None) -> Any:
            return select(0 if let_run(timeout) else timeout)

        self._clock.select = select_after_threads  # type: ignore[method-assign]


class VirtualThreads(Time):
    """Runs blocking calls in virtual time inside a ``with`` block. The block ends when all threads have ended.

    Args:
        most: maximum number of concurrent jobs of ``run``.

    Raises:
        Deadlock: all threads wait, and no timer is set. It is raised in each waiting thread, and names the places where they wait.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.busy = 0
        self._waiting: dict[Inbox, tuple[threading.Thread, threading.Lock]] = {}
        self._left = 0  # threads that have not ended, without the main thread
        self._last: SimpleQueue[None] = SimpleQueue()
        self._paused = threading.Semaphore(0)
        self._deadlock: Deadlock | None = None
        self._begun = False
        self._in_use = replaced_time(self)

    def __enter__(self) -> Self:
        self._portal = Portal("virtual-timers", lambda: _Loop(self._let_run))
        self.now = self._portal.loop.time  # type: ignore[method-assign]
        self._in_use.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            while kind is None and self._left:
                self.take(self._last)
        finally:
            self._in_use.__exit__(None, None, None)
            self._deadlock = self._deadlock or Deadlock("the test is over")
            for _since, turn in self._waiting.values():
                turn.release()
            self._portal.soon(self._portal._stop.set)
            self._paused.release()
            self._portal.close()

    # for the code under test

    def timers(self) -> Portal:
        return self._portal

    def take(self, inbox: Inbox, _engine: object = None) -> Any:
        """Wait in virtual time for the next item of a queue, and return it."""
        if inbox.empty():
            turn = threading.Lock()
            turn.acquire()
            self._waiting[inbox] = threading.current_thread(), turn
            self._paused.release()
            turn.acquire()
            if self._deadlock is not None:
                raise self._deadlock
        return inbox.get()

    def run(self, job: Job) -> bool:  # type: ignore[override]
        if self.busy >= self.most:
            return False
        self.busy += 1
        self._begin(partial(self._work, job), "worker")
        return True

    # for tests

    def sleep(self, seconds: float) -> None:
        """Sleep for virtual seconds. Other threads run first, even if ``seconds`` is 0."""
        over: SimpleQueue[None] = SimpleQueue()
        self._portal.soon(partial(self._portal.loop.call_later, max(seconds, 0.0), over.put, None))
        self.take(over)

    def spawn(self, function: Callable[[], T], name: str = "thread") -> VirtualThread[T]:
        """Start a thread, which runs after the calling thread begins to wait."""
        thread = VirtualThread(self, function)
        self._begin(thread.work, name)
        return thread

    def _work(self, job: Job) -> None:
        try:
            report = job()
        finally:
            self.busy -= 1
        if report is not None:
            report()

    def _begin(self, work: Callable[[], object], name: str) -> None:
        start: SimpleQueue[None] = SimpleQueue()
        start.put(None)
        turn = threading.Lock()
        turn.acquire()

        def live() -> None:
            turn.acquire()
            try:
                if self._deadlock is None:
                    work()
            except Deadlock:
                pass
            self._left -= 1
            if not self._left:
                self._last.put(None)
            self._paused.release()

        self._left += 1
        thread = threading.Thread(target=live, name=name, daemon=True)
        thread.start()
        self._waiting[start] = thread, turn

    # in the loop's thread

    def _await_pause(self) -> None:
        if not self._paused.acquire(timeout=PATIENCE):
            self._deadlock = Deadlock(f"a thread runs or blocks for {PATIENCE:g} s of real time; {self._places()}")

    def _let_run(self, timeout: float | None) -> bool:
        """Let threads run whose wait is over, until all of them wait. Returns whether one has run."""
        if not self._begun:
            if timeout is not None:  # the loop begins
                return False
            self._begun = True
            self._await_pause()  # of the main thread
        ran = False
        while (inbox := next((inbox for inbox in self._waiting if not inbox.empty()), None)) is not None:
            self._waiting.pop(inbox)[1].release()
            self._await_pause()
            ran = True
        if not ran and self._waiting and self._deadlock is None and timeout is None and not self._portal.loop._ready:  # type: ignore[attr-defined]
            self._deadlock = Deadlock(f"all threads wait, and no timer is set: {self._places()}")
            for _, turn in [self._waiting.pop(inbox) for inbox in list(self._waiting)]:
                turn.release()
                self._await_pause()
        return ran

    def _places(self) -> str:
        frames = sys._current_frames()
        places = []
        for thread, _ in self._waiting.values():
            frame = frames.get(thread.ident or 0)
            while frame is not None and frame.f_code.co_filename == __file__:
                frame = frame.f_back
            places.append(f"{thread.name} at {frame.f_code.co_filename}:{frame.f_lineno}" if frame else thread.name)
        return "; ".join(places)
