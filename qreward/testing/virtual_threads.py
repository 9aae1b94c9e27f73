"""Virtual time for code that blocks: real threads, one at a time, and a clock that jumps when all of them wait.

The threads hand on one turn. Who waits, sleeps or ends gives it away: to the next who is ready, in the order in which they became
so; when nobody is, the clock jumps to the earliest time that somebody waits for, and of those who wait for the same, to the one
who began first. The turn changes nowhere else, so each run is like the other. A thread that blocks on anything else
(``time.sleep``, a socket, a lock whose owner waits here) keeps the turn, and everybody waits for it. Knows nothing of the engine.
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

from qreward.engine.threads import MOST, Job
from qreward.functions.clock import on
from qreward.testing.virtual_time import Deadlock

T = TypeVar("T")

STANDSTILL = 1_000_000
"""Turns at one time after which threads are taken to ask again and again for what does not happen."""
LINGERING = 100_000
"""Turns that threads may still take when the test is over."""
PATIENCE = 60.0
"""Real seconds for which a thread may keep the turn."""


class _Standstill(RuntimeError):
    """Threads go on for ever."""


class _Left(BaseException):
    """Raised where a thread waits that is left behind, so that it ends."""


class _Actor:
    """A thread that takes part, and what it waits for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ident: int | None = None
        self.gate = threading.Lock()  # open when it is its turn
        self.gate.acquire()
        self.ready = False
        self.woken = False  # or else its time has come
        self.waits = 0  # so that a timer knows whether it is still waited for


