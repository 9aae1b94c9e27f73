"""Share identical requests: each is in flight once, for all items that wait for it.

All of this happens in one event loop. A ``Dispatcher`` sends the requests of one call or batch. The dispatcher that started an
``InflightRequest`` leads it. If it no longer needs the request while items of other dispatchers wait, one of those takes it over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from copy import copy
from math import inf
from typing import Any

from qreward.engine.driver import LoopDriver
from qreward.errors import QRewardError, RequestTimeout
from qreward.judge.aggregation import Heard
from qreward.judge.cache import CacheEntry
from qreward.judge.item_state import JudgeItem, JudgeRequest
from qreward.judge.sampling import JudgeModel
from qreward.judge.types import Vote
from qreward.scheduler.outcome import Answer, Outcome
from qreward.scheduler.state import Attempt, Pool, RequestOptions, Source, Task, TaskState

Keep = Callable[[CacheEntry], object]
"""Receives each answer of a model, whether it could be parsed or not."""


class SampleTask(Task):
    """The current task of an in-flight request. Its payload is fixed only when it is sent, as the response format may change until then."""

    __slots__ = ("inflight_request",)

    def __init__(
        self, inflight_request: InflightRequest, pool: Pool, terms: RequestOptions, timeout: float | None, sink: Dispatcher
    ) -> None:
        super().__init__(inflight_request.sample_request.call(), pool, terms.level, timeout, sink, 0, terms.tenant)
        self.hedge = terms.hedge
        self.inflight_request = inflight_request

    def bind(self, now: float, source: Source) -> bool:  # noqa: ARG002
        """See ``Task.bind``. Returns False if no item waits for the request any more."""
        inflight_request = self.inflight_request
        if inflight_request.task is not self:
            return False
        if inflight_request.sample_request.is_stale():
            self.payload = inflight_request.sample_request.call()
        return True


class InflightRequest:
    """A sample request in flight, with the items that wait for it.

    Attributes:
        task: the task that is queued or being sent; None between two of them.
        leader: the dispatcher that sends for it.
        seats: the waiting items, each with the place of the request in the item. The request is charged to the first of them.
        borrowed: True if the task was started by another dispatcher, with that one's timeout.
        until: when its time is over, on the engine's clock; inf until the first task has ended.
        timer: ends a request that was sent again and may still be in the queue when its time is over.
    """

    __slots__ = ("ask", "borrowed", "key", "leader", "sample_request", "seats", "table", "task", "timer", "until")

    def __init__(self, key: Hashable, ask: JudgeRequest, leader: Dispatcher) -> None:
        self.key, self.ask, self.leader = key, ask, leader
        self.table = leader.table
        self.sample_request = ask.sample_request()
        self.seats: list[tuple[JudgeItem, int]] = []
        self.task: SampleTask | None = None
        self.borrowed = False
        self.until = inf
        self.timer: Any = None

    def end(self, heard: Heard) -> None:
        """End with a vote or an error, and pass it to all waiting items."""
        self._close()
        seats, self.seats = self.seats, []
        for number, (poll, place) in enumerate(seats):
            if not number:
                poll.charge(self.sample_request)
            poll.tell(place, _apart(heard) if number else heard)

    def leave(self, poll: JudgeItem) -> None:
        """Remove an item that no longer waits. Without items the request is cancelled; without items of its leader it is taken over."""
        paid = bool(self.seats) and self.seats[0][0] is poll
        self.seats = [seat for seat in self.seats if seat[0] is not poll]
        if paid:
            poll.charge(self.sample_request)
            self.sample_request.usage = None
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
        """Cancel the leader's timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Dispatcher:
    """Sends requests for items and receives their outcomes. The common base of ``SingleRunner`` and ``BatchRunner``.

    Args:
        shell: driver of the running event loop.
        table: the requests that one judge has in flight in this event loop, by key.
        terms: options of each request; ``timeout`` is that of an item, in seconds.
        pools: the pool of endpoints of each judge model.
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

    # implemented by subclasses

    def send(self, inflight_request: InflightRequest, *, again: bool) -> None:
        """Send an in-flight request. ``again`` is True if it was sent before."""
        raise NotImplementedError

    def decided(self, poll: JudgeItem, decided: Any) -> None:
        """An item has its outcome."""
        raise NotImplementedError

    # items

    def begin(self, poll: JudgeItem, known: Sequence[Vote | None] = ()) -> None:
        """Send the requests of an item that have no vote yet. A request that is already in flight is shared.

        Args:
            known: votes from the cache, by place.
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
            inflight_request = self.table.get(key)
            if inflight_request is None:
                inflight_request = self.table[key] = InflightRequest(key, ask, self)
                fresh.append(inflight_request)
            elif inflight_request.leader is not self:
                self.watch_over(poll)
            inflight_request.seats.append((poll, place))
            poll.inflight[place] = inflight_request
        for inflight_request in fresh:
            if inflight_request.seats:  # sending an earlier one may have ended the item
                self.send(inflight_request, again=False)

    def watch_over(self, poll: JudgeItem) -> None:
        """Start the item's own timer, for an item whose requests may end later than its timeout."""
        if poll.timer is not None or self._terms.timeout is None:
            return
        now = self.shell.engine.clock()
        if poll.until == inf:
            poll.until = now + self._terms.timeout
        poll.timer = self.shell.loop.call_later(max(0.0, poll.until - now), self._overdue, poll)

    def _overdue(self, poll: JudgeItem) -> None:
        poll.timer = None
        poll.end(late(self._terms.timeout, poll.asks[0].judge_model.model))

    # requests in flight

    def request(self, inflight_request: InflightRequest, timeout: float | None) -> SampleTask:
        """Create a new task for an in-flight request. It replaces any earlier one."""
        task = inflight_request.task = SampleTask(
            inflight_request, self._pools[inflight_request.ask.judge_model], self._terms, timeout, self
        )
        self.requests[task] = None
        return task

    def release(self, inflight_request: InflightRequest) -> None:
        """Cancel an in-flight request of this dispatcher for which no item waits."""
        task, inflight_request.task = inflight_request.task, None
        if task is not None and task in self.requests:
            del self.requests[task]
            if self._is_begun(task):  # else SampleTask.bind() returns False when its turn comes
                self.shell.withdraw([task])

    def take_over(self, inflight_request: InflightRequest) -> None:
        """Lead a request that another dispatcher gave up. A task that was started continues, another one is replaced."""
        before, task = inflight_request.leader, inflight_request.task
        inflight_request.leader = self
        inflight_request.unset_timer()
        for poll in {seat[0]: None for seat in inflight_request.seats if seat[0].owner is self}:
            self.watch_over(poll)
        inflight_request.task = None  # so that the task is not started meanwhile
        if task is not None:
            before.requests.pop(task, None)
            if self._is_begun(task):
                inflight_request.task, task.waiter = task, self
                inflight_request.borrowed, inflight_request.until = True, inf
                self.requests[task] = None
                return
        self.send(inflight_request, again=False)

    def _is_begun(self, task: Task) -> bool:
        """Whether the scheduler has started the task. Else it was only read ahead."""
        with self.shell.engine.lock:
            return task.state is not TaskState.NEW

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        """See ``Waiter``."""
        if task not in self.requests:
            return
        del self.requests[task]
        assert isinstance(task, SampleTask)
        inflight_request = task.inflight_request
        inflight_request.task = None
        if not inflight_request.borrowed:
            inflight_request.until = min(inflight_request.until, task.deadline)
        heard = inflight_request.sample_request.hear(task, outcome, source, seconds)
        if self._keep_answer is not None and isinstance(outcome, Answer):
            assert inflight_request.sample_request.heard is not None
            assert source is not None
            key = inflight_request.ask.key if isinstance(heard, Vote) else None
            self._keep_answer(
                CacheEntry(inflight_request.ask.judge_model.cached_as, source.name, inflight_request.sample_request.heard, key)
            )
        if heard is None:
            self._again(inflight_request)
        elif isinstance(heard, RequestTimeout):
            self.timed_out(inflight_request, heard)
        else:
            inflight_request.end(heard)

    def _again(self, inflight_request: InflightRequest) -> None:
        if self.shell.engine.clock() < inflight_request.until:
            self.send(inflight_request, again=True)
        else:
            assert inflight_request.sample_request.error is not None
            inflight_request.end(inflight_request.sample_request.error)

    def timed_out(self, inflight_request: InflightRequest, error: QRewardError) -> None:
        """End this dispatcher's own items with the error. A request that items of others wait for continues with their timeouts."""
        if inflight_request.borrowed:  # the timeout was that of another dispatcher
            inflight_request.borrowed = False
            self.send(inflight_request, again=False)
            return
        others = [seat for seat in inflight_request.seats if seat[0].owner is not self]
        if not others:
            inflight_request.end(error)
            return
        mine = [seat for seat in inflight_request.seats if seat[0].owner is self]
        inflight_request.seats, inflight_request.until = others, inf
        for number, (poll, place) in enumerate(mine):
            if not number:
                poll.charge(inflight_request.sample_request)
            poll.tell(place, _apart(error) if number else error)
        if inflight_request.seats:  # ending our items may have ended the others too
            others[0][0].owner.take_over(inflight_request)


def _apart(heard: Heard) -> Heard:
    """A copy of an error, so that each receiver adds its own traceback. A vote is returned unchanged."""
    if not isinstance(heard, QRewardError):
        return heard
    other = copy(heard)
    other.__cause__ = heard.__cause__
    return other


def late(timeout: float | None, model: str) -> RequestTimeout:
    """The error of an item whose time is over."""
    return RequestTimeout(f"no verdict within {timeout:g} s; model {model!r}", model=model)
