"""A fleet that limits, breaks, hangs and dies: each item has one outcome, each answer is its own, nothing is left."""

from __future__ import annotations

from typing import Any

from acceptance_tools import (
    MODEL,
    CountingWire,
    client_of,
    echoes,
    endpoints,
    in_flight,
    needs_proc,
    open_files,
    prompts,
    until,
)

from qreward import QRewardClient, Retry
from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency

FAULTS = {"reset": 0.01, "error_500": 0.01, "hang": 0.005, "truncated": 0.005}


@needs_proc
async def test_a_bulk_over_a_faulty_fleet_is_answered_whole_and_leaves_nothing() -> None:
    count = 6000
    caps = {"a": 10, "b": 6, "c": 16, "d": 4}  # what the servers take; over it is 429
    limits = {"a": 14, "b": 6, "c": 22, "d": 3}  # what the client is told: too much for two of them
    fleet = FakeFleet(
        [
            FakeEndpoint(name, max_concurrency=cap, latency=Latency(base=0.03), faults=Faults(seed=seed, **FAULTS))
            for seed, (name, cap) in enumerate(caps.items())
        ],
        process=True,
    )
    wires: list[CountingWire] = []
    finished: list[int] = []

    def wire() -> CountingWire:
        wires.append(CountingWire())
        return wires[-1]

    async with fleet:
        before = open_files()
        async with QRewardClient(endpoints(fleet, limits, attempt=3), backend_factory=wire, retry=Retry(attempts=8), hedge=None) as client:
            batch = await client.batch_chat_completion(iter(prompts(count)), MODEL, on_result=lambda result: finished.append(result.index))
            await until(lambda: in_flight(client) == 0)
            stats = client.stats()
        await until(lambda: open_files() == before)
        await until(lambda: all(fleet.seen(name).in_flight == 0 for name in caps))
    seen = {name: fleet.seen(name) for name in caps}
    assert sorted(finished) == list(range(count))
    assert (len(batch), batch.stats.items, batch.stats.ok) == (count, count, count), batch.errors
    assert batch.texts() == echoes(count)
    (wire_used,) = wires
    assert all(wire_used.peak[name] <= limit for name, limit in limits.items())
    assert all(seen[name].peak_in_flight <= caps[name] for name in caps)
    kinds: dict[str, int] = {}
    for each in seen.values():
        assert set(each.errors) <= {"reset", "error_500", "hang", "truncated"}
        for kind, times in each.errors.items():
            kinds[kind] = kinds.get(kind, 0) + times
    assert all(kinds[kind] > 0.5 * rate * count for kind, rate in FAULTS.items())  # the fleet was as bad as it was meant to be
    assert seen["a"].rejected > 0
    assert seen["c"].rejected > 0
    # client and servers agree on what happened: a 429 is no failure, and a server may answer whom the client no longer waits for
    timeouts = sum(record.outcome == "timeout" for result in batch for record in result.attempts)
    late = timeouts - kinds["hang"]
    assert late >= 0
    assert sum(each.won for each in stats.values()) == count
    assert count <= sum(each.answered for each in seen.values()) <= count + late
    assert sum(each.rejected for each in stats.values()) == sum(each.rejected for each in seen.values())
    assert sum(each.failed for each in stats.values()) == sum(kinds.values()) + late


async def test_when_an_endpoint_is_killed_the_others_take_its_work_and_no_item_is_lost() -> None:
    count = 1500
    fleet = FakeFleet([FakeEndpoint(name, latency=Latency(base=0.02)) for name in "abc"], process=True)
    finished: list[int] = []

    def on_result(result: Any) -> None:
        finished.append(result.index)
        if len(finished) == 300:
            fleet.kill("a")

    async with fleet, client_of(fleet, {"a": 16, "b": 16, "c": 16}, attempt=5) as client:
        batch = await client.batch_chat_completion(prompts(count), MODEL, on_result=on_result)
        await until(lambda: in_flight(client) == 0)
    assert sorted(finished) == list(range(count))
    assert batch.texts() == echoes(count), batch.errors
    moved = [result for result in batch if any(record.endpoint == "a" and record.outcome != "ok" for record in result.attempts)]
    assert moved  # what was under way there
    assert all(result.endpoint in ("b", "c") for result in moved)
    assert fleet.seen("a").answered < 450
    answered = sum(fleet.seen(name).answered for name in "abc")
    copies = sum(stats.hedged for stats in batch.stats.endpoints.values())
    assert count <= answered <= count + 16 + copies  # answers that were cut off on their way are counted there, and asked for again
