"""The ledger of the limits of one key."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import floor, inf

import msgspec

LEASE = 4.0
"""Seconds for which a lease is valid. A member that does not renew its lease within this time loses its share and stops using the share."""
RENEW = 0.5  # seconds between two renewals of an active member
FRESH = 1.5
"""Seconds without a renewal after which a member counts as slow. Nothing is reserved for a slow member."""
LINGER = 60.0
"""Seconds after which the requests of a process that stopped renewing are assumed to have ended, if the latency of its source is
unknown."""
MINUTE = 60.0
MARGIN = 0.5
"""Maximum number of seconds by which two requests may arrive closer together than they were sent (loaded machines, new connections)."""
STEP = 0.25  # length in seconds of the steps in which the ledger records the use of the last minute
PERIOD = MINUTE + MARGIN + STEP + RENEW
"""Seconds over which the amount of a limit per minute is granted. This is longer than a minute, because a request counts until a minute
after its report."""


class Demand(msgspec.Struct, array_like=True):
    limit: float  # the configured limit
    want: float = 0.0  # amount that the member could use until its next renewal, including ``left``
    hold: float = 0.0  # the share that the member holds, of the requests in flight
    rate: float = 0.0  # the share that the member could use; inf for any share
    least: float = 1.0  # the smallest amount that is useful to the member
    spent: float = 0.0  # total of the granted amounts that the member has used since it started
    returned: float = 0.0  # total of the amounts in ``spent`` that turned out to be unused, such as tokens that an answer did not need
    left: float = 0.0  # granted amount that the member has not used yet
    using: int = 0  # requests in flight
    lasts: float = LINGER  # seconds after which the requests in flight have certainly ended


class RenewRequest(msgspec.Struct, array_like=True):
    requests: Demand | None = None
    tokens: Demand | None = None
    permits: Demand | None = None


class Grant(msgspec.Struct, array_like=True):
    limit: float = inf  # the limit for all members together: the smallest limit that a member has configured
    hold: float = 0.0  # the member's share: per minute for a rate limit, in flight for a concurrency limit
    grant: float = 0.0  # amount that the member may use in addition to ``left``, while its lease is valid


class RenewReply(msgspec.Struct, array_like=True):
    members: int  # number of members
    lease: float = LEASE  # seconds for which the reply is valid, from when the member sent its request
    requests: Grant | None = None
    tokens: Grant | None = None
    permits: Grant | None = None


def water_level(amount: float, vessels: Iterable[tuple[float, float]]) -> float:
    """Return the level of an amount of water poured into connected vessels, or inf if the vessels cannot hold this amount."""
    edges = sorted(edge for bottom, room in vessels if room > 0 for edge in ((bottom, 1), (bottom + room, -1)))
    width = 0
    for (height, change), (above, _) in pairwise(edges):
        width += change
        room = (above - height) * width
        if room >= amount:
            return height + amount / width
        amount -= room
    return inf


LEAST_WAITING = 2.0
"""Number of requests. The credit for requests may accumulate to the credit of one second, or to this number if that is more."""
HAIR = 1e-9  # relative tolerance for rounding errors in sums of floats


class Account(msgspec.Struct, array_like=True):
    at: float  # time of the member's last report
    spent: float  # the totals in this report; see ``Demand``
    returned: float
    served: float = 0.0  # the member's clock for fair queueing
    out: float = 0.0  # amount that was granted and has not been reported as used
    want: float = 0.0  # amount that the member wants in addition to ``out``
    least: float = 1.0  # the smallest amount that is useful to the member
    rate: float = 0.0  # amount per minute that the member could use


class WindowQuota(msgspec.Struct, array_like=True):
    """Limits the use of all members per minute: grants them credit, and counts it until a minute after its use was reported."""

    whole: bool  # True if only whole numbers are granted
    limit: float = inf  # amount per minute
    accounts: dict[str, Account] = {}  # account of each member
    used: dict[int, float] = {}  # number of the time step -> amount reported as used in this step
    credit: float = 0.0  # amount that may be granted at the time ``since``
    since: float = -inf
    clock: float = 0.0  # the common clock: the clock of the member furthest behind, of all members that want a grant

    @property
    def rate(self) -> float:
        return self.limit / PERIOD

    @property
    def most(self) -> float:
        return max(LEAST_WAITING, self.rate) if self.whole else 2 * self.rate

    def renew(self, now: float, member: str, need: Demand) -> Grant:
        self.report(now, member, need)
        return Grant(self.limit, self.share(member), self.grant(now, member))

    def advance(self, now: float, begun: float = -inf) -> None:
        """Add credit up to ``now``, drop use older than a minute, and close the accounts of members whose lease has run out."""
        if self.since < begun:  # the ledger before this one may have granted as much in advance
            self.since, self.credit = begun, -self.most
        self.credit = min(self.most, self.credit + (now - max(self.since, now - MINUTE)) * self.rate)
        self.since = now
        oldest = (now - MINUTE - MARGIN) / STEP - 1
        for step in [step for step in self.used if step <= oldest]:
            del self.used[step]
        for member in [member for member, account in self.accounts.items() if now > account.at + LEASE]:
            self.close(self.accounts[member].at + LEASE, member)

    def close(self, now: float, member: str) -> None:
        """Close a member's account. The amount that the member has not reported counts as used."""
        account = self.accounts.pop(member, None)
        if account is not None:
            self._use(now, account.out)

    def report(self, now: float, member: str, need: Demand) -> None:
        """Apply a member's report: the amounts that it used, has left, and wants."""
        account = self.accounts.get(member)
        if account is None:
            account = self.accounts[member] = Account(now, need.spent, need.returned, self.clock)
        used, returned = max(0.0, need.spent - account.spent), max(0.0, need.returned - account.returned)
        self._use(now, used)
        self._refund(returned)
        left = max(0.0, need.left)
        back = account.out - left - used + returned  # the unused part of the grants; negative if the member used more than its grants
        self.credit = min(self.most, self.credit + back)
        account.served -= back
        wanted = account.want > 0  # if so, its clock stays behind, and it is served first
        account.at, account.spent, account.returned, account.out = now, need.spent, need.returned, left
        account.want, account.least, account.rate = max(0.0, need.want - left), need.least, need.rate
        if account.want and not wanted:
            account.served = max(account.served, self.clock)

    def grant(self, now: float, member: str) -> float:
        """Grant a member its part of the credit, and return this amount."""
        account = self.accounts[member]
        if account.want <= 0:
            return 0.0
        hungry = {name: other for name, other in self.accounts.items() if other.want > 0 and now <= other.at + FRESH}
        self.clock = max(self.clock, min(other.served for other in hungry.values()))
        room = self.limit - self.counted()
        given = min(self._fair_part(account, hungry, min(self.credit, room)) or self._piece(member, hungry, room), account.want)
        account.out += given
        account.want -= given
        account.served += given
        self.credit -= given
        return given

    def share(self, member: str) -> float:
        total = self.rate * MINUTE
        return min(total, self.accounts[member].rate, water_level(total, ((0.0, account.rate) for account in self.accounts.values())))

    def counted(self) -> float:
        """Return the sum of the amounts that count now. It never exceeds the limit."""
        return sum(self.used.values()) + sum(account.out for account in self.accounts.values())

    def _fair_part(self, account: Account, hungry: dict[str, Account], amount: float) -> float:
        """Return a member's fair part of an amount, or 0 if this part is too small to be useful to the member."""
        height = water_level(amount, ((other.served, other.want) for other in hungry.values()))
        part = min(account.want, max(0.0, height - account.served))
        if self.whole:
            part = floor(part + HAIR)
        return part if part >= min(account.least, account.want) else 0.0

    def _piece(self, member: str, hungry: dict[str, Account], room: float) -> float:
        """Return the smallest amount that is useful to a member."""
        left, enough = self.credit, 1.0 if self.whole else self.rate
        for name, other in sorted(hungry.items(), key=lambda item: (item[1].served, item[0])):
            least = min(other.least, other.want, self.limit)
            if left + HAIR * least < min(least, enough) or room + HAIR * self.limit < least:
                return 0.0
            if name == member:
                return least
            left, room = left - least, room - least
        return 0.0

    def _use(self, now: float, amount: float) -> None:
        step = floor(now / STEP)
        self.used[step] = self.used.get(step, 0.0) + amount

    def _refund(self, amount: float) -> None:
        """Subtract an amount that was not used from the oldest steps, so that no amount that was used is dropped too early."""
        for step in sorted(self.used):
            taken = min(amount, self.used[step])
            self.used[step] -= taken
            amount -= taken


