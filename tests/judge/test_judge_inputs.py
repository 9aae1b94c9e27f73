"""What a judge is given: texts that are no good Unicode, what is not there, and settings that are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from judge_tools import MODEL, JudgeBackend, always, judge_over, prefers, score
from pydantic import BaseModel

from qreward import QRewardClient
from qreward.errors import BadRequest, ConfigError
from qreward.judge import Judge, RewardModelScorer, SyncJudge
from qreward.testing import FakeEndpoint, FakeFleet

LONE = "bad \ud83d"


def client() -> QRewardClient:
    return QRewardClient(["http://a.example/v1"])


def made(**settings: Any) -> Judge:
    return Judge(client(), **{"model": MODEL, **settings})


def refusal(make: Callable[[], object]) -> str:
    """What is said of settings that are refused; nothing if they are not."""
    try:
        make()
    except ConfigError as error:
        return str(error)
    return ""


# lone surrogates


async def test_a_lone_surrogate_is_judged_like_any_other_text() -> None:
    for item in (("q", LONE), (LONE, "r"), ("q", "r", LONE), ([{"role": "user", "content": LONE}], "r")):
        backend = JudgeBackend(always(score(7)))
        async with judge_over(backend) as judge:
            one = await judge.score(*item)
            batch = await judge.batch_score([item, ("q", "ok")])
        assert [one.score, *(verdict.score for verdict in batch.values())] == [0.7, 0.7, 0.7]
        assert LONE in backend.sent[0].text
    async with judge_over(JudgeBackend(always(prefers("tie")))) as judge:
        assert (await judge.batch_compare([("q", "fine", LONE)])).errors == {}


def test_two_different_lone_surrogates_are_two_questions() -> None:
    builder = made()._builders.get((0,), pairs=False)
    asks = [builder.requests({"prompt": "q", "response": text}) for text in ("\ud83d", "\ud83e", "\\ud83d", "\ud83d")]
    keys = [ask[0].key for ask in asks]
    assert keys[0] == keys[3]
    assert len(set(keys)) == 3


def test_a_lone_surrogate_goes_over_the_wire_also_in_a_parameter_and_is_found_in_the_cache(tmp_path: Path) -> None:
    with FakeFleet([FakeEndpoint("a", responder="judge")]) as fleet:
        judge = SyncJudge(
            QRewardClient(fleet.endpoints), model="m", scale=(0, 1), owns_client=True, user=LONE, system=LONE, cache=tmp_path / "kept"
        )
        judged = [judge.score("q", LONE, reference=LONE) for _ in range(2)]
        assert [(verdict.score, verdict.cached) for verdict in judged] == [(1.0, False), (1.0, True)]
        judge.close()


# what is not there

BUILT = {"prompt": lambda fields: [{"role": "user", "content": str(fields)}]}


async def test_a_response_or_one_of_a_pair_that_is_none_is_refused_before_anything_is_sent() -> None:
    for settings in ({}, {"prompt": "{response}"}, {"prompt": "{prompt} {response}"}, BUILT):
        backend = JudgeBackend(always(score(7)))
        async with judge_over(backend, **settings) as judge:
            with pytest.raises(ConfigError, match="'response'"):
                await judge.score("q", None)
            assert backend.sent == []
            batch = await judge.batch_score([("q", None), ("q", "r"), {"prompt": "q", "response": None}])
            assert all(isinstance(error, ConfigError) for error in batch.errors.values())
            assert [result.ok for result in batch] == [False, True, False]
            for missing in ((None, "r"), ("r", None)):
                with pytest.raises(ConfigError, match=r"'first'|'second'"):
                    await judge.compare("q", *missing)
                assert isinstance((await judge.batch_compare([("q", *missing)]))[0].error, ConfigError)
        assert len(backend.sent) == 1


async def test_a_conversation_whose_last_message_was_not_generated_is_no_response() -> None:
    unsaid = [{"role": "user", "content": "q"}, {"role": "assistant", "content": None}]
    calls = [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add"}}]}]
    backend = JudgeBackend(always(score(7)))
    async with judge_over(backend) as judge:
        with pytest.raises(ConfigError, match="last message of 'second' has no content"):
            await judge.compare("q", "a", unsaid)
        batch = await judge.batch_score([("q", unsaid), ("q", calls), ("q", [{"role": "assistant", "content": ""}])])
    assert [result.ok for result in batch] == [False, True, True]
    assert "last message of 'response' has no content" in str(batch[0].error)
    assert len(backend.sent) == 2


async def test_a_task_that_is_none_is_refused_where_the_prompt_shows_it() -> None:
    backend = JudgeBackend(always(score(7)))
    for settings in ({}, {"prompt": "{prompt} {response}"}):
        async with judge_over(backend, **settings) as judge:
            with pytest.raises(ConfigError, match="'prompt'"):
                await judge.score(None, "r")
    assert backend.sent == []
    async with judge_over(backend, prompt="{response}") as judge:
        assert (await judge.score(None, "r")).score == 0.7


# settings


async def awaited(_verdict: BaseModel) -> float:
    return 1.0


WRONG_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"score": 5}, "score"),
    ({"score": awaited}, "score"),
    ({"prompt": "Is it good?"}, "prompt"),
    ({"prompt": 7}, "prompt"),
    ({"pair_prompt": "nothing"}, "pair_prompt"),
    ({"pair_prompt": 5}, "pair_prompt"),
    ({"pair_prompt": "{first} {second.x}"}, "pair_prompt"),
    ({"pair_prompt": [{"role": "user"}]}, "pair_prompt"),
    ({"hedge": "x"}, "hedge"),
    ({"hedge": None}, "hedge"),
    ({"cache": 5}, "cache"),
    ({"cache": ""}, "cache"),
    ({"cache_namespace": 7}, "cache_namespace"),
    ({"samples": 0}, "samples"),
    ({"samples": 101}, "samples"),
    ({"sample": 3}, "'samples'"),
    ({"settle": "best"}, "settle"),
    ({"setle": "mean"}, "'settle'"),
    ({"reasks": -1}, "reasks"),
    ({"reask": 2}, "'reasks'"),
    ({"response_format": "xml"}, "response_format"),
    ({"extra_header": {}}, "'extra_headers'"),
    ({"params": {"temperature": 0}}, "temperature=0"),
    ({"config": {}}, "from_config"),
    ({"model": None}, "model"),
    ({"model": 5}, "model"),
    ({"model": ()}, "model"),
    ({"model": ("a", "a")}, "model"),
    ({"model": ""}, "model"),
    ({"verdict": dict}, "verdict"),
    ({"verdict": 7}, "verdict"),
    ({"scale": (5, 5)}, "scale"),
    ({"scale": (10, 0)}, "scale"),
    ({"scale": (0, math.inf)}, "scale"),
    ({"scale": (0, 10**400)}, "scale"),
    ({"scale": (-1.7e308, 1.7e308)}, "scale"),
    ({"range": (0, math.nan)}, "range"),
    ({"range": (0, 10**400)}, "range"),
    ({"temperature": math.nan}, "temperature"),
    ({"n": 3}, "n"),
    ({"stream": True}, "stream"),
    ({"timeout": 5}, "timeout"),
    ({"messages": []}, "messages"),
    ({"extra_body": {"x": object()}}, "object"),
    ({"extra_headers": {"a": 5}}, "extra_headers"),
    ({"extra_headers": {"a": "b\n"}}, "extra_headers"),
]


def test_a_wrong_setting_is_named_when_the_judge_is_made() -> None:
    wrong = []
    for settings, word in WRONG_SETTINGS:
        said = refusal(lambda settings=settings: made(**settings))  # type: ignore[misc]
        if word not in said or len(said) >= 300:
            wrong.append((settings, said))
    assert wrong == []


def test_parameters_of_servers_are_not_taken_for_slips() -> None:
    for name in ("store", "stop", "top_p", "top_k", "seed", "user", "metadata", "reasoning_effort", "verbosity", "logprobs"):
        made(**{name: 1})


def test_settings_that_are_none_and_settings_among_the_params_are_refused() -> None:
    wrong: list[tuple[Any, str]] = [(config, "config") for config in (None, [1], "judge", 5)]
    names = ("samples", "scale", "score", "owns_client", "verdict")
    wrong += [({"model": "m", "samples": 2, "params": {name: 1}}, name) for name in names]
    said = [(refusal(lambda config=config: Judge.from_config(client(), config)), word) for config, word in wrong]  # type: ignore[misc]
    assert [(words, word) for words, word in said if word not in words] == []


async def test_a_prompt_function_that_gives_no_messages_is_an_error_before_anything_is_sent() -> None:
    cases: list[tuple[Any, Any, str]] = []
    cases += [(built, ConfigError, "prompt function") for built in (None, "text", {"role": "user", "content": "x"}, 5)]
    cases += [(built, BadRequest, "message") for built in ([], [7], [{"content": "x"}])]
    for built, kind, words in cases:
        backend = JudgeBackend(always(score(7)))
        async with judge_over(backend, prompt=lambda _, built=built: built) as judge:
            with pytest.raises(kind, match=words):
                await judge.score("q", "r")
            assert isinstance((await judge.batch_score([("q", "r")]))[0].error, kind), built
        assert backend.sent == []


async def test_an_option_that_a_batch_does_not_have_is_refused() -> None:
    async with judge_over(JudgeBackend(always(score(7)))) as judge:
        for batch in (judge.batch_score, judge.batch_compare, RewardModelScorer(client(), "rm").batch_score):
            with pytest.raises(ConfigError, match="did you mean 'timeout'"):
                await batch([], time_out=5)  # type: ignore[call-arg]
