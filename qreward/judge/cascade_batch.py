"""One batch of a ``Cascade``: a batch of each stage, all at once. An item of which a stage is not sure enters the next stage's batch.

This module knows the stages by their interface only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

from qreward import options as options_of
from qreward.errors import ClientClosed, DeadlineExceeded, InvalidResponse, QRewardError
from qreward.judge.cascade_stage import Decided, Stage
from qreward.judge.runner import JudgeAnswer
from qreward.judge.types import Verdict
from qreward.options import DEFAULT
from qreward.progress import ProgressMeter, start_progress
from qreward.results import BatchInterrupted, BatchResult, BatchStats, EndpointStats, Result, merged_stats

_FROM_STAGES = ("priority", "tenant", "deadline")


class _Sized:
    """An iterable with the length of another."""

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
        options: those of :class:`~qreward.options.JudgeBatchOptions`.
        limit: seconds for an item, None for no limit, ``DEFAULT`` for that of each stage.
        count: called with the name of the stage that decided an item.

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
        self._given = {name: options[name] for name in _FROM_STAGES if name in options}
        options_of.seconds("deadline", options.get("deadline"))
        self._on_result = options_of.callback("on_result", options.get("on_result"))
        self._keep = options.get("keep_results", True)
        self._clock = asyncio.get_running_loop().time
        self._size = len(items) if isinstance(items, Sized) else None
        title = ", ".join(stage.name for stage in stages)
        self._progress: ProgressMeter | None = start_progress(options.get("progress"), self._size, title=title, clock=self._clock)
        self._queues = [_Queue() for _ in stages]
        self._open: dict[int, tuple[Any, Decided]] = {}
        self._results: dict[int, Result[Verdict]] = {}
        self._decided_by = dict.fromkeys((stage.name for stage in stages), 0)
        self._read = self._ok = self._failed = 0
        self._stats: list[BatchStats] = []
        self._failure: BaseException | None = None
        self._is_stopped = False

    async def run(self) -> BatchResult[Verdict]:
        """Score all items. Raises as ``Judge.batch_score`` does; if the batch of a stage raises, those of the others are cancelled."""
        began = self._clock()
        try:
            await self._run_stages()
            if not self._is_stopped:
                self._end_rest()
        except BaseExceptionGroup as errors:
            first = errors.exceptions[0]
            raise first from first.__cause__
        finally:
            if self._progress is not None:
                self._progress.close()
        batch = self._collected(self._clock() - began)
        if self._failure is None:
            return batch
        what = f"{type(self._failure).__name__}: {self._failure}"
        raise BatchInterrupted(
            f"the batch stopped after {self._read} items ({what}); .results holds what is done", batch
        ) from self._failure

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
        except BatchInterrupted as error:  # raised by the input or ``on_result``; after an exception of the input the other stages go on
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
        self._open[self._read] = item, Decided()
        self._queues[0].sent[self._read] = self._read
        self._read += 1
        return item

    # results

    def _record(self, place: int, result: Result[Verdict]) -> None:
        """Take the result of a stage: it is that of the item, or the item goes to the next stage."""
        if self._is_stopped:
            assert self._failure is not None
            raise self._failure
        index = self._queues[place].sent.pop(result.index, result.index)  # an item that was never read fails at the deadline
        item, before = self._open.pop(index, (None, Decided()))
        self._read = max(self._read, index + 1)
        stage, error, sure = self._stages[place], result.error, False
        try:
            sure = stage.is_sure(result.value) if error is None else stage.stands(error)
        except InvalidResponse as fault:
            fault.usage, error, sure = result.usage, fault, True
        after = before.with_result(result)
        if not sure:
            cached = error is None and result.value.cached
            self._open[index] = item, after.after(stage.name, error, result.usage, cached=cached)
            self._queues[place + 1].put(index, item)
            return
        self._count(stage.name)
        self._decided_by[stage.name] += 1
        answer = None
        if error is None:
            answer = JudgeAnswer(before.verdict(stage.name, result.value), estimated=after.estimated)
        else:
            before.charged(error)
        trail = after.trail[:-1] if result.ok and result.endpoint is not None else after.trail  # a ``Result`` adds its last attempt itself
        self._settle(Result(index, answer, error, result.endpoint, after.latency, after.queued, trail, result.extra or None))

    def _settle(self, result: Result[Verdict]) -> None:
        self._ok += result.ok
        self._failed += not result.ok
        if self._keep:
            self._results[result.index] = result
        if self._progress is not None:
            self._progress.add(result)
        if self._on_result is None:
            return
        try:
            self._on_result(result)
        except BaseException as error:
            self._failure, self._is_stopped = error, True
            raise

    def _end_rest(self) -> None:
        """Give an error to each item that waits for a stage whose batch has ended: at the deadline, or as its client was closed."""
        for index, (_, before) in sorted(self._open.items()):
            if "deadline" in self._given:
                error: QRewardError = DeadlineExceeded(f"not done within the batch's deadline of {self._given['deadline']:g} s")
            else:
                error = ClientClosed("the batch of the next stage ended before this item was done")
            result = Result[Verdict](index, None, before.charged(error), None, 0.0, before.queued, before.trail)
            try:
                self._settle(result)
            except Exception:
                return

    def _collected(self, took: float) -> BatchResult[Verdict]:
        costs = [stats.cost for stats in self._stats if stats.cost is not None]
        endpoints: dict[str, EndpointStats] = {}
        for stats in self._stats:
            for name, more in stats.endpoints.items():
                endpoints[name] = merged_stats(endpoints[name], more) if name in endpoints else more
        cost = sum(costs) if costs else None
        counted = BatchStats(self._ok + self._failed, self._ok, self._failed, took, endpoints, cost, self._decided_by)
        return BatchResult([self._results[index] for index in sorted(self._results)], counted)


class _Queue:
    """The input of one stage: the items of which the stage before is not sure.

    Attributes:
        sent: place of an item in the batch of the stage -> its place in the batch of the cascade.
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
        """No item will come."""
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
