"""What a member tells the ledger at a renewal, and what it is told. Plain words that travel; all times are durations."""

from __future__ import annotations

from math import inf

import msgspec

LEASE = 4.0
"""Seconds for which a share is good. A member that was not heard of for so long has lost it, and knows."""
RENEW = 0.5
"""Seconds between two renewals of a member that works."""
FRESH = 1.5
"""Seconds after which a member that does not renew is slow: what it wants is not kept for it."""
LINGER = 60.0
"""Seconds after which what was in flight in a process that is not heard of is over, if nobody knows how long answers take."""
MINUTE = 60.0
MARGIN = 0.5
"""Seconds by which requests may be nearer together when they arrive than when they were sent: loaded machines, new connections."""
STEP = 0.25
"""Seconds of a step in the ledger's memory of the last minute."""
PERIOD = MINUTE + MARGIN + STEP + RENEW
"""Seconds over which a limit a minute is handed out: a request counts until the minute after its report is over."""


class Demand(msgspec.Struct, array_like=True):
    """One limit, as a member sees it. Amounts are requests or tokens, and the limit a minute; or requests in flight at once.

    Attributes:
        limit: what its settings say.
        want: what it could use until its next renewal, what is ``left`` included; or have in flight.
        hold: the share that it holds: a minute, or at once.
        rate: the share that it could use: a minute, or at once; inf is any.
        least: the smallest piece that is of use.
        spent, returned: since it began: what it used of what it was given, and what of that turned out not to be used after all.
        left: what it was given and has not used yet.
        using: in flight.
        lasts: seconds after which what is in flight is surely over.
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
    """What a member says at a renewal: a need for each limit that it has."""

    requests: Demand | None = None
    tokens: Demand | None = None
    permits: Demand | None = None


class Grant(msgspec.Struct, array_like=True):
    """A member's part of one limit.

    Attributes:
        limit: of all members together, the smallest that any of them names.
        hold: its share: a minute, or at once.
        grant: what it may use besides what it has left, while its lease lasts.
    """

    limit: float = inf
    hold: float = 0.0
    grant: float = 0.0


class RenewReply(msgspec.Struct, array_like=True):
    """What a member is told.

    Attributes:
        members: how many there are.
        young: the ledger has just begun, and does not know yet who there is: whoever holds a share goes on with it by itself.
        lease: seconds for which this holds, from when the member asked.
    """

    members: int
    young: bool = False
    lease: float = LEASE
    requests: Grant | None = None
    tokens: Grant | None = None
    permits: Grant | None = None
