"""Run one batch of a ``Cascade``: one stage after the other, each with the items of which no earlier stage is sure.

This module uses only the interface of the stages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import aclosing
from copy import copy
from typing import Any

from qreward import options as options_of
from qreward.errors import DeadlineExceeded, InvalidResponse, QRewardError
from qreward.judge.cascade_stage import EarlierStages, Stage
from qreward.judge.requests import each_of
from qreward.judge.results import JudgeAnswer, ResultCollector
from qreward.judge.types import Verdict
from qreward.options import DEFAULT
from qreward.progress import start_progress
from qreward.results import BatchInterrupted, BatchResult, BatchStats, EndpointStats, Result, merged_stats


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

    ``limit`` is the number of seconds for an item; None for no limit; ``DEFAULT`` for the default of each stage. ``count`` is called with
    the name of the stage that decided an item. Raises ``ConfigError`` for an invalid option.
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
        self._given = {name: options[name] for name in ("priority", "tenant") if name in options}
        self._deadline = options_of.seconds("deadline", options.get("deadline"))
        on_result = options_of.callback("on_result", options.get("on_result"))
        self._clock = asyncio.get_running_loop().time
        self._size = len(items) if isinstance(items, Sized) else None
        title = ", ".join(stage.name for stage in stages)
        progress = start_progress(options.get("progress"), self._size, title=title, clock=self._clock)
        self._collector = ResultCollector(on_result, progress, keep=options.get("keep_results", True))
        self._left: dict[int, tuple[Any, EarlierStages]] = {}  # the items without a final result
        self._decided_by = dict.fromkeys((stage.name for stage in stages), 0)
        self._read = 0
        self._stats: list[BatchStats] = []
        self._failure: BaseException | None = None
        self._is_stopped = False

    async def run(self) -> BatchResult[Verdict]:
        """Score all items. The method raises the errors of ``Judge.batch_score``."""
        began = self._clock()
        try:
            for place in range(len(self._stages)):
                if (place and not self._left) or self._is_stopped:
                    break
                left = None if self._deadline is None else self._deadline - (self._clock() - began)
                await self._run_stage(place, left)
        finally:
            self._collector.close()
        stats = self._joined_stats(self._clock() - began)
        if self._failure is not None:
            raise self._collector.interrupted(self._failure, f"{self._read} items", stats) from self._failure
        return self._collector.batch(stats)

    async def _run_stage(self, place: int, left: float | None) -> None:
        """Run the batch of one stage. ``left`` is the number of seconds until the deadline."""
        indexes = sorted(self._left)
        if left is not None and left <= 0:
            self._end_all(place, indexes, self._late())
            return
        limit = {} if self._limit is DEFAULT else {"timeout": None if self._limit is None else self._limit * self._stages[place].share}
        deadline = {} if left is None else {"deadline": left}
        given: Any = {**self._given, **limit, **deadline, "progress": False, "keep_results": False}

        def record(result: Result[Verdict]) -> None:
            self._record(place, indexes[result.index] if place else result.index, result)

        items = [self._left[index][0] for index in indexes] if place else self._input()
        try:
            batch = await self._stages[place].scorer.batch_score(items, on_result=record, **given)
            self._stats.append(batch.stats)
        except BatchInterrupted as error:  # if the input raised the exception, the later stages score what was read
            self._failure = self._failure or error.__cause__ or error
            self._stats += [] if error.results is None else [error.results.stats]
        except QRewardError as error:
            if not place:
                raise
            self._end_all(place, [index for index in indexes if index in self._left], error)
        except Exception as error:
            if not place:
                raise
            self._failure, self._is_stopped = self._failure or error, True

    def _late(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"not done within the batch's deadline of {self._deadline:g} s")

    def _end_all(self, place: int, indexes: Sequence[int], error: QRewardError) -> None:
        """Give an error to all items of a stage."""
        for index in indexes:
            if not self._is_stopped:
                self._end(place, index, Result(index, None, copy(error), None, 0.0, 0.0))

    # the input

    def _input(self) -> Any:
        if isinstance(self._items, AsyncIterable):
            return self._read_async(self._items)
        read = self._read_now(self._items)
        return read if self._size is None else _Sized(self._size, read)

    async def _read_async(self, items: AsyncIterable[Any]) -> AsyncIterator[Any]:
        async with aclosing(each_of(items)) as given:
            async for item in given:
                yield self._noted(item)

    def _read_now(self, items: Iterable[Any]) -> Iterator[Any]:
        iterator = iter(items)
        try:
            for item in iterator:
                yield self._noted(item)
        finally:
            if (close := getattr(iterator, "close", None)) is not None:
                close()

    def _noted(self, item: Any) -> Any:
        self._left[self._read] = item, EarlierStages()
        self._read += 1
        return item

    # results

    def _record(self, place: int, index: int, result: Result[Verdict]) -> None:
        """Record a result of the stage at ``place``. If the result is not final, the next stage scores the item."""
        if self._is_stopped:
            assert self._failure is not None
            raise self._failure
        self._read = max(self._read, index + 1)
        stage, error, final = self._stages[place], result.error, False
        try:
            final = stage.is_sure(result.value) if error is None else stage.is_final(error)
        except InvalidResponse as fault:
            fault.usage, error, final = result.usage, fault, True
        if final:
            try:
                self._end(place, index, result, error)
            except BaseException as failure:
                self._failure, self._is_stopped = failure, True
                raise
            return
        item, before = self._left[index]
        cached = error is None and result.value.cached
        self._left[index] = item, before.with_result(result).with_stage(stage.name, error, result.usage, cached=cached)

    def _end(self, place: int, index: int, result: Result[Verdict], error: QRewardError | None = None) -> None:
        """End an item with the result of a stage; ``error`` replaces the error of the result."""
        stage, error = self._stages[place], error or result.error
        _, before = self._left.pop(index, (None, EarlierStages()))  # an item that was never read is not there
        after = before.with_result(result)
        self._count(stage.name)
        self._decided_by[stage.name] += 1
        answer = None
        if error is None:
            answer = JudgeAnswer(before.completed(stage.name, result.value), estimated=after.estimated)
        else:
            if place and isinstance(error, DeadlineExceeded):  # of the rest of the deadline
                error, error.usage = self._late(), error.usage
            before.completed_error(error)
        self._collector.add(Result(index, answer, error, result.endpoint, after.latency, after.queued, after.trail, result.extra or None))

    def _joined_stats(self, took: float) -> BatchStats:
        """Return the sum of the statistics of all stages, without counts of items."""
        costs = [stats.cost for stats in self._stats if stats.cost is not None]
        endpoints: dict[str, EndpointStats] = {}
        for stats in self._stats:
            for name, more in stats.endpoints.items():
                endpoints[name] = merged_stats(endpoints[name], more) if name in endpoints else more
        return BatchStats(seconds=took, endpoints=endpoints, cost=sum(costs) if costs else None, decided_by=self._decided_by)
