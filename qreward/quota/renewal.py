"""Renews the leases of sources whose limits are shared with other processes, in one thread per client.

It is a thread and not a task of the event loop, because reward code may block the loop. Active sources are renewed twice a second, sources
that start to work at once. Idle sources leave the ledger, and without active sources the thread sleeps without a timer. A
``LedgerTransport``, which may block, reaches the ledger. ``quota.lease`` defines what a share allows and how much is requested.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import Any, NamedTuple, Protocol, cast
from uuid import uuid4

from qreward.engine.driver import Engine
from qreward.engine.instrumentation import LOG
from qreward.quota.lease import DemandTracker, Lease
from qreward.quota.messages import RENEW, RenewReply, RenewRequest
from qreward.scheduler.endpoint_state import Source
from qreward.settings.policies import Endpoint, Limits

SOON = 0.05
"""Least seconds from a renewal to one that is requested early."""
AGAIN = 0.25
"""Seconds after which a failed renewal is retried. After a second failure in a row the ledger counts as unreachable."""
RETRY = 1.0
"""Seconds between two tries while the ledger is unreachable."""
FAREWELL = 3.0
"""Seconds for which a client that is closed waits for its shares to be returned."""


class LedgerTransport(Protocol):
    """Connects members to the ledger of a key. The calls for one member are made one after the other, in one thread."""

    def renew(self, key: str, member: str, ask: RenewRequest) -> RenewReply:
        """Renew a member's shares. It may take some seconds, and may raise any exception if the ledger does not answer."""

    def leave(self, key: str, member: str, ask: RenewRequest) -> None:
        """Remove a member, which reports what it used."""

    def close(self) -> None:
        """Release all resources. Raises nothing."""


class Membership(NamedTuple):
    """Where a source's limits are shared: the ledger's key, and the transport to the ledger."""

    key: str
    carrier: LedgerTransport


class LeaseRenewer:
    """Renews the lease of one source and applies the replies. Used only in the thread of ``Sharing``.

    Attributes:
        joined: the source was a member of the ledger at the last reply.
        next_at: when to renew next.
    """

    def __init__(self, source: Source, tenure: Lease, membership: Membership, engine: Engine[Any]) -> None:
        self.source = source
        self.joined = False
        self.next_at = 0.0
        self._tenure = tenure
        self._key, self._carrier = membership
        self._engine = engine
        self._demand = DemandTracker(source, tenure)
        self._member = uuid4().hex[:16]
        self._renewed_at = 0.0
        self._failures = 0
        self._warned = False

    @property
    def limits(self) -> Limits:
        return cast("Endpoint", self.source.handle).limits

    def turn(self, now: float) -> float | None:
        """Renew or leave if that is due. Returns when to run again, None if not before a request needs the lease."""
        tenure = self._tenure
        with self._engine.lock:
            idle = self._demand.is_idle(now)
            if idle and not self.joined:
                self._stand_by()
        if idle:
            if self.joined:
                self.leave(now)
            return None
        due = self.next_at
        if tenure.missed and not self._demand.hungry:
            due = min(due, self._renewed_at + SOON)
        if now >= due:
            self._renew()
        return self.next_at

    def _renew(self) -> None:
        engine = self._engine
        with engine.lock:
            asked_at = engine.clock()
            ask = self._demand.ask(asked_at, self.limits)
        try:
            share = self._carrier.renew(self._key, self._member, ask)
        except Exception as error:
            self._failed(ask, error)
        else:
            self._answered(asked_at, ask, share)
        self._renewed_at = engine.clock()

    def _answered(self, asked_at: float, ask: RenewRequest, share: RenewReply) -> None:
        if self._failures > 1:
            LOG.warning("endpoint %r: sharing of its limits works again; %d processes share them", self.source.name, share.members)
        gives_up = share.permits is not None and ask.permits is not None and share.permits.hold < ask.permits.hold
        self.joined, self._failures = True, 0
        self.next_at = asked_at + (SOON if gives_up else RENEW)  # others get the part it gives up only after its next report
        self._compare(ask, share)
        self._act(partial(self._tenure.take_over, asked_at=asked_at, share=share))

    def _failed(self, ask: RenewRequest, error: Exception) -> None:
        self._failures, self.joined = self._failures + 1, False
        now = self._engine.clock()
        self.next_at = now + (RETRY if self._failures > 1 else AGAIN)
        if self._failures == 1:
            return
        why = f"alone, for nobody answers ({type(error).__name__}: {error})"
        if self._failures == 2:
            LOG.warning("endpoint %r: its limits are not shared at present: %s; it uses its last share", self.source.name, why)
        self._act(partial(self._tenure.go_alone, ask=ask, why=why))

    def _compare(self, ask: RenewRequest, share: RenewReply) -> None:
        """Log once if another process has configured a smaller limit."""
        if self._warned:
            return
        needs, parts = (ask.requests, ask.tokens, ask.permits), (share.requests, share.tokens, share.permits)
        for name, need, part in zip(("rpm", "tpm", "max_concurrency"), needs, parts, strict=True):
            if need is not None and part is not None and part.limit < need.limit:
                self._warned = True
                words = "endpoint %r: another process shares it with %s=%g, here it is %g; the smallest counts"
                LOG.warning(words, self.source.name, name, part.limit, need.limit)

    def _act(self, change: Callable[[float], None]) -> None:
        tenure, scheduler = self._tenure, self._engine.scheduler

        def changed(now: float) -> None:
            change(now)
            tenure.missed = True  # requests that wait for the next share need not wake the thread
            scheduler.changed(now, self.source)
            if not (self._demand.hungry or tenure.is_short()):
                self._stand_by()

        self._engine.act(changed)

    def _stand_by(self) -> None:
        """Make the next request for this source wake the thread: the balancer offers the source, and ``Lease.may_send`` then calls."""
        self._tenure.missed = False
        for pool in self.source.pools:
            pool.balancer.offer(self.source)

    def leave(self, now: float = inf) -> None:
        """Return the share, unless there is work again. The next share is requested when it is needed."""
        engine = self._engine
        with engine.lock:
            if not self._demand.is_idle(now):
                return
            ask = self._demand.ask(engine.clock(), self.limits)
            self._tenure.end()
            self._stand_by()
        self.joined, self._failures, self.next_at = False, 0, 0.0
        try:
            self._carrier.leave(self._key, self._member, ask)
        except Exception as error:
            LOG.debug("endpoint %r: its share was not given back: %s", self.source.name, type(error).__name__)


