"""A reward is a number that the judge gave, within ``range``: which models of an answer have one, and whose fault it is if not."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from decimal import Decimal
from enum import Enum, IntEnum
from itertools import count, product
from typing import Annotated, Any, Literal, NewType, get_args

import pytest
from judge_tools import MODEL, QUESTION, JudgeBackend, always, in_turn, judging, score
from pydantic import BaseModel, Field, create_model, field_validator

from qreward import QRewardClient
from qreward.errors import ConfigError, InvalidResponse
from qreward.judge import Judge, ScoreVerdict
from qreward.judge.parsing import ModelReply, Unreadable, VerdictParser

Level = IntEnum("Level", {"LOW": 0, "MIDDLE": 3, "HIGH": 5})
Plain = Enum("Plain", {"ONE": 1, "THREE": 3})
Numeral = Enum("Numeral", {"ONE": "1", "THREE": "3"})
Word = Enum("Word", {"GOOD": "good", "BAD": "bad"})
Share = Enum("Share", {"NONE": 0.0, "ALL": 1.0}, type=float)
Points = NewType("Points", float)


def model(**fields: Any) -> type[BaseModel]:
    return create_model("Scored", **{name: (annotation, ...) for name, annotation in fields.items()})  # type: ignore[call-overload,no-any-return]


def reward(text: str, annotation: Any, **settings: Any) -> float:
    return VerdictParser(model(score=annotation), **settings).read(ModelReply(text))[0]


def test_every_kind_of_number_is_mapped_from_its_scale_to_the_range() -> None:
    words, numbers = Literal["1", "2", "3", "4", "5"], Literal[1, 2, 3, 4, 5]
    cases: list[tuple[Any, Any, Any, float]] = [
        (words, "4", (1, 5), 0.75),
        (words, "4", None, 0.75),
        (words, 4, None, 0.75),
        (Literal["0", "5", "10"], "10", None, 1.0),
        (numbers, 4, None, 0.75),
        (numbers, "4", None, 0.75),
        (numbers, 5, (0, 10), 0.5),
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
    ]
    for annotation, said, scale, share in cases:
        for limits, expected in (((0, 1), share), ((-1, 1), 2 * share - 1)):
            found = reward(json.dumps({"score": said}), annotation, scale=scale, range=limits)
            assert found == pytest.approx(expected), (annotation, said, scale, limits)


def test_numeric_choices_are_read_from_words_and_what_is_none_of_them_is_no_verdict() -> None:
    for annotation, words in product((Literal["1", "2", "3"], Literal[1, 2, 3], Level), ("Score: 3", "**Score:** 3", "3")):
        assert reward(words, annotation) == (0.6 if annotation is Level else 1.0), (annotation, words)
    for said in (2.5, 4, 0, "2.5", "9", True, None, "good"):
        with pytest.raises(Unreadable):
            reward(json.dumps({"score": said}), Literal["1", "2", "3"])


def test_the_prompt_and_the_schema_name_the_choices_and_no_other_scale() -> None:
    for annotation in (Literal["1", "2", "3", "4", "5"], Literal[1, 2, 3, 4, 5]):
        parser = VerdictParser(model(score=annotation))
        assert "one of" in parser.instruction
        assert parser.schema["properties"]["score"]["enum"] == list(get_args(annotation))
        assert "10" not in parser.instruction + json.dumps(parser.schema)


def test_a_model_without_a_number_needs_a_score_function() -> None:
    annotations = (float | str, int | Literal["N/A"], str, list[int], Word, Literal["good", "bad"], Literal[1, "good"], bool | str)
    scores = [model(score=annotation) for annotation in annotations]
    for verdict in (*scores, model(grade=Literal["a", "b"]), model(helpful=int, honest=bool)):
        with pytest.raises(ConfigError, match="score="):
            Judge(QRewardClient(["http://a.example/v1"]), model=MODEL, verdict=verdict)
    assert reward('{"score": "good"}', Word, score=lambda verdict: 7.0 if verdict.score is Word.GOOD else -7.0) == 7.0


def test_choices_that_the_scale_leaves_out_are_refused() -> None:
    with pytest.raises(ConfigError, match="does not include 5"):
        VerdictParser(model(score=Literal[0, 5]), scale=(0, 4))
    with pytest.raises(ConfigError, match=r"scale must be \(lowest, highest\)"):
        VerdictParser(model(score=Literal[3]))


def test_a_field_that_cannot_have_both_ends_of_the_scale_needs_another_scale() -> None:
    def limited(kind: Any, **limits: Any) -> Any:
        return model(score=Annotated[kind, Field(**limits)])

    for verdict, scale, found in (
        (limited(int, gt=0, lt=6), None, (1, 5)),
        (limited(int, gt=0, le=5), None, (1, 5)),
        (limited(float, ge=1, le=5), None, (1, 5)),
        (limited(float, ge=0), None, (0, 10)),
        (limited(float, gt=0, lt=1), (0, 1), (0, 1)),
        (limited(int, gt=0, lt=6), (2, 5), (2, 5)),
    ):
        assert VerdictParser(verdict, scale=scale).scale == found
    for verdict, scale, words in (
        (limited(float, gt=0, lt=6), None, "score is limited to less than 6, and the scale is 0 to 10; set a scale within it"),
        (limited(int, gt=0), None, "limited to at least 1, and"),
        (limited(float, le=5), None, "limited to at most 5, and"),
        (limited(float, gt=0.5), None, "limited to more than 0.5, and"),
        (limited(int, ge=1, le=5), (0, 10), "limited to at least 1, and"),
        (limited(int, gt=0, lt=6), (1, 6), "limited to at most 5, and"),
    ):
        with pytest.raises(ConfigError, match=words):
            VerdictParser(verdict, scale=scale)
    assert VerdictParser(limited(int, ge=1, le=5), scale=(0, 10), score=lambda verdict: verdict.score).scale == (0, 10)


def test_a_reward_is_never_outside_of_the_range_by_rounding() -> None:
    for first, last in product((number / 10 for number in range(-20, 21)), repeat=2):
        found = reward('{"score": 10}', float, scale=(0, 10), range=(first, last))
        assert min(first, last) <= found <= max(first, last)


class Inflated(BaseModel):
    score: float

    @field_validator("score")
    @classmethod
    def _times_ten(cls, value: float) -> float:
        return value * 10 if value else 1 / value


class Counted(BaseModel):
    right: bool
    wrong: bool

    @property
    def score(self) -> float:
        return 5.0 if self.right else 1 / self.wrong


def divides(verdict: ScoreVerdict) -> float:
    return 1 / (verdict.score - 7)


def test_the_users_own_code_that_fails_or_leaves_the_scale_is_named_and_the_model_is_not_asked_again() -> None:
    fault = "the fault is in your code"
    cases: list[tuple[dict[str, Any], str, str, type]] = [
        ({"verdict": Inflated}, '{"score": 7}', "Inflated.*70|70.*Inflated", object),
        ({"verdict": Inflated}, '{"score": 0}', f"reading as Inflated raised ZeroDivisionError.*{fault}", ZeroDivisionError),
        ({"verdict": Counted}, '{"right": true, "wrong": false}', "Counted.*5|5.*Counted", object),
        ({"verdict": Counted}, '{"right": false, "wrong": false}', f"Counted raised ZeroDivisionError.*{fault}", ZeroDivisionError),
        ({"score": divides}, '{"score": 7}', f"score function.*divides.*ZeroDivisionError.*{fault}", ZeroDivisionError),
        ({"score": lambda _: "7"}, '{"score": 7}', f"score function.*<lambda>.*'7'.*{fault}", type(None)),
        ({"score": lambda _: [1]}, '{"score": 7}', rf"score function.*<lambda>.*\[1\].*{fault}", TypeError),
        ({"score": lambda _: math.nan}, '{"score": 7}', f"score function.*<lambda>.*nan.*{fault}", type(None)),
        ({"score": lambda _: 10**400}, '{"score": 7}', f"score function.*<lambda>.*a int.*{fault}", OverflowError),
    ]
    for settings, said, words, cause in cases:
        backend = JudgeBackend(in_turn(said, '{"score": 8}'))
        with pytest.raises(InvalidResponse, match=words) as caught:
            judging(backend, lambda judge: judge.score(*QUESTION), **settings)
        assert isinstance(caught.value.__cause__, cause)
        assert len(backend.sent) == 1


class Stop(BaseException):
    """Not an ``Exception``, as some libraries' signals are not."""


def raising_second(error: BaseException) -> Callable[[Any], float]:
    """A score function that raises when it is called for the second time."""
    calls = count(1)

    def worth(_verdict: Any) -> float:
        if next(calls) == 2:
            raise error
        return 0.5

    return worth


def test_an_item_ends_whatever_the_score_function_raises_and_the_others_are_judged() -> None:
    async def batch(judge: Judge) -> list[Any]:
        found = await asyncio.wait_for(judge.batch_score([("q", f"r {number}") for number in range(6)]), 60)
        return [result.error for result in found if not result.ok]

    async def calls(judge: Judge) -> list[Any]:
        asked = (asyncio.wait_for(judge.score("q", f"r {number}"), 60) for number in range(6))
        return [found for found in await asyncio.gather(*asked, return_exceptions=True) if isinstance(found, BaseException)]

    wrong = []
    for error, use in product((ValueError("v"), asyncio.CancelledError("c"), GeneratorExit("g"), Stop("s")), (batch, calls)):
        (found,) = judging(JudgeBackend(always(score(5))), use, score=raising_second(error))
        if not (isinstance(found, InvalidResponse) and f"raised {type(error).__name__}" in str(found) and found.__cause__ is error):
            wrong.append((error, use.__name__, found))
    assert wrong == []
