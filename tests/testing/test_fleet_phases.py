"""Phases of a fake judge: laid on a line of time, and carried out on a real port."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import socket

import aiohttp
import pytest
from fakes.lower_bound import SupplyTimeline as Timeline
from fleet_tools import serving
from shared_tools import each, until

from qreward.errors import ConfigError
from qreward.testing import FakeEndpoint, FakeFleet, Latency, Phase


def slow(start: float, end: float | None = None, factor: float = 10) -> Phase:
    return Phase(behaviour="slow", start=start, end=end, factor=factor)


def dead(start: float = 0, end: float | None = None) -> Phase:
    return Phase(behaviour="dead", start=start, end=end)


SHORT_HANG = Phase(behaviour="hang", start=1, end=5)
ERROR = Phase(behaviour="error_503", start=1, end=2)
PLANS: list[tuple[list[Phase], float, float, tuple[float, str | None]]] = [
    # phases; begin and seconds of work; its end, and the error that ends it
    ([], 5, 2, (7, None)),
    ([slow(1, 2)], 0, 3, (3.9, None)),  # one second does a tenth of the work
    ([slow(1, 2)], 0, 0.5, (0.5, None)),
    ([slow(0)], 0, 3, (30, None)),
    ([SHORT_HANG], 0, 2, (6, None)),
    ([Phase(behaviour="hang")], 0, 1, (math.inf, None)),
    ([ERROR], 0.5, 1, (1, "error_503")),
    ([ERROR], 0.5, 0.4, (0.9, None)),
    ([ERROR], 2, 1, (3, None)),
]


def test_work_ends_when_it_is_done_slower_or_later_by_the_phases_or_in_the_error_of_one() -> None:
    found = [Timeline(tuple(phases)).plan(begin, seconds) for phases, begin, seconds, _ in PLANS]
    assert found == [(pytest.approx(end), error) for *_, (end, error) in PLANS]
    assert Timeline(()).work(7) == 7
    for phases, begin, seconds, (end, error) in PLANS:
        if begin == 0 and error is None and end < math.inf:
            assert Timeline(tuple(phases)).work(end) == pytest.approx(seconds), phases


def test_dead_comes_before_other_phases_and_the_first_listed_before_later_ones() -> None:
    timeline = Timeline((slow(0, 10), Phase(behaviour="hang", start=0, end=10), dead(2, 3)))
    assert [phase and phase.behaviour for phase in map(timeline.at, (1, 2, 3, 10))] == ["slow", "dead", "slow", None]


def test_the_best_time_to_send_is_after_the_trouble_if_that_is_sooner() -> None:
    found = [Timeline((phase,)).earliest(seconds) for phase, seconds in ((dead(1, 4), 0.5), (dead(1, 4), 2), (dead(1), 2))]
    assert found == [0.5, 6, math.inf]


def refused(url: str) -> bool:
    port = int(url.rsplit(":", 1)[1].partition("/")[0])
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@each("process", [False, True])
async def test_a_killed_endpoint_aborts_what_is_under_way_refuses_connections_and_revives_on_the_same_port(process: bool) -> None:
    async with serving(FakeEndpoint("a", latency=Latency(base=30)), FakeEndpoint("b"), process=process) as client:
        fleet, url = client.fleet, client.fleet.urls["a"]
        tasks = [asyncio.create_task(client.chat("a", str(number))) for number in range(5)]
        await until(lambda: fleet.seen("a").in_flight == 5)
        fleet.kill("a")
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError) for end in ends), ends
        await until(lambda: fleet.seen("a").in_flight == 0)
        seen = fleet.seen("a")
        assert (seen.errors, seen.disconnects, seen.answered) == ({"dead": 5}, 0, 0)
        fleet.set("a", latency=Latency())
        for _ in range(3):
            assert refused(url)
            with pytest.raises(aiohttp.ClientConnectorError):
                await client.get("a", "/health")
            assert (await client.chat("b")).status == 200
            for _ in range(5):  # without a pause
                fleet.revive("a")
                fleet.revive("a")
                fleet.kill("a")
                fleet.kill("a")
            fleet.revive("a")
            assert fleet.urls["a"] == url
            assert (await client.chat("a")).status == 200
            fleet.kill("a")


async def test_an_endpoint_dies_with_what_is_under_way_and_comes_back_by_itself() -> None:
    async with serving(FakeEndpoint("a", phases=[dead(1, 2.5)], latency=Latency(base=30))) as client:
        with pytest.raises((aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)):
            await client.chat("a", "third")
        assert refused(client.fleet.urls["a"])
        client.fleet.set("a", latency=Latency())
        await until(lambda: not refused(client.fleet.urls["a"]))
        assert (await client.chat("a", "fourth")).status == 200
        assert client.fleet.seen("a").errors == {"dead": 1}


async def test_an_error_phase_answers_all_with_the_error_and_says_when_it_is_over() -> None:
    phase = Phase(behaviour="error_503", end=40)
    async with serving(FakeEndpoint("a", phases=[phase], retry_after="seconds"), FakeEndpoint("b", phases=[phase])) as client:
        answer = await client.chat("a")
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (503, 503)
        assert 30 < int(answer.headers["Retry-After"]) <= 42
        assert "Retry-After" not in (await client.chat("b")).headers
        assert (await client.get("a", "/health")).status == 503
        assert client.fleet.seen("a").errors == {"error_503": 1}


async def test_an_error_phase_ends_what_is_under_way_when_it_begins() -> None:
    phase = Phase(behaviour="error_500", start=0.05, end=60)
    async with serving(FakeEndpoint("a", phases=[phase], latency=Latency(base=30))) as client:
        assert (await client.chat("a")).status == 500
        client.fleet.reset()
        assert (await client.chat("a", stream=True)).status == 500, "before the first token there is still a status"
        client.fleet.set("a", latency=Latency(per_token=0.005, tokens=10_000))
        client.fleet.reset()
        with pytest.raises(aiohttp.ClientPayloadError):
            await client.chat("a", stream=True)
        assert client.fleet.seen("a").errors == {"error_500": 1}


async def test_a_hang_phase_answers_nothing_until_it_ends() -> None:
    async with serving(FakeEndpoint("a", phases=[Phase(behaviour="hang")])) as client:
        task = asyncio.create_task(client.chat("a"))
        await until(lambda: client.fleet.seen("a").in_flight == 1)
        client.fleet.set("a", phases=())
        assert (await client.chat("a")).status == 200
        assert not task.done()
        task.cancel()
        await until(lambda: client.fleet.seen("a").in_flight == 0)


async def test_reset_starts_phases_counters_and_buckets_from_their_beginning() -> None:
    phase = Phase(behaviour="error_500", end=2)
    async with serving(FakeEndpoint("a", phases=[phase], rpm=0.001, burst=1)) as client:
        for _ in range(2):
            statuses = [500]
            while statuses[-1] == 500:
                statuses.append((await client.chat("a")).status)
                await asyncio.sleep(0.05)
            assert statuses[1] == 500, "the phase is at its beginning"
            assert statuses[-1] == 200, "and the bucket is full"
            assert client.fleet.seen("a").duplicates == len(statuses) - 2
            client.fleet.reset()
            seen = client.fleet.seen("a")
            assert (seen.requests, seen.duplicates, seen.errors) == (0, 0, {})


def test_what_cannot_be_set_is_refused_and_changes_nothing() -> None:
    with FakeFleet([FakeEndpoint("a")]) as fleet:
        for changes in ({"port": 1}, {"max_concurency": 1}, {"max_concurrency": 0}):
            with pytest.raises(ConfigError):
                fleet.set("a", **changes)
        with pytest.raises(ConfigError, match="there is no endpoint 'b'; the endpoints are 'a'"):
            fleet.kill("b")
        assert not refused(fleet.urls["a"])


@each("iterations", list(range(6)))
async def test_a_connection_that_arrives_just_before_the_death_is_reset(iterations: int) -> None:
    async with FakeFleet([FakeEndpoint("a")]) as fleet:
        await asyncio.sleep(0)
        port = int(fleet.urls["a"].rsplit(":", 1)[1].partition("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as client:
            for _ in range(iterations):
                await asyncio.sleep(0)
            fleet.kill("a")
            client.setblocking(False)
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1), 10)
    gc.collect()  # an unclosed socket would warn, and warnings are errors
