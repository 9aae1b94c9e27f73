"""A calibration: what it refuses to be fitted to, what it says of itself, its file, and the judge it was made for."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from math import inf, nan
from pathlib import Path
from random import Random
from typing import Any

import numpy
import pytest
from scale import seeds

from qreward.errors import ConfigError
from qreward.judge.calibration import METHODS, Calibration, JudgeIdentity, digest, sigmoid
from qreward.judge.calibration_fit import ece, quality_of

IDENTITY = JudgeIdentity(models=("judge-7b",), settings={"prompt": "aa", "temperature": "bb"}, weights=("step-1", "step-2"))


def drawn(seed: int, count: int, temperature: float = 0.4, bias: float = 1.0) -> tuple[list[float], list[float]]:
    """Scores of a judge that is overconfident and biased, and labels."""
    rng = Random(seed)
    true = [rng.gauss(0, 2.83) for _ in range(count)]  # as of a SyntheticJudge
    return [sigmoid((value + bias) / temperature) for value in true], [float(rng.random() < sigmoid(value)) for value in true]


def refusal(of: Callable[[], object]) -> str:
    """The words of the error; "" if there is none."""
    try:
        of()
    except ConfigError as error:
        return str(error)
    return ""


def fitted(**settings: Any) -> Calibration:
    return Calibration.fit(*drawn(0, 300), **settings)


def test_what_cannot_be_calibrated_is_an_error_that_says_why() -> None:
    scores, labels = drawn(0, 100)
    table: list[tuple[str, Sequence[float], Sequence[float], str]] = [
        ("few", scores[:49], labels[:49], "at least 50 labels, better 300; there are 49"),
        ("all yes", scores, [1] * 100, "at least 10 labels of yes and of no; 0 of 100 labels say no (0)"),
        ("all no", scores, [False] * 100, "0 of 100 labels say yes (1)"),
        ("soft, almost all yes", scores, [0.95] * 100, "5 of 100 labels say no (0)"),
        ("constant", [0.7] * 100, labels, "gave the score 0.7 to all 100 items"),
        ("not as many", scores[:99], labels, "99 scores and 100 labels"),
        ("too large", [*scores[:-1], 1.5], labels, "scores[99] must be a number from 0 to 1, not 1.5"),
        ("not a number", scores, [nan, *labels[1:]], "labels[0] must be a number from 0 to 1, not nan"),
        ("no number", scores, ["yes", *labels[1:]], "labels[0] must be a number"),  # type: ignore[list-item]
    ]
    found = {name: refusal(lambda s=s, y=y: Calibration.fit(s, y)) for name, s, y, _ in table}  # type: ignore[misc]
    assert {name: found[name] for name, _, _, words in table if words not in found[name]} == {}
    for method in ("auto", *METHODS):
        assert "not the wrong way round" in refusal(lambda m=method: Calibration.fit(scores, [1 - y for y in labels], method=m)), method  # type: ignore[misc]
    assert "method must be 'auto', 'temperature', 'platt', 'isotonic', not 'beta'" in refusal(lambda: fitted(method="beta"))


def test_scores_and_labels_may_be_arrays_of_numpy() -> None:
    scores, labels = drawn(0, 300)
    wanted = Calibration.fit(scores, labels)
    for kind in (float, int, bool):
        given = numpy.array(labels).astype(kind)
        assert Calibration.fit(numpy.array(scores), given) == Calibration.fit([*numpy.array(scores)], [*given]) == wanted, kind  # type: ignore[arg-type]
    assert Calibration.fit(numpy.array(scores, dtype=numpy.float32), labels).method == wanted.method  # type: ignore[arg-type]


def test_without_the_extra_the_error_names_it_and_a_calibration_is_applied_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    calibration = fitted()
    wanted = calibration.apply(0.3)
    monkeypatch.delattr("qreward.judge.calibration_fit")
    monkeypatch.delitem(sys.modules, "qreward.judge.calibration_fit")
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    assert refusal(fitted) == "a calibration is fitted with scipy.optimize; install it: pip install 'qreward[calibration]'"
    assert Calibration(**calibration.model_dump()).apply(0.3) == wanted


def test_it_never_falls_and_takes_every_number_but_nan() -> None:
    for method in METHODS:
        calibration = fitted(method=method)
        found = [calibration.apply(score) for score in (-inf, -1.0, 0.0, 5e-324, 0.1, 0.5, 0.9, 1 - 1e-16, 1.0, 7.0, inf)]
        assert found == sorted(found), method
        assert 0 <= found[0] < found[-1] <= 1, method
        assert found[0] == found[2], method
        with pytest.raises(ValueError, match="must be a number, not nan"):
            calibration.apply(nan)


def test_it_says_how_good_the_scores_were_and_are_now_on_items_it_was_not_fitted_to() -> None:
    scores, labels = drawn(7, 400)
    calibration = Calibration.fit(scores, labels, failed=3)
    assert (calibration.labels, calibration.failed) == (400, 3)
    assert calibration.before == quality_of(scores, labels)
    assert calibration.after.log_loss < 0.7 * calibration.before.log_loss
    assert calibration.after.brier < calibration.before.brier
    assert calibration.after.ece < calibration.before.ece
    in_sample = quality_of([calibration.apply(score) for score in scores], labels)
    assert calibration.after.log_loss > in_sample.log_loss
    first, before, after = str(calibration).splitlines()
    assert first == f"{calibration.method}, 400 labels, 3 left out"
    assert before.startswith(f"before  ECE {calibration.before.ece:.3f} (by chance {calibration.before.ece_by_chance:.3f}), Brier ")
    assert after.endswith(f"accuracy {calibration.after.accuracy:.3f}")


def test_labels_may_be_probabilities_and_grades() -> None:
    rng = Random(3)
    true = [rng.gauss(0, 2) for _ in range(200)]
    grades = [sigmoid(value) for value in true]
    calibration = Calibration.fit([sigmoid(3 * value + 1) for value in true], grades, method="platt")
    assert max(abs(calibration.apply(sigmoid(3 * value + 1)) - grade) for value, grade in zip(true, grades, strict=True)) < 0.02


def test_what_is_loaded_is_what_was_saved(tmp_path: Path) -> None:
    for method in METHODS:
        calibration = fitted(method=method, judge=IDENTITY, failed=2)
        calibration.save(tmp_path / "c.json")
        loaded = Calibration.load(str(tmp_path / "c.json"))
        assert loaded == calibration, method
        assert [loaded.apply(share / 50) for share in range(51)] == [calibration.apply(share / 50) for share in range(51)], method
        assert Calibration.load(loaded) is loaded
    assert [path.name for path in tmp_path.iterdir()] == ["c.json"]


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.json"
    fitted().save(path)
    before = path.read_bytes()
    with path.open("rb") as reader:  # has opened the old file, and finds it whole although another one is there now
        fitted(method="platt", judge=IDENTITY).save(path)
        assert reader.read() == before
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert refusal(lambda: fitted(method="platt", judge=IDENTITY).save(path)) == (
        f"the calibration cannot be written to {str(path)!r}: No space left on device"
    )
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("c.json", before)]
    assert "No such file or directory" in refusal(lambda: fitted().save(tmp_path / "gone" / "c.json"))


def test_a_file_that_is_no_calibration_is_an_error_that_names_it(tmp_path: Path) -> None:
    good = json.loads(fitted(method="isotonic").model_dump_json())
    platt = json.loads(fitted(method="platt").model_dump_json())
    table: list[tuple[object, str]] = [
        ("{", "it is not valid JSON"),
        ("[" * 100_000, "it is not valid JSON"),
        ({}, "method: is required"),
        ({**good, "format": 2}, "format: must be 1"),
        ({**good, "slopes": 1}, "unknown setting 'slopes'; did you mean 'slope'?"),
        ({**good, "points": []}, "points: must not be empty for the method isotonic"),
        ({**good, "points": [[0.2, 0.5], [0.1, 0.6]]}, "points: must not fall"),
        ({**good, "points": [[0.1, 0.6], [0.2, 0.5]]}, "points: must not fall"),
        ({**good, "points": [[0.1, 1.5]]}, "points.0.1: must be at most 1"),
        ({**platt, "points": good["points"]}, "points: must be empty for the method platt"),
        ({**platt, "slope": -1}, "slope: must be more than 0"),
        ({**platt, "slope": nan}, "slope: "),
    ]
    path = tmp_path / "c.json"
    wrong = []
    for content, words in table:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        said = refusal(lambda: Calibration.load(path))
        if words not in said or not said.startswith(f"{path}: "):
            wrong.append((words, said))
    assert wrong == []
    assert refusal(lambda: Calibration.load(tmp_path / "gone.json")) == (
        f"{tmp_path / 'gone.json'}: cannot be read: No such file or directory; make it with `qreward judge calibrate`"
    )


def test_an_identity_says_what_differs_in_another_one() -> None:
    table: list[tuple[JudgeIdentity, tuple[str, ...]]] = [
        (IDENTITY, ()),
        (JudgeIdentity(models=("judge-7b",), settings=IDENTITY.settings, weights=("step-3",)), ()),
        (JudgeIdentity(models=("a", "b"), settings=IDENTITY.settings), ("model (was judge-7b, is a, b)",)),
        (JudgeIdentity(models=("judge-7b",), settings={"prompt": "cc", "samples": "3"}), ("prompt", "samples", "temperature")),
    ]
    assert [(judge, wanted, found) for judge, wanted in table if (found := IDENTITY.differences(judge)) != wanted] == []


def test_digests_are_equal_for_equal_values_and_know_functions_by_name() -> None:
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
    assert digest(drawn) == digest("test_calibration:drawn")
    assert "sk-secret" not in digest("sk-secret")


JUDGES = ((0.3, 0.0), (0.5, 1.0), (1.0, -0.5), (3.0, -1.5), (0.4, 2.0))
"""Temperature and bias."""


def test_300_labels_make_probabilities_of_the_scores_of_judges_with_a_temperature_and_a_bias() -> None:
    """Measured on 5,000 other items, for which exact probabilities show an error of 0.012. The chance in 300 labels adds to it."""
    before, after = {}, {}
    for seed in seeds(50):
        temperature, bias = JUDGES[seed % len(JUDGES)]
        calibration = Calibration.fit(*drawn(seed, 300, temperature, bias))
        scores, labels = drawn(1_000_000 + seed, 5000, temperature, bias)
        before[seed], after[seed] = ece(scores, labels), ece([calibration.apply(score) for score in scores], labels)
    mean, small = sum(after.values()) / len(after), sum(error <= 0.03 for error in after.values()) / len(after)
    assert min(before.values()) > 0.03, before
    assert mean <= 0.03, after
    assert small >= 0.6, after
    assert max(after.values()) <= 0.08, after
