"""Any order of joins, renewals, lost replies, deaths, silences and jumps of time: what all may do together is never more than the limit."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from scale import SCALE

from qreward.quota.ledger import LEASE, MINUTE, TURN, Demand, Ledger, RenewReply, RenewRequest

picks = st.integers(0, 1000)
pauses = st.sampled_from([0.0, 0.01, 0.1, 0.5, 0.5, 1.0, 1.6, 4.0, 4.1, 30.0, 61.0, 5000.0])


@dataclass(eq=False)
class Member:
    """What a process believes, whatever the ledger has of it."""

    name: str
    until: float = -inf
    hold: int = 0
    flying: int = 0
    left: float = 0.0
    spent: float = 0.0
    sent: list[float] = field(default_factory=list)

    def valid(self, now: float) -> bool:
        return now < self.until


class Machine(RuleBasedStateMachine):
    """Every member's belief is followed, and compared with what there is."""

    @initialize(permits=st.integers(1, 9), rpm=st.sampled_from([1.0, 7.0, 60.0, 600.0]))
    def begin(self, permits: int, rpm: float) -> None:
        self.now, self.permits, self.rpm = 0.0, permits, rpm
        self.ledger = Ledger()
        self.members: list[Member] = []
        self.sent: list[float] = []
        self.joined = 0
        self.blind_until = -inf

    def one(self, pick: int) -> Member | None:
        return self.members[pick % len(self.members)] if self.members else None

    def ask(self, member: Member, want: int) -> RenewRequest:
        valid = member.valid(self.now)
        if not valid:
            member.left, member.hold = 0.0, 0
        requests = Demand(self.rpm, want=want, rate=inf, spent=member.spent, left=member.left)
        return RenewRequest(requests, None, Demand(self.permits, rate=want, hold=member.hold, using=member.flying))

    def renewed(self, member: Member, share: RenewReply) -> None:
        assert share.permits is not None
        assert share.requests is not None
        member.until, member.hold = self.now + share.lease, int(share.permits.hold)
        member.left += share.requests.grant

    @rule()
    def join(self) -> None:
        if len(self.members) < 6:
            self.joined += 1
            self.members.append(Member(f"m{self.joined}"))

    @rule(pick=picks, want=st.sampled_from([0, 1, 3, 50]), heard=st.sampled_from([True, True, True, False]))
    def renew(self, pick: int, want: int, heard: bool) -> None:
        if (member := self.one(pick)) is not None:
            share = self.ledger.renew(self.now, member.name, self.ask(member, want))
            if heard:
                self.renewed(member, share)

    @rule(rounds=st.integers(1, 3), want=st.sampled_from([1, 50]), lost=st.integers(0, 12))
    def all_renew_in_turn(self, rounds: int, want: int, lost: int) -> None:
        """All replies arrive but one, perhaps."""
        for turn in range(rounds):
            self.now += 0.5
            for pick in range(len(self.members)):
                self.renew(pick, want, turn * len(self.members) + pick != lost)

    @rule(pick=picks, most=st.integers(1, 60))
    def use(self, pick: int, most: int) -> None:
        """All that the lease allows, and not a request more."""
        member = self.one(pick)
        while member is not None and most and member.valid(self.now) and member.left >= 1 and member.flying < member.hold:
            member.left -= 1
            member.spent += 1
            member.flying += 1
            most -= 1
            self.sent.append(self.now)

    @rule(pick=picks, count=st.integers(1, 9))
    def answers_come(self, pick: int, count: int) -> None:
        if (member := self.one(pick)) is not None:
            member.flying = max(0, member.flying - count)

    @rule(pick=picks, noticed=st.booleans())
    def die(self, pick: int, noticed: bool) -> None:
        if (member := self.one(pick)) is not None:
            self.members.remove(member)
            if noticed:
                self.ledger.remove_dead(self.now, member.name)

    @rule(pick=picks)
    def leave(self, pick: int) -> None:
        if (member := self.one(pick)) is not None and not member.flying:
            self.ledger.leave(self.now, member.name, self.ask(member, 0))
            member.until = -inf

    @rule(seconds=pauses)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def the_ledger_is_lost(self) -> None:
        """Another begins, which knows nothing."""
        self.ledger = Ledger(self.now)
        self.sent.clear()  # of a minute over two ledgers the simulation tells
        for member in self.members:
            member.left = 0.0

    @invariant()
    def permits_that_are_believed_in_are_never_more_than_there_are(self) -> None:
        if hasattr(self, "ledger"):
            assert sum(member.hold for member in self.members if member.valid(self.now)) <= self.permits
            assert all(member.flying <= self.permits for member in self.members)

    @invariant()
    def no_minute_holds_more_than_the_limit(self) -> None:
        if hasattr(self, "ledger"):
            self.sent = [at for at in self.sent if at >= self.now - MINUTE]
            assert len(self.sent) <= self.rpm

    def teardown(self) -> None:
        """All that are still there and hungry get their fair parts, whatever was before; looked at between two turns of the odd slots."""
        if not getattr(self, "members", None):
            return
        self.now = TURN * ceil((self.now + LEASE + 61.0) / TURN)
        for member in self.members:
            member.flying = 0
        for _ in range(10):
            self.all_renew_in_turn(1, 50, -1)
        fair = self.permits // len(self.members)
        assert all(fair <= member.hold <= fair + 1 for member in self.members), [member.hold for member in self.members]
        assert sum(member.hold for member in self.members) == self.permits


Machine.TestCase.settings = settings(max_examples=40 * SCALE, stateful_step_count=40, deadline=None)
TestMachine = Machine.TestCase
