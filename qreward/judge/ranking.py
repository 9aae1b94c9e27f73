"""Rank responses by comparing pairs: choose the pairs, fit a Bradley-Terry model, and make the ``Ranking``; for many groups at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, pairwise
from math import ceil, comb, log2, sqrt
from operator import mul
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from qreward.engine.batch import as_ours
from qreward.errors import BatchCancelled, ClientClosed, ConfigError, DeadlineExceeded, InvalidResponse, QRewardError
from qreward.judge.aggregation import quorum_error
from qreward.judge.calibration import sigmoid
from qreward.judge.loop import ItemCalls
from qreward.judge.prompts import in_words, is_absent
from qreward.judge.types import Comparison
from qreward.records import added
from qreward.results import Usage

IndexPair = tuple[int, int]
"""The indexes of the two responses of a pair."""
Matrix = list[list[float]]

MOST_RESPONSES = 64
"""Maximum number of different responses in a group. With 64, the fit blocks the event loop for about 30 ms, which grows with the cube."""
PRIOR_DEVIATION = 2.0
"""Standard deviation of the prior of a strength. Without a prior, the strength of a response that wins all comparisons would be infinite.
This prior is weak: such a response scores 0.83 in a group of 4, and 0.97 in a group of 16."""
_STEPS = 50
_LONGEST_STEP = 1.0
_CLOSE_ENOUGH = 1e-6
_DIGITS = 6
"""Decimal places of scores. Without rounding, responses of equal strength would differ in the last bits and get different advantages."""


class Fit(NamedTuple):
    """The strengths of responses, whose mean is 0, and the covariance of their errors."""

    strengths: list[float]
    covariance: Matrix


def fit(size: int, scores: Mapping[IndexPair, float]) -> Fit:
    """Return the strengths that fit the comparisons best: the maximum of the posterior."""
    strengths = [0.0] * size
    covariance: Matrix = []
    precision = 1 / PRIOR_DEVIATION**2
    for _ in range(_STEPS):
        slope = [-precision * strength for strength in strengths]
        hessian = [[precision * (row == column) for column in range(size)] for row in range(size)]
        for (first, second), score in scores.items():
            expected = sigmoid(strengths[first] - strengths[second])
            for one, other, gain in ((first, second, score - expected), (second, first, expected - score)):
                slope[one] += gain
                hessian[one][one] += expected * (1 - expected)
                hessian[one][other] -= expected * (1 - expected)
        covariance = _inverse(hessian)
        step = [sum(map(mul, row, slope)) for row in covariance]
        length = max(map(abs, step), default=0.0)
        scale = min(1.0, _LONGEST_STEP / length) if length else 1.0
        strengths = [strength + scale * change for strength, change in zip(strengths, step, strict=True)]
        if length < _CLOSE_ENOUGH:
            break
    return Fit(strengths, covariance)


def _inverse(matrix: Matrix) -> Matrix:
    size = len(matrix)
    lower: Matrix = []
    for index, row in enumerate(matrix):
        made: list[float] = []
        for column in range(index):
            other = lower[column]
            made.append((row[column] - sum(map(mul, made, other))) / other[column])
        made.append(sqrt(row[index] - sum(map(mul, made, made))))
        lower.append(made)
    columns = []  # of the inverse of ``lower``, from the diagonal down
    for column in range(size):
        found = [1 / lower[column][column]]
        for row in lower[column + 1 :]:
            found.append(-sum(map(mul, row[column : column + len(found)], found)) / row[column + len(found)])
        columns.append(found)
    inverse = [[0.0] * size for _ in range(size)]
    for row_index in range(size):
        for column in range(row_index, size):
            value = sum(map(mul, columns[row_index][column - row_index :], columns[column]))
            inverse[row_index][column] = inverse[column][row_index] = value
    return inverse


def budget_of(size: int, comparisons: int | None) -> int:
    """Return the number of pairs to compare: what the caller wants, or about the number that a sort needs, or all."""
    if comparisons is None:
        return min(comb(size, 2), ceil(size * log2(size))) if size > 1 else 0
    if type(comparisons) is not int:
        raise ConfigError(f"comparisons must be a whole number of pairs, or None for about n log2 n, not {comparisons!r}")
    if comparisons < size - 1:
        raise ConfigError(
            f"comparisons must be at least {size - 1} to connect {size} different responses, not {comparisons}; None takes about n log2 n"
        )
    return min(comb(size, 2), comparisons)


def next_pairs(size: int, left: int, asked: Set[IndexPair], scores: Mapping[IndexPair, float]) -> list[IndexPair]:
    """Return the pairs to compare in the next round; empty if the budget is spent."""
    if not asked and left >= comb(size, 2):
        return list(combinations(range(size), 2))
    if not asked:
        return list(pairwise(range(size)))
    strengths, covariance = fit(size, scores)

    def information(pair: IndexPair) -> float:
        first, second = pair
        better = sigmoid(strengths[first] - strengths[second])
        return better * (1 - better) * (covariance[first][first] + covariance[second][second] - 2 * covariance[first][second])

    chosen: list[IndexPair] = []
    taken: set[int] = set()
    for pair in sorted(set(combinations(range(size), 2)) - asked, key=lambda pair: (-information(pair), pair)):
        if len(chosen) < min(left, max(1, size // 4)) and taken.isdisjoint(pair):
            chosen.append(pair)
            taken.update(pair)
    return chosen


def is_connected(size: int, pairs: Iterable[IndexPair]) -> bool:
    reached, links = {0}, list(pairs)
    for _ in range(size):
        for pair in links:
            if not reached.isdisjoint(pair):
                reached.update(pair)
    return len(reached) >= size


@dataclass(frozen=True, repr=False)
class Ranking:
    """Holds the ranking of the responses to one prompt.

    Attributes:
        scores: for each response, the probability that this response is better than the average response of the group, from 0 to 1.
            Identical responses have the same score.
        errors: the standard error of each score.
        comparisons: indexes of two responses -> the comparison of these responses, if it succeeded.
        failed: number of comparisons that failed and were left out.
        usage: tokens of all answers. None if no server reported usage.
        cached: True if no request was sent for this group.

    Example:
        >>> ranking = Ranking(scores=(0.3, 0.8, 0.3), errors=(0.1, 0.1, 0.1))
        >>> ranking.order, ranking.ranks
        ((1, 0, 2), (2, 1, 2))
        >>> [round(advantage, 3) for advantage in ranking.advantages]
        [-0.707, 1.414, -0.707]
    """

    scores: tuple[float, ...]
    errors: tuple[float, ...]
    comparisons: Mapping[IndexPair, Comparison] = field(default_factory=dict)
    failed: int = 0
    usage: Usage | None = None
    cached: bool = False

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The indexes of the responses, the best first. Responses with equal scores are in the order of the input."""
        return tuple(sorted(range(len(self.scores)), key=lambda index: -self.scores[index]))

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The rank of each response: 1 plus the number of better responses."""
        return tuple(1 + sum(other > score for other in self.scores) for score in self.scores)

    @cached_property
    def advantages(self) -> tuple[float, ...]:
        """The group advantage of each response: ``(score - mean) / deviation``; 0.0 for all responses if all scores are equal.

        The formula is the formula of GRPO (Shao et al. 2024, arXiv 2402.03300), with the population standard deviation of the group.
        """
        if len(set(self.scores)) < 2:
            return (0.0,) * len(self.scores)
        mean, deviation = fmean(self.scores), pstdev(self.scores)
        return tuple((score - mean) / deviation for score in self.scores)

    def __repr__(self) -> str:
        best = f", best {self.order[0]}" if self.scores else ""
        failed = f", {self.failed} failed" if self.failed else ""
        return f"<Ranking of {len(self.scores)} responses{best}, {len(self.comparisons)} answers{failed}>"


def scored(fitted: Fit, places: Sequence[int]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the scores of responses and their standard errors."""
    share = [places.count(place) / len(places) for place in range(len(fitted.strengths))]
    mean = sum(map(mul, share, fitted.strengths))
    with_mean = [sum(map(mul, row, share)) for row in fitted.covariance]
    of_mean = sum(map(mul, with_mean, share))
    scores, errors = [], []
    for place, strength in enumerate(fitted.strengths):
        score = sigmoid(strength - mean)
        variance = fitted.covariance[place][place] - 2 * with_mean[place] + of_mean
        scores.append(round(score, _DIGITS))
        errors.append(score * (1 - score) * sqrt(max(0.0, variance)))
    return tuple(scores[place] for place in places), tuple(errors[place] for place in places)


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
    different, given = dict[str, Any](), list[str]()
    for index, response in enumerate(responses):
        if is_absent("response", response):
            raise ConfigError(f"responses[{index}] is None, so there is nothing to judge; leave it out")
        given.append(in_words(response, f"responses[{index}]"))
        different.setdefault(given[-1], response)
    if len(different) > MOST_RESPONSES:
        raise ConfigError(
            f"a group may have at most {MOST_RESPONSES} different responses, not {len(different)}; divide it into smaller groups"
        )
    places = {words: place for place, words in enumerate(different)}
    return list(different.values()), [places[words] for words in given]


