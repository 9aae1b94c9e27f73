"""A reward is a number that the judge gave, within ``range``: which models of an answer have one, and whose fault it is if not."""

from __future__ import annotations

import json
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NewType

import pytest
from judge_tools import MODEL, JudgeWire, always, in_turn, judging
from pydantic import BaseModel, Field, field_validator

from qreward import QRewardClient
from qreward.errors import ConfigError, InvalidResponse
from qreward.judge import Judge, ScoreVerdict

ASKED = ("What is 6 x 7?", "42")


class Level(IntEnum):
    LOW = 0
    MIDDLE = 3
    HIGH = 5


class Share(float, Enum):
    NONE = 0.0
    ALL = 1.0


class Plain(Enum):
    ONE = 1
    THREE = 3


class Numeral(Enum):
    ONE = "1"
    THREE = "3"


class Word(Enum):
    GOOD = "good"
    BAD = "bad"


Points = NewType("Points", float)


def scored(annotation: Any) -> type[BaseModel]:
    return type("Scored", (BaseModel,), {"__annotations__": {"score": annotation}, "__module__": __name__})


def judged(wire: JudgeWire, **settings: Any) -> Any:
    return judging(wire, lambda judge: judge.score(*ASKED), **settings)


def made(**settings: Any) -> Judge:
    return Judge(QRewardClient(["http://a.example/v1"]), **{"model": MODEL, **settings})


@pytest.mark.parametrize(
    ("annotation", "said", "scale", "reward"),
    [
        (Literal["1", "2", "3", "4", "5"], "4", (1, 5), 0.75),
        (Literal["1", "2", "3", "4", "5"], "4", None, 0.75),
        (Literal["1", "2", "3", "4", "5"], 4, None, 0.75),
        (Literal["0", "5", "10"], "10", None, 1.0),
        (Literal[1, 2, 3, 4, 5], 4, None, 0.75),
        (Literal[1, 2, 3, 4, 5], "4", None, 0.75),
        (Literal[1, 2, 3, 4, 5], 5, (0, 10), 0.5),
        (Literal[1, 2] | Literal[3] | None, 2, None, 0.5),
        (Level, 3, None, 0.6),
        (Share, 1.0, None, 1.0),
        (Plain, 3, None, 1.0),
        (Numeral, "1", None, 0.0),
        (Decimal, 7, None, 0.7),
        (float | None, 7, None, 0.7),
        (Annotated[int, Field(ge=1, le=5)] | None, 4, None, 0.75),
        (Points, 7, None, 0.7),
        (bool, True, None, 1.0),
        (bool | None, False, None, 0.0),
    ],
)
def test_every_kind_of_number_is_mapped_from_its_scale_to_the_range(annotation: Any, said: Any, scale: Any, reward: float) -> None:
    wire = JudgeWire(always(json.dumps({"score": said})))
    verdict = judged(wire, verdict=scored(annotation), scale=scale)
    assert verdict.score == pytest.approx(reward)
    assert judged(wire, verdict=scored(annotation), scale=scale, range=(-1, 1)).score == pytest.approx(2 * reward - 1)


@pytest.mark.parametrize("annotation", [Literal["1", "2", "3"], Literal[1, 2, 3], Level])
@pytest.mark.parametrize("words", ["Score: 3", "**Score:** 3", "3"])
def test_numeric_choices_are_read_from_words(annotation: Any, words: str) -> None:
    verdict = scored(annotation)
    assert judged(JudgeWire(always(words)), verdict=verdict, reasks=0).score == (0.6 if annotation is Level else 1.0)


@pytest.mark.parametrize("said", [2.5, 4, 0, "2.5", "9", True, None, "good"])
def test_what_is_none_of_the_choices_is_no_verdict(said: Any) -> None:
    wire = JudgeWire(always(json.dumps({"score": said})))
    with pytest.raises(InvalidResponse):
        judged(wire, verdict=scored(Literal["1", "2", "3"]), reasks=0)


@pytest.mark.parametrize("annotation", [Literal["1", "2", "3", "4", "5"], Literal[1, 2, 3, 4, 5]])
def test_the_prompt_and_the_schema_name_the_choices_and_no_other_scale(annotation: Any) -> None:
    wire = JudgeWire(always('{"score": 4}'))
    judged(wire, verdict=scored(annotation))
    sent = json.dumps([wire.sent[0].messages, wire.sent[0].params])
    assert "one of" in wire.sent[0].text
    assert wire.sent[0].params["response_format"]["json_schema"]["schema"]["properties"]["score"]["enum"] == list(annotation.__args__)
    assert "10" not in sent.replace(MODEL, "")


@pytest.mark.parametrize(
    "annotation", [float | str, int | Literal["N/A"], str, list[int], Word, Literal["good", "bad"], Literal[1, "good"], bool | str]
)
def test_a_model_without_a_number_needs_a_score_function(annotation: Any) -> None:
    with pytest.raises(ConfigError, match="score="):
        made(verdict=scored(annotation))


def test_a_score_function_makes_a_number_of_words() -> None:
    wire = JudgeWire(always('{"score": "good"}'))
    assert judged(wire, verdict=scored(Word), score=lambda verdict: 7.0 if verdict.score is Word.GOOD else -7.0).score == 7.0


def test_choices_that_the_scale_leaves_out_are_refused() -> None:
    with pytest.raises(ConfigError, match="does not include 5"):
        made(verdict=scored(Literal[0, 5]), scale=(0, 4))
    with pytest.raises(ConfigError, match=r"scale must be \(lowest, highest\)"):
        made(verdict=scored(Literal[3]))


class Inflated(BaseModel):
    score: float

    @field_validator("score")
    @classmethod
    def _times_ten(cls, value: float) -> float:
        return value * 10


class Counted(BaseModel):
    right: bool
    wrong: bool

    @property
    def score(self) -> float:
        return 5.0 if self.right else 1 / self.wrong


@pytest.mark.parametrize(
    ("verdict", "said", "why"),
    [
        (Inflated, '{"score": 7}', "70"),
        (Counted, '{"right": true, "wrong": false}', "5"),
        (Counted, '{"right": false, "wrong": false}', "ZeroDivisionError"),
    ],
)
def test_a_model_whose_own_code_leaves_the_scale_is_told_by_name_and_gives_no_reward(verdict: Any, said: str, why: str) -> None:
    wire = JudgeWire(always(said))
    with pytest.raises(InvalidResponse, match=f"{verdict.__name__}.*{why}|{why}.*{verdict.__name__}"):
        judged(wire, verdict=verdict)
    assert len(wire.sent) == 1


def divides(verdict: ScoreVerdict) -> float:
    return 1 / (verdict.score - 7)


@pytest.mark.parametrize(
    ("worth", "named", "why", "cause"),
    [
        (divides, "divides", "ZeroDivisionError", ZeroDivisionError),
        (lambda _: "7", "<lambda>", "'7'", type(None)),
        (lambda _: [1], "<lambda>", r"\[1\]", TypeError),
        (lambda _: float("nan"), "<lambda>", "nan", type(None)),
        (lambda _: 10**400, "<lambda>", "a int", OverflowError),
    ],
)
def test_a_score_function_that_fails_is_named_and_the_model_is_not_asked_again(worth: Any, named: str, why: str, cause: type) -> None:
    wire = JudgeWire(in_turn('{"score": 7}', '{"score": 8}'))
    with pytest.raises(InvalidResponse, match=f"score function.*{named}.*{why}.*the fault is in your code") as caught:
        judged(wire, score=worth)
    assert isinstance(caught.value.__cause__, cause)
    assert len(wire.sent) == 1
