"""Endpoints without a server: functions of this process, actors and ASGI applications, in one pool with servers."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import SimpleNamespace
from typing import Any

import pytest
from client_tools import HI, Recorder, endpoint
from fastapi import FastAPI
from local_tools import Actor, Server

from qreward import ConfigError, Endpoint, Limits, QRewardClient, Retry, RewardModel
from qreward.errors import BadRequest, ConnectionFailed, InvalidResponse, RateLimited, RequestTimeout, ServerError
from qreward.integrations.ray import ScorerPool
from qreward.settings.local import Slots
from qreward.testing import FakeEndpoint, FakeFleet

ONCE = Retry(attempts=1)


def client_of(*endpoints: Endpoint, **settings: Any) -> QRewardClient:
    loop = asyncio.get_running_loop()
    return QRewardClient(endpoints, clock=loop.time, **settings)


def served(name: str, seconds: float, slots: int, **settings: Any) -> Endpoint:
    limits = Limits(max_concurrency=slots, adaptive=False)
    return Endpoint(f"http://{name}.example/v1", name=name, http_client=Server(seconds), limits=limits, **settings)


def chat(prompt: object) -> list[dict[str, str]]:
    return [{"role": "user", "content": str(prompt)}]


async def measured(bulk: Awaitable[Any], call: Callable[[], Awaitable[Any]], every: float) -> tuple[Any, float, int, float]:
    """The result of a bulk, its seconds, the number of single calls that are made meanwhile, and their 95th percentile."""
    clock = asyncio.get_running_loop().time
    began, spans = clock(), []

    async def single() -> None:
        start = clock()
        await call()
        spans.append(clock() - start)

    task, singles = asyncio.ensure_future(bulk), []
    while not task.done():
        singles.append(asyncio.ensure_future(single()))
        await asyncio.wait([task], timeout=every)
    seconds = clock() - began
    await asyncio.gather(*singles)
    return task.result(), seconds, len(spans), sorted(spans)[int(0.95 * len(spans))]


@pytest.mark.virtual_time
async def test_a_server_and_a_function_share_a_bulk_within_a_tenth_of_the_bound_while_urgent_calls_take_less_than_two_services() -> None:
    async def judge(messages: list[dict[str, str]]) -> str:
        await asyncio.sleep(0.5)
        return messages[-1]["content"]

    local = Endpoint.local(judge, name="local", max_concurrency=4)
    async with client_of(served("server", 1.0, 8), local) as client:
        bulk = client.batch_chat_completion(map(chat, range(600)), "judge")
        urgent = lambda: client.chat_completion(chat("now"), "judge", priority="high")  # noqa: E731
        batch, seconds, singles, p95 = await measured(bulk, urgent, every=1.0)
    assert batch.texts() == [str(number) for number in range(600)]
    assert seconds <= 1.1 * (600 + singles) / (8 / 1.0 + 4 / 0.5), seconds
    assert p95 < 2 * 1.0, p95
    assert {result.endpoint for result in batch} == {"server", "local"}


@pytest.mark.virtual_time
async def test_actors_and_a_server_share_a_bulk_of_scores_within_a_tenth_of_the_bound_while_urgent_calls_are_quick() -> None:
    actors = [Actor(0.1), Actor(0.1)]
    endpoints = [Endpoint.actors(each, method="score", name=f"actor-{n}", max_batch_size=4) for n, each in enumerate(actors)]
    async with client_of(served("server", 0.05, 1, kind="tei"), *endpoints) as client:
        bulk = client.batch_score([("", "a" * (number % 7)) for number in range(600)], "rm")
        urgent = lambda: client.score("", "now", model="rm", priority="high")  # noqa: E731
        batch, seconds, singles, p95 = await measured(bulk, urgent, every=0.5)
    assert batch.scores() == [float(number % 7) for number in range(600)]
    assert {result.endpoint for result in batch} == {"server", "actor-0", "actor-1"}
    assert seconds <= 1.1 * (600 + singles) / (1 / 0.05 + 2 / 0.1), seconds
    assert p95 < 2 * 32 * 0.05, p95  # a server of this kind takes 32 items at once


async def test_a_blocking_function_leaves_the_loop_free_and_sees_the_callers_context() -> None:
    loop, entered, go = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def judge(messages: list[dict[str, str]]) -> str:
        loop.call_soon_threadsafe(entered.set)
        assert go.wait(20), "the loop was blocked"
        return threading.current_thread().name

    async with QRewardClient([Endpoint.local(judge)]) as client:
        call = asyncio.ensure_future(client.chat_completion(HI, "judge"))
        await entered.wait()
        go.set()
        assert str((await call).choices[0].message.content).startswith("qreward-worker")


async def test_a_call_that_was_given_up_keeps_its_place_until_the_function_returns() -> None:
    go, running, peak = threading.Event(), [0], [0]

    def score(item: str) -> float:
        running[0] += 1
        peak[0] = max(peak[0], running[0])
        go.wait(20)
        running[0] -= 1
        return 1.0

    async with QRewardClient([Endpoint.local(score, name="gpu")], retry=ONCE, hedge=None) as client:
        for _ in range(2):
            with pytest.raises(RequestTimeout):
                await client.score("text", model="rm", timeout=0.1)
        go.set()
        assert await client.score("text", model="rm", timeout=20) == 1.0
    assert peak[0] == 1


@pytest.mark.virtual_time
async def test_a_dead_actor_or_process_is_a_retry_elsewhere() -> None:
    class Broken(Executor):
        def submit(self, *_: Any, **__: Any) -> Future[Any]:
            raise BrokenProcessPool("a process died")

    async def lost(_: Any) -> float:
        raise ConnectionResetError("the worker is gone")

    dead = Actor()
    dead.dead = True
    other = served("server", 0.1, 4, kind="tei")
    for endpoint_ in (
        Endpoint.actors(dead, method="score", name="lost"),
        Endpoint.local(lambda _: 0.0, executor=Broken(), name="lost"),  # no thread: the executor refuses at once
        Endpoint.local(lost, name="lost"),
    ):
        async with client_of(endpoint_, other) as client:
            batch = await client.batch_score([("q", "aa")] * 40, "rm")
            assert batch.scores() == [2.0] * 40
            stats = client.stats()
            assert stats["lost"].sent > 0, "it was tried"
            assert stats["lost"].answered == 0
        async with client_of(endpoint_, retry=ONCE) as client:
            with pytest.raises(ConnectionFailed, match="endpoint 'lost', model 'rm': its process or connection is gone"):
                await client.score("q", "a", model="rm")


@pytest.mark.virtual_time
async def test_an_exception_of_the_function_is_the_error_of_its_request() -> None:
    def raising(error: BaseException) -> Callable[[Any], Any]:
        async def function(_: Any) -> Any:
            raise error

        return function

    class RayTaskError(Exception):
        cause = KeyError("weights")

    cases: list[tuple[BaseException, type[Exception], str]] = [
        (ValueError("no weights"), ServerError, "endpoint 'f' answered 500 for model 'm': ValueError: no weights (test_client_local.py:"),
        (BadRequest("too long"), BadRequest, "answered 400 for model 'm': too long"),
        (RateLimited("full"), RequestTimeout, "full"),
        (asyncio.CancelledError(), ServerError, "raised CancelledError"),
        (RayTaskError("x"), ServerError, "KeyError: 'weights'"),
        (RequestTimeout("no result within 3 s"), RequestTimeout, "no result within 3 s"),
    ]
    for error, kind, words in cases:
        async with client_of(Endpoint.local(raising(error), name="f"), retry=ONCE) as client:
            with pytest.raises(kind) as caught:
                await client.chat_completion(HI, "m", timeout=5)
            assert words in str(caught.value), str(caught.value)


class Array:
    """A NumPy array or a tensor, as far as the client can tell."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def tolist(self) -> Any:
        return self._values


