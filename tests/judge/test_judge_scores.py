"""One item: what is asked, what comes back, what an answer that cannot be read leads to, and what it costs."""

from __future__ import annotations

import asyncio
import pickle
import re
from itertools import product
from typing import Any

import pytest
from judge_tools import (
    MODEL,
    QUESTION,
    JudgeBackend,
    Sent,
    always,
    broken,
    client_of,
    endpoint,
    in_turn,
    judge_over,
    judging,
    now,
    refused,
    score,
)
from pydantic import BaseModel, Field

from qreward.errors import InvalidResponse, NoEndpoint, QRewardError, RequestError, RequestTimeout, ServerError
from qreward.judge import Judge, JudgeConfig, Verdict, YesNoVerdict
from qreward.judge.calls import MOST_TOKENS, log_unknown


def judged(backend: JudgeBackend, **settings: Any) -> Verdict:
    return judging(backend, lambda judge: judge.score(*QUESTION), **settings)


def failed(backend: JudgeBackend, kind: type[Exception], timeout: float | None = None, **settings: Any) -> Any:
    with pytest.raises(kind) as caught:
        judging(backend, lambda judge: judge.score(*QUESTION, timeout=timeout), **settings)
    return caught.value


def test_scale_and_range_say_what_an_answer_is_worth() -> None:
    cases: list[tuple[dict[str, Any], str, float]] = [
        ({}, score(7.5), 0.75),
        ({"scale": (1, 5)}, "Score: 3", 0.5),
        ({"scale": (1, 5), "range": (-1, 1)}, "Score: 1", -1.0),
        ({"scale": (0, 10), "range": None}, "Score: 7/10", 7.0),
        ({"scale": (0, 10), "range": (1, 0)}, "Score: 10", 0.0),
        ({"verdict": YesNoVerdict}, '{"verdict": "yes"}', 1.0),
        ({"verdict": YesNoVerdict, "range": (-1, 2)}, '{"verdict": "no"}', -1.0),
        ({"verdict": YesNoVerdict, "range": None}, '{"verdict": "yes"}', 1.0),
        ({"verdict": Graded}, '{"why": "fine", "points": 4}', 0.75),
    ]
    found = [(settings, said, judged(JudgeBackend(always(said)), **settings).score) for settings, said, _ in cases]
    assert found == cases


class Graded(BaseModel):
    points: int = Field(ge=1, le=5)
    why: str = ""


class Rubric(BaseModel):
    helpful: int
    honest: bool


def test_a_score_function_gives_the_reward_as_it_is_and_none_is_no_verdict() -> None:
    def worth(verdict: Rubric) -> float | None:
        return verdict.helpful / 2 if verdict.honest else None

    backend = JudgeBackend(in_turn('{"helpful": 3, "honest": false}', '{"helpful": 3, "honest": true}'))
    assert judged(backend, verdict=Rubric, score=worth).score == 1.5
    assert len(backend.sent) == 2


def test_what_the_user_sets_is_sent_and_nothing_else_but_the_form() -> None:
    backend = JudgeBackend(always(score(1)))
    judged(backend, temperature=0, max_tokens=64, extra_body={"top_k": 1, "models": ["m"]})
    assert set(backend.sent[0].params) == {"temperature", "max_tokens", "top_k", "models", "response_format"}
    assert backend.sent[0].params["response_format"]["type"] == "json_schema"


async def test_an_unknown_model_is_refused_before_anything_is_sent() -> None:
    backend = JudgeBackend(always(score(1)))
    async with judge_over(backend, endpoint(models=["other-*"])) as judge:
        for use in (judge.score(*QUESTION), judge.batch_score([QUESTION])):
            with pytest.raises(NoEndpoint):
                await use
    assert backend.sent == []


def test_an_unreadable_answer_is_asked_again_in_the_same_conversation_with_what_is_wrong() -> None:
    backend = JudgeBackend(in_turn("It is a fine answer.", score(6)))
    verdict = judged(backend)
    assert (verdict.score, tokens(verdict)) == (0.6, 30)
    first, second = backend.sent
    assert second.messages[:-1] == [*first.messages, {"role": "assistant", "content": "It is a fine answer."}]
    assert second.messages[-1]["role"] == "user"
    assert "cannot be read" in second.text
    assert '"score": number, from 0 to 10' in second.text


