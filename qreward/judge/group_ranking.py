"""Rank many groups of responses at once, by comparing pairs of the responses of each group.

One batch of comparisons gets the pairs of all groups. Another group is read when no pair of a group in progress waits. When the last pair
of a round has its result, the next round of its group begins. This module receives the batch of comparisons as a function.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence, Sized
from contextlib import aclosing
from functools import partial
from typing import Any

from qreward.client import QRewardClient
from qreward.errors import ClientClosed, ConfigError, DeadlineExceeded, InvalidResponse, QRewardError, RequestTimeout
from qreward.judge.aggregation import quorum_error
from qreward.judge.loop import as_ours
from qreward.judge.prompts import in_words, is_absent
from qreward.judge.ranking import MOST_RESPONSES, IndexPair, Ranking, budget_of, fit, is_connected, next_pairs, scored
from qreward.judge.requests import each_of, extra_of, fields_of
from qreward.judge.results import JudgeAnswer, ResultCollector
from qreward.judge.types import Comparison, check_batch_options
from qreward.options import batch_items
from qreward.records import added
from qreward.results import BatchInterrupted, BatchResult, BatchStats, Result, Usage
from qreward.runtime import runtime_of

GROUP_NAMES = ("prompt", "responses", "reference")
Responses = tuple[Any, Sequence[Any]] | tuple[Any, Sequence[Any], Any] | Mapping[str, Any]
"""The responses to one prompt: ``(prompt, responses)``, ``(prompt, responses, reference)``, or a mapping with these fields and the other
fields that a prompt template names."""
Compare = Callable[..., Awaitable[BatchResult[Comparison]]]
"""``Judge.batch_compare``."""
Check = Callable[[Mapping[str, Any]], object]
"""A function that raises the error of an invalid pair."""


def unique_responses(fields: Mapping[str, Any]) -> tuple[list[Any], list[int]]:
    """Return two lists: the distinct responses of a group; and for each given response, the index of the distinct response that is equal.

    Raises:
        ConfigError: ``responses`` is not a list, holds None, or has more than ``MOST_RESPONSES`` different responses.
    """
    responses = fields["responses"]
    if isinstance(responses, str | bytes | Mapping) or not isinstance(responses, Sequence):
        raise ConfigError(f"responses must be a list of responses to one prompt, not a {type(responses).__name__}")
    different: dict[str, Any] = {}
    words = []
    for index, response in enumerate(responses):
        if is_absent("response", response):
            raise ConfigError(f"responses[{index}] is None, so there is nothing to judge; leave it out")
        words.append(in_words(response, f"responses[{index}]"))
        different.setdefault(words[-1], response)
    if len(different) > MOST_RESPONSES:
        raise ConfigError(
            f"a group may have at most {MOST_RESPONSES} different responses, not {len(different)}; divide it into smaller groups"
        )
    places = {each: place for place, each in enumerate(different)}
    return list(different.values()), [places[each] for each in words]


class ResponseGroup:
    """Holds the comparisons of one group of responses.

    Every response is checked before anything is sent.

    Attributes:
        index: index of the group in the batch.
        born: when the group was read, in seconds of the caller's clock.
        pending: number of pairs of the current round that have no result.
        usage: the tokens that the group has used.
    """

    def __init__(self, fields: Mapping[str, Any], comparisons: int | None, check: Check, index: int = 0, born: float = 0.0) -> None:
        self.index, self.born, self.pending = index, born, 0
        self.usage: Usage | None = None
        self._fields = {name: value for name, value in fields.items() if name != "responses"}
        self._responses, self._places = unique_responses(fields)
        self._size, self._budget = len(self._responses), budget_of(len(self._responses), comparisons)
        self._asked: set[IndexPair] = set()
        self._done: dict[IndexPair, Comparison] = {}
        self._errors: list[QRewardError] = []
        for first in range(0, self._size, 2):
            check(self._pair((first, min(first + 1, self._size - 1))))

    @property
    def extra(self) -> Mapping[str, Any] | None:
        """The fields of the group that are not judged."""
        return extra_of(self._fields, GROUP_NAMES)

    def _pair(self, pair: IndexPair) -> dict[str, Any]:
        return {**self._fields, "first": self._responses[pair[0]], "second": self._responses[pair[1]]}

    def next_round(self) -> list[tuple[IndexPair, dict[str, Any]]]:
        """Return the next pairs to compare, with their fields; empty if the budget is spent, or if no comparison succeeded so far."""
        left = self._budget - len(self._asked)
        scores = {pair: comparison.score for pair, comparison in self._done.items()}
        pairs = [] if left <= 0 or (self._errors and not scores) else next_pairs(self._size, left, self._asked, scores)
        self._asked.update(pairs)
        self.pending = len(pairs)
        return [(pair, self._pair(pair)) for pair in pairs]

    def record(self, pair: IndexPair, result: Result[Comparison]) -> None:
        """Record the result of a pair."""
        self.pending -= 1
        self.usage = added(self.usage, result.usage)
        if result.error is not None:
            self._errors.append(result.error)
        else:
            self._done[pair] = result.value

    def outcome(self) -> Ranking | QRewardError:
        """Return the ranking; an error if too many comparisons failed."""
        error = quorum_error([*[None] * len(self._done), *self._errors], "comparisons")
        if error is None and self._errors and not is_connected(self._size, self._done):
            reasons = "; ".join(dict.fromkeys(f"{type(error).__name__}: {error}" for error in self._errors))
            error = InvalidResponse(
                f"{len(self._errors)} of {len(self._asked)} comparisons failed, and the others do not connect all {self._size} "
                f"responses: {reasons}"
            )
            error.__cause__ = self._errors[0]
        if error is not None:
            error.usage = self.usage
            return error
        fitted = fit(self._size, {pair: comparison.score for pair, comparison in self._done.items()})
        scores, errors = scored(fitted, self._places) if self._places else ((), ())
        shown = [self._places.index(place) for place in range(self._size)]  # of identical responses, the first is shown
        comparisons = {(shown[first], shown[second]): comparison for (first, second), comparison in self._done.items()}
        cached = bool(comparisons) and all(comparison.cached for comparison in comparisons.values())
        return Ranking(scores, errors, comparisons, len(self._errors), self.usage, cached)


class GroupRunner:
    """Ranks the groups of one batch.

    ``read`` makes a group from an item, its index and the time, or raises.
    """

    def __init__(
        self,
        compare: Compare,
        read: Callable[[Any, int, float], ResponseGroup],
        groups: Iterable[Any] | AsyncIterable[Any],
        collector: ResultCollector,
        clock: Callable[[], float],
    ) -> None:
        self._compare, self._read, self._groups, self._clock, self._collector = compare, read, groups, clock, collector
        self._size = len(groups) if isinstance(groups, Sized) else None
        self._count = 0
        self._ready: asyncio.Queue[tuple[ResponseGroup, IndexPair, dict[str, Any]] | None] = asyncio.Queue()
        self._low = asyncio.Event()  # set when no pair waits
        self._sent: dict[int, tuple[ResponseGroup, IndexPair]] = {}
        self._pairs_read = 0
        self._open: dict[ResponseGroup, None] = {}
        self._ended = False
        self._failure: Exception | None = None
        self._stopped: QRewardError | None = None

    async def run(self, options: Mapping[str, Any]) -> BatchResult[Ranking]:
        """Rank all groups.

        Raises:
            BatchInterrupted: the input or ``on_result`` raised an exception. The error holds the rankings so far.
        """
        stats = BatchStats()
        try:
            batch = await self._compare(self._pairs(), **options, on_result=self._on_comparison, progress=False, keep_results=False)
            stats = batch.stats
            self._end_rest()
        except BatchInterrupted as error:
            stats = BatchStats() if error.results is None else error.results.stats
            raise self._collector.interrupted(error.__cause__ or error, f"{self._count} groups", stats) from error.__cause__
        except QRewardError:
            raise
        except Exception as error:
            raise self._collector.interrupted(error, f"{self._count} groups", stats) from error
        finally:
            self._collector.close()
        return self._collector.batch(stats)

    async def _pairs(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the pairs to compare. If the input raises, the groups that were read before are still ranked."""
        reading = asyncio.create_task(self._read_groups())
        try:
            while True:
                if self._ready.empty():
                    self._low.set()
                if (pair := await self._ready.get()) is None:
                    break
                self._sent[self._pairs_read] = pair[:2]
                self._pairs_read += 1
                yield pair[2]
        finally:
            reading.cancel()
            await asyncio.wait([reading])
        if self._failure is not None:
            raise self._failure

    async def _read_groups(self) -> None:
        try:
            async with aclosing(each_of(self._groups)) as groups:
                async for item in groups:
                    self._begin(item)
                    while not self._ready.empty():
                        self._low.clear()
                        await self._low.wait()
        except Exception as error:
            self._failure = error
        self._ended = True
        self._end_if_done()

    def _begin(self, item: Any) -> None:
        index, self._count = self._count, self._count + 1
        extra = None
        try:
            extra = extra_of(item, GROUP_NAMES)
            group = self._read(item, index, self._clock())
        except Exception as error:
            self._collector.add(Result(index, None, as_ours(error, f"group {index}", "ranked"), None, 0.0, 0.0, extra=extra))
            return
        self._open[group] = None
        self._advance(group)

    def _on_comparison(self, result: Result[Comparison]) -> None:
        group, pair = self._sent.pop(result.index)
        group.record(pair, result)
        if isinstance(result.error, ClientClosed | DeadlineExceeded):
            self._stopped = result.error
        self._collector.refresh()
        if not group.pending and self._stopped is None:
            self._advance(group)

    def _advance(self, group: ResponseGroup) -> None:
        """Begin the next round of a group, or end the group if there is no further round."""
        pairs = group.next_round()
        for pair, fields in pairs:
            self._ready.put_nowait((group, pair, fields))
        if not pairs:
            self._end(group, group.outcome())

    def _end(self, group: ResponseGroup, outcome: Ranking | QRewardError) -> None:
        del self._open[group]
        error = outcome if isinstance(outcome, QRewardError) else None
        answer = JudgeAnswer(outcome) if isinstance(outcome, Ranking) else None
        self._end_if_done()
        self._collector.add(Result(group.index, answer, error, None, self._clock() - group.born, 0.0, (), group.extra))

    def _end_if_done(self) -> None:
        if self._ended and not self._open:
            self._ready.put_nowait(None)

    def _end_rest(self) -> None:
        """Give an error to each group that is not ranked, because the deadline has passed or the client was closed."""
        kind = ClientClosed if isinstance(self._stopped, ClientClosed) else DeadlineExceeded
        what = "before this group was ranked"
        message = f"the client was closed {what}" if kind is ClientClosed else f"the deadline of the batch passed {what}"
        for group in list(self._open):
            error = kind(message)
            error.usage = group.usage
            self._end(group, error)
        for index in range(self._count, self._size or 0):
            self._count += 1
            self._collector.add(Result(index, None, kind(message), None, 0.0, 0.0))


