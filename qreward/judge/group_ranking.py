"""Rank many groups of responses at once. Each group has its own rounds, in which pairs of its responses are compared.

One batch of comparisons gets the pairs of all groups, from an async iterator. The iterator yields the pairs of groups in progress first. It
reads another group when no pair of a group in progress is waiting. When the last pair of a round has its result, the next round of its
group begins.

This module receives the batch of comparisons as a function. It does not build prompts or requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from qreward.client import QRewardClient
from qreward.engine.batch import BatchProgress
from qreward.errors import ClientClosed, ConfigError, DeadlineExceeded, InvalidResponse, QRewardError, RequestTimeout
from qreward.judge.aggregation import quorum_error
from qreward.judge.listwise import GROUP_NAMES
from qreward.judge.prompts import in_words, is_absent
from qreward.judge.ranking import MOST_RESPONSES, IndexPair, PairChooser, Ranking, budget_of, scored
from qreward.judge.requests import extra_of, fields_of
from qreward.judge.runner import JudgeAnswer, ResultCollector, as_ours
from qreward.judge.types import Comparison, check_batch_options
from qreward.options import batch_items
from qreward.records import added
from qreward.results import BatchInterrupted, BatchResult, BatchStats, Result, Usage
from qreward.runtime import runtime_of

RankMethod = Literal["pairs", "listwise"]
Responses = tuple[Any, Sequence[Any]] | tuple[Any, Sequence[Any], Any] | Mapping[str, Any]
"""The responses to one prompt: ``(prompt, responses)``, ``(prompt, responses, reference)``, or a mapping with these fields and the other
fields that a prompt template names."""


def unique_responses(fields: Mapping[str, Any]) -> tuple[list[Any], list[int]]:
    """Return two lists: the distinct responses of a group; and for each given response, the index of the distinct response that is equal.

    Raises:
        ConfigError: ``responses`` is not a list, holds None, or has more than ``MOST_RESPONSES`` different responses.
    """
    responses = fields["responses"]
    if isinstance(responses, str | bytes | Mapping) or not isinstance(responses, Sequence):
        raise ConfigError(f"responses must be a list of responses to one prompt, not a {type(responses).__name__}")
    different: list[Any] = []
    found: dict[str, int] = {}
    places = []
    for index, response in enumerate(responses):
        if is_absent("response", response):
            raise ConfigError(f"responses[{index}] is None, so there is nothing to judge; leave it out")
        words = in_words(response, f"responses[{index}]")
        if words not in found:
            found[words] = len(different)
            different.append(response)
        places.append(found[words])
    if len(different) > MOST_RESPONSES:
        raise ConfigError(
            f"a group may have at most {MOST_RESPONSES} different responses, not {len(different)}; divide it into smaller groups"
        )
    return different, places


class ResponseGroup:
    """Ranks one group of responses by comparing pairs.

    Args:
        fields: the fields of the group.
        comparisons: the number of pairs to compare; see :func:`~qreward.judge.ranking.budget_of`.
        check: function that raises the error of an invalid pair. Every response is checked before anything is sent.

    Attributes:
        index: index of the group in the batch.
        born: when the group was read, in seconds of the caller's clock.
        pending: number of pairs of the current round that have no result.
    """

    def __init__(self, fields: Mapping[str, Any], comparisons: int | None, check: Callable[[Mapping[str, Any]], object]) -> None:
        self.index, self.born, self.pending = 0, 0.0, 0
        self._fields = fields
        self._responses, self._places = unique_responses(fields)
        self._chooser = PairChooser(len(self._responses), budget_of(len(self._responses), comparisons))
        self._done: dict[IndexPair, Comparison] = {}
        self._errors: list[QRewardError] = []
        self._usage: Usage | None = None
        self._round_failed = False
        for first in range(0, len(self._responses), 2):
            check(self._pair((first, min(first + 1, len(self._responses) - 1))))

    @property
    def extra(self) -> Mapping[str, Any] | None:
        """The fields of the group that are not judged."""
        return extra_of(self._fields, GROUP_NAMES)

    def _pair(self, pair: IndexPair) -> dict[str, Any]:
        """Return the fields of a pair: the fields of its group, with ``first`` and ``second`` in place of ``responses``."""
        first, second = (self._responses[index] for index in pair)
        return {**{name: value for name, value in self._fields.items() if name != "responses"}, "first": first, "second": second}

    def next_round(self) -> list[tuple[IndexPair, dict[str, Any]]]:
        """Return the next pairs to compare, with their fields.

        The list is empty if the budget is spent, or if all comparisons of the last round failed.
        """
        pairs = [] if self._round_failed else self._chooser.next_round()
        self.pending, self._round_failed = len(pairs), bool(pairs)
        return [(pair, self._pair(pair)) for pair in pairs]

    def record(self, pair: IndexPair, result: Result[Comparison]) -> None:
        """Record the result of a pair."""
        self.pending -= 1
        self._usage = added(self._usage, result.usage)
        if result.error is not None:
            self._errors.append(result.error)
            self._chooser.record(pair, None)
            return
        comparison = result.value
        self._round_failed = False
        self._done[pair] = comparison
        self._chooser.record(pair, comparison.score)

    def outcome(self) -> Ranking | QRewardError:
        """Return the ranking; an error if too many comparisons failed."""
        error = self._error()
        if error is not None:
            return self.with_usage(error)
        scores, errors = scored(self._chooser.fitted(), self._places) if self._places else ((), ())
        shown = [self._places.index(place) for place in range(len(self._responses))]  # of identical responses, the first is shown
        comparisons = {(shown[first], shown[second]): comparison for (first, second), comparison in self._done.items()}
        cached = bool(comparisons) and all(comparison.cached for comparison in comparisons.values())
        return Ranking(scores, errors, comparisons, self._chooser.failed, (), self._usage, cached)

    def with_usage(self, error: QRewardError) -> QRewardError:
        """Return the error with the tokens that the group has used."""
        error.usage = self._usage
        return error

    def _error(self) -> QRewardError | None:
        if not self._errors:
            return None
        if (error := quorum_error([*[None] * len(self._done), *self._errors], "comparisons")) is not None:
            return error
        if self._chooser.is_connected():
            return None
        reasons = "; ".join(dict.fromkeys(f"{type(error).__name__}: {error}" for error in self._errors))
        asked, size = self._chooser.asked, len(self._responses)
        unconnected = InvalidResponse(
            f"{len(self._errors)} of {asked} comparisons failed, and the others do not connect all {size} responses: {reasons}"
        )
        unconnected.__cause__ = self._errors[0]
        return unconnected


class ListGroup:
    """Ranks one group of responses as a list. A ``ListGroup`` has the methods and attributes of :class:`ResponseGroup`.

    Args:
        fields: the fields of the group.
        check: function that raises the error of an invalid list.
    """

    def __init__(self, fields: Mapping[str, Any], check: Callable[[Mapping[str, Any]], object]) -> None:
        self.index, self.born, self.pending = 0, 0.0, 0
        different, self._places = unique_responses(fields)
        self._fields = {**fields, "responses": different}
        self._result: Result[Ranking] | None = None
        self._is_due = len(different) > 1
        check(self._fields)

    @property
    def extra(self) -> Mapping[str, Any] | None:
        """The fields of the group that are not judged."""
        return extra_of(self._fields, GROUP_NAMES)

    def next_round(self) -> list[tuple[IndexPair, dict[str, Any]]]:
        """Return the one list to rank. After the first call, and for fewer than two different responses, return an empty list."""
        due, self._is_due = self._is_due, False
        self.pending = int(due)
        return [((0, 0), self._fields)] if due else []

    def record(self, pair: IndexPair, result: Result[Any]) -> None:  # noqa: ARG002 - there is one list
        """Record the result of the list."""
        self.pending -= 1
        self._result = result

    def outcome(self) -> Ranking | QRewardError:
        """Return the ranking or the error."""
        if self._result is None:
            return Ranking((0.5,) * len(self._places), (0.0,) * len(self._places))
        if self._result.error is not None:
            return self._result.error
        ranking = self._result.value
        scores, errors = (tuple(values[place] for place in self._places) for values in (ranking.scores, ranking.errors))
        return replace(ranking, scores=scores, errors=errors)

    def with_usage(self, error: QRewardError) -> QRewardError:
        """Return the error with the tokens that the group has used."""
        error.usage = None if self._result is None else self._result.usage
        return error


Compare = Callable[..., Awaitable[BatchResult[Any]]]
"""``Judge.batch_compare``, or a function that ranks lists with the same options."""


class GroupRunner:
    """Ranks the groups of one batch.

    Args:
        compare: function that compares many pairs, or ranks many lists.
        read: function that makes a group from an item, or raises.
        groups: the items.
        on_result, progress, keep: as in :class:`~qreward.judge.runner.ResultCollector`.
        clock: function that returns the time in seconds.
    """

    def __init__(
        self,
        compare: Compare,
        read: Callable[[Any], ResponseGroup | ListGroup],
        groups: Iterable[Any] | AsyncIterable[Any],
        *,
        on_result: Callable[[Result[Any]], object] | None,
        progress: BatchProgress | None,
        keep: bool,
        clock: Callable[[], float],
    ) -> None:
        self._compare, self._read, self._clock = compare, read, clock
        self._collector = ResultCollector(on_result, progress, keep=keep)
        self._size = len(groups) if isinstance(groups, Sized) else None
        self._input: Iterator[Any] | AsyncIterator[Any] = aiter(groups) if isinstance(groups, AsyncIterable) else iter(groups)
        self._count = 0
        self._ready: deque[tuple[ResponseGroup | ListGroup, IndexPair, dict[str, Any]]] = deque()
        self._sent: dict[int, tuple[ResponseGroup | ListGroup, IndexPair]] = {}
        self._pairs_read = 0
        self._open: dict[ResponseGroup | ListGroup, None] = {}
        self._ended = False
        self._failure: Exception | None = None
        self._stopped: QRewardError | None = None
        self._wake = asyncio.Event()

    async def run(self, options: Mapping[str, Any]) -> BatchResult[Ranking]:
        """Rank all groups.

        Raises:
            BatchInterrupted: the input or ``on_result`` raised an exception. The error holds the rankings so far.
        """
        try:
            batch = await self._compare(self._pairs(), **options, on_result=self._on_comparison, progress=False, keep_results=False)
        except BatchInterrupted as error:
            stats = BatchStats() if error.results is None else error.results.stats
            raise self._collector.interrupted(error.__cause__ or error, f"{self._count} groups", stats) from error.__cause__
        finally:
            self._collector.close()
        try:
            self._end_rest()
        except Exception as error:
            raise self._collector.interrupted(error, f"{self._count} groups", batch.stats) from error
        return self._collector.batch(batch.stats)

    # the input of the batch of comparisons

    async def _pairs(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the pairs to compare. If the input raises, the groups that were read before are still ranked."""
        reading: asyncio.Task[None] | None = None
        try:
            while self._ready or self._open or not self._ended:
                if self._ready:
                    group, place, fields = self._ready.popleft()
                    self._sent[self._pairs_read] = group, place
                    self._pairs_read += 1
                    yield fields
                    continue
                if not self._ended:
                    reading = reading or asyncio.create_task(self._read_group())
                await self._woken(reading)
                if reading is not None and reading.done():
                    done, reading = reading, None
                    done.result()
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.wait([reading])
            await self._close_input()
        if self._failure is not None:
            raise self._failure

    async def _woken(self, reading: asyncio.Task[None] | None) -> None:
        """Wait until a pair is ready, the last group has ended, or ``reading`` is done."""
        self._wake.clear()
        if reading is None:
            await self._wake.wait()
            return
        reading.add_done_callback(lambda _: self._wake.set())
        if not reading.done():
            await self._wake.wait()

    async def _read_group(self) -> None:
        try:
            item = await anext(self._input) if isinstance(self._input, AsyncIterator) else next(self._input, _END)
        except StopAsyncIteration:
            item = _END
        except Exception as error:
            self._failure, item = error, _END
        if item is _END:
            self._ended = True
        else:
            self._begin(item)

    async def _close_input(self) -> None:
        if isinstance(self._input, AsyncIterator):
            if (aclose := getattr(self._input, "aclose", None)) is not None:
                await aclose()
        elif (close := getattr(self._input, "close", None)) is not None:
            close()

    def _begin(self, item: Any) -> None:
        index, self._count = self._count, self._count + 1
        extra = None
        try:
            extra = extra_of(item, GROUP_NAMES)
            group = self._read(item)
        except Exception as error:
            self._collector.add(Result(index, None, as_ours(error, f"group {index}", "ranked"), None, 0.0, 0.0, extra=extra))
            return
        group.index, group.born = index, self._clock()
        self._open[group] = None
        self._advance(group)

    # results

    def _on_comparison(self, result: Result[Any]) -> None:
        group, place = self._sent.pop(result.index)
        group.record(place, result)
        if isinstance(result.error, ClientClosed | DeadlineExceeded):
            self._stopped = result.error
        self._collector.refresh()
        if not group.pending and self._stopped is None:
            self._advance(group)

    def _advance(self, group: ResponseGroup | ListGroup) -> None:
        """Begin the next round of a group, or end the group if there is no further round."""
        pairs = group.next_round()
        self._ready.extend((group, place, fields) for place, fields in pairs)
        if not pairs:
            self._end(group, group.outcome())
        self._wake.set()

    def _end(self, group: ResponseGroup | ListGroup, outcome: Ranking | QRewardError) -> None:
        del self._open[group]
        error = outcome if isinstance(outcome, QRewardError) else None
        answer = JudgeAnswer(outcome) if isinstance(outcome, Ranking) else None
        self._collector.add(Result(group.index, answer, error, None, self._clock() - group.born, 0.0, (), group.extra))

    def _end_rest(self) -> None:
        """Give an error to each group that is not ranked, because the deadline has passed or the client was closed."""
        kind = ClientClosed if isinstance(self._stopped, ClientClosed) else DeadlineExceeded
        what = "before this group was ranked"
        message = f"the client was closed {what}" if kind is ClientClosed else f"the deadline of the batch passed {what}"
        for group in list(self._open):
            self._end(group, group.with_usage(kind(message)))
        for index in range(self._count, self._size or 0):
            self._count += 1
            self._collector.add(Result(index, None, kind(message), None, 0.0, 0.0))