def test_what_stays_unreadable_is_an_error_that_says_why_and_how_the_answer_began() -> None:
    backend = JudgeBackend(always("blah " * 1000))
    error = failed(backend, InvalidResponse, reasks=2)
    assert len(backend.sent) == 3
    assert [part for part in ("in 3 answers", "blah blah") if part not in str(error)] == []
    assert len(str(error)) < 500
    assert [(record.outcome, "15 tokens" in record.detail) for record in error.attempts] == [("unreadable", True)] * 3
    assert (error.model, error.endpoint) == (MODEL, "a")


GIVEN_UP = ("abort", "error")
"""What the server gave up is sent again as it was."""
NOT_WHOLE = ("length", "content_filter", "odd", *GIVEN_UP)


def ended(text: str, reason: str | None) -> dict[str, Any]:
    return {"content": text, "finish_reason": reason}


def test_an_answer_that_holds_nothing_to_correct_is_not_sent_back_and_the_question_is_put_anew() -> None:
    part = {"type": "refusal", "refusal": "I will not judge."}
    answers: list[dict[str, Any]] = [
        *({"content": content, "refusal": "I will not judge."} for content in (None, "Score: 1")),
        *({"content": "Score: 1", "refusal": refusal} for refusal in (True, [part], {"why": "no"})),
        {"content": [{"type": "text", "text": "Score: 1"}, part], "refusal": None},
        {"content": "", "reasoning_content": "It is a ten. Score: 10"},
        *(ended("Score: 1", reason) for reason in NOT_WHOLE),
    ]
    for said in answers:
        backend, given_up = JudgeBackend(in_turn(said, score(7))), said.get("finish_reason") in GIVEN_UP
        assert judged(backend, reasks=0 if given_up else 1).score == 0.7, said
        assert [message["role"] for message in backend.sent[1].messages] == ["user"], said
        assert (backend.sent[0].text == backend.sent[1].text) == given_up, said
        assert "refusal" not in said or "declined" in backend.sent[1].text


