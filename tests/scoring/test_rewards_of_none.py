"""A prompt, a response or an item that is None, as after a generation that failed, is an error before anything is sent: never a number."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from qreward import BadRequest, ConfigError, Endpoint, QRewardClient
from qreward.judge import RewardModelScorer

MODEL = "rm-7b"
USER = {"role": "user", "content": "6 x 7?"}
UNSAID = {"role": "assistant", "content": None}
"""A message as openai's client gives it where nothing was said."""


@asynccontextmanager
async def client_of_an_untouched_server() -> AsyncIterator[QRewardClient]:
    async def refuse(request: httpx.Request) -> httpx.Response:
        raise AssertionError(f"sent: {request.content!r}")

    endpoint = Endpoint("http://rm/v1", kind="vllm", http_client=httpx.MockTransport(refuse))
    async with QRewardClient([endpoint], clock=asyncio.get_running_loop().time) as client:
        yield client


SINGLE: list[tuple[str, tuple[Any, ...], str]] = [
    ("score", ("p", None), "the response is None"),
    ("score", ([USER], None), "the response is None"),
    ("score", (None, "r"), "the prompt is None"),
    ("score", (None,), "the item is None"),
    ("score", (("p", None),), "the response is None"),
    ("score", (["p", None],), "the response is None"),
    ("score", ({"prompt": "p", "response": None},), "the response is None"),
    ("score", ({"messages": None},), "the messages is None"),
    ("score", ([USER, UNSAID],), "the last message, which is judged"),
    ("classify", ("p", None), "the response is None"),
    ("classify", (None,), "the item is None"),
    ("rerank", (None, ["d"]), "query"),
    ("rerank", ("q", ["d", None]), "documents[1]: the text is None"),
    ("rerank", ("q", None), "documents"),
    ("embeddings", (None,), "input is None"),
    ("embeddings", (["a", None],), "input"),
    ("text_completion", (None,), "the input is None"),
    ("moderation", (None,), "the input is None"),
]


async def test_a_single_call_names_the_argument_that_is_none() -> None:
    wrong = []
    async with client_of_an_untouched_server() as client:
        scorer: Any = RewardModelScorer(client, MODEL)
        calls = [(getattr(client, method)(*arguments, model=MODEL), words) for method, arguments, words in SINGLE]
        calls += [(scorer.score("p", None), "the response is None"), (scorer.score(None, "r"), "the prompt is None")]
        calls.append((client.score("p", response=None, model=MODEL), "the response is None"))  # type: ignore[arg-type]
        for call, words in calls:
            try:
                wrong.append((words, await call))
            except (BadRequest, ConfigError) as error:
                if words not in str(error):
                    wrong.append((words, error))
    assert wrong == []


async def test_in_a_batch_it_is_the_error_of_its_item_which_it_names() -> None:
    pairs = [("p", None), (None, "r"), None, ["p", None], {"prompt": "p", "response": None}, [USER, UNSAID]]
    single: list[Any] = [None]
    async with client_of_an_untouched_server() as client:
        calls = [getattr(client, f"batch_{name}")([pair], MODEL) for name in ("score", "classify") for pair in pairs]
        calls += [getattr(client, f"batch_{name}")(single, MODEL) for name in ("embeddings", "text_completion", "moderation")]
        calls += [RewardModelScorer(client, MODEL).batch_score([pair]) for pair in pairs]  # type: ignore[list-item]
        for call in calls:
            (result,) = await call
            assert isinstance(result.error, BadRequest | ConfigError)
            assert "item 0: " in str(result.error), result.error
