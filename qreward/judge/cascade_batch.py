"""Run one batch of a ``Cascade``. ``CascadeBatch`` runs one batch for each stage, and all these batches run at the same time. If a stage is
not sure of an item, the item is put into the batch of the next stage.

This module uses only the interface of the stages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

from qreward import options as options_of
from qreward.errors import ClientClosed, DeadlineExceeded, InvalidResponse, QRewardError
from qreward.judge.cascade_stage import EarlierStages, Stage
from qreward.judge.runner import JudgeAnswer, ResultCollector
from qreward.judge.types import Verdict
from qreward.options import DEFAULT
from qreward.progress import start_progress
from qreward.results import BatchInterrupted, BatchResult, BatchStats, EndpointStats, Result, merged_stats

_PASSED_ON = ("priority", "tenant", "deadline")


class _Sized:
    """Gives a known length to an iterator."""

    def __init__(self, size: int, items: Iterator[Any]) -> None:
        self._size, self._items = size, items

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return self._items


class CascadeBatch:
    """Scores the items of one batch.

    Args:
        stages: the stages.
        items: the items.
        options: the options of :class:`~qreward.options.JudgeBatchOptions`.
        limit: seconds for an item; None for no limit; ``DEFAULT`` for the default limit of each stage.
        count: function that is called with the name of the stage that decided an item.

    Raises:
        ConfigError: an option is invalid.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        items: Iterable[Any] | AsyncIterable[Any],
        options: Mapping[str, Any],
        *,
        limit: Any,
        count: Callable[[str], object],
    ) -> None:
        self._stages, self._items, self._limit, self._count = stages, items, limit, count
        self._given = {name: options[name] for name in _PASSED_ON if name in options}
        options_of.seconds("deadline", options.get("deadline"))
        on_result = options_of.callback("on_result", options.get("on_result"))
        self._clock = asyncio.get_running_loop().time
        self._size = len(items) if isinstance(items, Sized) else None
        title = ", ".join(stage.name for stage in stages)
        progress = start_progress(options.get("progress"), self._size, title=title, clock=self._clock)
        self._collector = ResultCollector(on_result, progress, keep=options.get("keep_results", True))
        self._queues = [_Queue() for _ in stages]
        self._open: dict[int, tuple[Any, EarlierStages]] = {}
        self._decided_by = dict.fromkeys((stage.name for stage in stages), 0)
        self._read = 0
        self._stats: list[BatchStats] = []
        self._failure: BaseException | None = None
        self._is_stopped = False

    async def run(self) -> BatchResult[Verdict]:
        """Score all items.

        The method raises the errors of ``Judge.batch_score``. If the batch of one stage raises, the batches of the other stages are
        cancelled.
        """
        began = self._clock()
        try:
            await self._run_stages()
            if not self._is_stopped:
                self._end_rest()
        except BaseExceptionGroup as errors:
            first = errors.exceptions[0]
            raise first from first.__cause__
        finally:
            self._collector.close()
        stats = self._joined_stats(self._clock() - began)
        if self._failure is not None:
            raise self._collector.interrupted(self._failure, f"{self._read} items", stats) from self._failure
        return self._collector.batch(stats)

    async def _run_stages(self) -> None:
        async with asyncio.TaskGroup() as group:
            later = [group.create_task(self._run_stage(place)) for place in range(1, len(self._stages))]
            await asyncio.sleep(0)  # so that a stage whose model has no endpoint raises before anything is sent
            for task in later:
                if task.done():
                    task.result()
            group.create_task(self._run_stage(0))

    async def _run_stage(self, place: int) -> None:
        stage, queue = self._stages[place], self._queues[place]
        timeout = {} if self._limit is DEFAULT else {"timeout": None if self._limit is None else self._limit * stage.share}
        given: Any = {**self._given, **timeout, "progress": False, "keep_results": False}
        try:
            batch = await stage.scorer.batch_score(
                queue.items() if place else self._input(), on_result=lambda result: self._record(place, result), **given
            )
            self._stats.append(batch.stats)
        except BatchInterrupted as error:  # if the input raised the exception, the other stages go on
            self._failure = self._failure or error.__cause__ or error
            if error.results is not None:
                self._stats.append(error.results.stats)
        if place + 1 < len(self._stages):
            self._queues[place + 1].end()

    # the input

    def _input(self) -> Any:
        if isinstance(self._items, AsyncIterable):
            return self._read_async(self._items)
        read = self._read_now(self._items)
        return read if self._size is None else _Sized(self._size, read)

    async def _read_async(self, items: AsyncIterable[Any]) -> AsyncIterator[Any]:
        iterator = aiter(items)
        try:
            async for item in iterator:
                yield self._noted(item)
        finally:
            if (aclose := getattr(iterator, "aclose", None)) is not None:
                await aclose()

    def _read_now(self, items: Iterable[Any]) -> Iterator[Any]:
        iterator = iter(items)
        try:
            for item in iterator:
                yield self._noted(item)
        finally:
            if (close := getattr(iterator, "close", None)) is not None:
                close()

    def _noted(self, item: Any) -> Any:
        self._open[self._read] = item, EarlierStages()
        self._queues[0].sent[self._read] = self._read
        self._read += 1
        return item

    # results

    def _record(self, place: int, result: Result[Verdict]) -> None:
        """Record a result of the stage at ``place``. If the result is not final, the item is put into the queue of the next stage."""
        if self._is_stopped:
            assert self._failure is not None
            raise self._failure
        index = self._queues[place].sent.pop(result.index, result.index)  # an item that the stage never read is not in ``sent``
        item, before = self._open.pop(index, (None, EarlierStages()))
        self._read = max(self._read, index + 1)
        stage, error, final = self._stages[place], result.error, False
        try:
            final = stage.is_sure(result.value) if error is None else stage.is_final(error)
        except InvalidResponse as fault:
            fault.usage, error, final = result.usage, fault, True
        after = before.with_result(result)
        if not final:
            cached = error is None and result.value.cached
            self._open[index] = item, after.with_stage(stage.name, error, result.usage, cached=cached)
            self._queues[place + 1].put(index, item)
            return
        self._count(stage.name)
        self._decided_by[stage.name] += 1
        answer = None
        if error is None:
            answer = JudgeAnswer(before.completed(stage.name, result.value), estimated=after.estimated)
        else:
            before.completed_error(error)
        self._settle(Result(index, answer, error, result.endpoint, after.latency, after.queued, after.trail, result.extra or None))

    def _settle(self, result: Result[Verdict]) -> None:
        try:
            self._collector.add(result)
        except BaseException as error:
            self._failure, self._is_stopped = error, True
            raise

    def _end_rest(self) -> None:
        """Give an error to each item that still waits for a stage, because the deadline has passed or a client was closed."""
        for index, (_, before) in sorted(self._open.items()):
            if "deadline" in self._given:
                error: QRewardError = DeadlineExceeded(f"not done within the batch's deadline of {self._given['deadline']:g} s")
            else:
                error = ClientClosed("the batch of the next stage ended before this item was done")
            result = Result[Verdict](index, None, before.completed_error(error), None, 0.0, before.queued, before.trail)
            try:
                self._settle(result)
            except Exception:
                return

    def _joined_stats(self, took: float) -> BatchStats:
        """Return the sum of the statistics of all stages, without counts of items."""
        costs = [stats.cost for stats in self._stats if stats.cost is not None]
        endpoints: dict[str, EndpointStats] = {}
        for stats in self._stats:
            for name, more in stats.endpoints.items():
                endpoints[name] = merged_stats(endpoints[name], more) if name in endpoints else more
        return BatchStats(seconds=took, endpoints=endpoints, cost=sum(costs) if costs else None, decided_by=self._decided_by)


class _Queue:
    """Yields the items of one stage. The earlier stage is not sure of these items.

    Attributes:
        sent: index of an item in the batch of the stage -> its index in the batch of the cascade.
    """

    def __init__(self) -> None:
        self.sent: dict[int, int] = {}
        self._read = 0
        self._waiting: deque[tuple[int, Any]] = deque()
        self._ended = False
        self._wake = asyncio.Event()

    def put(self, index: int, item: Any) -> None:
        self._waiting.append((index, item))
        self._wake.set()

    def end(self) -> None:
        """Record that no more items will come."""
        self._ended = True
        self._wake.set()

    async def items(self) -> AsyncIterator[Any]:
        while self._waiting or not self._ended:
            if not self._waiting:
                self._wake.clear()
                await self._wake.wait()
                continue
            index, item = self._waiting.popleft()
            self.sent[self._read] = index
            self._read += 1
            yield item