def test_an_answer_that_was_cut_is_asked_for_with_twice_the_limit_and_without_more_room_once_more_at_most() -> None:
    for settings, limits in (
        ({"max_tokens": 8}, [8, 16, 32, 64, 128, 256]),
        ({"max_completion_tokens": MOST_TOKENS // 2 + 1}, [MOST_TOKENS // 2 + 1, MOST_TOKENS]),
        ({"max_tokens": 2 * MOST_TOKENS}, [2 * MOST_TOKENS] * 2),
        ({}, [None, 16, 32, 64, 128, 256]),  # twice what the server gave
    ):
        backend = JudgeBackend(always(ended("Let me think about ", "length")))
        assert "raise max_tokens" in str(failed(backend, InvalidResponse, reasks=5, **settings))
        assert [sent.params.get(next(iter(settings), "max_tokens")) for sent in backend.sent] == limits
    assert judged(JudgeBackend(in_turn(ended("Let me", "length"), "no verdict", score(7))), reasks=5).score == 0.7, "cut once alone"


def test_room_for_an_answer_is_beside_the_room_for_thinking_and_a_limit_in_the_body_is_raised_too() -> None:
    for settings, limits in (
        ({"max_tokens": 500, "extra_body": {"thinking_token_budget": 2000}}, [500, 2500, 3000]),
        ({"max_tokens": 2500, "thinking": {"type": "enabled", "budget_tokens": 2000}}, [2500, 5000, 10000]),
        ({"max_tokens": 500, "extra_body": {"google": {"thinking_config": {"thinking_budget": 900}}}}, [500, 1400, 2000]),
        ({"extra_body": {"max_tokens": 8}}, [8, 16, 32]),
        ({"max_tokens": 9000, "extra_body": {"thinking_budget": 9000}}, [9000, MOST_TOKENS]),
    ):
        backend = JudgeBackend(always({"content": "", "reasoning_content": "Let me think", "finish_reason": "length"}))
        failed(backend, InvalidResponse, reasks=2, **settings)
        assert [sent.params["max_tokens"] for sent in backend.sent] == limits, settings


def test_the_first_answer_that_was_cut_is_logged_and_none_after_it(caplog: pytest.LogCaptureFixture) -> None:
    for content, said in (("Let me", "limit, so it is not read"), ("", "before the verdict began, .* or limit the thinking of the model")):
        caplog.clear()
        backend = JudgeBackend(always({"content": content, "finish_reason": "length"}))
        assert judging(backend, lambda judge: judge.batch_score([QUESTION, ("p", "r")])).scores(default=None) == [None, None]
        (record,) = caplog.records
        assert re.search(said, record.getMessage())
        assert "'judge-7b'" in record.getMessage()


def test_a_server_that_refuses_the_raised_limit_gets_the_users_limit_again() -> None:
    async def script(sent: Sent) -> Any:
        if sent.params["max_tokens"] > 8:
            return refused("max_tokens is too large")
        return ended("Let me", "length") if len(backend.sent) == 1 else score(7)

    backend = JudgeBackend(script)
    assert judged(backend, max_tokens=8).score == 0.7
    assert [sent.params["max_tokens"] for sent in backend.sent] == [8, 16, 8]


def test_an_answer_that_is_not_whole_is_never_read_whatever_stands_in_it_and_a_whole_one_is() -> None:
    wrong: list[Any] = []
    for text in ("It is right.\nScore: 1", score(1), "Score: 1"):
        for reason, reasks in product(NOT_WHOLE, (0, 1)):
            backend = JudgeBackend(always(ended(text, reason), seconds=0.01))
            message = str(failed(backend, InvalidResponse, reasks=reasks))
            if f"not whole: finish_reason {reason!r}" not in message or (reason not in GIVEN_UP and len(backend.sent) != reasks + 1):
                wrong.append((reason, text, reasks, len(backend.sent), message))
        wholes = ("stop", "tool_calls", "function_call", None, "null", "eos", "end_turn", "STOP", "COMPLETE")
        wrong += [(text, reason) for reason in wholes if judged(JudgeBackend(always(ended(text, reason)))).score != 0.1]
    assert wrong == []


def test_an_ending_that_is_not_known_is_logged_once_and_counts_if_the_settings_say_so(caplog: pytest.LogCaptureFixture) -> None:
    log_unknown.cache_clear()
    odd = JudgeBackend(always(ended("Score: 1", "Odd-1")))
    for _ in range(2):
        failed(odd, InvalidResponse, reasks=1)
    (record,) = caplog.records
    assert "finish_reasons=['odd-1']" in record.getMessage()
    assert judged(odd, finish_reasons=["ODD-1"]).score == 0.1
    failed(JudgeBackend(always(ended("Score: 1", "length"))), InvalidResponse, finish_reasons=["odd-1"])
    assert ["finish_reasons" in record.getMessage() for record in caplog.records] == [True, False]
    assert JudgeConfig(model="m", finish_reasons=["odd-1"]).finish_reasons == ("odd-1",)  # type: ignore[arg-type]


async def test_asking_again_keeps_to_the_time_of_the_item() -> None:
    cases: list[tuple[float, Any]] = [(60.0, {"timeout": 5}), (5.0, {})]
    for of_client, of_call in cases:
        backend = JudgeBackend(in_turn("?", score(5), seconds=3.0))
        async with client_of(backend, timeout=of_client) as client:
            began = now()
            with pytest.raises(RequestTimeout) as caught:
                await Judge(client, model=MODEL).score(*QUESTION, **of_call)
            assert caught.value.attempts[0].outcome == "unreadable"
            assert now() - began == pytest.approx(5.0, abs=0.05)
        assert len(backend.cancelled) == 1


def test_a_failure_of_the_endpoint_is_retried_by_the_client_and_is_in_the_trail_if_it_stays() -> None:
    assert judged(JudgeBackend(in_turn(broken(), score(9)))).score == 0.9
    assert len(failed(JudgeBackend(in_turn(broken())), ServerError).attempts) > 1


def without(*forms: str, words: str = "Invalid parameter: 'response_format' of type '{form}' is not supported", model: str = MODEL) -> Any:
    """A server that takes all forms but these."""

    async def script(sent: Sent) -> Any:
        await asyncio.sleep(1)
        form = sent.params.get("response_format", {}).get("type", "none")
        return refused(words.format(form=form), model=model) if form in forms else score(5)

    return script


def forms(backend: JudgeBackend) -> list[str]:
    return [sent.params.get("response_format", {}).get("type", "none") for sent in backend.sent]


async def test_a_server_without_json_schema_is_asked_for_less_and_remembered_and_no_reask_is_spent() -> None:
    backend = JudgeBackend(without("json_schema", "json_object"))
    async with judge_over(backend, reasks=0) as judge:
        assert [(await judge.score(*QUESTION)).score for _ in range(2)] == [0.5, 0.5]
    assert forms(backend) == ["json_schema", "json_object", "none", "none"]
    assert '"score": number, from 0 to 10' in backend.sent[-1].text
    for form in ("json_schema", "json_object", "none"):  # set by the user: the only one
        taken, not_taken = JudgeBackend(always(score(5))), JudgeBackend(without(form))
        await scored(taken, response_format=form)
        with pytest.raises(RequestError):
            await scored(not_taken, response_format=form)
        assert forms(taken) == forms(not_taken) == [form]


async def test_a_server_that_answers_a_form_with_nothing_is_asked_for_less_unless_it_has_written_in_this_form() -> None:
    def without_words(first: int) -> Any:
        async def script(sent: Sent) -> Any:
            empty = "response_format" in sent.params and len(backend.sent) > first
            return {"content": "  "} if empty else score(5)

        return script

    backend = JudgeBackend(without_words(0))
    async with judge_over(backend, reasks=0) as judge:
        assert [(await judge.score(*QUESTION)).score for _ in range(2)] == [0.5, 0.5]
    assert forms(backend) == ["json_schema", "json_object", "none", "none"]
    backend = JudgeBackend(without_words(1))
    async with judge_over(backend, reasks=0) as judge:
        assert (await judge.score(*QUESTION)).score == 0.5
        with pytest.raises(InvalidResponse, match="empty"):
            await judge.score("q", "r")
    assert forms(backend) == ["json_schema", "json_schema"]
    for said in ({"content": "", "refusal": "No."}, {"content": "", "finish_reason": "length"}):
        backend = JudgeBackend(always(said))
        with pytest.raises(InvalidResponse):
            await scored(backend, reasks=0)
        assert forms(backend) == ["json_schema"]


async def scored(backend: JudgeBackend, **settings: Any) -> Verdict:
    async with judge_over(backend, **settings) as judge:
        return await judge.score(*QUESTION)


def test_a_400_that_speaks_of_the_form_in_the_words_of_any_server_is_not_one_of_another_kind() -> None:
    """Nor is the name of a model mistaken for what its server says."""
    cases = [(MODEL, words, 2) for words in ("guided decoding is off", "json_schema: unknown field", "`response_format`: extra inputs")]
    cases += [(MODEL, "max_tokens must be positive", 1), ("guided-json_schema-7b", "no", 1), ("r", "guided?", 2)]
    for model, words, asked in cases:
        backend = JudgeBackend(without("json_schema", words=words, model=model))
        if asked == 1:
            failed(backend, RequestError, model=model)
        else:
            assert judged(backend, model=model).score == 0.5, words
        assert forms(backend) == ["json_schema", "json_object"][:asked], words


def test_what_one_model_takes_says_nothing_of_another() -> None:
    async def script(sent: Sent) -> Any:
        plain = "response_format" not in sent.params or sent.model == "modern"
        return score(5) if plain else refused("unknown field response_format")

    backend = JudgeBackend(script)
    judged(backend, model=("modern", "ancient"))
    assert [sent.model for sent in backend.sent if "response_format" not in sent.params] == ["ancient"]


def tokens(thing: Any) -> int | None:
    return None if thing.usage is None else thing.usage.total_tokens


async def error_of(judge: Judge, **how: Any) -> QRewardError:
    with pytest.raises(QRewardError) as caught:
        await judge.score(*QUESTION, **how)
    return caught.value


async def slow_again(sent: Sent) -> Any:
    """No verdict after a second, and nothing at all when asked again."""
    await asyncio.sleep(1 if len(sent.messages) == 1 else 3600)
    return "no verdict"


def test_the_error_of_a_judgement_has_the_tokens_of_all_answers_that_came() -> None:
    """Each answer has 15 tokens."""
    unreadable = always("no verdict")
    cases: dict[str, tuple[Any, dict[str, Any], dict[str, Any], type[QRewardError], int | None]] = {
        "asked again": (unreadable, {}, {}, InvalidResponse, 30),
        "asked once": (unreadable, {"reasks": 0}, {}, InvalidResponse, 15),
        "then nothing came": (slow_again, {}, {"timeout": 5}, RequestTimeout, 15),
        "three samples": (unreadable, {"samples": 3, "reasks": 0}, {}, InvalidResponse, 30),  # the third is not waited for
        "one of two models": (unreadable, {"model": ("a", "b"), "reasks": 0}, {}, InvalidResponse, 15),
        "no answer at all": (in_turn(broken(400)), {}, {"timeout": 5}, QRewardError, None),
    }
    found = {}
    for name, (script, settings, how, kind, _) in cases.items():

        async def use(judge: Judge, how: Any = how, kind: Any = kind) -> list[int | None]:
            error = await error_of(judge, **how)
            assert isinstance(error, kind)
            (result,) = await judge.batch_score([QUESTION], **how)
            return [tokens(error), tokens(pickle.loads(pickle.dumps(error))), tokens(result.error), tokens(result)]

        found[name] = judging(JudgeBackend(script), use, **settings)
    assert found == {name: [case[-1]] * 4 for name, case in cases.items()}
