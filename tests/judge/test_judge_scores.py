"""One item: what is asked, what comes back, and what an answer that cannot be read leads to."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from judge_tools import MODEL, JudgeWire, Sent, always, broken, client_of, endpoint, in_turn, judge_over, judging, now, refused, score
from pydantic import BaseModel, Field

from qreward.errors import InvalidResponse, NoEndpoint, RequestError, RequestTimeout, ServerError
from qreward.judge import Judge, Verdict, YesNoVerdict

ASKED = ("What is 6 x 7?", "42")


def judged(wire: JudgeWire, **settings: Any) -> Verdict:
    return judging(wire, lambda judge: judge.score(*ASKED), **settings)


def failed(wire: JudgeWire, kind: type[Exception], timeout: float | None = None, **settings: Any) -> Any:
    async def use(judge: Judge) -> Exception:
        with pytest.raises(kind) as caught:
            await judge.score(*ASKED, timeout=timeout)
        return caught.value

    return judging(wire, use, **settings)


def test_a_score_on_the_scale_becomes_a_reward_in_the_range() -> None:
    verdict = judged(JudgeWire(always(score(7.5))))
    assert verdict.score == 0.75
    assert verdict.text == score(7.5)
    assert verdict.votes[0].model == MODEL
    assert verdict.usage is not None
    assert verdict.usage.total_tokens == 15
    assert not verdict.cached


def test_scale_and_range_say_what_an_answer_is_worth() -> None:
    cases: list[tuple[dict[str, Any], str, float]] = [
        ({"scale": (1, 5)}, "Score: 3", 0.5),
        ({"scale": (1, 5), "range": (-1, 1)}, "Score: 1", -1.0),
        ({"scale": (0, 10), "range": None}, "Score: 7/10", 7.0),
        ({"scale": (0, 10), "range": (1, 0)}, "Score: 10", 0.0),
        ({"verdict": YesNoVerdict}, '{"verdict": "yes"}', 1.0),
        ({"verdict": YesNoVerdict, "range": (-1, 2)}, '{"verdict": "no"}', -1.0),
        ({"verdict": YesNoVerdict, "range": None}, '{"verdict": "yes"}', 1.0),
    ]
    found = [(settings, said, judged(JudgeWire(always(said)), **settings).score) for settings, said, _ in cases]
    assert found == cases


class Graded(BaseModel):
    points: int = Field(ge=1, le=5)
    why: str = ""


class Rubric(BaseModel):
    helpful: int
    honest: bool


class Letter(BaseModel):
    grade: Literal["a", "b"]


def test_a_model_of_the_users_brings_its_own_scale_and_its_one_number_counts() -> None:
    verdict = judged(JudgeWire(always('{"why": "fine", "points": 4}')), verdict=Graded)
    assert verdict.score == 0.75
    assert isinstance(verdict.verdict, Graded)


def test_a_score_function_gives_the_reward_as_it_is_and_none_is_no_verdict() -> None:
    def worth(verdict: Rubric) -> float | None:
        return verdict.helpful / 2 if verdict.honest else None

    wire = JudgeWire(in_turn('{"helpful": 3, "honest": false}', '{"helpful": 3, "honest": true}'))
    assert judged(wire, verdict=Rubric, score=worth).score == 1.5
    assert len(wire.sent) == 2


def test_what_the_user_sets_is_sent_and_nothing_else_but_the_form() -> None:
    wire = JudgeWire(always(score(1)))
    judged(wire, temperature=0, max_tokens=64, extra_body={"top_k": 1})
    assert set(wire.sent[0].params) == {"temperature", "max_tokens", "top_k", "response_format"}
    assert wire.sent[0].params["response_format"]["type"] == "json_schema"


async def test_an_unknown_model_is_refused_before_anything_is_sent() -> None:
    wire = JudgeWire(always(score(1)))
    async with judge_over(wire, endpoint(models=["other-*"])) as judge:
        with pytest.raises(NoEndpoint):
            await judge.score(*ASKED)
        with pytest.raises(NoEndpoint):
            await judge.batch_score([ASKED])
    assert wire.sent == []


# asked again


def test_an_unreadable_answer_is_asked_again_in_the_same_conversation_with_what_is_wrong() -> None:
    wire = JudgeWire(in_turn("It is a fine answer.", score(6)))
    verdict = judged(wire)
    assert (verdict.score, verdict.usage and verdict.usage.total_tokens) == (0.6, 30)
    first, second = wire.sent
    assert second.messages[:-1] == [*first.messages, {"role": "assistant", "content": "It is a fine answer."}]
    assert second.messages[-1]["role"] == "user"
    assert "cannot be read" in second.text
    assert '"score": number, from 0 to 10' in second.text


def test_what_stays_unreadable_is_an_error_that_says_why_and_how_the_answer_began() -> None:
    wire = JudgeWire(always("blah " * 1000))
    error = failed(wire, InvalidResponse, reasks=2)
    assert len(wire.sent) == 3
    assert "in 3 answers" in str(error)
    assert "blah blah" in str(error)
    assert len(str(error)) < 500
    assert [record.outcome for record in error.attempts] == ["unreadable"] * 3
    assert all("15 tokens" in record.detail for record in error.attempts)
    assert (error.model, error.endpoint) == (MODEL, "a")


def test_an_answer_off_the_scale_is_no_answer() -> None:
    wire = JudgeWire(in_turn("Score: 11/10", "Score: 10/10"))
    assert judged(wire).score == 1.0
    assert len(wire.sent) == 2


def test_a_refusal_is_unreadable_and_the_question_is_put_anew() -> None:
    wire = JudgeWire(in_turn({"content": None, "refusal": "I will not judge."}, score(2)))
    assert judged(wire).score == 0.2
    assert [message["role"] for message in wire.sent[1].messages] == ["user"]
    assert "declined" in wire.sent[1].text


def test_an_answer_of_thoughts_alone_is_asked_anew_without_an_empty_message() -> None:
    wire = JudgeWire(in_turn({"content": "", "reasoning_content": "It is a ten. Score: 10"}, score(3)))
    assert judged(wire).score == 0.3
    assert all(message["content"] for message in wire.sent[1].messages)


def test_an_answer_that_was_cut_says_raise_max_tokens_and_the_same_limit_is_tried_once_more_at_most() -> None:
    wire = JudgeWire(always({"content": "Let me think about ", "finish_reason": "length"}))
    error = failed(wire, InvalidResponse, reasks=5, max_tokens=8)
    assert "raise max_tokens" in str(error)
    assert len(wire.sent) == 2


async def test_asking_again_keeps_to_the_time_of_the_item() -> None:
    wire = JudgeWire(in_turn("?", score(5), seconds=3.0))
    async with judge_over(wire) as judge:
        with pytest.raises(RequestTimeout) as caught:
            await judge.score(*ASKED, timeout=5)
        assert caught.value.attempts[0].outcome == "unreadable"
        assert now() == pytest.approx(5.0, abs=0.05)
    assert len(wire.cancelled) == 1


async def test_the_clients_timeout_holds_where_the_call_gives_none() -> None:
    async with client_of(JudgeWire(always(score(1), seconds=50)), timeout=7.0) as client:
        with pytest.raises(RequestTimeout):
            await Judge(client, model=MODEL).score(*ASKED)
        assert now() == pytest.approx(7.0, abs=0.05)


def test_a_failure_of_the_endpoint_is_retried_by_the_client_and_is_in_the_trail_if_it_stays() -> None:
    assert judged(JudgeWire(in_turn(broken(), score(9)))).score == 0.9
    error = failed(JudgeWire(always(broken())), ServerError)  # type: ignore[arg-type]
    assert len(error.attempts) > 1


async def test_a_call_that_is_cancelled_cancels_its_request() -> None:
    wire = JudgeWire(always(score(1), seconds=100))
    async with judge_over(wire) as judge:
        task = asyncio.create_task(judge.score(*ASKED))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(wire.cancelled) == 1


# how servers are asked for JSON


def without(*forms: str, words: str = "Invalid parameter: 'response_format' of type '{form}' is not supported") -> Any:
    """A server that takes all forms but these."""

    async def script(sent: Sent) -> Any:
        await asyncio.sleep(1)
        form = sent.params.get("response_format", {}).get("type", "none")
        return refused(words.format(form=form)) if form in forms else score(5)

    return script


def forms(wire: JudgeWire) -> list[str]:
    return [sent.params.get("response_format", {}).get("type", "none") for sent in wire.sent]


async def test_a_server_without_json_schema_is_asked_for_less_and_remembered_and_no_reask_is_spent() -> None:
    wire = JudgeWire(without("json_schema", "json_object"))
    async with judge_over(wire, reasks=0) as judge:
        assert [(await judge.score(*ASKED)).score for _ in range(2)] == [0.5, 0.5]
    assert forms(wire) == ["json_schema", "json_object", "none", "none"]
    assert '"score": number, from 0 to 10' in wire.sent[-1].text


def test_a_400_that_speaks_of_the_form_in_the_words_of_any_server_is_not_one_of_another_kind() -> None:
    for words in ("guided decoding is off", "json_schema: unknown field", "`response_format`: extra inputs are not permitted"):
        wire = JudgeWire(without("json_schema", words=words))
        assert judged(wire).score == 0.5, words
        assert forms(wire) == ["json_schema", "json_object"], words
    wire = JudgeWire(without("json_schema", words="max_tokens must be positive"))
    failed(wire, RequestError)
    assert forms(wire) == ["json_schema"]


async def test_the_name_of_a_model_is_not_mistaken_for_what_its_server_says() -> None:
    for model, words, asked in (("guided-json_schema-7b", "no", 1), ("n", "no such response_format", 2), ("r", "guided?", 2)):

        async def script(sent: Sent, words: str = words, model: str = model) -> Any:
            return refused(words, model=model) if sent.params.get("response_format", {}).get("type") == "json_schema" else score(5)

        wire = JudgeWire(script)
        async with judge_over(wire, model=model) as judge:
            await asyncio.gather(judge.score(*ASKED), return_exceptions=True)
        assert len(wire.sent) == asked, model


def test_a_form_that_the_user_set_is_the_only_one() -> None:
    for form in ("json_schema", "json_object", "none"):
        taken, not_taken = JudgeWire(always(score(5))), JudgeWire(without(form))
        judged(taken, response_format=form)
        failed(not_taken, RequestError, response_format=form)
        assert forms(taken) == forms(not_taken) == [form]


def test_what_one_model_takes_says_nothing_of_another() -> None:
    async def script(sent: Sent) -> Any:
        await asyncio.sleep(1)
        plain = "response_format" not in sent.params or sent.model == "modern"
        return score(5) if plain else refused("unknown field response_format")

    wire = JudgeWire(script)
    judging(wire, lambda judge: judge.score(*ASKED), model=("modern", "ancient"))
    assert [sent.model for sent in wire.sent if "response_format" not in sent.params] == ["ancient"]
