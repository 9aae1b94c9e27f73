"""The synthetic judge: where the truth comes from, and what each of its faults does to its answers."""

from __future__ import annotations

import math
from statistics import NormalDist, fmean
from typing import Any

import pytest
from fakes.faulty_judge import FaultyJudge, asked_of, distribution
from scale import SCALE

from qreward.decisions import Choice, Option, Question, Score, YesNo
from qreward.errors import ConfigError
from qreward.testing import SyntheticJudge, responders
from qreward.testing.responders import Asked

RIGHT = YesNo("It is right.", name="right")
CLEAR = Score("How clear?", levels=["bad", "fair", "good"])
TONE = Choice("Tone?", choices=["calm", "rude", "cold"])
BETTER = Choice("Which is better?", choices=["A", "B", "tie"])
KINDS: tuple[Question, ...] = (RIGHT, CLEAR, TONE)
ITEMS = [f"item {number}" for number in range(2000 * SCALE)]

TRUTHS: list[tuple[str, Question, tuple[float, ...]]] = [
    ("truth=0.8", RIGHT, (0.8, 0.2)),
    ("It is 4. truth=1", RIGHT, (1, 0)),
    ("truth=yes", RIGHT, (1, 0)),
    ("truth[right]=0.25", RIGHT, (0.25, 0.75)),
    ("truth[It is right.]=no", RIGHT, (0, 1)),
    ("truth=0.8\ntruth[right]=0.25", RIGHT, (0.25, 0.75)),
    ("truth=0.8;truth=0.1", RIGHT, (0.8, 0.2)),
    ('{"text": "truth=0.5"}', RIGHT, (0.5, 0.5)),
    ("truth=0", CLEAR, (1, 0, 0)),
    ("truth=0.75", CLEAR, (0, 0.5, 0.5)),
    ("truth[How clear?]=fair", CLEAR, (0, 1, 0)),
    ("truth[Tone?]=rude", TONE, (0, 1, 0)),
    ("truth=0.3\n\ntruth=0.4", BETTER, (0, 1, 0)),
    ("truth=0.4\n\ntruth=0.4", BETTER, (0, 0, 1)),
    ("truth=0.4\n\ntruth=0.4", Choice("Which?", choices=["A", "B"]), (0.5, 0.5)),
    ("truth=0.3 truth=0.4\ntruth=0.9", TONE, (0, 0, 1)),
]


def truth_of(text: str, question: Question) -> tuple[float, ...]:
    return responders.truth_of(text.strip(), asked_of(question))


def true_answer(text: str, question: Question) -> Option:
    """The option that is drawn from the truth."""
    return question.options[responders.drawn(truth_of(text, question), text, asked_of(question))]


def test_the_truth_of_an_input_stands_in_its_text() -> None:
    found = [(text, truth_of(text, question), wanted) for text, question, wanted in TRUTHS]
    assert [each for each in found if each[1] != pytest.approx(each[2])] == []
    assert responders.truth_of("1\n\ntruth[T]=calm", Asked("choice", "T", ("calm: factual", "rude"))) == (1, 0), "with its description"


def test_a_truth_that_does_not_fit_its_question_is_an_error() -> None:
    cases: list[tuple[str, Question]] = [
        ("truth=maybe", RIGHT), ("truth=1.5", RIGHT), ("truth=nan", RIGHT), ("truth=", RIGHT), ("truth=great", CLEAR),
        ("truth[Tone?]=hot", TONE), ("truth=1\ntruth=0\ntruth=0\ntruth=0", BETTER),
    ]  # fmt: skip
    for text, question in cases:
        with pytest.raises(ConfigError, match="truth="):
            truth_of(text, question)


def test_a_truth_that_is_not_written_is_drawn_from_input_and_question() -> None:
    for question in KINDS:
        drawn = {truth_of(item, question) for item in ITEMS[:50]}
        assert len(drawn) == 50
        assert all(sum(truth) == pytest.approx(1) for truth in drawn)
        assert truth_of(" item 0\n", question) == truth_of("item 0", question)
        assert truth_of("one truth=0.3 is no truth of a choice", TONE) != truth_of("another truth=0.3", TONE)
    assert truth_of("item 0", RIGHT) == truth_of("item 0", YesNo("It is right.\nYes means: all of it")), "known by its first line"
    assert truth_of("item 0", RIGHT) != truth_of("item 0", YesNo("It is wrong."))


def test_gold_labels_are_drawn_from_the_truth() -> None:
    shares = [(text, fmean(true_answer(f"{item} truth={text}", RIGHT) is True for item in ITEMS)) for text in ("0", "0.2", "0.9", "1")]
    assert [(text, round(share, 3)) for text, share in shares if abs(share - float(text)) > 0.04] == []
    assert (shares[0][1], shares[3][1]) == (0, 1)


