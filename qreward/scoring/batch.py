"""A batch whose items share requests: a ``BatchWaiter`` that puts what it reads into one ``RequestMerger`` per merge key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from math import inf
from typing import Any, cast

from qreward.batching.backlog import WAITING
from qreward.engine.batch import BatchWaiter
from qreward.engine.driver import LoopDriver
from qreward.errors import QRewardError
from qreward.results import BatchResult
from qreward.scheduler.outcome import Answer
from qreward.scheduler.state import BatchFeed, Pool, RequestOptions, Source, Task
from qreward.scoring.formats import MergeSpec
from qreward.scoring.items import MergedItem
from qreward.scoring.merger import AHEAD, RequestMerger


class ItemTerms(RequestOptions):
    """Options whose tasks are ``MergedItem``."""

    __slots__ = ()

    def task(self, payload: Any, pool: Pool, sink: Any, index: int) -> MergedItem:
        return MergedItem(payload, pool, self, sink, index)


class MergedBatchWaiter(BatchWaiter):
    """See :class:`BatchWaiter`. The scheduler watches the feed for outages but takes no items from it: they are in the mergers.

    Args:
        asking: the operation, and how its items are merged.
        find: returns the merger of a key.
    """

    def __init__(
        self,
        shell: LoopDriver,
        *args: Any,
        terms: RequestOptions,
        asking: MergeSpec,
        find: Callable[[Hashable], RequestMerger],
        **kwargs: Any,
    ) -> None:
        super().__init__(shell, *args, terms=ItemTerms(*terms), **kwargs)
        self._asking, self._find = asking, find
        self._collectors: dict[Hashable, RequestMerger] = {}

    async def run(self) -> BatchResult[Any]:
        try:
            return await super().run()
        finally:
            for collector in self._collectors.values():
                collector.detach(self)

    # called by the mergers

    @property
    def opened_at(self) -> float:
        """When reading of the input began, in seconds on the engine's clock."""
        return self._feed.opened_at

    def more(self) -> None:
        if self._feed.failing is None and self._room(self._feed) > 0:
            self.read(self._feed)

    def unread(self) -> float:
        if self._feed.ended:
            return 0
        return inf if self._size is None else max(0, self._size - self._read)

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        if task in self._live:  # otherwise it was dropped while other items were being finished
            super().finish(task, outcome, source, seconds)

    def abandon(self) -> list[Task]:
        left = super().abandon()
        self._drop(left)
        return left

    # reading

    def read(self, feed: BatchFeed) -> bool:
        self._end_trying(feed)
        return super().read(feed)

    def _read_now(self, feed: BatchFeed) -> bool:
        super()._read_now(feed)
        self._hand_over(feed)
        if feed.ended:
            self._end_trying(feed)
        return True

    def _room(self, feed: BatchFeed) -> int:
        waiting = sum(collector.waiting for collector in self._collectors.values())
        return AHEAD - waiting - len(feed.buffer)

    def _add(self, feed: BatchFeed, item: Any) -> None:
        super()._add(feed, item)
        if isinstance(self._items, AsyncIterator):
            self._hand_over(feed)

    def _hand_over(self, feed: BatchFeed) -> None:
        """Move items from the feed's buffer to their mergers."""
        fresh: dict[Hashable, list[MergedItem]] = {}
        for task in feed.buffer:
            fresh.setdefault(self._asking.key(task.payload), []).append(cast("MergedItem", task))
        feed.buffer.clear()
        for key, members in fresh.items():
            collector = self._collectors.get(key)
            if collector is None:
                collector = self._collectors[key] = self._find(key)
                collector.attach(self)
            collector.put(members, bulk=True)

    # ending early

    def _drop_unstarted(self) -> None:
        super()._drop_unstarted()
        unsent = self._waiting()
        for task in unsent:
            del self._live[task]
        self._drop(unsent)

    def _is_trying(self, feed: BatchFeed) -> bool:
        return bool(feed.buffer or self._waiting())

    def _end_trying(self, feed: BatchFeed) -> None:
        """While no endpoint is alive, fail the items that wait in the mergers.

        Until the input has ended, one item stays: its attempts show when an endpoint is alive again.
        """
        if feed.failing is not None:
            for collector, members in self._by_collector(self._waiting()[not feed.ended :]):
                collector.end(members, [feed.failing() for _ in members])

    def _drop(self, tasks: Iterable[Task]) -> None:
        for collector, members in self._by_collector(tasks):
            collector.drop(members)

    def _waiting(self) -> list[Task]:
        return [task for task in self._live if cast("MergedItem", task).place is WAITING]

    def _by_collector(self, tasks: Iterable[Task]) -> list[tuple[RequestMerger, list[MergedItem]]]:
        groups: dict[Hashable, list[MergedItem]] = {}
        for task in tasks:
            groups.setdefault(self._asking.key(task.payload), []).append(cast("MergedItem", task))
        return [(self._collectors[key], members) for key, members in groups.items() if key in self._collectors]
