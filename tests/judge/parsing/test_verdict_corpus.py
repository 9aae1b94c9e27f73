"""Every text of the corpus is read as what is written beside it, or refused."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel
from verdict_tables import FOLLOWED_BY, NOT_ANNOUNCED, PLAIN, PLAIN_CHOICES, REFUSED_CHOICES, REPORTED, RETRACTED, RIVALS, TASK_WORDS
from verdict_texts import REFUSED, made, made_refused, now_refused, written

from qreward.judge.parsing import PreferenceVerdict, ScoreVerdict, Unreadable, YesNoVerdict, read

FIELDS: dict[str, tuple[type[BaseModel], str]] = {
    "score": (ScoreVerdict, "score"),
    "yes_no": (YesNoVerdict, "verdict"),
    "preference": (PreferenceVerdict, "preferred"),
}


def outcome(kind: str, text: str, scale: tuple[float, float] = (0.0, 10.0)) -> str:
    model, field = FIELDS[kind]
    try:
        verdict = read(text, model, scale=scale)
    except Unreadable:
        return REFUSED
    value = getattr(verdict, field)
    return f"{value:g}" if isinstance(value, float) else str(value)


def mismatches(kind: str, cases: Iterable[tuple[str, str]]) -> list[str]:
    """The texts, each after what is expected of it, that come to something else."""
    outcomes = [(expected, outcome(kind, text), text) for expected, text in cases]
    assert outcomes
    return [f"{text!r}: expected {expected}, not {found}" for expected, found, text in outcomes if found != expected]


def refused(texts: Iterable[str]) -> list[tuple[str, str]]:
    return [(REFUSED, text) for text in texts]


def test_each_text_written_by_hand_is_read_as_it_is_marked() -> None:
    found = mismatches("score", [(case.expected, case.text) for stem in ("scores", "objects", "adversarial") for case in written(stem)])
    found += mismatches("yes_no", [(case.expected, case.text) for case in written("yes_no")])
    found += mismatches("preference", [(case.expected, case.text) for case in written("preferences")])
    assert not found


def test_a_verdict_in_a_sentence_that_says_more_is_refused() -> None:
    found = [text for kind in FIELDS for text in mismatches(kind, refused(now_refused(kind)))]
    assert not found


def test_a_score_that_is_taken_back_is_refused() -> None:
    assert not mismatches("score", refused(RETRACTED))


def test_what_follows_a_score_must_say_that_it_is_a_reason() -> None:
    ends = [". ", "\n", "\n\n"]
    assert not mismatches("score", refused(f"Score: 8{end}{words}" for words in (*FOLLOWED_BY, *NOT_ANNOUNCED) for end in ends))
    assert not mismatches("score", refused(f'{{"score": 8}}\n\n{words}' for words in (*FOLLOWED_BY, *NOT_ANNOUNCED)))


def test_a_number_of_the_task_is_no_score() -> None:
    assert not mismatches("score", refused(TASK_WORDS))


def test_a_reported_supposed_or_partial_score_is_refused() -> None:
    assert not mismatches("score", refused(REPORTED))


def test_a_score_beside_another_number_that_may_be_one_is_refused() -> None:
    assert not mismatches("score", refused(RIVALS))


def test_a_clear_score_is_read_whatever_the_working_says() -> None:
    assert not mismatches("score", PLAIN)


def test_choices_are_read_and_refused_by_the_same_rules() -> None:
    found = [text for kind, texts in REFUSED_CHOICES.items() for text in mismatches(kind, refused(texts))]
    found += [text for kind, cases in PLAIN_CHOICES.items() for text in mismatches(kind, cases)]
    assert not found


def test_every_shape_of_a_score_is_read_in_whatever_may_stand_around_it() -> None:
    assert not mismatches("score", [(case.expected, case.text) for case in made()])


def test_what_is_no_score_or_perhaps_anothers_is_refused_in_whatever_stands_around_it() -> None:
    assert not mismatches("score", [(REFUSED, case.text) for case in made_refused()])