class _Stage:
    """Whose turn it is, and what time. Used by the thread whose turn it is, and by no other."""

    def __init__(self, patience: float) -> None:
        self.now = 0.0
        self.main = self.current = _Actor("main")
        self.main.ident = threading.get_ident()
        self.actors: dict[_Actor, threading.Thread] = {}  # all others, until they end
        self.errors: list[BaseException] = []  # to be raised in the main thread
        self.unseen: dict[object, BaseException] = {}  # of spawned threads that nobody has joined
        self.closing = False
        self.last_turn = math.inf
        self._patience = patience
        self._ready: deque[_Actor] = deque()
        self._timers: list[tuple[float, int, _Actor, int]] = []
        self._waiting: dict[threading.Lock, dict[_Actor, None]] = {}
        self._order = itertools.count()
        self._turns = self._turns_before_step = 0

    def me(self) -> _Actor:
        """The thread whose turn it is; raises if another one calls."""
        if self.current.ident != threading.get_ident():
            name = threading.current_thread().name
            raise AssertionError(f"thread {name!r} does not take part in this virtual time; begin it with spawn() or run()")
        return self.current

    def due(self, seconds: float | None) -> float:
        """When so many seconds will have passed: later than now if they are any at all, for a clock that stands still ends no wait."""
        if seconds is None or seconds <= 0:
            return math.inf if seconds is None else self.now
        return max(self.now + seconds, math.nextafter(self.now, math.inf))

    def begin(self, name: str, job: Callable[[], object]) -> None:
        """A further thread, ready from now on."""
        if self.closing:
            raise RuntimeError("this virtual time is over; make a new VirtualThreads")
        actor = _Actor(name)
        thread = threading.Thread(target=self._live, args=[actor, job], name=name, daemon=True)
        thread.start()
        self.actors[actor] = thread
        self._make_ready(actor)

    def pause(self, due: float, lock: threading.Lock | None = None) -> bool:
        """Give the turn away until then, or until the lock is woken; True if it was."""
        me = self.me()
        if self.closing and me is not self.main:
            raise _Left
        me.waits += 1
        if due < math.inf:
            heapq.heappush(self._timers, (due, next(self._order), me, me.waits))
        if lock is not None:
            self._waiting.setdefault(lock, {})[me] = None
        self._hand_on(me)
        me.waits += 1
        if lock is not None and (queue := self._waiting.get(lock)) is not None:
            queue.pop(me, None)
            if not queue:
                del self._waiting[lock]
        if me is self.main and self.errors:
            raise self.errors.pop(0)
        if self.closing and me is not self.main:
            raise _Left
        return me.woken

    def wake(self, lock: threading.Lock) -> None:
        """Whoever has waited longest for the lock is ready."""
        if queue := self._waiting.get(lock):
            first = next(iter(queue))
            del queue[first]
            self._make_ready(first)

    def linger(self) -> None:
        """In the main thread: until all others have ended."""
        self.last_turn = self._turns + LINGERING
        try:
            while self.actors:
                self.pause(math.inf)
        finally:
            self.last_turn = math.inf

    def close(self) -> None:
        """End the threads that are left, each where it waits."""
        self.closing = True
        if self.current is not self.main:  # it was interrupted, or another one keeps the turn
            return
        left = dict(self.actors)
        for actor in left:
            self._make_ready(actor)
        while self.actors:
            self._hand_on(self.main)
        for thread in left.values():
            thread.join()

    def _live(self, actor: _Actor, job: Callable[[], object]) -> None:
        """A thread's life."""
        actor.ident = threading.get_ident()
        actor.gate.acquire()
        try:
            if not self.closing:
                job()
        except _Left:
            pass
        except BaseException as error:
            self.errors.append(error)
            self._make_ready(self.main)
        del self.actors[actor]
        if not self.actors and (self.closing or self.last_turn < math.inf):
            self._make_ready(self.main)  # which waits for that
        self.current = self._next()
        self.current.gate.release()

    def _hand_on(self, me: _Actor) -> None:
        self.current = self._next()
        if self.current is not me:
            self.current.gate.release()
            self._await_turn(me)

    def _await_turn(self, me: _Actor) -> None:
        turns = -1
        while not me.gate.acquire(timeout=self._patience if me is self.main else -1):
            if turns == self._turns:
                place = _place(sys._current_frames().get(self.current.ident or 0))
                raise RuntimeError(
                    f"thread {self.current.name!r} has kept the turn for {self._patience:g} seconds of real time{place}; "
                    "what blocks there must sleep or wait in virtual time"
                )
            turns = self._turns

    def _next(self) -> _Actor:
        """Whose turn it is now; moves the clock if nobody is ready."""
        self._turns += 1
        if self._turns > self.last_turn or self._turns - self._turns_before_step > STANDSTILL:
            self.last_turn, self._turns_before_step = math.inf, self._turns
            self.errors.append(_Standstill(f"threads go on for ever, at {self.now:g} seconds; {self._who_waits()}"))
            self._make_ready(self.main)
        if self._ready:
            actor = self._ready.popleft()
            actor.ready, actor.woken = False, True
            return actor
        while self._timers:
            due, _, actor, waits = heapq.heappop(self._timers)
            if waits == actor.waits:
                if due > self.now:
                    self.now, self._turns_before_step = due, self._turns
                actor.woken = False
                return actor
        deadlock = Deadlock(f"deadlock: nobody is ready and no time is waited for; {self._who_waits()}")
        deadlock.__cause__ = next(iter(self.unseen.values()), None)
        self.errors.append(deadlock)
        return self.main

    def _who_waits(self) -> str:
        frames = sys._current_frames()
        places = [f"{actor.name}{_place(frames.get(actor.ident or 0))}" for actor in (self.main, *self.actors)]
        return f"{len(places)} threads wait: {'; '.join(places[:10])}"

    def _make_ready(self, actor: _Actor) -> None:
        if not actor.ready:
            actor.ready = True
            self._ready.append(actor)


def _place(frame: FrameType | None) -> str:
    """Where a thread stands, outside this file."""
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f" at {frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_qualname})" if frame is not None else ""


class VirtualThread(Generic[T]):
    """A thread of the test's own; :meth:`VirtualThreads.spawn` makes it."""

    def __init__(self, threads: VirtualThreads, unseen: dict[object, BaseException], function: Callable[[], T]) -> None:
        self._threads, self._unseen, self._function = threads, unseen, function
        self._over = threading.Lock()
        self._over.acquire()
        self._value: Any = None
        self._error: BaseException | None = None

    def join(self) -> T:
        """Wait in virtual time until it ends; what its function returned. Raises what that raised."""
        self._threads.wait(self._over, None)
        self._threads.wake(self._over)  # somebody else may join it too
        self._unseen.pop(self, None)
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def work(self) -> None:
        """In the thread."""
        try:
            self._value = self._function()
        except _Left:
            raise
        except BaseException as error:
            self._error = self._unseen[self] = error
        self._threads.wake(self._over)


