"""``Engine``, one for each client; ``LoopDriver``, one for each event loop that uses the client; ``Single``, the waiter of a single call.

The state of the scheduler is accessed only under the engine's lock, and never while the caller's code runs. See ``docs/design/engine.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from weakref import ref

from qreward.engine.background import report_error, run_in_background
from qreward.engine.instrumentation import EVERY, LOG, UNWANTED, Instrumentation, StallWatch, Watcher, within
from qreward.errors import ClientClosed, InvalidResponse, QRewardError
from qreward.results import Result, with_trail
from qreward.scheduler.outcome import CANCELLED, Answer, Failure, FailureKind, Outcome
from qreward.scheduler.scheduler import CANCEL, FINISH, MORE, SEND, Command, Scheduler
from qreward.scheduler.source import Source
from qreward.scheduler.task import Attempt, BatchFeed, Task, TaskState

if TYPE_CHECKING:
    from qreward.scheduler.functions import CallScheduler

TURNS = 64
"""Number of attempts that one asyncio task makes before it yields to the event loop."""


class Backend(Protocol):
    """Sends requests. Each event loop has a backend of its own.

    A backend may also have ``stream(endpoint, call)`` (see ``streams``), ``withheld(endpoint, call)``, which returns a failure if
    another endpoint should be sent the stream, ``look(endpoint)`` to probe an endpoint (see ``probing``), and ``keep(endpoints)``, which
    closes the connections to all other endpoints. ``keep`` is called in the event loop.
    """

    async def send(self, endpoint: Any, call: Any) -> Answer | Failure:
        """Make one attempt. Raises only ``CancelledError``, after the connection is closed."""

    async def aclose(self) -> None: ...


class Waiter:
    """Receives the outcomes of tasks, for a single call, a batch or a stream. A task refers to its waiter as ``task.waiter``.

    Attributes:
        driver: the loop driver that runs the waiter's attempts.
        context: the context variables of the waiter's caller.
        execute: executes one attempt, or None to use ``Backend.send``. Raises only ``CancelledError``.
    """

    __slots__ = ()
    driver: LoopDriver
    context: Context
    execute: Callable[[Attempt], Awaitable[Outcome]] | None = None

    def start(self, attempt: Attempt) -> None:
        """Carry out an attempt. By default, this and the next attempts of the waiter run in a new asyncio task."""
        self.driver.spawn(attempt, self)

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        raise NotImplementedError

    def read(self, feed: BatchFeed) -> bool:
        """Read more input into the feed, for a ``MORE`` command. Returns False if the waiter reads later and then calls
        ``LoopDriver.refill``."""
        raise AssertionError(f"a {type(self).__name__} has no feed: {feed}")

    def close(self) -> None:
        """End unfinished tasks with ``ClientClosed``, because the client is closed."""
        for task in self.abandon():
            error = ClientClosed("the client was closed before the request was done")
            self.driver.withdraw([task], error)
            self.finish(task, error, None, 0.0)

    def abandon(self) -> list[Task]:
        """Return the unfinished tasks without notifying their caller. Called when the event loop was closed."""
        raise NotImplementedError


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        advice = "Without one, use SyncQRewardClient; in trio, in a thread (trio.to_thread.run_sync)"
        raise RuntimeError(f"qreward needs an event loop of asyncio, and none is running here. {advice}") from None


S = TypeVar("S", bound="Scheduler | CallScheduler")


class Engine(Generic[S]):
    """Holds a scheduler, its lock, and the loop drivers of the event loops that use the scheduler.

    After each call of a method of the scheduler, the engine takes the resulting commands from ``out`` and the changes of health from
    ``health_changes``.

    Args:
        scheduler: makes all decisions.
        backend_factory: makes the backend of one event loop.
        clock: returns monotonic seconds.
        watch: receives the events of calls and attempts, or None.
    """

    def __init__(
        self,
        scheduler: S,
        backend_factory: Callable[[], Backend],
        *,
        clock: Callable[[], float] = monotonic,
        watch: Instrumentation | None = None,
    ) -> None:
        self.clock = clock
        self.watch = watch
        self.lock = threading.Lock()
        self.scheduler = scheduler
        self.closed = False
        self.stalls: StallWatch | None = None  # warns of work that does not move
        self._backend_factory = backend_factory
        self._drivers: dict[asyncio.AbstractEventLoop, LoopDriver] = {}

    def driver(self) -> LoopDriver:
        """Return the loop driver of the running event loop. It is created on first use. Raises ``ClientClosed`` if the client is closed."""
        driver = self._drivers.get(_running_loop())
        return driver if driver is not None and not self.closed else self._open_driver()

    def driver_in(self, loop: asyncio.AbstractEventLoop) -> LoopDriver | None:
        return self._drivers.get(loop)

    def here(self) -> LoopDriver | None:
        """Return the loop driver of the running event loop. Return None outside of event loops, and if the loop has none."""
        try:
            return self._drivers.get(asyncio.get_running_loop())
        except RuntimeError:
            return None

    def _open_driver(self) -> LoopDriver:
        loop = asyncio.get_running_loop()
        with self.lock:
            if self.closed:
                raise ClientClosed("the client is closed; make a new one")
            driver = self._drivers[loop] = LoopDriver(self, loop, self._backend_factory())
        self.release_closed(loop)
        return driver

    def release_closed(self, loop: asyncio.AbstractEventLoop) -> None:
        """Release what event loops held that were closed without closing the client. Their connections are closed in ``loop``."""
        with self.lock:
            gone = [self._drivers.pop(other) for other in list(self._drivers) if other.is_closed()]
        for driver in gone:
            driver.release()
            run_in_background(loop, driver.backend.aclose())

    def apply(self, change: Callable[[float], Any]) -> Any:
        """Change the scheduler's state, from any thread, inside or outside an event loop.

        Each resulting command runs in the event loop or thread of its waiter. Returns the value that ``change`` returns.
        """
        here = self.here()
        with self.lock:
            value = change(self.clock())
            out, self.scheduler.out = self.scheduler.out, []
        if self.scheduler.health_changes:
            self.log_health()
        for command in out:
            home = driver_of(command)
            if here is not None and home is here:
                here.run([command])
            else:
                home.post(command)
        self._wake_all()
        return value

    def log_health(self) -> None:
        """Log the endpoints that went out of service or came back, outside the lock, because a log handler is the user's code."""
        with self.lock:
            changes, self.scheduler.health_changes = self.scheduler.health_changes, []
        for source, reason, seconds in changes:
            if reason:
                LOG.warning("endpoint %r is out of service: %s", source, reason)
            else:
                LOG.warning("endpoint %r is back in service after %.1f s", source, seconds)

    def add_watcher(self, watcher: Watcher) -> None:
        """Notify one more watcher of the calls that begin from now on."""
        if self.watch is None:
            self.watch = Instrumentation((), self.clock)
        self.watch.watchers = (*self.watch.watchers, watcher)
        for driver in self.drivers():
            driver.watch = self.watch

    def remove_watcher(self, watcher: Watcher) -> None:
        if self.watch is not None:
            self.watch.watchers = tuple(each for each in self.watch.watchers if each is not watcher)

    def drivers(self) -> list[LoopDriver]:
        return list(self._drivers.values())

    def _wake_all(self) -> None:
        """Let all loop drivers check their timers, because the scheduler's next wake time may have changed."""
        for driver in list(self._drivers.values()):
            driver.later(driver.rearm)

    async def aclose(self) -> None:
        """Close the engine. Unfinished tasks fail with ``ClientClosed``, and the connections of all event loops are closed."""
        here = _running_loop()
        with self.lock:  # an event loop that uses the engine later finds it closed
            self.closed, drivers = True, list(self._drivers.values())
        for driver in drivers:
            if driver.loop is here:
                await self.leave()
            elif driver.loop.is_closed():
                await driver.backend.aclose()
            else:
                with contextlib.suppress(RuntimeError):  # the loop was closed after the check above
                    driver.loop.call_soon_threadsafe(driver.closing)
        self._drivers.clear()

    async def leave(self) -> None:
        """Close what this engine holds in the running event loop, once, and nothing else. A cancelled caller does not stop the closing."""
        if (driver := self.here()) is not None:
            await asyncio.shield(driver.closing())

    def forget(self, driver: LoopDriver) -> None:
        """Remove a loop driver that has ended. Its timer may have been set for work of another driver, so all others are woken."""
        self._drivers.pop(driver.loop, None)
        self._wake_all()


