"""Fits curves from scores to probabilities, and measures how good probabilities are. It needs the extra ``qreward[calibration]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import pi, sqrt
from random import Random
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression, minimize
from scipy.special import expit, logit
from scipy.stats import rankdata

from qreward.judge.calibration import EDGE, METHODS, CalibrationQuality, Curve, Method

Array = np.ndarray[Any, np.dtype[np.float64]]
Numbers = Sequence[float] | Array

FOLDS = 10
"""Number of parts in cross-validation. Ten is usual (Kohavi 1995)."""
MARGIN: Mapping[Method, float] = {"platt": 0.0, "isotonic": 2.0}
"""Number of standard errors by which the log loss of a method must be below the log loss of the best simpler method. Otherwise the simpler
method is chosen."""
MOST_BINS = 15
"""Maximum number of bins of the calibration error, as in Guo et al. 2017."""
LABELS_PER_BIN = 30
"""Number of labels for each bin. With fewer labels, the share of yes in a bin would mostly depend on chance."""


def fit(method: Method, scores: Numbers, labels: Numbers) -> Curve:
    """Return the curve of a method that fits the labels best. Labels are moved away from 0 and 1 as by Platt (1999)."""
    scores, labels = np.asarray(scores, float), np.asarray(labels, float)
    yes = labels.sum()
    high, low = (yes + 1) / (yes + 2), 1 / (len(labels) - yes + 2)
    targets = low + (high - low) * labels
    if method == "isotonic":
        levels, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
        found = isotonic_regression(np.bincount(place, targets) / counts, weights=counts)
        ends = [end for begin, after in pairwise(found.blocks.tolist()) for end in dict.fromkeys((begin, after - 1))]
        return Curve(points=tuple((float(levels[end]), min(1.0, float(found.x[end]))) for end in ends))
    logits = logit(np.clip(scores, EDGE, 1 - EDGE))
    inputs = np.stack([logits, np.ones_like(logits)][: 2 if method == "platt" else 1], axis=1)

    def loss(weights: Array) -> tuple[float, Array]:
        at = inputs @ weights
        return float(np.mean(np.logaddexp(0, at) - targets * at)), inputs.T @ (expit(at) - targets) / len(targets)

    return Curve(*minimize(loss, [1.0, 0.0][: inputs.shape[1]], jac=True, options={"gtol": 1e-9}).x.tolist())


def held_out(method: Method, scores: Numbers, labels: Numbers) -> Array:
    """Return the probability of each item by cross-validation: the curve for an item is fitted without the part that has the item."""
    scores, labels = np.asarray(scores, float), np.asarray(labels, float)
    order = list(range(len(scores)))
    Random(0).shuffle(order)  # noqa: S311 - the same parts in every run, no secret
    order.sort(key=labels.__getitem__)
    found = np.empty(len(scores))
    for fold in range(FOLDS):
        part = order[fold::FOLDS]
        curve = fit(method, np.delete(scores, part), np.delete(labels, part))
        found[part] = [curve(score) for score in scores[part]]
    return found


def choose(scores: Numbers, labels: Numbers) -> Method:
    """Return the method with the lowest log loss in cross-validation. A more flexible method must be better by its ``MARGIN``."""
    best, losses = METHODS[0], log_losses(held_out(METHODS[0], scores, labels), labels)
    for method in METHODS[1:]:
        others = log_losses(held_out(method, scores, labels), labels)
        gains = losses - others
        if gains.mean() > MARGIN[method] * gains.std() / sqrt(len(gains)):
            best, losses = method, others
    return best


def log_losses(probabilities: Numbers, labels: Numbers) -> Array:
    inside, labels = np.clip(np.asarray(probabilities, float), EDGE, 1 - EDGE), np.asarray(labels, float)
    losses: Array = -labels * np.log(inside) - (1 - labels) * np.log(1 - inside)
    return losses


def bins_of(probabilities: Numbers) -> Any:
    """Return the number of each probability's bin. Bins are about equally large, and equal probabilities are in one bin."""
    count = max(1, min(MOST_BINS, len(probabilities) // LABELS_PER_BIN))
    return (rankdata(probabilities, method="min").astype(int) - 1) * count // len(probabilities)


def ece(probabilities: Numbers, labels: Numbers) -> float:
    """Return the expected calibration error: the mean distance between the mean probability and the mean label of the items of a bin,
    weighted by the number of items in each bin."""
    gaps = np.bincount(bins_of(probabilities), np.subtract(probabilities, labels))
    return round(float(np.abs(gaps).sum()) / len(labels), 12)


def ece_by_chance(probabilities: Numbers) -> float:
    """Return the expected calibration error that exact probabilities would show."""
    inside = np.asarray(probabilities, float)
    variances = np.bincount(bins_of(inside), inside * (1 - inside))
    return float(np.sqrt(2 / pi * variances).sum()) / len(inside)


def quality_of(probabilities: Numbers, labels: Numbers) -> CalibrationQuality:
    inside, wanted = np.asarray(probabilities, float), np.asarray(labels, float)
    sides = np.where(inside == 0.5, 0.5, (inside > 0.5) == (wanted > 0.5))[wanted != 0.5]
    return CalibrationQuality(
        ece=ece(inside, wanted),
        ece_by_chance=ece_by_chance(inside),
        brier=float(np.mean((inside - wanted) ** 2)),
        log_loss=float(np.mean(log_losses(inside, wanted))),
        accuracy=float(sides.mean()) if sides.size else None,
    )
