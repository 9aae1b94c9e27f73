"""Wrong arguments: each is told in words before anything is sent, and in a batch it costs no other item."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from client_tools import HI, MODEL, Recorder, endpoint, use

from qreward import BadRequest, ConfigError, Endpoint, QRewardClient, Route
from qreward.options import batch_items, is_table
from qreward.results import BatchResult

NAN, INF = float("nan"), float("inf")
STREAM = "stream=True cannot be used in this call; for tokens as they come, call stream_chat_completion"
SHARED: list[tuple[dict[str, Any], str]] = [
    *(({"model": value}, "model must be the name of a model, not") for value in ("", 7)),
    *(({"timeout": value}, "timeout must be a positive number of seconds") for value in (NAN, INF, 10**400, -1, 0, True, "60")),
    *(({"priority": value}, "priority must be a whole number from 0") for value in (-1, 10, True, 2.5, "urgent", None)),
    ({"stream": True}, STREAM),
    ({"extra_body": {"stream": True}}, STREAM),
    ({"extra_body": {"model": "other"}}, "'model' cannot be set in extra_body; pass it as the argument model="),
    ({"extra_body": "temperature=0"}, "extra_body must be a mapping"),
    ({"extra_headers": ["x-trace: 1"]}, "extra_headers must be a mapping"),
    ({"extra_body": {"guided": {"scale": [1.0, NAN]}}}, r"guided.scale\[1\] is nan"),
    ({"response_format": object()}, "response_format is a .*object, which JSON cannot hold"),
    ({"extra_headers": {"Content-Length": "5"}}, "the header 'Content-Length' is set by the HTTP backend"),
    ({"extra_headers": {"x-trace": "a\nb"}}, "'x-trace' holds characters that cannot be sent"),
]


def mismatch(kinds: type[Exception] | tuple[type[Exception], ...], said: str, asking: Callable[[], object]) -> str | None:
    """None if it raises an error of a kind with the words, else what it does."""
    try:
        asking()
    except kinds as error:
        return None if re.search(said, str(error)) else str(error)
    return "accepted"


def test_a_wrong_argument_of_a_call_or_a_batch_is_an_error_before_anything_is_read_or_sent() -> None:
    recorder, read, wrong = Recorder(), [], []

    def conversations() -> Iterator[Any]:
        for number in range(3):
            read.append(number)
            yield HI

    for changes, said in SHARED:
        arguments = {"model": MODEL, **changes}
        for asking in (
            lambda client: client.chat_completion(HI, **arguments),  # noqa: B023
            lambda client: client.batch_chat_completion(conversations(), **arguments),  # noqa: B023
        ):
            found = mismatch((ConfigError, BadRequest), said, lambda: use(QRewardClient([endpoint(recorder)]), asking))  # noqa: B023
            wrong += [] if found is None else [(changes, found)]
    assert wrong == []
    assert (recorder.requests, read) == ([], [])


def test_wrong_messages_are_an_error_with_their_place_and_in_a_batch_fail_alone() -> None:
    """The kinds of wrong messages are in tests/codecs."""
    for messages, said in (
        ([HI], "several conversations go to batch_chat_completion"),
        ([*HI, {"role": "user", "content": [{"type": "x", "x": NAN}]}], r"messages\[1\].content\[0\].x is nan"),
    ):
        recorder = Recorder()
        call = lambda client: client.chat_completion(messages, MODEL)  # noqa: B023, E731
        assert mismatch(BadRequest, said, lambda: use(QRewardClient([endpoint(recorder)]), call)) is None  # noqa: B023
        assert recorder.requests == []
        asking = lambda client: client.batch_chat_completion([HI, messages, HI], MODEL)  # noqa: B023, E731
        batch: BatchResult[Any] = use(QRewardClient([endpoint(recorder)]), asking)
        assert batch.texts() == ["re: hi", None, "re: hi"]
        assert len(recorder.requests) == 2
        assert mismatch(BadRequest, said, lambda: batch[1].value) is None  # noqa: B023


async def async_callback(_: Any) -> None:
    pass


class Table:
    """As long as it has rows, but iterating gives the names of its columns."""

    columns, shape = ("prompt", "response"), (3, 2)

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Any:
        return iter(self.columns)


LIST = "must be a list, an iterator or an async iterator"
OF_BATCHES: list[tuple[str, Any, dict[str, Any], str]] = [
    *(("batch_chat_completion", [HI], {"deadline": value}, "deadline must be a positive number of seconds") for value in (NAN, -1, "60")),
    *(("batch_chat_completion", [HI], {"on_result": value}, "on_result must be a plain function") for value in (7, async_callback)),
    *(("batch_chat_completion", [HI], {"keep_results": value}, "keep_results must be True or False") for value in (None, 0, "no")),
    *(("batch_chat_completion", items, {}, f"{LIST}.*{type(items).__name__}") for items in ("hi", b"hi", {"role": "user"}, None, 7)),
    ("batch_embeddings", "hi", {}, f"{LIST}.*str"),
    *((f"batch_{method}", Table(), {}, r"not a table,.* pass one column") for method in ("score", "embeddings", "moderation")),
    ("embeddings", [], {}, "input is empty"),
]


def test_a_data_set_that_gives_rows_is_no_table_although_it_names_its_columns_or_has_their_shape() -> None:
    for name, value in (("columns", ["text"]), ("shape", (2, 1))):  # data sets of Hugging Face have a shape
        rows = type("Rows", (list,), {name: value})(["a", "b"])
        assert batch_items("texts", rows) is rows
    import pyarrow  # type: ignore[import-not-found,unused-ignore]

    table = pyarrow.table({"text": ["a", "b"]})
    assert is_table(table)
    assert is_table(table.to_batches()[0])


def test_a_coroutine_that_another_library_than_asyncio_runs_says_what_to_use_instead() -> None:
    client = QRewardClient([endpoint(Recorder())])
    for work in (client.chat_completion(HI, MODEL), client.batch_chat_completion([HI], MODEL), client.aclose()):
        with pytest.raises(RuntimeError, match=r"asyncio.*SyncQRewardClient; in trio, in a thread"):
            work.send(None)  # as trio does


def test_a_wrong_input_deadline_or_callback_is_an_error_before_anything_is_sent() -> None:
    recorder, wrong = Recorder(), []
    for method, items, settings, said in OF_BATCHES:
        asking = lambda client: getattr(client, method)(items, MODEL, **settings)  # noqa: B023, E731
        kind = BadRequest if method == "embeddings" else ConfigError
        found = mismatch(kind, said, lambda: use(QRewardClient([endpoint(recorder)]), asking))  # noqa: B023
        wrong += [] if found is None else [(method, items, settings, found)]
    assert wrong == []
    assert recorder.requests == []


def fleet() -> QRewardClient:
    return QRewardClient([Endpoint("http://gpu-0:8000/v1", name="gpu-0"), Endpoint("http://gpu-1:8000/v1", name="gpu-1")])


CHANGES: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("register_model_route", ("judge-*", ["gpu-O"]), {}, "there is no endpoint 'gpu-O'; did you mean 'gpu-"),
    ("register_model_route", ("judge-*", ["elsewhere"]), {}, "the endpoints are 'gpu-0', 'gpu-1'"),
    ("register_model_route", ("judge-*", []), {}, "endpoints"),
    ("register_model_route", ("judge-*", "gpu-0"), {}, r"endpoints must be a list of names, such as \['gpu-0'\]"),
    ("register_model_route", ("judge-[", ["gpu-0"]), {}, r"bad pattern 'judge-\['"),
    ("register_model_route", ("judge-*", ["gpu-0"]), {"strategy": "fastest"}, "strategy"),
    ("register_model_route", ("judge-*", ["gpu-0"]), {"strategy": "power_of_two"}, "must be 'expected_finish', .* not 'power_of_two'"),
    ("register_model_route", ("judge-*", ["gpu-0"]), {"strategy": "consistent_hash"}, "or 'least_connections', not 'consistent_hash'"),
    ("register_model_route", ("judge-*", ["gpu-0"]), {"weights": {"gpu-1": 2}}, "weights.gpu-1: the route has no endpoint 'gpu-1'"),
    ("register_model_route", ("judge-*", ["gpu-0"]), {"weights": {"gpu-0": -2}}, "weights.gpu-0"),
    ("mark_unhealthy", ("gpu0",), {}, "did you mean 'gpu-0'"),
    ("mark_healthy", ("gpu0",), {}, "did you mean 'gpu-0'"),
    ("remove_endpoint", ("gpu0",), {}, "did you mean 'gpu-0'"),
    ("remove_endpoint", (None,), {}, "there is no endpoint None"),
    ("add_endpoint", ({"base_url": "http://gpu-2/v1", "name": "gpu-0"},), {}, "two endpoints are called 'gpu-0'"),
    ("add_endpoint", ({"base_url": "http://gpu-2/v1", "modles": ["x"]},), {}, "unknown setting 'modles'; did you mean 'models'"),
    ("add_endpoint", (7,), {}, "an endpoint must be an Endpoint, a mapping or a URL, not a int"),
]


def test_a_wrong_change_of_the_fleet_is_an_error_and_changes_nothing() -> None:
    client, wrong = fleet(), []
    before = client.list_routes(), client.stats(), client.config
    for method, arguments, keywords, said in CHANGES:
        found = mismatch(ConfigError, said, lambda: getattr(client, method)(*arguments, **keywords))  # noqa: B023
        wrong += [] if found is None else [(method, arguments, found)]
        assert (client.list_routes(), client.stats(), client.config) == before, (method, arguments)
    assert wrong == []


def test_a_wrong_setting_of_a_client_is_an_error() -> None:
    settings: list[tuple[dict[str, Any], str]] = [
        ({}, "endpoints: must contain at least one endpoint"),
        ({"endpoints": []}, "endpoints: must contain at least one endpoint"),
        ({"endpoints": ["http://a/v1", "http://a/v1"]}, "more than one is called 'a'"),
        *(
            ({"endpoints": one}, "endpoints must be a list")
            for one in ("http://a/v1", {"base_url": "http://a/v1"}, Endpoint("http://a/v1"))
        ),
        ({"endpoints": [7]}, "an endpoint must be an Endpoint, a mapping or a URL, not a int"),
        ({"endpoints": ["http://a/v1"], "timeout": -1}, "timeout"),
        (
            {"endpoints": ["http://a/v1"], "routes": [Route(pattern="x", endpoints=("b",))]},
            "routes.x.endpoints: there is no endpoint 'b'; the endpoints are 'a'",
        ),
    ]
    found = {str(given): mismatch(ConfigError, said, lambda: QRewardClient(**given)) for given, said in settings}  # noqa: B023
    assert {given: what for given, what in found.items() if what is not None} == {}


def test_a_client_needs_no_running_loop_and_leaves_nothing_if_it_is_not_used() -> None:
    client = fleet()
    asyncio.run(client.aclose())
    asyncio.run(client.aclose())
