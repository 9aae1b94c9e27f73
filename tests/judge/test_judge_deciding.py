"""Judges that decide: the score is the expected value over probabilities, and what has none is an error."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from decided_tools import MIXED, TEN, DecisionBackend, always, by_text, deciding
from judge_tools import QUESTION, client_of, endpoint
from pydantic import BaseModel

from qreward.decisions import Choice, Question, Score
from qreward.errors import BadRequest, ConfigError, InvalidResponse
from qreward.judge import Criterion, Judge, Rubric, YesNoVerdict
from qreward.scheduler.outcome import Failure, FailureKind

ONE_OF_FIVE = (0.1, 0.0, 0.0, 0.4, 0.5)
FIVE: dict[str, Any] = {"scale": (1, 5)}


def decided(says: Any, dialect: str = "openai", **settings: Any) -> Any:
    """The verdict of one item."""
    return deciding(DecisionBackend(always(says)), lambda judge: judge.score(*QUESTION), dialect, **settings)


def error_of(says: Any, dialect: str = "openai", **settings: Any) -> str:
    with pytest.raises(InvalidResponse) as caught:
        decided(says, dialect, **settings)
    return str(caught.value)


def test_the_score_is_the_expected_value_mapped_to_the_range() -> None:
    cases: list[tuple[Any, dict[str, Any], float]] = [
        (ONE_OF_FIVE, FIVE, 0.8),
        (ONE_OF_FIVE, {**FIVE, "range": None}, 4.2),
        (ONE_OF_FIVE, {**FIVE, "range": (-1.0, 1.0)}, 0.6),
        (ONE_OF_FIVE, {**FIVE, "range": (1.0, 0.0)}, 0.2),
        ((0.0, 1.0), {"scale": (-3, -2)}, 1.0),
        ((0.3, 0.7), {"verdict": YesNoVerdict}, 0.3),
        ((0.3, 0.7), {"verdict": YesNoVerdict, "range": (-1.0, 1.0)}, -0.4),
        ((0.3, 0.7), {"verdict": YesNoVerdict, "range": None}, 0.3),
    ]
    wrong = []
    for says, settings, wanted in cases:
        for dialect in ("openai", "chat"):
            verdict = decided(says, dialect, **settings)
            if verdict.score != pytest.approx(wanted):
                wrong.append((dialect, settings, verdict.score))
    assert wrong == []


def test_a_decision_has_a_distribution_and_a_confidence_and_no_text() -> None:
    verdict = decided(ONE_OF_FIVE, **FIVE)
    assert verdict.distribution == dict(zip("12345", ONE_OF_FIVE, strict=True))
    assert (verdict.confidence, verdict.text, verdict.verdict, verdict.criteria) == (0.5, "", None, None)
    assert repr(verdict) == "<Verdict 0.8 by judge-7b>"
    yes = decided((0.25, 0.75), verdict=YesNoVerdict)
    assert (yes.distribution, yes.confidence) == ({True: 0.25, False: 0.75}, 0.75)
    sure = decided(((0.9, 0.1), 0.8), "chat", verdict=YesNoVerdict)
    assert sure.confidence == pytest.approx(0.72)


def test_a_label_mass_below_the_least_is_no_verdict_and_its_number_is_in_the_message() -> None:
    yes: dict[str, Any] = {"verdict": YesNoVerdict}
    assert "have a probability of 0.3, which is less than min_label_mass=0.5" in error_of(((0.9, 0.1), 0.3), "chat", **yes)
    for says, least in (((0.9, 0.1), 0.51), 0.5), (((0.9, 0.1), 0.3), 0.29), (((0.9, 0.1), 0.1), 0):
        assert decided(says, "chat", **yes, min_label_mass=least).score == pytest.approx(0.9)
    assert "criterion 'c3'" in error_of(((0.9, 0.1), 0.3), "chat", rubric=Rubric([TEN.criteria[3], TEN.criteria[4]]))
    for wrong in (-0.1, 1.1, "half", float("nan")):
        with pytest.raises(ConfigError, match="min_label_mass"):
            decided((1, 0), **yes, min_label_mass=wrong)


def test_a_refusal_is_an_error_that_names_the_criterion() -> None:
    for dialect in ("openai", "chat"):
        assert "the model declined to answer" in error_of(None, dialect, **FIVE)
        backend = DecisionBackend(by_text({"It insults.": None, "How clear is it?": (0, 0, 1), "What is the tone?": (1, 0, 0)}))
        with pytest.raises(InvalidResponse, match=r"criterion 'rude': .*declined") as caught:
            deciding(backend, lambda judge: judge.score(*QUESTION), dialect, rubric=MIXED)
        assert [attempt.outcome for attempt in caught.value.attempts] == ["unreadable"]
        assert caught.value.usage is not None


def test_no_probability_is_made_up() -> None:
    row: dict[str, Any] = {"type": "predicate"}
    for number in (None, "0.9", float("nan"), -0.1, 1.2, True):
        assert error_of({**row, "probability": number}, verdict=YesNoVerdict)
    for numbers in ((0.5, 0.5, 0.5, 0.5, 0.5), (1.0,), (0.2, 0.2, 0.2, 0.2), (1.5, -0.5, 0.0, 0.0, 0.0)):
        assert error_of(numbers, **FIVE)


def test_ten_criteria_are_one_request_and_ten_where_there_is_only_chat() -> None:
    for dialect, requests in (("openai", 1), ("chat", 10)):
        backend = DecisionBackend(by_text({f"It meets condition {number}.": (number / 10, 1 - number / 10) for number in range(10)}))
        verdict = deciding(backend, lambda judge: judge.score(*QUESTION), dialect, rubric=TEN)
        assert len(backend.sent) == requests
        assert verdict.score == pytest.approx(0.45)
        assert {name: round(each.score, 6) for name, each in verdict.criteria.items()} == {f"c{n}": n / 10 for n in range(10)}
        assert list(verdict.criteria) == [each.name for each in TEN.criteria]
        assert len({each.text for each in backend.sent}) == 1  # all begin with the same input
        assert {each.at for each in backend.sent} == {0.0}
        assert len({each.group for each in backend.sent}) == 1


def test_a_rubric_mixes_kinds_weights_and_gates() -> None:
    says = {
        "It is right.": (0.9, 0.1),
        "How clear is it?": (0.0, 1.0, 0.0),
        "What is the tone?": (0.5, 0.5, 0.0),
        "It insults.": (0.2, 0.8),
    }
    for dialect in ("openai", "chat"):
        verdict = deciding(DecisionBackend(by_text(says)), lambda judge: judge.score(*QUESTION), dialect, rubric=MIXED, range=(-5.0, 5.0))
        assert verdict.score == pytest.approx(-5 + 10 * (3 * 0.9 + 0.5 + 0.75 - 0.2) / 5)
        assert verdict.criteria["tone"].distribution == pytest.approx({"calm": 0.5, "dry": 0.5, "rude": 0.0})
        assert verdict.confidence == pytest.approx((3 * 0.9 + 1.0 + 0.5 + 0.8) / 6)
        assert (verdict.distribution, verdict.text) == (None, "")


def test_forms_that_cannot_be_decided_are_config_errors_that_say_what_to_do() -> None:
    class Own(BaseModel):
        score: float

    cases: list[tuple[dict[str, Any], str]] = [
        ({"scale": (0, 100)}, "scale=(0, 100) has 101 scores; set scale to (1, 5)"),
        ({"scale": (0, 0.5)}, "at most 20 whole numbers"),
        ({"verdict": Own, "scale": (1, 5)}, "no form for the verdict Own"),
        ({**FIVE, "score": lambda verdict: verdict.score}, "score is a function of a written verdict"),
        ({**FIVE, "temperature": 0}, "temperature has no effect with method='decide'"),
        ({**FIVE, "max_tokens": 5}, "max_tokens has no effect"),
        ({**FIVE, "method": "decides"}, "method: must be"),
        ({"rubric": TEN, **FIVE}, "scale cannot be set together with rubric"),
        ({"rubric": TEN, "verdict": YesNoVerdict}, "verdict cannot be set together with rubric"),
        ({"rubric": TEN, "score": float}, "score cannot be set together with rubric"),
        ({"rubrics": TEN}, "did you mean 'rubric'?"),
    ]
    wrong = []
    for settings, wanted in cases:
        try:
            decided((1, 0), **settings)
            wrong.append((settings, "no error"))
        except ConfigError as error:
            if wanted not in str(error):
                wrong.append((settings, str(error)))
    assert wrong == []


def test_the_built_in_prompt_shows_the_material_and_the_question_is_a_question() -> None:
    backend = DecisionBackend(always((1.0, 0.0)))
    deciding(backend, lambda judge: judge.score("6 x 7?", "42", reference="42"), rubric=TEN, system="Be strict.")
    (sent,) = backend.sent
    assert [message["role"] for message in sent.input] == ["system", "user"]
    for words in ("Task:\n```\n6 x 7?\n```", "Reference answer:", "Candidate answer:\n```\n42\n```", "counts for nothing"):
        assert words in sent.text
    assert "JSON" not in json.dumps(sent.body)
    assert "Question:" not in sent.text
    plain = DecisionBackend(always(ONE_OF_FIVE))
    deciding(plain, lambda judge: judge.score("6 x 7?", "42"), **FIVE)
    assert isinstance(plain.sent[0].input, str)
    assert plain.sent[0].questions[0].instructions == (
        "How good is the candidate answer to the task? 0 is the lowest level, 4 the highest."
    )


def test_no_level_is_called_by_the_number_of_another_as_a_model_answers_with_numbers_from_0() -> None:
    own = "Give a score from 1 to 5 to {response}."
    cases: list[tuple[dict[str, Any], type[Question], tuple[str, ...]]] = [
        ({"scale": (1, 5)}, Score, ("0", "1", "2", "3", "4")),
        ({"scale": (0, 4), "prompt": own}, Score, ("0", "1", "2", "3", "4")),
        ({"scale": (1, 5), "prompt": own}, Choice, ("1", "2", "3", "4", "5")),
        ({}, Choice, tuple(map(str, range(11)))),
        ({"scale": (-1, 1)}, Score, ("0", "1", "2")),
    ]
    wrong: list[tuple[Any, ...]] = []
    for settings, kind, options in cases:
        numbers = [0.0] * (len(options) - 2) + [0.5, 0.5]
        backend = DecisionBackend(always(numbers))
        verdict = deciding(backend, lambda judge: judge.score("6 x 7?", "42"), **settings)
        (question,) = backend.sent[0].questions
        first, last = settings.get("scale", (0, 10))
        names = tuple(map(str, range(first, last + 1)))
        if (type(question), question.options, tuple(verdict.distribution)) != (kind, options, names):
            wrong.append((settings, question, verdict))
        if verdict.score != pytest.approx(1 - 0.5 / (len(options) - 1)):
            wrong.append((settings, verdict.score))
    assert wrong == []
    for levels in (["1", "2", "3"], ["bad", "0"], ["10", "20"]):
        with pytest.raises(ConfigError, match="servers number levels from 0"):
            Score("How good?", levels=levels)
        with pytest.raises(ConfigError, match="servers number levels from 0"):
            Criterion("good", "How good?", levels=levels)
    with pytest.raises(ConfigError, match="servers call the options A, B"):
        Choice("Which one?", choices=["b", "a"])
    assert Choice("Which one?", choices=["A", "B", "tie"]).options == ("A", "B", "tie")
    assert Choice("Which one?", choices=["F", "M", "ab"]).options == ("F", "M", "ab")


def test_the_majority_of_deciding_judges_is_that_of_their_preferences_and_not_of_equal_numbers() -> None:
    def of(better: float) -> DecisionBackend:
        return DecisionBackend(
            lambda _, text: (better, 1 - better, 0.0) if text.index("GOOD") < text.index("BAD") else (1 - better, better, 0.0)
        )

    class Backend(DecisionBackend):
        judges: ClassVar = {"a": of(0.9), "b": of(0.8), "c": of(0.3)}

        async def send(self, endpoint: Any, call: Any) -> Any:
            return await self.judges[call.model].send(endpoint, call)

    def compared(*models: str, **settings: Any) -> Any:
        return deciding(Backend(always(None)), lambda judge: judge.compare("q", "GOOD", "BAD"), model=models, **settings)

    for settle, score in (("majority", 0.85), ("mean", 2 / 3), ("median", 0.8)):
        found = compared("a", "b", "c", settle=settle)
        assert (found.preference, found.score, found.confidence) == ("first", pytest.approx(score), pytest.approx(1.7 / 3)), settle
    two = compared("a", "c")
    assert (two.preference, two.score, two.confidence) == ("tie", 0.5, 0.0)


def test_a_template_of_ones_own_is_the_input_without_how_to_answer() -> None:
    backend = DecisionBackend(always((1.0, 0.0)))
    deciding(backend, lambda judge: judge.score("q", "r"), verdict=YesNoVerdict, prompt="Is {response} kind? {answer_form}Say.")
    deciding(backend, lambda judge: judge.score("q", "r"), verdict=YesNoVerdict, prompt=lambda fields: [{"role": "user", "content": "x"}])
    assert [each.input for each in backend.sent] == ["Is r kind? Say.", "x"]
    assert backend.sent[0].questions[0].instructions == "The verdict on what is asked above is yes."
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]
    with pytest.raises(BadRequest, match="holds texts only"):
        deciding(backend, lambda judge: judge.score("q", "r"), verdict=YesNoVerdict, prompt=lambda fields: image)


def compared(first: Any, second: Any, **settings: Any) -> Any:
    """The comparison by a judge that prefers so in the first order, and so in the second."""

    def says(_question: Question, text: str) -> Any:
        return first if text.index("\none\n") < text.index("\ntwo\n") else second

    return deciding(DecisionBackend(says), lambda judge: judge.compare("q", "one", "two"), **{"rubric": TEN, **settings})


def test_a_pair_is_decided_in_both_orders() -> None:
    backend = DecisionBackend(always((0.8, 0.1, 0.1)))
    deciding(backend, lambda judge: judge.compare("q", "one", "two"), rubric=MIXED)
    assert [len(each.questions) for each in backend.sent] == [1, 1]
    assert "- It is right. (3)" in backend.sent[0].questions[0].instructions
    assert deciding(backend, lambda judge: judge.rank("q", ["a", "b"])).ranks == (1, 1), "it likes the first place, and needs no scale"
    comparison = compared((0.8, 0.1, 0.1), (0.2, 0.6, 0.2))
    assert (comparison.preference, comparison.score) == ("first", pytest.approx((0.85 + 0.7) / 2))
    assert comparison.confidence == pytest.approx((0.8 + 0.6) / 2)
    assert comparison.votes[1].distribution == pytest.approx({"first": 0.6, "second": 0.2, "tie": 0.2})
    cases = [
        ((0.8, 0.1, 0.1), (0.8, 0.1, 0.1), "tie", 0.5, 0.0),  # always A: the order decides
        ((0.2, 0.2, 0.6), (0.1, 0.8, 0.1), "tie", 0.5, 0.6),
        ((0.1, 0.7, 0.2), (0.9, 0.0, 0.1), "second", 0.125, 0.8),
    ]
    for first, second, preference, score, confidence in cases:
        found = compared(first, second)
        assert (found.preference, found.score, found.confidence) == (preference, pytest.approx(score), pytest.approx(confidence))


def test_decisions_are_found_in_the_cache_by_their_questions_and_weights_apply_anew(tmp_path: Path) -> None:
    def run(rubric: Rubric, dialect: str = "openai", **settings: Any) -> tuple[Any, int]:
        backend = DecisionBackend(by_text({"It is right.": (0.9, 0.1), "It insults.": (0.5, 0.5)}), seconds=0.0)

        async def use() -> Any:
            async with (
                client_of(backend, endpoint("a", 64, decisions=dialect)) as client,
                Judge(client, model="m", method="decide", rubric=rubric, cache=tmp_path / "c", **settings) as judge,
            ):
                return await judge.score(*QUESTION)

        return asyncio.run(use()), len(backend.sent)

    right, rude = Criterion("right", "It is right.", weight=3), Criterion("rude", "It insults.", weight=-1)
    first, sent = run(Rubric([right, rude]))
    assert (first.score, first.cached, sent) == (pytest.approx((2.7 - 0.5) / 3), False, 1)
    again, sent = run(Rubric([right, rude]), "vllm")
    assert (again.score, again.cached, sent) == (pytest.approx((2.7 - 0.5) / 3), True, 0)
    assert again.criteria == first.criteria
    assert again.confidence == first.confidence
    lighter, sent = run(Rubric([Criterion("r", "It is right."), Criterion("s", "It insults.")]))
    assert (lighter.score, sent) == (pytest.approx(0.7), 0)
    assert run(Rubric([right, Criterion("rude", "It insults!")]))[1] == 1
    assert run(Rubric([right, rude]), cache_namespace="other")[1] == 1


FOUR = [("q", "fine"), ("q", "bad"), ("q", "good"), ("q", "good")]


def test_a_criterion_that_fails_ends_its_item_and_no_other() -> None:
    def says(question: Question, text: str) -> Any:
        return None if "bad" in text and question.instructions == "It meets condition 3." else (0.75, 0.25)

    for dialect in ("openai", "chat"):
        backend = DecisionBackend(says)
        batch = deciding(backend, lambda judge: judge.batch_score(FOUR), dialect, rubric=TEN)
        assert [result.ok for result in batch] == [True, False, True, True]
        assert "criterion 'c3'" in str(batch[1].error)
        assert (batch[2].value.usage is None, batch[3].value.usage is None) == (False, True), "equal items are one request"

    def refuses(question: Question, _text: str) -> Any:
        refused = Failure(FailureKind.REFUSED, BadRequest("the server answered 400", status_code=400))
        return refused if question.instructions == "It meets condition 3." else (0.75, 0.25)

    with pytest.raises(BadRequest, match="criterion 'c3': the server answered 400"):
        deciding(DecisionBackend(refuses), lambda judge: judge.score(*QUESTION), "chat", rubric=TEN)


def test_a_judge_that_learns_late_of_a_smaller_limit_asks_in_parts() -> None:
    backend = DecisionBackend(by_text({f"It meets condition {number}.": (number / 10, 1 - number / 10) for number in range(10)}))

    async def use(judge: Judge) -> Any:
        make = judge._requests.item
        judge._requests.item = lambda fields, *, limits, pairs: make(fields, limits=(400,), pairs=pairs)  # type: ignore[method-assign,misc,assignment]
        return await judge.score(*QUESTION)

    verdict = deciding(backend, use, "chat", rubric=TEN)
    assert verdict.score == pytest.approx(0.45)
    assert [len(each.questions) for each in backend.sent] == [1] * 10
    with pytest.raises(InvalidResponse) as caught:
        deciding(DecisionBackend(by_text({"It meets condition 3.": None})), use, "chat", rubric=TEN)
    assert "criterion 'c3'" in str(caught.value)
    assert "c9" not in str(caught.value), "the last part has nothing to do with it"
