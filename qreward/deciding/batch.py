"""Send a batch of decisions. An item with more questions than a server accepts is sent as several requests at the same time."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from qreward.codecs.base import WireRequest
from qreward.deciding.parts import JoinedAnswer, Outcome, divided, joined, questions_of, smaller
from qreward.engine.batch import BatchWaiter
from qreward.engine.snapshots import ItemTallies, result_of
from qreward.errors import QRewardError
from qreward.records import AttemptRecord
from qreward.results import Result
from qreward.scheduler.outcome import Answer
from qreward.scheduler.source import Source
from qreward.scheduler.task import BatchFeed, Task


class DividedItem:
    """Collects the results of an item that is sent in parts. A part may be divided again."""

    __slots__ = ("ended", "failed", "index", "under_way")

    def __init__(self, index: int, under_way: int = 0) -> None:
        self.index, self.under_way = index, under_way
        self.ended: list[tuple[int, WireRequest, Result[Any]]] = []
        self.failed: list[AttemptRecord] = []

    def result(self) -> Result[Any]:
        """Return the result of the item. All requests of the item must have ended."""
        _, calls, results = zip(*sorted(self.ended, key=lambda each: each[0]), strict=True)
        outcomes: list[Outcome] = [each.value if each.error is None else each.error for each in results]
        joint = joined(calls, outcomes)
        last = max(results, key=lambda each: (each.ok, each.latency))  # the last attempt of this result is the last attempt of the item
        others = [attempt for each in results if each is not last for attempt in each.attempts]
        trail = (*self.failed, *others, *(last.attempts[:-1] if last.ok else last.attempts))
        queued = min(each.queued for each in results)
        if isinstance(joint, QRewardError):
            return Result(self.index, None, joint, last.endpoint, 0.0, queued, trail)
        return Result(self.index, JoinedAnswer(joint), None, last.endpoint, last.latency, queued, trail)


class DecisionBatch(BatchWaiter):
    """Receives the outcome of each task of a batch of decisions. The other arguments are described at :class:`BatchWaiter`."""

    _read_at_once = 1

    def __init__(self, *args: Any, most: Callable[[], int], waited: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._most, self._waited = most, waited
        self._tallies: ItemTallies = ItemTallies()
        self._parts: dict[Task, tuple[DividedItem, int]] = {}  # the item of a part, and the place of its first question in the item

    def _put(self, feed: BatchFeed, index: int, payload: WireRequest) -> None:
        calls = divided(payload, self._most())
        if len(calls) == 1:
            super()._put(feed, index, payload)
            return
        for task in self._tasks(DividedItem(index), 0, calls, self._request_options.timeout):
            feed.read(task)
        if feed.left is not None:
            with self.driver.engine.lock:
                feed.left += len(calls) - 1

    def _tasks(self, item: DividedItem, place: int, calls: list[WireRequest], timeout: float | None) -> list[Task]:
        tasks = []
        for call in calls:
            task = self._request_options._replace(timeout=timeout).task(call, self._pool, self, item.index)
            self._live[task] = None
            self._parts[task] = item, place
            place += len(questions_of(call))
            tasks.append(task)
        item.under_way += len(tasks)
        return tasks

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        self._live.pop(task, None)
        result = result_of(task, outcome, source, seconds)
        if result.error is None or not self._send_again(task, result):
            self._end_task(task, result)
        self._end_if_done()

    def _send_again(self, task: Task, result: Result[Any]) -> bool:
        """Divide a failed request and send its parts, if an invalid question or the number of questions may be the cause."""
        assert result.error is not None
        if self._ending or self._error is not None:
            return False
        calls = smaller(task.payload, result.error, result.attempts, self._most())
        if not calls:
            return False
        self._tallies.add_request(result)
        item, place = self._parts.pop(task) if task in self._parts else (DividedItem(result.index, under_way=1), 0)
        item.under_way -= 1
        item.failed += result.attempts
        left = None if task.deadline == inf else max(task.deadline - self.driver.engine.clock(), 1e-3)
        self.driver.refill(self._feed, self._tasks(item, place, calls, left))
        return True

    def _end_task(self, task: Task, result: Result[Any]) -> None:
        self._tallies.add_request(result)
        if task in self._parts:
            item, place = self._parts.pop(task)
            item.under_way -= 1
            item.ended.append((place, task.payload, result))
            if item.under_way:
                return
            result = item.result()
        self._settle(result)

    def _drop_unstarted(self) -> None:
        super()._drop_unstarted()
        self._parts = {task: part for task, part in self._parts.items() if task in self._live}