class LoopDriver:
    """Runs the engine in one event loop."""

    def __init__(self, engine: Engine[Any], loop: asyncio.AbstractEventLoop, backend: Backend) -> None:
        self.engine = engine
        self.watch = engine.watch
        self.loop = loop
        self.backend = backend
        self.waiters: dict[Waiter, None] = {}
        self._attempts: dict[Attempt, bool] = {}  # each attempt from its SEND to its event -> whether it has begun in this loop
        self._runners: set[asyncio.Task[None]] = set()  # keeps them alive, because an event loop does not
        self._idle = asyncio.Event()  # set when the last attempt ends during closing
        self._stopped = False
        self._closing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.thread = threading.get_ident()
        self._asked_at: float | None = None  # when ``lag`` asked the loop for a sign of life that has not come yet
        self._lag = 0.0
        self._look_at = inf  # when to look next for work that does not move; inf without work
        self._closer = self._close_with_loop()
        with contextlib.suppress(StopIteration):
            self._closer.asend(None).send(None)  # runs the generator to its yield, which registers it with the event loop

    # called by waiters

    def submit(self, task: Task) -> None:
        if self.watch is not None:
            self.watch.began(task)
        self.locked(self.engine.scheduler.submit, task)

    def refill(self, feed: BatchFeed, again: Sequence[Task] = ()) -> None:
        self.locked(self.engine.scheduler.refill, feed, again)

    def withdraw(self, tasks: list[Task], error: QRewardError | None = None) -> None:
        """Remove tasks from the scheduler, because the caller gave them up, or because they end with ``error``, an error of the engine."""
        if self.watch is not None:
            self.watch.withdrawn(tasks, error)
        self.locked(self.engine.scheduler.withdraw, tasks)

    def commit(self, attempt: Attempt) -> bool:
        """Commit to an attempt: from now on, its answer is passed to the caller. Returns False if the attempt is no longer wanted."""
        self.locked(self.engine.scheduler.commit, attempt)
        if attempt.committed and self.watch is not None:
            self.watch.first(attempt)
        return attempt.committed

    # running commands

    def locked(self, change: Callable[..., None], *arguments: Any) -> None:
        """Change the scheduler's state under the lock, then run the resulting commands outside of it."""
        out = self._change(change, arguments)
        if self._look_at == inf:
            self._look_later()
        if out:
            self.run(out)

    def _change(self, change: Callable[..., None], arguments: tuple[Any, ...] = ()) -> list[Command]:
        """Change the scheduler's state under the lock and set the timer. Returns the commands, which the caller must run."""
        engine = self.engine
        scheduler = engine.scheduler
        with engine.lock:
            change(engine.clock(), *arguments)
            out: list[Command] = scheduler.out
            scheduler.out = []
            wake = scheduler.next_wake()
        if wake is not None and (self._timer is None or wake < self._timer_at):
            self._arm(wake)
        if scheduler.health_changes:
            engine.log_health()
        return out

    def run(self, out: list[Command], batch: Waiter | None = None) -> Attempt | None:
        """Run commands. If ``batch`` is given, the first attempt of this waiter is returned and not started."""
        kept, watch = None, self.watch
        for command in out:
            what, subject = command[0], command[1]
            waiter = subject.task.waiter if what <= CANCEL else subject.waiter
            if waiter.driver is not self:
                waiter.driver.post(command)
            elif what == SEND and subject.cancel_reason is None:
                self._attempts[subject] = True
                if watch is not None and subject.task.serial != UNWANTED:
                    watch.sent(subject)
                if kept is None and waiter is batch:
                    kept = subject
                else:
                    waiter.start(subject)
            elif what == FINISH:
                if watch is not None and subject.serial != UNWANTED:
                    watch.done(subject, command[2], command[3])
                waiter.finish(subject, command[2], command[3], command[4])
            else:  # further commands are appended, because the depth of a recursion would grow with the number of endpoint slots
                out += self._run_rare(what, subject)
        return kept

    def _run_rare(self, what: int, subject: Any) -> Sequence[Command]:
        """Run a command that most requests do not need. Returns the resulting commands."""
        if what == SEND:  # cancelled before the command arrived; its waiter may have left
            self.ended(subject, CANCELLED)
        if what == MORE and subject.waiter.read(subject):
            return self._change(self.engine.scheduler.refill, (subject,))
        if what == CANCEL and subject.handle is not None:  # otherwise the attempt has not begun, and checks ``cancel_reason`` itself
            subject.handle.cancel()
        return ()

    def post(self, command: Command) -> None:
        """Run a command in this event loop, from another thread or outside the loop. From then on, the driver owns its attempt."""
        if command[0] == SEND:
            self._attempts[command[1]] = False
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._posted, command)
        # the loop may never run the command; if it ends only after this check, ``_stop`` or ``release`` finds the attempt
        if command[0] == SEND and (self._stopped or self.loop.is_closed()):
            self.release() if self.loop.is_closed() else self._give_back(command[1])

    def _posted(self, command: Command) -> None:
        if command[0] != SEND or command[1] in self._attempts:  # otherwise it was given back
            self.run([command])
        self.rearm()  # the sender set its timer for the next wake time, but its event loop may end before that

    def spawn(self, attempt: Attempt, batch: Waiter | None = None) -> None:
        """Carry out an attempt, and then the next ones of ``batch``, in a new asyncio task that has a copy of the caller's context."""
        runner = self.loop.create_task(self.run_attempts(attempt, batch), context=attempt.task.waiter.context.copy())
        self._runners.add(runner)
        runner.add_done_callback(partial(self._runner_ended, attempt))

    def _runner_ended(self, first: Attempt, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        if first in self._attempts:  # the asyncio task was cancelled from outside before its first step
            self.ended(first, CANCELLED)
        if not runner.cancelled() and runner.exception() is not None:
            report_error(runner)

    async def run_attempts(self, first: Attempt, batch: Waiter | None = None) -> None:
        """Carry out an attempt, and then the next ones of ``batch``, in the current asyncio task. Report their outcomes."""
        me = asyncio.current_task()
        assert me is not None
        attempt: Attempt | None = first
        outcome: Outcome
        turns = 0
        while attempt is not None:
            turns += 1
            before = me.cancelling()
            outcome = CANCELLED  # unless the attempt is carried out to its end
            try:
                if attempt.cancel_reason is None:  # otherwise cancelled before it began
                    attempt.handle, task = me, attempt.task
                    if not turns % TURNS:  # a backend that never suspends must not block the event loop
                        await asyncio.sleep(0)
                    execute = task.waiter.execute
                    sending = self.backend.send(attempt.source.endpoint, task.payload) if execute is None else execute(attempt)
                    outcome = await (sending if attempt.span is None else within(attempt.span, sending))
            except asyncio.CancelledError:
                if attempt.cancel_reason is None or me.uncancel() > before:  # not (only) the engine cancelled
                    self.ended(attempt, CANCELLED)
                    raise
            except GeneratorExit:  # the coroutine was discarded, perhaps by the garbage collector while the engine's own code runs
                self.later(partial(self.ended, attempt, CANCELLED))
                raise
            except Exception as error:  # a backend must not raise; if it raises anyway, the item fails and nothing hangs
                name = attempt.source.name
                failure = InvalidResponse(f"endpoint {name!r}: the HTTP backend failed: {type(error).__name__}", endpoint=name)
                failure.__cause__ = error
                outcome = Failure(FailureKind.UNSENDABLE, failure)
            attempt = self.ended(attempt, outcome, batch)

    def ended(self, attempt: Attempt, outcome: Outcome, batch: Waiter | None = None) -> Attempt | None:
        """Report the outcome of an attempt to the scheduler and run the resulting commands; see ``run`` for ``batch`` and the result."""
        attempt.handle = None
        begun = self._attempts.pop(attempt, False)
        if self._closing is not None and not self._attempts:
            self._idle.set()
        begun = begun and not attempt.ended
        out = self._change(self.engine.scheduler.event, (attempt, outcome))
        if begun and self.watch is not None and attempt.task.serial != UNWANTED:
            self.watch.ended(attempt, outcome)
        return self.run(out, batch) if out else None

    # time

    def _arm(self, wake: float | None) -> None:
        """Set the timer, unless it is already set for ``wake`` or earlier."""
        if wake is None or (self._timer is not None and wake >= self._timer_at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wake
        # a client that nobody uses any more must not live as long as its timer
        self._timer = self.loop.call_later(max(0.0, wake - self.engine.clock()), _tick, ref(self))

    def tick(self) -> None:
        self._timer = None
        self.engine.release_closed(self.loop)
        self.run(self._change(self.engine.scheduler.tick))
        if self.engine.stalls is not None and self._look_at <= self.engine.clock():
            if self.engine.stalls.look(self.engine, self._look_at - EVERY):
                self._look_later()
            else:
                self._look_at = inf
        if self._look_at < inf:
            self._arm(self._look_at)

    def _look_later(self) -> None:
        if self.engine.stalls is not None and not self._stopped:
            self._look_at = self.engine.clock() + EVERY
            self._arm(self._look_at)

    def is_armed(self, wake: float) -> bool:
        """Return whether the timer is set for ``wake`` or earlier. Can be called from any thread."""
        return self._timer is not None and self._timer_at <= wake

    def later(self, work: Callable[[], object]) -> None:
        """Run ``work`` in the event loop soon. Does nothing if the loop is closed, because :meth:`release` then cleans up."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(work)

    def lag(self) -> float:
        """Return by how many seconds the event loop is late, with its timer or with its reply to a call of this method elsewhere."""
        now = self.engine.clock()
        if threading.get_ident() == self.thread:
            self._asked_at, self._lag = None, 0.0
        elif self._asked_at is None and self.loop.is_running():
            self._asked_at = now
            self.later(partial(self._alive, now))
        timer, asked = self._timer, self._asked_at
        overdue = now - self._timer_at if timer is not None and self.loop.is_running() else 0.0
        return max(0.0, overdue, self._lag if asked is None else now - asked)

    def _alive(self, asked_at: float) -> None:
        self._asked_at, self._lag = None, self.engine.clock() - asked_at

    def rearm(self) -> None:
        """Set the timer anew, because the scheduler was changed from another thread or event loop."""
        with self.engine.lock:
            wake = self.engine.scheduler.next_wake()
        self._arm(wake)

    # the end

    async def _close_with_loop(self) -> AsyncGenerator[None, None]:
        """Stay suspended until the event loop shuts down its asynchronous generators. Then close the connections while the loop runs."""
        try:
            yield
        finally:
            self._stop()
            await self.backend.aclose()

    def closing(self) -> asyncio.Task[None]:
        """Return the asyncio task that ends unfinished work and closes the connections. It is started if it is not running yet."""
        if self._closing is None:
            self._closing = self.loop.create_task(self._close())
        return self._closing

    async def _close(self) -> None:
        for waiter in list(self.waiters):
            waiter.close()
        while self._attempts:
            self._idle.clear()
            await self._idle.wait()
        await self._closer.aclose()

    def release(self) -> None:
        """Release everything that this driver's event loop held, after that loop was closed without closing the client."""
        left = [task for waiter in list(self.waiters) for task in waiter.abandon()]
        self.engine.apply(lambda now: self.engine.scheduler.withdraw(now, left))  # first, so that no task of this driver is sent again
        if self.watch is not None:
            self.watch.withdrawn(left)
        for attempt in list(self._attempts):
            self._give_back(attempt)

    def _give_back(self, attempt: Attempt) -> None:
        """Report that an attempt has ended which this event loop can no longer run. Can be called from any thread."""
        begun = self._attempts.pop(attempt, False)
        if self.watch is not None and begun and not attempt.ended:
            self.watch.ended(attempt, CANCELLED)
        self.engine.apply(lambda now: self.engine.scheduler.event(now, attempt, CANCELLED))

    def _stop(self) -> None:
        self._stopped = True
        if self._closing is None:
            for waiter in list(self.waiters):
                waiter.close()
        for attempt in list(self._attempts):  # an asyncio task that was cancelled before its first step has reported no outcome
            self.ended(attempt, CANCELLED)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.engine.forget(self)


def _tick(known: ref[LoopDriver]) -> None:
    driver = known()
    if driver is not None:
        driver.tick()


def driver_of(command: Command) -> Any:
    """Return what carries out a command: a loop driver, or a ``BlockingCall``. Any thread may call its method ``post``."""
    return (command[1].task if command[0] <= CANCEL else command[1]).waiter.driver


def result_of(task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> Result[Any]:
    """Make the result that the caller of a task receives. ``source`` and ``seconds`` are those of the attempt that was answered."""
    queued = 0.0 if task.sent_at is None else task.sent_at - task.born
    trail = () if task.trail is None else tuple(task.trail)
    if isinstance(outcome, Answer):
        assert source is not None
        return Result(task.index, outcome.response, None, source.name, seconds, queued, trail)
    endpoint = trail[-1].endpoint if trail else None
    return Result(task.index, None, with_trail(outcome, trail), endpoint, 0.0, queued, trail)


class Single(Waiter):
    """Receives the outcome of a single call. The caller's own asyncio task runs its attempts. Only a hedge needs another asyncio task."""

    __slots__ = ("_mine", "_next", "_result", "_task", "_waiter", "context", "driver")

    def __init__(self, driver: LoopDriver) -> None:
        self.driver = driver
        self._result: Result[Any] | None = None
        self._next: Attempt | None = None
        self._mine: Attempt | None = None  # the attempt that the caller's own asyncio task carries out
        self.context = copy_context()
        self._waiter: asyncio.Future[None] | None = None

    async def result(self, task: Task) -> Result[Any]:
        """Submit the task and wait for its result. If the caller is cancelled, the request is cancelled too."""
        driver = self.driver
        driver.waiters[self] = None
        self._task = task
        try:
            driver.submit(task)
            while self._result is None:
                attempt, self._next = self._next, None
                if attempt is not None:
                    self._mine = attempt
                    await driver.run_attempts(attempt)
                else:
                    self._waiter = driver.loop.create_future()
                    await self._waiter
        except GeneratorExit:  # the coroutine was discarded, perhaps by the garbage collector while the engine's lock is held
            driver.later(self._leave)
            raise
        except BaseException:
            self._leave()
            raise
        self._leave()
        return self._result

    def _leave(self) -> None:
        driver = self.driver
        if self._task.state is not TaskState.DONE:
            driver.withdraw([self._task])
        if self._next is not None:
            driver.ended(self._next, CANCELLED)
        del driver.waiters[self]
        del self._task  # breaks the reference cycle of task and waiter, so that reference counting frees them
        self._mine = None

    def start(self, attempt: Attempt) -> None:
        if self._next is None and (self._mine is None or self._mine.handle is None):
            self._next = attempt
            if self._waiter is not None:
                self._wake()
        else:  # a hedge, while the caller's own asyncio task carries out the first attempt
            self.driver.spawn(attempt)

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        self._result = result_of(task, outcome, source, seconds)
        if self._waiter is not None:
            self._wake()

    def abandon(self) -> list[Task]:
        return [self._task]

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
