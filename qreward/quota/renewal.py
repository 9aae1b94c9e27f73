"""Sees that the shares of sources whose limits many processes share are renewed, by one thread a client.

A thread, and not the event loop: reward code blocks loops. It renews twice a second what works, at once what wants to begin, leaves
what has nothing to do, and sleeps without a timer when that is all. How words reach the ledger the *carrier* knows, which may block;
what a share means ``quota.lease``, and how much is wanted ``quota.lease``.
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
"""Seconds between two renewals, the second of which was asked for."""
AGAIN = 0.25
"""Seconds after which a renewal that failed is tried again; the second failure in a row says that nobody answers."""
RETRY = 1.0
"""Seconds between two tries while nobody answers."""
FAREWELL = 3.0
"""Seconds that a client that is closed waits for its shares to be given back."""


class LedgerTransport(Protocol):
    """Brings a member's words to the ledger of a key, and back. Of one member they come one after the other, in one thread."""

    def renew(self, key: str, member: str, ask: RenewRequest) -> RenewReply:
        """Raises anything if there is no answer; it may take some seconds."""

    def leave(self, key: str, member: str, ask: RenewRequest) -> None:
        """The member goes, and says what it used."""

    def close(self) -> None:
        """It is not needed any more. Raises nothing, and leaves nothing open."""


class Membership(NamedTuple):
    """Where a source's limits are shared: the ledger's key, and who brings words there."""

    key: str
    carrier: LedgerTransport


class LeaseRenewer:
    """One shared source: its renewals, and what comes of them. In the sharing's thread only.

    Attributes:
        joined: it is a member, or was when it was last answered.
        next_at: when it is to be renewed next.
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
        """Do what is due; when to come again, None if not before somebody calls."""
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
        self.next_at = asked_at + (SOON if gives_up else RENEW)  # what it is to give up is not another's before it says so
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
        """Say once if another process names a smaller limit."""
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
            tenure.missed = True  # who waits for its next share need not call
            scheduler.changed(now, self.source)
            if not (self._demand.hungry or tenure.is_short()):
                self._stand_by()

        self._engine.act(changed)

    def _stand_by(self) -> None:
        """See that the next who wants to send calls: whoever is chosen is asked whether it may."""
        self._tenure.missed = False
        for pool in self.source.pools:
            pool.balancer.offer(self.source)

    def leave(self, now: float = inf) -> None:
        """Give up the share, unless there is work since; the next one is asked for when it is needed."""
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
    """Wakes the thread; may be rung from anywhere, under any lock."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.over = False

    def ring(self) -> None:
        self._event.set()

    def wait(self, seconds: float | None) -> None:
        self._event.wait(seconds)
        self._event.clear()


class Sharing:
    """The shared sources of one client.

    Args:
        engine: whose lock holds their state.
        sources: gives those there are now; their handles are endpoints.
        membership: where a source's limits are shared.
        carriers: gives the carriers that were made so far, to be closed in the end.
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
        """There may be other sources. From any thread."""
        for source in self._sources():
            tenure = source.share
            if tenure is not None and source not in self._desks:
                self._desks[source] = LeaseRenewer(source, tenure, self._membership(cast("Endpoint", source.handle)), self._engine)
                self._engine.act(partial(self._attach, tenure=tenure, desk=self._desks[source]))
        if self._desks and self._engine.shells():
            self._call()

    def turn(self) -> float | None:
        """Do what is due at all desks; seconds until the next is, None if not before somebody calls."""
        desks = list(self._desks.items())  # before its source: one that comes in between is not taken for gone
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
        """Give all shares back, when nothing is under way any more."""
        with self._beginning:
            self._bell.over, thread = True, self._thread
        self._bell.ring()
        if thread is not None:
            await asyncio.to_thread(thread.join, FAREWELL)

    def _attach(self, _now: float, tenure: Lease, desk: LeaseRenewer) -> None:
        tenure.call = _caller(weakref.ref(self))
        desk._stand_by()

    def _call(self) -> None:
        """See that the thread looks at the desks now. Perhaps under the engine's lock, where no thread is to be started."""
        if self._thread is None:
            for shell in self._engine.shells():  # whichever runs first: a loop may be blocked
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
    """What the thread does, as long as somebody holds the sharing."""
    while not bell.over and (found := sharing()) is not None:
        try:
            seconds = found.turn()
        except Exception as error:  # nothing that happens here may end it: without it nothing would be sent any more
            LOG.warning("sharing of limits failed with %s: %s; trying again", type(error).__name__, error)
            seconds = RETRY
        del found
        bell.wait(seconds)
    if (found := sharing()) is not None:
        found._end()
