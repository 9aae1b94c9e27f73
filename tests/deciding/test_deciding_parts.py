"""Decisions in parts, as pure functions: how a request is divided, when it is divided after a failure, and how parts are joined."""

from __future__ import annotations

from deciding_tools import MODEL, questions

from qreward import AttemptRecord, BadRequest, InvalidResponse, QRewardError, RateLimited, Usage
from qreward.codecs.base import WireRequest
from qreward.codecs.decisions import DecisionCodec, DecisionInput, DecisionReply
from qreward.deciding import divided, joined, smaller


def call_of(count: int) -> WireRequest:
    return WireRequest(DecisionCodec(), MODEL, DecisionInput("text", tuple(questions(count))), {"seed": 1}, {"x-a": "b"}, "group")


def sizes(calls: list[WireRequest]) -> list[int]:
    return [len(call.inputs.questions) for call in calls]


def reply_of(call: WireRequest, usage: Usage | None = None) -> DecisionReply:
    asked = call.inputs.questions
    return DecisionReply(asked, [((0.5, 0.5), None, None)] * len(asked), MODEL, usage)


def test_parts_have_about_the_same_size_and_hold_all_questions_in_their_order() -> None:
    for count in range(1, 70):
        for most in range(1, 70):
            calls = divided(call_of(count), most)
            assert [question for call in calls for question in call.inputs.questions] == questions(count), (count, most)
            assert max(sizes(calls)) <= most, (count, most)
            assert max(sizes(calls)) - min(sizes(calls)) <= 1, (count, most)
            assert len(calls) == -(-count // most), (count, most)


def test_a_request_that_fits_is_not_copied_and_a_part_keeps_everything_but_its_questions() -> None:
    whole = call_of(4)
    assert divided(whole, 4)[0] is whole
    for part in divided(whole, 3):
        kept = [(each.codec, each.model, each.inputs.input, each.params, each.headers, each.group) for each in (whole, part)]
        assert kept[0] == kept[1]


def test_only_a_request_that_is_wrong_itself_is_divided() -> None:
    refused, unsuited = AttemptRecord("a", "refused", 0.1, 400), AttemptRecord("a", "unsuitable", 0.1, 400)
    cases: list[tuple[str, int, QRewardError, list[AttemptRecord], int, list[int]]] = [
        ("a refused question", 5, BadRequest("no", status_code=400), [refused], 400, [2, 3]),
        ("of two", 2, BadRequest("no", status_code=422), [refused], 400, [1, 1]),
        ("too many questions for every endpoint, known before it was sent", 9, BadRequest("64"), [unsuited], 400, [4, 5]),
        ("a smaller limit is known now", 9, BadRequest("1"), [unsuited], 3, [3, 3, 3]),
        ("only one question is left", 1, BadRequest("no", status_code=400), [refused], 400, []),
        ("the input is too long, whatever the questions", 5, BadRequest("long", status_code=400), [unsuited], 400, []),
        ("a wrong path", 5, BadRequest("no", status_code=404), [unsuited], 400, []),
        ("another kind of failure", 5, RateLimited("busy", status_code=429), [refused], 400, []),
    ]
    wrong = []
    for name, count, error, attempts, most, expected in cases:
        if (found := sizes(smaller(call_of(count), error, attempts, most))) != expected:
            wrong.append(f"{name}: {found} instead of {expected}")
    assert not wrong, "\n".join(wrong)


def test_joined_parts_have_the_answers_of_all_and_the_sum_of_their_usage() -> None:
    calls = divided(call_of(5), 2)
    joint = joined(calls, [reply_of(call, Usage(10, 1, 11)) for call in calls])
    assert isinstance(joint, DecisionReply)
    assert [answer.question for answer in joint.answers] == questions(5)
    assert (joint.model, joint.usage) == (MODEL, Usage(30, 3, 33))


def test_the_questions_of_a_part_that_failed_have_its_error_and_if_all_failed_there_is_no_decision() -> None:
    calls = divided(call_of(4), 2)
    broken = InvalidResponse("broken")
    joint = joined(calls, [broken, reply_of(calls[1])])
    assert isinstance(joint, DecisionReply)
    assert joint.build().errors == {0: broken, 1: broken}
    assert joined(calls, [broken, BadRequest("bad")]) is broken
