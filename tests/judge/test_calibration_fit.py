"""Curves from scores to probabilities: each is the best of its kind, never falls, and is chosen for what it does on unseen items."""

from __future__ import annotations

from itertools import pairwise
from math import inf, log, nextafter
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from scale import seeds

from qreward.judge import calibration_fit as fits
from qreward.judge.calibration import METHODS, Curve, logit, sigmoid
from qreward.judge.calibration_fit import fit, quality_of

SHARES = st.floats(0, 1)
LABELLED = st.lists(st.tuples(SHARES, st.sampled_from([0.0, 1.0]) | SHARES), min_size=2, max_size=60)


def drawn(seed: int, count: int, slope: float, intercept: float, spread: float = 2.0) -> tuple[list[float], list[float]]:
    """Scores whose probability of a label 1 is ``sigmoid((logit(score) - intercept) / slope)``, and labels."""
    rng = Random(seed)
    true = [rng.gauss(0, spread) for _ in range(count)]
    return [sigmoid(slope * value + intercept) for value in true], [float(rng.random() < sigmoid(value)) for value in true]


def smoothed(labels: list[float]) -> list[float]:
    yes = sum(labels)
    return [label * (yes + 1) / (yes + 2) + (1 - label) / (len(labels) - yes + 2) for label in labels]


@given(LABELLED, st.lists(st.floats(allow_nan=False), min_size=2, max_size=10))
def test_every_curve_is_finite_within_0_and_1_and_never_falls_unless_scores_and_labels_run_against_each_other(
    labelled: list[tuple[float, float]], asked: list[float]
) -> None:
    scores, labels = map(list, zip(*labelled, strict=True))
    for method in METHODS:
        curve = fit(method, scores, labels)
        found = [curve(score) for score in sorted([*asked, *scores, 0.0, 1.0, -inf, inf])]
        assert all(0 <= each <= 1 for each in found), method
        if curve.rises or method == "isotonic":
            assert all(high >= low - 1e-12 for low, high in pairwise(found)), (method, found)


def test_temperature_and_platt_are_where_no_small_step_lowers_the_log_loss() -> None:
    for seed in seeds(20):
        scores, labels = drawn(seed, 120, slope=Random(seed).choice([0.3, 1, 4]), intercept=Random(seed + 99).choice([-2, 0, 1]))
        targets = smoothed(labels)
        for method, steps in (("temperature", [(1e-3, 0)]), ("platt", [(1e-3, 0), (0, 1e-3)])):
            curve = fit(method, scores, labels)  # type: ignore[arg-type]
            loss = sum(fits.log_losses([curve(score) for score in scores], targets))
            for slope, intercept in [*steps, *((-a, -b) for a, b in steps)]:
                near = Curve(curve.slope + slope, curve.intercept + intercept)
                assert sum(fits.log_losses([near(score) for score in scores], targets)) > loss, (seed, method, slope, intercept)
    assert curve.intercept != 0.0 == fit("temperature", scores, labels).intercept


def test_isotonic_is_the_best_function_that_never_falls() -> None:
    """Its value at an item is the largest over beginnings up to it, of the smallest over ends from it, of the mean target between them."""
    for seed in seeds(30):
        rng = Random(seed)
        distinct = sorted(rng.sample([place / 40 for place in range(41)], 12))
        scores = [score for score in distinct for _ in range(rng.randrange(1, 5))]
        labels = [rng.choice([0.0, 1.0, rng.random()]) for _ in scores]
        targets = smoothed(labels)
        by_score = [[target for score, target in zip(scores, targets, strict=True) if score == each] for each in distinct]

        def mean(begin: int, end: int, groups: list[list[float]] = by_score) -> float:
            between = [target for group in groups[begin : end + 1] for target in group]
            return sum(between) / len(between)

        best = [max(min(mean(a, b) for b in range(at, 12)) for a in range(at + 1)) for at in range(12)]
        pairs = list(zip(scores, labels, strict=True))
        rng.shuffle(pairs)  # equal scores have one probability in whichever order they come
        curve = fit("isotonic", *map(list, zip(*pairs, strict=True)))
        assert [score for score in distinct if abs(curve(score) - best[distinct.index(score)]) > 1e-9] == [], seed


def test_a_line_runs_between_two_points_and_the_ends_stay_level() -> None:
    curve = Curve(points=((0.2, 0.1), (0.6, 0.9)))
    table = [(-inf, 0.1), (0.0, 0.1), (0.2, 0.1), (0.3, 0.3), (0.6, 0.9), (1.0, 0.9), (inf, 0.9)]
    assert [(score, curve(score)) for score, _ in table if abs(curve(score) - dict(table)[score]) > 1e-12] == []
    assert curve.rises
    assert not Curve(points=((0.2, 0.5), (0.6, 0.5))).rises
    assert not Curve(slope=-1.0).rises


