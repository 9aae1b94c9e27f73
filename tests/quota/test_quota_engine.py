"""What a client does with its share: keeps to it, asks for it in time, gives it up, and says how it stands."""

from __future__ import annotations

import asyncio
import logging
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from quota_tools import FakeWire, Processes, busy, call, client_of, now, shared, sharing, stop

from qreward import ConfigError, Limits
from qreward.quota.file_ledger import VARIABLE
from qreward.quota.ledger import LEASE, MINUTE, PERIOD, RENEW
from qreward.quota.renewal import SOON

ENDPOINT = {"base_url": "http://a.example/v1", "name": "a", "api_key": "k"}


def sent_since(wire: FakeWire, since: float) -> int:
    return sum(at >= since for _, _, at in wire.sent)


@shared
async def test_the_first_call_asks_for_a_share_and_goes_at_once(processes: Processes) -> None:
    client, wire = processes.client(rpm=600)
    assert sharing(client) == "waiting for a first share"
    await call(client, "hello")
    assert wire.sent[0][2] < 0.01
    assert processes.transport.renewals >= 1
    assert sharing(client).startswith("the only process: ")


@shared
async def test_a_share_grows_when_another_has_nothing_more_to_do_and_shrinks_when_it_begins_again(processes: Processes) -> None:
    (one, first), (other, second) = processes.client(max_concurrency=8), processes.client(max_concurrency=8)
    work = [busy(one), busy(other)]
    await asyncio.sleep(5)
    assert (first.live["a"], second.live["a"]) == (4, 4)
    await stop(work[1])
    await asyncio.sleep(5)
    assert (first.live["a"], second.live["a"]) == (8, 0)
    assert sharing(other) == "idle"
    work[1] = busy(other)
    await asyncio.sleep(3)
    assert (first.live["a"], second.live["a"]) == (4, 4)
    await stop(*work)


@shared
async def test_a_client_that_is_paused_with_work_waiting_leaves_its_share_to_others_until_it_resumes(processes: Processes) -> None:
    (one, first), (other, second) = processes.client(max_concurrency=8), processes.client(max_concurrency=8)
    work = [busy(one), busy(other)]
    await asyncio.sleep(5)
    other.pause("a")
    await asyncio.sleep(5)
    assert (first.live["a"], second.live["a"], sharing(other)) == (8, 0, "idle")
    other.resume("a")
    await asyncio.sleep(3)
    assert (first.live["a"], second.live["a"]) == (4, 4)
    await stop(*work)


@shared
async def test_a_busy_client_renews_every_half_second_and_at_once_after_it_has_given_up_a_part(processes: Processes) -> None:
    (one, _), (other, _) = processes.client(max_concurrency=8), processes.client(max_concurrency=8)
    work = [busy(one)]
    await asyncio.sleep(5.3)
    first = processes.transport.trace[-1][1]
    seen = len(processes.transport.trace)
    work.append(busy(other))
    await asyncio.sleep(5)
    await stop(*work)
    renewals = [(when, held, got) for when, member, held, got in processes.transport.trace[seen - 1 :] if member == first]
    pauses = [(round(after[0] - before[0], 3), before[2] < before[1]) for before, after in pairwise(renewals)]
    assert (SOON, True) in pauses
    assert {pause for pause, gave_up in pauses if not gave_up} == {RENEW}, pauses
    assert {pause for pause, gave_up in pauses if gave_up} == {SOON}, pauses


@shared
async def test_a_client_asks_early_for_a_share_that_it_lacks_but_not_at_once_again(processes: Processes) -> None:
    client, wire = processes.client(rpm=600)
    began = now()
    await asyncio.gather(*(call(client, number) for number in range(40)))
    assert wire.sent[0][2] - began < 0.01
    assert processes.transport.renewals <= 2 + (now() - began) / SOON
    work = busy(client)
    await asyncio.sleep(5)
    before = processes.transport.renewals
    await asyncio.sleep(10)
    assert processes.transport.renewals - before <= 10 / RENEW + 1, "it knows that there is no more"
    await stop(work)


