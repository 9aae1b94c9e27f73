"""What goes out and what comes back: every argument reaches the server, answers are openai's own types."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
import respx
from client_tools import HI, MODEL, Recorder, endpoint, use
from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionMessage
from shared_tools import each

from qreward import AuthenticationFailed, BadRequest, Endpoint, InvalidResponse, NoEndpoint, QRewardClient

PARAMS: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 1,
    "n": 1,
    "max_tokens": 64,
    "stop": ["\n", "END"],
    "seed": 7,
    "logit_bias": {"50256": -100},
    "response_format": {"type": "json_schema", "json_schema": {"name": "v", "schema": {"type": "object"}}},
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "stream": False,
    "user": None,
    "something_new": {"nested": [1, 2.5, "x", None, True]},
}


def test_every_parameter_and_header_reaches_the_server_and_extra_body_goes_over_the_parameters() -> None:
    recorder = Recorder()
    mine = endpoint(recorder, api_key="key-of-the-endpoint", headers={"x-team": "rewards"}, model_names={MODEL: "/models/judge-7b-awq"})
    extra = {"temperature": 0, "chat_template_kwargs": {"enable_thinking": False}}
    completion = use(
        QRewardClient([mine]),
        lambda client: client.chat_completion(HI, MODEL, **PARAMS, extra_body=extra, extra_headers={"x-trace": "t-1"}),
    )
    assert recorder.bodies == [{"model": "/models/judge-7b-awq", "messages": HI, **PARAMS, **extra}]
    assert completion.model == "/models/judge-7b-awq"
    (request,) = recorder.requests
    assert request.url == "http://gpu-0.example/v1/chat/completions"
    headers = request.headers
    assert (headers["authorization"], headers["x-team"], headers["x-trace"]) == ("Bearer key-of-the-endpoint", "rewards", "t-1")


def test_a_batch_takes_openais_messages_and_gives_its_completions_with_words_and_usage() -> None:
    recorder = Recorder()
    message: Any = ChatCompletionMessage(role="assistant", content="yes")
    chats = [HI, HI, [*HI, message]]
    batch = use(QRewardClient([endpoint(recorder)]), lambda client: client.batch_chat_completion(chats, MODEL))
    assert all(isinstance(value, ChatCompletion) for value in batch.values())
    assert batch.texts() == ["re: hi", "re: hi", "re: yes"]
    assert recorder.bodies[2]["messages"] == [*HI, {"role": "assistant", "content": "yes"}]
    assert batch[0].usage.completion_tokens == 2
    stats = batch.stats.endpoints["gpu-0"]
    assert (stats.sent, stats.won, stats.prompt_tokens, stats.completion_tokens) == (3, 3, 9, 6)


def test_embeddings_are_openais_and_in_the_order_of_the_input() -> None:
    recorder = Recorder()
    client = QRewardClient([endpoint(recorder)])

    async def both(client: QRewardClient) -> Any:
        one = await client.embeddings(["a", "bb", "ccc"], MODEL, dimensions=1)
        return one, await client.batch_embeddings([["a"], "four", ["bb", "c"]], MODEL, encoding_format="float")

    response, batch = use(client, both)
    assert isinstance(response, CreateEmbeddingResponse)
    assert [item.embedding for item in response.data] == [[1.0], [2.0], [3.0]]
    assert recorder.bodies[0] == {"model": MODEL, "input": ["a", "bb", "ccc"], "dimensions": 1}
    assert [[item.embedding for item in value.data] for value in batch.values()] == [[[1.0]], [[4.0]], [[2.0], [1.0]]]
    assert all(body["encoding_format"] == "float" for body in recorder.bodies[1:])


@respx.mock
def test_the_users_own_httpx_client_carries_the_requests_and_stays_open() -> None:
    route = respx.post("http://judge.example/v1/chat/completions").mock(
        side_effect=[
            httpx.Response(500, json={"error": {"message": "not now"}}),
            httpx.Response(200, json={"choices": [{"message": {"role": "assistant", "content": "good"}}]}),
        ]
    )

    async def run() -> Any:
        async with httpx.AsyncClient(headers={"x-corp": "proxy-1"}) as mine:
            async with QRewardClient([Endpoint("http://judge.example/v1", http_client=mine)]) as client:
                completion = await client.chat_completion(HI, MODEL, temperature=0)
            assert not mine.is_closed
            return completion

    completion = asyncio.run(run())
    assert completion.choices[0].message.content == "good"  # although the server left out half of what openai's type promises
    assert isinstance(completion, ChatCompletion)
    assert route.call_count == 2
    assert [call.request.headers["x-corp"] for call in route.calls] == ["proxy-1"] * 2


def reply(status: int, body: dict[str, Any] | str) -> Any:
    content = {"text": body} if isinstance(body, str) else {"json": body}
    return lambda _: httpx.Response(status, **content)


@each(
    "status, body, error, times",
    [
        (400, {"error": {"message": "max_tokens is too large"}}, BadRequest, 1),
        (401, {"error": {"message": "Incorrect API key provided"}}, AuthenticationFailed, 1),
        (200, "<html>", InvalidResponse, 2),
    ],
)
def test_what_the_server_refuses_is_a_typed_error_with_its_trail(status: int, body: Any, error: type[Any], times: int) -> None:
    recorder = Recorder(reply(status, body))
    client = QRewardClient([endpoint(recorder)], retry={"attempts": 2, "base": 0.01})  # type: ignore[arg-type]
    with pytest.raises(error) as caught:
        use(client, lambda client: client.chat_completion(HI, MODEL))
    assert (caught.value.endpoint, caught.value.model, caught.value.status_code) == ("gpu-0", MODEL, status)
    assert [record.status_code for record in caught.value.attempts] == [status] * times
    assert len(recorder.requests) == times


def test_a_model_without_a_route_is_told_with_the_routes_there_are() -> None:
    recorder = Recorder()
    client = QRewardClient([endpoint(recorder, models=["judge-*"]), endpoint(recorder, "gpu-1", models=["rm-1", "embed-*"])])
    for asking in ("chat_completion", "embeddings", "batch_chat_completion", "batch_embeddings"):
        with pytest.raises(NoEndpoint, match=r"no route matches the model 'gpt-9'; there are routes for 'rm-1', 'judge-\*', 'embed-\*'"):
            asyncio.run(getattr(client, asking)(HI, "gpt-9") if "chat" in asking else getattr(client, asking)(["x"], "gpt-9"))
    assert recorder.requests == []
    asyncio.run(client.aclose())


def test_the_stats_of_a_client_count_over_all_its_calls() -> None:
    answers = iter([500, 200, 200, 429, 200])

    def sometimes(request: httpx.Request) -> httpx.Response:
        status = next(answers)
        body = {"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
        return httpx.Response(status, json=body if status == 200 else {"error": {"message": "busy"}}, headers={"retry-after-ms": "5"})

    client = QRewardClient([endpoint(Recorder(sometimes)), endpoint(Recorder(), "idle", models=["other"])])

    async def ask(client: QRewardClient) -> None:
        for _ in range(3):
            await client.chat_completion(HI, MODEL)

    use(client, ask)
    stats = client.stats()
    assert list(stats) == ["gpu-0", "idle"]
    seen = stats["gpu-0"]
    assert (seen.sent, seen.won, seen.failed, seen.rejected, seen.retried, seen.cancelled) == (5, 3, 1, 1, 1, 0)
    assert (seen.prompt_tokens, seen.completion_tokens) == (9, 6)
    assert seen.p50 is not None
    assert seen.p50 <= (seen.p99 or 0)
    assert (stats["idle"].sent, stats["idle"].p50) == (0, None)
