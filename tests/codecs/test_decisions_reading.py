"""Reading answers: whatever a body holds, it is a distribution for each question, an error for it, or no response at all."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import json
import math
import operator
import pickle
from typing import Any

import pytest
from decision_tools import ALL, CLEAR, RIGHT, SCORING, TONE, TYPED, answer, call, completion, in_groups, rest
from hypothesis import given
from hypothesis import strategies as st

from qreward.codecs.base import EmbeddedError, Malformed, Unfinished
from qreward.codecs.decisions import CHATS, OPENAI, SGLANG, SYSTEMONE, SYSTEMONE_OF_SGLANG, VLLM, DecisionReply, Dialect
from qreward.decisions import MIN_LABEL_MASS, Choice, DecisionAnswer, Question, YesNo
from qreward.errors import InvalidResponse

Numbers = tuple[float, ...]
WRONG: tuple[Any, ...] = (None, "0.5", True, [0.5], {}, -0.1, 1.1, math.nan, math.inf, -math.inf, 10**400, 2)


def read(dialect: Dialect, questions: tuple[Question, ...], document: Any) -> DecisionReply:
    return dialect.decode(json.dumps(document).encode(), call(dialect, questions))


def why(dialect: Dialect, question: Question, document: Any) -> str:
    """Why the answer to the first of two questions is none; the second question, which is right, must keep its answer."""
    if dialect.most_questions == 1:
        error = read(dialect, (question,), document).answers[0].error
    else:
        first, second = read(dialect, (question, RIGHT), document).answers
        assert second.probability == 0.25
        error = first.error
    assert error is None or isinstance(error, InvalidResponse)
    return "" if error is None else str(error)


def two(dialect: Dialect, question: Question, numbers: Numbers) -> dict[str, Any]:
    """The answers to a question and to RIGHT."""
    return answer(dialect, (question, RIGHT), (numbers, (0.25, 0.75)))


def first(document: dict[str, Any]) -> dict[str, Any]:
    answers: Any = document.get("answers", document.get("data"))
    found: dict[str, Any] = answers["0"] if isinstance(answers, dict) else answers[0]
    return found


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything in a document."""
    inner: Any = document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    return [path, *(deeper for key, each in inner for deeper in places(each, (*path, key)))]


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    document = copy.copy(document)
    document[path[0]] = changed(document[path[0]], path[1:], value)
    return document


def test_a_number_that_is_no_probability_is_an_error_of_that_answer_alone() -> None:
    faults = []
    asked: tuple[Question, ...] = (YesNo("Another."), TONE)
    for dialect, question in itertools.product(ALL, asked):
        if dialect is CHATS[0] or type(question) not in dialect.types:
            continue
        document = two(dialect, question, (0.375, 0.625))
        path = next(path for path in places(document) if functools.reduce(operator.getitem, path, document) == 0.375)
        for wrong in WRONG:
            if "is not valid" not in why(dialect, question, changed(document, path, wrong)):
                faults.append(f"{dialect!r} {question}: {wrong!r} was believed")
    assert not faults, "\n".join(faults)


def test_probabilities_are_normalised_if_they_are_rounded_and_an_error_if_they_are_not() -> None:
    faults = []
    cases = {(0.33, 0.33, 0.33): True, (0.34, 0.34, 0.34): True, (0.3, 0.3, 0.3): False, (0.35, 0.35, 0.35): False}
    for dialect in (OPENAI, VLLM, SGLANG, SYSTEMONE, SYSTEMONE_OF_SGLANG):
        for numbers, ok in cases.items():
            document = two(dialect, CLEAR, numbers)
            error = why(dialect, CLEAR, document)
            found = read(dialect, (CLEAR, RIGHT), document).answers[0]
            if ok and (not found.ok or list(found.probabilities.values()) != pytest.approx([1 / 3] * 3)):
                faults.append(f"{dialect!r} did not normalise {numbers}: {error}")
            if not ok and "the sum of its probabilities is" not in error:
                faults.append(f"{dialect!r} believed {numbers}: {error}")
    assert not faults, "\n".join(faults)


def test_rounding_of_floats_is_forgiven() -> None:
    assert read(OPENAI, (RIGHT,), answer(OPENAI, (RIGHT,), [(1.0000001, 0.0)])).answers[0].probability == 1.0
    assert read(SGLANG, (RIGHT,), answer(SGLANG, (RIGHT,), [(0.5, 0.5)], 1.0004)).answers[0].label_mass == 1.0


