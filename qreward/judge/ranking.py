"""Rank responses by paired comparisons: which pairs to compare next, the Bradley-Terry fit, and the ``Ranking`` that results. Pure.

A Bradley-Terry model (Bradley and Terry 1952) gives each response a strength, so that the first of a pair is better with probability
``1 / (1 + exp(second - first))``. The fit is Newton's method on a few dozen unknowns. Plain Python does that in about a millisecond for 16
responses, which is less than one comparison takes, so that no numeric package is needed.

This module knows no judge, no request and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, exp, log2, sqrt
from operator import mul
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, NamedTuple

from qreward.errors import ConfigError

if TYPE_CHECKING:
    from qreward.judge.types import Comparison, Vote
    from qreward.results import Usage

Place = tuple[int, int]
"""The indexes of the two responses of a pair."""
Matrix = list[list[float]]

MOST_RESPONSES = 64
"""The most different responses of a group. The fit takes time cubic in their number, about 30 ms for 64, in the event loop."""
PRIOR_DEVIATION = 2.0
"""Standard deviation of a strength before anything is compared. It is weak: the best of 4 responses that wins each of its
comparisons scores 0.83, the best of 16 scores 0.97. Without a prior its strength would be infinite. Of 1, 2 and 4 in simulations of 16
responses, of whose comparisons 5 % were wrong, 2 gave the best order."""
_STEPS = 50
_LONGEST_STEP = 1.0
_CLOSE_ENOUGH = 1e-6
_DIGITS = 6
"""Digits of a score. Responses that the comparisons do not tell apart differ in the last bits, which would become advantages."""


class Fit(NamedTuple):
    """The strengths of responses, with mean 0, and the covariance of their errors."""

    strengths: list[float]
    covariance: Matrix

    def variance(self, first: int, second: int) -> float:
        """The variance of the difference of two strengths."""
        covariance = self.covariance
        return covariance[first][first] + covariance[second][second] - 2 * covariance[first][second]


def fit(size: int, scores: Mapping[Place, float], start: Sequence[float] | None = None) -> Fit:
    """Fit strengths to comparisons: the maximum of the posterior, and the inverse of its Hessian as covariance (Laplace's approximation).

    Args:
        size: number of responses.
        scores: pair -> 1.0 if the first was better, 0.0 if the second was, a number between for a tie or for judges that disagree.
        start: strengths from which the search begins. They change its speed and not its result, as the posterior has one maximum.

    Example:
        >>> [round(strength, 2) for strength in fit(3, {(0, 1): 1.0, (1, 2): 1.0}).strengths]
        [1.04, 0.0, -1.04]
    """
    strengths = [0.0] * size if start is None else list(start)
    covariance: Matrix = []
    precision = 1 / PRIOR_DEVIATION**2
    for _ in range(_STEPS):
        slope = [-precision * strength for strength in strengths]
        hessian = [[0.0] * size for _ in range(size)]
        for index in range(size):
            hessian[index][index] = precision
        for (first, second), score in scores.items():
            expected = _better(strengths[first], strengths[second])
            slope[first] += score - expected
            slope[second] -= score - expected
            curvature = expected * (1 - expected)
            hessian[first][first] += curvature
            hessian[second][second] += curvature
            hessian[first][second] -= curvature
            hessian[second][first] -= curvature
        covariance = _inverse(hessian)
        step = [sum(map(mul, row, slope)) for row in covariance]
        length = max(map(abs, step), default=0.0)
        scale = min(1.0, _LONGEST_STEP / length) if length else 1.0
        strengths = [strength + scale * change for strength, change in zip(strengths, step, strict=True)]
        if length < _CLOSE_ENOUGH:
            break
    return Fit(strengths, covariance)


def _better(first: float, second: float) -> float:
    """The probability that a response is better than another, from their strengths."""
    difference = first - second
    return 1 / (1 + exp(-difference)) if difference >= 0 else exp(difference) / (1 + exp(difference))


def _inverse(matrix: Matrix) -> Matrix:
    """The inverse of a symmetric positive definite matrix, by Cholesky's decomposition."""
    size = len(matrix)
    lower: Matrix = []
    for index, row in enumerate(matrix):
        made: list[float] = []
        for column in range(index):
            other = lower[column]
            made.append((row[column] - sum(map(mul, made, other))) / other[column])
        made.append(sqrt(row[index] - sum(map(mul, made, made))))
        lower.append(made)
    columns = [_solved(lower, column) for column in range(size)]  # of the inverse of ``lower``, each from its diagonal down
    inverse = [[0.0] * size for _ in range(size)]
    for row_index in range(size):
        for column in range(row_index, size):
            value = sum(map(mul, columns[row_index][column - row_index :], columns[column]))
            inverse[row_index][column] = inverse[column][row_index] = value
    return inverse


def _solved(lower: Matrix, column: int) -> list[float]:
    """The elements of a column of the inverse of a lower triangular matrix, from its diagonal down."""
    found = [1 / lower[column][column]]
    for row in lower[column + 1 :]:
        found.append(-sum(map(mul, row[column : column + len(found)], found)) / row[column + len(found)])
    return found


def pairs_of(size: int) -> int:
    """The number of pairs of so many responses."""
    return size * (size - 1) // 2


def budget_of(size: int, comparisons: int | None) -> int:
    """The number of pairs to compare.

    Args:
        size: number of different responses.
        comparisons: the number that the caller wants; None is ``size * log2(size)``, as of a sort. All pairs are the most.

    Raises:
        ConfigError: ``comparisons`` is too small to connect all responses.

    Example:
        >>> [budget_of(size, None) for size in (1, 2, 4, 8, 16)]
        [0, 1, 6, 24, 64]
    """
    if comparisons is None:
        return min(pairs_of(size), ceil(size * log2(size))) if size > 1 else 0
    if isinstance(comparisons, bool) or not isinstance(comparisons, int):
        raise ConfigError(f"comparisons must be a whole number of pairs, or None for about n log2 n, not {comparisons!r}")
    if comparisons < size - 1:
        raise ConfigError(
            f"comparisons must be at least {size - 1} to connect {size} different responses, not {comparisons}; None takes about n log2 n"
        )
    return min(pairs_of(size), comparisons)


class PairChooser:
    """Chooses which pairs to compare, in rounds, and keeps what came of them.

    If the budget allows all pairs, they are one round. Otherwise, a round has each response at most once. Pairs that connect responses
    without a chain of comparisons between them come first. Then come the pairs whose answer says most: those with the greatest
    ``p * (1 - p) * variance``, where ``p`` is the probability that the first is better and ``variance`` that of the difference of
    strengths. This is the first term of the information that an answer is expected to give. A round has half as many pairs as there
    are responses until all are connected, and a quarter afterwards: later pairs are chosen by the results of earlier ones.

    Args:
        size: number of different responses.
        budget: number of pairs to compare.

    Attributes:
        scores: pair -> score of its first response, of the comparisons that succeeded.
        failed: number of comparisons that failed.

    Example:
        >>> chooser = PairChooser(3, budget=3)
        >>> for pair in chooser.next_round():
        ...     chooser.record(pair, 1.0)
        >>> chooser.next_round(), chooser.fitted().strengths[0] > 0
        ([], True)
    """

    def __init__(self, size: int, budget: int) -> None:
        self.size, self._budget = size, budget
        self.scores: dict[Place, float] = {}
        self.failed = 0
        self._asked: set[Place] = set()
        self._fit: Fit | None = None
        self._fitted_to = 0

    def record(self, pair: Place, score: float | None) -> None:
        """Record the score of the first response of a pair; None if the comparison failed. A pair that failed is not chosen again."""
        if score is None:
            self.failed += 1
        else:
            self.scores[pair] = score

    def fitted(self) -> Fit:
        """The fit to the comparisons so far."""
        if self._fit is None or self._fitted_to != len(self.scores):
            start = None if self._fit is None else self._fit.strengths
            self._fit, self._fitted_to = fit(self.size, self.scores, start), len(self.scores)
        return self._fit

    @property
    def asked(self) -> int:
        """The number of pairs that were chosen."""
        return len(self._asked)

    def is_connected(self) -> bool:
        """Whether a chain of successful comparisons leads from each response to each other one."""
        return self._components().parts <= 1

    def _components(self) -> _Components:
        components = _Components(self.size)
        for first, second in self.scores:
            components.join(first, second)
        return components

    def next_round(self) -> list[Place]:
        """The pairs to compare next. Empty if the budget is spent."""
        left = self._budget - len(self._asked)
        if left <= 0:
            return []
        chosen = self._everything() if self._budget >= pairs_of(self.size) else self._best(left)
        self._asked.update(chosen)
        return chosen

    def _everything(self) -> list[Place]:
        return [(first, second) for first in range(self.size) for second in range(first + 1, self.size)]

    def _best(self, left: int) -> list[Place]:
        components = self._components()
        width = min(left, max(1, self.size // (2 if components.parts > 1 else 4)))
        chosen: list[Place] = []
        taken: set[int] = set()
        candidates = self._by_information()
        for connecting in (True, False):
            for pair in candidates:
                if len(chosen) < width and taken.isdisjoint(pair) and (not connecting or components.join(*pair)):
                    chosen.append(pair)
                    taken.update(pair)
        return chosen

    def _by_information(self) -> list[Place]:
        """The pairs that were not compared, the most informative first."""
        fitted = self.fitted()
        found = []
        for pair in self._everything():
            if pair not in self._asked:
                first, second = pair
                probability = _better(fitted.strengths[first], fitted.strengths[second])
                found.append((-probability * (1 - probability) * fitted.variance(first, second), pair))
        return [pair for _, pair in sorted(found)]


class _Components:
    """Which responses are connected. ``parts`` is the number of groups without a connection between them."""

    def __init__(self, size: int) -> None:
        self.parts = size
        self._above = list(range(size))

    def _root(self, index: int) -> int:
        while self._above[index] != index:
            index = self._above[index]
        return index

    def join(self, first: int, second: int) -> bool:
        """Connect two responses. Returns False if they were connected before."""
        one, other = self._root(first), self._root(second)
        self._above[one] = other
        self.parts -= one != other
        return one != other


@dataclass(frozen=True, repr=False)
class Ranking:
    """The responses to one prompt, ranked.

    Attributes:
        scores: of each response the probability that it is better than the average response of the group, from 0 to 1. Of a listwise
            ranking the mean share of the others that stand below it. Identical responses have the same score.
        errors: the standard error of each score. Of pairs it comes from the fit, of a listwise ranking from the difference between the
            orders that the judge gave.
        comparisons: indexes of two responses -> their comparison, for those that succeeded; empty for a listwise ranking.
        failed: number of comparisons, or of listwise votes, that failed and were left out.
        votes: the answers of a listwise ranking; empty for comparisons.
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
    comparisons: Mapping[Place, Comparison] = field(default_factory=dict)
    failed: int = 0
    votes: tuple[Vote, ...] = ()
    usage: Usage | None = None
    cached: bool = False

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The indexes of the responses, the best first. Those with the same score are in the order in which they were given."""
        return tuple(sorted(range(len(self.scores)), key=lambda index: -self.scores[index]))

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The rank of each response: 1 plus the number of better ones."""
        return tuple(1 + sum(other > score for other in self.scores) for score in self.scores)

    @cached_property
    def advantages(self) -> tuple[float, ...]:
        """The group advantage of each response: ``(score - mean) / deviation``; 0.0 for all if their scores are equal.

        This is the advantage of GRPO (Shao et al. 2024, arXiv 2402.03300), with the standard deviation of the group itself.
        """
        if len(set(self.scores)) < 2:
            return (0.0,) * len(self.scores)
        mean, deviation = fmean(self.scores), pstdev(self.scores)
        return tuple((score - mean) / deviation for score in self.scores)

    def __repr__(self) -> str:
        best = f", best {self.order[0]}" if self.scores else ""
        failed = f", {self.failed} failed" if self.failed else ""
        return f"<Ranking of {len(self.scores)} responses{best}, {len(self.comparisons) or len(self.votes)} answers{failed}>"


def scored(fitted: Fit, places: Sequence[int]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The scores of responses and their standard errors.

    Args:
        fitted: the fit to the different responses.
        places: of each response, identical ones included, its place in the fit.

    The average response has the mean strength of all responses. The error is that of the strength's distance from this mean, carried
    through the logistic function (delta method).

    Example:
        >>> scored(fit(2, {(0, 1): 1.0}), [0, 1])[0][0] > 0.5
        True
    """
    share = [places.count(place) / len(places) for place in range(len(fitted.strengths))]
    mean = sum(map(mul, share, fitted.strengths))
    with_mean = [sum(map(mul, row, share)) for row in fitted.covariance]
    of_mean = sum(map(mul, with_mean, share))
    scores, errors = [], []
    for place, strength in enumerate(fitted.strengths):
        score = _better(strength, mean)
        variance = fitted.covariance[place][place] - 2 * with_mean[place] + of_mean
        scores.append(round(score, _DIGITS))
        errors.append(score * (1 - score) * sqrt(max(0.0, variance)))
    return tuple(scores[place] for place in places), tuple(errors[place] for place in places)
