"""The public calls: what they take, what they return, and what is said of what is wrong, before anything is sent."""

from __future__ import annotations

import asyncio
import pickle
from types import NoneType
from typing import Any

import pytest
from merge_tools import MODEL, ListBackend, client_of, endpoint, good, in_turn, overloaded, refused, texts

from qreward import Limits, Priority
from qreward.codecs.rewards.base import Conversation, Pair, RewardScore
from qreward.errors import BadRequest, ConfigError, NoEndpoint, RequestTimeout
from qreward.observers import AttemptEnded, CallEnded, CallStarted, Observer

FORMS: list[tuple[tuple[Any, ...], Any]] = [
    (("q", "a"), Pair("q", "a")),
    (("text",), "text"),
    (({"prompt": "q", "response": "a", "label": "b"},), Pair("q", "a", "b")),
    (([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],), None),
    (([{"role": "user", "content": "q"}], "a"), None),
]


async def test_a_score_takes_a_pair_a_text_a_dict_or_a_conversation() -> None:
    async def work(_name: str, items: list[Any]) -> Any:
        return good(["x 1"] * len(items))

    for given, item in FORMS:
        backend = ListBackend(work)
        async with client_of(backend) as client:
            found = await client.score(*given, model=MODEL)
        assert (found, type(found)) == (1.0, RewardScore)
        assert pickle.loads(pickle.dumps(found)) == 1.0
        (sent,) = backend.lists[0]
        if item is None:
            assert isinstance(sent, Conversation)
            assert [message["content"] for message in sent.messages] == ["q", "a"]
        else:
            assert sent == item


WRONG: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("score", {"prompt": 7, "model": MODEL}, BadRequest, "an item to score must be .* not a int"),
    ("score", {"prompt": "q", "response": 7, "model": MODEL}, BadRequest, "response is a int"),
    ("score", {"prompt": "q", "model": ""}, ConfigError, "model must be the name"),
    ("score", {"prompt": "q", "model": MODEL, "timeout": 0}, ConfigError, "timeout must be"),
    ("score", {"prompt": "q", "model": MODEL, "priority": 11}, ConfigError, "priority must be"),
    ("score", {"prompt": "q", "model": MODEL, "bad": float("nan")}, BadRequest, "bad"),
    ("score", {"prompt": "q", "model": MODEL, "extra_headers": {"x-trace": "a\nb"}}, BadRequest, "x-trace"),
    ("score", {"prompt": "q", "model": "unknown"}, NoEndpoint, "no route matches"),
    ("batch_score", {"pairs": "text", "model": MODEL}, ConfigError, "pairs must be a list"),
    ("batch_score", {"pairs": [], "model": MODEL, "on_result": 7}, ConfigError, "on_result"),
    ("batch_score", {"pairs": [], "model": MODEL, "deadline": -1}, ConfigError, "deadline"),
    ("batch_classify", {"items": {"a": 1}, "model": MODEL}, ConfigError, "items must be a list"),
    ("rerank", {"query": 7, "documents": ["a"], "model": MODEL}, BadRequest, "query"),
    ("rerank", {"query": "q", "documents": "a", "model": MODEL}, ConfigError, "documents must be a list"),
    ("rerank", {"query": "q", "documents": [7], "model": MODEL}, BadRequest, "the item must be a text, not a int"),
    ("rerank", {"query": "q", "documents": ["a"], "model": MODEL, "top_n": 3}, BadRequest, "top_n is not supported"),
]


async def test_what_is_wrong_is_said_before_anything_is_sent() -> None:
    backend = ListBackend()
    async with client_of(backend, endpoint(models=[MODEL])) as client:
        for method, arguments, error, said in WRONG:
            with pytest.raises(error, match=said):
                await getattr(client, method)(**arguments)
    assert backend.sent == []


async def test_parameters_and_headers_reach_the_wire() -> None:
    backend = ListBackend()
    async with client_of(backend) as client:
        await client.batch_score(texts(3), MODEL, extra_headers={"x-trace": "1"}, extra_body={"truncate_prompt_tokens": -1}, user="me")
    (call,) = backend.calls
    assert (dict(call.params), dict(call.headers)) == ({"user": "me", "truncate_prompt_tokens": -1}, {"x-trace": "1"})


async def test_an_empty_batch_is_an_empty_result() -> None:
    async with client_of(ListBackend()) as client:
        assert len(await client.batch_score([], MODEL)) == 0
        assert len(await client.batch_score(iter(()), MODEL)) == 0


async def test_statistics_count_items_in_a_batch_and_requests_at_an_endpoint() -> None:
    async with client_of(ListBackend()) as client:
        batch = await client.batch_score(texts(40), MODEL)
        stats, asked = batch.stats.endpoints["a"], client.stats()["a"]
        assert (batch.stats.items, batch.stats.ok, stats.won, stats.prompt_tokens) == (40, 40, 40, 400)
        assert (asked.sent, asked.won, asked.prompt_tokens) == (1, 1, 400)
        assert batch[0].usage is not None
        assert (batch[0].usage.prompt_tokens, batch[0].usage_is_estimated) == (10, True)
        alone = await client.batch_score(texts(1), MODEL)
        assert alone[0].usage_is_estimated is False


