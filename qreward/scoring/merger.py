"""Merges waiting items into requests, and distributes each answer or error among the items of its request.

Items that may share a request have one ``RequestMerger`` per event loop. Its ``MergeQueue`` is used under the engine's lock; everything
else runs in the event loop's thread. This module does not know what an item is.
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from math import ceil, inf
from typing import Protocol

from qreward.batching.backlog import OVER, WAITING, halves
from qreward.batching.in_flight import own_error
from qreward.codecs.base import WireRequest
from qreward.codecs.rewards.base import may_be_one_items_fault, splits
from qreward.engine.driver import LoopDriver
from qreward.errors import ClientClosed, InvalidResponse, QRewardError, RequestError
from qreward.results import AttemptRecord
from qreward.scheduler import scheduler as endings
from qreward.scheduler.outcome import Answer, Failure, FailureKind, Outcome
from qreward.scheduler.state import Attempt, BatchFeed, Pool, Source, Task, TaskState
from qreward.scoring import sizing
from qreward.scoring.endpoint_limits import KnownLists
from qreward.scoring.formats import MergeFormat
from qreward.scoring.items import MergedItem, MergedRequest, Split
from qreward.scoring.merge_queue import MergeQueue

AHEAD = 4 * sizing.MOST
"""Maximum number of items that batches read ahead. Reading continues when fewer than half of them wait."""


class AnswerReader(Protocol):
    """A batch that reads its input when the merger asks for more items."""

    def more(self) -> None:
        """Read items and put them in, up to ``AHEAD`` waiting items."""

    def unread(self) -> float:
        """Number of items not yet read; inf if unknown."""


class RequestMerger:
    """The waiter of merged requests (see ``engine.protocols.Waiter``).

    Args:
        pool: the endpoints that may serve the items.
        listing: how items are merged into one request.
        lists: the known limits of merged requests, by endpoint.
        blank: a request without items, the payload of a merged request before it is filled.
        attempts: failed attempts after which a merged request fails or is split.
        most_waiting: maximum number of requests that wait for the pool, single items included; None is no limit.
        idle: called when the merger has neither items nor batches left.
    """

    def __init__(
        self,
        shell: LoopDriver,
        pool: Pool,
        listing: MergeFormat,
        lists: KnownLists,
        blank: WireRequest,
        *,
        attempts: int,
        most_waiting: int | None,
        idle: Callable[[], object],
    ) -> None:
        self.shell = shell
        self.context = Context()
        self._pool, self._listing, self._blank = pool, listing, blank
        self._attempts, self._most_waiting, self._idle = attempts, most_waiting, idle
        self._stock = MergeQueue(pool, listing, lists)
        self.fill = self._stock.fill
        self._readers: dict[AnswerReader, None] = {}
        self._timer: TimerHandle | None = None
        self._timer_at = inf
        self._pacer: TimerHandle | None = None
        self._live = 0  # items that are not over
        self._soon = False

    # adding items

    def put(self, members: Sequence[MergedItem], *, bulk: bool = False) -> None:
        """Add items. They are submitted in the next iteration of the event loop, so that items added together are merged together.

        Raises:
            QueueFull: ``most_waiting`` is reached. Does not apply to the items of a batch.
        """
        engine, watch = self.shell.engine, self.shell.watch
        if not bulk:
            self._check_room()
        if watch is not None:
            for member in members:
                watch.began(member)
        with engine.lock:
            self._stock.put(engine.clock(), members, self, bulk=bulk)
        self.shell.sinks[self] = None
        self._live += len(members)
        self._go_on_soon()

    def _check_room(self) -> None:
        if self._most_waiting is None:
            return
        with self.shell.engine.lock:
            waiting, carriers = self._stock.singles()
            waiting += self._pool.queue.waiting - carriers
        if waiting >= self._most_waiting:
            raise endings.full(self._pool, self._most_waiting)

    @property
    def waiting(self) -> int:
        """Number of items that are in no merged request."""
        return self._stock.waiting

    def attach(self, reader: AnswerReader) -> None:
        """Register a batch. The merger calls its ``more`` when few items wait."""
        self._readers[reader] = None

    def detach(self, reader: AnswerReader) -> None:
        """Unregister a batch that has ended."""
        self._readers.pop(reader, None)
        self._rest_if_idle()

    # submitting merged requests

    def _go_on_soon(self) -> None:
        if not self._soon:
            self._soon = True
            self.shell.loop.call_soon(self._continue)

    def _continue(self) -> None:
        """Let batches read ahead, and make sure that waiting items have a merged request in the scheduler."""
        self._soon = False
        if not self._live and not self._readers:
            return
        if self._stock.waiting < AHEAD // 2:
            for reader in list(self._readers):
                reader.more()
        unread, engine = sum(reader.unread() for reader in self._readers), self.shell.engine
        with engine.lock:
            wanted, seconds = self._stock.look(engine.clock(), unread)
        if seconds > 0 and self._pacer is None:
            self._pacer = self.shell.loop.call_later(seconds, self._go_on_after_pause)
        if wanted:
            self.shell._locked(self._submit, seconds > 0)
        self._arm()

    def _go_on_after_pause(self) -> None:
        self._pacer = None
        self._continue()

    def _submit(self, now: float, paused: bool) -> None:
        """Keep one unfilled merged request per lane in the scheduler. When one is sent at once, submit the next."""
        for lane in self._stock.lanes.values():
            if paused and lane.feed is None:
                continue
            while lane.waiting and lane.carrier is None:
                lane.carrier = MergedRequest(self._blank, self._pool, lane, self)
                self._hand_in(now, lane.carrier)

    def _hand_in(self, now: float, carrier: MergedRequest) -> None:
        """Submit a merged request to the scheduler. In a lane of batches, one that already has items goes ahead of unfilled ones."""
        scheduler, feed = self.shell.engine.scheduler, carrier.lane.feed
        if feed is None:
            carrier.state = TaskState.WAITING  # not NEW: the queue limit counts items, not merged requests
            scheduler.submit(now, carrier)
            return
        if carrier.members:
            feed.buffer.appendleft(carrier)
        else:
            feed.buffer.append(carrier)
        unread = self._stock.unread
        feed.ended = not unread
        feed.left = None if unread == inf else len(feed.buffer) + ceil((self._stock.waiting + unread) / sizing.MOST)
        scheduler.refill(now, feed)

    # called by the loop driver

    def start(self, attempt: Attempt) -> None:
        self.shell.spawn(attempt, self.context.copy(), self)

    async def carry(self, attempt: Attempt) -> Outcome:
        """Make one attempt. A failure that one item may have caused becomes ``REFUSED``: the request is split, not retried as a whole."""
        self._continue()
        carrier = attempt.task
        assert isinstance(carrier, MergedRequest)
        count = len(carrier.members)
        outcome: Outcome = await self.shell.wire.send(attempt.source.handle, carrier.payload)
        if not isinstance(outcome, Failure):
            return outcome
        if outcome.kind is FailureKind.OVERLOADED and outcome.retry_after is None and attempt.source.inflight == 1:
            with self.shell.engine.lock:
                self._stock.turned_away(attempt.source, count)
        if splits(outcome, count):
            carrier.refused_by = attempt.source
            return Failure(FailureKind.REFUSED, outcome.error, limits=outcome.limits)
        if outcome.kind is FailureKind.TRANSIENT and _was_answered(outcome):
            with self.shell.engine.lock:
                suspicious = self._stock.broke(carrier)
            if suspicious and count > 1 and may_be_one_items_fault(outcome.error):
                return Failure(FailureKind.REFUSED, outcome.error, limits=outcome.limits)
            if carrier.is_suspect():  # retried without harm to the endpoint's health
                return Failure(FailureKind.LOCAL, outcome.error, limits=outcome.limits)
        return outcome

    def read(self, feed: BatchFeed) -> bool:  # noqa: ARG002 - merged requests are added when items are
        return False

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        assert isinstance(task, MergedRequest)
        with self.shell.engine.lock:
            self._stock.returned(task)
            if isinstance(outcome, Answer):
                assert source is not None
                self._stock.took(task, source, seconds)
        if isinstance(outcome, Answer):
            assert source is not None
            self._share(task, outcome, source, seconds)
        elif not task.members:  # no endpoint will fill it
            self._fail(self._remove_waiting(), outcome)
        elif len(task.members) > 1 and may_be_one_items_fault(outcome):
            self._split(task)
        else:
            self._fail(task.left(), outcome)
        self._go_on_soon()
        self._rest_if_idle()

    def close(self) -> None:
        error = ClientClosed("the client was closed before the request was done")
        with self.shell.engine.lock:
            loaded = self._stock.unload()
            carried = [member for carrier in loaded for member in carrier.left()]
        self.shell.withdraw(list(loaded), error)
        self._fail([*carried, *self._remove_waiting()], error)
        self._rest_if_idle()

    def abandon(self) -> list[Task]:
        with self.shell.engine.lock:
            left: list[Task] = [*self._stock.unload(), *self._stock.unsent()]
        self._forget_lanes()
        self._idle()
        return left

    # the outcome of a merged request

    def _share(self, carrier: MergedRequest, answer: Answer, source: Source, seconds: float) -> None:
        members = carrier.members
        shares = self._listing.shares(answer.value, [member.payload for member in members])
        again: list[MergedItem] = []
        for member, share in zip(members, shares, strict=True):
            if member.place is OVER:
                continue
            if not isinstance(share, InvalidResponse):
                self._settle(member, Answer(share), source, seconds)
            elif self._attempts > 1:
                member.fail(AttemptRecord(source.name, "transient", seconds, share.status_code, str(share)), share)
                again.append(member)
            else:
                self._settle(member, share, source, seconds)
        for member in again:  # alone, so that the item gets the answer of an ordinary request
            self._send_again([member], 1, Split(None, 1, True))

    def _split(self, carrier: MergedRequest) -> None:
        """Send the items again in halves, until a bad item is alone.

        If the request has used up its attempts, all of its items may be bad; each part then has at most two attempts.
        """
        members, source = carrier.left(), carrier.refused_by
        tries = max(0, self._attempts - 2) if carrier.tries >= self._attempts else 0
        parts = halves(members) if len(members) > 1 else [members]
        cut = Split(source if len(parts) > 1 else None, len(parts[0]), carrier.is_suspect())
        for part in parts:
            if part:
                self._send_again(list(part), tries, cut)

    def _send_again(self, members: list[MergedItem], tries: int, cut: Split) -> None:
        carrier = MergedRequest(self._blank, self._pool, members[0].lane, self, members)
        carrier.tries, carrier.cut = tries, cut
        for member in members:
            member.change_to(carrier)
        carrier.last_error, carrier.sent_at = members[0].last_error, members[0].sent_at
        self.shell._locked(self._hand_back, carrier)

    def _hand_back(self, now: float, carrier: MergedRequest) -> None:
        self._stock.loaded[carrier] = None
        self._hand_in(now, carrier)

    def _fail(self, members: Sequence[MergedItem], error: QRewardError) -> None:
        for member in members:
            own = error if len(members) == 1 else own_error(error)
            assert isinstance(own, QRewardError)
            self._settle(member, own, None, 0.0)

    def _settle(self, member: MergedItem, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        member.end()
        self._live -= 1
        self._tell(member, outcome, source, seconds)

    def _tell(self, member: MergedItem, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        if self.shell.watch is not None:
            self.shell.watch.done(member, outcome, source)
        member.waiter.finish(member, outcome, source, seconds)

    # ending early

    def drop(self, members: Iterable[MergedItem]) -> None:
        """Remove items whose caller no longer waits. Items that are over are left as they are."""
        self._leave(members)
        if self.shell.watch is not None:
            self.shell.watch.withdrawn(members)
        self._rest_if_idle()

    def end(self, members: Sequence[MergedItem], errors: Sequence[QRewardError]) -> None:
        """End items with one error each, whether they wait or were sent. None of them may be over."""
        self._leave(members, errors[0] if errors else None)
        for member, error in zip(members, errors, strict=True):
            self._tell(member, error, None, 0.0)
        self._rest_if_idle()

    def _leave(self, members: Iterable[MergedItem], error: QRewardError | None = None) -> None:
        """Remove items from the queue or from their merged request. A merged request without live items is withdrawn."""
        empty: list[Task] = []
        with self.shell.engine.lock:
            for member in members:
                if member.place is OVER:
                    continue
                carrier = member.carrier
                if member.place is WAITING:
                    self._stock.remove(member)
                member.end()
                self._live -= 1
                if carrier is not None and carrier.lost_one():
                    carrier.deadline = inf if error is None else self.shell.engine.clock()
                    empty.append(carrier)
                    self._stock.returned(carrier)
        self._withdraw(empty, error)
        if not self.shell.loop.is_closed():
            self._go_on_soon()

    def _remove_waiting(self) -> list[MergedItem]:
        with self.shell.engine.lock:
            return self._stock.remove_all()

    def _withdraw(self, carriers: list[Task], error: QRewardError | None = None) -> None:
        if carriers and not self.shell.loop.is_closed():
            self.shell.withdraw(carriers, error)

    def _forget_lanes(self) -> None:
        with self.shell.engine.lock:
            lanes, self._stock.lanes = self._stock.lanes, {}
        for lane in lanes.values():
            if lane.feed is not None:
                self.shell.close_feed(lane.feed)

    def _rest_if_idle(self) -> None:
        """Without items and batches, cancel the timers, withdraw unfilled requests and unregister from the loop driver."""
        if self._live or self._readers:
            return
        for timer in (self._timer, self._pacer):
            if timer is not None:
                timer.cancel()
        self._timer = self._pacer = None
        with self.shell.engine.lock:
            unsent: list[Task] = [*self._stock.unsent()]
        self._withdraw(unsent)
        self._forget_lanes()
        self.shell.sinks.pop(self, None)
        self._idle()

    # deadlines

    def _arm(self) -> None:
        with self.shell.engine.lock:
            until = self._stock.deadlines.next()
        if until is None or (self._timer is not None and until >= self._timer_at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = until
        self._timer = self.shell.loop.call_later(max(0.0, until - self.shell.engine.clock()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        with self.shell.engine.lock:
            late = self._stock.deadlines.due(self.shell.engine.clock())
        self.end(late, [endings.timed_out(member.with_last_error()) for member in late])


def _was_answered(failure: Failure) -> bool:
    """Whether the endpoint responded, rather than that the connection was lost."""
    return isinstance(failure.error, RequestError) and failure.error.status_code is not None
