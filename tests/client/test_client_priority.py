"""The priority of a call reaches the server where the endpoint is set so, with every kind of request."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from qreward import Endpoint, Judge, QRewardClient
from qreward.settings.client import ClientConfig

pytestmark = pytest.mark.real_time


class Server:
    """Answers like vLLM, and notes the bodies."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.bodies.append(body)
        if request.url.path.endswith("/classify"):
            return httpx.Response(200, json={"data": [{"index": 0, "label": "LABEL_0", "probs": [0.5], "num_classes": 1}]})
        message = {"role": "assistant", "content": '{"score": 8}'}
        choice = {"index": 0, "finish_reason": "stop"}
        if body.get("stream"):
            chunk = {"object": "chat.completion.chunk", "choices": [{**choice, "delta": message}]}
            return httpx.Response(200, text=f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", headers={"content-type": "text/event-stream"})
        return httpx.Response(200, json={"object": "chat.completion", "choices": [{**choice, "message": message}]})


CHAT = [{"role": "user", "content": "2 + 2?"}]


async def sent(**settings: Any) -> list[Any]:
    """Make one call of each kind, and return the priorities in the bodies."""
    server = Server()
    endpoint = Endpoint("http://gpu-0:8000/v1", kind="vllm", http_client=httpx.MockTransport(server), **settings)
    async with QRewardClient([endpoint]) as client:
        await client.chat_completion(CHAT, "m")
        await client.chat_completion(CHAT, "m", priority="high")
        await client.batch_chat_completion([CHAT], "m", priority=3)
        await client.stream_chat_completion(CHAT, "m", priority=9).final()
        await client.score("2 + 2?", "4", model="m", priority=1)
        await Judge(client, model="m").score("2 + 2?", "4", priority="low")
        await client.chat_completion(CHAT, "m", priority="high", extra_body={"priority": -7})
    return [body.get("priority") for body in server.bodies]


async def test_an_endpoint_is_told_the_priority_of_each_call_if_it_is_set_so() -> None:
    assert await sent(send_priority=True) == [5, 0, 3, 9, 1, 9, -7]


async def test_an_endpoint_is_not_told_by_default() -> None:
    assert await sent() == [None, None, None, None, None, None, -7]


async def test_a_reload_tells_an_endpoint_from_then_on() -> None:
    server = Server()
    transport = httpx.MockTransport(server)
    async with QRewardClient([Endpoint("http://gpu-0:8000/v1", http_client=transport)]) as client:
        for tells in (False, True, False):
            client.reload(ClientConfig(endpoints=(Endpoint("http://gpu-0:8000/v1", http_client=transport, send_priority=tells),)))
            await client.chat_completion(CHAT, "m", priority=2)
    assert [body.get("priority") for body in server.bodies] == [None, 2, None]
