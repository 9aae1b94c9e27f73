"""The blocking client: answers, errors, batches, threads, loops, interrupts, and what is said to those who mistake it."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from client_tools import HI, MODEL, Recorder
from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion

from qreward import AuthenticationFailed, BatchInterrupted, ClientClosed, ConfigError, Endpoint, QRewardClient
from qreward.sync_client import SyncQRewardClient

PORTAL = "qreward-portal"


def chat(prompt: object) -> list[dict[str, str]]:
    return [{"role": "user", "content": str(prompt)}]


def client_of(recorder: httpx.AsyncBaseTransport, **settings: Any) -> SyncQRewardClient:
    return SyncQRewardClient([Endpoint("http://gpu-0.example/v1", name="gpu-0", http_client=recorder, **settings)])


def test_calls_and_batches_return_what_the_async_client_returns() -> None:
    recorder = Recorder()
    with client_of(recorder) as client:
        completion = client.chat_completion(HI, MODEL, temperature=0, extra_headers={"x-trace": "t-1"})
        embedded = client.embeddings(["a", "bb"], MODEL, dimensions=1)
        batch = client.batch_chat_completion([chat(number) for number in range(20)], MODEL, seed=1)
        vectors = client.batch_embeddings(["a", "bb", "ccc"], MODEL)
    assert isinstance(completion, ChatCompletion)
    assert completion.choices[0].message.content == "re: hi"
    assert isinstance(embedded, CreateEmbeddingResponse)
    assert [item.embedding for item in embedded.data] == [[1.0], [2.0]]
    assert batch.texts() == [f"re: {number}" for number in range(20)]
    assert [value.data[0].embedding for value in vectors.values()] == [[1.0], [2.0], [3.0]]
    assert recorder.bodies[0] == {"model": MODEL, "messages": HI, "temperature": 0}
    assert recorder.requests[0].headers["x-trace"] == "t-1"
    assert client.stats()["gpu-0"].won == 23  # the three embeddings of the batch were one request


def test_errors_are_raised_where_the_call_was_made() -> None:
    refuses = Recorder(lambda _: httpx.Response(401, json={"error": {"message": "Incorrect API key provided"}}))
    with client_of(refuses) as client:
        with pytest.raises(AuthenticationFailed) as caught:
            client.chat_completion(HI, MODEL)
        assert caught.traceback[0].name == "test_errors_are_raised_where_the_call_was_made"
        assert [attempt.status_code for attempt in caught.value.attempts] == [401]
        with pytest.raises(ConfigError, match="timeout must be a positive number of seconds"):
            client.chat_completion(HI, MODEL, timeout=-1)
        batch = client.batch_chat_completion([HI] * 3, MODEL)
        assert {type(error) for error in batch.errors.values()} == {AuthenticationFailed}


def test_iterators_and_async_iterators_are_read_in_the_background_thread() -> None:
    threads: set[str] = set()

    def lazily() -> Iterator[Any]:
        for number in range(50):
            threads.add(threading.current_thread().name)
            yield chat(number)

    async def as_they_come() -> AsyncIterator[Any]:
        for item in lazily():
            await asyncio.sleep(0)
            yield item

    with client_of(Recorder()) as client:
        for items in (lazily(), as_they_come()):
            assert client.batch_chat_completion(items, MODEL).texts() == [f"re: {number}" for number in range(50)]
    assert threads == {PORTAL}


def test_a_blocking_call_in_on_result_is_an_error_and_no_deadlock() -> None:
    with client_of(Recorder()) as client:
        with pytest.raises(BatchInterrupted) as caught:
            client.batch_chat_completion([HI] * 3, MODEL, on_result=lambda _: client.chat_completion(HI, MODEL))
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert "in on_result or in the input of a batch" in str(caught.value)
        assert client.chat_completion(HI, MODEL).choices[0].message.content == "re: hi"


class Hangs(httpx.AsyncBaseTransport):
    def __init__(self) -> None:
        self.came = threading.Semaphore(0)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.came.release()
        await asyncio.sleep(60)
        raise AssertionError("nobody waits that long")


def test_closing_ends_the_calls_of_other_threads_and_all_later_ones() -> None:
    hangs = Hangs()
    client = client_of(hangs)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(client.chat_completion, HI, MODEL) for _ in range(2)]
        for _ in waiting:
            assert hangs.came.acquire(timeout=30)
        client.close()
        for call in waiting:
            with pytest.raises(ClientClosed):
                call.result(30)
    with pytest.raises(ClientClosed):
        client.chat_completion(HI, MODEL)
    client.close()


def test_a_client_that_is_let_go_of_closes_its_connections_and_one_that_is_not_used_is_closed_without_a_word() -> None:
    closed = threading.Semaphore(0)

    class CountedWire:
        async def send(self, endpoint: Any, call: Any) -> Any:
            raise AssertionError("not asked")

        async def aclose(self) -> None:
            closed.release()

    client = SyncQRewardClient(["http://a.example/v1"], backend_factory=CountedWire)
    assert list(client.batch_chat_completion([], MODEL)) == []  # which opens its wire
    del client
    gc.collect()
    assert closed.acquire(timeout=30)
    with SyncQRewardClient(["http://a.example/v1"]) as unused:
        pass
    unused.close()


def test_a_client_may_be_closed_when_the_process_ends_and_the_thread_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(Recorder())
    monkeypatch.setattr("qreward.engine.portal._current", {})
    monkeypatch.setattr("qreward.engine.portal._exiting", True)
    with pytest.raises(ClientClosed, match="the process is ending"):
        client.chat_completion(HI, MODEL)
    client.close()


def test_with_and_async_with_are_told_which_client_to_use() -> None:
    async def wrong() -> None:
        async with SyncQRewardClient(["http://a.example/v1"]):  # type: ignore[attr-defined]
            raise AssertionError("it was entered")

    with pytest.raises(TypeError, match="SyncQRewardClient blocks: use `with`, or QRewardClient with `async with`"):
        asyncio.run(wrong())
    with (
        pytest.raises(TypeError, match="QRewardClient is asynchronous: use `async with`, or SyncQRewardClient with `with`"),
        QRewardClient(["http://a.example/v1"]),  # type: ignore[attr-defined]
    ):
        raise AssertionError("it was entered")


def test_it_pickles_by_its_configuration_with_changes_made_live_and_its_repr_shows_no_key() -> None:
    client = SyncQRewardClient([Endpoint("http://a.example/v1", api_key="sk-very-secret")], timeout=9)
    client.add_endpoint({"base_url": "http://b.example/v1", "name": "b", "models": ["judge-*"]})
    copy = pickle.loads(pickle.dumps(client))
    assert type(copy) is SyncQRewardClient
    assert (copy.config, copy.list_routes()) == (client.config, client.list_routes())
    assert repr(client).startswith("<SyncQRewardClient ")
    assert "secret" not in repr(client)
