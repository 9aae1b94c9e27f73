"""Ranking as arithmetic: the fit, the choice of pairs, and what a ranking says. No judge."""

from __future__ import annotations

from collections.abc import Callable
from math import comb, exp, log
from random import Random
from statistics import fmean, pstdev
from typing import Any

import pytest
from scale import seeds

from qreward.errors import ConfigError
from qreward.judge.ranking import PRIOR_DEVIATION, IndexPair, Ranking, budget_of, fit, is_connected, next_pairs, scored

ENOUGH = 40
"""Seeds of a simulation. With 200 and more the means are 0.943 and 0.873 for 64 pairs, and 0.914 and 0.843 for all 120."""


def kendall(true: list[int], scores: list[float]) -> float:
    """Kendall's tau: the share of pairs in the right order minus that of pairs in the wrong one."""
    size = len(true)
    products = [(true[one] - true[other]) * (scores[one] - scores[other]) for one in range(size) for other in range(one)]
    return (sum(product > 0 for product in products) - sum(product < 0 for product in products)) / comb(size, 2)


def played(size: int, budget: int, answer: Callable[[int, int], float | None]) -> tuple[list[list[IndexPair]], dict[IndexPair, float]]:
    """Compare until the budget is spent. Returns the rounds, and the scores of the comparisons that succeeded."""
    rounds, scores = list[list[IndexPair]](), dict[IndexPair, float]()
    while (left := budget - sum(map(len, rounds))) > 0:
        pairs = next_pairs(size, left, {pair for each in rounds for pair in each}, scores)
        if not pairs:
            break
        rounds.append(pairs)
        scores |= {pair: score for pair in pairs if (score := answer(*pair)) is not None}
    return rounds, scores


def simulated(seed: int, flipped: float, budget: int, size: int = 16) -> float:
    """Kendall's tau of a ranking of which this share of comparisons is flipped."""
    random = Random(seed)
    true = list(range(size))
    random.shuffle(true)
    _, scores = played(size, budget, lambda first, second: float((true[first] > true[second]) != (random.random() < flipped)))
    return kendall(true, fit(size, scores).strengths)


def test_half_of_the_pairs_of_sixteen_order_them_although_a_twentieth_of_the_answers_is_wrong() -> None:
    faults = []
    for flipped, budget, least in ((0.0, 64, 0.999), (0.05, 64, 0.925), (0.1, 64, 0.85), (0.05, 120, 0.895)):
        used = seeds(ENOUGH)
        mean = fmean(simulated(seed, flipped, budget) for seed in used)
        if mean < least:
            faults.append((flipped, budget, round(mean, 4), used))
    assert faults == []


def test_the_fit_is_the_maximum_of_the_posterior_and_its_errors_the_inverse_curvature() -> None:
    scores: dict[IndexPair, float] = {(0, 1): 1.0, (1, 2): 0.5, (0, 2): 1.0, (2, 3): 0.75}

    def posterior(strengths: list[float]) -> float:
        total = -sum(strength**2 for strength in strengths) / 2 / PRIOR_DEVIATION**2
        for (first, second), score in scores.items():
            better = 1 / (1 + exp(strengths[second] - strengths[first]))
            total += score * log(better) + (1 - score) * log(1 - better)
        return total

    fitted = fit(4, scores)
    best, step = posterior(fitted.strengths), 1e-3
    for index in range(4):
        moved = [[strength + sign * step * (place == index) for place, strength in enumerate(fitted.strengths)] for sign in (1, -1)]
        values = list(map(posterior, moved))
        assert max(values) < best
        assert values[0] == pytest.approx(values[1], abs=1e-7)
    hessian = [[second_derivative(posterior, fitted.strengths, row, column, step) for column in range(4)] for row in range(4)]
    product = [[sum(-hessian[row][k] * fitted.covariance[k][column] for k in range(4)) for column in range(4)] for row in range(4)]
    assert [pytest.approx([float(row == column) for column in range(4)], abs=1e-4) for row in range(4)] == product
    assert sum(fitted.strengths) == pytest.approx(0)


def second_derivative(of: Callable[[list[float]], float], at: list[float], row: int, column: int, step: float) -> float:
    def value(one: int, other: int) -> float:
        return of([x + step * (one * (place == row) + other * (place == column)) for place, x in enumerate(at)])

    return (value(1, 1) - value(1, -1) - value(-1, 1) + value(-1, -1)) / 4 / step**2