@shared
async def test_a_client_whose_share_does_not_suffice_any_more_asks_for_more_before_its_next_renewal(processes: Processes) -> None:
    client, _ = processes.client(rpm=60)
    await call(client, "hello")
    await asyncio.sleep(2 * RENEW + 0.01)
    await asyncio.gather(*(call(client, number) for number in range(4)))
    pauses = [round(after - before, 2) for before, after in pairwise(processes.transport.asked)]
    assert pauses[:2] == [RENEW, RENEW]
    assert SOON <= pauses[2] < RENEW


@shared
async def test_a_renewal_that_failed_is_tried_again_twice_a_second_and_one_alone_changes_and_logs_nothing(
    processes: Processes,
) -> None:
    client, _ = processes.client(max_concurrency=4)
    work = busy(client)
    await asyncio.sleep(3.1)
    processes.transport.away, seen = True, len(processes.transport.asked)
    await asyncio.sleep(RENEW + 0.1)
    assert len(processes.transport.asked) == seen + 1
    assert sharing(client).startswith("the only process")
    processes.transport.away = False
    await asyncio.sleep(2)
    assert sharing(client).startswith("the only process")
    assert not processes.logged()
    processes.transport.away, seen = True, len(processes.transport.asked)
    await asyncio.sleep(6)
    await stop(work)
    pauses = [round(after - before, 2) for before, after in pairwise(processes.transport.asked[seen:])]
    assert pauses == [RENEW] * len(pauses)
    assert len(pauses) >= 4


@shared
async def test_an_idle_client_does_not_leave_a_ledger_that_did_not_answer(processes: Processes) -> None:
    client, _ = processes.client(rpm=600)
    await call(client, 1)
    processes.transport.away = True
    for number in range(4):
        await call(client, number)
        await asyncio.sleep(0.5)
    await asyncio.sleep(10)
    assert processes.transport.leaves == 0
    assert sharing(client) != "idle"


@shared
async def test_together_there_are_never_more_in_flight_than_allowed(processes: Processes) -> None:
    wire = FakeWire(seconds=0.7)
    clients = [processes.client(wire, max_concurrency=5)[0] for _ in range(8)]
    work = [busy(client) for client in clients]
    await asyncio.sleep(60)
    await stop(*work[:3])
    await asyncio.sleep(20)
    assert wire.peak["a"] == 5
    assert sent_since(wire, 20.0) * 0.7 / (now() - 20) >= 0.9 * 5
    await stop(*work)


@shared
async def test_an_idle_client_leaves_and_renews_no_more_and_comes_back_with_its_next_call(processes: Processes) -> None:
    client, wire = processes.client(rpm=600)
    await call(client, 1)
    await asyncio.sleep(10)
    renewals = processes.transport.renewals
    ledger = processes.transport.only
    assert sharing(client) == "idle"
    assert (list(ledger.members), ledger.requests.counted()) == ([], 1), "it has said what it used, and given back the rest"
    await asyncio.sleep(1000)
    assert processes.transport.renewals == renewals
    before = now()
    await call(client, 2)
    assert wire.sent[-1][2] - before < 0.01
    await asyncio.sleep(10)
    await client.aclose()
    assert processes.transport.leaves == 2, "and it has nothing to return at its end"


@shared
async def test_a_client_that_calls_now_and_then_never_waits_for_its_share(processes: Processes) -> None:
    client, wire = processes.client(rpm=600)
    for _ in range(40):
        before = now()
        await call(client, "now")
        assert wire.sent[-1][2] - before <= 0.06
        await asyncio.sleep(0.9)


@shared
async def test_a_process_that_slept_longer_than_its_lease_sends_nothing_before_it_has_renewed(processes: Processes) -> None:
    client, wire = processes.client(rpm=6000, max_concurrency=4)
    turns = processes.turns[client]
    await call(client, 1)
    turns.asleep = True
    await asyncio.sleep(LEASE + 1)
    asked = asyncio.ensure_future(call(client, 2))
    await asyncio.sleep(3)
    assert len(wire.sent) == 1
    turns.asleep = False
    turns.set()
    await asked
    assert len(wire.sent) == 2