class ResponseGroup:
    """Holds the comparisons of one group of responses, in rounds: the scores so far decide which pairs are compared next. Every response is
    checked at once. ``make`` makes the calls for a pair."""

    def __init__(
        self, fields: Mapping[str, Any], extra: Mapping[str, Any] | None, comparisons: int | None, make: Callable[..., ItemCalls]
    ) -> None:
        self.index, self._make, self.extra = 0, make, extra
        self.usage: Usage | None = None
        self._fields = {name: value for name, value in fields.items() if name != "responses"}
        self._responses, self._places = unique_responses(fields)
        self._size, self._budget = len(self._responses), budget_of(len(self._responses), comparisons)
        self._done: dict[IndexPair, Comparison] = {}
        self._errors: list[QRewardError] = []
        for first in range(0, self._size, 2):
            make(self._pair((first, min(first + 1, self._size - 1))))

    def using(self, *_: object, make: Callable[..., ItemCalls]) -> ResponseGroup:
        """Return this group, which was checked with its fields already, with the function that makes its calls."""
        self._make = make
        return self

    def _pair(self, pair: IndexPair) -> dict[str, Any]:
        return {**self._fields, "first": self._responses[pair[0]], "second": self._responses[pair[1]]}

    async def ranked(self, judged: Callable[[Sequence[ItemCalls]], Awaitable[Sequence[Any]]]) -> Ranking | QRewardError:
        """Compare pairs, round after round, until the budget is spent or all comparisons so far have failed, and rank the responses.

        Args:
            judged: sends the calls of items, and returns their outcomes.
        """
        asked, scores = set[IndexPair](), dict[IndexPair, float]()
        while len(asked) < self._budget and (self._done or not self._errors):
            items = dict[IndexPair, ItemCalls]()
            for pair in next_pairs(self._size, self._budget - len(asked), asked, scores):
                asked.add(pair)
                try:
                    items[pair] = self._make(self._pair(pair))
                except Exception as error:
                    self._errors.append(as_ours(error, f"pair {pair}", "judged"))
            for pair, outcome in zip(items, await judged([*items.values()]), strict=True):
                self.usage = added(self.usage, outcome.usage)
                if isinstance(outcome, QRewardError):
                    self._errors.append(outcome)
                else:
                    self._done[pair], scores[pair] = outcome, outcome.score
        return self._outcome(len(asked), scores)

    def _outcome(self, asked: int, given: Mapping[IndexPair, float]) -> Ranking | QRewardError:
        """Return the ranking; an error if the batch was stopped or too many comparisons failed."""
        for each in self._errors:
            if isinstance(each, BatchCancelled | ClientClosed | DeadlineExceeded):
                return each
        if (error := quorum_error([*[None] * len(self._done), *self._errors], "comparisons")) is not None:
            return error
        if self._errors and not is_connected(self._size, self._done):
            reasons = "; ".join(dict.fromkeys(f"{type(error).__name__}: {error}" for error in self._errors))
            error = InvalidResponse(
                f"{len(self._errors)} of {asked} comparisons failed, and the others do not connect all {self._size} responses: {reasons}"
            )
            error.__cause__ = self._errors[0]
            return error
        scores, errors = scored(fit(self._size, given), self._places) if self._places else ((), ())
        shown = [self._places.index(place) for place in range(self._size)]  # of identical responses, the first is shown
        comparisons = {(shown[first], shown[second]): comparison for (first, second), comparison in self._done.items()}
        cached = bool(comparisons) and all(comparison.cached for comparison in comparisons.values())
        return Ranking(scores, errors, comparisons, len(self._errors), self.usage, cached)
