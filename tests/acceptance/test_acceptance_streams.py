"""Hundreds of streams at once of a fleet that cuts, stalls and babbles, with readers of all kinds: each ends in one way."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest
from acceptance_tools import MODEL, in_flight, needs_proc, open_files, prompt, until
from essays import essay_of

from qreward import Endpoint, Limits, QRewardClient, QRewardError, RequestError, RequestTimeout, Result, StreamInterrupted, Timeouts
from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency

COUNT = 400
SEED = 20_261
NAMES = "abcd"
ROOM = 104  # at each endpoint: all streams are under way at once
FAULTS = Faults(
    cut=0.1, stall=0.02, malformed=0.05, truncated=0.05, error_in_200=0.05, reset=0.02, noise=0.25, slow_trickle=0.03,
    point=None, trickle_gap=0.01,
)  # fmt: skip
PACE = Latency(base=0.5, per_token=0.025, tokens=45, sigma=0.4)
SILENCE = 2.0  # seconds after which a stall is one


def faulty_fleet() -> FakeFleet:
    faults = {name: FAULTS.model_copy(update={"seed": SEED + number}) for number, name in enumerate(NAMES)}
    fakes = [FakeEndpoint(name, latency=PACE, faults=faults[name], responder="essays:essay", max_concurrency=2 * ROOM) for name in NAMES]
    return FakeFleet(fakes, process=True)


def client_of(fleet: FakeFleet, room: int = ROOM) -> QRewardClient:
    limits = Limits(max_concurrency=room, adaptive=False)
    return QRewardClient(
        [Endpoint(url, name=name, proxy="", limits=limits, timeouts=Timeouts(read=SILENCE)) for name, url in fleet.urls.items()]
    )


class Reader:
    """One who reads a stream: fast, slowly, or only its beginning, as drawn for each."""

    def __init__(self, number: int) -> None:
        rng = Random(f"{SEED}/{number}")
        self.kind = rng.choices(("fast", "slow", "leaves"), (70, 20, 10))[0]
        self._most = rng.randint(1, 20) if self.kind == "leaves" else None
        self._pauses = [rng.uniform(0, 0.02) for _ in range(20)]
        self.said: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.said)

    async def take(self, token: str) -> bool:
        """Read a token; False if it was the last one that is wanted."""
        assert token
        self.said.append(token)
        if self.kind == "slow":
            await asyncio.sleep(self._pauses[len(self.said) % len(self._pauses)])
        return len(self.said) != self._most


async def read(client: QRewardClient, number: int) -> str:
    """Read one stream to its end, whichever that is, and check that all who tell of it tell the same."""
    reader, whole, error = Reader(number), essay_of(number), None
    stream = client.stream_chat_completion(prompt(number), MODEL)
    try:
        async for token in stream:
            if not await reader.take(token):
                assert whole.startswith(reader.text)
                return "left"
    except QRewardError as raised:
        error = raised
    assert stream.result is not None
    assert stream.result.error is error
    assert stream.text == reader.text
    if error is None:
        assert reader.text == stream.result.text == whole
        return "whole"
    if isinstance(error, StreamInterrupted):
        assert error.text == reader.text
        assert whole.startswith(error.text)
        assert isinstance(error.__cause__, RequestError)
        return "late" if isinstance(error.__cause__, RequestTimeout) else "interrupted"
    assert reader.text == ""
    return "late" if isinstance(error, RequestTimeout) else "failed"


async def nothing_is_left(client: QRewardClient, fleet: FakeFleet) -> None:
    """No slot is taken on either side, and each request that was sent has been counted as one thing."""
    await until(lambda: in_flight(client) == 0)
    for name, stats in client.stats().items():
        assert stats.sent == stats.won + stats.rejected + stats.failed + stats.cancelled, name
    await until(lambda: all(fleet.seen(name).in_flight == 0 for name in NAMES))


def check_faults(fleet: FakeFleet) -> None:
    """The fleet was as bad as it was meant to be."""
    kinds: Counter[str] = Counter()
    for name in NAMES:
        kinds.update(fleet.seen(name).errors)
    for kind in ("cut", "stall", "malformed", "truncated", "error_in_200", "reset"):
        assert kinds[kind] > getattr(FAULTS, kind) * COUNT / 3, kinds


@needs_proc
@pytest.mark.timeout(110)
async def test_hundreds_of_streams_end_each_in_one_way_and_leave_nothing() -> None:
    fleet = faulty_fleet()
    async with fleet:
        before = open_files()
        async with client_of(fleet) as client:
            reading = asyncio.gather(*(read(client, number) for number in range(COUNT)))
            for _ in range(2):  # turns of the loop, in which no answer can have come
                await asyncio.sleep(0)
            assert in_flight(client) == COUNT
            ends = Counter(await reading)
            await nothing_is_left(client, fleet)
        await until(lambda: open_files() == before)
        assert sum(fleet.seen(name).peak_in_flight for name in NAMES) > COUNT / 5, "more than one pool of connections has by default"
    assert ends.total() == COUNT
    assert ends["whole"] + ends["late"] > 0.55 * COUNT, ends  # a slow machine makes more of them late: they count on both sides
    assert ends["interrupted"] + ends["late"] > 0.1 * COUNT, ends
    check_faults(fleet)


@needs_proc
@pytest.mark.timeout(110)
async def test_a_batch_of_hundreds_of_streams_ends_each_in_one_way_and_leaves_nothing() -> None:
    fleet, texts, ends = faulty_fleet(), [""] * COUNT, dict[int, Result[Any]]()
    async with fleet:
        before = open_files()
        async with client_of(fleet) as client:
            stream = client.batch_stream_chat_completion((prompt(number) for number in range(COUNT)), MODEL)
            async for index, event in stream.events():
                assert index not in ends  # a stream says nothing after its end
                if isinstance(event, str):
                    texts[index] += event
                else:
                    assert isinstance(event, Result)
                    ends[index] = event
            batch = await stream.results()
            await nothing_is_left(client, fleet)
        await until(lambda: open_files() == before)
    assert [ends[index] for index in range(COUNT)] == list(batch)
    for index, result in ends.items():
        whole = essay_of(index)
        if result.error is None:
            assert texts[index] == result.text == whole
        else:
            assert texts[index] == (result.error.text if isinstance(result.error, StreamInterrupted) else "")
            assert whole.startswith(texts[index])
    assert batch.stats.ok > 0.5 * COUNT
    assert batch.stats.failed > 0.1 * COUNT
    check_faults(fleet)
