"""Carries out what the roster decides, for callers in any event loop: one lock, no task, and nothing that blocks a loop.

Whatever may block runs in worker threads; what comes of it is told to the caller's loop. It knows crews, not what they are.

Which actor takes which batch, when a dead one is made again, when it is given up. Nothing is bound to an actor that is not ready.

Pure: events in, commands out; no Ray, no threads, no clock.
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
from qreward.integrations.ray.backends import FAREWELL, ActorDied, ActorLost, Crew, Reply, cancelled

FIRST_DELAY = 0.1
"""Seconds before the second death in succession is made good; the first is at once, and each later one waits twice as long."""
LONGEST_DELAY = 30.0
STARTS = 3
"""Times that an actor which cannot be made is tried: a constructor that raises will most likely raise again."""


class State(Enum):
    """Of an actor: being made (or to be made soon), at work, given up."""

    STARTING = "starting"
    READY = "ready"
    LOST = "lost"


@dataclass(slots=True)
class Actor:
    """A place for an actor, which outlives the actors in it.

    Attributes:
        life: counts the actors that were in it.
        load: batches on the present one.
        alone: there is a batch on it that must have no company.
        deaths: in succession, with no batch done between.
        failed_starts: likewise.
        chosen: when it was last given a batch, as a count.
    """

    number: int
    state: State = State.STARTING
    life: int = 0
    load: int = 0
    alone: bool = False
    deaths: int = 0
    failed_starts: int = 0
    chosen: int = 0


@dataclass(eq=False, slots=True)
class BatchRequest:
    """A batch's wish for a seat on an actor.

    Args:
        alone: it is suspected of having killed an actor, and must not drag others with it.

    Attributes:
        actor: where it sits; None while it waits.
        life: which actor that is.
    """

    alone: bool = False
    actor: Actor | None = None
    life: int = 0


@dataclass(frozen=True, slots=True)
class Hire:
    """Make an actor in this place, after so many seconds."""

    actor: Actor
    life: int
    delay: float


@dataclass(frozen=True, slots=True)
class Assignment:
    """This batch may go to ``ticket.actor``."""

    ticket: BatchRequest


@dataclass(frozen=True, slots=True)
class Refuse:
    """There will never be an actor for this batch."""

    ticket: BatchRequest


Command = Hire | Assignment | Refuse


@dataclass
class Placement:
    """The actors of a pool and the batches that wait for one.

    Args:
        count: actors.
        concurrency: batches on each at once.
        max_restarts: deaths of one actor in succession, without a batch done between, after which it is given up.

    Attributes:
        line: those that wait; who must be alone stands at the head.
        deaths: all that there were.
    """

    count: int
    concurrency: int
    max_restarts: int
    actors: list[Actor] = field(default_factory=list)
    line: deque[BatchRequest] = field(default_factory=deque)
    deaths: int = 0
    _choices: int = 0

    def begin(self) -> list[Command]:
        """Make them all."""
        self.actors = [Actor(number) for number in range(self.count)]
        return [Hire(actor, actor.life, 0.0) for actor in self.actors]

    def ask(self, ticket: BatchRequest) -> list[Command]:
        """A batch wants a seat; one that must be alone has been here before and goes first."""
        if ticket.alone:
            self.line.appendleft(ticket)
        else:
            self.line.append(ticket)
        return self._assign()

    def leave(self, ticket: BatchRequest, well: bool = False) -> list[Command]:
        """A batch waits no more, or has left its actor: ``well`` if the actor was alive to answer."""
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
        """An actor can be given batches."""
        if life == actor.life and actor.state is State.STARTING:
            actor.state = State.READY
        return self._assign()

    def died(self, actor: Actor, life: int, in_making: bool = False) -> list[Command]:
        """An actor is gone, or could not be made. Said twice it counts once."""
        if life != actor.life or actor.state is State.LOST:
            return []
        self.deaths += 1
        actor.deaths += 1
        actor.failed_starts += in_making
        actor.life, actor.load, actor.alone = actor.life + 1, 0, False
        actor.state = State.STARTING
        if actor.deaths > self.max_restarts or actor.failed_starts >= STARTS:
            actor.state = State.LOST
            return self._assign()
        return [Hire(actor, actor.life, delay_of(actor.deaths)), *self._assign()]

    def count_of(self, state: State) -> int:
        """How many actors are in a state."""
        return sum(actor.state is state for actor in self.actors)

    def _assign(self) -> list[Command]:
        if self.actors and all(actor.state is State.LOST for actor in self.actors):
            refused: list[Command] = [Refuse(ticket) for ticket in self.line]
            self.line.clear()
            return refused
        return list(self._seats())

    def _seats(self) -> Iterator[Command]:
        """Seats from the head of the line on. Who must be alone and finds no idle actor holds one free of others until it is idle."""
        free = [actor for actor in self.actors if actor.state is State.READY and not actor.alone and actor.load < self.concurrency]
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
    """Seconds to wait before an actor is made again.

    Example:
        >>> [delay_of(deaths) for deaths in (1, 2, 3, 4)]
        [0.0, 0.1, 0.2, 0.4]
    """
    return 0.0 if deaths < 2 else min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** (deaths - 2))


_log = logging.getLogger("qreward")
GRACE = 5.0
"""Seconds after which an actor that goes on with a batch which was cancelled for its time is killed and made again."""
LOOK = 0.1
"""Seconds after which ``idle`` looks whether the loops of other callers still run."""


class ActorHandle:
    """One actor.

    Attributes:
        handle: what its crew knows it by.
        excused: it was ended on purpose, which is no fault of what else was on it.
        watch: rings if it is not ready in time.
    """

    __slots__ = ("actor", "excused", "handle", "life", "watch")

    def __init__(self, actor: Actor, life: int, handle: Any) -> None:
        self.actor, self.life, self.handle = actor, life, handle
        self.excused = False
        self.watch: threading.Timer | None = None


class PendingBatch(BatchRequest):
    """A batch, as its caller waits for it.

    Attributes:
        seated: done when it has an actor, or with the error for which it never will.
        ended: its reply.
        gone: its caller waits no more.
        over: its actor is done with it, or it never got to one.
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
        roster: decides.
        crew: does it.
        start_timeout: seconds in which an actor must be ready; None is no limit.

    Attributes:
        guests: batches that wait or are on an actor.
        batches: that came back.
    """

    def __init__(self, roster: Placement, crew: Crew, start_timeout: float | None) -> None:
        self.roster = roster
        self.crew = crew
        self.guests: set[PendingBatch] = set()
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
            self._carry(roster.begin())

    # for callers, in their loops

    @contextmanager
    def call(self) -> Iterator[None]:
        """While a caller is inside."""
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
        """Wait for an actor: await ``seated`` of what is returned, and tell ``leave`` if you stop waiting for it or for its end."""
        guest = PendingBatch(asyncio.get_running_loop(), alone)
        with self._lock:
            if self._shut:
                raise closed()
            self.guests.add(guest)
            self._carry(self.roster.ask(guest))
        return guest

    def send(self, guest: PendingBatch, columns: tuple[Any, ...]) -> None:
        """Have it scored by its actor; await ``ended``."""
        guest.sent = True
        if not SHARED.run(partial(self._send, guest, columns)):
            self._end(guest, (False, QueueFull("all worker threads are busy, perhaps with calls that hang; submit fewer batches at once")))

    def leave(self, guest: PendingBatch, overdue: bool = False) -> None:
        """Its caller waits no more. Its actor is free when it is done with it; one that is ``overdue`` is killed if that is not soon."""
        with self._lock:
            guest.gone = True
            if guest.over:
                return
            if not guest.sent:
                self._end(guest, None)
                return
            if guest.stop is not None:
                _in_thread(guest.stop)
            if overdue:
                self._later(GRACE, partial(self._kill, guest))

    def lost(self) -> ActorDied:
        """The error when no actor is left."""
        return ActorDied(f"no actor is left to score with; of the last it was said: {self._reason}")

    # the end

    async def idle(self) -> None:
        """Wait until no caller is inside, in loops that still run."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            self._waiters.append((waiter, loop))
        while any(other.is_running() for other in list(self._calls)):
            await asyncio.wait([waiter], timeout=LOOK)

    def abandon(self) -> None:
        """Fail all that wait and all that is under way."""
        with self._lock:
            self._shut = True
            for guest in list(self.guests):
                self._tell(guest.seated, guest.loop, closed())
                self._tell(guest.ended, guest.loop, (False, closed()))
                self.leave(guest)

    def shut(self, gently: bool) -> None:
        """Dismiss all actors; blocks."""
        with self._lock:
            self._shut = True
            hands = list(self._hands.values())
            self._hands.clear()
            for timer in self._timers:
                timer.cancel()
            self._hired.wait_for(lambda: not self._hiring, FAREWELL)  # what is being made ends by itself
        threads = [threading.Thread(target=self.crew.dismiss, args=(hand.handle, gently), daemon=True) for hand in hands]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    # in worker threads, timers and Ray's callbacks

    def _send(self, guest: PendingBatch, columns: tuple[Any, ...]) -> None:
        hand = guest.hand
        assert hand is not None
        if guest.gone:
            self._end(guest, None)
            return
        try:
            future, stop = self.crew.send(hand.handle, columns, guest.loop)
        except Exception as error:
            self._end(guest, (False, self.crew.read(error)))
            return
        with self._lock:
            guest.stop = stop
            gone = guest.gone
        if gone:
            stop()
        future.add_done_callback(partial(self._come_back, guest))

    def _come_back(self, guest: PendingBatch, future: Future[Reply]) -> None:
        if future.cancelled():
            self._end(guest, (False, cancelled()))
        elif (error := future.exception()) is not None:
            self._end(guest, (False, self.crew.read(error)))
        else:
            self._end(guest, future.result())

    def _end(self, guest: PendingBatch, reply: Reply | None) -> None:
        """It is not on its actor any more, and not in the line."""
        with self._lock:
            if guest.over:
                return
            guest.over = True
            self.guests.discard(guest)
            loss = reply[1] if reply is not None and isinstance(reply[1], ActorLost) else None
            if loss is not None and guest.hand is not None:
                self._bury(guest.hand, loss)
                reply = False, ActorLost(str(loss), excused=guest.hand.excused)
            well = reply is not None and loss is None
            self.batches += well
            commands = self.roster.leave(guest, well)
        if reply is not None:
            self._tell(guest.ended, guest.loop, reply)
        with self._lock:
            self._carry(commands)

    def _bury(self, hand: ActorHandle, loss: ActorLost) -> None:
        """An actor is gone: make another."""
        if hand.actor.life == hand.life and not self._shut:
            self._reason = str(loss)
            hand.excused = hand.excused or loss.excused
            _log.warning("actor %d died: %s", hand.actor.number, loss)
            if hand.handle is not None:
                _in_thread(partial(self.crew.dismiss, hand.handle, False))  # it may be unreachable, and not dead
            self._carry(self.roster.died(hand.actor, hand.life, loss.in_making))

    def _kill(self, guest: PendingBatch) -> None:
        """Its time is over, and its actor does not let go of it."""
        with self._lock:
            hand = guest.hand
            if guest.over or hand is None:
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
            hand.handle, ready = self.crew.hire()
        except Exception as error:
            with self._lock:
                self._bury(hand, _in_making(error))
            return
        with self._lock:
            shut = self._shut
            if not shut:
                self._hands[hand.actor.number] = hand
        if shut:
            self.crew.dismiss(hand.handle, False)
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
                self._carry(self.roster.ready(hand.actor, hand.life))
            else:
                loss = self.crew.read(error)
                self._bury(hand, loss if isinstance(loss, ActorLost) else _in_making(loss))

    def _too_slow(self, hand: ActorHandle) -> None:
        with self._lock:
            if hand.actor.state is State.STARTING and hand.actor.life == hand.life and not self._shut:
                says = f"it was not ready within {self._start_timeout:g} s; are there the resources that it asks for?"
                self._bury(hand, ActorLost(says, in_making=True))

    def _carry(self, commands: list[Command]) -> None:
        """Do what the roster says; under the lock."""
        todo = deque(commands)
        while todo:
            command = todo.popleft()
            if isinstance(command, Hire):
                hire = partial(self._hire, command)
                if command.delay:
                    self._later(command.delay, hire)
                else:
                    _in_thread(hire)
                continue
            guest = command.ticket
            assert isinstance(guest, PendingBatch)
            refusal = closed() if self._shut else self.lost() if isinstance(command, Refuse) else None
            if refusal is None and guest.actor is not None:
                guest.hand = self._hands[guest.actor.number]
            if not self._tell(guest.seated, guest.loop, refusal) or refusal is not None:  # or its loop is closed
                guest.over = True
                self.guests.discard(guest)
                todo.extend(self.roster.leave(guest))

    def _later(self, seconds: float, function: Callable[[], object]) -> threading.Timer:
        """Call something in a thread of its own."""

        def ring() -> None:
            self._timers.discard(timer)
            function()

        timer = threading.Timer(seconds, ring)
        timer.daemon = True
        self._timers.add(timer)
        timer.start()
        return timer

    def _tell(self, future: asyncio.Future[Any], loop: asyncio.AbstractEventLoop, value: Any) -> bool:
        """Settle a future in its loop; False if that is closed."""
        try:
            loop.call_soon_threadsafe(_settle, future, value)
        except RuntimeError:
            return False
        return True


def closed() -> ClientClosed:
    """The error of whoever comes too late."""
    return ClientClosed("the pool of scorers is closed; make a new one")


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _in_making(error: BaseException) -> ActorLost:
    return ActorLost(f"{type(error).__name__}: {error}", in_making=True)


def _in_thread(function: Callable[[], object]) -> None:
    """Call something in a worker thread, or, if all are busy, in one of its own."""

    def job() -> None:
        function()

    if not SHARED.run(job):
        threading.Thread(target=job, daemon=True).start()
