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
        spent, returned: totals since it started: the granted amount that it used, and the part of it that proved unused later.
    """

    limit: float  # the configured limit
    want: float = 0.0  # amount it could use until its next renewal, ``left`` included. Not used for a concurrency limit.
    hold: float = 0.0  # the share that it holds
    rate: float = 0.0  # the share that it could use; inf is any
    least: float = 1.0  # the smallest useful amount
    spent: float = 0.0
    returned: float = 0.0
    left: float = 0.0  # granted amount that it has not used yet
    using: int = 0  # requests in flight
    lasts: float = LINGER  # seconds after which its requests in flight are certainly over


class RenewRequest(msgspec.Struct, array_like=True):
    """A member's renewal request: its demand for each limit that it has."""

    requests: Demand | None = None
    tokens: Demand | None = None
    permits: Demand | None = None


class Grant(msgspec.Struct, array_like=True):
    """A member's part of one limit."""

    limit: float = inf  # the limit of all members together: the smallest that any member has configured
    hold: float = 0.0  # its share: per minute, or in flight at once
    grant: float = 0.0  # amount that it may use in addition to what it has left, while its lease is valid


class RenewReply(msgspec.Struct, array_like=True):
    """The ledger's reply to a renewal."""

    members: int  # number of members
    young: bool = False  # the ledger is new and does not know all members yet: a member that holds a share continues to use it on its own
    lease: float = LEASE  # seconds for which the reply is valid, from when the member sent its request
    requests: Grant | None = None
    tokens: Grant | None = None
    permits: Grant | None = None
