"""A caller that awaits an async function: its first try runs in the caller's own task, as an undecorated call would.

Callers that block: each waits in its own thread, without any event loop.

A try runs in the caller's own thread if nothing may have to be given up while it runs, else in a worker thread. There is no timer:
of those who wait, one (the leader) waits no longer than until something is due, and does it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from qreward.engine.driver import Engine, home_of
from qreward.engine.single import Single
from qreward.engine.threads import BlockingTime
from qreward.errors import QueueFull
from qreward.scheduler.functions.call import Call, CallFailure
from qreward.scheduler.functions.scheduler import CallScheduler
from qreward.scheduler.outcome import CANCELLED, Answer, Cancelled
from qreward.scheduler.request import Attempt, BatchFeed, Task
from qreward.scheduler.scheduler import FINISH, SEND, Command

ErrorClassifier = Callable[[Exception], CallFailure]
"""Says what an exception of the function means."""


class AsyncCall(Single):
    """The sink of one call.

    Args:
        body: begins a try of the function.
        judge: see :data:`ErrorClassifier`.
        tell: is shown the call when something was decided.
    """

    __slots__ = ("_body", "_judge", "_tell", "outcome")

    def __init__(
        self, shell: Any, body: Callable[[], Awaitable[Any]], judge: ErrorClassifier, tell: Callable[[Call], None] | None = None
    ) -> None:
        super().__init__(shell)
        self._body = body
        self._judge = judge
        self._tell = tell

    async def carry(self, _attempt: Attempt) -> Answer | CallFailure:  # type: ignore[override]
        """Try once. Only cancellation gets out, which is for the shell to sort out."""
        try:
            return Answer(await self._body())
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except Exception as error:
            return self._judge(error)
        except BaseException as error:  # an exit or an interrupt in the caller's own code
            return CallFailure(error, again=False)

    def start(self, attempt: Attempt) -> None:
        super().start(attempt)
        if self._tell is not None:
            self._tell(attempt.task)  # type: ignore[arg-type]

    def finish(self, task: Task, outcome: Any, *_: Any) -> None:
        self._result = outcome
        self._wake()
        if self._tell is not None:
            self._tell(task)  # type: ignore[arg-type]


class ThreadDriver:
    """Where blocking callers stand: what a shell is to a loop."""

    def __init__(self, engine: Engine[CallScheduler], time: BlockingTime) -> None:
        self.time = time
        self._engine = engine
        self.scheduler = engine.scheduler
        self._waiting: dict[BlockingCall, None] = {}
        self._leader: BlockingCall | None = None
        self._until: float | None = None
        engine.neighbours.append(self)

    def do(self, change: Callable[..., None], *arguments: Any) -> None:
        """Change the scheduler's state under the lock, and do what follows."""
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
        if wake is not None and engine.shells():
            engine.wake_loops()

    def run(self, out: list[Command]) -> None:
        """Run commands."""
        for command in out:
            home = home_of(command)
            if home is not self:
                home.post(command)
            elif command[0] == SEND:
                command[1].task.sink.start(command[1])
            elif command[0] == FINISH:
                command[1].sink.finish(*command[1:])

    def post(self, command: Command) -> None:
        """Run a command, from any thread."""
        self.run([command])

    def wake_soon(self) -> None:
        """The scheduler was changed from elsewhere: look at the time again."""
        with self._engine.lock:
            leader = self._leader or next(iter(self._waiting), None)
        if leader is not None:
            leader.wake()

    def wait(self, caller: BlockingCall) -> None:
        """Wait until the caller is woken or, if it leads, something is due, which is then done."""
        engine = self._engine
        with engine.lock:
            self._waiting[caller] = None
            leads = self._leader is None
            if leads:
                self._leader, self._until = caller, self.scheduler.next_wake()
            until = self._until if leads else None
        woken = False
        try:
            woken = self.time.wait(caller.lock, None if until is None else max(0.0, until - self.time.now()))
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
        """A caller waits no more: somebody else must lead."""
        if not self._waiting:
            return
        with self._engine.lock:
            heir = None if self._leader is not None else next(iter(self._waiting), None)
        if heir is not None:
            heir.wake()