assert RENEW < FRESH < LEASE


TURN = 15.0
"""Seconds after which the slots that cannot be divided evenly go to the next members. After each change these slots are unused for about
half a second."""


class Holder(msgspec.Struct, array_like=True):
    at: float  # time of the member's last renewal
    want: float = 0.0  # the share that the member wants
    held: float = 0.0  # the larger of the share that the member reported and the share that it was granted
    using: int = 0  # the member's requests in flight
    lasts: float = 0.0  # seconds after which the requests in flight have certainly ended

    def holds(self, now: float) -> float:
        """Return how much the member may be using. After the end of its lease, only its requests in flight count."""
        return max(self.held, self.using) if now <= self.at + LEASE else float(self.using)


class PermitPool(msgspec.Struct, array_like=True):
    """Limits the requests in flight of all members. A share grows only by what other members have given up."""

    total: float = inf  # the limit
    holders: dict[str, Holder] = {}

    def advance(self, now: float) -> None:
        """Remove members whose lease has expired and whose requests in flight have certainly ended."""
        for name, holder in list(self.holders.items()):
            if now > holder.at + max(LEASE, holder.lasts if holder.using else 0.0):
                del self.holders[name]

    def held(self, now: float) -> float:
        return sum(holder.holds(now) for holder in self.holders.values())

    def renew(self, now: float, member: str, need: Demand, *, young: bool) -> float:
        self.holders.pop(member, None)
        others = self.held(now)
        holder = self.holders[member] = Holder(now, min(need.rate, self.total), 0.0, need.using, need.lasts)
        share = floor(min(need.hold, self.total) if young else max(0.0, min(self._fair(now, member), self.total - others)))
        holder.held = max(need.hold, share)
        return share

    def _fair(self, now: float, member: str) -> float:
        wants = {name: holder.want for name, holder in self.holders.items() if now <= holder.at + LEASE}
        height = water_level(self.total, ((0.0, want) for want in wants.values()))
        if wants[member] <= height:
            return wants[member]
        height = floor(height + HAIR)
        short = sorted(name for name, want in wants.items() if want > height)
        left = int(self.total - sum(min(height, want) for want in wants.values()))
        place = short.index(member) - left * floor(now / TURN)
        return height + (place % len(short) < left)


