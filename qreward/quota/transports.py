"""The transports by which members reach the ledgers of shared limits: one for each kind of ``Limits.shared``.

``local`` keeps ledgers in files of this machine (``file_ledger``), ``ray`` in an actor (``qreward.integrations.ray.limit_actor``).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from qreward.quota.file_ledger import key_of
from qreward.quota.renewal import LedgerTransport, Membership
from qreward.settings.policies import Endpoint


class LedgerTransports:
    """The ledger transports of one client, each created when it is first needed."""

    def __init__(self) -> None:
        self._made: dict[str, LedgerTransport] = {}
        self._making = threading.Lock()

    def __call__(self, endpoint: Endpoint) -> Membership:
        """Return the ledger key and the transport of an endpoint."""
        kind = endpoint.limits.shared
        with self._making:
            carrier = self._made.get(kind)
            if carrier is None:
                carrier = self._made[kind] = make_transport(kind)
        return Membership(key_of(endpoint), carrier)

    def __iter__(self) -> Iterator[LedgerTransport]:
        return iter(list(self._made.values()))


def make_transport(kind: str) -> LedgerTransport:
    """Create the transport of a kind. Ray is not imported before it is used."""
    if kind == "ray":
        from qreward.integrations.ray.limit_actor import RayLedgerTransport  # noqa: PLC0415 - an extra

        return RayLedgerTransport()
    from qreward.quota.file_ledger import FileTransport  # noqa: PLC0415 - most clients share nothing

    return FileTransport()