class BlockingCall:
    """The sink of one call.

    Args:
        body: tries the function once.
        inline: tries may run in the caller's own thread.
    """

    carry = None
    __slots__ = ("__weakref__", "_body", "_context", "_inline", "_judge", "_mine", "_outcome", "_tell", "lock", "shell", "woken")

    def __init__(
        self,
        desk: ThreadDriver,
        body: Callable[[], Any],
        judge: ErrorClassifier,
        *,
        inline: bool,
        tell: Callable[[Call], None] | None = None,
    ) -> None:
        self.shell = desk
        self._body = body
        self._judge = judge
        self._inline = inline
        self._tell = tell
        self._context = None if inline else copy_context()
        self._mine: Attempt | None = None
        self._outcome: Answer | BaseException | None = None
        self.lock = threading.Lock()
        self.lock.acquire()
        self.woken = False

    def result(self, call: Call) -> Answer | BaseException:
        """Submit the call and see it through. If the caller is interrupted, what is under way is given up."""
        desk = self.shell
        try:
            desk.do(desk.scheduler.submit, call)
            while self._outcome is None:
                attempt, self._mine = self._mine, None
                if attempt is not None:
                    self._try(attempt)
                else:
                    desk.wait(self)
        except BaseException:
            if not call.done:
                desk.do(desk.scheduler.withdraw, [call])
            if self._mine is not None:
                self._ended(self._mine, CANCELLED)
            raise
        finally:
            desk.hand_over()
        return self._outcome

    def start(self, attempt: Attempt) -> None:
        if self._tell is not None:
            self._tell(attempt.task)  # type: ignore[arg-type]
        if self._context is None:
            self._mine = attempt
            self.wake()
        elif not self.shell.time.run(partial(self._in_worker, self._context.copy(), attempt)):
            if len(attempt.task.tried) > 1:  # type: ignore[attr-defined]  # a second try that cannot be made ends nothing
                self._ended(attempt, CANCELLED)
                return
            error = QueueFull(
                "all worker threads are busy, perhaps with calls that hang; set max_concurrency, or a time limit inside the function"
            )
            self._ended(attempt, CallFailure(error, again=False))

    def finish(self, task: Task, outcome: Any, *_: Any) -> None:
        self._outcome = outcome
        self.wake()
        if self._tell is not None:
            self._tell(task)  # type: ignore[arg-type]

    def wake(self) -> None:
        """Let the caller look at what has changed."""
        if not self.woken:
            self.woken = True
            with suppress(RuntimeError):  # another thread has done it in this very moment
                self.shell.time.wake(self.lock)

    def _in_worker(self, context: Context, attempt: Attempt) -> Callable[[], None]:
        """Returns the report, which is made when the worker is free again: it may lead to the next try."""
        try:
            outcome = context.run(self._run, attempt)
        except BaseException as error:  # an exit: the caller's, not the worker's
            outcome = CallFailure(error, again=False)
        return partial(self._ended, attempt, outcome)

    def _try(self, attempt: Attempt) -> None:
        """In the caller's own thread."""
        try:
            outcome = self._run(attempt)
        except BaseException:  # an interrupt, or an exit
            self._ended(attempt, CANCELLED)
            raise
        self._ended(attempt, outcome)

    def _run(self, attempt: Attempt) -> Answer | CallFailure | Cancelled:
        if attempt.why is not None:
            return CANCELLED
        try:
            return Answer(self._body())
        except Exception as error:
            return self._judge(error)

    def _ended(self, attempt: Attempt, outcome: Answer | CallFailure | Cancelled) -> None:
        self.shell.do(self.shell.scheduler.event, attempt, outcome)

    def read(self, feed: BatchFeed) -> bool:
        raise AssertionError(f"a call has no feed: {feed}")

    def close(self) -> None:
        """Its pool ends with its process, and has no other end."""

    def abandon(self) -> list[Task]:
        return []
