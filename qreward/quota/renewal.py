"""Renews the leases of sources whose limits are shared with other processes, in one thread per client."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from math import ceil, inf
from typing import Any, Protocol, cast
from uuid import uuid4

from qreward.engine.driver import Engine
from qreward.engine.instrumentation import LOG
from qreward.quota.file_ledger import FileLedger, key_of
from qreward.quota.ledger import LINGER, MINUTE, RENEW, SETTINGS, Demand, Lease, RenewReply, RenewRequest
from qreward.scheduler.source import Source
from qreward.scheduler.task import LOW
from qreward.settings.policies import Endpoint, Limits

SOON = 0.05  # minimum number of seconds between a renewal and an early renewal
CLOSE_TIMEOUT = 3.0  # maximum number of seconds for which ``aclose`` waits until the shares are returned
AHEAD = 1.5
"""Factor on the amount that a source used recently. The source requests the product, so that its use can grow."""
SLOW = 2.0
"""Factor on the 99th percentile of the latency. When the product has passed, requests in flight have certainly ended."""
IDLE = 2.0  # seconds without work after which a source counts as idle


class LedgerTransport(Protocol):
    """Connects members to the ledger of one key. The calls for one member are made one after the other, in one thread."""

    def renew(self, member: str, request: RenewRequest, /) -> RenewReply:
        """Renew a member's shares. May block for some seconds, and may raise any exception if the ledger does not answer."""

    def leave(self, member: str, request: RenewRequest, /) -> None:
        """Remove a member. ``request`` reports what the member used."""

    def close(self) -> None:
        """Close all files and connections. They are opened again when they are needed. Raises nothing."""


def make_transport(endpoint: Endpoint) -> LedgerTransport:
    """Create the transport to the ledger of an endpoint. Imports Ray only if the endpoint is shared in a Ray cluster."""
    if endpoint.limits.shared == "ray":
        from qreward.integrations.ray.limit_actor import RayLedgerTransport  # noqa: PLC0415 - an extra

        return RayLedgerTransport(key_of(endpoint))
    return FileLedger(key_of(endpoint))


class LeaseRenewer:
    """Measures what one source needs until its next renewal, renews its lease, and applies the replies, in the thread of ``Sharing``."""

    def __init__(self, source: Source, lease: Lease, engine: Engine[Any]) -> None:
        self.source = source
        self.joined = False  # True if the source is a member of the ledger, according to the last reply
        self.next_at = 0.0  # time of the next renewal
        self._lease = lease
        self.transport = make_transport(cast("Endpoint", source.endpoint))
        self._engine = engine
        self._sent = source.tally.sent
        self._at = self._worked_at = -inf
        self.hungry = False  # True if tasks waited for the source at the last renewal
        self._member = uuid4().hex[:16]
        self._renewed_at = 0.0
        self._failures = 0
        self._warned = False

    @property
    def limits(self) -> Limits:
        return cast("Endpoint", self.source.endpoint).limits

    def is_idle(self, now: float) -> bool:
        """Return whether no request has been in flight and no task has waited for more than ``IDLE`` seconds."""
        if self.source.inflight or self.waiting(now):
            self._worked_at = now
        return now - self._worked_at > IDLE

    def waiting(self, now: float) -> float:
        """Return the number of tasks that wait for the source, or inf if ``LOW`` or more tasks wait."""
        source, health = self.source, self.source.health
        if source.removed or source.paused or health.marked_unhealthy or source.cooldown.opens_at > now + RENEW:
            return 0
        if source.inflight and health.half_open:
            return 0
        count = sum(len(pool.queue) for pool in source.pools)
        return inf if count >= LOW else count

    def request(self, now: float) -> RenewRequest:
        source, lease, limits = self.source, self._lease, self.limits
        seconds, self._at = min(MINUTE, max(now - self._at, RENEW / 2)), now
        used, self._sent = source.tally.sent - self._sent, source.tally.sent
        peak, lease.window.peak = max(lease.window.peak, source.inflight), source.inflight
        if used:
            self._worked_at = now
        waiting = self.waiting(now)
        expected = ceil(AHEAD * used * RENEW / seconds)
        room = max(0, source.window.limit - source.inflight) + expected
        want = min(waiting, room) if waiting else min(room, expected)
        want += 1 if waiting or used else 0
        rate = inf if waiting else (AHEAD * used / seconds * MINUTE + 1 if used else 0.0)
        lapsed = lease.lapse(now)
        request = RenewRequest()
        for kind, quota in lease.quotas.items():
            if (limit := getattr(limits, SETTINGS[kind])) is not None:
                setattr(request, kind, quota.need(limit, want, rate))
        if limits.max_concurrency is not None:
            could = source.inflight + waiting if waiting else peak + 1 + peak // 5 if peak else 0
            slow = source.latency.p99
            request.permits = Demand(
                limits.max_concurrency,
                hold=0.0 if lapsed else lease.window.permits,
                rate=min(lease.window.inner.limit, could),
                using=source.inflight,
                lasts=LINGER if slow is None else min(LINGER, SLOW * slow),
            )
        self.hungry = waiting > 0
        return request

    def turn(self, now: float) -> float | None:
        if self.leave(now):
            return None
        due = self.next_at
        if self._lease.missed and not self.hungry:
            due = min(due, self._renewed_at + SOON)
        if now >= due:
            self._renew()
        return self.next_at

    def _renew(self) -> None:
        engine = self._engine
        with engine.lock:
            sent_at = engine.clock()
            request = self.request(sent_at)
        try:
            reply = self.transport.renew(self._member, request)
        except Exception as error:
            self._failed(request, error)
        else:
            if self._failures > 1:
                LOG.warning("endpoint %r: sharing of its limits works again; %d processes share them", self.source.name, reply.members)
            self.joined, self._failures = True, 0
            gives_up = request.permits is not None and reply.permits is not None and reply.permits.hold < request.permits.hold
            self.next_at = sent_at + (SOON if gives_up else RENEW)  # other members get the part that is given up after the next report
            self._warn_of_smaller_limits(request, reply)
            self._change(partial(self._lease.take_over, sent_at=sent_at, reply=reply))
        self._renewed_at = engine.clock()

    def _failed(self, request: RenewRequest, error: Exception) -> None:
        self._failures, self.joined = self._failures + 1, False
        self.next_at = self._engine.clock() + RENEW
        if self._failures == 1:  # after two failures in a row the ledger counts as unreachable
            return
        reason = f"alone, the ledger does not answer ({type(error).__name__}: {error})"
        if self._failures == 2:
            LOG.warning("endpoint %r: its limits are not shared at present: %s; it uses its last share", self.source.name, reason)
        self._change(partial(self._lease.go_alone, request=request, reason=reason))

    def _warn_of_smaller_limits(self, request: RenewRequest, reply: RenewReply) -> None:
        for kind, setting in SETTINGS.items():
            need, part = getattr(request, kind), getattr(reply, kind)
            if not self._warned and need is not None and part is not None and part.limit < need.limit:
                self._warned = True
                words = "endpoint %r: another process shares it with %s=%g, here it is %g; the smallest counts"
                LOG.warning(words, self.source.name, setting, part.limit, need.limit)

    def _change(self, change: Callable[[float], None]) -> None:
        lease, scheduler = self._lease, self._engine.scheduler

        def changed(now: float) -> None:
            change(now)
            lease.missed = True  # so that requests that wait for the next share do not wake the thread
            scheduler.changed(now, self.source)
            if not (self.hungry or lease.is_short()):
                self.stand_by()

        self._engine.apply(changed)

    def stand_by(self, _now: float = 0.0) -> None:
        """Let the next request wake the thread: the balancer offers this source, and then ``Lease.may_send`` calls ``Lease.call``."""
        self._lease.missed = False
        for pool in self.source.pools:
            pool.balancer.offer(self.source)

    def leave(self, now: float = inf) -> bool:
        """Return whether the source is idle. If so, leave the ledger and return the share; the next request joins the ledger again."""
        engine = self._engine
        with engine.lock:
            if not self.is_idle(now):
                return False
            self.stand_by()
            if not self.joined:
                return True
            request = self.request(engine.clock())
            self._lease.end()
        self.joined, self.next_at = False, 0.0
        try:
            self.transport.leave(self._member, request)
        except Exception as error:
            LOG.debug("endpoint %r: its share was not given back: %s", self.source.name, type(error).__name__)
        return True