def test_a_label_mass_that_is_none_is_not_taken_for_one() -> None:
    for wrong in ("0.5", True, -0.1, 1.1, math.nan, 10**400):
        for dialect in (SGLANG, SYSTEMONE, SYSTEMONE_OF_SGLANG):
            document = two(dialect, TONE, (0.5, 0.5))
            row = document["diagnostics"]["0"] if dialect is SYSTEMONE else first(document)
            row["x_label_mass" if dialect is SYSTEMONE_OF_SGLANG else "label_mass"] = wrong
            assert "is not valid" in why(dialect, TONE, document), (dialect, wrong)
    document = two(SYSTEMONE, TONE, (0.5, 0.5))
    assert "the diagnostics have no object for it" in why(SYSTEMONE, TONE, {**document, "diagnostics": {"1": document["diagnostics"]["1"]}})
    unsaid = read(SYSTEMONE, (TONE, RIGHT), {**document, "diagnostics": document["diagnostics"] | {"0": None}}).answers
    assert [each.label_mass for each in unsaid] == [None, 1.0]
    with pytest.raises(Malformed, match="diagnostics"):
        read(SYSTEMONE, (TONE, RIGHT), {**document, "diagnostics": []})
    document = two(SYSTEMONE_OF_SGLANG, TONE, (0.5, 0.5))
    del first(document)["x_label_mass"]
    assert read(SYSTEMONE_OF_SGLANG, (TONE, RIGHT), document).answers[0].label_mass is None


def test_the_answer_to_another_question_is_not_taken() -> None:
    changes: list[tuple[Dialect, Question, dict[str, Any], str]] = [
        (OPENAI, TONE, {"name": "clear"}, "has the name 'clear' of another question"),
        (OPENAI, TYPED, {"name": "tone"}, "has the name 'tone' of another question"),
        (OPENAI, TONE, {"type": "score"}, "has the type 'score'"),
        (OPENAI, TONE, {"type": None}, "has the type None"),
        (OPENAI, TONE, {"confidence": None}, "a probability is missing"),
        (OPENAI, TONE, {"probabilities": {"calm": 0.5, "rude": 0.5}}, "no list of probabilities"),
        (OPENAI, TONE, {"probabilities": [{"value": "calm", "probability": 1.0}]}, "not those of the options"),
        (OPENAI, TONE, {"probabilities": [{"value": each, "probability": 0.5} for each in ("calm", "Rude")]}, "not those of the options"),
        (OPENAI, TONE, {"probabilities": [{"value": each, "probability": 0.5} for each in ("calm", "calm")]}, "not those of the options"),
        (OPENAI, TONE, {"probabilities": [{"value": each, "probability": 0.5} for each in ("calm", ["rude"])]}, "not those of the options"),
        (OPENAI, TONE, {"probabilities": [1, 2]}, "a JSON int instead of an object"),
        (SGLANG, TONE, {"type": "yes_no"}, "has the type 'yes_no'"),
        (SGLANG, TONE, {"probabilities": {"calm": 1.0}}, "not those of the options"),
        (SGLANG, TONE, {"probabilities": {"calm": 0.5, "rude": 0.5, "other": 0.0}}, "not those of the options"),
        (SGLANG, TONE, {"probabilities": [0.5, 0.5]}, "not those of the options"),
        (SYSTEMONE, TONE, {"type": "noul"}, "has the type 'noul'"),
        (SYSTEMONE, TONE, {"probabilities": {"A": 0.5, "B": 0.5}}, "not those of the options"),
    ]
    for dialect, question, change, words in changes:
        document = two(dialect, question, (1 / len(question.options),) * len(question.options))
        first(document).update(change)
        assert words in why(dialect, question, document), (dialect, change)
    rows: tuple[Any, ...] = (None, 1, "yes", [])
    for row in rows:
        document = two(OPENAI, TONE, (0.5, 0.5))
        document["answers"][0] = row
        assert "instead of an object" in why(OPENAI, TONE, document)


def test_levels_in_another_order_are_not_taken_for_ours() -> None:
    document = two(OPENAI, CLEAR, (0.1, 0.2, 0.7))
    rows = first(document)["probabilities"]
    rows.reverse()
    assert list(read(OPENAI, (CLEAR, RIGHT), document).answers[0].probabilities.values()) == pytest.approx([0.1, 0.2, 0.7])
    for row, label in zip(rows, ("bad", "fair", "good"), strict=True):
        row["label"] = label
    assert "its levels are not those of the question" in why(OPENAI, CLEAR, document)


