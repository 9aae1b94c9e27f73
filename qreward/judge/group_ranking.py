"""Rank many groups of responses at once, by comparing pairs of the responses of each group. ``ranking`` chooses the pairs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from qreward.engine.background import report_error
from qreward.engine.batch import as_ours
from qreward.errors import ClientClosed, ConfigError, DeadlineExceeded, InvalidResponse, QRewardError
from qreward.judge.aggregation import quorum_error
from qreward.judge.cache import Cache
from qreward.judge.loop import ItemBatch, ItemCalls
from qreward.judge.prompts import in_words, is_absent
from qreward.judge.ranking import MOST_RESPONSES, IndexPair, Ranking, budget_of, fit, is_connected, next_pairs, scored
from qreward.judge.requests import RequestBuilder, extra_of, fields_of
from qreward.judge.types import Comparison, JudgeAnswer
from qreward.records import added
from qreward.results import Result, Usage
from qreward.scheduler.task import BatchFeed

GROUP_NAMES = ("prompt", "responses", "reference")
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
    """Holds the comparisons of one group of responses. ``check`` raises the error of an invalid pair; every response is checked at once.

    Attributes:
        index, extra: index of the group in the batch, and the fields that are not judged.
        born: when the group was read, in seconds of the engine's clock.
        pending: number of pairs of the current round that have no result.
        usage: the tokens that the group has used.
    """

    def __init__(self, fields: Mapping[str, Any], comparisons: int | None, check: Callable[[Mapping[str, Any]], object]) -> None:
        self.index, self.born, self.pending = 0, 0.0, 0
        self.extra: Mapping[str, Any] | None = None
        self.usage: Usage | None = None
        self._fields = {name: value for name, value in fields.items() if name != "responses"}
        self._responses, self._places = unique_responses(fields)
        self._size, self._budget = len(self._responses), budget_of(len(self._responses), comparisons)
        self._asked: set[IndexPair] = set()
        self._done: dict[IndexPair, Comparison] = {}
        self._errors: list[QRewardError] = []
        for first in range(0, self._size, 2):
            check(self._pair((first, min(first + 1, self._size - 1))))

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

    def record(self, pair: IndexPair, outcome: Comparison | QRewardError, usage: Usage | None) -> None:
        self.pending -= 1
        self.usage = added(self.usage, usage)
        if isinstance(outcome, QRewardError):
            self._errors.append(outcome)
        else:
            self._done[pair] = outcome

    def outcome(self) -> Ranking | QRewardError:
        """Return the ranking; an error if too many comparisons failed."""
        error = quorum_error([*[None] * len(self._done), *self._errors], "comparisons")
        if self._errors and isinstance(self._errors[-1], ClientClosed | DeadlineExceeded):
            error = self._errors[-1]
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


class PairCalls(ItemCalls):
    __slots__ = ("group", "pair")

    def __init__(self, item: ItemCalls, group: ResponseGroup, pair: IndexPair, caller: GroupBatch) -> None:
        super().__init__(item.calls, item.decide)
        self.group, self.pair, self.caller = group, pair, caller


class GroupBatch(ItemBatch):
    """Ranks many groups. When the last pair of a round has its result, the next round begins. See :class:`ItemBatch` for other arguments.

    Args:
        prepare: makes a group, or the exception that was raised, and the fields of the group that are not judged.
        builder: makes the calls of a pair.
        cache: may have the votes on a pair; None without a cache.
    """

    _unit = "groups"

    def __init__(self, *args: Any, builder: RequestBuilder, cache: Cache | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._builder, self._cache, self._is_dropping = builder, cache, False
        self._calls = dict.fromkeys(self._calls)  # the number of calls for a group is not known
        self._lookups: set[asyncio.Task[None]] = set()

    def _put(self, feed: BatchFeed, index: int, payload: tuple[ResponseGroup | Exception, Mapping[str, Any] | None]) -> None:  # type: ignore[override]  # noqa: ARG002
        group, extra = payload
        if isinstance(group, Exception):
            self._settle(Result(index, None, as_ours(group, f"group {index}", "ranked"), None, 0.0, 0.0, extra=extra))
            return
        group.index, group.extra, group.born = index, extra, self.driver.engine.clock()
        self._advance(group)

    def _advance(self, group: ResponseGroup) -> None:
        """Begin the next round of a group, or end the group if there is no further round."""
        pairs = [] if self._ending or self._is_dropping else group.next_round()
        items = [PairCalls(self._builder.read(fields), group, pair, self) for pair, fields in pairs]
        self._live.update(dict.fromkeys(items))
        if not items:
            self._end_group(group)
        elif self._cache is None:
            self._begin(items)
        else:
            lookup = self.driver.loop.create_task(self._look_up(items, self._cache))
            self._lookups.add(lookup)
            lookup.add_done_callback(self._lookups.discard)
            lookup.add_done_callback(report_error)

    async def _look_up(self, items: Sequence[PairCalls], cache: Cache) -> None:
        votes = iter(await cache.votes([call for item in items if not isinstance(item.calls, Exception) for call in item.calls]))
        for item in items:
            item.outcomes = list(islice(votes, len(item.outcomes)))
        self._begin(items)
        self._hand_out()
        self._end_if_done()

    def _begin(self, items: Sequence[PairCalls]) -> None:
        now = self.driver.engine.clock()
        for item in items:
            if isinstance(item.calls, Exception):
                item.end(as_ours(item.calls, f"pair {item.pair}", "judged"))
            elif not item.done:
                item.begin(self, now)

    def end(self, item: ItemCalls, outcome: Any) -> None:
        assert isinstance(item, PairCalls)
        self._live.pop(item, None)
        group = item.group
        if not isinstance(outcome, QRewardError):
            outcome = self._builder.result(outcome, item.usage, cached=not item.sent)
        group.record(item.pair, outcome, item.usage)
        if not group.pending:
            self._advance(group)
            self._hand_out()
        self._end_if_done()

    def _end_group(self, group: ResponseGroup) -> None:
        outcome = group.outcome()
        error = outcome if isinstance(outcome, QRewardError) else None
        answer = JudgeAnswer(outcome) if isinstance(outcome, Ranking) else None
        self._settle(Result(group.index, answer, error, None, self.driver.engine.clock() - group.born, 0.0, (), group.extra))

    def _give_up(self, make_error: Callable[[], QRewardError] | None = None) -> None:
        for lookup in self._lookups:
            lookup.cancel()
        super()._give_up(make_error)

    def _drop_unstarted(self) -> None:
        self._is_dropping = True
        super()._drop_unstarted()


def read_group(item: Any, comparisons: int | None, builder: RequestBuilder) -> tuple[ResponseGroup | Exception, Mapping[str, Any] | None]:
    """Return the group of an item, or the exception of an invalid item; and the fields of the item that are not judged."""
    extra = None
    try:
        extra = extra_of(item, GROUP_NAMES)
        return ResponseGroup(fields_of(item, GROUP_NAMES), comparisons, partial(builder.requests, extra=True)), extra
    except Exception as error:
        return error, extra
