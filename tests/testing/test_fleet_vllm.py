"""The fake of kind ``vllm`` in states that no recording shows: a full queue, an engine that dies, and a model of one task."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from fakes.endpoint import ModelEndpoint
from fleet_tools import Client, serving, user

from qreward.testing import Latency, Phase

SIGTERM = Path(__file__).parent / "recordings" / "vllm-0.32.0" / "sigterm" / "judge.json"


def vllm(name: str = "a", **settings: Any) -> ModelEndpoint:
    return ModelEndpoint(name, kind="vllm", **settings)


def body_of(answer: Any) -> Any:
    return json.loads(answer.body)


async def test_a_full_queue_is_a_503_in_the_words_of_the_server_without_a_time_for_the_next_try() -> None:
    async with serving(vllm(max_concurrency=1, reject_status=503, latency=Latency(base=0.2, tokens=1))) as client:
        first = asyncio.create_task(client.chat("a"))
        await asyncio.sleep(0.05)
        refused = await client.chat("a")
        assert (await first).status == 200
    assert (refused.status, body_of(refused)["error"]["type"], refused.headers.get("Retry-After")) == (503, "Service Unavailable", None)
    assert body_of(refused)["error"]["message"].startswith("The engine is currently busy and cannot accept new requests.")


async def test_an_engine_that_dies_ends_its_streams_with_an_error_and_done_and_refuses_new_requests() -> None:
    slow = vllm(latency=Latency(per_token=0.02, tokens=20), phases=[Phase(behaviour="error_500", start=0.1)])
    async with serving(slow) as client:
        answer = await client.chat("a", stream=True)
        refused = await client.chat("a")
    *_, piece, error, done = [event.removeprefix("data: ") for event in answer.body.decode().split("\n\n") if event]
    assert (answer.status, json.loads(piece)["object"], done) == (200, "chat.completion.chunk", "[DONE]")
    recorded = {each["name"]: each["response"] for each in json.loads(SIGTERM.read_text())["exchanges"]}
    assert json.loads(error) == body_of(refused) == recorded["chat in flight"]["body"]
    assert [json.loads(error), done] == recorded["stream in flight"]["events"][-2:]
    assert (refused.status, body_of(refused)["error"]["type"]) == (500, "InternalServerError")
    assert body_of(refused)["error"]["message"].startswith("EngineCore encountered an issue.")


async def test_a_model_of_one_task_has_no_routes_for_the_other() -> None:
    async def statuses(client: Client, name: str) -> list[int]:
        asked: dict[str, Any] = {
            "/chat/completions": {"messages": user("hi")},
            "/completions": {"prompt": "a"},
            "/embeddings": {"input": ["a"]},
        }
        return [(await client.post(name, path, {"model": "m", **body})).status for path, body in asked.items()]

    async with serving(
        vllm("both"), vllm("writes", task="generate"), vllm("embeds", task="embed"), vllm("labels", task="classify")
    ) as client:
        found = [await statuses(client, name) for name in ("both", "writes", "embeds", "labels")]
        missing = await client.chat("labels")
    assert found == [[200, 200, 200], [200, 200, 404], [404, 404, 200], [404, 404, 404]]
    assert body_of(missing) == {"detail": "Not Found"}


async def test_max_tokens_cuts_the_answer_the_usage_and_the_time() -> None:
    said = vllm(latency=Latency(tokens=200, per_token=0.01), responder=lambda _: "0123456789")
    async with serving(said) as client:
        begin = asyncio.get_running_loop().time()
        cut, whole = body_of(await client.chat("a", max_tokens=2)), body_of(await client.chat("a", max_completion_tokens=3))
        assert asyncio.get_running_loop().time() - begin < 1.5, "200 tokens take two seconds"
    choices = [each["choices"][0] for each in (cut, whole)]
    assert [(choice["message"]["content"], choice["finish_reason"]) for choice in choices] == [
        ("01234567", "length"),
        ("0123456789", "stop"),
    ]
    assert [each["usage"]["completion_tokens"] for each in (cut, whole)] == [2, 3]