class WakeEvent:
    """Wakes the renewal thread. May be set from any thread, under any lock."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.over = False

    def ring(self) -> None:
        self._event.set()

    def wait(self, seconds: float | None) -> None:
        self._event.wait(seconds)
        self._event.clear()


class Sharing:
    """Renews the leases of all sources with shared limits of one client.

    Args:
        engine: the engine, whose lock guards the state of the sources.
        sources: returns the present sources; their handles are endpoints.
        membership: returns where an endpoint's limits are shared.
        carriers: returns the transports created so far, which are closed at the end.
    """

    def __init__(
        self,
        engine: Engine[Any],
        sources: Callable[[], Iterable[Source]],
        membership: Callable[[Endpoint], Membership],
        carriers: Callable[[], Iterable[LedgerTransport]] = tuple,
    ) -> None:
        self._engine = engine
        self._sources = sources
        self._membership = membership
        self._carriers = carriers
        self._desks: dict[Source, LeaseRenewer] = {}
        self._bell = WakeEvent()
        self._beginning = threading.Lock()
        self._thread: threading.Thread | None = None
        self.look_around()

    def look_around(self) -> None:
        """Add the sources that are new. May be called from any thread."""
        for source in self._sources():
            tenure = source.share
            if tenure is not None and source not in self._desks:
                self._desks[source] = LeaseRenewer(source, tenure, self._membership(cast("Endpoint", source.handle)), self._engine)
                self._engine.act(partial(self._attach, tenure=tenure, desk=self._desks[source]))
        if self._desks and self._engine.shells():
            self._call()

    def turn(self) -> float | None:
        """Run all renewals that are due. Returns the seconds until the next one, None if not before a request needs a lease."""
        desks = list(self._desks.items())  # read before the sources, so that a source added in between does not seem to be removed
        now, wake, there = self._engine.clock(), None, set(self._sources())
        for source, desk in desks:
            at = desk.turn(now)
            if source not in there and not source.inflight:
                if desk.joined:
                    desk.leave()
                del self._desks[source]
            elif at is not None:
                wake = at if wake is None else min(wake, at)
        return None if wake is None else max(0.0, wake - self._engine.clock())

    async def aclose(self) -> None:
        """Return all shares. Call it when no request is in flight any more."""
        with self._beginning:
            self._bell.over, thread = True, self._thread
        self._bell.ring()
        if thread is not None:
            await asyncio.to_thread(thread.join, FAREWELL)

    def _attach(self, _now: float, tenure: Lease, desk: LeaseRenewer) -> None:
        tenure.call = _caller(weakref.ref(self))
        desk._stand_by()

    def _call(self) -> None:
        """Wake the renewal thread. The engine's lock may be held, under which no thread may be started."""
        if self._thread is None:
            for shell in self._engine.shells():  # on all loops, for one may be blocked; the first starts the thread
                shell.later(self._begin)
        self._bell.ring()

    def _begin(self) -> None:
        bell = self._bell
        with self._beginning:
            if self._thread is None and not bell.over:
                me = weakref.ref(self, lambda _: bell.ring())
                self._thread = threading.Thread(target=_keep, args=(me, bell), name="qreward-sharing", daemon=True)
                self._thread.start()

    def _end(self) -> None:
        for desk in self._desks.values():
            if desk.joined:
                desk.leave()
        for carrier in self._carriers():
            carrier.close()


def _caller(sharing: weakref.ref[Sharing]) -> Callable[[], None]:
    def call() -> None:
        found = sharing()
        if found is not None:
            found._call()

    return call


def _keep(sharing: weakref.ref[Sharing], bell: WakeEvent) -> None:
    """Body of the renewal thread. It ends when the ``Sharing`` is closed or garbage collected."""
    while not bell.over and (found := sharing()) is not None:
        try:
            seconds = found.turn()
        except Exception as error:  # no error may end the thread: without renewals nothing would be sent any more
            LOG.warning("sharing of limits failed with %s: %s; trying again", type(error).__name__, error)
            seconds = RETRY
        del found
        bell.wait(seconds)
    if (found := sharing()) is not None:
        found._end()
