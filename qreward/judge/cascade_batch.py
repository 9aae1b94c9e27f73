"""The stages of a ``Cascade``, and a batch of it: one stage after the other, each with the items of which no earlier stage is sure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import reduce
from math import isfinite, nan
from typing import Any, NamedTuple

from qreward import options as options_of
from qreward.errors import ClientClosed, ConfigError, DeadlineExceeded, InvalidResponse, NoEndpoint, QRewardError
from qreward.judge.scorers import check_finite
from qreward.judge.types import JudgeAnswer, Scorer, Verdict
from qreward.options import DEFAULT
from qreward.progress import start_progress
from qreward.records import Usage, added
from qreward.results import BatchInterrupted, BatchResult, BatchStats, EndpointStats, Result, merged_stats

Confidence = Callable[[Verdict], float | None]
"""A function from a verdict to its confidence. None means that the stage is not sure."""

_FINAL = (ConfigError, NoEndpoint, ClientClosed, DeadlineExceeded)
"""Types of errors that end an item at any stage, because the next stage cannot help: the settings, the item or the program is the cause, or
the time of the batch is over."""


class Stage(NamedTuple):
    """Holds one scorer of a cascade, and decides whether its verdicts and errors are final."""

    name: str
    scorer: Scorer
    min_confidence: float | None
    confidence: Confidence | None
    share: float

    def is_sure(self, verdict: Verdict) -> bool:
        """Return whether a verdict is final. Raises ``InvalidResponse`` if its score, or what the user's function returns, is no number."""
        check_finite(verdict)
        if self.min_confidence is None:
            return True
        confidence = verdict.confidence if self.confidence is None else self._users_confidence(self.confidence, verdict)
        return confidence is not None and confidence >= self.min_confidence

    def is_final(self, error: QRewardError) -> bool:
        return self.min_confidence is None or isinstance(error, _FINAL)

    def _users_confidence(self, function: Confidence, verdict: Verdict) -> float | None:
        where = f"the confidence function of stage {self.name!r}"
        try:
            confidence = function(verdict)
        except Exception as error:
            raise InvalidResponse(f"{where} raised {type(error).__name__}: {error}; the fault is in your code (see __cause__)") from error
        if confidence is None:
            return None
        try:
            number = nan if isinstance(confidence, str | bytes) else float(confidence)  # accepts numbers of numpy too
        except (TypeError, ValueError, OverflowError):
            number = nan
        if not isfinite(number):
            raise InvalidResponse(f"{where} returned {confidence!r}, which is not a finite number; return None where it is not sure")
        return number


class Earlier(NamedTuple):
    """What an earlier stage, which failed or was not sure, has spent on an item."""

    note: str
    usage: Usage | None
    cached: bool
    result: Result[Verdict] | None = None

    @classmethod
    def of(cls, stage: str, outcome: Verdict | QRewardError, result: Result[Verdict] | None = None) -> Earlier:
        """Return the record of a stage with this outcome."""
        if isinstance(outcome, QRewardError):
            note = f"stage {stage!r} failed before: {type(outcome).__name__}: {outcome}"
            return cls(note, outcome.usage if result is None else result.usage, False, result)
        return cls("", outcome.usage, outcome.cached, result)


def completed(before: Sequence[Earlier], stage: str, verdict: Verdict) -> Verdict:
    """Return the verdict of the cascade: the final verdict of a stage, with the tokens of the earlier stages."""
    inner = f"{stage}/{verdict.decided_by}" if verdict.decided_by else stage
    cached = verdict.cached and all(each.cached for each in before)
    return replace(verdict, usage=spent(before, verdict.usage), cached=cached, decided_by=inner)


def completed_error(before: Sequence[Earlier], error: QRewardError) -> QRewardError:
    """Return the error of the cascade: the final error of a stage, with the tokens and errors of the earlier stages."""
    error.usage = spent(before, error.usage)
    for each in before:
        if each.note:
            error.add_note(each.note)
    return error


def spent(before: Sequence[Earlier], last: Usage | None) -> Usage | None:
    return reduce(added, [*(each.usage for each in before), last], None)


class _Sized:
    def __init__(self, size: int, items: Iterator[Any]) -> None:
        self._size, self._items = size, items

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return self._items