BACKWARDS = 1.0
"""Maximum number of seconds by which the clocks of members may differ. A time that is earlier by more than this comes from another clock,
for example from the clock after a restart of the machine."""


class Member(msgspec.Struct, array_like=True):
    at: float
    requests: float = inf
    tokens: float = inf
    permits: float = inf


class Ledger(msgspec.Struct, array_like=True):
    """The ledger of one key. It records the limits of the key and the shares of its members."""

    begun: float = -inf
    now: float = -inf
    members: dict[str, Member] = {}
    requests: WindowQuota = msgspec.field(default_factory=lambda: WindowQuota(whole=True))
    tokens: WindowQuota = msgspec.field(default_factory=lambda: WindowQuota(whole=False))
    permits: PermitPool = msgspec.field(default_factory=PermitPool)

    def renew(self, now: float, member: str, request: RenewRequest) -> RenewReply:
        limits = [inf if need is None else need.limit for need in (request.requests, request.tokens, request.permits)]
        self.members[member] = Member(max(self.now, now), *limits)
        now = self._advance(now)
        reply = RenewReply(len(self.members))
        if request.requests is not None:
            reply.requests = self.requests.renew(now, member, request.requests)
        if request.tokens is not None:
            reply.tokens = self.tokens.renew(now, member, request.tokens)
        if request.permits is not None:
            held = self.permits.renew(now, member, request.permits, young=now < self.begun + LEASE)
            reply.permits = Grant(self.permits.total, held)
        return reply

    def leave(self, now: float, member: str, request: RenewRequest) -> None:
        now = self._advance(now)
        for need, quota in ((request.requests, self.requests), (request.tokens, self.tokens)):
            if need is not None and member in quota.accounts:
                quota.report(now, member, msgspec.structs.replace(need, left=0.0, want=0.0))
        self.remove_dead(now, member)

    def remove_dead(self, now: float, member: str) -> None:
        """Remove a member that has died. Amounts that the member has not reported count as used, and its shares become free."""
        self.members.pop(member, None)
        now = self._advance(now)
        for quota in (self.requests, self.tokens):
            quota.close(now, member)
        self.permits.holders.pop(member, None)

    def silent(self, now: float) -> list[str]:
        """Return the members that may have died, because their renewals are late."""
        return [name for name, member in self.members.items() if now > member.at + FRESH]

    def is_of(self, now: float) -> bool:
        """Return whether the times in the ledger and ``now`` can come from the same clock."""
        return now >= self.now - BACKWARDS

    def _advance(self, now: float) -> float:
        """Advance all state to ``now``, or to the last time if that is later. Each limit becomes the smallest limit that a member has
        configured."""
        now = self.now = max(self.now, now)
        self.members = {name: member for name, member in self.members.items() if now <= member.at + LEASE}
        if members := self.members.values():  # without members the last limits stay
            self.requests.limit, self.tokens.limit = min(each.requests for each in members), min(each.tokens for each in members)
            self.permits.total = min(each.permits for each in members)
        for quota in (self.requests, self.tokens):
            if quota.limit < inf:
                quota.advance(now, self.begun)
        self.permits.advance(now)
        return now
