"""What follows from an answer, as a pure function: a vote, an error, or another call."""

from __future__ import annotations

from typing import Any

from judge_tools import MODEL, answer, refused, score

from qreward.codecs.base import WireRequest
from qreward.errors import InvalidResponse, RequestTimeout
from qreward.judge import Judge, Vote
from qreward.judge.calls import Again, Done, JudgeCall, evaluate
from qreward.judge.codec import JUDGE

SCHEMA = "json_schema"


def call_of(**settings: Any) -> JudgeCall:
    from qreward import QRewardClient

    judge = Judge(QRewardClient(["http://gpu-0.example/v1"]), model=MODEL, **settings)
    (call,) = judge._builders.get(judge._builders.written, pairs=False).item({"prompt": "q", "response": "a"}).calls
    return call


def said(what: Any) -> Any:
    return JUDGE.decode(answer(what), WireRequest(JUDGE, MODEL, [], {}, None))


def test_each_answer_to_a_call_is_a_vote_an_error_or_another_call() -> None:
    call = call_of(reasks=1, max_tokens=8)
    done = evaluate(call, said(score(7)), SCHEMA)
    assert isinstance(done, Done)
    assert (isinstance(done.value, Vote), done.value.score, done.unread) == (True, 0.7, "")

    again = evaluate(call, said("no verdict"), SCHEMA)
    assert isinstance(again, Again)
    assert (isinstance(again.error, InvalidResponse), "(15 tokens)" in again.unread) == (True, True)
    assert [message["role"] for message in again.call.judge_model.request(again.call).inputs] == ["user", "assistant", "user"]
    last = evaluate(again.call, said("no verdict"), SCHEMA)  # type: ignore[arg-type]
    assert isinstance(last, Done)
    assert "in 2 answers" in str(last.value)

    cut = evaluate(call, said({"content": "Let me", "finish_reason": "length"}), SCHEMA)
    assert isinstance(cut, Again)
    assert cut.call.judge_model.request(cut.call).params["max_tokens"] == 16
    smaller = evaluate(cut.call, refused("max_tokens is too large").error, SCHEMA)  # type: ignore[arg-type]
    assert isinstance(smaller, Again)
    assert smaller.call.judge_model.request(smaller.call).params["max_tokens"] == 8

    late = evaluate(call, RequestTimeout("late"), SCHEMA)
    assert isinstance(late, Done)
    assert isinstance(late.value, RequestTimeout)
    assert evaluate(call, said(score(7)), SCHEMA) == done, "nothing is kept between two answers"


def test_a_call_whose_format_was_rejected_is_made_again_in_the_next_one() -> None:
    call = call_of()
    assert isinstance(evaluate(call, refused("response_format is not supported").error, SCHEMA), Again)
    assert call.judge_model.request(call).params["response_format"] == {"type": "json_object"}