@shared
async def test_a_lease_whose_reply_was_slow_ends_no_later(processes: Processes) -> None:
    client, wire = processes.client(max_concurrency=4)
    processes.transport.seconds = 2.0
    await call(client, 1)
    processes.turns[client].asleep = True
    await asyncio.sleep(processes.transport.asked[-1] + LEASE + 0.1 - now())
    asked = asyncio.ensure_future(call(client, 2))
    await asyncio.sleep(1)
    assert len(wire.sent) == 1
    await stop(asked)


@shared
async def test_while_the_ledger_is_away_each_goes_on_with_its_last_share_and_logs_when_that_begins_and_ends(processes: Processes) -> None:
    found = [processes.client(rpm=600, max_concurrency=8) for _ in range(4)]
    work = [busy(client) for client, _ in found]
    await asyncio.sleep(30)
    processes.transport.away = True
    await asyncio.sleep(5)
    before = now()
    await asyncio.sleep(120)
    counts = [sent_since(wire, before) for _, wire in found]
    assert sum(counts) <= 1200
    assert min(counts) >= 2 * (600 * MINUTE / PERIOD / 4 - 3)
    assert sharing(found[0][0]).startswith(
        "alone, the ledger does not answer (OSError: nobody is there): 146.9 of 600 requests a minute, 2 of 8"
    )
    assert len(processes.logged("the ledger does not answer")) == 4
    processes.transport.away = False
    await asyncio.sleep(5)
    assert sharing(found[0][0]).startswith("one of 4 processes")
    assert len(processes.logged("works again")) == 4
    before = now()
    await asyncio.sleep(60)
    assert 540 <= sum(sent_since(wire, before) for _, wire in found) <= 600
    await stop(*work)


@shared
async def test_a_lost_ledger_costs_about_a_second_of_the_limit_and_no_slot(processes: Processes) -> None:
    found = [processes.client(rpm=600, max_concurrency=8) for _ in range(4)]
    work = [busy(client) for client, _ in found]
    await asyncio.sleep(65)
    before = now()
    processes.transport.lose()
    await asyncio.sleep(1)
    assert sharing(found[0][0]).startswith("one of 4 processes: 146.9 of 600 requests a minute, 2 of 8")
    await asyncio.sleep(59)
    total = sum(sent_since(wire, before) for _, wire in found)
    assert 560 <= total <= 600
    assert all(wire.peak["a"] <= 8 for _, wire in found)
    await stop(*work)


@shared
async def test_of_different_limits_the_smallest_counts_and_that_is_logged_once(processes: Processes) -> None:
    for setting, words in (("rpm", "requests a minute"), ("tpm", "tokens a minute"), ("max_concurrency", "in flight")):
        limits: list[dict[str, Any]] = [{setting: 900}, {setting: 60}]
        (large, _), (small, _) = (processes.client(**each) for each in limits)
        work = [busy(large), busy(small)]
        await asyncio.sleep(5)
        assert words in sharing(large), setting
        assert ("of 60" in sharing(large)) is (setting != "max_concurrency")
        assert processes.logged() == [f"endpoint 'a': another process shares it with {setting}=60, here it is 900; the smallest counts"]
        await stop(*work)
        for client in (large, small):
            await client.aclose()
        processes.caplog.clear()


@shared
async def test_a_limit_changed_live_holds_from_then_on(processes: Processes) -> None:
    client, wire = processes.client(max_concurrency=4)

    def change(**limits: int) -> None:
        client.reload({"endpoints": [{**ENDPOINT, "limits": {**limits, "shared": "local", "adaptive": False}}]})

    work, live = busy(client), []
    for slots in (4, 16, 2):
        change(max_concurrency=slots)
        await asyncio.sleep(5)
        live.append(wire.live["a"])
    assert live == [4, 16, 2]
    for rpm in (60, 600):
        change(rpm=rpm)
        await asyncio.sleep(65)
        before = now()
        await asyncio.sleep(60)
        assert 0.9 * rpm <= sent_since(wire, before) <= rpm
    await stop(work)


