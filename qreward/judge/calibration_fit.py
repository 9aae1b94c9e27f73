"""Fit calibration curves to scores and labels, and measure how far scores are from probabilities. All functions are pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log, pi, sqrt
from random import Random
from statistics import fmean, pstdev

import numpy as np
from scipy.optimize import isotonic_regression, minimize
from scipy.special import expit

from qreward.judge.calibration import EDGE, METHODS, Curve, Method, logit

FOLDS = 10
"""Number of parts in cross-validation. Ten is usual (Kohavi 1995)."""
MARGIN: Mapping[Method, float] = {"platt": 0.0, "isotonic": 2.0}
"""Number of standard errors by which the log loss of a method must be below the log loss of the best simpler method. Otherwise the simpler
method is chosen."""
MOST_BINS = 15
"""Maximum number of bins of the calibration error, as in Guo et al. 2017."""
LABELS_PER_BIN = 30
"""Number of labels for each bin. With fewer labels, the share of yes in a bin would mostly depend on chance."""


def fit(method: Method, scores: Sequence[float], labels: Sequence[float]) -> Curve:
    """Return the curve of a method that fits the labels best."""
    yes = sum(labels)
    high, low = (yes + 1) / (yes + 2), 1 / (len(labels) - yes + 2)
    targets = low + (high - low) * np.asarray(labels, float)
    if method == "isotonic":
        levels, place, counts = np.unique(np.asarray(scores, float), return_inverse=True, return_counts=True)
        means = np.bincount(place, targets) / counts
        found = isotonic_regression(means, weights=counts)
        ends = [end for begin, after in pairwise(found.blocks.tolist()) for end in dict.fromkeys((begin, after - 1))]
        return Curve(points=tuple((float(levels[end]), min(1.0, float(found.x[end]))) for end in ends))
    logits = np.array([[logit(score), 1.0] for score in scores])[:, : 2 if method == "platt" else 1]

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        at = logits @ weights
        return float(np.mean(np.logaddexp(0, at) - targets * at)), logits.T @ (expit(at) - targets) / len(targets)

    slope, *intercept = minimize(loss, [1.0, 0.0][: logits.shape[1]], jac=True, options={"gtol": 1e-9}).x.tolist()
    return Curve(slope, *intercept)


def held_out(method: Method, scores: Sequence[float], labels: Sequence[float]) -> list[float]:
    """Return the probability of each item by cross-validation: the curve for an item is fitted without the part to which the item
    belongs."""
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
        if fmean(gains) > MARGIN[method] * pstdev(gains) / sqrt(len(gains)):
            best, losses = method, others
    return best


def log_losses(probabilities: Sequence[float], labels: Sequence[float]) -> list[float]:
    inside = [min(max(probability, EDGE), 1 - EDGE) for probability in probabilities]
    return [-label * log(inner) - (1 - label) * log(1 - inner) for inner, label in zip(inside, labels, strict=True)]


def brier(probabilities: Sequence[float], labels: Sequence[float]) -> float:
    return fmean((probability - label) ** 2 for probability, label in zip(probabilities, labels, strict=True))


def accuracy(probabilities: Sequence[float], labels: Sequence[float]) -> float | None:
    """Return the share of items whose probability is on the same side of 0.5 as their label."""
    found = [
        0.5 if probability == 0.5 else float((probability > 0.5) == (label > 0.5))
        for probability, label in zip(probabilities, labels, strict=True)
        if label != 0.5
    ]
    return fmean(found) if found else None


def bins_of(probabilities: Sequence[float], labels: Sequence[float], most: int | None = None) -> list[list[tuple[float, float]]]:
    """Return pairs of probability and label in bins of about equal size, by rising probability. Equal probabilities are in one bin."""
    pairs = sorted(zip(probabilities, labels, strict=True))
    count = most or max(1, min(MOST_BINS, len(pairs) // LABELS_PER_BIN))
    ends = [round(len(pairs) * place / count) for place in range(count + 1)]
    for place in range(1, count):
        while ends[place - 1] < ends[place] < len(pairs) and pairs[ends[place]][0] == pairs[ends[place] - 1][0]:
            ends[place] += 1
        ends[place] = max(ends[place], ends[place - 1])
    return [pairs[begin:end] for begin, end in pairwise(ends) if begin < end]


def ece(probabilities: Sequence[float], labels: Sequence[float], bins: int | None = None) -> float:
    """Return the expected calibration error: the mean distance between the mean probability and the mean label of the items of a bin,
    weighted by the number of items in each bin."""
    gaps = (abs(sum(probability - label for probability, label in pairs)) for pairs in bins_of(probabilities, labels, bins))
    return round(sum(gaps) / len(labels), 12)


def ece_by_chance(probabilities: Sequence[float], labels: Sequence[float], bins: int | None = None) -> float:
    variances = (sum(probability * (1 - probability) for probability, _ in pairs) for pairs in bins_of(probabilities, labels, bins))
    return sum(sqrt(2 / pi * variance) for variance in variances) / len(labels)