@pytest.mark.virtual_time
async def test_a_score_is_right_or_an_error() -> None:
    nan = float("nan")
    table: list[tuple[Any, Any]] = [
        ([0.1, 2], [0.1, 2.0]),
        ((0.1, -0.0), [0.1, -0.0]),
        (Array([0.1, 0.25]), [0.1, 0.25]),
        ([Array(0.5), Array(1)], [0.5, 1.0]),
        ([{"reward": Array(0.5), "helpfulness": 3}, {"score": 0.25}], [0.5, 0.25]),
        ([0.5, ValueError("odd")], [0.5, "the function returned an error for it: ValueError: odd"]),
        ([0.5, nan], [0.5, "not a finite number"]),
        ([0.5, True], [0.5, "not a finite number"]),
        ([0.5, "1"], [0.5, "not a finite number"]),
        ([0.5, {"a": 1, "b": 2}], [0.5, "RewardModel(label=...)"]),
        ([0.5, {"reward": nan, "confidence": 0.9}], [0.5, "its reward is null, not a finite number"]),
        ([0.5, {"reward": "none", "confidence": 0.9}], [0.5, "its reward is a text, not a finite number"]),
        ([0.5], ["1 results for 2 items"] * 2),
        (0.5, ["1 results for 2 items"] * 2),
        (None, ["1 results for 2 items"] * 2),
        ({"a": object()}, ["TypeError"] * 2),
    ]
    for returned, expected in table:

        async def score(_: Any, returned: Any = returned) -> Any:
            return returned

        async with client_of(Endpoint.local(score, max_batch_size=2, max_concurrency=1), retry=ONCE) as client:
            batch = await client.batch_score(["one", "two"], "rm")
            for result, wanted in zip(batch, expected, strict=True):
                if isinstance(wanted, float):
                    assert (repr(float(result.value)), result.error) == (repr(wanted), None), returned
                else:
                    assert isinstance(result.error, InvalidResponse | ServerError), returned
                    assert wanted in str(result.error), (returned, str(result.error))


