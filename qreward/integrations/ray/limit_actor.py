"""Shares rate limits between the processes of a Ray cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from qreward.integrations.ray.pool import is_connected, require_ray
from qreward.quota.ledger import Ledger, RenewReply, RenewRequest
from qreward.transport.local import is_death

NAMESPACE = "qreward"
REPLY_TIMEOUT = 1.0
"""Seconds to wait for an answer of the actor."""
FIRST_REPLY_TIMEOUT = 15.0
"""The same for the first answer. The actor may still be starting, and the process has no earlier share that it could use."""


class LedgerActor:
    """The class of the actors. Each actor has the ledger of one key, and uses the clock of its own process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ledger = Ledger(clock())

    def renew(self, member: str, ask: RenewRequest) -> RenewReply:
        return self._ledger.renew(self._clock(), member, ask)

    def leave(self, member: str, ask: RenewRequest) -> None:
        self._ledger.leave(self._clock(), member, ask)


class RayLedgerTransport:
    """Sends renewals to the ledger actor of one key. The process must be connected to Ray when it sends its first request."""

    def __init__(self, key: str) -> None:
        self._name = f"share-{key}"
        self.close()

    def renew(self, member: str, ask: RenewRequest) -> RenewReply:
        share: RenewReply = self._call("renew", member, ask)
        self._answered = True
        return share

    def leave(self, member: str, ask: RenewRequest) -> None:
        if self._actor is not None and is_connected():
            self._call("leave", member, ask)

    def close(self) -> None:
        self._actor: Any = None
        self._answered = False

    def _call(self, method: str, *arguments: Any) -> Any:
        if not is_connected():
            raise ConnectionError("this process is not connected to Ray; call ray.init() first")
        if self._actor is None:
            options = {"name": self._name, "namespace": NAMESPACE, "get_if_exists": True, "num_cpus": 0, "max_restarts": 0}
            self._actor = require_ray().remote(LedgerActor).options(**options).remote()
        timeout = REPLY_TIMEOUT if self._answered else FIRST_REPLY_TIMEOUT
        reply = getattr(self._actor, method).remote(*arguments)
        try:
            return reply.future().result(timeout)
        except TimeoutError:
            raise TimeoutError(f"the ledger actor did not answer within {timeout:g} s") from None
        except Exception as error:
            if is_death(error):
                self._actor = None
                raise ConnectionError("the ledger actor died; a new one is being started") from None
            raise