_END: Any = object()


class Ranker:
    """Implements ``Judge.rank`` and ``Judge.batch_rank``.

    Args:
        client: the client of the judge.
        compare: function that compares many pairs, or ranks many lists.
        read: function that makes a group from the fields of an item, or raises. Its argument ``extra`` allows fields that are not judged.
        models: the judge models.
    """

    def __init__(
        self, client: QRewardClient, compare: Compare, read: Callable[..., ResponseGroup | ListGroup], models: Sequence[str]
    ) -> None:
        self._client, self._compare, self._read, self._models = client, compare, read, models
        self._title = ", ".join(models)

    async def one(self, fields: Mapping[str, Any], options: Mapping[str, Any]) -> Ranking:
        """Return the ranking of one group, or raise the error of the group."""
        runtime = runtime_of(self._client)
        group, timeout = self._read(fields, extra=False), runtime.request_options(options).timeout
        runner = GroupRunner(self._compare, lambda group: group, [group], on_result=None, progress=None, keep=True, clock=runtime.clock)
        batch = await runner.run({**options, "deadline": timeout})
        error = batch[0].error
        if isinstance(error, DeadlineExceeded):
            late = RequestTimeout(f"no ranking within {timeout:g} s; model {self._title!r}")
            late.usage = error.usage
            raise late
        return batch[0].value

    async def many(self, groups: Iterable[Any] | AsyncIterable[Any], options: Mapping[str, Any]) -> BatchResult[Ranking]:
        """Return a ranking or an error for each of many groups."""
        check_batch_options(options)
        groups, runtime = batch_items("groups", groups), runtime_of(self._client)
        pool = runtime.pool(self._models[0])
        collecting = runtime.collecting(options, pool, groups, self._title)
        given = {name: collecting[name] for name in ("on_result", "progress", "keep")}
        runner = GroupRunner(
            self._compare, lambda item: self._read(fields_of(item, GROUP_NAMES), extra=True), groups, **given, clock=runtime.clock
        )
        ours = ("on_result", "progress", "keep_results")
        return await runner.run({name: value for name, value in options.items() if name not in ours})


def by_pairs(check: Callable[..., object], comparisons: int | None) -> Callable[..., ResponseGroup]:
    """Return a function that makes a :class:`ResponseGroup` from the fields of an item.

    Args:
        check: function that raises the error of an invalid pair.
        comparisons: the number of pairs to compare in each group.

    Raises:
        ConfigError: ``comparisons`` is not a valid number of pairs.
    """
    budget_of(1, comparisons)
    return lambda fields, *, extra: ResponseGroup(fields, comparisons, partial(check, extra=extra))


def by_list(check: Callable[..., object], comparisons: int | None) -> Callable[..., ListGroup]:
    """Return a function that makes a :class:`ListGroup` from the fields of an item. Raises ``ConfigError`` if ``comparisons`` is set."""
    if comparisons is not None:
        raise ConfigError("comparisons is a number of pairs, and method='listwise' compares none; leave it out")
    return lambda fields, *, extra: ListGroup(fields, partial(check, extra=extra))
