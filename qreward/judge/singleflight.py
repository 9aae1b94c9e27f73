"""Ballots under way, each once, for all that wait for it; and the bench of those who have sent them.

In one event loop. A flight is led by the bench whose request it is; if that gives it up while others wait, one of them takes it over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from copy import copy
from math import inf
from typing import Any

from qreward.engine.driver import LoopDriver
from qreward.errors import QRewardError, RequestTimeout
from qreward.judge.aggregation import Heard
from qreward.judge.cache import Sighting
from qreward.judge.item_state import JudgeRequest, PendingItem
from qreward.judge.sampling import JudgeModel
from qreward.judge.types import Vote
from qreward.scheduler.endpoint_state import Source
from qreward.scheduler.outcome import Answer, Outcome
from qreward.scheduler.pool import Pool
from qreward.scheduler.request import Attempt, RequestOptions, Task, TaskState

Keep = Callable[[Sighting], object]
"""Is given each answer of a model, whether it could be read or not."""


class Asked(Task):
    """The request of a flight as it is now. What is sent is decided when it is sent, for by then more may be known of the servers."""

    __slots__ = ("flight",)

    def __init__(self, flight: InflightRequest, pool: Pool, terms: RequestOptions, timeout: float | None, sink: Dispatcher) -> None:
        super().__init__(flight.ballot.call(), pool, terms.level, timeout, sink, 0, terms.tenant)
        self.hedge = terms.hedge
        self.flight = flight

    def load(self, now: float, source: Source) -> bool:  # noqa: ARG002
        """See ``Task.load``: nothing is sent for a flight that nobody waits for."""
        flight = self.flight
        if flight.task is not self:
            return False
        if flight.ballot.is_stale():
            self.payload = flight.ballot.call()
        return True


class InflightRequest:
    """A ballot under way.

    Attributes:
        task: its request, None between two of them.
        leader: the bench that sends for it.
        seats: who waits for it, and for which of its asks; what is sent is charged to the first.
        borrowed: its request was begun by another bench, in that one's time.
        until: when its time is over, once its first request has shown that.
        timer: the loop's, for a request that was sent again and may not get its turn in time.
    """

    __slots__ = ("ask", "ballot", "borrowed", "key", "leader", "seats", "table", "task", "timer", "until")

    def __init__(self, key: Hashable, ask: JudgeRequest, leader: Dispatcher) -> None:
        self.key, self.ask, self.leader = key, ask, leader
        self.table = leader.table
        self.ballot = ask.ballot()
        self.seats: list[tuple[PendingItem, int]] = []
        self.task: Asked | None = None
        self.borrowed = False
        self.until = inf
        self.timer: Any = None

    def end(self, heard: Heard) -> None:
        """It has come to a vote or an error: all that wait are told."""
        self._close()
        seats, self.seats = self.seats, []
        for number, (poll, place) in enumerate(seats):
            if not number:
                poll.charge(self.ballot)
            poll.tell(place, _apart(heard) if number else heard)

    def leave(self, poll: PendingItem) -> None:
        """A poll does not need it any more."""
        paid = bool(self.seats) and self.seats[0][0] is poll
        self.seats = [seat for seat in self.seats if seat[0] is not poll]
        if paid:
            poll.charge(self.ballot)
            self.ballot.usage = None
        if not self.seats:
            self._close()
            self.leader.release(self)
        elif all(other.owner is not self.leader for other, _ in self.seats):
            self.seats[0][0].owner.take_over(self)

    def _close(self) -> None:
        if self.table.get(self.key) is self:
            del self.table[self.key]
        self.unset_timer()

    def unset_timer(self) -> None:
        """Its leader does not watch its time any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Dispatcher:
    """The sink of flights: what a single call and a batch have in common.

    Args:
        shell: of the running loop.
        table: key -> flight, of all that one judge has under way in this loop.
        terms: of each request; ``timeout`` is that of an item, in seconds.
        pools: where the requests of each juror's model wait.
        keep: see ``Keep``.
    """

    carry: Callable[[Attempt], Awaitable[Outcome]] | None = None

    def _sit(
        self,
        shell: LoopDriver,
        table: dict[Hashable, InflightRequest],
        terms: RequestOptions,
        pools: dict[JudgeModel, Pool],
        keep: Keep | None,
    ) -> None:
        self.shell, self.table = shell, table
        self._terms, self._pools, self._keep_answer = terms, pools, keep
        self.requests: dict[Task, None] = {}

    # what a kind of bench does in its own way

    def send(self, flight: InflightRequest, *, again: bool) -> None:
        """Send the flight's next request; ``again`` if it is not its first."""
        raise NotImplementedError

    def decided(self, poll: PendingItem, decided: Any) -> None:
        """A poll has its outcome."""
        raise NotImplementedError

    # polls

    def begin(self, poll: PendingItem, known: Sequence[Vote | None] = ()) -> None:
        """Ask what is not known yet: what another has under way is shared.

        Args:
            known: votes that were there before, by place.
        """
        for place, vote in enumerate(known):
            if vote is not None:
                poll.tell(place, vote)
        if poll.done:
            return
        terms = self._terms
        fresh = []
        for place, ask in enumerate(poll.asks):
            if poll.known[place] is not None:
                continue
            key = (ask.key, ask.swapped, terms.level, terms.tenant, terms.hedge)
            flight = self.table.get(key)
            if flight is None:
                flight = self.table[key] = InflightRequest(key, ask, self)
                fresh.append(flight)
            elif flight.leader is not self:
                self.watch_over(poll)
            flight.seats.append((poll, place))
            poll.flights[place] = flight
        for flight in fresh:
            if flight.seats:  # an earlier one may have ended at once, and the poll with it
                self.send(flight, again=False)

    def watch_over(self, poll: PendingItem) -> None:
        """See that a poll ends in time although a request that it waits for does not."""
        if poll.timer is not None or self._terms.timeout is None:
            return
        now = self.shell.engine.clock()
        if poll.until == inf:
            poll.until = now + self._terms.timeout
        poll.timer = self.shell.loop.call_later(max(0.0, poll.until - now), self._overdue, poll)

    def _overdue(self, poll: PendingItem) -> None:
        poll.timer = None
        poll.end(late(self._terms.timeout, poll.asks[0].juror.model))

    # flights

    def request(self, flight: InflightRequest, timeout: float | None) -> Asked:
        """A new request of a flight; any earlier one is nobody's from now on."""
        task = flight.task = Asked(flight, self._pools[flight.ask.juror], self._terms, timeout, self)
        self.requests[task] = None
        return task

    def release(self, flight: InflightRequest) -> None:
        """Nobody waits for a flight that this bench leads."""
        task, flight.task = flight.task, None
        if task is not None and task in self.requests:
            del self.requests[task]
            if self._is_begun(task):  # else it loads nothing when its turn comes
                self.shell.withdraw([task])

    def take_over(self, flight: InflightRequest) -> None:
        """Lead a flight that another gave up: its request goes on, unless it was not sent yet."""
        before, task = flight.leader, flight.task
        flight.leader = self
        flight.unset_timer()
        for poll in {seat[0]: None for seat in flight.seats if seat[0].owner is self}:
            self.watch_over(poll)
        flight.task = None  # so that it is not begun in this moment
        if task is not None:
            before.requests.pop(task, None)
            if self._is_begun(task):
                flight.task, task.sink = task, self
                flight.borrowed, flight.until = True, inf
                self.requests[task] = None
                return
        self.send(flight, again=False)

    def _is_begun(self, task: Task) -> bool:
        """Not only read ahead."""
        with self.shell.engine.lock:
            return task.state is not TaskState.NEW

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        """See ``Sink``."""
        if task not in self.requests:
            return
        del self.requests[task]
        assert isinstance(task, Asked)
        flight = task.flight
        flight.task = None
        if not flight.borrowed:
            flight.until = min(flight.until, task.deadline)
        heard = flight.ballot.hear(task, outcome, source, seconds)
        if self._keep_answer is not None and isinstance(outcome, Answer):
            assert flight.ballot.heard is not None
            assert source is not None
            key = flight.ask.key if isinstance(heard, Vote) else None
            self._keep_answer(Sighting(flight.ask.juror.cached_as, source.name, flight.ballot.heard, key))
        if heard is None:
            self._again(flight)
        elif isinstance(heard, RequestTimeout):
            self.timed_out(flight, heard)
        else:
            flight.end(heard)

    def _again(self, flight: InflightRequest) -> None:
        if self.shell.engine.clock() < flight.until:
            self.send(flight, again=True)
        else:
            assert flight.ballot.error is not None
            flight.end(flight.ballot.error)

    def timed_out(self, flight: InflightRequest, error: QRewardError) -> None:
        """The time of our own items is over: what others wait for goes on in theirs."""
        if flight.borrowed:  # it was another's time
            flight.borrowed = False
            self.send(flight, again=False)
            return
        others = [seat for seat in flight.seats if seat[0].owner is not self]
        if not others:
            flight.end(error)
            return
        mine = [seat for seat in flight.seats if seat[0].owner is self]
        flight.seats, flight.until = others, inf
        for number, (poll, place) in enumerate(mine):
            if not number:
                poll.charge(flight.ballot)
            poll.tell(place, _apart(error) if number else error)
        if flight.seats:  # telling ours may have ended theirs
            others[0][0].owner.take_over(flight)


def _apart(heard: Heard) -> Heard:
    """An error of its own for each who is told of it, as each adds its own traceback."""
    if not isinstance(heard, QRewardError):
        return heard
    other = copy(heard)
    other.__cause__ = heard.__cause__
    return other


def late(timeout: float | None, model: str) -> RequestTimeout:
    """What an item ends with whose time is over."""
    return RequestTimeout(f"no verdict within {timeout:g} s; model {model!r}", model=model)