def test_a_judge_without_faults_reports_the_truth() -> None:
    for text, question, truth in TRUTHS:
        assert distribution(SyntheticJudge(), text, question) == pytest.approx(truth, abs=1e-5), text


def test_answers_depend_on_seed_input_and_question_alone() -> None:
    for question in KINDS:
        made = [distribution(FaultyJudge(noise=0.5, flip=0.5, seed=seed), text, question) for seed in (1, 1, 2) for text in ("a", "b")]
        assert made[:2] == made[2:4]
        assert len({*made}) == 4, "another seed or another input is another answer"


def _right(judge: SyntheticJudge, question: Question) -> tuple[float, float]:
    """Accuracy and mean confidence of a judge."""
    right, sure = [], []
    for item in ITEMS:
        numbers = distribution(judge, item, question)
        best = numbers.index(max(numbers))
        right.append(question.options[best] == true_answer(item, question))
        sure.append(numbers[best])
    return fmean(right), fmean(sure)


def test_a_judge_is_as_often_right_as_it_is_sure_and_temperature_changes_only_how_sure() -> None:
    for question in KINDS:
        for noise in (None, 0.215, 0.39, 0.74):
            accuracy, confidence = _right(SyntheticJudge(noise=noise), question)
            assert accuracy == pytest.approx(confidence, abs=0.04), (question, noise)
            cold, hot = (_right(SyntheticJudge(noise=noise, temperature=each), question) for each in (0.5, 2.0))
            assert cold[0] == hot[0] == accuracy
            assert cold[1] > confidence > hot[1]
    for noise in (0.215, 0.39, 0.74):
        assert _right(SyntheticJudge(noise=noise), RIGHT)[0] == pytest.approx(NormalDist().cdf(1 / (2 * noise)), abs=0.03), "as documented"


def test_a_bias_is_added_to_the_logits() -> None:
    def logit(numbers: tuple[float, ...], high: int, low: int) -> float:
        return math.log(numbers[high] / numbers[low])

    settings: tuple[dict[str, Any], ...] = ({}, {"bias": 0.7}, {"bias": 0.7, "temperature": 0.5})
    for question, high, low in ((RIGHT, 0, 1), (CLEAR, 2, 0), (TONE, 0, 1), (TONE, 0, 2)):
        plain, biased, sharp = (logit(distribution(SyntheticJudge(**faults), "item 1", question), high, low) for faults in settings)
        assert biased - plain == pytest.approx(0.7)
        assert sharp == pytest.approx(2 * biased)
    assert logit(distribution(SyntheticJudge(bias=0.7), "truth=0.5 ", CLEAR), 2, 0) == pytest.approx(0.7)


def test_a_flip_takes_another_option_for_the_true_one_as_surely() -> None:
    for question, text in ((RIGHT, "truth=0.9"), (CLEAR, "truth=1"), (BETTER, "truth=0.2\ntruth=0.9")):
        plain = distribution(SyntheticJudge(), text, question)
        answers = [distribution(FaultyJudge(flip=0.05, seed=seed), text, question) for seed in range(2000 * SCALE)]
        flipped = [answer for answer in answers if answer != plain]
        assert len(flipped) / len(answers) == pytest.approx(0.05, abs=0.02), question
        assert all(
            sorted(answer) == pytest.approx(sorted(plain)) and answer.index(max(answer)) != plain.index(max(plain)) for answer in flipped
        )
        assert question is not BETTER or {answer.index(max(answer)) for answer in flipped} == {0}, "the other response, not a tie"


def test_label_mass_and_refusals() -> None:
    judge = SyntheticJudge(label_mass=0.6, refuse=0.1)
    reads = [judge.read(item, asked_of(RIGHT)) for item in ITEMS]
    assert fmean(read.refused for read in reads) == pytest.approx(0.1, abs=0.03)
    assert {(read.refused, round(read.label_mass, 6)) for read in reads} == {(False, 0.6), (True, 0.0006)}
    assert all(sum(read.probabilities) == pytest.approx(1) for read in reads)
    assert not any(SyntheticJudge().read(item, asked_of(RIGHT)).refused for item in ITEMS[:100])


def test_invalid_settings_are_errors() -> None:
    for name, value in (("temperature", 0), ("noise", -1), ("flip", 1.1), ("label_mass", 0), ("refuse", -0.1), ("bias", math.inf)):
        with pytest.raises(ConfigError, match=name):
            SyntheticJudge(**{name: value})  # type: ignore[arg-type]  # the name is one of many
