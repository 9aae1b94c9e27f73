"""Rubrics that the items carry: read for each item, shared where they are equal, and wrong only for their own item."""

from __future__ import annotations

import json
from math import nan
from typing import Any

import pytest
from decided_tools import DecisionBackend, always, by_text, deciding
from test_judge_rubrics import by_words, no, yes

from qreward.errors import BadRequest, ConfigError
from qreward.judge import Criterion, Rubric
from qreward.judge.requests import parser_of
from qreward.judge.rubric import rubric_of_item

RIGHT = {"name": "right", "instructions": "It is right.", "weight": 3}
SHORT = {"instructions": "It is short."}
TEXT = "- It is right.\n\n 2) It is short.\n"


def item(rubric: Any, response: str = "42", **others: Any) -> dict[str, Any]:
    return {"prompt": "p", "response": response, "rubric": rubric, **others}


def judged(backend: DecisionBackend, items: list[Any], method: str = "decide", **settings: Any) -> Any:
    return deciding(backend, lambda judge: judge.batch_score(items), method=method, **{"rubric_column": "rubric", **settings})


def test_the_rubric_of_an_item_is_a_list_a_mapping_json_or_lines_of_text() -> None:
    right, short = Criterion("right", "It is right.", weight=3), Criterion("It is short.", "It is short.")
    one = Criterion("It is right.", "It is right.")
    good: tuple[tuple[Any, list[Criterion]], ...] = (
        ([RIGHT, SHORT], [right, short]),
        ([{**RIGHT, "levels": None, "gate": nan}, "It is short."], [right, short]),  # tables fill what is missing with None or NaN
        ([{**SHORT, "weight": nan}], [short]),
        ({"criteria": [RIGHT, SHORT]}, [right, short]),
        ({"right": {"instructions": "It is right.", "weight": 3}}, [right]),
        (json.dumps([RIGHT, SHORT]), [right, short]),
        (json.dumps({"criteria": [RIGHT]}), [right]),
        (TEXT, [one, short]),
        (Rubric([right]), [right]),
    )
    for given, criteria in good:
        assert rubric_of_item(given) == Rubric(criteria), given
    bad: tuple[tuple[Any, str], ...] = (
        ([{**RIGHT, "wight": 2}, {"name": "x"}], r"^0: unknown setting 'wight'; did you mean 'weight'\?; 1.instructions: "),
        ([{**RIGHT, "weight": "much"}], r"0.weight: must be a valid number"),
        ("[1, ", "it begins like JSON, but is not JSON"),
        ({"criteria": [RIGHT], "id": 3}, "'id' beside 'criteria'"),
        (7, "must be a list of criteria"),
        ([], "it is empty"),
        ("It is right.\nIt is right.", "'It is right.' is there twice"),
        ([{"name": "bad", "instructions": "It is bad.", "weight": -1}], "positive weight"),
        ([{**RIGHT, "gate": 2}], "0.gate: "),
    )
    for given, said in bad:
        with pytest.raises(BadRequest, match=said):
            rubric_of_item(given)


