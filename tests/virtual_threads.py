"""Virtual time for blocking code: real threads that run one at a time, and a clock that jumps forward when all of them wait.

Only one thread runs at a time. When this thread waits, sleeps or ends, the next ready thread runs, in the order in which the threads became
ready. If no thread is ready, the clock jumps to the earliest deadline, and the thread with this deadline runs. Among equal deadlines, the
thread that began to wait first runs. Threads switch nowhere else, so every run has the same order of events. A thread that blocks on
anything else (``time.sleep``, a socket, or a lock whose owner waits in virtual time) blocks all threads. This module does not depend on the
scheduler or the transport.
"""

from __future__ import annotations

import heapq
import itertools
import math
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Generic, Self, TypeVar, cast

from qreward.engine.threads import MOST, Job, replaced_time
from qreward.testing import Deadlock

T = TypeVar("T")

STANDSTILL = 1_000_000
"""Maximum number of thread switches during which the clock does not advance. After more switches, the test fails, because the threads seem
to run forever."""
LINGERING = 100_000
"""Maximum number of thread switches that the remaining threads may take after the end of the test."""
PATIENCE = 60.0
"""Maximum number of real seconds that a thread may run without waiting in virtual time."""


class _Standstill(RuntimeError):
    """The threads run forever."""


class _Left(BaseException):
    """Ends a leftover thread. The exception is raised at the place where the thread waits."""


class _Actor:
    """Holds a thread that takes part in the virtual time, and the state of this thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ident: int | None = None
        self.turn = threading.Lock()  # released to let the thread run
        self.turn.acquire()
        self.ready = False
        self.woken = False  # False if the last wait of the thread timed out
        self.waits = 0  # number of the present wait, by which a timer of an earlier wait is recognised and ignored


class VirtualThread(Generic[T]):
    """Represents a thread that the test started with :meth:`VirtualThreads.spawn`."""

    def __init__(self, threads: VirtualThreads, unjoined: dict[object, BaseException], function: Callable[[], T]) -> None:
        self._threads, self._unjoined, self._function = threads, unjoined, function
        self._over = threading.Lock()
        self._over.acquire()
        self._value: Any = None
        self._error: BaseException | None = None

    def join(self) -> T:
        """Wait in virtual time until the thread ends. Return the result of the thread's function, or raise the exception that ended it."""
        self._threads.wait(self._over, None)
        self._threads.wake(self._over)  # for other callers of join()
        self._unjoined.pop(self, None)
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def work(self) -> None:
        """Run the function. This method is called in the thread itself."""
        try:
            self._value = self._function()
        except _Left:
            raise
        except BaseException as error:
            self._error = self._unjoined[self] = error
        self._threads.wake(self._over)


