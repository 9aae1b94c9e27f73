"""An endpoint that stands for a list of addresses: they join and leave while a batch runs, and nothing is lost."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import pickle
import socket
import threading
from contextlib import nullcontext
from http.client import IncompleteRead
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from engine_tools import MODEL, client_of, now
from reload_tools import Servers, ask, begin

from qreward import ConfigError, Endpoint, Limits, LoadBalanceStrategy, QRewardClient, Route
from qreward.cli.check import check_all
from qreward.engine import fleet
from qreward.live.channel import Order, steer
from qreward.runtime import runtime_of
from qreward.settings.client import ClientConfig
from qreward.testing import FakeEndpoint, FakeFleet

DNS = "dns://judges:8000/v1"


class Names:
    """What a resolver answers: addresses, or an error."""

    def __init__(self, *found: str) -> None:
        self.found: tuple[str, ...] | Exception = found
        self.asked: list[Any] = []

    def __call__(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked.append((host, port))
        if isinstance(self.found, Exception):
            raise self.found
        return [(None, None, 0, "", (address, port)) for address in self.found]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    found = Names("10.0.0.2", "10.0.0.1", "10.0.0.1")
    monkeypatch.setattr(fleet.socket, "getaddrinfo", found)
    return found


def judges(url: str = DNS, **settings: Any) -> Endpoint:
    return Endpoint(url, name="judges", limits=Limits(max_concurrency=2, adaptive=False), refresh=1000, **settings)


def look_again(client: QRewardClient) -> None:
    """Let all lists be due, and read them."""
    lists = runtime_of(client).addresses
    for known in lists.lists.values():
        known.due = 0
    lists.check()


async def test_addresses_join_and_leave_while_a_batch_runs_and_nothing_is_lost(names: Names) -> None:
    wire = Servers(seconds=1)
    async with client_of(wire, [judges(models=[MODEL])]) as client:
        running = begin(client, 40)
        await asyncio.sleep(2.5)
        assert list(client.stats()) == ["10.0.0.1:8000", "10.0.0.2:8000"]
        names.found = ("10.0.0.2", "10.0.0.3", "::1")
        look_again(client)
        await asyncio.sleep(0.1)
        assert list(client.stats()) == ["10.0.0.2:8000", "10.0.0.3:8000", "[::1]:8000"]
        batch = await running
    assert (batch.stats.ok, batch.stats.failed) == (40, 0)
    assert {result.endpoint for result in batch} == {"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "[::1]:8000"}
    assert all(len(result.attempts) == 1 for result in batch), "what an address that leaves had in flight is finished"
    assert set(names.asked) == {("judges", 8000)}
    assert now() < 10


async def test_an_address_that_stays_keeps_what_was_learned_about_it(names: Names) -> None:
    async with client_of(Servers(), [judges()]) as client:
        await ask(client)
        before = {source.name: source for source in runtime_of(client).fleet.sources()}
        names.found = ("10.0.0.2", "10.0.0.1", "10.0.0.9")
        look_again(client)
        after = {source.name: source for source in runtime_of(client).fleet.sources()}
        assert {name: after[name] for name in before} == before
        client.reload(ClientConfig(endpoints=(judges(weight=3.0),)))
        again = {source.name: source for source in runtime_of(client).fleet.sources()}
        assert (again, {source.weight for source in again.values()}) == (after, {3.0})


async def test_the_last_list_is_kept_with_one_warning_while_the_name_cannot_be_resolved(
    names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    async with client_of(Servers(), [judges()]) as client:
        for fault in (socket.gaierror(-2, "Name or service not known"), (), IncompleteRead(b"http://10")):
            names.found = fault  # type: ignore[assignment]
            with caplog.at_level(logging.WARNING, "qreward"):
                caplog.clear()
                look_again(client)
                look_again(client)
            (text,) = [record.getMessage() for record in caplog.records]
            assert text.startswith("endpoint 'judges': its list of addresses ")
            assert text.endswith("its last 2 addresses are kept")
            assert list(client.stats()) == ["10.0.0.1:8000", "10.0.0.2:8000"]
        names.found = ("10.0.0.7",)
        look_again(client)
        assert list(client.stats()) == ["10.0.0.7:8000"]
        assert (await ask(client)) == "re: x"


async def test_routes_limits_and_orders_name_the_whole_list(names: Names) -> None:
    routes = (Route(pattern="rm-*", endpoints=("judges", "x"), strategy=LoadBalanceStrategy.WEIGHTED_ROUND_ROBIN, weights={"judges": 3}),)
    config = ClientConfig(endpoints=(judges(price=(1, 2)), Endpoint("http://x/v1", name="x")), routes=routes)
    async with client_of(Servers(), config.endpoints, routes=routes) as client:
        assert client.config == config == pickle.loads(pickle.dumps(client)).config
        assert client.reload(config) == frozenset()
        (route,) = [each for each in client.list_routes() if each.pattern == "rm-*"]
        assert (route.endpoints, route.weights) == (
            ("10.0.0.1:8000", "10.0.0.2:8000", "x"),
            {"10.0.0.1:8000": 3, "10.0.0.2:8000": 3},
        )
        assert runtime_of(client).prices == {"10.0.0.1:8000": (1, 2), "10.0.0.2:8000": (1, 2)}
        steer({1: runtime_of(client)}, Order("limit", "10.0.0.1:8000", {"rpm": 60}))
        assert [endpoint.limits.rpm for endpoint in client.config.endpoints] == [60, None]
        with pytest.raises(ConfigError, match=r"'10\.0\.0\.1:8000' is an address of 'judges'"):
            client.remove_endpoint("10.0.0.1:8000")
        client.remove_endpoint("judges")
        assert list(client.stats()) == ["x"]


async def test_a_list_that_clashes_with_another_endpoint_is_not_applied(names: Names, caplog: pytest.LogCaptureFixture) -> None:
    async with client_of(Servers(), [judges(), Endpoint("http://10.0.0.5:8000/v1")]) as client:
        names.found = ("10.0.0.5",)
        with caplog.at_level(logging.WARNING, "qreward"):
            look_again(client)
        assert "two endpoints are called '10.0.0.5:8000'" in caplog.text
        assert list(client.stats()) == ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.5:8000"]


async def test_a_reload_that_is_refused_leaves_the_lists_that_are_read_again_as_they_were(tmp_path: Path, names: Names) -> None:
    async with client_of(Servers(), [judges()]) as client:
        (tmp_path / "others").write_text("http://b:1/v1")
        with pytest.raises(ConfigError, match="two endpoints are called 'b:1'"):
            client.reload(ClientConfig(endpoints=(Endpoint(f"list:{tmp_path / 'others'}"), Endpoint("http://b:1/v1"))))
        names.found = ("10.0.0.9",)
        look_again(client)
        assert list(client.stats()) == ["10.0.0.9:8000"]


async def test_a_list_that_replaces_another_while_that_one_is_read_in_vain_is_read_from_then_on(
    names: Names, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with client_of(Servers(), [judges()]) as client:

        def hangs(*_: Any, **__: Any) -> Any:
            monkeypatch.setattr(fleet.socket, "getaddrinfo", names)
            client.reload(ClientConfig(endpoints=(judges("dns://others:8000/v1"),)))
            raise TimeoutError

        monkeypatch.setattr(fleet.socket, "getaddrinfo", hangs)
        with caplog.at_level(logging.WARNING, "qreward"):
            look_again(client)
        assert caplog.messages == []
        names.found = ("10.0.0.9",)
        look_again(client)
        assert list(client.stats()) == ["10.0.0.9:8000"]
        assert names.asked[-1] == ("others", 8000)


def test_an_answer_that_is_cut_off_is_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    for read, said in ((lambda _: b"http://a:1/v1", "was cut off, 9 bytes before"), (Mock(side_effect=IncompleteRead(b"")), "Incomplete")):
        reply = nullcontext(SimpleNamespace(read=read, length=9))
        monkeypatch.setattr(fleet.urllib.request, "urlopen", lambda *_, reply=reply, **__: reply)
        with pytest.raises(ConfigError, match=f"endpoint 'judges': its list of addresses cannot be used: .*{said}"):
            QRewardClient([judges("list:http://lists/judges")])


def test_a_list_is_lines_or_json_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "judges"
    for text in ("# judges\nhttp://a:1/v1\n\n http://b:2/v1/ # slow\n", '["http://a:1/v1", "http://b:2/v1"]'):
        file.write_text(text)
        config = fleet.resolved(ClientConfig(endpoints=(Endpoint(f"list:{file}", models=["m"]),)))
        assert [(each.name, each.base_url, each.models) for each in config.endpoints] == [
            ("a:1", "http://a:1/v1", ("m",)),
            ("b:2", "http://b:2/v1", ("m",)),
        ]


def test_a_list_that_cannot_be_used_is_an_error_before_the_first_request(tmp_path: Path, names: Names) -> None:
    names.found = socket.gaierror(-2, "Name or service not known")
    file = tmp_path / "judges"
    for url, text, expected in (
        (DNS, "", "Name or service not known"),
        (f"list:{file}-2", "", "No such file"),
        (f"list:{file}", "# nothing\n", "is empty"),
        (f"list:{file}", '["http', "cannot be used"),
        (f"list:{file}", "[1]", "must be a valid string"),
        (f"list:{file}", DNS, "another list"),
        (f"list:{file}", "http://u:sk-secret@a/v1", "must not hold a user"),
        (f"list:{file}", "x" * 1_000_001, "longer than"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=expected) as caught:
            QRewardClient([judges(url)])
        assert "endpoint 'judges'" in str(caught.value)
        assert "sk-secret" not in str(caught.value)
    for url, expected in (
        ("dns://judges/v1", "must name a port"),
        ("list:ftp://x/y", "must be an http"),
        ("list:https://u:sk-secret@x/y", "must not hold a user"),
        ("list:", "must be an http"),
    ):
        with pytest.raises(ConfigError, match=expected) as caught:
            Endpoint(url)
        assert "sk-secret" not in str(caught.value)


@pytest.mark.real_time
async def test_a_thread_reads_the_list_of_a_url_again_until_the_client_is_closed(tmp_path: Path) -> None:
    async with FakeFleet([FakeEndpoint("a"), FakeEndpoint("b")]) as fleet:
        file = tmp_path / "judges"
        file.write_text(fleet.urls["a"])
        client = QRewardClient([Endpoint(f"list:{file}", refresh=0.01)])
        file.with_suffix(".new").write_text(json.dumps([*fleet.urls.values()]))
        file.with_suffix(".new").rename(file)
        while len(client.stats()) < 2:  # noqa: ASYNC110 - a thread changes it
            await asyncio.sleep(0.01)
        answers = await client.batch_chat_completion([[{"role": "user", "content": str(n)}] for n in range(20)], MODEL)
        assert answers.stats.ok == 20
        assert [each["name"] for each in await check_all(client.config, 5, calls=False)] == list(client.stats())
        thread = runtime_of(client).addresses._thread
        assert thread is not None
        await client.aclose()
        await asyncio.to_thread(thread.join)


def test_the_thread_ends_with_a_client_that_was_not_closed(names: Names) -> None:
    client = QRewardClient([judges().model_copy(update={"refresh": 0.01})])
    thread = runtime_of(client).addresses._thread
    assert isinstance(thread, threading.Thread)
    del client
    gc.collect()
    thread.join()