def test_no_variable_of_the_environment_is_read_into_the_rubric_of_an_item(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-secret")
    assert rubric_of_item([{"name": "a", "instructions": "${JUDGE_KEY}"}]).criteria[0].instructions == "${JUDGE_KEY}"


def test_items_with_different_rubrics_are_judged_in_one_batch_and_a_wrong_rubric_fails_its_own_item() -> None:
    for method, backend in (
        ("decide", DecisionBackend(by_text({"It is short.": (0.0, 1.0)}))),
        ("write", DecisionBackend(always(None), by_words({"It is short.": no()}))),
    ):
        items = [item([RIGHT, SHORT]), item(TEXT), item([{"weight": 1}]), item([{**SHORT, "gate": 0.5}, RIGHT]), item(None), ("p", "42")]
        batch = judged(backend, items, method)
        assert batch.scores(default=None) == [0.75, 0.5, None, 0.0, None, None], method
        criteria = [[(name, each.weight) for name, each in result.value.criteria.items()] for result in batch if result.ok]
        assert criteria == [
            [("right", 3.0), ("It is short.", 1.0)],
            [("It is right.", 1.0), ("It is short.", 1.0)],
            [("It is short.", 1.0), ("right", 3.0)],
        ], method
        wrong, none, bare = (batch[at].error for at in (2, 4, 5))
        assert isinstance(wrong, BadRequest)
        assert "the rubric in 'rubric' is wrong: 0.name" in str(wrong)
        assert isinstance(none, ConfigError)
        assert "field 'rubric' has no value" in str(none)
        assert "field 'rubric' is missing" in str(bare)


def test_items_without_a_rubric_have_the_rubric_of_the_judge_if_it_has_one() -> None:
    backend = DecisionBackend(by_text({"It is short.": (0.25, 0.75)}))
    batch = judged(backend, [item(None), item(" "), item([RIGHT]), ("p", "42")], rubric=[SHORT | {"name": "short"}])
    assert batch.scores() == [0.25, 0.25, 1.0, 0.25]


def test_equal_questions_of_different_rubrics_never_share_an_answer_that_is_read_differently() -> None:
    first = [{"name": "b", "instructions": "It is right."}, {"name": "a", "instructions": "It is short.", "weight": 3}]
    other = [{"name": "a", "instructions": "It is right.", "weight": 3}, {"name": "b", "instructions": "It is short."}]
    tone = {"name": "tone", "instructions": "Tone?", "choices": {"calm": 1.0, "rude": 0.0}}
    turned = tone | {"choices": {"calm": 0.0, "rude": 1.0}, "weight": 1}
    said = by_words({"It is short.": no(), "Tone?": json.dumps({"reason": "", "choice": "A"})})
    batch = judged(DecisionBackend(always(None), said), [item(first), item(other), item([tone]), item([turned])], "write")
    assert batch.scores() == [0.25, 0.75, 1.0, 0.0]
    assert [list(result.value.criteria) for result in batch] == [["b", "a"], ["a", "b"], ["tone"], ["tone"]]


def test_equal_rubrics_are_prepared_once_and_their_requests_begin_with_the_same_text(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    for name in ("WrittenQuestion", "DecidedQuestion"):
        cls = getattr(__import__("qreward.judge.requests", fromlist=[name]), name)
        monkeypatch.setattr(f"qreward.judge.requests.{name}", lambda *a, _cls=cls, **k: made.append(a) or _cls(*a, **k))
    backend = DecisionBackend(always(None), yes())
    rubrics = [[RIGHT, SHORT], json.dumps([RIGHT, SHORT]), {"criteria": [RIGHT, SHORT]}]
    batch = judged(backend, [item(rubrics[number % 3], f"a{number}") for number in range(30)], "write")
    assert batch.scores() == [1.0] * 30
    assert len(made) == 1 + 2, "one for the check of the settings, and one for each criterion"
    texts = [each.text for each in backend.sent if "a7" in each.text]
    begin = texts[0][: texts[0].index("Question, to be answered")]
    assert len(texts) == 2
    assert all(text.startswith(begin) for text in texts)


def test_questions_of_equal_form_share_their_parser_and_the_oldest_rubric_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    for one, other in (
        ({}, {}),
        ({"levels": ["a", "b"]}, {"levels": ["x", "y"]}),
        ({"choices": {"a": 1, "b": 0}}, {"choices": {"x": 1, "y": 0}}),
    ):
        assert parser_of(Criterion("n", "One?", **one)) is parser_of(Criterion("m", "Other?", **other))
    assert parser_of(Criterion("n", "One?", choices={"a": 0, "b": 1})) is not parser_of(Criterion("n", "One?", choices={"a": 1, "b": 0}))
    monkeypatch.setattr("qreward.judge.requests.MOST_RUBRICS", 3)
    made: list[Any] = []
    monkeypatch.setattr("qreward.judge.requests.rubric_of_item", lambda value: made.append(value) or rubric_of_item(value))
    judged(DecisionBackend(always(None), yes()), [item(f"It is {word}.") for word in "abcdc"], "write")
    assert made == [f"It is {word}." for word in "abcd"]


def test_a_template_may_name_the_rubric_and_pairs_are_compared_by_it() -> None:
    backend = DecisionBackend(always((0.8, 0.1, 0.1)), yes())
    prompt = "{prompt} {response} {reference} by {rubric}"
    batch = judged(backend, [item(TEXT, reference="r")], "write", prompt=prompt)
    assert batch.scores() == [1.0]
    assert "42 r by - It is right." in backend.sent[0].text
    pair = {"prompt": "p", "first": "a", "second": "b", "rubric": TEXT}
    deciding(backend, lambda judge: judge.batch_compare([pair]), rubric_column="rubric")
    assert "It is short. (1)" in backend.sent[-1].questions[0].instructions


def test_score_and_rank_take_the_rubric_as_a_field() -> None:
    backend = DecisionBackend(by_text({"It is short.": (0.0, 1.0)}, (1.0, 0.0)))
    verdict = deciding(backend, lambda judge: judge.score("p", "42", rubric=TEXT), rubric_column="rubric")
    assert verdict.score == 0.5
    ranking = deciding(
        DecisionBackend(always((0.5, 0.5, 0.0))), lambda judge: judge.rank("p", ["a", "b"], rubric=TEXT), rubric_column="rubric"
    )
    assert len(ranking.scores) == 2


def test_settings_that_do_not_go_with_rubrics_of_items_are_refused() -> None:
    backend = DecisionBackend(always(None))
    for settings, said in (
        ({"rubric_column": "response"}, "rubric_column: cannot be 'response'"),
        ({"rubric_column": "rubric", "scale": (0, 5)}, "scale cannot be set together with rubric"),
        ({"rubric_column": ""}, "rubric_column"),
    ):
        with pytest.raises(ConfigError, match=said):
            deciding(backend, lambda judge: judge.score("p", "r"), **settings)
    assert backend.sent == []