class VirtualThreads:
    """Runs blocking code in virtual time. This class takes the place of ``qreward.engine.threads.RealTime``.

    The thread that creates this object is one of its threads. In the ``with`` block of this object, functions decorated with ``@schedule``
    use the clock of this object. The end of the block checks that no thread is left.

    Args:
        most: maximum number of concurrent jobs of :meth:`run`.
        patience: real seconds that a thread may run without waiting in virtual time.

    Raises:
        Deadlock: no thread is ready, and no thread waits with a timeout. The message names the threads and the places where they wait.
        RuntimeError: the threads run forever while the clock stands still, or one thread runs or blocks for longer than ``patience``. Both
            errors are raised in the thread that created this object, at the place where it waits.

    Example:
        >>> with VirtualThreads() as threads:
        ...     answered = threading.Lock()
        ...     _ = answered.acquire()
        ...     def ask():
        ...         threads.sleep(10)
        ...         threads.wake(answered)
        ...     _ = threads.run(ask)
        ...     print(threads.wait(answered, 0.5), threads.now())
        ...     print(threads.wait(answered, None), threads.now())
        False 0.5
        True 10.0
    """

    def __init__(self, *, most: int = MOST, patience: float = PATIENCE) -> None:
        self.most = most
        self._patience = patience
        self._time = 0.0
        self._main = self._current = _Actor("main")
        self._main.ident = threading.get_ident()
        self._actors: dict[_Actor, threading.Thread] = {}  # all threads except the main thread, until they end
        self._errors: list[BaseException] = []  # to be raised in the main thread
        self._unjoined: dict[object, BaseException] = {}  # errors of spawned threads
        self._closing = False
        self._ready: deque[_Actor] = deque()
        self._timers: list[tuple[float, int, _Actor, int]] = []
        self._waiting: dict[threading.Lock, dict[_Actor, None]] = {}
        self._order = itertools.count()
        self._numbers = itertools.count(1)
        self._busy = 0
        self._turns = self._turns_before_step = 0
        self._last_turn = math.inf
        self._in_use = replaced_time(self)

    # methods of RealTime, for the code under test

    def now(self) -> float:
        """Return the virtual seconds since the creation of this object."""
        return self._time

    def wait(self, lock: threading.Lock, timeout: float | None) -> bool:
        """Acquire a lock that another thread releases with :meth:`wake`.

        Args:
            lock: the lock to acquire.
            timeout: maximum number of virtual seconds to wait; None waits without limit.

        Returns:
            True if the lock was acquired, False on timeout.
        """
        self._me()
        due = self._due(timeout)
        while not lock.acquire(blocking=False):
            if not self._pause(due, lock):
                return lock.acquire(blocking=False)
        return True

    def wake(self, lock: threading.Lock) -> None:
        """Release a lock.

        The thread that has waited longest for this lock becomes ready. It runs after the calling thread begins to wait.
        """
        self._me()
        lock.release()
        if queue := self._waiting.get(lock):
            first = next(iter(queue))
            del queue[first]
            self._make_ready(first)

    def run(self, job: Job) -> bool:
        """Start a job in another thread. The thread runs after the calling thread begins to wait.

        A job must not raise. If a job raises, the exception is raised in the thread that created this object, at the place where it waits.

        Returns:
            True if the job was started. False if ``most`` jobs are running or this object is closed.
        """
        self._me()
        if self._busy >= self.most or self._closing:
            return False
        self._busy += 1
        self._begin(f"worker-{next(self._numbers)}", partial(self._carry_out, job))
        return True

    # for tests and their functions

    def sleep(self, seconds: float) -> None:
        """Sleep for virtual seconds, like ``time.sleep``. Other ready threads run first, even if ``seconds`` is 0."""
        self._pause(self._due(seconds))

    def spawn(self, function: Callable[[], T], name: str | None = None) -> VirtualThread[T]:
        """Start a thread of the test, such as a second caller. The thread runs after the calling thread begins to wait.

        An exception of the function is raised by :meth:`VirtualThread.join`.
        """
        self._me()
        thread = VirtualThread(self, self._unjoined, function)
        self._begin(name or f"thread-{next(self._numbers)}", thread.work)
        return thread

    def check_nothing_left(self) -> None:
        """Let the remaining threads run to their end in virtual time. Only the thread that created this object may call this method.

        Raises:
            AssertionError: threads waited forever or ran forever. These threads have been ended.
            BaseException: a spawned thread that was not joined raised this exception.
        """
        wrong: list[BaseException] = []
        self._last_turn = self._turns + LINGERING
        try:
            while self._actors:
                self._pause(math.inf)
        except (Deadlock, _Standstill) as left:
            wrong.append(AssertionError(f"threads are left behind: {left}"))
        finally:
            self._last_turn = math.inf
        if wrong:
            self.close()
        for error in (*self._unjoined.values(), *wrong):
            raise error

    def close(self) -> None:
        """End the remaining threads, each at the place where it waits. Afterwards, no thread can be started."""
        self._closing = True
        if self._current is not self._main:  # the main thread was interrupted, or another thread blocks
            return
        left = dict(self._actors)
        for actor in left:
            self._make_ready(actor)
        while self._actors:
            self._hand_over(self._main)
        for thread in left.values():
            thread.join()

    def __enter__(self) -> Self:
        self._in_use.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.check_nothing_left()
        finally:
            self.close()
            self._in_use.__exit__(None, None, None)

    # Threads and turns. Only the running thread may use the methods below.

    def _carry_out(self, job: Job) -> None:
        try:
            report = job()
        finally:
            self._busy -= 1
        if report is not None:
            report()

    def _begin(self, name: str, job: Callable[[], object]) -> None:
        """Start another thread and make it ready to run."""
        if self._closing:
            raise RuntimeError("this virtual time is over; make a new VirtualThreads")
        actor = _Actor(name)
        thread = threading.Thread(target=self._live, args=[actor, job], name=name, daemon=True)
        thread.start()
        self._actors[actor] = thread
        self._make_ready(actor)

    def _live(self, actor: _Actor, job: Callable[[], object]) -> None:
        """Run a job in a new thread, and let the next thread run when the job ends."""
        actor.ident = threading.get_ident()
        actor.turn.acquire()
        try:
            if not self._closing:
                job()
        except _Left:
            pass
        except BaseException as error:
            self._errors.append(error)
            self._make_ready(self._main)
        del self._actors[actor]
        if not self._actors and (self._closing or self._last_turn < math.inf):
            self._make_ready(self._main)  # the main thread waits for the end of the last thread
        self._current = self._next()
        self._current.turn.release()

    def _me(self) -> _Actor:
        """Return the running thread. Raises ``AssertionError`` if the caller does not take part in this virtual time."""
        if self._current.ident != threading.get_ident():
            name = threading.current_thread().name
            raise AssertionError(f"thread {name!r} does not take part in this virtual time; begin it with spawn() or run()")
        return self._current

    def _due(self, seconds: float | None) -> float:
        """Return the time that lies this many seconds after now; infinite for None.

        A positive delay gives a time after now, even if the delay is lost when the floats are added.
        """
        if seconds is None or seconds <= 0:
            return math.inf if seconds is None else self._time
        return max(self._time + seconds, math.nextafter(self._time, math.inf))

    def _pause(self, due: float, lock: threading.Lock | None = None) -> bool:
        """Let other threads run until the time ``due``, or until ``wake(lock)``. Return True if the thread was woken, False on timeout."""
        me = self._me()
        if self._closing and me is not self._main:
            raise _Left
        me.waits += 1
        if due < math.inf:
            heapq.heappush(self._timers, (due, next(self._order), me, me.waits))
        if lock is not None:
            self._waiting.setdefault(lock, {})[me] = None
        self._hand_over(me)
        me.waits += 1
        if lock is not None and (queue := self._waiting.get(lock)) is not None:
            queue.pop(me, None)
            if not queue:
                del self._waiting[lock]
        if me is self._main and self._errors:
            raise self._errors.pop(0)
        if self._closing and me is not self._main:
            raise _Left
        return me.woken

    def _hand_over(self, me: _Actor) -> None:
        """Let the next thread run, and wait until this thread has its next turn."""
        self._current = self._next()
        if self._current is me:
            return
        self._current.turn.release()
        turns = -1
        while not me.turn.acquire(timeout=self._patience if me is self._main else -1):
            if turns == self._turns:
                place = _place(sys._current_frames().get(self._current.ident or 0))
                raise RuntimeError(
                    f"thread {self._current.name!r} has run for {self._patience:g} seconds of real time without waiting{place}; "
                    "blocking code must sleep or wait in virtual time"
                )
            turns = self._turns

    def _next(self) -> _Actor:
        """Return the thread that runs next. If no thread is ready, advance the clock."""
        self._turns += 1
        if self._turns > self._last_turn or self._turns - self._turns_before_step > STANDSTILL:
            self._last_turn, self._turns_before_step = math.inf, self._turns
            self._errors.append(_Standstill(f"threads run forever, at {self._time:g} seconds; {self._places()}"))
            self._make_ready(self._main)
        if self._ready:
            actor = self._ready.popleft()
            actor.ready, actor.woken = False, True
            return actor
        while self._timers:
            due, _, actor, waits = heapq.heappop(self._timers)
            if waits == actor.waits:
                if due > self._time:
                    self._time, self._turns_before_step = due, self._turns
                actor.woken = False
                return actor
        deadlock = Deadlock(f"deadlock: no thread is ready and none waits for a time; {self._places()}")
        deadlock.__cause__ = next(iter(self._unjoined.values()), None)
        self._errors.append(deadlock)
        return self._main

    def _make_ready(self, actor: _Actor) -> None:
        if not actor.ready:
            actor.ready = True
            self._ready.append(actor)

    def _places(self) -> str:
        frames = sys._current_frames()
        places = [f"{actor.name}{_place(frames.get(actor.ident or 0))}" for actor in (self._main, *self._actors)]
        return f"{len(places)} threads wait: {'; '.join(places[:10])}"


def _place(frame: FrameType | None) -> str:
    """Return the innermost position of a thread outside this file, as text for a message."""
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f" at {frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_qualname})" if frame is not None else ""


def run_in_virtual_threads(function: Callable[[VirtualThreads], T]) -> T:
    """Run a blocking function in virtual time, and check that it leaves no thread behind.

    Args:
        function: called with the :class:`VirtualThreads`. The code under test must sleep with ``threads.sleep``. Functions decorated
            with ``@schedule`` use this clock.

    Returns:
        The result of the function.

    Raises:
        Deadlock: all threads wait for events that cannot happen.
        AssertionError: the function returned, but a thread never ends. A thread that ends later is allowed, such as the slower attempt of
            a hedge.

    Example:
        >>> def patient(threads):
        ...     sleepers = [threads.spawn(lambda: threads.sleep(60)), threads.spawn(lambda: threads.sleep(3600))]
        ...     for sleeper in sleepers:
        ...         sleeper.join()
        ...     return threads.now()
        >>> run_in_virtual_threads(patient)
        3600.0
    """
    with VirtualThreads() as threads:
        return function(threads)
