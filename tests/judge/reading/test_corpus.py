"""Every text of the corpus comes to what is written beside it: a verdict, or none."""

from __future__ import annotations

import pytest
from pydantic import BaseModel
from reading_texts import REFUSED, Case, made, made_refused, written

from qreward.judge.reading import PreferenceVerdict, ScoreVerdict, Unreadable, YesNoVerdict, read

SCALE = (0.0, 10.0)
BY_HAND = [case for stem in ("scores", "objects", "adversarial") for case in written(stem)]
MADE = list(made())
MADE_REFUSED = list(made_refused())


def outcome(text: str, model: type[BaseModel], field: str) -> str:
    try:
        verdict = read(text, model, scale=SCALE)
    except Unreadable:
        return REFUSED
    value = getattr(verdict, field)
    return f"{value:g}" if isinstance(value, float) else str(value)


def by_name(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", BY_HAND, ids=by_name)
def test_a_score_written_by_hand_is_read_as_it_is_marked(case: Case) -> None:
    assert outcome(case.text, ScoreVerdict, "score") == case.expected, case.text


@pytest.mark.parametrize("case", written("yes_no"), ids=by_name)
def test_a_yes_or_no_is_read_as_it_is_marked(case: Case) -> None:
    assert outcome(case.text, YesNoVerdict, "verdict") == case.expected, case.text


@pytest.mark.parametrize("case", written("preferences"), ids=by_name)
def test_a_preference_is_read_as_it_is_marked(case: Case) -> None:
    assert outcome(case.text, PreferenceVerdict, "preferred") == case.expected, case.text


@pytest.mark.parametrize("case", MADE, ids=by_name)
def test_a_shape_of_a_score_is_read_within_what_may_stand_around_it(case: Case) -> None:
    assert outcome(case.text, ScoreVerdict, "score") == case.expected, case.text


@pytest.mark.parametrize("case", MADE_REFUSED, ids=by_name)
def test_what_is_no_score_or_perhaps_anothers_is_refused(case: Case) -> None:
    assert outcome(case.text, ScoreVerdict, "score") == REFUSED, case.text


def test_the_corpus_is_as_large_as_it_is_said_to_be() -> None:
    singular = [*BY_HAND, *written("yes_no"), *written("preferences")]
    assert len({case.text for case in [*BY_HAND, *MADE, *MADE_REFUSED]}) >= 1000
    assert len({case.text for case in singular}) >= 150
    assert len({case.text for case in written("adversarial")}) >= 60
