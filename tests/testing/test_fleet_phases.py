"""Phases of a fake judge: laid on a line of time, and carried out on a real port."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from email.utils import parsedate_to_datetime
from time import time

import aiohttp
import pytest
from fleet_tools import run, serving, until
from hypothesis import given
from hypothesis import strategies as st

from qreward.errors import ConfigError
from qreward.testing import FakeEndpoint, FakeFleet, Latency, Phase
from qreward.testing.lower_bound import Timeline


def line(*phases: Phase) -> Timeline:
    return Timeline(phases)


def slow(start: float, end: float | None = None, factor: float = 10) -> Phase:
    return Phase(behaviour="slow", start=start, end=end, factor=factor)


def dead(start: float = 0, end: float | None = None) -> Phase:
    return Phase(behaviour="dead", start=start, end=end)


def test_without_phases_work_takes_its_time() -> None:
    assert line().plan(5, 2) == (7, None)
    assert line().work(7) == 7


def test_work_slows_down_for_just_as_long_as_the_phase_lasts() -> None:
    assert line(slow(1, 2)).plan(0, 3) == (pytest.approx(3.9), None)  # one second does a tenth of the work
    assert line(slow(1, 2)).plan(0, 0.5) == (0.5, None)
    assert line(slow(0)).plan(0, 3) == (pytest.approx(30), None)


def test_a_hang_stops_work_and_lets_it_go_on_after() -> None:
    hang = Phase(behaviour="hang", start=1, end=5)
    assert line(hang).plan(0, 2) == (6, None)
    assert line(Phase(behaviour="hang")).plan(0, 1) == (math.inf, None)


def test_what_is_under_way_ends_in_an_error_when_an_error_begins() -> None:
    error = Phase(behaviour="error_503", start=1, end=2)
    assert line(error).plan(0.5, 1) == (1, "error_503")
    assert line(error).plan(0.5, 0.4) == (pytest.approx(0.9), None)
    assert line(error).plan(2, 1) == (3, None)


def test_dead_comes_before_other_phases_and_the_first_listed_before_later_ones() -> None:
    timeline = line(slow(0, 10), Phase(behaviour="hang", start=0, end=10), dead(2, 3))
    assert [phase and phase.behaviour for phase in map(timeline.at, (1, 2, 3, 10))] == ["slow", "dead", "slow", None]


def test_the_best_time_to_send_is_after_the_trouble_if_that_is_sooner() -> None:
    assert line(dead(1, 4)).earliest(0.5) == 0.5
    assert line(dead(1, 4)).earliest(2) == 6
    assert line(dead(1)).earliest(2) == math.inf


def test_a_phase_after_so_many_requests_begins_with_that_request() -> None:
    timeline = line(Phase(behaviour="error_500", after_requests=3, start=1, end=2))
    assert not timeline.count(2, now=10)
    assert timeline.plan(10, 100) == (110, None)
    assert timeline.count(3, now=20)
    assert not timeline.count(4, now=30), "it begins once"
    assert timeline.plan(20, 100) == (21, "error_500")
    assert timeline.next_change(21) == 22


@given(
    phases=st.lists(
        st.tuples(st.sampled_from(["slow", "hang"]), st.floats(0, 10), st.floats(0.1, 10), st.floats(1, 20)).map(
            lambda drawn: Phase(behaviour=drawn[0], start=drawn[1], end=drawn[1] + drawn[2], factor=drawn[3])
        ),
        max_size=5,
    ),
    service=st.floats(0.01, 20),
)
def test_a_plan_ends_when_the_line_of_time_has_done_that_much_work(phases: list[Phase], service: float) -> None:
    timeline = Timeline(tuple(phases))
    end, error = timeline.plan(0, service)
    assert error is None
    assert timeline.work(end) == pytest.approx(service, rel=1e-6)


def refused(url: str) -> bool:
    port = int(url.rsplit(":", 1)[1].partition("/")[0])
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize("process", [False, True])
def test_a_killed_endpoint_refuses_connections_and_revives_on_the_same_port(process: bool) -> None:
    async def main() -> None:
        async with serving(FakeEndpoint("a"), FakeEndpoint("b"), process=process) as client:
            fleet, url = client.fleet, client.fleet.urls["a"]
            for _ in range(3):
                assert (await client.chat("a")).status == 200
                fleet.kill("a")
                assert refused(url)
                with pytest.raises(aiohttp.ClientConnectorError):
                    await client.get("a", "/health")
                assert (await client.chat("b")).status == 200
                fleet.revive("a")
                assert fleet.urls["a"] == url
                assert (await client.chat("a")).status == 200

    run(main())


def test_kill_and_revive_may_follow_each_other_without_a_pause() -> None:
    async def main() -> None:
        async with serving(FakeEndpoint("a")) as client:
            for _ in range(20):
                client.fleet.kill("a")
                client.fleet.kill("a")
                assert refused(client.fleet.urls["a"])
                client.fleet.revive("a")
                client.fleet.revive("a")
            assert (await client.chat("a")).status == 200

    run(main())


@pytest.mark.parametrize("process", [False, True])
def test_a_kill_aborts_what_is_under_way(process: bool) -> None:
    async def main() -> None:
        async with serving(FakeEndpoint("a", latency=Latency(base=30)), process=process) as client:
            tasks = [asyncio.create_task(client.chat("a", str(number))) for number in range(5)]
            await until(lambda: client.fleet.seen("a").in_flight == 5)
            client.fleet.kill("a")
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(end, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError) for end in ends), ends
            await until(lambda: client.fleet.seen("a").in_flight == 0)
            seen = client.fleet.seen("a")
            assert (seen.errors, seen.disconnects, seen.answered) == ({"dead": 5}, 0, 0)

    run(main())


def test_a_dead_phase_ends_on_the_same_port() -> None:
    async def main() -> None:
        async with serving(FakeEndpoint("a", phases=[dead(0, 0.05)])) as client:
            with pytest.raises(aiohttp.ClientConnectorError):
                await client.chat("a")
            await until(lambda: not refused(client.fleet.urls["a"]))
            assert (await client.chat("a")).status == 200

    run(main())


def test_an_endpoint_dies_with_its_nth_request_which_is_the_first_to_notice() -> None:
    async def main() -> None:
        phase = Phase(behaviour="dead", after_requests=3, end=0.05)
        async with serving(FakeEndpoint("a", phases=[phase])) as client:
            assert [(await client.chat("a", str(number))).status for number in range(2)] == [200, 200]
            with pytest.raises((aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)):
                await client.chat("a", "third")
            assert refused(client.fleet.urls["a"])
            await until(lambda: not refused(client.fleet.urls["a"]))
            assert (await client.chat("a", "fourth")).status == 200
            assert client.fleet.seen("a").errors == {"dead": 1}

    run(main())


def test_an_error_phase_answers_all_with_the_error_and_says_when_it_is_over() -> None:
    async def main() -> None:
        phase = Phase(behaviour="error_503", end=40)
        async with serving(FakeEndpoint("a", phases=[phase], retry_after="date"), FakeEndpoint("b", phases=[phase])) as client:
            answer = await client.chat("a")
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (503, 503)
            assert 30 < parsedate_to_datetime(answer.headers["Retry-After"]).timestamp() - time() <= 42
            assert "Retry-After" not in (await client.chat("b")).headers
            assert (await client.get("a", "/health")).status == 503
            assert client.fleet.seen("a").errors == {"error_503": 1}

    run(main())


def test_an_error_phase_ends_what_is_under_way_when_it_begins() -> None:
    async def main() -> None:
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

    run(main())


def test_a_hang_phase_answers_nothing_until_it_ends() -> None:
    async def main() -> None:
        async with serving(FakeEndpoint("a", phases=[Phase(behaviour="hang", after_requests=1)])) as client:
            task = asyncio.create_task(client.chat("a"))
            await until(lambda: client.fleet.seen("a").in_flight == 1)
            client.fleet.set("a", phases=())
            assert (await client.chat("a")).status == 200
            assert not task.done()
            task.cancel()
            await until(lambda: client.fleet.seen("a").in_flight == 0)

    run(main())


def test_reset_starts_phases_counters_and_buckets_from_their_beginning() -> None:
    async def main() -> None:
        phase = Phase(behaviour="error_500", after_requests=2)
        async with serving(FakeEndpoint("a", phases=[phase], rpm=0.001, burst=2)) as client:
            for _ in range(2):
                assert [(await client.chat("a")).status for _ in range(3)] == [200, 500, 500]
                assert client.fleet.seen("a").duplicates == 2
                client.fleet.reset()
                seen = client.fleet.seen("a")
                assert (seen.requests, seen.duplicates, seen.errors, seen.first_request) == (0, 0, {}, None)

    run(main())


def test_what_cannot_be_set_is_refused_and_changes_nothing() -> None:
    with FakeFleet([FakeEndpoint("a")]) as fleet:
        for changes in ({"port": 1}, {"max_concurency": 1}, {"max_concurrency": 0}):
            with pytest.raises(ConfigError):
                fleet.set("a", **changes)
        with pytest.raises(ConfigError, match="there is no endpoint 'b'; the endpoints are 'a'"):
            fleet.kill("b")
        assert not refused(fleet.urls["a"])
