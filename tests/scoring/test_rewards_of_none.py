"""A prompt, a response or an item that is None, as after a generation that failed, is an error before anything is sent: never a number."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from qreward import BadRequest, ConfigError, Endpoint, QRewardClient
from qreward.judge import RewardModelScorer

Call = Callable[[QRewardClient], Awaitable[Any]]
MODEL = "rm-7b"
USER = {"role": "user", "content": "6 x 7?"}
UNSAID = {"role": "assistant", "content": None}
"""A message as openai's client gives it where nothing was said."""


class Untouched(httpx.AsyncBaseTransport):
    """A server that must not be asked."""

    def __init__(self) -> None:
        self.requests = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        return httpx.Response(500)


def failing(calls: dict[str, tuple[Call, str]]) -> dict[str, str]:
    """The calls that did not raise an error with the expected words, or sent something; and what they did."""
    wrong = {}
    for name, (call, words) in calls.items():
        server = Untouched()

        async def test(call: Call = call, server: Untouched = server) -> Any:
            async with QRewardClient([Endpoint("http://rm/v1", kind="vllm", http_client=server)]) as client:
                return await call(client)

        try:
            wrong[name] = f"gave {asyncio.run(test())!r}"
        except (BadRequest, ConfigError) as error:
            if words not in str(error):
                wrong[name] = str(error)
        if server.requests:
            wrong[name] = f"{server.requests} requests were sent"
    return wrong


def test_a_single_call_names_the_argument_that_is_none() -> None:
    none: Any = None
    calls: dict[str, tuple[Call, str]] = {
        "score response": (lambda client: client.score("p", none, model=MODEL), "the response is None"),
        "score response by name": (lambda client: client.score("p", response=none, model=MODEL), "the response is None"),
        "score conversation": (lambda client: client.score([USER], none, model=MODEL), "the response is None"),
        "score prompt": (lambda client: client.score(None, "r", model=MODEL), "the prompt is None"),
        "score item": (lambda client: client.score(None, model=MODEL), "the item is None"),
        "score pair": (lambda client: client.score(("p", None), model=MODEL), "the response is None"),
        "score list": (lambda client: client.score(["p", None], model=MODEL), "the response is None"),
        "score dict": (lambda client: client.score({"prompt": "p", "response": None}, model=MODEL), "the response is None"),
        "score messages": (lambda client: client.score({"messages": None}, model=MODEL), "the messages is None"),
        "score unsaid": (lambda client: client.score([USER, UNSAID], model=MODEL), "the last message, which is judged"),
        "classify response": (lambda client: client.classify("p", none, model=MODEL), "the response is None"),
        "classify item": (lambda client: client.classify(None, model=MODEL), "the item is None"),
        "rerank query": (lambda client: client.rerank(none, ["d"], MODEL), "query"),
        "rerank document": (lambda client: client.rerank("q", ["d", none], MODEL), "documents[1]: the text is None"),
        "rerank documents": (lambda client: client.rerank("q", none, MODEL), "documents"),
        "embeddings": (lambda client: client.embeddings(none, MODEL), "input is None"),
        "embeddings list": (lambda client: client.embeddings(["a", None], MODEL), "input"),
        "text_completion": (lambda client: client.text_completion(none, MODEL), "the input is None"),
        "moderation": (lambda client: client.moderation(none, MODEL), "the input is None"),
        "scorer response": (lambda client: RewardModelScorer(client, MODEL).score("p", None), "the response is None"),
        "scorer prompt": (lambda client: RewardModelScorer(client, MODEL).score(None, "r"), "the prompt is None"),
    }
    assert failing(calls) == {}


def test_in_a_batch_it_is_the_error_of_its_item_which_it_names() -> None:
    def batch(name: str, items: list[Any]) -> Call:
        async def call(client: QRewardClient) -> Any:
            batch = await getattr(client, name)(items, MODEL)
            assert not any(result.ok for result in batch)
            batch.raise_for_errors()

        return _first(call)

    def scorer(items: list[Any]) -> Call:
        async def call(client: QRewardClient) -> Any:
            (await RewardModelScorer(client, MODEL).batch_score(items)).raise_for_errors()

        return _first(call)

    pairs = [("p", None), (None, "r"), None, ["p", None], {"prompt": "p", "response": None}, [USER, UNSAID]]
    calls = {f"{name} {pair}": (batch(name, [pair]), "item 0: ") for name in ("batch_score", "batch_classify") for pair in pairs}
    calls |= {f"scorer {pair}": (scorer([pair]), "item 0: ") for pair in pairs}
    for name in ("batch_embeddings", "batch_text_completion", "batch_moderation"):
        calls[name] = batch(name, [None]), "item 0: "
    assert failing(calls) == {}


def _first(call: Call) -> Call:
    async def raising(client: QRewardClient) -> None:
        try:
            await call(client)
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    return raising
