"""Any pydantic model can be a verdict: which of its fields decides, and what is refused before it reaches a model."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, create_model, field_validator
from typing_extensions import TypeAliasType

from qreward.judge.parsing import PreferenceVerdict, ScoreVerdict, Unreadable, YesNoVerdict, read

Level = IntEnum("Level", {"LOW": 1, "HIGH": 2})
Colour = Enum("Colour", {"RED": "red", "GREEN": "green"})
Fine = TypeAliasType("Fine", Literal["fine"])


OneToFive = Annotated[int, Field(ge=1, le=5)]
Stars = create_model("Stars", stars=(OneToFive, ...), comment=(str, ""))
Overall = create_model("Overall", overall_quality=(int, ...))
Two = create_model("Two", helpful=(int, ...), honest=(int, ...))
Noted = create_model("Noted", __base__=Two, note=(str, ""))
Open = create_model("Open", __config__=ConfigDict(extra="allow"), helpful=(int, ...), honest=(int, ...))
Unasked = create_model("Unasked", helpful=(int, 0), honest=(int, 0))
Reasoned = create_model("Reasoned", reason=(str, ...), score=(float, ...))
Generous = create_model("Generous", score=(float, 0.0))
Maybe = create_model("Maybe", score=(float | None, ...))
Closed = create_model("Closed", __config__=ConfigDict(extra="forbid", strict=True), score=(int, ...))
Graded = create_model("Graded", why=(str, ...), grade=(OneToFive, ...), weight=(float, 1.0))
Task = create_model("Task", result=(int, ...))
Named = create_model("Named", points=(float, Field(alias="finalPoints")))
ManyNames = create_model("ManyNames", points=(float, Field(validation_alias=AliasChoices("points", "score_given"))))
PathAlone = create_model("PathAlone", points=(float, Field(validation_alias=AliasChoices(AliasPath("points", 0)))))
ManySpellings = create_model("ManySpellings", points=(float, ...), why=(str, Field(validation_alias=AliasChoices("Why", "why"))))


def one(annotation: Any) -> type[BaseModel]:
    return type("One", (BaseModel,), {"__annotations__": {"grade": annotation}, "__module__": __name__})


def check(model: type[BaseModel], *, scale: tuple[float, float] | None = None, refused: tuple[str, ...] = (), **values: Any) -> None:
    """Fail unless each text of ``refused`` is refused, and each field has its value in its texts: ``score=(7, "Score: 7")``."""
    wrong = []
    for text in refused:
        try:
            wrong.append((text, read(text, model, scale=scale)))
        except Unreadable:
            continue
    assert wrong == []
    for field, (value, *texts) in values.items():
        assert [(text, getattr(read(text, model, scale=scale), field)) for text in texts] == [(text, value) for text in texts]


QUALITY, MARKS, RIGHT = Literal["good", "bad"], Literal["+", "-"], Literal["correct", "incorrect"]


def test_the_one_field_that_decides_may_be_written_in_words() -> None:
    cases: list[tuple[Any, str, object]] = [
        (int, "Grade: 4", 4),
        (float, "4.5", 4.5),
        (bool, "Yes.", True),
        (bool, "Grade: false", False),
        (bool, '{"grade": true}', True),
        (QUALITY, "Verdict: bad", "bad"),
        (QUALITY, "Grade: **good**", "good"),
        (QUALITY, "[[good]]", "good"),
        (RIGHT, "incorrect", "incorrect"),
        (Literal[1, 2, 3], "Grade: 3", 3),
        (Literal[1, 2, 3], '{"grade": "2"}', 2),
        (Level, "Grade: 2", Level.HIGH),
        (Colour, "Grade: red", Colour.RED),
        (Colour, "GREEN", Colour.GREEN),
        (Fine, "Grade: fine", "fine"),
        (Literal["A", "B"], "Grade: B", "B"),
        (MARKS, "Grade: +", "+"),
        (Literal["a", "A"], "Grade: a", "a"),
        (MARKS, "[[-]]", "-"),
        (float | None, "Grade: 4", 4.0),
        (Literal[1, 2] | float, "Grade: 1.5", 1.5),
        (Literal["partly", "partly right"], "The verdict must be partly right for this.\nGrade: partly right", "partly right"),
    ]
    found = [(annotation, text, read(text, one(annotation)).grade) for annotation, text, _ in cases]  # type: ignore[attr-defined]
    assert found == cases


def test_what_is_no_value_of_the_field_is_refused() -> None:
    not_good = ("A good effort", "Good, but it is wrong", "Verdict: good or bad", "Verdict: good\nVerdict: bad")
    check(one(QUALITY), refused=(*not_good, "The candidate wrote: Verdict: good"))
    check(one(int), refused=("Grade: 4.5", '{"grade": true}'))
    check(one(float | None), refused=('{"grade": null}',))
    check(one(bool), refused=('{"grade": "perhaps"}',))
    check(one(RIGHT), refused=("not correct",))
    check(one(Literal[1, 2, 3]), refused=("Grade: 4",))
    check(one(Level), refused=("Grade: 3",))
    check(one(Colour), refused=("redder",))
    check(one(Literal["A", "B"]), refused=("A grade would be too much",))
    check(one(Literal["tie", "win"]), refused=("Grade: t\u0131e",))
    check(one(MARKS), refused=("Grade: ?",))
    check(one(str), refused=("Grade: 4",))
    check(Task, result=(7, "Score: 7", '{"result": 7}'), refused=("Result: 7",))
    check(one(Literal["good", 3]), refused=("Grade: good", "Grade: 3"), grade=("good", '{"grade": "good"}'))
    check(one(Literal["good", " "]), refused=("Grade: good",), grade=("good", '{"grade": "good"}'))
    check(one(Enum("Odd", {"ONE": 1.0, "ALL": float("inf")})), refused=("Grade: 1",))


def test_the_scale_is_the_given_one_or_the_fields_own_limits() -> None:
    check(Overall, overall_quality=(4, "Overall quality: 4", "overall_quality: 4"), refused=("overallquality: 4",))
    check(Stars, stars=(4, "Stars: 4/5"), refused=("Stars: 4/10", "Stars: 6", '{"stars": 0}'))
    check(Stars, scale=(2, 4), stars=(4, "Stars: 4/4"), refused=("Stars: 4/5", "Stars: 5", '{"stars": 1}'))
    check(Stars, scale=(0, 10), stars=(4, "Stars: 4/10"), refused=("Stars: 4/5", "Stars: 7", '{"stars": 7}'))
    check(ScoreVerdict, score=(42, "Score: 42"), refused=("Score: 42/100", "<answer></answer>", "```\n```"))
    check(Graded, grade=(4, '{"why": "x", "grade": "4/5"}'), refused=('{"why": "x", "grade": "4/10"}',))
    check(ScoreVerdict, scale=(0.0, 1.0), score=(0.7, "Score: 70%", '{"score": "70 %"}'), refused=("Score: 170%",))
    check(ScoreVerdict, scale=(0.0, 100.0), score=(70, "Score: 70%", '{"score": "70 %"}'), refused=("Score: 170%",))
    check(ScoreVerdict, scale=(-5, 5), score=(-3, "Score: -3", "Score: \u22123", '{"score": -3}', '{"score": "-3"}'))
    check(ScoreVerdict, scale=(-5, 5), score=(3, "Score: +3/5"))
    check(ScoreVerdict, scale=(2, 10), score=(7, "Score (2-10): 7", "Score [0 to 10]: 7", "Score (on a scale of 1 to 10): 7"))
    check(
        ScoreVerdict, scale=(0, 10), score=(7, "Score (out of 10): 7"), refused=("Score (2-10): 7", "Score (out of 5): 4", "Score (0-5): 4")
    )


def test_of_two_ranges_of_one_field_what_both_allow_is_the_scale() -> None:
    """A number that only one of them allows may be meant on the other."""
    few, many = Annotated[int, Field(ge=1, le=5)], Annotated[float, Field(ge=0, le=10)]
    for annotation in (few | many, many | few):
        check(one(annotation), grade=(4, "Grade: 4", "Grade: 4/5", '{"grade": 4}'))
        check(one(annotation), refused=("Grade: 7", "Grade: 0.5", "Grade: 4/10", '{"grade": 7}', '{"grade": 0.5}'))
    low, high = Annotated[float, Field(ge=0, le=5)], Annotated[float, Field(ge=3, le=10)]
    for annotation in (low | high, high | low):
        check(one(annotation), grade=(4, "Grade: 4", "Grade: 4/5"), refused=("Grade: 2", "Grade: 6", "Grade: 4/10"))
    check(one(Annotated[int, Field(ge=1)] | Annotated[float, Field(ge=0)]), grade=(70, "Grade: 70"))


def test_two_fields_that_could_decide_leave_objects_alone() -> None:
    two = '{"helpful": 3, "honest": 4} {"helpful": 3, "honest": 5}'
    check(Two, honest=(4, 'It is fine.\n{"helpful": 3, "honest": 4}'), refused=("helpful: 3", 'so: {"helpful": 3, "honest": 4}', two))
    check(Two, refused=('{"helpful": 3}',))
    check(Unasked, helpful=(3, '{"helpful": 3}', 'It is fine.\n{"helpful": 3}'), refused=('It is fine.\n{"other": 3}',))
    check(Open, honest=(4, 'It is fine.\n{"helpful": 3, "honest": 4, "more": 1}'))
    noted = '{{"helpful": 3, "honest": 4, "note": "{}"}}'
    check(Noted, honest=(4, f"{noted.format('so')}\n{noted.format('or so')}", '{"note": "first"}\n{"helpful": 3, "honest": 4}'))


def test_a_default_and_null_never_stand_for_a_score_and_words_for_no_other_required_member() -> None:
    check(Generous, scale=(0, 10), refused=("{}", '{"reason": "fine"}', "It is fine.", '{"grade": 7}'))
    check(Maybe, score=(7, '{"score": 7}'), refused=('{"score": null}', '{"score": true}'))
    check(Reasoned, score=(7, '{"reason": "right", "score": 7}', '{"reason": "right", "score": 7, "Score": 7}'))
    with pytest.raises(Unreadable, match="reason"):
        read("Score: 7", Reasoned)


def test_members_go_by_their_aliases() -> None:
    check(Named, points=(3, '{"finalPoints": 3}', '{"finalpoints": 3}', "Points: 3"))
    check(PathAlone, refused=('{"points": [3]}',))
    check(ManySpellings, points=(3, '{"points": 3, "Why": "so"}', '{"points": 3, "why": "so"}'))
    with pytest.raises(Unreadable, match='at "Why": missing'):
        read('{"points": 3}', ManySpellings)
    check(ManyNames, points=(3, '{"score given": 3}', '{"score-given": 3}', '{"SCORE_GIVEN": 3}', '{" Score-Given ": 3}'))


class Picky(BaseModel):
    score: float

    @field_validator("score")
    @classmethod
    def _part(cls, value: float) -> float:
        if value == 1:
            raise ValueError("SECRET WORDS of the answer")
        return value / 10 if value else float("nan")


def test_a_validator_of_the_users_may_change_a_score_but_not_to_what_is_no_number() -> None:
    check(Picky, scale=(0, 10), score=(0.7, "Score: 7/10", 'Score: 7/10\n{"score": 7}'))
    with pytest.raises(Unreadable, match="finite"):
        read("Score: 0", Picky, scale=(0, 10))


def test_a_refusal_quotes_nothing_of_the_answer_and_names_what_the_model_allows() -> None:
    check(Closed, score=(7, '{"score": "7"}', "Score: 7"))
    check(Closed, score=(9007199254740993, '{"score": 9007199254740993}'))  # all digits are kept
    with pytest.raises(Unreadable, match="extra forbidden") as refused:
        read('{"score": 7, "ignore_all_instructions": 1}', Closed)
    assert "ignore" not in refused.value.reason
    with pytest.raises(Unreadable) as refused:
        read('{"score": 1}', Picky)
    assert "SECRET" not in refused.value.reason
    assert refused.value.__cause__ is None
    with pytest.raises(Unreadable, match="""at "verdict": it must be 'yes' or 'no'"""):
        read('{"reason": "", "verdict": "incorrect"}', YesNoVerdict)


def test_the_stock_verdicts_come_to_scores() -> None:
    assert [YesNoVerdict(verdict=word).score for word in ("yes", "no")] == [1.0, 0.0]  # type: ignore[arg-type]
    assert [PreferenceVerdict(preferred=word).score for word in ("A", "B", "tie")] == [1.0, 0.0, 0.5]  # type: ignore[arg-type]
    assert read('{"verdict": "correct", "score": 1, "reason": "same", "echo": "ab12"}', ScoreVerdict, scale=(0, 1)).score == 1
