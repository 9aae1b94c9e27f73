"""What follows from an answer, as a pure function: a vote, an error, or another call."""

from __future__ import annotations

from typing import Any

from judge_tools import MODEL, answer, refused, score

from qreward.codecs.base import WireRequest
from qreward.errors import InvalidResponse, RequestTimeout
from qreward.judge import Judge, Vote
from qreward.judge.calls import JUDGE, JudgeCall, evaluate

SCHEMA = "json_schema"


def call_of(**settings: Any) -> JudgeCall:
    from qreward import QRewardClient

    judge = Judge(QRewardClient(["http://gpu-0.example/v1"]), model=MODEL, **settings)
    (call,) = judge._requests.item({"prompt": "q", "response": "a"}, limits=judge._requests.written, pairs=False).calls
    return call


def said(what: Any) -> Any:
    return JUDGE.decode(answer(what), WireRequest(JUDGE, MODEL, [], {}, None))


def test_each_answer_to_a_call_is_a_vote_an_error_or_another_call() -> None:
    call = call_of(reasks=1, max_tokens=8)
    done = evaluate(call, said(score(7)), SCHEMA)
    assert done.again is None
    assert isinstance(done.value, Vote)
    assert (done.value.score, done.unread) == (0.7, "")

    again = evaluate(call, said("no verdict"), SCHEMA)
    assert again.again is not None
    assert (isinstance(again.value, InvalidResponse), "(15 tokens)" in again.unread) == (True, True)
    assert [message["role"] for message in again.again.question.request(again.again).inputs] == ["user", "assistant", "user"]
    last = evaluate(again.again, said("no verdict"), SCHEMA)
    assert last.again is None
    assert "in 2 answers" in str(last.value)

    cut = evaluate(call, said({"content": "Let me", "finish_reason": "length"}), SCHEMA)
    assert cut.again is not None
    assert cut.again.question.request(cut.again).params["max_tokens"] == 16
    smaller = evaluate(cut.again, refused("max_tokens is too large").error, SCHEMA)
    assert smaller.again is not None
    assert smaller.again.question.request(smaller.again).params["max_tokens"] == 8

    late = evaluate(call, RequestTimeout("late"), SCHEMA)
    assert late.again is None
    assert isinstance(late.value, RequestTimeout)
    assert evaluate(call, said(score(7)), SCHEMA) == done, "nothing is kept between two answers"


def test_a_call_whose_format_was_rejected_is_made_again_in_the_next_one() -> None:
    call = call_of()
    assert evaluate(call, refused("response_format is not supported").error, SCHEMA).again is not None
    assert call.question.request(call).params["response_format"] == {"type": "json_object"}


def test_a_message_counts_the_answers_that_could_not_be_read_in_all_formats() -> None:
    empty = evaluate(call_of(reasks=1), said(""), SCHEMA)
    assert empty.again is not None
    first = evaluate(empty.again, said("no verdict"), "json_object")
    assert first.again is not None
    last = evaluate(first.again, said("no verdict"), "json_object")
    assert [f"in {number} answers" in str(step.value) for number, step in ((2, first), (3, last))] == [True, True]
