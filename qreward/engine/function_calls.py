"""Calls of scheduled functions: asynchronous callers (``AsyncCall``) and blocking callers (``BlockingCall``, ``ThreadDriver``).

The first attempt of an asynchronous call runs in the caller's own asyncio task, as an undecorated call would.

Each blocking caller waits in its own thread, without an event loop. An attempt runs in the caller's own thread if it never has to be
abandoned while it runs, and otherwise in a worker thread. There is no timer. Instead, one waiting caller, the leader, waits only until the
scheduler's next wake time, and then calls the scheduler's ``tick``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from qreward.engine.driver import Engine, runner_of
from qreward.engine.single import Single
from qreward.engine.threads import CLOCK
from qreward.errors import QueueFull
from qreward.scheduler.functions.scheduler import CallScheduler
from qreward.scheduler.functions.state import Call, CallFailure, Try
from qreward.scheduler.outcome import CANCELLED, Answer, Cancelled
from qreward.scheduler.scheduler import FINISH, SEND, Command
from qreward.scheduler.task import Task

ErrorClassifier = Callable[[Exception], CallFailure]
"""Classifies an exception of the function as a ``CallFailure``."""


class AsyncCall(Single):
    """Runs the attempts of one asynchronous call, and receives its outcome.

    Args:
        driver: the loop driver on which the call runs.
        body: starts one attempt of the function.
        judge: see :data:`ErrorClassifier`.
    """

    __slots__ = ("_body", "_judge")

    def __init__(self, driver: Any, body: Callable[[], Awaitable[Any]], judge: ErrorClassifier) -> None:
        super().__init__(driver)
        self._body = body
        self._judge = judge

    async def execute(self, attempt: Try) -> Answer | CallFailure:  # type: ignore[override]
        """Make one attempt. Only cancellation is raised, which the loop driver handles."""
        attempt.started = True
        try:
            return Answer(await self._body())
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except Exception as error:
            return self._judge(error)
        except BaseException as error:  # SystemExit or KeyboardInterrupt in the caller's own code
            return CallFailure(error, again=False)

    def finish(self, _task: Task, outcome: Any, *_: Any) -> None:
        self._result = outcome
        self._wake()


class ThreadDriver:
    """Runs the commands of blocking callers, as a ``LoopDriver`` does for an event loop."""

    def __init__(self, engine: Engine[CallScheduler]) -> None:
        self._engine = engine
        self.scheduler = engine.scheduler
        self._waiting: dict[BlockingCall, None] = {}
        self._leader: BlockingCall | None = None
        self._until: float | None = None
        engine.wake_listeners.append(self.wake_soon)

    def do(self, change: Callable[..., None], *arguments: Any) -> None:
        """Change the scheduler's state under the lock and run the resulting commands."""
        engine, scheduler = self._engine, self.scheduler
        with engine.lock:
            change(engine.clock(), *arguments)
            out, scheduler.out = scheduler.out, []
            wake = scheduler.next_wake()
            leader = self._leader
            late = wake is not None and leader is not None and (self._until is None or wake < self._until)
        self.run(out)
        if late:
            leader.wake()  # type: ignore[union-attr]
        if wake is not None and engine.drivers():
            engine.wake_loops()

    def run(self, out: list[Command]) -> None:
        for command in out:
            home = runner_of(command)
            if home is not self:
                home.post(command)
            elif command[0] == SEND:
                command[1].task.waiter.start(command[1])
            elif command[0] == FINISH:
                command[1].waiter.finish(*command[1:])

    def post(self, command: Command) -> None:
        self.run([command])

    def wake_soon(self) -> None:
        """Let the leader check the next wake time again, because the scheduler was changed elsewhere."""
        with self._engine.lock:
            leader = self._leader or next(iter(self._waiting), None)
        if leader is not None:
            leader.wake()

    def wait(self, caller: BlockingCall) -> None:
        """Wait until the caller is woken. The leader also wakes at the scheduler's next wake time, and calls the scheduler's ``tick``."""
        engine = self._engine
        with engine.lock:
            self._waiting[caller] = None
            leads = self._leader is None
            if leads:
                self._leader, self._until = caller, self.scheduler.next_wake()
            until = self._until if leads else None
        woken = False
        try:
            woken = CLOCK.wait(caller.lock, None if until is None else max(0.0, until - CLOCK.now()))
        finally:
            with engine.lock:
                del self._waiting[caller]
                if leads:
                    self._leader = None
            if woken:
                caller.woken = False
        if not woken:
            self.do(self.scheduler.tick)

    def hand_over(self) -> None:
        """Wake another waiting caller after a caller has ended its wait. The woken caller becomes the leader."""
        if not self._waiting:
            return
        with self._engine.lock:
            heir = None if self._leader is not None else next(iter(self._waiting), None)
        if heir is not None:
            heir.wake()