def test_labels_that_scores_separate_without_error_give_a_steep_curve_and_not_an_endless_one() -> None:
    scores, labels = [0.4] * 50 + [0.6] * 50, [0.0] * 50 + [1.0] * 50
    for method in METHODS:
        curve = fit(method, scores, labels)
        assert 0.015 < curve(0.4) < 0.025, method
        assert 0.975 < curve(0.6) < 0.985, method


def test_scores_at_the_ends_count_as_almost_there() -> None:
    assert logit(0.0) == logit(1e-9) < -13
    assert logit(1.0) > 13
    assert logit(nextafter(1.0, 0.0)) == logit(1.0)
    assert sigmoid(-1e6) == 0.0
    assert sigmoid(1e6) == 1.0


def test_an_item_that_is_held_out_does_not_move_its_own_probability() -> None:
    scores, labels = drawn(3, 100, slope=1.0, intercept=0.0)
    for method in METHODS:
        before = fits.held_out(method, scores, labels).tolist()
        changed = [*scores]
        changed[17] = 0.999 if scores[17] < 0.5 else 0.001
        after = fits.held_out(method, changed, labels).tolist()
        whole = fit(method, [s for at, s in enumerate(scores) if at != 17], [y for at, y in enumerate(labels) if at != 17])
        assert after != before, method
        assert abs(before[17] - whole(scores[17])) < 0.2, method
        curve = fit(method, scores, labels)
        assert sum(fits.log_losses(before, labels)) > sum(fits.log_losses([curve(score) for score in scores], labels)), method


def test_the_method_that_fits_the_judge_is_chosen() -> None:
    def stepped(seed: int) -> tuple[list[float], list[float]]:
        rng = Random(seed)
        scores = [rng.random() for _ in range(1500)]
        return scores, [float(rng.random() < (0.05 if score < 0.3 else 0.5 if score < 0.97 else 0.95)) for score in scores]

    chosen: dict[str, list[str]] = {"temperature": [], "platt": [], "isotonic": []}
    for seed in seeds(8):
        chosen["temperature"].append(fits.choose(*drawn(seed, 300, slope=3.0, intercept=0.0)))
        chosen["platt"].append(fits.choose(*drawn(seed, 300, slope=1.0, intercept=2.0)))
        chosen["isotonic"].append(fits.choose(*stepped(seed)))
    shares = {method: found.count(method) / len(found) for method, found in chosen.items()}
    assert shares["platt"] >= 0.8, chosen
    assert shares["isotonic"] >= 0.9, chosen
    assert shares["temperature"] >= 0.4, chosen  # else Platt, which holds it as a special case
    assert chosen["temperature"].count("isotonic") <= 0.1 * len(chosen["temperature"]), chosen


def test_the_calibration_error_is_that_of_bins_of_equal_size() -> None:
    rng = Random(2)
    pairs = sorted((rng.random(), float(rng.random() < 0.5)) for _ in range(600))
    bins = [pairs[at : at + 40] for at in range(0, 600, 40)]
    wanted = sum(abs(sum(p for p, _ in each) - sum(y for _, y in each)) for each in bins) / 600
    rng.shuffle(pairs)
    probabilities, labels = map(list, zip(*pairs, strict=True))
    assert abs(fits.ece(probabilities, labels) - wanted) < 1e-9
    assert abs(fits.ece(probabilities[:59], labels[:59]) - abs(sum(probabilities[:59]) - sum(labels[:59])) / 59) < 1e-9


def test_equal_probabilities_are_in_one_bin_and_bins_rise_with_them() -> None:
    for seed in seeds(20):
        rng = Random(seed)
        values = [rng.choice([0.1, 0.2, 0.5, 0.9, 1.0]) for _ in range(rng.randrange(1, 700))]
        places: dict[float, set[int]] = {}
        for value, place in zip(values, fits.bins_of(values).tolist(), strict=True):
            places.setdefault(value, set()).add(place)
        assert all(len(bins) == 1 for bins in places.values()), seed
        in_order = [min(places[value]) for value in sorted(places)]
        assert in_order == sorted(in_order), seed


def test_exact_probabilities_show_the_calibration_error_that_is_due_to_chance() -> None:
    errors, expected = [], []
    for seed in seeds(40):
        rng = Random(seed)
        probabilities = [rng.random() for _ in range(300)]
        labels = [float(rng.random() < each) for each in probabilities]
        errors.append(fits.ece(probabilities, labels))
        expected.append(fits.ece_by_chance(probabilities))
    assert abs(sum(errors) / sum(expected) - 1) < 0.08, (errors, expected)


def test_brier_accuracy_and_log_loss_of_small_examples() -> None:
    assert quality_of([0.5, 1.0], [1, 1]).brier == 0.125
    assert quality_of([0.9, 0.1, 0.5, 0.7], [1, 1, 0, 0.5]).accuracy == 0.5
    assert quality_of([0.9], [0.5]).accuracy is None
    assert fits.log_losses([0.5, 1.0], [1, 0]).tolist() == [log(2), -log(1 - (1 - fits.EDGE))]