async def test_a_single_call_goes_ahead_of_the_lists_of_a_bulk() -> None:
    backend = ListBackend(seconds=1)
    async with client_of(backend, endpoint("tei", 10, "tei")) as client:
        bulk = asyncio.create_task(client.batch_score(texts(5000), MODEL))
        await asyncio.sleep(0.5)
        start = asyncio.get_running_loop().time()
        assert await client.score("x 7", model="other", priority=Priority.NORMAL) == 7.0
        assert asyncio.get_running_loop().time() - start < 1.6, "half a second until a slot is free, and a second of work"
        await bulk


async def test_token_limits_are_charged_with_what_a_list_holds() -> None:
    async def work(_name: str, items: list[Any]) -> Any:
        await asyncio.sleep(0.01)
        return good(["x 1"] * len(items))

    backend = ListBackend(work)
    item = "x" * 3800  # 1000 tokens
    limits = Limits(max_concurrency=8, tpm=600_000, adaptive=False)
    async with client_of(backend, endpoint("tei", kind="tei", limits=limits)) as client:
        await client.batch_score([item] * 640, MODEL)
    sent = [at for _, at, _ in backend.sent]
    assert sent[-1] >= 30, "640,000 tokens at 10,000 a second"


class Seen(Observer):
    def __init__(self) -> None:
        self.started: list[CallStarted] = []
        self.attempts: list[AttemptEnded] = []
        self.ended: list[CallEnded] = []

    def call_started(self, event: CallStarted, /) -> None:
        self.started.append(event)

    def attempt_ended(self, event: AttemptEnded, /) -> None:
        self.attempts.append(event)

    def call_ended(self, event: CallEnded, /) -> None:
        self.ended.append(event)


async def observed(items: int, bad: frozenset[str] = frozenset()) -> Seen:
    seen = Seen()

    async def work(_name: str, given: list[Any]) -> Any:
        await asyncio.sleep(1)
        return refused() if bad.intersection(given) else None

    async with client_of(ListBackend(work), observers=[seen]) as client:
        await asyncio.gather(*(client.score(text, model=MODEL) for text in texts(items)), return_exceptions=True)
    return seen


async def test_observers_see_each_merged_item_and_their_request_and_a_lone_item_as_one_call() -> None:
    lone = await observed(1)
    (started,), (attempt,), (ended,) = lone.started, lone.attempts, lone.ended
    assert started.operation == "score"
    assert started.call == attempt.call == ended.call
    assert (ended.outcome, ended.endpoint, ended.attempts, ended.prompt_tokens) == ("ok", "a", 1, 10)
    seen = await observed(5)
    assert len(seen.started) == len(seen.ended) == 6
    assert len({event.call for event in seen.ended}) == 6
    (attempt,) = seen.attempts
    (request,) = [event for event in seen.ended if event.call == attempt.call]
    assert request.prompt_tokens == 50
    assert [event.prompt_tokens for event in seen.ended if event is not request] == [None] * 5
    assert {event.outcome for event in seen.ended} == {"ok"}


async def test_a_lone_call_that_was_turned_away_and_then_shares_a_request_ends_once_and_as_its_caller_sees_it() -> None:
    for limit, second, outcome in ((1.0, None, "failed"), (60.0, good(texts(3), frozenset({"x 0"})), "ok")):
        seen = Seen()
        async with client_of(ListBackend(in_turn(overloaded(0.1), second, None, seconds=0.5)), observers=[seen]) as client:
            first = asyncio.create_task(client.score("x 0", model=MODEL, timeout=limit))
            await asyncio.sleep(0.2)
            others = [asyncio.create_task(client.score(text, model=MODEL)) for text in texts(2, 1)]
            await asyncio.wait([first, *others])
        assert isinstance(first.exception(), RequestTimeout if outcome == "failed" else NoneType)
        assert sorted(event.call for event in seen.started) == sorted(event.call for event in seen.ended)
        assert [event.outcome for event in seen.ended if event.call == seen.started[0].call] == [outcome]
        assert [event.outcome for event in seen.ended if event.call != seen.started[0].call] == ["ok"] * 3
        assert {event.call for event in seen.attempts} <= {event.call for event in seen.started}


async def test_observers_see_each_call_end_once_though_its_list_was_cut_or_it_was_cancelled() -> None:
    cut = await observed(8, frozenset({"x 3"}))
    assert len([event for event in cut.ended if event.prompt_tokens is None and event.outcome == "ok"]) >= 5
    cancelled = Seen()
    async with client_of(ListBackend(seconds=10), observers=[cancelled]) as client:
        for count in (1, 3):
            tasks = [asyncio.create_task(client.score(text, model=MODEL)) for text in texts(count)]
            await asyncio.sleep(1)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(1)
    assert {event.outcome for event in cancelled.ended} == {"cancelled"}
    for seen in (cut, cancelled):
        assert sorted(event.call for event in seen.started) == sorted(event.call for event in seen.ended)
