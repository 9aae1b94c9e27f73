"""What a process may still send of its share: less after answers that cost more than expected, nothing once the lease has run out."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from quota_members import busiest

from qreward.quota.ledger import (
    FIRST_TOKENS,
    LEASE,
    LINGER,
    MINUTE,
    PERIOD,
    RENEW,
    CappedLimit,
    Demand,
    Grant,
    Lease,
    LeasedQuota,
    RenewReply,
    RenewRequest,
)
from qreward.quota.renewal import AHEAD, IDLE, SLOW, LeaseRenewer
from qreward.scheduler.limits.concurrency import AdaptiveLimit, ConfiguredLimit, Reject
from qreward.scheduler.outcome import Answer
from qreward.scheduler.pool import ExpectedFinish, Pool
from qreward.scheduler.queue import Queue
from qreward.scheduler.source import Source, make_source, standing
from qreward.scheduler.task import LOW, Attempt, Task
from qreward.settings.policies import Endpoint, Limits


def lease_of(now: float = 0.0, members: int = 1, **grants: Any) -> Lease:
    """A lease of these limits, which has had its first reply."""
    settings = {"requests": "rpm", "tokens": "tpm", "permits": "max_concurrency"}
    limits: dict[str, Any] = {settings[kind]: int(grant.limit) for kind, grant in grants.items()}
    lease = Lease(Limits(**limits), ConfiguredLimit())
    lease.take_over(now, now, RenewReply(members, **grants))
    return lease


def quota_of(lease: Lease) -> LeasedQuota:
    (quota,) = lease.quotas.values()
    return quota


def demand_of(quota: LeasedQuota) -> Demand:
    return quota.need(quota.limit, 0, 0)


# while the lease is valid


def test_a_request_waits_for_the_lease_and_calls_for_it_once() -> None:
    calls: list[None] = []
    lease = Lease(Limits(max_concurrency=4, rpm=60), ConfiguredLimit())
    lease.call = lambda: calls.append(None)
    assert [lease.may_send(now) for now in (0.0, 0.1)] == [False, False]
    assert len(calls) == 1
    lease.take_over(0.5, 0.5, RenewReply(1, requests=Grant(60, 60, 0), permits=Grant(4, 0)))
    lease.missed = False
    assert not lease.may_send(0.6), "a share without a slot"
    assert len(calls) == 2
    assert lease.is_short()
    lease.take_over(1.0, 1.0, RenewReply(1, requests=Grant(60, 60, 0), permits=Grant(4, 4)))
    lease.missed = False
    assert (lease.may_send(1.1), quota_of(lease).ready_at, len(calls)) == (True, inf, 3), "slots without a request"


def test_a_lease_counts_from_when_its_renewal_was_sent_not_from_when_the_reply_came() -> None:
    lease = Lease(Limits(max_concurrency=4), ConfiguredLimit())
    lease.take_over(3.0, 1.0, RenewReply(1, permits=Grant(4, 4)))
    assert lease.may_send(1.0 + LEASE - 0.01)
    assert not lease.may_send(1.0 + LEASE)


def test_what_was_left_of_a_lease_that_has_run_out_is_not_sent_later_nor_held() -> None:
    lease = lease_of(requests=Grant(600, 600, 10), tokens=Grant(6000, 600, 900))
    assert all(quota.ready_at <= 1.0 for quota in lease.quotas.values())
    assert not lease.lapse(LEASE - 0.1)
    assert all(quota.ready_at <= 1.0 for quota in lease.quotas.values())
    assert lease.lapse(LEASE)
    assert [quota.ready_at for quota in lease.quotas.values()] == [inf, inf]
    assert [demand_of(quota).left for quota in lease.quotas.values()] == [0, 0]


def test_a_grant_is_added_to_what_is_left_and_spread_over_the_time_until_the_next_renewal() -> None:
    lease, now, sent = lease_of(100.0, requests=Grant(600, 60, 6)), 100.0, []
    lease.take_over(100.0, 100.0, RenewReply(1, requests=Grant(600, 60, 4)))
    quota = quota_of(lease)
    while quota.ready_at < inf:
        now = max(now, quota.ready_at)
        quota.take(now)
        sent.append(now)
    assert len(sent) == 10
    assert 0.5 * RENEW <= sent[-1] - 100.0 <= RENEW


def test_a_large_request_does_not_delay_the_use_of_the_next_grant() -> None:
    lease = lease_of(tokens=Grant(60_000, 6000, 300))
    quota_of(lease).take(0.0, 3000)
    lease.take_over(0.5, 0.5, RenewReply(1, tokens=Grant(60_000, 60_000, 10_000)))
    assert quota_of(lease).ready_at == 0.5 + RENEW - quota_of(lease).burst
    assert quota_of(lease).rate == 1000, "what the scheduler expects of the source, per second"


def test_tokens_beyond_the_estimate_are_taken_from_what_is_left_and_unused_ones_go_back_to_all_members() -> None:
    quota = quota_of(lease_of(tokens=Grant(60_000, 60_000, 2000)))
    said = []
    for now, used in ((0.0, 600), (1.0, 300), (2.0, 900)):
        quota.take(now, 500)
        quota.settle(500, used, 0.0)
        demand = demand_of(quota)
        said.append((quota.ready_at < inf, demand.left, demand.spent, demand.returned))
    assert said == [(True, 1400, 600, 0), (True, 900, 1100, 200), (False, 0, 2000, 200)]


def test_one_large_request_does_not_keep_smaller_ones_waiting_for_long() -> None:
    quota = quota_of(lease_of(tokens=Grant(60_000, 60_000, 20_000)))
    quota.take(0.0, 8000.0)
    assert (quota.least, quota.mean) == (8000, FIRST_TOKENS + 0.1 * (8000 - FIRST_TOKENS)), "the next ones may be as large"
    for _ in range(100):
        quota.take(0.0, 100.0)
    assert quota.least <= 100
    assert quota.mean == pytest.approx(100, abs=1)


def test_what_is_left_but_too_little_for_a_request_goes_back_to_all_members() -> None:
    quota = quota_of(lease_of(tokens=Grant(60_000, 60_000, 600)))
    left = []
    for _ in range(3):
        quota.take(0.0, 200)
        demand = demand_of(quota)
        left.append((demand.left, round(demand.least - quota.least)))
    assert left == [(400, 0), (0, 0), (-200, 200)], "and what was used too much is owed"


def test_a_request_larger_than_the_limit_is_sent_once_a_whole_minutes_amount_is_left() -> None:
    least = {}
    for limits, limit, cost in ((Limits(tpm=1000), 1000.0, 5000.0), (Limits(tpm=1000), 1000.0, 500.0), (Limits(rpm=0.5), 0.5, 1.0)):
        quota = quota_of(Lease(limits, ConfiguredLimit()))
        quota.given(0.0, Grant(limit, limit))
        quota.take(0.0, cost)
        quota.left = 0.0
        least[limit, cost] = demand_of(quota).least
    assert least == {(1000.0, 5000.0): 1000, (1000.0, 500.0): 500, (0.5, 1.0): 1}


def test_a_share_is_short_if_it_allows_no_request_in_flight_or_too_few_of_one_kind() -> None:
    found = {}
    for case in ((1, 1, 256), (0, 1, 256), (1, 0, 256), (1, 1, 255)):
        permits, requests, tokens = case
        lease = lease_of(requests=Grant(60, 9, requests), tokens=Grant(6000, 9, tokens), permits=Grant(4, permits))
        short = lease.is_short()
        found[case] = short
    assert found == {(1, 1, 256): False, (0, 1, 256): True, (1, 0, 256): True, (1, 1, 255): True}


def test_a_source_that_may_send_nothing_by_its_lease_is_said_to_wait_for_its_share() -> None:
    """Of each limit: before the first share, with one, once that has run out, and with a share of nothing."""
    said = {}
    for name, limits in (("permits", Limits(max_concurrency=4, shared="local")), ("requests", Limits(rpm=60, shared="local"))):
        source = make_source("a", Random(0), limits)
        lease, found = source.lease, [standing(0.0, source)]
        assert lease is not None
        lease.take_over(0.0, 0.0, replace(RenewReply(1), **{name: Grant(60, 2, 2)}))
        found += [standing(1.0, source), standing(LEASE, source)]
        lease.lapse(LEASE)
        lease.take_over(LEASE, LEASE, replace(RenewReply(1), **{name: Grant(60, 0, 0)}))
        said[name] = [*found, standing(LEASE, source)]
    waits = ("waiting for its share", inf, "quota")
    assert said == {name: [waits, ("ready", 0.0, "ready"), waits, waits] for name in said}


def test_a_lease_is_described_by_its_shares() -> None:
    limits = Limits(rpm=600, tpm=120_000, max_concurrency=8)
    lease = Lease(limits, ConfiguredLimit())
    said = [lease.words(limits)]
    for members in (1, 3):
        reply = RenewReply(members, requests=Grant(60, 7.34567), tokens=Grant(120_000, 12_345.6), permits=Grant(8, 3))
        lease.take_over(0.0, 0.0, reply)
        said.append(lease.words(limits))
    lease.go_alone(0.0, RenewRequest(), "away")
    said.append(lease.words(limits))
    lease.end()
    said.append(lease.words(limits))
    shares = "7.346 of 60 requests a minute, 12346 of 120000 tokens a minute, 3 of 8 in flight"
    known = [f"the only process: {shares}", f"one of 3 processes: {shares}", f"away: {shares}"]
    assert said == ["waiting for a first share", *known, "idle"]
    said.clear()
    for one in (Limits(rpm=600), Limits(tpm=6000), Limits(max_concurrency=8)):
        lease = Lease(one, ConfiguredLimit())
        lease.go_alone(0.0, RenewRequest(Demand(600), Demand(6000), Demand(8)), "away")
        said.append(lease.words(one))
        assert lease.words(Limits()) == "away: "  # as after the limit was removed
    assert said == ["away: 75 of 600 requests a minute", "away: 750 of 6000 tokens a minute", "away: 1 of 8 in flight"]


def test_the_limit_on_requests_in_flight_adapts_within_a_share_as_it_would_alone() -> None:
    """A share of 12, of a server that takes more and more, then at times only 6, and is lost twice."""
    alone, shared = AdaptiveLimit(Random(1), 256), CappedLimit(AdaptiveLimit(Random(1), 256), 12)
    seen = set()
    for step in range(6000):
        now, full = step / 10, step > 1500 and step % 600 < 20
        returns = []
        for limit in (alone, shared):
            inflight = 0 if step < 1500 else alone.limit - 1
            limit.sent(now, alone.limit)
            if full:
                returns.append(limit.rejected(now, now - 1.0, step, 2.0 if step % 2 else None, 6 if step % 1200 < 600 else 0))
            elif step % 2000 == 1999:
                limit.returned(now, 1)
                limit.crowd(now + 5.0)
            else:
                limit.ok(now, now - 1.0, 10 + step % 7, inflight)
        assert len(set(returns)) <= 1, step
        inner = shared.inner
        assert isinstance(inner, AdaptiveLimit)
        assert (inner.limit, inner.crowded_until) == (alone.limit, alone.crowded_until), step
        assert (shared.limit, shared.reason) == (min(alone.limit, 12), "its share" if alone.limit > 12 else alone.reason), step
        seen.add((alone.limit > 12, *returns[:1]))
    assert seen == {(True,), (False,), (True, Reject.AWAY), (False, Reject.AWAY), (True, Reject.STRAY)}, "all of these are compared"


def test_a_share_that_changes_is_the_cap_from_then_on_whatever_ends() -> None:
    limit = CappedLimit(ConfiguredLimit(20), 12)
    limits = [limit.limit]
    for permits in (5, 30, 0):
        limit.permits = permits
        limit.ok(1.0, 0.5, 10, 3)
        limits.append(limit.limit)
        limit.returned(2.0, 1)
        assert limit.limit == limits[-1], permits
    assert limits == [12, 5, 20, 1]
    limit = CappedLimit(AdaptiveLimit(Random(1), 256), 5)
    for now in range(40):
        limit.sent(now, 20)
        limit.rejected(now, now - 1.0, now, None, 3)
    assert limit.limit == 3
    limit.returned(50.0, 1)
    assert (limit.limit, limit.inner.limit > 5) == (5, True), "its source is back: it begins again"


# without the ledger


def test_a_member_alone_without_a_share_takes_one_eighth_or_its_part_if_there_are_more_members() -> None:
    taken = {}
    for members in (0, 3, 20):
        lease = Lease(Limits(rpm=600, tpm=6000), ConfiguredLimit())
        lease.members = members
        lease.go_alone(0.0, RenewRequest(Demand(600), Demand(6000)), "away")
        taken[members] = [(quota.share, quota.limit) for quota in lease.quotas.values()]
    assert taken == {0: [(75, 600), (750, 6000)], 3: [(75, 600), (750, 6000)], 20: [(30, 600), (300, 6000)]}
    lease = Lease(Limits(rpm=600), ConfiguredLimit())  # of a source whose limits have changed since
    lease.go_alone(0.0, RenewRequest(tokens=Demand(6000)), "away")
    lease.take_over(1.0, 1.0, RenewReply(1, tokens=Grant(6000, 6000, 60)))
    assert quota_of(lease).share == 0
    slots = {}
    for limit, share in ((16, None), (4, None), (16, 9)):
        lease = Lease(Limits(max_concurrency=limit), ConfiguredLimit()) if share is None else lease_of(permits=Grant(limit, share))
        lease.go_alone(0.0, RenewRequest(permits=Demand(limit)), "away")
        slots[limit, share] = (lease.window.permits, lease.window.limit, lease.may_send(LEASE - 0.1), lease.may_send(LEASE))
    assert slots == {(16, None): (2, 2, True, False), (4, None): (1, 1, True, False), (16, 9): (9, 9, True, False)}


def sent_alone(lease: Lease, cost: float, seconds: float) -> list[float]:
    """The times at which a member sends that always has requests of this cost, and whose ledger does not answer for so long."""
    (kind, quota), now, sent = *lease.quotas.items(), 0.0, []
    while now < seconds:
        lease.go_alone(now, RenewRequest(**{kind: quota.need(quota.limit, 100, inf)}), "away")
        until, at = now + RENEW, now
        while (at := max(at, quota.ready_at)) < until:
            quota.take(at, cost)
            sent.append(at)
        now = until
    return sent


def test_a_member_alone_sends_in_no_minute_more_than_its_part_of_the_limit_and_one_request_at_least() -> None:
    found = {}
    for share in (60.0, 7.35, 2.0, 0.9, 0.5):
        sent = sent_alone(lease_of(members=4, requests=Grant(600, share * MINUTE / PERIOD, 5)), 1.0, 600.0)
        found[share] = (busiest(sent), len(sent) / 10)
        assert sent[0] >= min(60.0, 60 / share), "what it was granted may belong to others meanwhile"
    assert {share: most for share, (most, _) in found.items()} == {60.0: 60, 7.35: 7, 2.0: 2, 0.9: 1, 0.5: 1}
    assert all(mean >= 0.9 * int(share) for share, (_, mean) in found.items()), found


def test_a_member_alone_keeps_to_its_share_of_tokens_whatever_a_request_costs() -> None:
    for cost, most in ((100.0, 6000), (900.0, 6000), (9000.0, 9000)):
        sent = sent_alone(lease_of(members=4, tokens=Grant(60_000, 6000 * MINUTE / PERIOD, 5000)), cost, 900.0)
        assert busiest(sent) * cost <= most, cost
        assert len(sent) * cost / 15 >= 0.75 * 6000, cost


def test_what_answers_used_beyond_their_estimate_counts_alone_too() -> None:
    lease = lease_of(tokens=Grant(60_000, 60_000))
    quota = quota_of(lease)
    for now in (0.0, 1.0):
        lease.go_alone(now, RenewRequest(tokens=quota.need(60_000, 100, inf)), "away")
    quota.take(1.0, 500)
    quota.settle(500, 3000, 1.2)
    assert (quota.ready_at, demand_of(quota).spent) == (inf, 3000)
    lease.take_over(2.0, 2.0, RenewReply(1, tokens=Grant(60_000, 60_000, 1000)))
    assert (quota.own, quota.limit) == (None, 60_000)


def test_a_share_that_was_given_up_is_not_used_again() -> None:
    """It may belong to others: a member that returns alone takes no more than a newcomer."""
    for kind, limits, reply, request in (
        ("requests", Limits(rpm=600), RenewReply(1, requests=Grant(600, 600, 10)), RenewRequest(requests=Demand(600))),
        ("tokens", Limits(tpm=6000), RenewReply(1, tokens=Grant(6000, 6000, 600)), RenewRequest(tokens=Demand(6000))),
        ("permits", Limits(max_concurrency=16), RenewReply(1, permits=Grant(16, 16)), RenewRequest(permits=Demand(16))),
    ):
        for returns in ("alone", "again"):
            lease = Lease(limits, ConfiguredLimit())
            lease.take_over(0.0, 0.0, reply)
            lease.end()
            assert not lease.may_send(0.1), (kind, returns)
            if returns == "again":
                lease.take_over(1.0, 1.0, reply)
                assert lease.may_send(1.1), kind
            else:
                lease.go_alone(1.0, request, "away")
                shares = [quota.share / quota.limit for quota in lease.quotas.values()] or [lease.window.permits / 16]
                assert shares == [1 / 8], kind


def test_a_member_alone_gives_up_what_it_was_granted() -> None:
    lease = lease_of(requests=Grant(600, 60, 10))
    lease.go_alone(1.0, RenewRequest(requests=Demand(600)), "away")
    assert lease.may_send(1.1)
    assert (demand_of(quota_of(lease)).left, quota_of(lease).share) == (0.0, 60)


# what a source asks for


class Demands:
    """A source whose requests are sent and answered by hand, and what it asks the ledger for."""

    def __init__(self, waiting: int = 0, **limits: Any) -> None:
        endpoint = Endpoint("http://a.example/v1", limits=Limits(**limits, shared="local"))
        self.source: Source = make_source("a", Random(0), endpoint.limits)
        self.source.endpoint = endpoint
        assert self.source.lease is not None
        self.lease = self.source.lease
        engine: Any = None  # asking needs none
        self.renewer = LeaseRenewer(self.source, self.lease, engine)
        self.under_way: list[Attempt] = []
        self.pool = Pool("p", [self.source], ExpectedFinish(), Queue())
        for number in range(waiting):
            self.pool.queue.put(Task(None, self.pool, 5, None, None, number))

    def send(self, now: float, count: int) -> None:
        for _ in range(count):
            attempt = Attempt(Task(None, self.pool, 5, None, None, 0), self.source, now)
            self.source.sent(now, attempt)
            self.under_way.append(attempt)

    def answer(self, now: float) -> None:
        for attempt in self.under_way:
            self.source.ended(now, attempt)
            self.source.answered(now, attempt, Answer("yes", 1, 1))
        self.under_way.clear()

    def ask(self, now: float, kind: str) -> Demand:
        found = getattr(self.renewer.request(now), kind)
        assert isinstance(found, Demand)
        return found


def test_a_source_asks_for_as_many_slots_as_it_used_since_its_last_renewal_and_a_few_more() -> None:
    demands = Demands(max_concurrency=64)
    assert demands.ask(-1.0, "permits").rate == 0
    asked = []
    for now, count in ((0.0, 6), (0.5, 20), (1.0, 0), (1.5, 0)):
        demands.send(now, count)
        demands.answer(now + 0.2)
        permits = demands.ask(now + 0.25, "permits")
        asked.append((permits.rate, permits.using))
    assert asked == [(8, 0), (25, 0), (0, 0), (0, 0)]
    demands.send(2.0, 5)
    for now in (2.25, 2.75):  # what is in flight the whole time counts in each
        permits = demands.ask(now, "permits")
        assert (permits.rate, permits.using) == (7, 5)


def test_a_source_asks_for_a_slot_for_each_task_that_waits_up_to_its_own_limit_and_holds_none_without_a_lease() -> None:
    asked = {}
    for waiting in (0, 3, LOW):
        demands = Demands(waiting, max_concurrency=64)
        demands.lease.take_over(0.0, 0.0, RenewReply(1, permits=Grant(64, 10)))
        demands.send(0.1, 2)
        permits = [demands.ask(now, "permits") for now in (0.5, LEASE)]
        asked[waiting] = ([each.rate for each in permits], [each.hold for each in permits], demands.renewer.hungry)
    assert asked == {0: ([3, 3], [10, 0], False), 3: ([5, 5], [10, 0], True), LOW: ([64, 64], [10, 0], True)}


def test_a_source_asks_for_half_as_much_again_as_it_used_since_its_last_renewal() -> None:
    demands = Demands(rpm=6000)
    demands.ask(0.0, "requests")
    demands.send(0.1, 40)
    demands.answer(0.3)
    first, second = demands.ask(0.5, "requests"), demands.ask(1.0, "requests")
    assert (first.spent, second.spent) == (40.0, 40.0)
    assert (first.want, second.want) == (AHEAD * 40 + 1, 0)
    assert (first.rate, second.rate) == (AHEAD * 40 / 0.5 * MINUTE + 1, 0.0)
    after_long = Demands(rpm=6000)
    after_long.send(5000.0, 40)
    assert after_long.ask(5000.0, "requests").rate == AHEAD * 40 + 1, "of a minute, if it has not asked before"


def test_a_source_asks_for_tokens_by_the_mean_of_what_its_requests_cost_and_for_one_large_request_at_least() -> None:
    demands = Demands(tpm=60_000)
    tokens = demands.lease.quotas["tokens"]
    demands.ask(0.0, "tokens")
    demands.send(0.1, 40)
    for _ in range(100):
        tokens.take(0.2, 1000.0)
    demands.answer(0.3)
    asked = demands.ask(0.5, "tokens")
    assert round(asked.want / 1000) == AHEAD * 40 + 1
    assert round(asked.rate / 1000) == AHEAD * 40 / 0.5 * MINUTE + 1
    tokens.take(0.6, 9000.0)
    assert demands.ask(1.0, "tokens").want == 9000


def test_a_source_without_a_slot_asks_for_the_requests_of_one_slot() -> None:
    demands = Demands(10, max_concurrency=64, rpm=6000)
    wants = []
    for share in (0, 4, 64):
        demands.lease.take_over(0.0, 0.0, RenewReply(1, requests=Grant(6000, 60), permits=Grant(64, share)))
        if not share:
            demands.lease.end()
        wants.append(demands.ask(0.5, "requests").want)
    assert wants == [2, 5, 65], "one more, so that the next renewal is not late"


def test_how_many_tasks_wait_for_a_source_counts_only_if_it_could_take_them() -> None:
    def waiting(tasks: int, change: Callable[[Source], object] = lambda _: None) -> float:
        demands = Demands(tasks, rpm=6000)
        change(demands.source)
        return demands.renewer.waiting(0.0)

    assert [waiting(count) for count in (0, 1, LOW - 1, LOW, 10 * LOW)] == [0, 1, LOW - 1, inf, inf]
    obstacles: dict[str, Callable[[Source], object]] = {
        "removed": lambda source: setattr(source, "removed", True),
        "paused": lambda source: setattr(source, "paused", "paused"),
        "marked unhealthy": lambda source: source.health.mark_unhealthy(),
        "cooling down": lambda source: source.cooldown.hold(0.0, RENEW + 0.1),
        "being probed": lambda source: (source.health.eject(-9.0, 1.0), source.health.sent(0.0, 1), setattr(source, "inflight", 1)),
    }
    assert {name: waiting(3, change) for name, change in obstacles.items()} == dict.fromkeys(obstacles, 0)
    assert waiting(3, lambda source: source.cooldown.hold(0.0, RENEW)) == 3, "it is over by the next renewal"


def test_the_requests_in_flight_of_a_source_last_at_most_twice_its_longest_latency() -> None:
    lasts = []
    for seconds in (0.0, 0.5, 90.0):
        demands = Demands(max_concurrency=64)
        if seconds:
            demands.send(0.0, 20)
            demands.answer(seconds)
        lasts.append(demands.ask(100.0, "permits").lasts)
    assert lasts == [LINGER, pytest.approx(SLOW * 0.5, rel=0.1), LINGER]


def test_a_source_is_idle_two_seconds_after_its_last_work() -> None:
    demands = Demands(rpm=6000)
    assert demands.renewer.is_idle(0.0), "nothing has ever been sent"
    demands.send(1.0, 1)
    assert not demands.renewer.is_idle(1.0)
    demands.answer(9.0)
    demands.ask(9.0, "requests")
    assert not demands.renewer.is_idle(9.0 + IDLE)
    assert demands.renewer.is_idle(9.1 + IDLE)
    waits = Demands(1, rpm=6000)
    assert [waits.renewer.is_idle(now) for now in (0.0, 100.0)] == [False, False]
