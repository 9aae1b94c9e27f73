"""Fit calibration curves to scores and labels, and measure how far scores are from probabilities. All functions are pure.

A calibration has a few hundred labels, so a fit in plain Python takes milliseconds and needs no extra package. This module must not import
judges, and must not use files.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import exp, log, log1p, pi, sqrt
from random import Random
from typing import Literal, NamedTuple

Method = Literal["temperature", "platt", "isotonic"]
METHODS: tuple[Method, ...] = ("temperature", "platt", "isotonic")
"""The methods, from the simplest to the most flexible."""

EDGE = 1e-6
"""Minimum distance of a score from 0 and from 1. A score that is closer is moved to this distance, because the logit of 0 and of 1 is
infinite."""
FOLDS = 10
"""Number of parts in cross-validation. Ten is usual (Kohavi 1995)."""
MARGIN: Mapping[Method, float] = {"platt": 0.0, "isotonic": 2.0}
"""Number of standard errors by which the log loss of a method must be below the log loss of the best simpler method. Otherwise the simpler
method is chosen. With 300 labels, an isotonic curve often looks better by chance and is worse on new items (Niculescu-Mizil and Caruana
2005 recommend a thousand labels)."""
MOST_BINS = 15
"""Maximum number of bins of the calibration error, as in Guo et al. 2017."""
LABELS_PER_BIN = 30
"""Number of labels for each bin. With fewer labels, the share of yes in a bin would mostly depend on chance."""
MOST_STEPS = 100
"""Maximum number of steps of Newton's method. A fit usually takes about 10 steps."""


class Curve(NamedTuple):
    """Maps a score in 0..1 to a probability. The function never falls.

    Attributes:
        slope, intercept: without points, the probability is ``sigmoid(slope * logit(score) + intercept)``.
        points: pairs of score and probability, by rising score. The curve is a line between two points, and constant outside of all points.

    Example:
        >>> Curve(slope=1.0)(0.25)
        0.25
        >>> Curve(points=((0.2, 0.4), (0.4, 0.8)))(0.3)
        0.6
    """

    slope: float = 1.0
    intercept: float = 0.0
    points: tuple[tuple[float, float], ...] = ()

    def __call__(self, score: float) -> float:
        """Return the probability for a score. A score outside 0..1 counts as the nearer end."""
        if not self.points:
            return sigmoid(self.slope * logit(score) + self.intercept)
        place = bisect(self.points, score, key=_score)
        if place in (0, len(self.points)):
            return self.points[max(place - 1, 0)][1]
        (left, low), (right, high) = self.points[place - 1], self.points[place]
        return min(low + (high - low) * ((score - left) / (right - left)), high)

    @property
    def rises(self) -> bool:
        """True if a higher score can have a higher probability. False for a curve that is constant or falls."""
        return self.points[0][1] < self.points[-1][1] if self.points else self.slope > 0


def _score(point: tuple[float, float]) -> float:
    return point[0]


def logit(score: float) -> float:
    score = min(max(score, EDGE), 1 - EDGE)
    return log(score / (1 - score))


def sigmoid(value: float) -> float:
    return 1 / (1 + exp(-value)) if value >= 0 else (small := exp(value)) / (1 + small)


# fits


def fit(method: Method, scores: Sequence[float], labels: Sequence[float]) -> Curve:
    """Return the curve of a method that fits the labels best.

    ``temperature`` multiplies the logit of the score by one number (Guo et al. 2017). ``platt`` also adds a number to the logit (Platt
    1999). ``isotonic`` takes the best function that never falls (Zadrozny and Elkan 2002).

    Args:
        scores, labels: numbers in 0..1, one label per score. A label between 0 and 1 is the probability of yes.
    """
    targets = _targets(labels)
    return _isotonic(scores, targets) if method == "isotonic" else _logistic(scores, targets, shifts=method == "platt")


def _targets(labels: Sequence[float]) -> list[float]:
    """Return the labels, moved away from 0 and 1 as if there were one more label of each kind (Platt 1999).

    Otherwise the slope would be infinite for scores that separate the labels without an error.
    """
    yes = sum(labels)
    high, low = (yes + 1) / (yes + 2), 1 / (len(labels) - yes + 2)
    return [low + (high - low) * label for label in labels]


