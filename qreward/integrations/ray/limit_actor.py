"""The processes of a Ray cluster share limits: the ledger of each key lives in a named actor, which whoever comes first makes.

The actor belongs to the process that made it, and goes with it; whoever renews next makes another. That one begins with a young
ledger: for one lease everybody goes on with what it held. Clocks of nodes never meet: shares are told as durations.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as Late
from contextlib import suppress
from typing import Any

from qreward.integrations.ray.backends import DEATHS, is_connected, require_ray
from qreward.quota.ledger import Ledger
from qreward.quota.messages import RenewReply, RenewRequest

NAMESPACE = "qreward"
PATIENCE = 1.0
"""Seconds for which an answer is waited for."""
MAKING = 15.0
"""Seconds for which the first answer is waited for: the actor may still be starting, and there is no share to go on with."""


class Broker:
    """What runs in the actor: the ledger of one key, in the actor's time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ledger = Ledger(clock())

    def renew(self, member: str, ask: RenewRequest) -> RenewReply:
        """See ``quota.ledger``."""
        return self._ledger.renew(self._clock(), member, ask)

    def leave(self, member: str, ask: RenewRequest) -> None:
        """See ``quota.ledger``."""
        self._ledger.leave(self._clock(), member, ask)


class RayCarrier:
    """Brokers of this cluster. The process must be connected to Ray when it sends its first request."""

    def __init__(self) -> None:
        self._brokers: dict[str, Any] = {}
        self._proven: set[str] = set()

    def renew(self, key: str, member: str, ask: RenewRequest) -> RenewReply:
        """Raises ``ConnectionError`` if this process is not connected to Ray, or what Ray raises."""
        share: RenewReply = self._call(key, "renew", member, ask)
        self._proven.add(key)
        return share

    def leave(self, key: str, member: str, ask: RenewRequest) -> None:
        """The member goes. If that does not arrive its lease runs out."""
        if key in self._brokers and is_connected():
            self._call(key, "leave", member, ask)

    def close(self) -> None:
        """Nothing is held but names."""
        self._brokers.clear()
        self._proven.clear()

    def _call(self, key: str, method: str, *arguments: Any) -> Any:
        broker = self._broker(key)
        patience = PATIENCE if key in self._proven else MAKING
        reply = getattr(broker, method).remote(*arguments)
        try:
            return reply.future().result(patience)
        except Late:
            raise TimeoutError(f"the broker did not answer within {patience:g} s") from None
        except Exception as error:
            if type(error).__name__ in DEATHS or any(kind.__name__ in DEATHS for kind in type(error).__mro__):
                self._brokers.pop(key, None)
                raise ConnectionError("the broker actor died; a new one is being started") from None
            raise

    def _broker(self, key: str) -> Any:
        if not is_connected():
            raise ConnectionError("this process is not connected to Ray; call ray.init() first")
        broker = self._brokers.get(key)
        if broker is None:
            ray, name = require_ray(), f"share-{key}"
            with suppress(ValueError):
                broker = ray.get_actor(name, namespace=NAMESPACE)
            if broker is None:
                options = {"name": name, "namespace": NAMESPACE, "get_if_exists": True, "num_cpus": 0, "max_restarts": 0}
                broker = ray.remote(Broker).options(**options).remote()
            self._brokers[key] = broker
        return broker