class VirtualThreads:
    """Virtual time for blocking code: what ``qreward.engine.threads.RealTime`` is in earnest.

    The thread that makes it takes part in it. In its ``with`` block decorated functions go by it, and at its end it sees that
    nothing is left behind.

    Args:
        most: jobs at once; beyond them :meth:`run` says no.
        patience: real seconds for which a thread may keep the turn.

    Raises:
        Deadlock: in the thread that made it, where that waits: nobody is ready, nobody waits for a time. It names who waits where.
        RuntimeError: there too: threads go on for ever at one time, or one of them keeps the turn.

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
        self._stage = _Stage(patience)
        self._numbers = itertools.count(1)
        self._busy = 0
        self._in_use = on(self)

    # what code under test needs

    def now(self) -> float:
        """Seconds since it was made."""
        return self._stage.now

    def wait(self, lock: threading.Lock, timeout: float | None) -> bool:
        """Acquire a lock that another thread will :meth:`wake`, within so many seconds, or ever; False if that did not happen."""
        stage = self._stage
        stage.me()
        due = stage.due(timeout)
        while not lock.acquire(blocking=False):
            if not stage.pause(due, lock):
                return lock.acquire(blocking=False)
        return True

    def wake(self, lock: threading.Lock) -> None:
        """Release a lock. Whoever has waited for it longest has its turn when this thread waits."""
        self._stage.me()
        lock.release()
        self._stage.wake(lock)

    def run(self, job: Job) -> bool:
        """Begin a job in another thread, when this one waits; False if ``most`` are under way.

        What it raises, against its promise, is raised in the thread that made this, where that waits.
        """
        self._stage.me()
        if self._busy >= self.most or self._stage.closing:
            return False
        self._busy += 1
        self._stage.begin(f"worker-{next(self._numbers)}", partial(self._carry_out, job))
        return True

    # what tests and the functions in them need

    def sleep(self, seconds: float) -> None:
        """As ``time.sleep``; others who are ready have their turn even if it is 0."""
        self._stage.pause(self._stage.due(seconds))

    def spawn(self, function: Callable[[], T], name: str | None = None) -> VirtualThread[T]:
        """Begin a thread of the test's own, such as a second caller, when this one waits; what it raises, its ``join()`` raises."""
        self._stage.me()
        thread = VirtualThread(self, self._stage.unseen, function)
        self._stage.begin(name or f"thread-{next(self._numbers)}", thread.work)
        return thread

    def check_nothing_left(self) -> None:
        """Let what is under way go on to its end, in virtual time, and see that it ends. Called by the thread that made this.

        Raises:
            AssertionError: threads wait for ever, or go on for ever. They are ended.
            BaseException: what a spawned thread raised that nobody joined.
        """
        wrong: list[BaseException] = []
        try:
            self._stage.linger()
        except (Deadlock, _Standstill) as left:
            wrong.append(AssertionError(f"threads are left behind: {left}"))
            self.close()
        for error in (*self._stage.unseen.values(), *wrong):
            raise error

    def close(self) -> None:
        """End the threads that are left, each where it waits. Nothing more can be begun."""
        self._stage.close()

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

    def _carry_out(self, job: Job) -> None:
        try:
            report = job()
        finally:
            self._busy -= 1
        if report is not None:
            report()


def run_in_virtual_threads(function: Callable[[VirtualThreads], T]) -> T:
    """Run a function in virtual time, and see that it leaves no thread behind.

    Args:
        function: is given the threads. What it calls sleeps by ``threads.sleep``; functions under ``@schedule`` go by this time.

    Raises:
        Deadlock: all threads wait for what cannot happen.
        AssertionError: it returned, but a thread never ends. Those that take their time, such as the loser of a hedge, may.

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
