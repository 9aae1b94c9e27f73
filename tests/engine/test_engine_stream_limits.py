"""Time limits of a stream, learned from what its endpoint has shown: the first token, a pause, the whole. On virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from engine_tools import client_of, endpoints, now
from stream_wire import OPENED, Step, StreamWire, ask, heard, spoken, words

from qreward import RequestTimeout, StreamInterrupted, Timeouts
from qreward.engine.stream_sink import AHEAD
from qreward.scheduler.stats import KNOWN


def mostly(speaks: Any, then: Any, seen: int = KNOWN) -> Any:
    """The first streams go by one script, so that they are learned from; the rest by another."""
    count = 0

    def script(name: str, prompt: str) -> Iterable[Step]:
        nonlocal count
        count += 1
        return speaks(name, prompt) if count <= seen else then(name, prompt)

    return script


async def learn(client: Any) -> None:
    for number in range(KNOWN):
        await ask(client, number).final()


@pytest.mark.parametrize("opened", [False, True])
async def test_a_first_token_that_is_far_later_than_usual_ends_the_attempt(opened: bool) -> None:
    def hangs(_: str, __: str) -> Iterable[Step]:
        yield from [OPENED] if opened else []
        yield from [2.0, OPENED] * 100  # signs of life are no tokens

    wire = StreamWire(mostly(spoken, hangs))
    async with client_of(wire, {"a": 1}, timeout=30, hedge=None) as client:
        await learn(client)
        began = now()
        stream = ask(client, "x")
        with pytest.raises(RequestTimeout):
            await stream.final()
        first, *_ = stream.result.attempts
        assert first.outcome == "timeout"
        assert "no first token from endpoint 'a' within 5.0 s" in first.detail
        assert 5 <= first.latency < 5.1
        again = wire.sent[KNOWN + 1][2]
        assert again - began >= 5


@pytest.mark.parametrize("pause", [[1000.0], [2.0, OPENED] * 500], ids=["silent", "with signs of life"])
async def test_a_pause_that_is_far_longer_than_usual_ends_the_stream(pause: list[Step]) -> None:
    wire = StreamWire(mostly(words(20), lambda *_: ["so far", *pause, "never"]))
    async with client_of(wire, {"a": 1}) as client:
        await learn(client)
        began = now()
        with pytest.raises(StreamInterrupted, match=r"endpoint 'a' sent nothing for 5.0 s amid its answer") as caught:
            await ask(client).final()
        assert 5 <= now() - began < 5.1
        assert isinstance(caught.value.__cause__, RequestTimeout)
        assert [attempt.outcome for attempt in caught.value.attempts] == ["timeout"]
        assert wire.cancelled == ["hi"]


async def test_a_server_that_hangs_after_the_stream_waited_for_its_reader_ends_the_stream() -> None:
    wire = StreamWire(mostly(words(20), lambda *_: [*["x"] * AHEAD, 1000.0, "never"]))
    async with client_of(wire, {"a": 1}) as client:
        await learn(client)
        reader = aiter(ask(client))
        assert await anext(reader) == "x"
        await asyncio.sleep(60)
        began = now()
        with pytest.raises(StreamInterrupted, match=r"endpoint 'a' sent nothing for 5.0 s amid its answer"):
            await heard(reader)
        assert 5 <= now() - began < 5.1


async def test_the_time_an_endpoint_has_for_an_attempt_holds_for_the_whole_stream() -> None:
    fleet = endpoints({"a": 1}, timeouts=Timeouts(attempt=20.0))
    async with client_of(StreamWire(words(100, gap=1.0)), fleet) as client:
        with pytest.raises(StreamInterrupted, match=r"set Timeouts\(attempt=...\)") as caught:
            await ask(client).final()
        assert len(caught.value.text.split()) >= 19
        assert 20 <= now() < 31


async def test_the_time_an_endpoint_has_for_an_attempt_does_not_run_while_it_waits_for_its_reader() -> None:
    fleet = endpoints({"a": 1}, timeouts=Timeouts(attempt=20.0))
    async with client_of(StreamWire(words(500, gap=0.0)), fleet) as client:
        reader = aiter(ask(client))
        assert await anext(reader) == "0 "
        await asyncio.sleep(60)
        assert len(await heard(reader)) == 499
        assert all(source.health.in_service for source in client._runtime.fleet.sources())
