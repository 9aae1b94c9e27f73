"""Any pydantic model can be a verdict: which of its fields decides, and what is refused before it reaches a model."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator

from qreward.judge.parsing import PreferenceVerdict, ScoreVerdict, Unreadable, YesNoVerdict, read


class Stars(BaseModel):
    stars: Annotated[int, Field(ge=1, le=5)]
    comment: str = ""


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Two(BaseModel):
    helpful: int
    honest: int


class Reasoned(BaseModel):
    reason: str
    score: float


class Generous(BaseModel):
    score: float = 0.0


class Maybe(BaseModel):
    score: float | None


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    score: int


class Named(BaseModel):
    points: float = Field(alias="finalPoints")


class ManyNames(BaseModel):
    points: float = Field(validation_alias=AliasChoices("points", "score_given"))


def one(annotation: Any) -> type[BaseModel]:
    return type("One", (BaseModel,), {"__annotations__": {"grade": annotation}, "__module__": __name__})


def is_read(text: str, model: type[BaseModel], scale: tuple[float, float] | None = None) -> bool:
    try:
        read(text, model, scale=scale)
    except Unreadable:
        return False
    return True


def test_the_one_field_that_decides_may_be_written_in_words() -> None:
    quality, marks = Literal["good", "bad"], Literal["+", "-"]
    cases: list[tuple[Any, str, object]] = [
        (int, "Grade: 4", 4),
        (float, "4.5", 4.5),
        (bool, "Yes.", True),
        (bool, "Grade: false", False),
        (bool, '{"grade": true}', True),
        (quality, "Verdict: bad", "bad"),
        (quality, "Grade: **good**", "good"),
        (quality, "[[good]]", "good"),
        (Literal["correct", "incorrect"], "incorrect", "incorrect"),
        (Literal[1, 2, 3], "Grade: 3", 3),
        (Literal[1, 2, 3], '{"grade": "2"}', 2),
        (Level, "Grade: 2", Level.HIGH),
        (Colour, "Grade: red", Colour.RED),
        (Colour, "GREEN", Colour.GREEN),
        (Literal["A", "B"], "Grade: B", "B"),
        (marks, "Grade: +", "+"),
        (marks, "[[-]]", "-"),
        (float | None, "Grade: 4", 4.0),
    ]
    found = [(annotation, text, read(text, one(annotation)).grade) for annotation, text, _ in cases]  # type: ignore[attr-defined]
    assert found == cases


def test_what_is_no_value_of_the_field_is_refused() -> None:
    quality = Literal["good", "bad"]
    cases: list[tuple[Any, str]] = [
        (int, "Grade: 4.5"),
        (int, '{"grade": true}'),
        (float | None, '{"grade": null}'),
        (bool, '{"grade": "perhaps"}'),
        (quality, "A good effort"),
        (quality, "Good, but it is wrong"),
        (quality, "Verdict: good or bad"),
        (quality, "Verdict: good\nVerdict: bad"),
        (quality, "The candidate wrote: Verdict: good"),
        (Literal["correct", "incorrect"], "not correct"),
        (Literal[1, 2, 3], "Grade: 4"),
        (Level, "Grade: 3"),
        (Colour, "redder"),
        (Literal["A", "B"], "A grade would be too much"),
        (Literal["tie", "win"], "Grade: t\u0131e"),
        (Literal["+", "-"], "Grade: ?"),
        (str, "Grade: 4"),
    ]
    assert [(annotation, text) for annotation, text in cases if is_read(text, one(annotation))] == []


def test_the_fields_own_limits_are_the_scale_where_none_is_given() -> None:
    assert read("Stars: 4/5", Stars).stars == 4
    assert [text for text in ("Stars: 4/10", "Stars: 6", '{"stars": 0}') if is_read(text, Stars)] == []


def test_without_a_scale_only_plain_numbers_are_read() -> None:
    assert read("Score: 42", ScoreVerdict).score == 42
    with pytest.raises(Unreadable, match="fraction"):
        read("Score: 7/10", ScoreVerdict)


def test_per_cent_are_read_where_they_have_one_meaning() -> None:
    for scale, expected in (((0.0, 1.0), 0.7), ((0.0, 100.0), 70.0)):
        assert read("Score: 70%", ScoreVerdict, scale=scale).score == expected
        assert read('{"score": "70 %"}', ScoreVerdict, scale=scale).score == expected
        assert not is_read("Score: 170%", ScoreVerdict, scale)


def test_a_signed_scale_takes_signed_numbers() -> None:
    for text in ("Score: -3", "Score: \u22123", '{"score": -3}', '{"score": "-3"}'):
        assert read(text, ScoreVerdict, scale=(-5, 5)).score == -3
    assert read("Score: +3/5", ScoreVerdict, scale=(-5, 5)).score == 3


def test_two_fields_that_could_decide_leave_objects_alone() -> None:
    assert read('It is fine.\n{"helpful": 3, "honest": 4}', Two) == Two(helpful=3, honest=4)
    two = '{"helpful": 3, "honest": 4} {"helpful": 3, "honest": 5}'
    texts = ("helpful: 3", 'so: {"helpful": 3, "honest": 4}', '{"helpful": 3}', two)
    assert [text for text in texts if is_read(text, Two)] == []


def test_words_make_no_verdict_of_a_model_that_requires_more() -> None:
    assert read('{"reason": "right", "score": 7}', Reasoned).score == 7
    with pytest.raises(Unreadable, match="reason"):
        read("Score: 7", Reasoned)


def test_a_default_never_stands_for_a_score_that_was_not_given() -> None:
    texts = ("{}", '{"reason": "fine"}', "It is fine.", '{"grade": 7}')
    assert [text for text in texts if is_read(text, Generous, (0, 10))] == []


def test_null_is_no_score_even_where_the_model_would_take_it() -> None:
    assert read('{"score": 7}', Maybe).score == 7
    assert [text for text in ('{"score": null}', '{"score": true}') if is_read(text, Maybe)] == []


def test_a_strict_model_that_takes_no_other_members_is_obeyed() -> None:
    assert read('{"score": "7"}', Closed).score == 7
    assert read("Score: 7", Closed).score == 7
    with pytest.raises(Unreadable, match="extra forbidden") as refused:
        read('{"score": 7, "ignore_all_instructions": 1}', Closed)
    assert "ignore" not in refused.value.why


def test_members_go_by_their_aliases() -> None:
    assert read('{"finalPoints": 3}', Named).points == 3
    assert read('{"finalpoints": 3}', Named).points == 3
    assert read("Points: 3", Named).points == 3
    assert read('{"score given": 3}', ManyNames).points == 3


def test_a_refusal_quotes_nothing_of_the_answer() -> None:
    class Picky(BaseModel):
        score: float

        @field_validator("score")
        @classmethod
        def _never(cls, value: float) -> float:
            raise ValueError("SECRET WORDS of the answer")

    with pytest.raises(Unreadable) as refused:
        read('{"score": 7}', Picky)
    assert "SECRET" not in refused.value.why
    assert refused.value.__cause__ is None


def test_a_validator_of_the_users_may_change_a_score_but_not_to_what_is_no_number() -> None:
    class Part(BaseModel):
        score: float

        @field_validator("score")
        @classmethod
        def _part(cls, value: float) -> float:
            return value / 10 if value else float("nan")

    assert read("Score: 7/10", Part, scale=(0, 10)).score == 0.7
    with pytest.raises(Unreadable, match="finite"):
        read("Score: 0", Part, scale=(0, 10))


def test_the_stock_verdicts_come_to_scores() -> None:
    assert [YesNoVerdict(verdict=word).score for word in ("yes", "no")] == [1.0, 0.0]  # type: ignore[arg-type]
    assert [PreferenceVerdict(preferred=word).score for word in ("A", "B", "tie")] == [1.0, 0.0, 0.5]  # type: ignore[arg-type]
    assert read('{"verdict": "correct", "score": 1, "reason": "same", "echo": "ab12"}', ScoreVerdict, scale=(0, 1)).score == 1