class BlockingCall:
    """Runs the attempts of one blocking call, and receives its outcome.

    Args:
        driver: the driver of blocking callers.
        body: makes one attempt of the function.
        judge: see :data:`ErrorClassifier`.
        inline: run attempts in the caller's own thread; if False, in worker threads.
    """

    __slots__ = ("__weakref__", "_body", "_context", "_judge", "_next", "_outcome", "driver", "lock", "woken")

    def __init__(self, driver: ThreadDriver, body: Callable[[], Any], judge: ErrorClassifier, *, inline: bool) -> None:
        self.driver = driver
        self._body = body
        self._judge = judge
        self._context = None if inline else copy_context()
        self._next: Try | None = None
        self._outcome: Answer | BaseException | None = None
        self.lock = threading.Lock()
        self.lock.acquire()
        self.woken = False

    def result(self, call: Call) -> Answer | BaseException:
        """Submit the call and wait for its result. If the caller is interrupted, the call's attempts are abandoned."""
        driver = self.driver
        try:
            driver.do(driver.scheduler.submit, call)
            while self._outcome is None:
                attempt, self._next = self._next, None
                if attempt is not None:
                    self._run_here(attempt)
                else:
                    driver.wait(self)
        finally:
            if not call.done:
                driver.do(driver.scheduler.withdraw, [call])
            if self._next is not None:
                self._ended(self._next, CANCELLED)
            driver.hand_over()
        return self._outcome

    def start(self, attempt: Try) -> None:
        if self._context is None:
            self._next = attempt
            self.wake()
            if attempt.cancel_reason is not None:  # the caller may have left before another thread started the attempt
                self._ended(attempt, CANCELLED)
        elif not CLOCK.run(partial(self._run_in_worker, self._context.copy(), attempt)):
            if len(attempt.task.tried) > 1:  # type: ignore[attr-defined]  # a further attempt without a thread does not fail the call
                self._ended(attempt, CANCELLED)
                return
            error = QueueFull(
                "all worker threads are busy, perhaps with calls that hang; set max_concurrency, or a time limit inside the function"
            )
            self._ended(attempt, CallFailure(error, again=False))

    def finish(self, _task: Task, outcome: Any, *_: Any) -> None:
        self._outcome = outcome
        self.wake()

    def wake(self) -> None:
        if not self.woken:
            self.woken = True
            with suppress(RuntimeError):  # another thread released the lock at the same moment
                CLOCK.wake(self.lock)

    def _run_in_worker(self, context: Context, attempt: Try) -> Callable[[], None]:
        """Make one attempt in a worker thread.

        Returns the function that reports the outcome. The worker calls this function when the worker is idle again, because the report may
        start the next attempt.
        """
        try:
            outcome = context.run(self._run, attempt)
        except BaseException as error:  # for example SystemExit: must end the call, not the worker
            outcome = CallFailure(error, again=False)
        return partial(self._ended, attempt, outcome)

    def _run_here(self, attempt: Try) -> None:
        try:
            self.driver.hand_over()  # this caller may have been the leader, and the function may take long
            outcome = self._run(attempt)
        except BaseException:  # KeyboardInterrupt or SystemExit
            self._ended(attempt, CANCELLED)
            raise
        self._ended(attempt, outcome)

    def _run(self, attempt: Try) -> Answer | CallFailure | Cancelled:
        attempt.started = True
        if attempt.cancel_reason is not None:
            return CANCELLED
        try:
            return Answer(self._body())
        except Exception as error:
            return self._judge(error)

    def _ended(self, attempt: Try, outcome: Answer | CallFailure | Cancelled) -> None:
        self.driver.do(self.driver.scheduler.event, attempt, outcome)
