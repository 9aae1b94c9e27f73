"""A fake endpoint with a prefix cache: usage and metrics report what was cached, answers stay what they are, and a restart loses it."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from fakes.endpoint import ModelEndpoint
from fakes.model_server import MODELS
from fleet_tools import Client, serving
from shared_tools import until

from qreward.errors import ConfigError
from qreward.testing import FakeEndpoint, FakeFleet, Latency, PrefixCache, echo_of

RUBRIC = "Judge the answer by its correctness alone. " * 40  # 1,720 bytes, 430 tokens
FAST = {"model": "8B", "time_scale": 0.001}


def judge(answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": RUBRIC + answer}]


async def ask(client: Client, messages: Any, name: str = "a", **more: Any) -> Any:
    answer = await client.post(name, "/chat/completions", {"model": "m", "messages": messages, **more})
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


def endpoint(name: str = "a", **more: Any) -> ModelEndpoint:
    return ModelEndpoint(name, **{"served": FAST, "latency": Latency(tokens=20), **more})


async def test_a_repeated_beginning_is_cached_at_its_endpoint_and_the_answers_stay_the_echo() -> None:
    async with serving(endpoint("a"), endpoint("b")) as client:
        first, second, elsewhere = [await ask(client, judge(text), name) for text, name in (("one", "a"), ("two", "a"), ("three", "b"))]
        again, stranger = await ask(client, judge("one")), await ask(client, judge("one"), model="other")
        seen = client.fleet.seen("a")
    cached = [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in (first, second, elsewhere, again, stranger)]
    assert cached[0] == cached[2] == cached[4] == 0
    assert 400 < cached[1] <= 430 + 8
    assert cached[1] % 16 == 0
    assert cached[1] <= cached[3] < again["usage"]["prompt_tokens"]
    assert [each["choices"][0]["message"]["content"] for each in (first, second)] == [echo_of(judge(text)) for text in ("one", "two")]
    prompts = sum(each["usage"]["prompt_tokens"] for each in (first, second, again, stranger))
    assert (seen.computed + seen.cached, seen.cached) == (prompts, cached[1] + cached[3])


async def test_an_answer_takes_no_less_than_the_time_of_the_model_server() -> None:
    async with serving(endpoint(served="8B")) as client:
        begin = time.monotonic()
        alone = await ask(client, judge("one"))
        assert time.monotonic() - begin >= 0.99 * (20 * 0.010 + alone["usage"]["prompt_tokens"] * 0.00006 + 19 * 0.00005)


async def test_vllm_reports_the_cache_in_its_metrics() -> None:
    async with serving(endpoint(kind="vllm"), FakeEndpoint("plain", kind="vllm")) as client:
        for text in ("one", "two"):
            await ask(client, judge(text))
        text, plain = [(await client.get(name, "/metrics")).body.decode() for name in ("a", "plain")]
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    labels = '{engine="0",model_name="fake"}'
    queries, hits = (float(lines[f"vllm:prefix_cache_{name}_total{labels}"]) for name in ("queries", "hits"))
    assert 0 < hits < queries
    assert lines['vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="18750"}'] == "1.0"
    assert lines[f"vllm:kv_cache_usage_perc{labels}"] == "0.0"
    assert "prefix_cache" not in plain


async def test_a_killed_endpoint_and_a_reset_one_have_lost_their_cache() -> None:
    async with serving(endpoint()) as client:
        found = []
        for step in (None, lambda: (client.fleet.kill("a"), client.fleet.revive("a")), None, client.fleet.reset):
            if step is not None:
                step()
                await asyncio.sleep(0.02)  # until the client has seen that its connection is closed
            found.append((await ask(client, judge("one")))["usage"]["prompt_tokens_details"]["cached_tokens"])
    first, after_kill, known, after_reset = found
    assert first == after_kill == after_reset == 0
    assert known > 0


async def test_who_disconnects_frees_the_place_in_the_model_server() -> None:
    slow = {"model": "8B", "sequences": 1}
    async with serving(endpoint(served=slow, latency=Latency(tokens=10_000))) as client:
        waiting = [asyncio.ensure_future(ask(client, judge(f"{number}"))) for number in range(2)]
        await until(lambda: client.fleet.seen("a").in_flight == 2)
        for each in waiting:
            each.cancel()
        await until(lambda: client.fleet.seen("a").disconnects == 2)
        client.fleet.set("a", latency=Latency(tokens=1))
        begin = time.monotonic()
        await ask(client, judge("last"))
        assert time.monotonic() - begin < 50, "10,000 tokens take 100 s"


async def test_a_chat_that_does_not_fit_is_a_bad_request() -> None:
    async with serving(endpoint(served={**FAST, "cache_tokens": 160})) as client:
        answer = await client.chat("a", RUBRIC)
    assert answer.status == 400
    assert json.loads(answer.body)["error"]["code"] == "context_length_exceeded"


async def test_the_cache_of_a_plain_endpoint_shares_whole_blocks_of_one_model_until_a_reset_and_evicts_what_was_used_least() -> None:
    plain = ModelEndpoint("a", kind="vllm", prefix_cache=PrefixCache(tokens=900), latency=Latency(tokens=1))
    async with serving(plain) as client:
        chats = [await ask(client, judge(text), model=model) for text, model in (("one", "m"), ("two", "m"), ("one", "n"))]
        await ask(client, [{"role": "user", "content": "another text " * 200}])  # fills the cache
        evicted = await ask(client, judge("two"))
        client.fleet.reset()
        restarted = await ask(client, judge("two"))
        metrics = (await client.get("a", "/metrics")).body.decode()
        seen = client.fleet.seen("a")
    cached = [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in (*chats, evicted, restarted)]
    assert cached[0] == cached[2] == cached[3] == cached[4] == 0
    assert 400 < cached[1] <= 430 + 8
    assert cached[1] % 16 == 0
    assert (seen.computed, seen.cached) == (restarted["usage"]["prompt_tokens"], 0)
    assert f'vllm:prefix_cache_queries_total{{engine="0",model_name="fake"}} {float(seen.computed)}' in metrics


async def test_a_streamed_answer_reports_it_too_and_other_routes_are_not_computed() -> None:
    async with serving(endpoint()) as client:
        for _ in range(2):
            body = {"model": "m", "messages": judge("one"), "stream": True, "stream_options": {"include_usage": True}}
            streamed = await client.post("a", "/chat/completions", body)
        vector = await client.post("a", "/embeddings", {"model": "m", "input": "text"})
    assert b'"prompt_tokens_details":{"cached_tokens":4' in streamed.body
    assert "prompt_tokens_details" not in json.loads(vector.body)["usage"]


def test_the_setting_is_a_name_a_mapping_or_a_model_also_in_another_process() -> None:
    named, changed, given = (endpoint(served=value).served for value in ("70B", FAST, MODELS["8B"]))
    assert (named, given) == (MODELS["70B"], MODELS["8B"])
    assert changed == MODELS["8B"].model_copy(update={"time_scale": 0.001})
    with pytest.raises(ConfigError, match="must be '8B', '70B' or a ServedModel"):
        ModelEndpoint("a", served="7B")
    with FakeFleet([endpoint()], process=True) as fleet:
        assert fleet.seen("a").computed == 0
