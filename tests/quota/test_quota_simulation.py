"""Minutes of many members: no window of 60 seconds holds more than the limit, and hardly less when all are hungry."""

from __future__ import annotations

from random import Random

import pytest
from quota_members import Member, Simulation, busiest

from qreward.quota.ledger import LEASE, Ledger
from qreward.settings.policies import Limits


def sent(simulation: Simulation, since: float = 0.0) -> list[float]:
    return [at for member in simulation.members for at in member.sent if at >= since]


def counts(members: list[Member], since: float) -> list[int]:
    return [sum(at >= since for at in member.sent) for member in members]


def test_the_whole_limit_is_used_and_never_more_in_any_minute_however_many_share_it() -> None:
    wrong = []
    for rpm, members in ((600, 8), (60, 8), (60, 20), (10, 3), (600, 1)):
        simulation = Simulation(Limits(rpm=rpm, shared="local"))
        for _ in range(members):
            simulation.join()
        simulation.run(130)
        used, most = len(sent(simulation, since=70)) / rpm, busiest(sent(simulation))
        parts = counts(simulation.members, since=70)
        if not (most <= rpm and used >= 0.95 and max(parts) - min(parts) <= max(1, 0.05 * max(parts))):
            wrong.append((rpm, members, used, most, parts))
    assert wrong == []


@pytest.mark.parametrize("seed", range(4))
def test_no_minute_is_too_full_while_processes_come_sleep_die_and_leave(seed: int) -> None:
    rng = Random(seed)
    simulation = Simulation(Limits(rpm=rng.choice([20, 60, 300]), shared="local"), seed)
    for _ in range(30):
        awake = [member for member in simulation.members if member.alive]
        match rng.randrange(5):
            case 0 | 1:
                simulation.join(backlog=rng.choice([3, 50, float("inf")]))
            case 2 if awake:
                simulation.kill(rng.choice(awake), noticed=rng.random() < 0.5)
            case 3 if awake:
                rng.choice(awake).asleep_until = simulation.now + rng.uniform(0.5, 20)
            case 4 if awake:
                rng.choice(awake).backlog = rng.choice([0, 10, float("inf")])
        simulation.run(rng.uniform(0.1, 8))
    assert simulation.limits.rpm is not None
    assert busiest(sent(simulation)) <= simulation.limits.rpm, seed


def test_the_part_of_a_process_that_died_goes_to_the_others_at_once_or_a_lease_later() -> None:
    simulation = Simulation(Limits(rpm=600, shared="local"))
    for _ in range(8):
        simulation.join()
    simulation.run(30)
    for member in simulation.members[:2]:
        simulation.kill(member, noticed=member is simulation.members[0])
    simulation.run(LEASE + 2)
    since = simulation.now
    simulation.run(60)
    assert len(sent(simulation, since)) >= 0.95 * 600
    assert busiest(sent(simulation)) <= 600
    parts = counts(simulation.members[2:], since)
    assert max(parts) <= 1.1 * min(parts)


def test_a_member_that_wants_little_gets_it_and_the_rest_is_shared_equally() -> None:
    simulation = Simulation(Limits(rpm=600, shared="local"))
    modest = simulation.join(backlog=0)
    greedy = [simulation.join(), simulation.join()]
    for second in range(100):
        simulation.at(float(second), lambda: setattr(modest, "backlog", modest.backlog + 1))
    simulation.run(100)
    assert len(modest.sent) >= 98
    parts = counts(greedy, since=20)
    assert max(parts) <= 1.05 * min(parts)
    assert len(sent(simulation, since=20)) >= 0.95 * 600 * 80 / 60


def test_a_member_that_was_idle_does_not_make_up_for_it() -> None:
    simulation = Simulation(Limits(rpm=600, shared="local"))
    simulation.join()
    late = simulation.join(backlog=10)
    simulation.run(60)
    late.backlog = float("inf")
    simulation.run(20)
    parts = counts(simulation.members, since=62)
    assert max(parts) <= 1.15 * min(parts)


def test_without_the_ledger_all_members_together_put_no_more_into_a_minute_than_the_limit() -> None:
    """Each at a time of its own, so that their cells fall together in the worst way."""
    simulation = Simulation(Limits(rpm=60, shared="local"))
    members = [simulation.join() for _ in range(8)]
    simulation.run(70)
    for member in members:
        member.alone()
    simulation.run(150)
    assert busiest(sent(simulation, since=simulation.now - 150)) <= 60
    quotas = [(member, member.lease.quotas["requests"]) for member in members]
    assert all(busiest(member.sent[-20:]) <= quota.share for member, quota in quotas)


def test_a_minute_in_which_the_ledger_was_lost_holds_no_more_than_the_limit_and_the_next_hardly_less() -> None:
    for rpm, members in ((600, 8), (60, 8), (10, 3)):
        for seed in range(4):
            simulation = Simulation(Limits(rpm=rpm, shared="local"), seed)
            for _ in range(members):
                simulation.join()
            simulation.run(62 + 1.3 * seed)
            simulation.ledger = Ledger(simulation.now)
            lost = simulation.now
            simulation.run(140)
            assert busiest(sent(simulation)) <= rpm, (rpm, members, seed)
            assert sum(lost + 25 <= at < lost + 85 for at in sent(simulation)) >= 0.9 * rpm, (rpm, members, seed)


def test_tokens_are_kept_to_in_any_minute_for_small_and_for_large_requests() -> None:
    for cost in (100.0, 3000.0):
        simulation = Simulation(Limits(tpm=60_000, shared="local"))
        for _ in range(8):
            simulation.join(cost=cost)
        simulation.run(190)
        assert busiest(sent(simulation)) * cost <= 60_000, cost
        assert len(sent(simulation, since=70)) / 2 * cost >= 0.94 * 60_000, cost
        parts = counts(simulation.members, since=70)
        assert max(parts) - min(parts) <= max(2, 0.1 * max(parts)), cost


def test_parts_are_equal_too_when_it_is_the_minute_that_is_full() -> None:
    """Renewals that come late make the ledger wait for what was used a minute ago."""
    simulation = Simulation(Limits(rpm=600, shared="local"))
    simulation.late = 1.0
    for _ in range(8):
        simulation.join()
    simulation.run(200)
    for since in (60, 80, 100, 120, 140):
        parts = [sum(since <= at < since + 20 for at in member.sent) for member in simulation.members]
        assert max(parts) - min(parts) <= 0.15 * max(parts), since
    assert busiest(sent(simulation)) <= 600