def _logistic(scores: Sequence[float], targets: Sequence[float], *, shifts: bool) -> Curve:
    """Return the curve with the lowest log loss, found by Newton's method with a line search (Lin, Lin and Weng 2007).

    The loss is convex. ``shifts`` is True if the intercept is fitted too.
    """
    points = list(zip(map(logit, scores), targets, strict=True))
    slope, intercept = 1.0, 0.0
    loss = _loss(points, slope, intercept)
    for _ in range(MOST_STEPS):
        step, descent = _newton_step(points, slope, intercept, shifts=shifts)
        size = 1.0
        while (new := _loss(points, slope - size * step[0], intercept - size * step[1])) > loss - 1e-4 * size * descent:
            size /= 2
            if size < 1e-10:
                return Curve(slope, intercept)
        slope, intercept = slope - size * step[0], intercept - size * step[1]
        if loss - new < 1e-12 * len(points):
            break
        loss = new
    return Curve(slope, intercept)


def _newton_step(
    points: Sequence[tuple[float, float]], slope: float, intercept: float, *, shifts: bool
) -> tuple[tuple[float, float], float]:
    """Return the Newton step for slope and intercept, and the derivative of the loss along this step."""
    down_slope = down_intercept = bend_both = 0.0
    bend_slope = bend_intercept = 1e-12  # keeps the matrix invertible where all probabilities are almost 0 or 1
    for value, target in points:
        probability = sigmoid(slope * value + intercept)
        error, weight = probability - target, probability * (1 - probability)
        down_slope += error * value
        down_intercept += error
        bend_slope += weight * value * value
        bend_both += weight * value
        bend_intercept += weight
    if not shifts:
        step = down_slope / bend_slope, 0.0
    else:
        area = bend_slope * bend_intercept - bend_both * bend_both
        step = (
            (bend_intercept * down_slope - bend_both * down_intercept) / area,
            (bend_slope * down_intercept - bend_both * down_slope) / area,
        )
    return step, step[0] * down_slope + step[1] * down_intercept


def _loss(points: Sequence[tuple[float, float]], slope: float, intercept: float) -> float:
    total = 0.0
    for value, target in points:
        at = slope * value + intercept
        total += max(at, 0.0) + log1p(exp(-abs(at))) - target * at
    return total


class _Pool(NamedTuple):
    """Holds a range of scores with one probability. The probability is the sum of the targets of these scores (``targets``), divided by the
    number of the scores (``size``)."""

    lowest: float
    highest: float
    targets: float
    size: int

    @property
    def mean(self) -> float:
        return self.targets / self.size

    def __add__(self, other: object) -> _Pool:
        assert isinstance(other, _Pool)
        return _Pool(self.lowest, other.highest, self.targets + other.targets, self.size + other.size)


def _isotonic(scores: Sequence[float], targets: Sequence[float]) -> Curve:
    """Return the isotonic curve, fitted by pooling adjacent violators (Ayer et al. 1955).

    The curve is constant over a pool, and a straight line between two pools.
    """
    groups: dict[float, _Pool] = {}
    for score, target in zip(scores, targets, strict=True):
        group = _Pool(score, score, target, 1)
        groups[score] = groups[score] + group if score in groups else group
    pools: list[_Pool] = []
    for score in sorted(groups):
        pools.append(groups[score])
        while len(pools) > 1 and pools[-2].mean >= pools[-1].mean:
            last = pools.pop()
            pools[-1] += last
    return Curve(points=tuple((end, pool.mean) for pool in pools for end in dict.fromkeys((pool.lowest, pool.highest))))


# choice


def held_out(method: Method, scores: Sequence[float], labels: Sequence[float]) -> list[float]:
    """Return the probability of each item by cross-validation: the curve for an item is fitted without the part to which the item belongs.

    The items are divided into ``FOLDS`` random parts, each with about the same share of every label. The parts are the same in every run.
    """
    order = list(range(len(scores)))
    Random(0).shuffle(order)  # noqa: S311 - the same parts in every run, no secret
    order.sort(key=labels.__getitem__)
    found = [0.0] * len(scores)
    for fold in range(FOLDS):
        rest = [item for place, item in enumerate(order) if place % FOLDS != fold]
        curve = fit(method, [scores[item] for item in rest], [labels[item] for item in rest])
        for item in order[fold::FOLDS]:
            found[item] = curve(scores[item])
    return found


