"""The messages between a member and the ledger at a renewal. They can be serialised. All times in them are durations in seconds."""

from __future__ import annotations

from math import inf

import msgspec

LEASE = 4.0
"""Seconds for which a lease is valid. A member that does not renew its lease within this time loses its share and stops using the share."""
RENEW = 0.5
"""Seconds between two renewals of an active member."""
FRESH = 1.5
"""Seconds without a renewal after which a member counts as slow. Nothing is reserved for a slow member."""
LINGER = 60.0
"""Seconds after which the requests of a process that stopped renewing are assumed to have ended, if the latency of its source is
unknown."""
MINUTE = 60.0
MARGIN = 0.5
"""Maximum number of seconds by which two requests may arrive closer together than they were sent (loaded machines, new connections)."""
STEP = 0.25
"""Length in seconds of the steps in which the ledger records the use of the last minute."""
PERIOD = MINUTE + MARGIN + STEP + RENEW
"""Seconds over which the amount of a limit per minute is granted. This is longer than a minute, because a request counts until a minute
after its report."""


class Demand(msgspec.Struct, array_like=True):
    """Reports a member's state and demand for one limit."""

    limit: float  # the configured limit
    want: float = 0.0  # amount that the member could use until its next renewal, including ``left``
    hold: float = 0.0  # the share that the member holds, of the requests in flight
    rate: float = 0.0  # the share that the member could use; inf for any share
    least: float = 1.0  # the smallest amount that is useful to the member
    spent: float = 0.0
    returned: float = 0.0
    left: float = 0.0  # granted amount that the member has not used yet
    using: int = 0  # requests in flight
    lasts: float = LINGER  # seconds after which the requests in flight have certainly ended


class RenewRequest(msgspec.Struct, array_like=True):
    """A member's request for a renewal. It contains the demand for each limit that is configured."""

    requests: Demand | None = None
    tokens: Demand | None = None
    permits: Demand | None = None


class Grant(msgspec.Struct, array_like=True):
    """Says what the ledger grants to a member, for one limit."""

    limit: float = inf  # the limit for all members together: the smallest limit that a member has configured
    hold: float = 0.0  # the member's share: per minute for a rate limit, in flight for a concurrency limit
    grant: float = 0.0  # amount that the member may use in addition to ``left``, while its lease is valid


class RenewReply(msgspec.Struct, array_like=True):
    """The ledger's reply to a renewal."""

    members: int  # number of members
    lease: float = LEASE  # seconds for which the reply is valid, from when the member sent its request
    requests: Grant | None = None
    tokens: Grant | None = None
    permits: Grant | None = None