def test_rounds_keep_the_budget_repeat_no_pair_and_connect_all_responses() -> None:
    faults: list[Any] = []
    for seed in seeds(60):
        random = Random(seed)
        size = random.randint(2, 20)
        budget = min(comb(size, 2), size - 1 + random.choice((0, 0, 1, 2, random.randint(0, 99))))
        rounds, scores = played(size, budget, lambda *_: float(random.randint(0, 1)))  # noqa: B023 - called in this turn
        asked = [pair for each in rounds for pair in each]
        if len(asked) != budget or len(set(asked)) != budget or not is_connected(size, scores):
            faults.append((seed, size, budget, len(asked), len(set(asked)), is_connected(size, scores)))
        if any(len({index for pair in each for index in pair}) != 2 * len(each) for each in rounds[1:]):
            faults.append((seed, "a response twice in a round", rounds))
    assert faults == []


def test_a_failed_pair_is_not_asked_again_and_others_connect_what_it_left() -> None:
    rounds, scores = played(8, 20, lambda first, second: None if first == 3 and second == 4 else float(first < second))
    assert sum(map(len, rounds)) == 20
    assert (3, 4) not in scores
    assert is_connected(8, scores)
    _, scores = played(4, 6, lambda first, _: None if first == 0 else 1.0)
    assert (len(scores), is_connected(4, scores)) == (3, False)


def test_later_pairs_are_close_in_the_order() -> None:
    true = list(range(16))
    Random(1).shuffle(true)
    rounds, _ = played(16, 64, lambda first, second: float(true[first] < true[second]))
    distances = [fmean(abs(true[first] - true[second]) for first, second in pairs) for pairs in rounds]
    assert fmean(distances[-5:]) < 3.5
    assert len(rounds) <= 16


def test_the_budget_is_a_sort_and_never_more_than_all_pairs() -> None:
    assert [budget_of(size, None) for size in (0, 1, 2, 6, 7, 16)] == [0, 0, 1, 15, 20, 64]
    assert [budget_of(4, wanted) for wanted in (3, 5, 6, 99)] == [3, 5, 6, 6]
    for size, wanted, words in ((5, 3, "at least 4"), (5, True, "whole number"), (5, 4.5, "whole number"), (1, -1, "at least 0")):
        given: Any = wanted
        with pytest.raises(ConfigError, match=words):
            budget_of(size, given)


def test_identical_responses_share_a_score_and_weigh_in_the_average() -> None:
    fitted = fit(2, {(0, 1): 1.0})
    scores, errors = scored(fitted, [1, 0, 1, 1])
    assert scores[0] == scores[2] == scores[3] < 0.5 < scores[1]
    assert errors[0] == errors[2]
    assert scores[1] > scored(fitted, [0, 1])[0][0]


def test_what_the_answers_do_not_tell_apart_is_equal_to_the_last_bit() -> None:
    circle = {(0, 1): 1.0, (1, 2): 1.0, (2, 3): 1.0, (3, 4): 1.0, (0, 4): 0.0}
    scores, errors = scored(fit(5, circle), range(5))
    assert set(scores) == {0.5}
    assert min(errors) > 0.1
    assert Ranking(scores, errors).advantages == (0.0,) * 5
    faults = []
    for seed in seeds(30):
        random = Random(seed)
        alike: dict[IndexPair, float] = {(0, 1): 0.5}
        for other in range(2, 6):
            alike[0, other] = alike[1, other] = float(random.randint(0, 1))
        for first, second in ((2, 3), (3, 4), (2, 5)):
            alike[first, second] = float(random.randint(0, 1))
        scores, _ = scored(fit(6, alike), range(6))
        if scores[0] != scores[1]:
            faults.append((seed, scores[:2]))
    assert faults == []


def test_a_ranking_has_the_order_the_ranks_and_the_advantages_of_its_scores() -> None:
    ranking = Ranking((0.2, 0.9, 0.2, 0.5), (0.1,) * 4)
    assert (ranking.order, ranking.ranks) == ((1, 3, 0, 2), (3, 1, 3, 2))
    assert fmean(ranking.advantages) == pytest.approx(0)
    assert pstdev(ranking.advantages) == pytest.approx(1)
    assert ranking.advantages.index(max(ranking.advantages)) == 1
    assert repr(ranking) == "<Ranking of 4 responses, best 1, 0 answers>"
    empty, alone = Ranking((), ()), Ranking((0.5,), (0.0,))
    assert (empty.order, empty.ranks, empty.advantages, repr(empty)) == ((), (), (), "<Ranking of 0 responses, 0 answers>")
    assert (alone.order, alone.ranks, alone.advantages) == ((0,), (1,), (0.0,))
