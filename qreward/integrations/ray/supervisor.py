"""Places batches on actors, starts and restarts actors, and reports results to callers in any event loop.

``Placement`` decides: which actor takes which batch, when a dead actor is restarted, and when it is given up. It never assigns a batch to
an actor that is not ready. It is pure: events in, commands out; no Ray, no threads, no clock.

``Supervisor`` executes its commands with one lock and without tasks, and never blocks an event loop: calls that may block run in worker
threads, and their results are passed to the caller's loop. It does not know which backend runs the actors.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from qreward.engine.threads import SHARED
from qreward.errors import ClientClosed, QueueFull
from qreward.integrations.ray.backends import FAREWELL, ActorBackend, ActorDied, ActorLost, Reply, cancelled

FIRST_DELAY = 0.1
"""Seconds before the restart after the second death in a row. The first restart is immediate; later delays double each time."""
LONGEST_DELAY = 30.0
STARTS = 3
"""Attempts to start an actor that fails to start: a constructor that raises will most likely raise again."""


class ActorState(Enum):
    """State of an actor: starting (or to be restarted), ready, or given up."""

    STARTING = "starting"
    READY = "ready"
    LOST = "lost"


@dataclass(slots=True)
class Actor:
    """One of the pool's actors. It stays the same when the instance behind it dies and is replaced.

    Attributes:
        life: number of the current instance, counted from 0.
        load: batches on the current instance.
        alone: whether a batch on it must not share the actor.
        deaths: consecutive deaths, without a finished batch between them.
        failed_starts: consecutive failed starts, without a finished batch between them.
        chosen: sequence number of the last assignment, to break ties between actors.
    """

    number: int
    state: ActorState = ActorState.STARTING
    life: int = 0
    load: int = 0
    alone: bool = False
    deaths: int = 0
    failed_starts: int = 0
    chosen: int = 0


@dataclass(eq=False, slots=True)
class BatchRequest:
    """A batch's request for an actor.

    Args:
        alone: the batch is suspected of having killed an actor, and must not share an actor with others.

    Attributes:
        actor: the assigned actor; None while the batch waits.
        life: ``life`` of that actor at the assignment.
    """

    alone: bool = False
    actor: Actor | None = None
    life: int = 0


@dataclass(frozen=True, slots=True)
class Hire:
    """Start this actor after ``delay`` seconds."""

    actor: Actor
    life: int
    delay: float


@dataclass(frozen=True, slots=True)
class Assignment:
    """The batch may be sent to ``ticket.actor``."""

    ticket: BatchRequest


@dataclass(frozen=True, slots=True)
class Refuse:
    """No actor will ever be available for this batch."""

    ticket: BatchRequest


Command = Hire | Assignment | Refuse


@dataclass
class Placement:
    """The actors of a pool and the batches that wait for one.

    Args:
        count: number of actors.
        concurrency: batches on each actor at once.
        max_restarts: consecutive deaths of an actor, without a finished batch between them, after which it is given up.

    Attributes:
        line: waiting batches. Those that must not share an actor are at the head.
        deaths: total number of deaths.
    """

    count: int
    concurrency: int
    max_restarts: int
    actors: list[Actor] = field(default_factory=list)
    line: deque[BatchRequest] = field(default_factory=deque)
    deaths: int = 0
    _choices: int = 0

    def begin(self) -> list[Command]:
        """Start all actors."""
        self.actors = [Actor(number) for number in range(self.count)]
        return [Hire(actor, actor.life, 0.0) for actor in self.actors]

    def ask(self, ticket: BatchRequest) -> list[Command]:
        """Add a batch. One that must not share an actor has waited before, and goes to the head of the queue."""
        if ticket.alone:
            self.line.appendleft(ticket)
        else:
            self.line.append(ticket)
        return self._assign()

    def leave(self, ticket: BatchRequest, well: bool = False) -> list[Command]:
        """Remove a batch from the queue or from its actor. ``well`` if the actor was alive to answer."""
        actor = ticket.actor
        if actor is None:
            if ticket in self.line:
                self.line.remove(ticket)
        elif ticket.life == actor.life:
            actor.load -= 1
            actor.alone = False if ticket.alone else actor.alone
            if well:
                actor.deaths = actor.failed_starts = 0
        return self._assign()

    def ready(self, actor: Actor, life: int) -> list[Command]:
        """Record that an actor is ready."""
        if life == actor.life and actor.state is ActorState.STARTING:
            actor.state = ActorState.READY
        return self._assign()

    def died(self, actor: Actor, life: int, in_making: bool = False) -> list[Command]:
        """Record that an actor died or failed to start. A second report of the same death is ignored."""
        if life != actor.life or actor.state is ActorState.LOST:
            return []
        self.deaths += 1
        actor.deaths += 1
        actor.failed_starts += in_making
        actor.life, actor.load, actor.alone = actor.life + 1, 0, False
        actor.state = ActorState.STARTING
        if actor.deaths > self.max_restarts or actor.failed_starts >= STARTS:
            actor.state = ActorState.LOST
            return self._assign()
        return [Hire(actor, actor.life, delay_of(actor.deaths)), *self._assign()]

    def count_of(self, state: ActorState) -> int:
        """Return the number of actors in a state."""
        return sum(actor.state is state for actor in self.actors)

    def _assign(self) -> list[Command]:
        if self.actors and all(actor.state is ActorState.LOST for actor in self.actors):
            refused: list[Command] = [Refuse(ticket) for ticket in self.line]
            self.line.clear()
            return refused
        return list(self._seats())

    def _seats(self) -> Iterator[Command]:
        """Assign batches from the head of the queue.

        A batch that must not share an actor, and finds none idle, reserves one: that actor takes no other batch until it is idle.
        """
        free = [actor for actor in self.actors if actor.state is ActorState.READY and not actor.alone and actor.load < self.concurrency]
        kept: deque[BatchRequest] = deque()
        while self.line and free:
            ticket = self.line.popleft()
            actor = min(free, key=lambda actor: (actor.load, actor.chosen))
            if ticket.alone and actor.load:
                free.remove(actor)
                kept.append(ticket)
                continue
            self._sit(ticket, actor)
            if actor.alone or actor.load >= self.concurrency:
                free.remove(actor)
            yield Assignment(ticket)
        self.line.extendleft(reversed(kept))

    def _sit(self, ticket: BatchRequest, actor: Actor) -> None:
        self._choices += 1
        actor.load += 1
        actor.chosen, actor.alone = self._choices, ticket.alone
        ticket.actor, ticket.life = actor, actor.life


def delay_of(deaths: int) -> float:
    """Return the seconds to wait before an actor is restarted.

    Example:
        >>> [delay_of(deaths) for deaths in (1, 2, 3, 4)]
        [0.0, 0.1, 0.2, 0.4]
    """
    return 0.0 if deaths < 2 else min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** (deaths - 2))


_log = logging.getLogger("qreward")
GRACE = 5.0
"""Seconds after which an actor that still works on a timed-out batch is killed and restarted."""
LOOK = 0.1
"""Seconds between two checks in ``idle`` of whether the event loops of other callers still run."""


class ActorHandle:
    """The backend's handle of an actor, for one life of the actor.

    Attributes:
        handle: the backend's object for the actor.
        excused: the actor was killed on purpose or its node was preempted, so its batches are not at fault.
        watch: timer that fires if the actor is not ready in time.
    """

    __slots__ = ("actor", "excused", "handle", "life", "watch")

    def __init__(self, actor: Actor, life: int, handle: Any) -> None:
        self.actor, self.life, self.handle = actor, life, handle
        self.excused = False
        self.watch: threading.Timer | None = None


class PendingBatch(BatchRequest):
    """A batch whose caller waits for it.

    Attributes:
        seated: done when an actor is assigned (None), or when that has become impossible (the error).
        ended: done with the actor's reply.
        gone: the caller no longer waits.
        over: the actor has finished with the batch, or the batch was never sent.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, alone: bool) -> None:
        super().__init__(alone)
        self.loop = loop
        self.seated: asyncio.Future[Any] = loop.create_future()
        self.ended: asyncio.Future[Any] = loop.create_future()
        self.hand: ActorHandle | None = None
        self.stop: Callable[[], object] | None = None
        self.sent = self.gone = self.over = False