def test_values_of_a_choice_are_told_apart_by_their_type() -> None:
    document = two(OPENAI, TYPED, (0.0625, 0.5, 0.1875, 0.25))
    first(document)["probabilities"].reverse()
    found = read(OPENAI, (TYPED, RIGHT), document).answers[0].probabilities
    assert [(type(key), key, number) for key, number in found.items()] == [
        (bool, True, 0.0625), (str, "true", 0.5), (bool, False, 0.1875), (str, "True", 0.25),
    ]  # fmt: skip
    for row in first(document)["probabilities"]:
        row["value"] = str(row["value"])
    assert "not those of the options" in why(OPENAI, TYPED, document)


def test_a_refusal_is_the_error_of_its_question_and_no_fault_of_the_server() -> None:
    document = two(OPENAI, TONE, (0.5, 0.5))
    document["answers"][0] = {"type": "refusal", "name": "tone"}
    assert why(OPENAI, TONE, document) == "no answer to 'tone': the model declined to answer"
    alone = read(OPENAI, (TONE,), {"answers": [{"type": "refusal"}]})
    error = pickle.loads(pickle.dumps(alone.answers[0].error))
    assert (str(error), error.model) == ("no answer to 'tone': the model declined to answer", "judge-7b")
    for choice in ({"finish_reason": "content_filter"}, {"message": {"refusal": "I cannot judge this."}}):
        refused = read(CHATS[0], (RIGHT,), completion([("yes", 0.5), ("no", 0.5)], **choice))
        assert "the model declined to answer" in str(refused.answers[0].error)


def test_a_body_without_an_answer_to_each_question_is_malformed() -> None:
    faults = []
    for dialect in ALL:
        questions = in_groups(dialect)[0]
        whole = answer(dialect, questions, [(1 / len(question.options),) * len(question.options) for question in questions])
        key = next(name for name in ("answers", "data", "choices") if name in whole)
        rows = whole[key]
        if isinstance(rows, dict):
            others: list[Any] = [{**rows, "9": rows["0"]}, {f"q{place}": row for place, row in rows.items()}]
            others.append({place: row for place, row in rows.items() if place != "0"})
        else:  # of several choices of a chat the first counts
            others = [rows[1:], "yes", *([] if dialect is CHATS[0] else [[*rows, rows[0]]])]
        bodies: list[Any] = [{**whole, key: other} for other in (*others, None, 1, [], {}, [None] * len(rows))]
        for body in (*(json.dumps(each).encode() for each in bodies), b"", b"[]", b"null", b'"x"', b"{", b"<html>", b"{}"):
            with contextlib.suppress(Malformed):
                dialect.decode(body, call(dialect, questions))
                faults.append(f"{dialect!r} read {body!r}")
    assert not faults, "\n".join(faults)


def test_a_body_in_which_no_answer_is_valid_is_malformed() -> None:
    with pytest.raises(Malformed, match="no valid answer to any question: a probability is 7"):
        read(OPENAI, (RIGHT, YesNo("Else.")), {"answers": [{"type": "predicate", "probability": 7}] * 2})


def test_scores_of_items_in_another_order_are_malformed() -> None:
    whole = answer(SCORING, (RIGHT, YesNo("Else.")), [(0.5, 0.5), (0.2, 0.8)])
    whole["data"].reverse()
    with pytest.raises(Malformed, match="no list of scores of 2 items"):
        read(SCORING, (RIGHT, YesNo("Else.")), whole)


# chat


def chat(question: Question, tokens: list[tuple[str, float]], **choice: Any) -> DecisionAnswer:
    return read(CHATS[0], (question,), completion(tokens, **choice)).answers[0]


def test_tokens_that_spell_one_label_add_up() -> None:
    found = chat(RIGHT, [("Yes", 0.3), (" yes", 0.2), ("YES", 0.05), ("▁yes", 0.05), ("No", 0.1), ("no", 0.1), *rest(0.2)])
    assert found.probability == pytest.approx(0.75)
    assert found.label_mass == pytest.approx(0.8)
    assert found.confidence == pytest.approx(0.6)


def test_a_word_that_is_like_a_label_but_for_its_case_and_blanks_is_none() -> None:
    for word in ("a", " a", "A\n", "  A", "\tA", "A:"):
        found = chat(TONE, [("A", 0.2), ("B", 0.4), (word, 0.35), *rest(0.05)])
        assert found.probabilities == pytest.approx({"calm": 1 / 3, "rude": 2 / 3}), word
        assert found.label_mass == pytest.approx(0.6), word