@pytest.mark.virtual_time
async def test_a_number_that_is_not_finite_keeps_its_position() -> None:
    async def score(items: list[Any]) -> Any:
        return [{"helpful": float("nan"), "why": "x", "honest": 0.5} for _ in items]

    for label, expected in ((1, 0.5), (0, "its reward is null, not a finite number")):
        endpoint = Endpoint.local(score, max_batch_size=2, reward=RewardModel(label=label))
        async with client_of(endpoint, retry=ONCE) as client:
            (result,) = await client.batch_score(["one"], "rm")
            if isinstance(expected, float):
                assert (result.value, result.error) == (expected, None)
                assert result.value.attributes == {"honest": 0.5}
            else:
                assert expected in str(result.error)


@pytest.mark.virtual_time
async def test_a_function_receives_what_its_arguments_ask_for() -> None:
    messages = [*HI, {"role": "assistant", "content": "ho"}]
    labelled = {"prompt": "q", "response": "a", "label": 4}
    seen: list[Any] = []

    async def item(item: Any) -> float:
        seen.append(item)
        return 0.0

    async def apart(prompt: str, response: str) -> float:
        seen.append((prompt, response))
        return 0.0

    async def with_label(prompt: str, response: str, label: Any, *, model: str, temperature: float = 1.0) -> float:
        seen.append((prompt, response, label, model, temperature))
        return 0.0

    async def lists(prompts: list[str], responses: list[str]) -> list[float]:
        seen.append((prompts, responses))
        return [0.0] * len(prompts)

    for function, settings, given, wanted in (
        (item, {}, "text", "text"),
        (item, {}, ("q", "a"), {"prompt": "q", "response": "a"}),
        (item, {}, labelled, labelled),
        (item, {}, messages, messages),
        (apart, {}, ("q", "a"), ("q", "a")),
        (with_label, {}, labelled, ("q", "a", 4, "rm", 0.5)),
        (lists, {"max_batch_size": 4}, ("q", "a"), (["q"], ["a"])),
        (item, {"reward": {"template": "{prompt}|{response}"}}, ("q", "a"), "q|a"),
    ):
        seen.clear()
        async with client_of(Endpoint.local(function, name="f", **settings), retry=ONCE) as client:
            batch = await client.batch_score([given], "rm", temperature=0.5)
            assert (seen, batch.errors) == ([wanted], {}), function


async def test_functions_pools_and_fake_servers_work_in_one_pool() -> None:
    def judge(messages: list[dict[str, str]]) -> dict[str, Any]:
        return {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": messages[-1]["content"]}}]}

    echo = FakeEndpoint("server", responder=judge_text, max_concurrency=4, models=["judge"])
    async with FakeFleet([echo]) as fleet:
        local = Endpoint.local(judge, name="local", max_concurrency=2, models=["judge"])
        with ThreadPoolExecutor(2) as threads:
            spread = Endpoint.local(judge, name="threads", executor=threads, models=["judge"])
            async with QRewardClient([*fleet.endpoints, local, spread]) as client:
                batch = await client.batch_chat_completion(map(chat, range(200)), "judge")
                assert "".join([token async for token in client.stream_chat_completion(chat("streamed"), "judge")]) == "streamed"
                client.mark_unhealthy("server")
                client.mark_unhealthy("threads")
                assert (await client.chat_completion(chat("here"), "judge")).choices[0].message.content == "here"
    assert batch.texts() == [str(number) for number in range(200)]
    assert {result.endpoint for result in batch} == {"server", "local", "threads"}
    async with (
        ScorerPool(lengths, actors=2, backend="local") as pool,
        QRewardClient([Endpoint.actors(pool, models=["rm"], max_batch_size=8)]) as client,
    ):
        assert (await client.batch_score([("q", "a" * n) for n in range(50)], "rm")).scores() == list(map(float, range(50)))
        assert client.stats()["lengths"].answered < 50, "items share calls"


def judge_text(messages: list[dict[str, str]]) -> str:
    return messages[-1]["content"]


def lengths(items: list[dict[str, str]]) -> list[float]:
    return [float(len(item["response"])) for item in items]


async def test_an_application_in_this_process_is_an_endpoint_and_its_exception_is_a_retry_elsewhere() -> None:
    app, asked = FastAPI(), []

    @app.post("/v1/chat/completions")
    async def complete(body: dict[str, Any]) -> Any:
        asked.append(body["model"])
        if body["messages"][-1]["content"] == "crash":
            raise RuntimeError("no weights")
        return {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "from the app"}}]}

    recorder = Recorder()
    here = Endpoint.app(app, name="app", models=["judge"])
    async with QRewardClient([here, endpoint(recorder, "server", models=["judge"])]) as client:
        client.mark_unhealthy("server")
        assert (await client.chat_completion(HI, "judge")).choices[0].message.content == "from the app"
        client.mark_healthy("server")
        client.mark_unhealthy("server")
        crash = asyncio.ensure_future(client.chat_completion(chat("crash"), "judge"))
        await asyncio.sleep(0)
        client.mark_healthy("server")
        assert (await crash).choices[0].message.content == "re: crash"
    assert asked[0] == "judge"


