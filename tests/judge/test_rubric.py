"""Rubrics: the score of a set of answers, and what is wrong with a rubric."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from scale import seeds

from qreward.decisions import Choice, DecisionAnswer, Score, YesNo
from qreward.errors import ConfigError
from qreward.judge import Criterion, JudgeConfig, Rubric
from qreward.judge.config import config_of
from qreward.judge.rubric import DecidedCriteria
from qreward.judge.types import CriterionResult, CriterionResults, Verdict, Vote


def rubric(*weights: float, **gates: float) -> Rubric:
    """Criteria c0, c1, ... with these weights, and gates by name."""
    return Rubric([Criterion(f"c{place}", "?", weight=weight, gate=gates.get(f"c{place}")) for place, weight in enumerate(weights)])


def test_the_score_is_the_weighted_share_of_the_positive_weights_clipped_to_0_and_1() -> None:
    cases: list[tuple[Rubric, list[float], float]] = [
        (rubric(1, 1), [1, 0], 0.5),
        (rubric(3, 1), [1, 0], 0.75),
        (rubric(2, 2, -1), [1, 1, 1], 0.75),
        (rubric(2, 2, -1), [1, 1, 0], 1.0),
        (rubric(1, -5), [1, 1], 0.0),
        (rubric(1, -5), [1, 0.1], 0.5),
        (rubric(1), [0.3], 0.3),
        (rubric(1, 1, c1=0.5), [1, 0.5], 0.75),
        (rubric(1, 1, c1=0.5), [1, 0.499], 0.0),
        (rubric(1, 0, c1=0.5), [0.8, 0.6], 0.8),
        (rubric(1e6, 1e6, -1e6), [1, 1, 0], 1.0),
    ]
    wrong = [(each, values, found) for each, values, wanted in cases if (found := each.score(values)) != pytest.approx(wanted)]
    assert wrong == []


def test_a_score_is_never_outside_0_and_1_and_rises_with_each_value_of_positive_weight() -> None:
    for seed in seeds(200):
        chance = random.Random(seed)
        weights = [chance.choice((-3.0, -0.5, 0.5, 1.0, 7.0)) for _ in range(chance.randint(1, 8))] + [1.0]
        made, values = rubric(*weights), [chance.random() for _ in weights]
        place, score = chance.randrange(len(weights)), made.score(values)
        more = made.score([min(1.0, value + 0.1) if number == place else value for number, value in enumerate(values)])
        assert 0.0 <= score <= 1.0, seed
        assert (more - score) * weights[place] >= 0, seed


def test_a_criterion_is_worth_its_probability_its_level_or_its_choice() -> None:
    cases = [
        (Criterion("a", "?"), (0.7, 0.3), 0.7),
        (Criterion("a", "?"), (0.0, 1.0), 0.0),
        (Criterion("a", "?", levels=["bad", "fair", "good"]), (0.0, 0.5, 0.5), 0.75),
        (Criterion("a", "?", levels={"bad": "", "good": "at once"}), (0.25, 0.75), 0.75),
        (Criterion("a", "?", choices={"x": 0.2, "y": 1, "z": 0}), (0.5, 0.5, 0.0), 0.6),
    ]
    for criterion, numbers, wanted in cases:
        result = criterion.result(DecisionAnswer(criterion.question, numbers))
        assert (result.score, result.confidence) == (pytest.approx(wanted), max(numbers)), criterion
        assert result.distribution == dict(zip(criterion.question.options, numbers, strict=True))
    kinds = [type(criterion.question) for criterion, _, _ in cases]
    assert kinds == [YesNo, YesNo, Score, Score, Choice]


def test_the_criteria_of_a_decision_are_a_mapping_in_their_order_that_pickles_as_a_dict() -> None:
    asked = [Criterion("clear", "?", levels=["bad", "fair", "good"], weight=2), Criterion("right", "?", gate=0.8)]
    found = DecidedCriteria(asked, [((0.0, 0.5, 0.5), 0.8, None), ((0.7, 0.3), None, None)])
    assert found.scores() == [0.75, 0.7]
    assert list(found) == ["clear", "right"]
    assert [(each.score, each.weight, each.confidence) for each in found.values()] == [(0.75, 2.0, 0.4), (0.7, 1.0, 0.7)]
    copy = pickle.loads(pickle.dumps(found))
    assert (type(copy), copy, repr(copy)) == (CriterionResults, dict(found), repr(found))
    assert [each.passed for each in found.values()] == [True, False]
    for each in (found, copy):
        with pytest.raises(KeyError, match="no criterion 'rihgt'; did you mean 'right'"):
            each["rihgt"]


def test_the_confidence_is_the_weighted_mean_and_at_most_that_of_a_gate() -> None:
    def confidence(made: Rubric, *pairs: tuple[float, float]) -> float:
        return made.confidence([score for score, _ in pairs], [sure for _, sure in pairs])

    assert confidence(rubric(3, -1), (1.0, 0.9), (0.0, 0.5)) == pytest.approx(0.8)
    assert confidence(rubric(3, 1, c1=0.5), (1.0, 0.9), (0.6, 0.6)) == 0.6
    assert confidence(rubric(3, 1, c1=0.5), (1.0, 0.5), (0.1, 0.9)) == 0.9
    assert confidence(rubric(1, 0, 0, c1=0.5, c2=0.5), (1.0, 0.5), (0.1, 0.9), (0.2, 0.8)) == 0.9


def test_every_mistake_is_a_config_error_that_names_the_setting() -> None:
    cases: list[tuple[Any, str]] = [
        ([], "at least one"),
        (7, "must be a list of criteria, a mapping from their names, or the path of a file"),
        ([3], "0: must be a mapping with name and instructions"),
        ([{"name": "a"}], "0.instructions: is required"),
        ([{"name": "a", "instructions": " "}], "instructions must be a text"),
        ([{"name": "a", "instructions": "x", "wieght": 2}], "unknown setting 'wieght'; did you mean 'weight'?"),
        ([{"name": "a", "instructions": "x", "weight": "heavy"}], "0.weight: must be a valid number, not 'heavy'"),
        ([{"name": "a", "instructions": "x", "weight": 1e300}], "0.weight: must be at most"),
        ([{"name": "a", "instructions": "x", "weight": 0}], "weight: 0 has no effect without a gate"),
        ([{"name": "a", "instructions": "x", "weight": -1, "gate": 0.5}], "gate: cannot be set with a negative weight"),
        ([{"name": "a", "instructions": "x", "gate": 0}], "0.gate: must be more than 0"),
        ([{"name": "a", "instructions": "x", "kind": "score"}], "unknown setting 'kind'; leave it out, as levels or choices say it"),
        ([{"name": "a", "instructions": "x", "levels": ["a", "b"], "choices": {"a": 1, "b": 0}}], "has levels and choices"),
        ([{"name": "a", "instructions": "x", "levels": "ab"}], "0.levels: must be a list of labels"),
        ([{"name": "a", "instructions": "x", "levels": ["a"]}], "levels must be at least two"),
        ([{"name": "a", "instructions": "x", "choices": ["a", "b"]}], "0.choices: must be a valid mapping"),
        ([{"name": "a", "instructions": "x", "choices": {"a": 1, "b": 2}}], "0.choices.b: must be at most 1"),
        ([{"name": "a", "instructions": "x", "choices": {str(n): 1 for n in range(21)}}], "choices: must be at most 20"),
        ([{"name": "a", "instructions": "x"}, {"name": "a", "instructions": "y"}], "the name 'a' is there twice"),
        ([{"name": "a", "instructions": "x", "weight": -1}], "no criterion has a positive weight"),
        ({"a": {"name": "b", "instructions": "x"}}, "a.name: differs from the key"),
        ({"a": "x", "b": {"weight": 2}}, "b.instructions: is required"),
    ]
    wrong = []
    for source, wanted in cases:
        for load in (Rubric.load, lambda given: config_of({"model": "m", "rubric": given})):
            try:
                load(source)
                wrong.append((source, "no error"))
            except ConfigError as error:
                if wanted not in str(error):
                    wrong.append((source, str(error)))
    assert wrong == []
    with pytest.raises(ConfigError, match=r"JudgeConfig: rubric\.1\.weight: must be a valid number, not 'x'"):
        config_of({"model": "m", "rubric": [{"name": "a", "instructions": "?"}, {"name": "b", "instructions": "?", "weight": "x"}]})
    for given in ([], "abc", [{"name": "a"}], Criterion("a", "?")):
        with pytest.raises(ConfigError, match="at least one Criterion"):
            Rubric(given)  # type: ignore[arg-type]


def test_a_rubric_is_read_from_a_list_a_mapping_and_files(tmp_path: Path) -> None:
    wanted = Rubric([Criterion("right", "It is right.", weight=2), Criterion("clear", "Clear?", levels=["no", "yes"], gate=0.5)])
    entries = [
        {"name": "right", "instructions": "It is right.", "weight": 2},
        {"name": "clear", "instructions": "Clear?", "levels": ["no", "yes"], "gate": 0.5},
    ]
    mapping = {each["name"]: {name: value for name, value in each.items() if name != "name"} for each in entries}
    sources: list[Any] = [entries, mapping, wanted]
    for number, content in enumerate((entries, mapping)):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps({"rubric": content}))
        sources += [path, str(path)]
    toml = tmp_path / "r.toml"
    toml.write_text(
        '[rubric.right]\ninstructions = "It is right."\nweight = 2\n'
        '[rubric.clear]\ninstructions = "Clear?"\nlevels = ["no", "yes"]\ngate = 0.5\n'
    )
    for source in (*sources, toml):
        assert Rubric.load(source) == config_of({"model": "m", "rubric": source}).rubric == wanted, source
    assert Rubric.load({"right": "It is right."}) == Rubric([Criterion("right", "It is right.")])


def test_a_mistake_in_a_file_is_named_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("rubric:\n  - name: a\n    instructions: x\n  - name: b\n    instructions: y\n    weight: lots\n")
    with pytest.raises(ConfigError, match=r"r\.yaml: rubric\.1\.weight \(of 'b'\): must be a valid number, not 'lots'"):
        Rubric.load(path)
    unknown = "unknown setting 'rubrik'; did you mean 'rubric'"
    for content, wanted in (("rubrik:\n  a: x\n", unknown), ("- name: a\n", "must be a mapping"), ("", "is empty")):
        path.write_text(content)
        with pytest.raises(ConfigError, match=wanted):
            Rubric.load(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        config_of({"model": "m", "rubric": tmp_path / "none.yaml"})


def test_a_rubric_is_written_as_settings_that_make_an_equal_one() -> None:
    made = Rubric(
        [
            Criterion("a", "It is right.", weight=2, gate=0.5),
            Criterion("b", "Clear?", levels={"no": "", "yes": "at once"}),
            Criterion("c", "Tone?", choices={"calm": 1, "rude": 0}, weight=-1),
        ]
    )
    config = config_of({"model": "m", "rubric": made})
    dumped = json.loads(config.model_dump_json(exclude_unset=True))
    assert Rubric.load(json.loads(json.dumps(made.settings()))) == made
    assert JudgeConfig(**dumped) == config
    assert pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(AttributeError):
        made.criteria = ()  # type: ignore[misc]


def test_the_repr_of_a_result_says_whether_it_passed_and_rounds_numbers() -> None:
    shut = CriterionResult(0.49999, 0.0, text="{}", gate=0.5, reason="It harms.")
    assert repr(shut) == "CriterionResult(score=0.5, passed=False, weight=0, text='{}', gate=0.5, reason='It harms.')"
    votes = (Vote(-0.0001, model="judge-7b", criteria={"right": CriterionResult(2 / 3), "safe": shut}), Vote(2 / 3, model="judge-7b"))
    assert repr(Verdict(1 / 3, votes)) == (
        "<Verdict 0.333 from 2 votes (0, 0.667) by judge-7b: 'safe 0.49999 below its gate 0.5, right 0.667'>"
    )
