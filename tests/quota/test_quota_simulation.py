"""Minutes of many members: no window of 60 seconds holds more than the limit, and hardly less when all are hungry."""

from __future__ import annotations

from random import Random

import pytest
from quota_desk import Member, Room, busiest

from qreward.quota.ledger import Ledger
from qreward.quota.messages import LEASE
from qreward.settings.policies import Limits


def sent(room: Room, since: float = 0.0) -> list[float]:
    return [at for member in room.members for at in member.sent if at >= since]


def counts(members: list[Member], since: float) -> list[int]:
    return [sum(at >= since for at in member.sent) for member in members]


@pytest.mark.parametrize(("rpm", "members"), [(600, 8), (60, 8), (60, 30), (10, 3), (600, 1)])
def test_the_whole_limit_is_used_and_never_more_in_any_minute_however_many_share_it(rpm: int, members: int) -> None:
    room = Room(Limits(rpm=rpm, shared="local"))
    for _ in range(members):
        room.join()
    room.run(190)
    used = len(sent(room, since=70)) / 2 / rpm
    assert busiest(sent(room)) <= rpm
    assert used >= 0.95
    parts = counts(room.members, since=70)
    assert max(parts) - min(parts) <= max(1, 0.05 * max(parts))


@pytest.mark.parametrize("seed", range(4))
def test_no_minute_is_too_full_while_processes_come_sleep_die_and_leave(seed: int) -> None:
    rng = Random(seed)
    room = Room(Limits(rpm=rng.choice([20, 60, 300]), shared="local"), seed)
    for _ in range(30):
        awake = [member for member in room.members if member.alive]
        match rng.randrange(5):
            case 0 | 1:
                room.join(backlog=rng.choice([3, 50, float("inf")]))
            case 2 if awake:
                room.kill(rng.choice(awake), noticed=rng.random() < 0.5)
            case 3 if awake:
                rng.choice(awake).asleep_until = room.now + rng.uniform(0.5, 20)
            case 4 if awake:
                rng.choice(awake).backlog = rng.choice([0, 10, float("inf")])
        room.run(rng.uniform(0.1, 8))
    assert busiest(sent(room)) <= room.limits.rpm, seed


def test_who_dies_leaves_its_part_to_the_others_at_once_or_a_lease_later() -> None:
    room = Room(Limits(rpm=600, shared="local"))
    for _ in range(8):
        room.join()
    room.run(30)
    for member in room.members[:2]:
        room.kill(member, noticed=member is room.members[0])
    room.run(LEASE + 2)
    since = room.now
    room.run(60)
    assert len(sent(room, since)) >= 0.95 * 600
    assert busiest(sent(room)) <= 600
    parts = counts(room.members[2:], since)
    assert max(parts) <= 1.1 * min(parts)


def test_who_wants_little_gets_it_and_the_rest_is_shared_equally() -> None:
    room = Room(Limits(rpm=600, shared="local"))
    modest = room.join(backlog=0)
    greedy = [room.join(), room.join()]
    for second in range(100):
        room.at(float(second), lambda: setattr(modest, "backlog", modest.backlog + 1))
    room.run(100)
    assert len(modest.sent) >= 98
    parts = counts(greedy, since=20)
    assert max(parts) <= 1.05 * min(parts)
    assert len(sent(room, since=20)) >= 0.95 * 600 * 80 / 60


def test_who_was_away_does_not_make_up_for_it() -> None:
    room = Room(Limits(rpm=600, shared="local"))
    room.join()
    late = room.join(backlog=10)
    room.run(60)
    late.backlog = float("inf")
    room.run(20)
    parts = counts(room.members, since=62)
    assert max(parts) <= 1.15 * min(parts)


def test_on_their_own_all_paces_together_put_no_more_into_a_minute_than_the_limit() -> None:
    """Each at a time of its own, so that their cells fall together in the worst way."""
    room = Room(Limits(rpm=60, shared="local"))
    members = [room.join() for _ in range(8)]
    room.run(70)
    for member in members:
        member.alone()
    room.run(150)
    assert busiest(sent(room, since=room.now - 150)) <= 60
    assert all(busiest(member.sent[-20:]) <= member.tenure.requests.share for member in members)


@pytest.mark.parametrize("cost", [100.0, 777.0, 3000.0])
def test_tokens_are_kept_to_in_any_minute_for_small_and_for_large_requests(cost: float) -> None:
    room = Room(Limits(tpm=60_000, shared="local"))
    for _ in range(8):
        room.join(cost=cost)
    room.run(190)
    assert busiest(sent(room)) * cost <= 60_000
    assert len(sent(room, since=70)) / 2 * cost >= 0.94 * 60_000
    parts = counts(room.members, since=70)
    assert max(parts) - min(parts) <= max(2, 0.1 * max(parts))


@pytest.mark.parametrize(("permits", "members"), [(64, 8), (20, 8), (4, 8)])
def test_slots_are_all_in_use_and_never_more_and_the_odd_ones_go_round(permits: int, members: int) -> None:
    room = Room(Limits(max_concurrency=permits, shared="local"))
    for _ in range(members):
        room.join(seconds=2.0)
    room.run(260)
    assert room.peak <= permits
    parts = counts(room.members, since=20)
    assert sum(parts) * 2.0 / 240 / permits >= 0.95
    assert max(parts) <= 1.25 * min(parts)


def test_a_process_that_was_stopped_does_not_send_on_an_old_share_when_it_wakes() -> None:
    room = Room(Limits(rpm=600, max_concurrency=8, shared="local"))
    sleeper, other = room.join(seconds=0.5), room.join(seconds=0.5)
    room.run(5)
    sleeper.asleep_until = room.now + 20
    room.run(10)
    in_flight = sleeper.shares and room.ledger.permits.holders[sleeper.name].using
    assert other.tenure.permits == 8 - in_flight  # nobody knows whether that is answered
    before = len(sleeper.sent)
    sleeper.asleep_until = -1.0
    room.wake(sleeper)
    assert len(sleeper.sent) == before
    room.run(5)
    assert len(sleeper.sent) > before


@pytest.mark.parametrize("seed", range(3))
def test_a_lost_ledger_costs_no_minute_its_limit_and_hardly_any_use(seed: int) -> None:
    """Its members go on with their last shares until the new one knows them all."""
    room = Room(Limits(rpm=600, shared="local"), seed)
    for _ in range(8):
        room.join()
    room.run(70)
    room.ledger = Ledger(room.now)
    room.run(100)
    assert busiest(sent(room)) <= 600
    assert len(sent(room, since=70)) >= 0.9 * 1000


def test_parts_are_equal_too_when_it_is_the_minute_that_is_full() -> None:
    """Renewals that come late make the ledger wait for what was used a minute ago."""
    room = Room(Limits(rpm=600, shared="local"))
    room.late = 1.0
    for _ in range(8):
        room.join()
    room.run(200)
    for since in (60, 80, 100, 120, 140):
        parts = [sum(since <= at < since + 20 for at in member.sent) for member in room.members]
        assert max(parts) - min(parts) <= 0.15 * max(parts), since
    assert busiest(sent(room)) <= 600