class Sharing:
    """Renews the leases of all sources with shared limits of one client."""

    def __init__(self, engine: Engine[Any], sources: Callable[[], Iterable[Source]]) -> None:
        self._engine = engine
        self._sources = sources
        self._renewers: dict[Source, LeaseRenewer] = {}
        self._wake = threading.Event()  # wakes the renewal thread; may be set from any thread, under any lock
        self._closed = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self.sources_changed()

    def sources_changed(self) -> None:
        """Add the sources that are new. May be called from any thread."""
        call = weakref.WeakMethod(self._call)
        for source in self._sources():
            lease = source.lease
            if lease is not None and source not in self._renewers:
                renewer = self._renewers[source] = LeaseRenewer(source, lease, self._engine)
                lease.call = lambda: (found := call()) and found()
                self._engine.apply(renewer.stand_by)
        if self._renewers:
            self._call()

    def turn(self) -> float | None:
        renewers = list(self._renewers.items())  # read before the sources, so that a source added in between does not seem removed
        now, present = self._engine.clock(), set(self._sources())
        times = []
        for source, renewer in renewers:
            at = renewer.turn(now)
            if source not in present and not source.inflight:
                renewer.leave()
                renewer.transport.close()
                del self._renewers[source]
            elif at is not None:
                times.append(at)
        return max(0.0, min(times) - self._engine.clock()) if times else None

    async def aclose(self) -> None:
        """Return all shares. Call it when no request is in flight any more."""
        with self._starting:
            self._closed.set()
            thread = self._thread
        self._wake.set()
        if thread is not None:
            await asyncio.to_thread(thread.join, CLOSE_TIMEOUT)

    def _call(self) -> None:
        if self._thread is None:
            for driver in self._engine.drivers():  # in all loops, because a loop may be blocked; the first loop that runs starts the thread
                driver.later(self._start)
        self._wake.set()

    def _start(self) -> None:
        wake = self._wake
        with self._starting:
            if self._thread is None and not self._closed.is_set():
                sharing = weakref.ref(self, lambda _: wake.set())
                self._thread = threading.Thread(target=_run, args=(sharing, wake, self._closed), name="qreward-sharing", daemon=True)
                self._thread.start()

    def _end(self) -> None:
        for renewer in self._renewers.values():
            renewer.leave()
        self.close_transports()

    def close_transports(self) -> None:
        for renewer in self._renewers.values():
            renewer.transport.close()


def _run(sharing: weakref.ref[Sharing], wake: threading.Event, closed: threading.Event) -> None:
    """Run in the renewal thread, until the ``Sharing`` is closed or garbage-collected."""
    while not closed.is_set() and (found := sharing()) is not None:
        try:
            seconds = found.turn()
        except Exception as error:  # no error may end the thread, because nothing can be sent without renewals
            LOG.warning("sharing of limits failed with %s: %s; trying again", type(error).__name__, error)
            seconds = RENEW
        del found
        wake.wait(seconds)
        wake.clear()
    if (found := sharing()) is not None:
        found._end()
