"""Members of one ledger in virtual time: each sends as its shares of a rate allow."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from random import Random

from qreward.quota.ledger import MINUTE, RENEW, Lease, Ledger, RenewRequest
from qreward.scheduler.limits.concurrency import ConfiguredLimit
from qreward.settings.policies import Limits

MANY = 1000.0


class Member:
    """One process: hungry all the time, or as much as it is given to do."""

    def __init__(self, name: str, simulation: Simulation, backlog: float, cost: float) -> None:
        self.name, self.simulation, self.backlog, self.cost = name, simulation, backlog, cost
        self.lease = Lease(simulation.limits, ConfiguredLimit(simulation.limits.max_concurrency))
        self.sent: list[float] = []
        self.alive, self.answered, self.asleep_until = True, True, -inf
        self.look_at = inf

    def ask(self) -> RenewRequest:
        """As a demand does, without a source."""
        limits, lease = self.simulation.limits, self.lease
        lease.lapse(self.simulation.now)
        want, rate = min(self.backlog, MANY), inf if self.backlog else 0.0
        ask = RenewRequest()
        if "requests" in lease.quotas and limits.rpm is not None:
            ask.requests = lease.quotas["requests"].need(limits.rpm, want, rate)
        if "tokens" in lease.quotas and limits.tpm is not None:
            ask.tokens = lease.quotas["tokens"].need(limits.tpm, want, rate)
        return ask

    def renew(self) -> None:
        now = self.simulation.now
        if not self.answered:
            self.lease.go_alone(now, self.ask(), "nobody answers")
            return
        share = self.simulation.ledger.renew(now, self.name, self.ask())
        self.lease.take_over(now, now, share)

    def alone(self) -> None:
        """Nobody answers any more."""
        self.answered = False
        self.renew()

    def next_at(self) -> float:
        """When it may send next, as far as it knows."""
        lease = self.lease
        if not lease.may_send(self.simulation.now):
            return inf
        return max(quota.ready_at for quota in lease.quotas.values())

    def may_send(self) -> bool:
        return self.backlog > 0 and self.next_at() <= self.simulation.now

    def send(self) -> None:
        """All that it may now."""
        while self.may_send():
            for kind, quota in self.lease.quotas.items():
                quota.take(self.simulation.now, 1.0 if kind == "requests" else self.cost)
            self.backlog -= 1
            self.sent.append(self.simulation.now)


class Simulation:
    """A ledger, its members, and a clock."""

    def __init__(self, limits: Limits, seed: int = 0, ledger: Ledger | None = None) -> None:
        self.limits, self.rng = limits, Random(seed)
        self.ledger = Ledger() if ledger is None else ledger
        self.now = 0.0
        self.members: list[Member] = []
        self.late = 0.0  # seconds by which renewals may come later than they should
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def join(self, backlog: float = inf, cost: float = 100.0) -> Member:
        """A process begins, and renews from now on twice a second, more or less."""
        member = Member(f"m{len(self.members):03}", self, backlog, cost)
        self.members.append(member)
        self.at(self.now + self.rng.uniform(0, RENEW), lambda: self._beat(member))
        return member

    def at(self, when: float, what: Callable[[], None]) -> None:
        self._number += 1
        heappush(self._due, (when, self._number, what))

    def run(self, seconds: float) -> None:
        """Let time pass; everybody sends as soon as it may."""
        end = self.now + seconds
        for member in self.members:
            self.wake(member)
        while self._due and self._due[0][0] <= end:
            self.now, _, what = heappop(self._due)
            what()
        self.now = end

    def wake(self, member: Member) -> None:
        """Let a member send what it may, and look again when it may send more."""
        if not member.alive or self.now < member.asleep_until:
            return
        member.send()
        if member.backlog > 0 and (at := member.next_at()) > self.now and at < member.look_at:
            member.look_at = at
            self.at(at, lambda: self._look(member, at))

    def _look(self, member: Member, at: float) -> None:
        if member.look_at == at:
            member.look_at = inf
            self.wake(member)

    def kill(self, member: Member, *, noticed: bool) -> None:
        member.alive = False
        if noticed:
            self.ledger.remove_dead(self.now, member.name)

    def _beat(self, member: Member) -> None:
        if not member.alive:
            return
        if self.now >= member.asleep_until:
            member.renew()
            self.wake(member)
        self.at(self.now + RENEW * self.rng.uniform(0.95, 1.2) + self.rng.uniform(0, self.late), lambda: self._beat(member))


def busiest(times: list[float], window: float = MINUTE) -> int:
    """Most events in any window of so many seconds."""
    times = sorted(times)
    return max((bisect_right(times, time + window) - place for place, time in enumerate(times)), default=0)
