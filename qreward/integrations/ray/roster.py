"""Which actor takes which batch, when a dead one is made again, when it is given up. Nothing is bound to an actor that is not ready.

Pure: events in, commands out; no Ray, no threads, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

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
class Ticket:
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
class Seat:
    """This batch may go to ``ticket.actor``."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Refuse:
    """There will never be an actor for this batch."""

    ticket: Ticket


Command = Hire | Seat | Refuse


@dataclass
class Roster:
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
    line: deque[Ticket] = field(default_factory=deque)
    deaths: int = 0
    _choices: int = 0

    def begin(self) -> list[Command]:
        """Make them all."""
        self.actors = [Actor(number) for number in range(self.count)]
        return [Hire(actor, actor.life, 0.0) for actor in self.actors]

    def ask(self, ticket: Ticket) -> list[Command]:
        """A batch wants a seat; one that must be alone has been here before and goes first."""
        if ticket.alone:
            self.line.appendleft(ticket)
        else:
            self.line.append(ticket)
        return self._assign()

    def leave(self, ticket: Ticket, well: bool = False) -> list[Command]:
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
        kept: deque[Ticket] = deque()
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
            yield Seat(ticket)
        self.line.extendleft(reversed(kept))

    def _sit(self, ticket: Ticket, actor: Actor) -> None:
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