def test_what_cannot_be_an_endpoint_is_refused_when_it_is_made() -> None:
    def yields(_: Any) -> Any:
        yield 1.0

    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: Endpoint.local("text"), "a local endpoint needs a function, not a str"),
        (lambda: Endpoint.local(yields), "must return its results, not yield them"),
        (lambda: Endpoint.local(lambda a, b, c, d: 0), "needs 4 arguments"),
        (lambda: Endpoint.local(lengths, max_batch_size=0), "max_batch_size must be"),
        (lambda: Endpoint.local(lengths, executor=object()), "executor must be"),  # type: ignore[arg-type]
        (lambda: Endpoint.local(lengths, max_concurency=2), "unknown setting 'max_concurency'"),
        (lambda: Endpoint.local(lengths, max_concurrency=0), "max_concurrency"),
        (lambda: Endpoint.actors(object(), method="score"), "Endpoint.actors needs a ScorerPool, or the handle of a Ray actor"),
        (lambda: Endpoint.actors(Actor(), method="scor"), "without a remote method 'scor'"),
        (lambda: Endpoint.app(object()), "needs an ASGI application"),
        (lambda: Endpoint("http://a", compute={"app": 1}), "compute: is set in code, by Endpoint.local"),
        (lambda: Endpoint.local(lengths, http_client=Recorder()), "http_client has no effect"),
        (lambda: pickle.dumps(Endpoint.app(FastAPI(), name="app")), "'app' cannot be pickled: it holds an application"),
    ]
    for make, words in cases:
        with pytest.raises(ConfigError) as caught:
            make()
        assert words in str(caught.value)


async def test_more_calls_at_once_are_allowed_while_the_client_runs() -> None:
    loop, go, running, both = asyncio.get_running_loop(), threading.Event(), [], asyncio.Event()

    def judge(messages: list[dict[str, str]]) -> str:
        running.append(messages)
        if len(running) == 3:
            loop.call_soon_threadsafe(both.set)
        assert len(running) == 1 or go.wait(20)
        return "yes"

    async with QRewardClient([Endpoint.local(judge)], hedge=None) as client:
        await client.chat_completion(HI, "judge")
        client.reload(client.config.model_copy(update={"endpoints": (Endpoint.local(judge, max_concurrency=2),)}))
        bulk = asyncio.ensure_future(client.batch_chat_completion([HI] * 2, "judge"))
        await both.wait()
        go.set()
        assert (await bulk).texts() == ["yes", "yes"]


def test_a_forked_process_counts_its_own_calls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = Slots()
    assert [slots.take(1), slots.take(1)] == [True, False]
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert [slots.take(1), slots.take(1)] == [True, False]


def test_a_local_endpoint_has_the_name_and_the_limits_of_its_function_and_can_be_pickled() -> None:
    made = Endpoint.local(lengths, max_batch_size=8, weight=2)
    assert (made.name, made.limits, made.weight) == ("lengths", Limits(max_concurrency=1, adaptive=False), 2.0)
    assert Endpoint.local(lengths, limits=Limits(rpm=60)).limits == Limits(rpm=60)
    assert Endpoint.actors(SimpleNamespace(score=SimpleNamespace(remote=print)), method="score").limits.max_concurrency == 1
    assert pickle.loads(pickle.dumps(made)) == made

    async def judge(_: Any) -> str:
        return ""

    assert Endpoint.local(judge, name="a").limits == Limits()
