"""The messages between a member and the ledger at a renewal. They are serialisable; all times are durations in seconds."""

from __future__ import annotations

from math import inf

import msgspec

LEASE = 4.0
"""Seconds for which a lease is valid. A member that has not renewed for so long has lost its share, and stops using it."""
RENEW = 0.5
"""Seconds between two renewals of an active member."""
FRESH = 1.5
"""Seconds without a renewal after which a member counts as slow: nothing is reserved for its demand."""
LINGER = 60.0
"""Seconds after which requests of a process that stopped renewing are assumed to be over, if the latency is unknown."""
MINUTE = 60.0
MARGIN = 0.5
"""Seconds by which requests may be closer together when they arrive than when they were sent (loaded machines, new connections)."""
STEP = 0.25
"""Resolution in seconds of the ledger's record of the last minute."""
PERIOD = MINUTE + MARGIN + STEP + RENEW
"""Seconds over which a limit per minute is granted. It exceeds a minute because a request counts until a minute after its report."""


class Demand(msgspec.Struct, array_like=True):
    """A member's state and demand for one limit.

    For a rate limit, amounts are requests or tokens, and ``limit``, ``hold`` and ``rate`` are per minute. For a concurrency limit, amounts
    are requests in flight.

    Attributes:
        limit: the configured limit.
        want: amount it could use until its next renewal, ``left`` included. Not used for a concurrency limit.
        hold: the share that it holds.
        rate: the share that it could use; inf is any.
        least: the smallest useful amount.
        spent, returned: totals since it started: the granted amount that it used, and the part of it that proved unused later.
        left: granted amount that it has not used yet.
        using: requests in flight.
        lasts: seconds after which its requests in flight are certainly over.
    """

    limit: float
    want: float = 0.0
    hold: float = 0.0
    rate: float = 0.0
    least: float = 1.0
    spent: float = 0.0
    returned: float = 0.0
    left: float = 0.0
    using: int = 0
    lasts: float = LINGER


class RenewRequest(msgspec.Struct, array_like=True):
    """A member's renewal request: its demand for each limit that it has."""

    requests: Demand | None = None
    tokens: Demand | None = None
    permits: Demand | None = None


class Grant(msgspec.Struct, array_like=True):
    """A member's part of one limit.

    Attributes:
        limit: the limit of all members together: the smallest that any member has configured.
        hold: its share: per minute, or in flight at once.
        grant: amount that it may use in addition to what it has left, while its lease is valid.
    """

    limit: float = inf
    hold: float = 0.0
    grant: float = 0.0


class RenewReply(msgspec.Struct, array_like=True):
    """The ledger's reply to a renewal.

    Attributes:
        members: number of members.
        young: the ledger is new and does not know all members yet: a member that holds a share continues to use it on its own.
        lease: seconds for which the reply is valid, from when the member sent its request.
    """

    members: int
    young: bool = False
    lease: float = LEASE
    requests: Grant | None = None
    tokens: Grant | None = None
    permits: Grant | None = None
