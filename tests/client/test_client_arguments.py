"""Wrong arguments: each is told in words before anything is sent, and in a batch it costs no other item."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from client_tools import HI, MODEL, Recorder, endpoint, use

from qreward import BadRequest, ConfigError, Endpoint, QRewardClient, Route
from qreward.results import BatchResult

NAN, INF = float("nan"), float("inf")


class Opaque:
    pass


SHARED: list[tuple[dict[str, Any], str]] = [
    ({"model": ""}, "model must be the name of a model, not ''"),
    ({"model": None}, "model must be the name of a model, not None"),
    ({"model": 7}, "model must be the name of a model, not 7"),
    *(({"timeout": value}, "timeout must be a positive number of seconds") for value in (NAN, INF, -INF, -1, 0, True, "60")),
    *(({"priority": value}, "priority must be a whole number from 0") for value in (-1, 10, True, 2.5, "urgent", None)),
    ({"stream": True}, "stream=True cannot be used in this call; for tokens as they come, call stream_chat_completion"),
    ({"extra_body": {"stream": True}}, "stream=True cannot be used in this call; for tokens as they come, call stream_chat_completion"),
    ({"extra_body": {"model": "other"}}, "'model' cannot be set in extra_body; pass it as the argument model="),
    ({"extra_body": {"messages": HI}}, "'messages' cannot be set in extra_body; pass it as the argument messages="),
    ({"extra_body": "temperature=0"}, "extra_body must be a mapping"),
    ({"extra_body": [("temperature", 0)]}, "extra_body must be a mapping"),
    ({"extra_headers": ["x-trace: 1"]}, "extra_headers must be a mapping"),
    ({"temperature": NAN}, "temperature is nan, which JSON cannot represent"),
    ({"logit_bias": {"50256": INF}}, "logit_bias.50256 is inf"),
    ({"extra_body": {"guided": {"scale": [1.0, NAN]}}}, r"guided.scale\[1\] is nan"),
    ({"response_format": Opaque()}, "response_format is a .*Opaque, which JSON cannot hold"),
    ({"stop": [b"\n"]}, r"stop\[0\] holds bytes, not text"),
    ({"extra_headers": {"Content-Length": "5"}}, "the header 'Content-Length' is set by the HTTP backend"),
    ({"extra_headers": {"x-trace": "a\nb"}}, "'x-trace' holds characters that cannot be sent"),
    ({"extra_headers": {"x trace": "1"}}, "'x trace' is not a header name"),
    ({"extra_headers": {"x-trace": 5}}, "the value of 'x-trace'"),
]

MESSAGES: list[tuple[Any, str]] = [
    ("hi", "messages is a text; send"),
    ({"role": "user", "content": "hi"}, "messages is one message; put it in a list"),
    ({"messages": HI}, r"messages is a dict with the key 'messages'; pass the list that it holds: chat_completion\(item\['messages'\]"),
    (
        [{"messages": HI}],
        r"messages\[0\] is a dict with the key 'messages', not a message; .*batch_chat_completion\(\[item\['messages'",
    ),
    ([], "messages is empty"),
    (None, "messages is a NoneType"),
    (7, "messages is a int"),
    (iter(HI), "messages is a list_iterator"),
    (["hi"], r"messages\[0\] is a str; a message is a dict"),
    ([*HI, None], r"messages\[1\] is a NoneType"),
    ([HI], "several conversations go to batch_chat_completion"),
    ([{"content": "hi"}], r"messages\[0\] has no 'role'"),
    ([{"role": 1, "content": "hi"}], r"messages\[0\].role is a int"),
    ([{"role": "user", "content": b"hi"}], r"messages\[0\].content holds bytes, not text"),
    ([{"role": "user", "content": Opaque()}], r"messages\[0\].content is a .*Opaque"),
    ([*HI, {"role": "user", "content": [{"type": "x", "x": NAN}]}], r"messages\[1\].content\[0\].x is nan"),
]


def refused(said: str) -> Any:
    return pytest.raises((ConfigError, BadRequest), match=said)


@pytest.mark.parametrize(("arguments", "said"), SHARED)
def test_a_wrong_argument_of_a_call_is_told_before_anything_is_sent(arguments: dict[str, Any], said: str) -> None:
    recorder = Recorder()
    with refused(said):
        use(QRewardClient([endpoint(recorder)]), lambda client: client.chat_completion(HI, **{"model": MODEL, **arguments}))
    assert recorder.requests == []


@pytest.mark.parametrize(("arguments", "said"), SHARED)
def test_a_wrong_argument_of_a_batch_is_told_before_anything_is_sent(arguments: dict[str, Any], said: str) -> None:
    recorder, read = Recorder(), []

    def conversations() -> Any:
        for number in range(3):
            read.append(number)
            yield HI

    with refused(said):
        use(
            QRewardClient([endpoint(recorder)]),
            lambda client: client.batch_chat_completion(conversations(), **{"model": MODEL, **arguments}),
        )
    assert (recorder.requests, read) == ([], [])


@pytest.mark.parametrize(("messages", "said"), MESSAGES)
def test_wrong_messages_are_told_with_their_place_and_nothing_is_sent(messages: Any, said: str) -> None:
    recorder = Recorder()
    with pytest.raises(BadRequest, match=said):
        use(QRewardClient([endpoint(recorder)]), lambda client: client.chat_completion(messages, MODEL))
    assert recorder.requests == []


@pytest.mark.parametrize(("messages", "said"), MESSAGES)
def test_a_wrong_item_of_a_batch_fails_alone(messages: Any, said: str) -> None:
    recorder = Recorder()
    batch: BatchResult[Any] = use(
        QRewardClient([endpoint(recorder)]), lambda client: client.batch_chat_completion([HI, messages, HI], MODEL)
    )
    assert batch.texts() == ["re: hi", None, "re: hi"]
    with pytest.raises(BadRequest, match=said):
        _ = batch[1].value
    assert len(recorder.requests) == 2


@pytest.mark.parametrize("value", [NAN, INF, -1, 0, True, "60"])
def test_a_deadline_is_a_positive_number_of_seconds(value: Any) -> None:
    recorder = Recorder()
    with pytest.raises(ConfigError, match="deadline must be a positive number of seconds"):
        use(QRewardClient([endpoint(recorder)]), lambda client: client.batch_chat_completion([HI], MODEL, deadline=value))
    assert recorder.requests == []


@pytest.mark.parametrize("items", ["hi", b"hi", {"role": "user"}, None, 7])
@pytest.mark.parametrize("method", ["batch_chat_completion", "batch_embeddings"])
def test_the_input_of_a_batch_gives_items(method: str, items: Any) -> None:
    recorder = Recorder()
    with pytest.raises(ConfigError, match=f"must be a list, an iterator or an async iterator.*{type(items).__name__}"):
        use(QRewardClient([endpoint(recorder)]), lambda client: getattr(client, method)(items, MODEL))
    assert recorder.requests == []


async def async_callback(_: Any) -> None:
    pass


@pytest.mark.parametrize("on_result", [7, "print", async_callback])
def test_on_result_is_a_plain_function(on_result: Any) -> None:
    recorder = Recorder()
    with pytest.raises(ConfigError, match="on_result must be a plain function"):
        use(QRewardClient([endpoint(recorder)]), lambda client: client.batch_chat_completion([HI], MODEL, on_result=on_result))
    assert recorder.requests == []


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([], "input is empty"),
        ({"input": "hi"}, "input is a dict"),
        (7, "input is a int"),
        (["hi", 7], "input"),
        ([b"hi"], "input"),
        ([NAN], "input"),
    ],
)
def test_a_wrong_input_of_embeddings_is_told_and_nothing_is_sent(inputs: Any, said: str) -> None:
    recorder = Recorder()
    with pytest.raises(BadRequest, match=said):
        use(QRewardClient([endpoint(recorder)]), lambda client: client.embeddings(inputs, MODEL))
    assert recorder.requests == []


def fleet() -> QRewardClient:
    return QRewardClient([Endpoint("http://gpu-0:8000/v1", name="gpu-0"), Endpoint("http://gpu-1:8000/v1", name="gpu-1")])


CHANGES: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("register_model_route", ("judge-*", ["gpu-O"]), {}, "there is no endpoint 'gpu-O'; did you mean 'gpu-"),
    ("register_model_route", ("judge-*", ["elsewhere"]), {}, "the endpoints are 'gpu-0', 'gpu-1'"),
    ("register_model_route", ("judge-*", []), {}, "endpoints"),
    ("register_model_route", ("judge-*", "gpu-0"), {}, r"endpoints must be a list of names, such as \['gpu-0'\]"),
    ("register_model_route", ("judge-[", ["gpu-0"]), {}, r"bad pattern 'judge-\['"),
    ("register_model_route", ("", ["gpu-0"]), {}, "bad pattern ''"),
    ("register_model_route", (" judge", ["gpu-0"]), {}, "without blanks around it"),
    ("register_model_route", ("judge-*", ["gpu-0"]), {"strategy": "fastest"}, "strategy"),
    (
        "register_model_route",
        ("judge-*", ["gpu-0"]),
        {"weights": {"gpu-1": 2}},
        "weights.gpu-1: the route has no endpoint 'gpu-1'; did you mean 'gpu-0'",
    ),
    ("register_model_route", ("judge-*", ["gpu-0"]), {"weights": {"gpu-0": -2}}, "weights.gpu-0"),
    ("mark_unhealthy", ("gpu0",), {}, "did you mean 'gpu-0'"),
    ("mark_healthy", ("gpu0",), {}, "did you mean 'gpu-0'"),
    ("remove_endpoint", ("gpu0",), {}, "did you mean 'gpu-0'"),
    ("remove_endpoint", (None,), {}, "there is no endpoint None"),
    ("add_endpoint", ({"base_url": "http://gpu-2/v1", "name": "gpu-0"},), {}, "two endpoints are called 'gpu-0'"),
    ("add_endpoint", ({"base_url": "http://gpu-2/v1", "modles": ["x"]},), {}, "unknown setting 'modles'; did you mean 'models'"),
    ("add_endpoint", (7,), {}, "an endpoint must be an Endpoint, a mapping or a URL, not a int"),
]


@pytest.mark.parametrize(("method", "arguments", "keywords", "said"), CHANGES)
def test_a_wrong_change_of_the_fleet_is_told_and_changes_nothing(
    method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], said: str
) -> None:
    client = fleet()
    before = client.list_routes(), client.stats(), client.config
    with pytest.raises(ConfigError, match=said):
        getattr(client, method)(*arguments, **keywords)
    assert (client.list_routes(), client.stats(), client.config) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "endpoints: must hold at least one endpoint"),
        ({"endpoints": []}, "endpoints: must hold at least one endpoint"),
        ({"endpoints": ["http://a/v1", "http://a/v1"]}, "more than one is called 'a'"),
        ({"endpoints": "http://a/v1"}, "endpoints must be a list"),
        ({"endpoints": {"base_url": "http://a/v1"}}, "endpoints must be a list"),
        ({"endpoints": Endpoint("http://a/v1")}, "endpoints must be a list"),
        ({"endpoints": ["ftp://a"]}, "must be an http:// or https:// URL"),
        ({"endpoints": [7]}, "an endpoint must be an Endpoint, a mapping or a URL, not a int"),
        ({"endpoints": ["http://a/v1"], "timeout": -1}, "timeout"),
        ({"endpoints": ["http://a/v1"], "timeout": NAN}, "timeout"),
        (
            {"endpoints": ["http://a/v1"], "routes": [Route(pattern="x", endpoints=("b",))]},
            "routes.x.endpoints: there is no endpoint 'b'; the endpoints are 'a'",
        ),
    ],
)
def test_a_wrong_setting_of_a_client_is_told(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        QRewardClient(**arguments)


def test_a_client_needs_no_running_loop_and_leaves_nothing_if_it_is_not_used() -> None:
    client = fleet()
    asyncio.run(client.aclose())
    asyncio.run(client.aclose())