def choose(scores: Sequence[float], labels: Sequence[float]) -> Method:
    """Return the method with the lowest log loss in cross-validation. A more flexible method must be better by its ``MARGIN``."""
    best, losses = METHODS[0], log_losses(held_out(METHODS[0], scores, labels), labels)
    for method in METHODS[1:]:
        others = log_losses(held_out(method, scores, labels), labels)
        gains = [one - other for one, other in zip(losses, others, strict=True)]
        mean = sum(gains) / len(gains)
        error = sqrt(sum((gain - mean) ** 2 for gain in gains)) / len(gains)
        if mean > MARGIN[method] * error:
            best, losses = method, others
    return best


# measures


def log_losses(probabilities: Sequence[float], labels: Sequence[float]) -> list[float]:
    """Return the log loss of each item. Probabilities are kept at least ``EDGE`` away from 0 and 1."""
    inside = [min(max(probability, EDGE), 1 - EDGE) for probability in probabilities]
    return [-label * log(inner) - (1 - label) * log(1 - inner) for inner, label in zip(inside, labels, strict=True)]


def brier(probabilities: Sequence[float], labels: Sequence[float]) -> float:
    """Return the mean squared difference between probability and label (Brier 1950)."""
    return sum((probability - label) ** 2 for probability, label in zip(probabilities, labels, strict=True)) / len(labels)


def accuracy(probabilities: Sequence[float], labels: Sequence[float]) -> float | None:
    """Return the share of items whose probability is on the same side of 0.5 as their label.

    A probability of 0.5 counts as half right. Items with the label 0.5 are left out. Returns None if no items are left.
    """
    found = [
        0.5 if probability == 0.5 else float((probability > 0.5) == (label > 0.5))
        for probability, label in zip(probabilities, labels, strict=True)
        if label != 0.5
    ]
    return sum(found) / len(found) if found else None


def bins_of(probabilities: Sequence[float], labels: Sequence[float], most: int | None = None) -> list[list[tuple[float, float]]]:
    """Return pairs of probability and label in bins of about equal size, by rising probability. Equal probabilities are in one bin.

    Args:
        most: number of bins. None makes one bin for every ``LABELS_PER_BIN`` labels, and at most ``MOST_BINS``.
    """
    pairs = sorted(zip(probabilities, labels, strict=True))
    count = most or max(1, min(MOST_BINS, len(pairs) // LABELS_PER_BIN))
    ends = [round(len(pairs) * place / count) for place in range(count + 1)]
    for place in range(1, count):
        while ends[place - 1] < ends[place] < len(pairs) and pairs[ends[place]][0] == pairs[ends[place] - 1][0]:
            ends[place] += 1
        ends[place] = max(ends[place], ends[place - 1])
    return [pairs[begin:end] for begin, end in pairwise(ends) if begin < end]


def ece(probabilities: Sequence[float], labels: Sequence[float], bins: int | None = None) -> float:
    """Return the expected calibration error.

    The items are divided into bins. The error of a bin is the distance between the mean probability and the mean label of its items. The
    result is the mean error of all bins, weighted by the number of items in each bin.

    Bins with equal numbers of items are used, because they have less bias than bins of equal widths (Nguyen and O'Connor 2015; Roelofs et
    al. 2022).

    Args:
        bins: number of bins; see :func:`bins_of`.

    Example:
        >>> ece([0.9] * 10, [1] * 7 + [0] * 3)
        0.2
    """
    gaps = (abs(sum(probability - label for probability, label in pairs)) for pairs in bins_of(probabilities, labels, bins))
    return round(sum(gaps) / len(labels), 12)


def ece_by_chance(probabilities: Sequence[float], labels: Sequence[float], bins: int | None = None) -> float:
    """Return the expected ECE of exact probabilities, for the same number of yes-or-no labels.

    For exact probabilities, the sum of all ``probability - label`` in a bin has the same variance as the sum of all labels in the bin. The
    mean absolute value of a normal variable is ``sqrt(2 / pi)`` times its standard deviation.
    """
    variances = (sum(probability * (1 - probability) for probability, _ in pairs) for pairs in bins_of(probabilities, labels, bins))
    return sum(sqrt(2 / pi * variance) for variance in variances) / len(labels)