class Supervisor:
    """The actors of one pool in this process.

    Args:
        roster: makes the decisions.
        crew: backend that executes them.
        start_timeout: seconds in which an actor must be ready; None is no limit.

    Attributes:
        guests: batches that wait or are on an actor.
        batches: number of batches that returned.
    """

    def __init__(self, placement: Placement, actor_backend: ActorBackend, start_timeout: float | None) -> None:
        self.placement = placement
        self.actor_backend = actor_backend
        self.pending_batches: set[PendingBatch] = set()
        self.batches = 0
        self._start_timeout = start_timeout
        self._hands: dict[int, ActorHandle] = {}
        self._calls: dict[asyncio.AbstractEventLoop, int] = {}
        self._waiters: list[tuple[asyncio.Future[Any], asyncio.AbstractEventLoop]] = []
        self._timers: set[threading.Timer] = set()
        self._reason = "none was ever made"
        self._shut = False
        self._lock = threading.RLock()
        self._hiring = 0
        self._hired = threading.Condition(self._lock)
        with self._lock:
            self._carry(placement.begin())

    # called in the event loops of callers

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count a caller while it is inside, for ``idle``."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._calls[loop] = self._calls.get(loop, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._calls[loop] -= 1
                if not self._calls[loop]:
                    del self._calls[loop]
                waiters = [] if self._calls else self._waiters
                while waiters:
                    self._tell(*waiters.pop(), None)

    def enter(self, alone: bool) -> PendingBatch:
        """Request an actor. Await ``seated`` of the result. Call ``leave`` to stop waiting for ``seated`` or for ``ended``."""
        pending = PendingBatch(asyncio.get_running_loop(), alone)
        with self._lock:
            if self._shut:
                raise closed()
            self.pending_batches.add(pending)
            self._carry(self.placement.ask(pending))
        return pending

    def send(self, pending: PendingBatch, columns: tuple[Any, ...]) -> None:
        """Send the batch to its actor. Await ``ended`` for the reply."""
        pending.sent = True
        if not SHARED.run(partial(self._send, pending, columns)):
            self._end(
                pending, (False, QueueFull("all worker threads are busy, perhaps with calls that hang; submit fewer batches at once"))
            )

    def leave(self, pending: PendingBatch, overdue: bool = False) -> None:
        """Stop waiting for a batch. Its actor is free once it has finished the batch.

        Args:
            guest: the batch.
            overdue: kill the actor if it has not finished the batch after ``GRACE`` seconds.
        """
        with self._lock:
            pending.gone = True
            if pending.over:
                return
            if not pending.sent:
                self._end(pending, None)
                return
            if pending.stop is not None:
                _in_thread(pending.stop)
            if overdue:
                self._later(GRACE, partial(self._kill, pending))

    def lost(self) -> ActorDied:
        """Return the error for a pool without actors."""
        return ActorDied(f"no actor is left to score with; of the last it was said: {self._reason}")

    # shutdown

    async def idle(self) -> None:
        """Wait until no caller is inside in any event loop that still runs."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            self._waiters.append((waiter, loop))
        while any(other.is_running() for other in list(self._calls)):
            await asyncio.wait([waiter], timeout=LOOK)

    def abandon(self) -> None:
        """Fail all waiting and running batches."""
        with self._lock:
            self._shut = True
            for pending in list(self.pending_batches):
                self._tell(pending.seated, pending.loop, closed())
                self._tell(pending.ended, pending.loop, (False, closed()))
                self.leave(pending)

    def shut(self, gently: bool) -> None:
        """Stop all actors. Blocks."""
        with self._lock:
            self._shut = True
            hands = list(self._hands.values())
            self._hands.clear()
            for timer in self._timers:
                timer.cancel()
            self._hired.wait_for(lambda: not self._hiring, FAREWELL)  # an actor that is still starting stops itself
        threads = [threading.Thread(target=self.actor_backend.stop_actor, args=(hand.handle, gently), daemon=True) for hand in hands]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    # called in worker threads, timers and Ray's callbacks

    def _send(self, pending: PendingBatch, columns: tuple[Any, ...]) -> None:
        hand = pending.hand
        assert hand is not None
        if pending.gone:
            self._end(pending, None)
            return
        try:
            future, stop = self.actor_backend.send(hand.handle, columns, pending.loop)
        except Exception as error:
            self._end(pending, (False, self.actor_backend.read(error)))
            return
        with self._lock:
            pending.stop = stop
            gone = pending.gone
        if gone:
            stop()
        future.add_done_callback(partial(self._come_back, pending))

    def _come_back(self, pending: PendingBatch, future: Future[Reply]) -> None:
        if future.cancelled():
            self._end(pending, (False, cancelled()))
        elif (error := future.exception()) is not None:
            self._end(pending, (False, self.actor_backend.read(error)))
        else:
            self._end(pending, future.result())

    def _end(self, pending: PendingBatch, reply: Reply | None) -> None:
        """Remove a batch from its actor or from the queue, and pass the reply to its caller."""
        with self._lock:
            if pending.over:
                return
            pending.over = True
            self.pending_batches.discard(pending)
            loss = reply[1] if reply is not None and isinstance(reply[1], ActorLost) else None
            if loss is not None and pending.hand is not None:
                self._bury(pending.hand, loss)
                reply = False, ActorLost(str(loss), excused=pending.hand.excused)
            well = reply is not None and loss is None
            self.batches += well
            commands = self.placement.leave(pending, well)
        if reply is not None:
            self._tell(pending.ended, pending.loop, reply)
        with self._lock:
            self._carry(commands)

    def _bury(self, hand: ActorHandle, loss: ActorLost) -> None:
        """Record the death of an actor and have it restarted."""
        if hand.actor.life == hand.life and not self._shut:
            self._reason = str(loss)
            hand.excused = hand.excused or loss.excused
            _log.warning("actor %d died: %s", hand.actor.number, loss)
            if hand.handle is not None:
                _in_thread(partial(self.actor_backend.stop_actor, hand.handle, False))  # it may be unreachable rather than dead
            self._carry(self.placement.died(hand.actor, hand.life, loss.in_making))

    def _kill(self, pending: PendingBatch) -> None:
        """Kill the actor of a timed-out batch that it has not finished."""
        with self._lock:
            hand = pending.hand
            if pending.over or hand is None:
                return
            self._bury(hand, ActorLost("it was killed, because it went on with a batch whose time was over", excused=True))

    def _hire(self, command: Hire) -> None:
        with self._lock:
            if self._shut:
                return
            self._hiring += 1
        try:
            self._make(ActorHandle(command.actor, command.life, None))
        finally:
            with self._lock:
                self._hiring -= 1
                self._hired.notify_all()

    def _make(self, hand: ActorHandle) -> None:
        try:
            hand.handle, ready = self.actor_backend.start_actor()
        except Exception as error:
            with self._lock:
                self._bury(hand, _in_making(error))
            return
        with self._lock:
            shut = self._shut
            if not shut:
                self._hands[hand.actor.number] = hand
        if shut:
            self.actor_backend.stop_actor(hand.handle, False)
            return
        if self._start_timeout is not None and not ready.done():
            hand.watch = self._later(self._start_timeout, partial(self._too_slow, hand))
        ready.add_done_callback(partial(self._made, hand))

    def _made(self, hand: ActorHandle, ready: Future[Any]) -> None:
        error = ready.exception()
        with self._lock:
            if hand.watch is not None:
                hand.watch.cancel()
                self._timers.discard(hand.watch)
            if self._shut:
                return
            if error is None:
                self._carry(self.placement.ready(hand.actor, hand.life))
            else:
                loss = self.actor_backend.read(error)
                self._bury(hand, loss if isinstance(loss, ActorLost) else _in_making(loss))

    def _too_slow(self, hand: ActorHandle) -> None:
        with self._lock:
            if hand.actor.state is ActorState.STARTING and hand.actor.life == hand.life and not self._shut:
                says = f"it was not ready within {self._start_timeout:g} s; are there the resources that it asks for?"
                self._bury(hand, ActorLost(says, in_making=True))

    def _carry(self, commands: list[Command]) -> None:
        """Execute the commands of the placement. Called with the lock held."""
        todo = deque(commands)
        while todo:
            command = todo.popleft()
            if isinstance(command, Hire):
                start_actor = partial(self._hire, command)
                if command.delay:
                    self._later(command.delay, start_actor)
                else:
                    _in_thread(start_actor)
                continue
            pending = command.ticket
            assert isinstance(pending, PendingBatch)
            refusal = closed() if self._shut else self.lost() if isinstance(command, Refuse) else None
            if refusal is None and pending.actor is not None:
                pending.hand = self._hands[pending.actor.number]
            if not self._tell(pending.seated, pending.loop, refusal) or refusal is not None:  # False: its loop is closed
                pending.over = True
                self.pending_batches.discard(pending)
                todo.extend(self.placement.leave(pending))

    def _later(self, seconds: float, function: Callable[[], object]) -> threading.Timer:
        """Call a function after a delay, in a thread of its own."""

        def ring() -> None:
            self._timers.discard(timer)
            function()

        timer = threading.Timer(seconds, ring)
        timer.daemon = True
        self._timers.add(timer)
        timer.start()
        return timer

    def _tell(self, future: asyncio.Future[Any], loop: asyncio.AbstractEventLoop, value: Any) -> bool:
        """Set the result of a future in its event loop. Returns False if the loop is closed."""
        try:
            loop.call_soon_threadsafe(_settle, future, value)
        except RuntimeError:
            return False
        return True


def closed() -> ClientClosed:
    """Return the error for calls after the pool was closed."""
    return ClientClosed("the pool of scorers is closed; make a new one")


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _in_making(error: BaseException) -> ActorLost:
    return ActorLost(f"{type(error).__name__}: {error}", in_making=True)


def _in_thread(function: Callable[[], object]) -> None:
    """Call a function in a worker thread, or in a new thread if all workers are busy."""

    def job() -> None:
        function()

    if not SHARED.run(job):
        threading.Thread(target=job, daemon=True).start()
