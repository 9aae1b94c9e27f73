"""What a judge is given: texts that are no good Unicode, what is not there, and settings that are wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from judge_tools import MODEL, JudgeBackend, always, judge_over, score
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


async def test_a_lone_surrogate_is_judged_like_any_other_text_and_two_of_them_are_two_questions() -> None:
    for item in (("q", LONE), (LONE, "r"), ("q", "r", LONE), ([{"role": "user", "content": LONE}], "r")):
        backend = JudgeBackend(always(score(7)))
        async with judge_over(backend) as judge:
            found = [await judge.score(*item), *(await judge.batch_score([item, ("q", "ok")])).values()]
        assert [verdict.score for verdict in found if verdict] == [0.7, 0.7, 0.7]
        assert LONE in backend.sent[0].text
    builder = made()._requests
    one, other, escaped, same = (
        builder.item({"prompt": "q", "response": text}, limits=(0,), pairs=False).calls[0].key
        for text in ("\ud83d", "\ud83e", "\\ud83d", "\ud83d")
    )
    assert (one == same, len({one, other, escaped})) == (True, 3)


def test_a_lone_surrogate_goes_over_the_wire_also_in_a_parameter_and_is_found_in_the_cache(tmp_path: Path) -> None:
    with FakeFleet([FakeEndpoint("a", responder="judge")]) as fleet:
        settings: dict[str, Any] = {"user": LONE, "system": LONE, "cache": tmp_path / "kept"}
        with SyncJudge(QRewardClient(fleet.endpoints), model="m", scale=(0, 1), owns_client=True, **settings) as judge:
            judged = [judge.score("q", LONE, reference=LONE) for _ in range(2)]
    assert [(verdict.score, verdict.cached) for verdict in judged] == [(1.0, False), (1.0, True)]


BUILT = {"prompt": lambda fields: [{"role": "user", "content": str(fields)}]}


async def test_what_is_none_is_refused_before_anything_is_sent() -> None:
    """A response or one of a pair always; a task where the prompt shows it."""
    for settings in ({}, {"prompt": "{response}"}, {"prompt": "{prompt} {response}"}, BUILT):
        backend = JudgeBackend(always(score(7)))
        async with judge_over(backend, **settings) as judge:
            with pytest.raises(ConfigError, match="'response'"):
                await judge.score("q", None)
            for missing in ((None, "r"), ("r", None)):
                with pytest.raises(ConfigError, match=r"'first'|'second'"):
                    await judge.compare("q", *missing)
                assert isinstance((await judge.batch_compare([("q", *missing)]))[0].error, ConfigError)
            if settings.get("prompt") != "{response}" and settings is not BUILT:
                with pytest.raises(ConfigError, match="'prompt'"):
                    await judge.score(None, "r")
            assert backend.sent == []
            batch = await judge.batch_score([("q", None), ("q", "r"), {"prompt": "q", "response": None}])
            assert [type(result.error) for result in batch] == [ConfigError, type(None), ConfigError]
    async with judge_over(backend, prompt="{response}") as judge:
        assert (await judge.score(None, "r")).score == 0.7


async def test_a_conversation_whose_last_message_was_not_generated_is_no_response() -> None:
    unsaid = [{"role": "user", "content": "q"}, {"role": "assistant", "content": None}]
    calls = [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add"}}]}]
    async with judge_over(JudgeBackend(always(score(7)))) as judge:
        with pytest.raises(BadRequest, match="last message of 'second' has no content"):
            await judge.compare("q", "a", unsaid)
        batch = await judge.batch_score([("q", unsaid), ("q", calls), ("q", [{"role": "assistant", "content": ""}])])
    assert [result.ok for result in batch] == [False, True, True]
    assert "last message of 'response' has no content" in str(batch[0].error)


async def awaited(_verdict: BaseModel) -> float:
    return 1.0


WRONG_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"score": 5}, "score"),
    ({"score": awaited}, "score"),
    ({"prompt": "Is it good?"}, "prompt"),
    ({"pair_prompt": "nothing"}, "pair_prompt"),
    ({"pair_prompt": "{first} {second.x}"}, "pair_prompt"),
    ({"hedge": "x"}, "hedge"),
    ({"cache": 5}, "cache"),
    ({"cache_namespace": 7}, "cache_namespace"),
    ({"samples": 101}, "samples"),
    ({"settle": "best"}, "settle"),
    ({"reasks": -1}, "reasks"),
    ({"reask": 2}, "'reasks'"),
    ({"response_format": "xml"}, "response_format"),
    ({"extra_header": {}}, "'extra_headers'"),
    ({"params": {"temperature": 0}}, "temperature=0"),
    ({"config": {}}, "from_config"),
    ({"model": None}, "model"),
    ({"model": ("a", "a")}, "model"),
    ({"model": ""}, "model"),
    ({"verdict": dict}, "verdict"),
    ({"scale": (10, 0)}, "scale"),
    ({"scale": (0, math.inf)}, "scale"),
    ({"scale": (0, 10**400)}, "scale"),
    ({"scale": (-1.7e308, 1.7e308)}, "scale"),
    ({"range": (0, math.nan)}, "range"),
    ({"temperature": math.nan}, "temperature"),
    ({"n": 3}, "n"),
    ({"timeout": 5}, "timeout"),
    ({"extra_body": {"x": object()}}, "object"),
    ({"extra_headers": {"a": 5}}, "extra_headers"),
    ({"extra_headers": {"a": "b\n"}}, "extra_headers"),
]


def test_a_wrong_setting_is_named_when_the_judge_is_made() -> None:
    wrong = []
    for settings, word in WRONG_SETTINGS:
        with pytest.raises(ConfigError) as caught:
            made(**settings)
        if word not in (said := str(caught.value)) or len(said) >= 300:
            wrong.append((settings, said))
    assert wrong == []


def test_parameters_of_servers_are_not_taken_for_slips_and_settings_among_the_params_are_refused() -> None:
    for name in ("store", "stop", "top_p", "top_k", "seed", "user", "metadata", "reasoning_effort", "verbosity", "logprobs"):
        made(**{name: 1})
    wrong: list[tuple[Any, str]] = [(config, "config") for config in (None, [1], "judge", 5)]
    names = ("samples", "scale", "score", "owns_client", "verdict")
    wrong += [({"model": "m", "samples": 2, "params": {name: 1}}, name) for name in names]
    for config, word in wrong:
        with pytest.raises(ConfigError, match=word):
            Judge.from_config(client(), config)


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


async def test_a_conversation_is_no_item_and_one_message_is_judged_as_its_words() -> None:
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}]
    backend = JudgeBackend(always(score(7)))
    async with judge_over(backend) as judge:
        cases: tuple[Any, ...] = ([turns], [tuple(turns)], [[*turns, turns[1]]])
        for items in cases:
            errors = [(await judge.batch_score(items))[0].error, (await judge.batch_compare(items))[0].error]
            assert all(isinstance(error, ConfigError) for error in errors), errors
        assert backend.sent == []
        assert (await judge.batch_score([(turns[:1], turns[1])])).values()
    assert "Assistant: r" in backend.sent[0].text