def test_an_answer_below_the_minimum_label_mass_is_an_error_in_every_dialect_and_never_a_number() -> None:
    for dialect in ALL:
        if dialect.name in ("openai", "generative_scoring"):  # their servers do not tell it
            continue
        document = answer(dialect, (TONE,), [(0.875, 0.125)], 0.4)
        for least, wanted in ((MIN_LABEL_MASS, False), (0.45, False), (0.35, True), (0.0, True)):
            asked = call(dialect, (TONE,))
            asked.inputs = asked.inputs if least == MIN_LABEL_MASS else asked.inputs._replace(min_label_mass=least)
            (found,) = dialect.decode(json.dumps(document).encode(), asked).answers
            assert found.ok is wanted, (dialect, least)
            assert wanted or f"have a probability of 0.4, which is less than min_label_mass={least:g}" in str(found.error), (dialect, least)
    both = read(SGLANG, (TONE, RIGHT), answer(SGLANG, (TONE, RIGHT), [(0.5, 0.5), (0.25, 0.75)], 0.6))
    assert [found.ok for found in both.answers] == [True, True]


def test_labels_that_are_missing_count_by_their_share_of_the_label_mass() -> None:
    """A server said [1.0, 0.0] at a label mass of 0.0102, where the exact probabilities of the labels' tokens were [0.049, 0.951]."""
    small = [(f"x{at}", 1e-5) for at in range(18)]
    cases: list[tuple[str, Question, list[tuple[str, float]], bool]] = [
        ("one label may be four times as probable as the one that is told", TONE, [("A", 0.0102), *rest(0.9)], False),
        ("it is at most a thousandth", TONE, [("A", 0.0102), ("The", 0.98), *small], True),
        ("one label may have a thirtieth", TONE, [("A", 0.6), ("The", 0.36), ("It", 0.02), ("B:", 0.02)], True),
        ("two labels may have a thirtieth each", CLEAR, [("0", 0.6), ("The", 0.3), ("It", 0.02), ("B:", 0.02)], False),
    ]
    for name, question, tokens, ok in cases:
        asked = call(CHATS[0], (question,))
        asked.inputs = asked.inputs._replace(min_label_mass=0.0)
        (found,) = CHATS[0].decode(json.dumps(completion(tokens)).encode(), asked).answers
        assert found.ok is ok, name
        assert ok or "the labels that are missing may have" in str(found.error), name


def test_a_label_that_is_not_among_twenty_tokens_has_probability_zero() -> None:
    found = chat(TONE, [("A", 0.8), *rest(0.19)])
    assert found.probabilities == {"calm": 1.0, "rude": 0.0}
    assert found.label_mass == pytest.approx(0.8)


def test_a_label_that_may_be_beyond_a_short_list_of_tokens_is_an_error() -> None:
    for tokens in ([("Yes", 0.6)], [("Yes", 0.5), ("Maybe", 0.2), ("Well", 0.1)]):
        assert "the server returned too few tokens" in str(chat(RIGHT, tokens).error), tokens
    assert chat(RIGHT, [("Yes", 0.97)]).probability == 1.0


def test_a_first_token_that_is_no_label_is_an_error() -> None:
    for tokens in ([("<think>", 0.99)], [("I", 0.9), ("As", 0.05)], [("", 1.0)], []):
        assert "the model's first token is none of the labels" in str(chat(RIGHT, tokens).error), tokens


def test_the_chosen_token_counts_if_it_is_not_among_the_most_probable_ones() -> None:
    document = completion([("yes", 0.6), ("no", 0.3)])
    first_token = document["choices"][0]["logprobs"]["content"][0]
    first_token |= {"token": " yes", "logprob": math.log(0.1)}
    assert read(CHATS[0], (RIGHT,), document).answers[0].probability == pytest.approx(0.7)


def test_the_chosen_token_is_no_bound_on_the_labels_that_are_missing() -> None:
    ten = Choice("Which?", choices=[f"option {letter}" for letter in "abcdefghij"])
    for chosen, number in (("A", 0.3), ("F", 0.05), ("The", 1e-4)):
        document = completion([("A", 0.3), ("B", 0.2), ("C", 0.1), ("D", 0.1)])
        document["choices"][0]["logprobs"]["content"][0] |= {"token": chosen, "logprob": math.log(number)}
        assert "too few tokens" in str(read(CHATS[0], (ten,), document).answers[0].error), chosen