class CascadeBatch:
    """Scores the items of one batch."""

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
        self._on_result = options_of.callback("on_result", options.get("on_result"))
        self._clock = asyncio.get_running_loop().time
        self._size = len(items) if isinstance(items, Sized) else None
        title = ", ".join(stage.name for stage in stages)
        self._progress = start_progress(options.get("progress"), self._size, title=title, clock=self._clock)
        self._keep = options.get("keep_results", True)
        self._results: dict[int, Result[Verdict]] = {}
        self._ok = self._failed = 0
        self._left: dict[int, tuple[Any, list[Earlier]]] = {}  # the items without a final result
        self._decided_by = dict.fromkeys((stage.name for stage in stages), 0)
        self._read = 0
        self._stats: list[BatchStats] = []
        self._failure: BaseException | None = None
        self._is_stopped = False

    async def run(self) -> BatchResult[Verdict]:
        began = self._clock()
        try:
            for place in range(len(self._stages)):
                if (place and not self._left) or self._is_stopped:
                    break
                passed = self._clock() - began if place else 0.0
                await self._run_stage(place, None if self._deadline is None else self._deadline - passed)
            self._end_all(len(self._stages) - 1, sorted(self._left), ClientClosed("the last stage ended before this item was done"))
        finally:
            if self._progress is not None:
                self._progress.close()
        batch = BatchResult([self._results[index] for index in sorted(self._results)], self._joined_stats(self._clock() - began))
        if (error := self._failure) is not None:
            what = f"the batch stopped after {self._read} items ({type(error).__name__}: {error}); .results holds what is done"
            raise BatchInterrupted(what, batch) from error
        return batch

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

    def _late(self, why: str = "") -> DeadlineExceeded:
        return DeadlineExceeded(f"not done within the batch's deadline of {self._deadline:g} s{why and '; '}{why}")

    def _end_all(self, place: int, indexes: Sequence[int], error: QRewardError) -> None:
        with suppress(Exception):  # of ``on_result``, which ``_end`` has recorded
            for index in indexes if not self._is_stopped else ():
                self._end(place, index, Result(index, None, copy(error), None, 0.0, 0.0))

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
        self._left[self._read] = item, []
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
            self._end(place, index, result, error)
            return
        self._left[index][1].append(Earlier.of(stage.name, error or result.value, result))

    def _end(self, place: int, index: int, result: Result[Verdict], error: QRewardError | None = None) -> None:
        """End an item with the result of a stage; ``error`` replaces the error of the result."""
        stage, error = self._stages[place], error or result.error
        _, before = self._left.pop(index, (None, []))  # an item that was never read is not there
        all_stages = [*(each.result for each in before if each.result is not None), result]
        self._count(stage.name)
        self._decided_by[stage.name] += 1
        answer = None
        if error is None:
            estimated = any(each.usage_is_estimated for each in all_stages)
            answer = JudgeAnswer(completed(before, stage.name, result.value), estimated=estimated)
        else:
            if place and isinstance(error, DeadlineExceeded):  # of the rest of the deadline
                error, error.usage = self._late(str(error).partition("; ")[2]), error.usage
            completed_error(before, error)
        latency, queued = sum(each.latency for each in all_stages), sum(each.queued for each in all_stages)
        trail = tuple(attempt for each in all_stages for attempt in each.attempts)
        result = Result(index, answer, error, result.endpoint, latency, queued, trail, result.extra or None)
        self._ok += result.ok
        self._failed += not result.ok
        if self._keep:
            self._results[index] = result
        try:
            if self._progress is not None:
                self._progress.add(result)
            if self._on_result is not None:
                self._on_result(result)
        except BaseException as failure:
            self._failure, self._is_stopped = failure, True
            raise

    def _joined_stats(self, took: float) -> BatchStats:
        costs = [stats.cost for stats in self._stats if stats.cost is not None]
        endpoints: dict[str, EndpointStats] = {}
        for stats in self._stats:
            for name, more in stats.endpoints.items():
                endpoints[name] = merged_stats(endpoints[name], more) if name in endpoints else more
        cost = sum(costs) if costs else None
        return BatchStats(self._ok + self._failed, self._ok, self._failed, took, endpoints, cost=cost, decided_by=self._decided_by)
