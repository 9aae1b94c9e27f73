"""Streams that blocking code lets go of: wherever Python collects them, their requests stop, and nothing is printed."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from openai_tools import LIBRARIES, MODEL, ask, sync_sdk
from shared_tools import until

from qreward import Result, SyncQRewardClient
from qreward.integrations.openai import openai_client
from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency

STALLS = Faults(stall=1)
"""An answer begins and does not end."""


@contextmanager
def collected_by_hand() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def seen_by_python() -> Iterator[list[Any]]:
    """What Python would print as "Exception ignored"."""
    ignored: list[Any] = []
    before, sys.unraisablehook = sys.unraisablehook, ignored.append
    try:
        yield ignored
    finally:
        sys.unraisablehook = before


def in_a_cycle(stream: Any, *, begun: bool) -> None:
    """As a traceback or a closure makes one, so that only the collector finds it."""
    if begun:
        next(iter(stream))
    stream.itself = stream


def in_a_block(stream: Any, *, begun: bool) -> None:
    """The same with a generator of the user's, which closes the stream when it is collected."""
    itself: list[Any] = []

    def reading() -> Iterator[Any]:
        assert itself
        with stream:
            yield from stream if begun else (None,)

    itself.append(reading())
    next(itself[0])


def collect_in_the_portal(client: SyncQRewardClient) -> None:
    """Where the callback of an unrelated batch happens to do it."""

    def collect(_: Result[Any]) -> None:
        gc.collect()

    client.batch_chat_completion([ask()], model="other", on_result=collect)


def test_a_stream_that_is_collected_in_the_portals_thread_stops_and_says_nothing() -> None:
    ways: list[tuple[str | None, bool, Any]] = [
        *((library, True, in_a_cycle) for library in LIBRARIES),
        (LIBRARIES[0], False, in_a_cycle),
        (LIBRARIES[0], False, in_a_block),
        (None, True, in_a_block),
        (None, False, in_a_block),
    ]
    fakes = [FakeEndpoint("a", models=[MODEL], latency=Latency(tokens=8), faults=STALLS), FakeEndpoint("b", models=["other"])]
    with FakeFleet(fakes) as fleet, SyncQRewardClient(fleet.endpoints) as client, collected_by_hand(), seen_by_python() as ignored:
        for library, begun, leave in ways:
            ours: Any = sync_sdk(client, library) if library else client
            for _ in range(3):
                leave(ours.chat.completions.create(model=MODEL, messages=ask(), stream=True), begun=begun)
            assert fleet.seen("a").in_flight == 3, (library, begun, leave)
            collect_in_the_portal(client)
            asyncio.run(until(lambda: fleet.seen("a").in_flight == 0))
            assert [str(each.exc_value) for each in ignored] == [], (library, begun, leave)
            if library:
                ours.close()


def test_a_stream_that_is_left_in_a_callback_does_not_wait_for_itself() -> None:
    fakes = [FakeEndpoint("a", models=[MODEL], latency=Latency(tokens=8), faults=STALLS), FakeEndpoint("b", models=["other"])]
    with FakeFleet(fakes) as fleet, SyncQRewardClient(fleet.endpoints) as client, openai_client(client) as ours:
        streams = [each.chat.completions.create(model=MODEL, messages=ask(), stream=True) for each in (client, ours)]
        client.batch_chat_completion([ask()], model="other", on_result=lambda _: [stream.close() for stream in streams])
        asyncio.run(until(lambda: fleet.seen("a").in_flight == 0))


def test_streams_that_are_open_when_the_program_ends_are_closed_and_print_nothing_of_ours() -> None:
    program = """
import sys
from qreward import SyncQRewardClient
from qreward.integrations.openai import openai_client
client = SyncQRewardClient([sys.argv[1]])
kept = []
own_sdk = [] if sys.version_info[:2] == (3, 13) else [openai_client(client)]  # CPython 3.13.5 crashes here with the SDK alone, too
for each in (client, *own_sdk):
    stream = each.chat.completions.create(model="judge-7b", messages=[{"role": "user", "content": "hello"}], stream=True)
    next(iter(stream))
    stream.itself = stream
    kept.append(stream)
"""
    with FakeFleet([FakeEndpoint("a", latency=Latency(tokens=8), faults=STALLS)]) as fleet:
        command = [sys.executable, "-c", program, fleet.urls["a"]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "qreward" not in done.stderr  # the SDK's own generator may complain that it can import nothing any more