def test_log_probabilities_that_are_none_are_an_error() -> None:
    other = {"tokens": ["yes"], "token_logprobs": [-0.1]}
    cases: tuple[Any, ...] = (None, {}, [], {"content": None}, {"content": []}, {"content": "yes"}, other)
    for logprobs in cases:
        error = read(CHATS[0], (RIGHT,), completion([], logprobs=logprobs)).answers[0].error
        assert "the server returned no log probabilities" in str(error), logprobs
    for wrong in (None, "x", True, 0.1, math.nan, math.inf, [1]):
        top = [{"token": "yes", "logprob": wrong}, {"token": "no", "logprob": -0.1}]
        with pytest.raises(Malformed, match="no valid log probability"):
            read(CHATS[0], (RIGHT,), completion([], logprobs={"content": [{"token": "no", "logprob": -0.1, "top_logprobs": top}]}))


def test_more_probability_than_one_is_an_error() -> None:
    with pytest.raises(Malformed, match=r"a probability is 1\.5"):
        chat(RIGHT, [("yes", 0.9), ("Yes", 0.6)])


def test_a_chat_that_was_given_up_is_unfinished() -> None:
    with pytest.raises(Unfinished):
        chat(RIGHT, [("yes", 0.5), ("no", 0.5)], finish_reason="abort")
    with pytest.raises(EmbeddedError):
        chat(RIGHT, [], error={"message": "overloaded"})


# properties

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.sampled_from([10**400, -(10**400), 2**64]),
    st.floats(),
    st.floats(0, 1),
    st.sampled_from([[], {}, [None], [{}], {"0": None}]),
    st.sampled_from(["", "yes", "no", "calm", "rude", "A", "0", "refusal", "predicate", "choice", "score", "noul", "yes_no", "\ud800"]),
)
DISTRIBUTIONS = st.lists(st.floats(1e-6, 1), min_size=4, max_size=4)


def valid_or_refused(dialect: Dialect, questions: tuple[Question, ...], document: Any) -> DecisionReply | None:
    try:
        reply = read(dialect, questions, document)
    except (Malformed, EmbeddedError, Unfinished):
        return None
    assert [found.question for found in reply.answers] == list(questions)
    for found in reply.answers:
        if found.error is not None:
            assert isinstance(found.error, InvalidResponse)
            continue
        numbers = list(found.probabilities.values())
        assert all(type(number) is float and 0.0 <= number <= 1.0 for number in numbers)
        assert math.fsum(numbers) == pytest.approx(1.0, abs=1e-9)
        assert 0.0 <= found.confidence <= 1.0
        assert found.label_mass is None or 0.0 <= found.label_mass <= 1.0
    assert reply.usage is None or reply.build().usage is reply.usage
    return reply


def normalised(raw: list[float], question: Question) -> tuple[float, ...]:
    taken = raw[: len(question.options)]
    return tuple(number / math.fsum(taken) for number in taken)


@given(st.sampled_from(ALL), DISTRIBUTIONS, st.floats(0.51, 1), LEAVES, st.data())
def test_an_answer_with_one_thing_wrong_is_right_or_an_error(
    dialect: Dialect, raw: list[float], mass: float, wrong: Any, data: st.DataObject
) -> None:
    """The distribution of a question is that of the server, or one that the changed number itself makes; the others keep theirs."""
    questions = data.draw(st.sampled_from(in_groups(dialect)))
    numbers = [normalised(raw, question) for question in questions]
    whole = answer(dialect, questions, numbers, mass)
    right = valid_or_refused(dialect, questions, whole)
    assert right is not None
    for question, found, wanted in zip(questions, right.answers, numbers, strict=True):
        assert list(found.probabilities.values()) == pytest.approx(list(wanted), abs=1e-6), question
    path = data.draw(st.sampled_from(places(whole)))
    reply = valid_or_refused(dialect, questions, changed(whole, path, wrong))
    if reply is None:
        return
    places_of = {"0": 0, "1": 1, "2": 2, "3": 3}
    at = next((places_of.get(part, part) for part in path[1:2] if path[0] in ("answers", "data", "choices", "diagnostics")), None)
    for place, (found, before) in enumerate(zip(reply.answers, right.answers, strict=True)):
        if place != at:
            assert found.probabilities == before.probabilities