class Ranker:
    """Implements ``Judge.rank`` and ``Judge.batch_rank``.

    ``check`` raises the error of an invalid pair; its argument ``extra`` allows fields that are not judged. Raises ``ConfigError`` if
    ``comparisons`` is not a valid number of pairs.
    """

    def __init__(
        self, client: QRewardClient, models: Sequence[str], compare: Compare, check: Callable[..., object], comparisons: int | None
    ) -> None:
        budget_of(1, comparisons)
        self._runtime, self._models, self._compare = runtime_of(client), models, compare
        self._check, self._comparisons = check, comparisons

    def _group(self, fields: Mapping[str, Any], extra: bool, index: int = 0, born: float = 0.0) -> ResponseGroup:
        return ResponseGroup(fields, self._comparisons, partial(self._check, extra=extra), index, born)

    async def one(self, fields: Mapping[str, Any], options: Mapping[str, Any]) -> Ranking:
        """Return the ranking of one group, or raise the error of the group."""
        group, timeout = self._group(fields, False), self._runtime.request_options(options).timeout
        collector = ResultCollector(None, None, keep=True)
        runner = GroupRunner(self._compare, lambda *_: group, [fields], collector, self._runtime.clock)
        (result,) = await runner.run({**options, "deadline": timeout})
        if isinstance(result.error, DeadlineExceeded):
            late = RequestTimeout(f"no ranking within {timeout:g} s; model {', '.join(self._models)!r}")
            late.usage = result.error.usage
            raise late
        return result.value

    async def many(self, groups: Iterable[Any] | AsyncIterable[Any], options: Mapping[str, Any]) -> BatchResult[Ranking]:
        """Return a ranking or an error for each of many groups."""
        check_batch_options(options)
        groups = batch_items("groups", groups)
        given = self._runtime.collecting(options, self._runtime.pool(self._models[0]), groups, ", ".join(self._models))
        collector = ResultCollector(given["on_result"], given["progress"], keep=given["keep"])

        def read(item: Any, index: int, born: float) -> ResponseGroup:
            return self._group(fields_of(item, GROUP_NAMES), True, index, born)

        runner = GroupRunner(self._compare, read, groups, collector, self._runtime.clock)
        ours = ("on_result", "progress", "keep_results")
        return await runner.run({name: value for name, value in options.items() if name not in ours})
