"""Rank many groups of responses at once, by comparing pairs of the responses of each group. ``ranking`` chooses the pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from qreward.engine.background import report_error
from qreward.engine.batch import as_ours
from qreward.errors import BatchCancelled, ClientClosed, ConfigError, DeadlineExceeded, InvalidResponse, QRewardError
from qreward.judge.aggregation import quorum_error
from qreward.judge.cache import Cache
from qreward.judge.loop import Invalid, ItemBatch, ItemCalls
from qreward.judge.prompts import in_words, is_absent
from qreward.judge.ranking import MOST_RESPONSES, IndexPair, Ranking, budget_of, fit, is_connected, next_pairs, scored
from qreward.judge.requests import RequestBuilder, extra_of, fields_of
from qreward.judge.types import Comparison, JudgeAnswer
from qreward.records import added
from qreward.results import Result, Usage

GROUP_NAMES = ("prompt", "responses", "reference")
Responses = tuple[Any, Sequence[Any]] | tuple[Any, Sequence[Any], Any] | Mapping[str, Any]
"""The responses to one prompt: ``(prompt, responses)``, ``(prompt, responses, reference)``, or a mapping with these fields and the other
fields that a prompt template names."""


def unique_responses(fields: Mapping[str, Any]) -> tuple[list[Any], list[int]]:
    """Return the distinct responses of a group, and for each given response the index of the equal one among them. Raises
    ``ConfigError``."""
    responses = fields["responses"]
    if isinstance(responses, str | bytes | Mapping) or not isinstance(responses, Sequence):
        raise ConfigError(f"responses must be a list of responses to one prompt, not a {type(responses).__name__}")
    different: dict[str, int] = {}
    distinct, places = [], []
    for index, response in enumerate(responses):
        if is_absent("response", response):
            raise ConfigError(f"responses[{index}] is None, so there is nothing to judge; leave it out")
        place = different.setdefault(in_words(response, f"responses[{index}]"), len(distinct))
        if place == len(distinct):
            distinct.append(response)
        places.append(place)
    if len(distinct) > MOST_RESPONSES:
        raise ConfigError(
            f"a group may have at most {MOST_RESPONSES} different responses, not {len(distinct)}; divide it into smaller groups"
        )
    return distinct, places


class ResponseGroup:
    """Holds the comparisons of one group of responses. Each is an item of the batch that :meth:`start` receives. When the last pair of a
    round has its outcome, the next round begins. Every response is checked at once; ``strict`` refuses fields that no template names."""

    def __init__(
        self,
        fields: Mapping[str, Any],
        comparisons: int | None,
        builder: RequestBuilder,
        cache: Cache | None,
        *,
        strict: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.index, self.builder, self._cache, self._extra = 0, builder, cache, extra
        self._usage: Usage | None = None
        self._fields = {name: value for name, value in fields.items() if name != "responses"}
        self._responses, self._places = unique_responses(fields)
        self._size, self._budget = len(self._responses), budget_of(len(self._responses), comparisons)
        self._asked: set[IndexPair] = set()
        self._done: dict[IndexPair, Comparison] = {}
        self._errors: list[QRewardError] = []
        for first in range(0, self._size, 2):
            builder.item(self._pair((first, min(first + 1, self._size - 1))), strict=strict)

    def _pair(self, pair: IndexPair) -> dict[str, Any]:
        return {**self._fields, "first": self._responses[pair[0]], "second": self._responses[pair[1]]}

    def start(self, batch: ItemBatch) -> None:
        self._batch, self._clock = batch, batch.driver.engine.clock
        self._born = self._clock()
        self._next_round()

    def _next_round(self) -> None:
        """Compare the next pairs, or end the group: its budget is spent, no comparison succeeded so far, or the batch is stopping."""
        batch, left = self._batch, self._budget - len(self._asked)
        scores = {pair: comparison.score for pair, comparison in self._done.items()}
        is_over = batch.is_stopping or left <= 0 or (self._errors and not scores)
        pairs = [] if is_over else next_pairs(self._size, left, self._asked, scores)
        self._asked.update(pairs)
        self._pending = len(pairs)
        if not pairs:
            outcome = self.outcome()
            answer, error = (JudgeAnswer(outcome), None) if isinstance(outcome, Ranking) else (None, outcome)
            batch._settle(Result(self.index, answer, error, None, self._clock() - self._born, 0.0, (), self._extra))
            return
        items: dict[ItemCalls, IndexPair] = {}
        for pair in pairs:
            item = self.builder.read(self._pair(pair))
            if isinstance(item, ItemCalls):
                items[item] = pair
            else:
                self._record(pair, as_ours(item.error, f"pair {pair}", "judged"), None)
        batch._live.update(dict.fromkeys(items))
        if self._cache is None:
            self._begin(items)
        else:
            lookup = batch.driver.loop.create_task(self._look_up(items, self._cache))
            batch.lookups.add(lookup)
            lookup.add_done_callback(batch.lookups.discard)
            lookup.add_done_callback(report_error)

    async def _look_up(self, items: Mapping[ItemCalls, IndexPair], cache: Cache) -> None:
        await cache.fill(items)
        self._begin(items)
        self._batch._hand_out()

    def _begin(self, items: Mapping[ItemCalls, IndexPair]) -> None:
        for item, pair in items.items():
            if not item.done:
                item.begin(self._batch, partial(self._end_pair, pair), self._clock())

    def _end_pair(self, pair: IndexPair, item: ItemCalls, decided: Any) -> None:
        self._batch._live.pop(item, None)
        if not isinstance(decided, QRewardError):
            decided = item.result(decided, item.usage, cached=not item.sent)
        self._record(pair, decided, item.usage)
        self._batch._end_if_done()

    def _record(self, pair: IndexPair, outcome: Comparison | QRewardError, usage: Usage | None) -> None:
        self._pending -= 1
        self._usage = added(self._usage, usage)
        if isinstance(outcome, QRewardError):
            self._errors.append(outcome)
        else:
            self._done[pair] = outcome
        if not self._pending:
            self._next_round()
            self._batch._hand_out()

    def outcome(self) -> Ranking | QRewardError:
        """Return the ranking; an error if too many comparisons failed."""
        error = quorum_error([*[None] * len(self._done), *self._errors], "comparisons")
        if self._errors and isinstance(self._errors[-1], BatchCancelled | ClientClosed | DeadlineExceeded):
            error = self._errors[-1]
        if error is None and self._errors and not is_connected(self._size, self._done):
            reasons = "; ".join(dict.fromkeys(f"{type(error).__name__}: {error}" for error in self._errors))
            error = InvalidResponse(
                f"{len(self._errors)} of {len(self._asked)} comparisons failed, and the others do not connect all {self._size} "
                f"responses: {reasons}"
            )
            error.__cause__ = self._errors[0]
        if error is not None:
            error.usage = self._usage
            return error
        fitted = fit(self._size, {pair: comparison.score for pair, comparison in self._done.items()})
        scores, errors = scored(fitted, self._places) if self._places else ((), ())
        shown = [self._places.index(place) for place in range(self._size)]  # of identical responses, the first is shown
        comparisons = {(shown[first], shown[second]): comparison for (first, second), comparison in self._done.items()}
        cached = bool(comparisons) and all(comparison.cached for comparison in comparisons.values())
        return Ranking(scores, errors, comparisons, len(self._errors), self._usage, cached)


def read_group(builder: RequestBuilder, item: Any, comparisons: int | None, cache: Cache | None) -> ResponseGroup | Invalid:
    extra = None
    try:
        extra = extra_of(item, GROUP_NAMES)
        return ResponseGroup(fields_of(item, GROUP_NAMES), comparisons, builder, cache, extra=extra)
    except Exception as error:
        return Invalid(error, extra)