@shared
async def test_each_endpoint_of_a_client_reaches_its_ledger_and_closing_gives_the_shares_back(
    processes: Processes,
) -> None:
    client, _ = processes.client(rpm=600)
    client.add_endpoint(processes.endpoint("b", rpm=600))
    await asyncio.gather(*(call(client, number) for number in range(2)))
    ledgers = processes.transport.ledgers.values()
    assert (processes.transport.made, [len(ledger.members) for ledger in ledgers]) == (2, [1, 1])
    await client.aclose()
    assert not any(ledger.members for ledger in ledgers)
    assert processes.transport.closed == 2


@shared
async def test_sharing_may_be_switched_on_and_off_live_while_work_waits(processes: Processes) -> None:
    client, wire = processes.client(rpm=60, shared="none")
    assert client.stats()["a"].state.sharing is None  # type: ignore[union-attr]
    work = busy(client)
    await asyncio.sleep(3)
    client.reload({"endpoints": [{**ENDPOINT, "limits": {"rpm": 600, "shared": "local", "adaptive": False}}]})
    await asyncio.sleep(3)
    assert sharing(client).startswith("the only process")
    before = now()
    client.reload({"endpoints": [{**ENDPOINT, "limits": {"rpm": 600, "adaptive": False}}]})
    await asyncio.sleep(10)
    assert sent_since(wire, before) >= 98
    assert client.stats()["a"].state.sharing is None  # type: ignore[union-attr]
    assert not processes.transport.only.members
    await stop(work)


@shared
async def test_an_endpoint_that_is_removed_leaves_when_its_last_answer_is_there(processes: Processes) -> None:
    client, _ = processes.client(FakeWire(seconds=3.0), max_concurrency=2)
    client.add_endpoint(processes.endpoint("b", max_concurrency=2))
    asked = asyncio.ensure_future(call(client, 1))
    await asyncio.sleep(1)
    members = sum(len(ledger.members) for ledger in processes.transport.ledgers.values())
    assert members >= 1
    for name in ("a", "b"):
        if client.stats()[name].state.in_flight:  # type: ignore[union-attr]
            client.remove_endpoint(name)
    await asyncio.sleep(1)
    assert sum(len(ledger.members) for ledger in processes.transport.ledgers.values()) >= 1
    await asked
    await asyncio.sleep(3)
    assert not any(ledger.members for ledger in processes.transport.ledgers.values())
    assert len(client._runtime._sharing._renewers) == 1, "nothing is kept of what was removed"


@shared
async def test_a_share_that_cannot_be_returned_is_logged_and_disturbs_nothing(processes: Processes) -> None:
    client, wire = processes.client(rpm=600)
    await call(client, 1)
    processes.transport.forgets = True
    processes.caplog.set_level(logging.DEBUG)
    await asyncio.sleep(10)
    assert processes.logged("share") == ["endpoint 'a': its share was not given back: OSError"]
    assert sharing(client) == "idle"
    await call(client, 2)
    assert len(wire.sent) == 2


def test_sharing_without_anything_to_share_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match="shared='local' has nothing to share; set rpm, tpm or max_concurrency"):
        Limits(shared="local")
    assert Limits(shared="ray", tpm=5).shared == "ray"


def test_the_thread_that_renews_shares_is_not_started_under_the_lock_of_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "shares"))
    started: list[bool] = []

    async def main() -> None:
        client = client_of(FakeWire(seconds=0.001), [Processes.endpoint(rpm=6000)])
        start = threading.Thread.start

        def watched(thread: threading.Thread) -> None:
            if thread.name == "qreward-sharing":
                started.append(client._runtime.engine.lock.locked())
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", watched)
        async with client:
            assert started == []
            await call(client, "hello")

    asyncio.run(main())
    assert started == [False]
