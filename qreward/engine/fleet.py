"""The endpoints and routes of one client, as sources and pools of the client's scheduler. Any thread can change them.

Every change, from one endpoint to a whole new configuration, is the same operation: the current endpoints and routes are replaced by new
endpoints and routes while requests are in flight. The scheduler's state changes once, under the engine's lock, so no request sees half of a
change. New endpoints enter the pools before old endpoints leave, so that no pool is empty in between.

Requests in flight finish at their endpoint, and queued requests stay queued. A pool exists as long as its pattern exists. A pool whose
pattern is gone is served by the endpoints that now serve the models requested from it. If there are no such endpoints, the queued requests
of the pool fail with ``NoEndpoint``.

An endpoint keeps its learned state if it is the same server with other limits, weight, price, models or timeouts. Any other change
(address, key, headers, ``limits.adaptive``, ...) makes a new endpoint with the old name.

An *entry* of the configuration is an endpoint, or stands for a list of addresses, each of which becomes an endpoint. The list is read again
and again, because endpoints come and go.
"""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, cast
from urllib.parse import urlsplit
from weakref import ref

from qreward.engine.driver import Engine, LoopDriver
from qreward.engine.instrumentation import LOG
from qreward.engine.prefix_finder import PrefixFinder
from qreward.errors import ConfigError, NoEndpoint, did_you_mean
from qreward.scheduler.limits.concurrency import AdaptiveLimit, ConcurrencyLimit, ConfiguredLimit
from qreward.scheduler.limits.rate import Gcra, HeaderRateLimit, MinuteLimit
from qreward.scheduler.pool import BALANCERS, ExpectedFinish, Pool
from qreward.scheduler.queue import Queue
from qreward.scheduler.routing import Routes
from qreward.scheduler.scheduler import Scheduler
from qreward.scheduler.source import Source, make_source
from qreward.settings.base import repeated
from qreward.settings.client import ClientConfig
from qreward.settings.policies import BATCH_KIND, Endpoint, Limits, LoadBalanceStrategy, Route

SETTINGS = ("retry", "hedge", "prefix_affinity", "max_queued", "timeout")
ADJUSTABLE = frozenset({
    "limits", "weight", "price", "models", "timeouts", "max_response_bytes", "keepalive", "probe", "refresh", "send_priority",
    "decisions", "decision_labels",
})  # fmt: skip
"""Settings of an endpoint that may change while it stays the same server."""
MAX_MODELS = 1000
"""Maximum number of requested models that are remembered. The number is bounded, because the names come from callers."""
LIST_TIMEOUT = 10.0
"""Seconds after which an attempt to read a list from a URL is given up."""
LIST_BYTES = 1_000_000
"""Size of the longest list that is read."""
WINDOW_RESTRICTED = 0.8
"""Share (0 to 1) of the configured limit. A concurrency limit of at least this share counts as restricted by the configured limit alone."""


class Fleet:
    """Keeps the endpoints by name, and the pools by pattern. A registered route takes precedence over an endpoint's own pattern.

    ``config`` has the current settings, including endpoints and routes that were added later.
    """

    def __init__(self, engine: Engine[Scheduler], config: ClientConfig, addresses: AddressLists) -> None:
        self._engine, self.config, self._addresses = engine, config, addresses
        self._prefix_of = PrefixFinder()
        self._sources: dict[str, Source] = {}
        self._registered: dict[str, Route] = {}  # by pattern
        self._pools: dict[str, Pool] = {}  # by pattern; those of patterns that are gone are kept as long as requests may hold them
        self._table: Routes[Pool] = Routes()  # the pools of the current patterns
        self._served: dict[str, Pool] = {}  # the pools of the models that were requested since the last change
        self._provided: dict[Pool, tuple[Endpoint, ...]] = {}  # the endpoints of a pool's pattern that only ``client.run`` uses
        self._paused = ""  # why all endpoints are paused, also those that are added later
        self._set(config)

    def pool(self, model: str) -> Pool:
        """Return the pool that serves a model, and record that the model was requested.

        Raises ``NoEndpoint`` if no route matches the model, or if only ``client.run`` can use the endpoints of the model.
        """
        served = self._served  # another thread may replace it, together with the table
        if model in served:
            return served[model]
        pool = self._table.find(model)
        if pool is None:
            raise NoEndpoint(f"no route matches the model {model!r}; there are routes for {', '.join(map(repr, self._table.items()))}")
        if not pool.sources and (names := [endpoint.name for endpoint in self._provided.get(pool, ())]):
            raise NoEndpoint(
                f"model {model!r} has only endpoints of kind {BATCH_KIND!r} ({', '.join(map(repr, names))}), which take files of requests; "
                "send it by client.run or qreward run, or add an endpoint of kind 'openai' for single calls, batches and judges"
            )
        if len(served) < MAX_MODELS:
            served[model] = pool
        if len(pool.models) < MAX_MODELS:
            pool.models.add(model)
        return pool

    def batch_endpoints(self, model: str) -> tuple[Endpoint, ...]:
        """Return the endpoints of kind ``openai_batch`` that serve a model."""
        pool = self._table.find(model)
        return () if pool is None else self._provided.get(pool, ())

    def source(self, name: str) -> Source:
        """Return the source of an endpoint by name. Raises ``ConfigError``, which names the closest valid name."""
        source = self._sources.get(name)
        if source is None:
            raise ConfigError(f"there is no endpoint {name!r}; {did_you_mean(name, self._sources, otherwise='the endpoints are')}")
        return source

    def sources(self) -> list[Source]:
        return list(self._sources.values())

    def routes(self) -> list[Route]:
        """Return all routes in the order in which they are matched, including the endpoints' own patterns."""
        listed = []
        for pattern, pool in self._table.items().items():
            own = (*(source.name for source in pool.sources), *(endpoint.name for endpoint in self._provided.get(pool, ())))
            listed.append(self._registered.get(pattern) or Route(pattern=pattern, endpoints=own))
        return listed

    # changes

    def add(self, endpoint: Endpoint) -> None:
        """Add an endpoint. Queued requests for its models can use it immediately. Raises ``ConfigError`` if the name is already in use."""
        self._change(endpoints=(*self.config.endpoints, endpoint))

    def remove(self, name: str) -> None:
        self._check_entry(name)
        routes = []
        for route in self.config.routes:
            left = tuple(other for other in route.endpoints if other != name)
            weights = {other: weight for other, weight in route.weights.items() if other != name}
            if left:
                routes.append(route.model_copy(update={"endpoints": left, "weights": weights}))
        self._change(endpoints=tuple(entry for entry in self.config.endpoints if entry.name != name), routes=tuple(routes))

    def register(self, route: Route) -> None:
        """Add a route, or replace the route with the same pattern."""
        for name in route.endpoints:
            self._check_entry(name)
        self._change(routes=(*(other for other in self.config.routes if other.pattern != route.pattern), route))

    def refresh(self) -> None:
        """Apply changed lists of addresses. Raises ``ConfigError`` if two endpoints have the same name."""
        self._change()

    def reload(self, after: ClientConfig) -> frozenset[str]:
        """Replace the current configuration by the valid configuration ``after``.

        Returns the names of the endpoints that were added, removed or changed, of the settings that changed, and perhaps ``"routes"``.
        """
        before = self.config
        if before != after:
            self._set(after)
            self._engine.apply(self._check_again)
        old, new = ({endpoint.name: endpoint for endpoint in config.endpoints} for config in (before, after))
        names = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
        names |= {name for name in SETTINGS if getattr(before, name) != getattr(after, name)}
        if {route.pattern: route for route in before.routes} != {route.pattern: route for route in after.routes}:
            names.add("routes")
        return frozenset(names)

    def mark(self, name: str, *, down: bool) -> None:
        """Take an endpoint out of service until it is marked healthy, or bring it back with a clean health record."""
        source, scheduler = self.source(name), self._engine.scheduler

        def change(now: float) -> None:
            if down:
                source.health.mark_unhealthy()
                scheduler.on_source_lost(now, source)
            else:
                source.health.restore()
                source.down_since = None
                scheduler.changed(now, source)

        self._engine.apply(change)

    def hold(self, name: str | None, why: str) -> None:
        """Pause an endpoint, or all endpoints if ``name`` is None. An empty ``why`` resumes. Requests that wait go on waiting."""
        chosen = self.sources() if name is None else [self.source(name)]
        if name is None:
            self._paused = why

        def change(now: float) -> None:
            for source in chosen:
                source.paused = why
            if not why:
                for source in chosen:
                    self._engine.scheduler.changed(now, source)

        self._engine.apply(change)

    def entry_of(self, name: str) -> Endpoint:
        """Return the entry of the configuration to which an endpoint belongs."""
        source = self.source(name)
        return next(entry for entry in self.config.endpoints if any(each is source.endpoint for each in self._addresses.members(entry)))

    def _check_entry(self, name: str) -> None:
        names = [entry.name for entry in self.config.endpoints]
        if name not in names and name in self._sources:
            raise ConfigError(f"endpoint {name!r} is an address of {self.entry_of(name).name!r}; change the list, or name the whole list")
        if name not in names:
            raise ConfigError(f"there is no endpoint {name!r}; {did_you_mean(name, names, otherwise='the endpoints are')}")

    # the one operation

    def _change(self, **settings: Any) -> None:
        self._set(self.config.model_copy(update=settings))

    def _set(self, config: ClientConfig) -> None:
        if (double := repeated(entry.name for entry in config.endpoints)) is None:
            found, over, lists = self._addresses.resolved(config.endpoints, config.routes)
            double = repeated(endpoint.name for endpoint in found)
        if double is not None:
            raise ConfigError(f"two endpoints are called {double!r}; give each its own name=")
        before, self.config, self._addresses.lists = self.config, config, lists
        self._engine.apply(partial(self._replace, before=before, endpoints=found, routes=over))
        self._release_connections()

    def _replace(self, now: float, before: ClientConfig, endpoints: list[Endpoint], routes: Iterable[Route]) -> None:
        scheduler, affinity = self._engine.scheduler, self.config.prefix_affinity
        scheduler.set_policies(before, self.config)
        if before.prefix_affinity != affinity:
            for source in self._sources.values():
                source.prefix_cache.set_capacity(None if affinity is None else affinity.capacity)
        old = self._sources
        self._sources = {endpoint.name: self._source_for(endpoint, old.get(endpoint.name)) for endpoint in endpoints}
        for source in old.values():
            source.removed = self._sources.get(source.name) is not source
        self._replace_pools(now, {route.pattern: route for route in routes})
        for pool in self._pools_without_pattern():
            models = [self._table.find(model) for model in sorted(pool.models)]
            serving = dict.fromkeys(source for other in models if other is not None for source in other.sources)
            scheduler.reroute(now, pool, list(serving), ExpectedFinish())

    def _check_again(self, now: float) -> None:
        """Look at all sources, because limits may have been raised, and time limits lowered."""
        self._engine.scheduler.check_attempts_again(now, self.sources())
        for source in self._sources.values():
            self._engine.scheduler.changed(now, source)

    def _source_for(self, endpoint: Endpoint, old: Source | None) -> Source:
        if old is not None and old.endpoint is endpoint:
            return old
        rng = self._engine.scheduler.rng
        if old is not None and is_same_server(cast("Endpoint", old.endpoint), endpoint):
            adjust(old, endpoint, rng)
            return old
        source = make_source(endpoint.name, rng, endpoint.limits, weight=endpoint.weight, attempt_timeout=endpoint.timeouts.attempt)
        source.endpoint, source.sends_priority = endpoint, endpoint.send_priority
        affinity = self.config.prefix_affinity
        source.prefix_cache.set_capacity(None if affinity is None else affinity.capacity)
        source.paused = self._paused if old is None else old.paused
        if old is not None and old.health.marked_unhealthy:  # an operator took the endpoint of this name out of service
            source.health.mark_unhealthy()
        return source

    def _replace_pools(self, now: float, registered: dict[str, Route]) -> None:
        """Give each pattern a pool with its new sources and its balancer. A pattern that had a pool keeps that pool."""
        named: dict[str, list[Source]] = {}
        for source in self._sources.values():
            for pattern in dict.fromkeys(cast("Endpoint", source.endpoint).models):
                named.setdefault(pattern, []).append(source)
        for pattern, route in registered.items():
            named[pattern] = [self._sources[name] for name in dict.fromkeys(route.endpoints)]
        before, self._registered, affinity = self._registered, registered, self.config.prefix_affinity
        self._table, self._provided = Routes(), {}
        for pattern, sources in named.items():
            pool = self._pools.get(pattern)
            if pool is None:
                pool = self._pools[pattern] = Pool(repr(pattern), [], ExpectedFinish(), Queue())
                pool.prefix_of = self._prefix_of
            pool.set_look_ahead(0 if affinity is None else affinity.look_ahead)
            self._table.set(pattern, pool)
            old, new = _balancing(before.get(pattern)), _balancing(registered.get(pattern))
            ordinary = [source for source in sources if cast("Endpoint", source.endpoint).kind != BATCH_KIND]
            self._provided[pool] = tuple(cast("Endpoint", source.endpoint) for source in sources if source not in ordinary)
            self._engine.scheduler.reroute(now, pool, ordinary, pool.balancer if new == old else BALANCERS[new[0]](new[1]))
        self._served = {}

    def _pools_without_pattern(self) -> list[Pool]:
        """Return the pools whose pattern is gone and that a request holds. The others are dropped."""
        gone = self._pools.keys() - self._table.items().keys()
        held = {pattern: ref(self._pools.pop(pattern)) for pattern in gone if not len(self._pools[pattern].queue)}
        for weak in held.values():
            if (pool := weak()) is not None:  # references of its sources would keep it alive
                for source in tuple(pool.sources):
                    pool.leave(source)
                del pool
        self._pools |= {pattern: pool for pattern, weak in held.items() if (pool := weak()) is not None}
        return [self._pools[pattern] for pattern in gone if pattern in self._pools]

    def _release_connections(self) -> None:
        """Let each backend close its connections to endpoints that no longer exist."""
        here = self._engine.here()
        for driver in self._engine.drivers():
            release = partial(self._release_at, driver)
            release() if driver is here else driver.later(release)  # here, before the next request

    def _release_at(self, driver: LoopDriver) -> None:
        """Call ``keep`` of a driver's backend, in its event loop. Several changes may arrive in another order than they were made."""
        keep: Callable[[list[object]], object] | None = getattr(driver.backend, "keep", None)
        if keep is not None:
            keep([source.endpoint for source in self.sources()])


def _balancing(route: Route | None) -> tuple[LoadBalanceStrategy, dict[str, float]]:
    """Return the strategy and the weights of a registered route, or of the pattern of an endpoint."""
    return (LoadBalanceStrategy.EXPECTED_FINISH, {}) if route is None else (route.strategy, route.weights)


def is_same_server(old: Endpoint, new: Endpoint) -> bool:
    """Return True if what was learned about the old endpoint also holds for the new endpoint."""
    if old.limits.adaptive != new.limits.adaptive or old.limits.shared != new.limits.shared:
        return False
    if new.limits.shared != "none" and _limited(old.limits) != _limited(new.limits):
        return False
    return all(getattr(old, name) == getattr(new, name) for name in Endpoint.model_fields if name not in ADJUSTABLE)


def _limited(limits: Limits) -> tuple[bool, ...]:
    return tuple(limit is not None for limit in (limits.rpm, limits.tpm, limits.max_concurrency))


def adjust(source: Source, endpoint: Endpoint, rng: Random) -> None:
    """Give a source the settings of another version of its endpoint. The source keeps its latencies, health, counts and learned limits."""
    old, limits = cast("Endpoint", source.endpoint).limits, endpoint.limits
    if source.lease is not None:  # the lease announces the new limits to the other processes
        if old.max_concurrency != limits.max_concurrency:
            source.lease.window.inner = _resized(source.lease.window.inner, limits.max_concurrency, rng)
    else:
        if old.max_concurrency != limits.max_concurrency:
            source.window = _resized(source.window, limits.max_concurrency, rng)
        source.requests = _at_rate(source.requests, limits.rpm)
        source.tokens = _at_rate(source.tokens, limits.tpm)
    source.reserved = limits.tpm_counts == "reserved"
    source.weight, source.attempt_timeout, source.endpoint = endpoint.weight, endpoint.timeouts.attempt, endpoint
    source.sends_priority = endpoint.send_priority


def _resized(window: ConcurrencyLimit, most: int | None, rng: Random) -> ConcurrencyLimit:
    """Return a concurrency limit under another configured limit. An adaptive limit starts anew if only the old one restricted it."""
    if not isinstance(window, AdaptiveLimit):
        return ConfiguredLimit(most)
    fresh = AdaptiveLimit(rng, most)
    if window.limit >= WINDOW_RESTRICTED * window.most and fresh.limit > window.limit:
        fresh.changes = window.changes
        return fresh
    window.most = fresh.most
    window.limit = min(window.limit, window.most)
    return window


def _at_rate(limit: Gcra | HeaderRateLimit | None, per_minute: float | None) -> Gcra | HeaderRateLimit | None:
    """Return a rate limit with another configured rate, or without one. What was already charged stays charged."""
    rate = limit.configured if isinstance(limit, HeaderRateLimit) else limit
    if per_minute is None:
        rate = None
    elif rate is None:
        rate = MinuteLimit(per_minute)
    else:
        rate.rate = per_minute / 60
    if isinstance(limit, HeaderRateLimit):
        limit.configured = rate
        return limit
    return rate


# lists of addresses


def look_up(base_url: str) -> list[str]:
    parts, place = urlsplit(base_url), base_url.removeprefix("list:")
    if parts.scheme == "dns":
        found = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
        hosts = sorted({str(address[0]) for *_, address in found})
        return [f"http://{f'[{host}]' if ':' in host else host}:{parts.port}{parts.path}" for host in hosts]
    if "://" in place:
        with urllib.request.urlopen(place, timeout=LIST_TIMEOUT) as reply:  # noqa: S310 - the scheme was checked
            content = reply.read(LIST_BYTES + 1)
            if reply.length and len(content) <= LIST_BYTES:
                raise ValueError(f"the answer was cut off, {reply.length} bytes before its end")
    else:
        with Path(place).expanduser().open("rb") as file:
            content = file.read(LIST_BYTES + 1)
    if len(content) > LIST_BYTES:
        raise ValueError(f"the list is longer than {LIST_BYTES} bytes")
    text = content.decode().strip()
    lines = json.loads(text) if text.startswith("[") else [line.partition("#")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line]


@dataclass(slots=True)
class _List:
    """An entry of the configuration, its addresses, and why they could not be read the last time."""

    entry: Endpoint
    endpoints: tuple[Endpoint, ...]
    due: float
    fault: str = ""


class AddressLists:
    """The lists of addresses of one client. A thread reads each list again every ``refresh`` seconds, as long as the client lives.

    ``on_change`` returns the function to call in the thread after a list has changed, or None if the client is gone.
    """

    def __init__(self, on_change: Callable[[], Callable[[], object] | None], clock: Callable[[], float] = monotonic) -> None:
        self._on_change, self._clock = on_change, clock
        self.lists: dict[str, _List] = {}  # those of the current entries, by name; replaced as a whole
        self.start_again()

    def start_again(self) -> None:
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        self._stopping.set()

    def resolved(self, entries: Iterable[Endpoint], routes: Iterable[Route]) -> tuple[list[Endpoint], list[Route], dict[str, _List]]:
        """Return endpoints and routes in which an entry with a list is replaced by its addresses, and all ``lists`` that are then current.

        Raises ``ConfigError`` if a new list cannot be read.
        """
        lists = {entry.name: self._list_of(entry) for entry in entries if entry.is_list}
        members = {entry.name: lists[entry.name].endpoints if entry.is_list else (entry,) for entry in entries}
        return [each for endpoints in members.values() for each in endpoints], [_over(route, members) for route in routes], lists

    def follow(self) -> None:
        if self.lists and self._thread is None:
            self._thread = threading.Thread(target=self._follow, args=[self._stopping], name="qreward-addresses", daemon=True)
            self._thread.start()

    def check(self) -> None:
        """Read the lists that are due. After a failure, the last list is kept, and a warning is logged once."""
        for name, known in self.lists.items():
            if self._clock() < known.due or (changed := self._on_change()) is None:
                continue
            known.due, before, fault = self._clock() + known.entry.refresh, known.endpoints, ""
            try:
                endpoints = _read(known.entry, before)
                if endpoints != before and self.lists.get(name) is known:
                    known.endpoints = endpoints
                    changed()
            except Exception as error:  # no error may end the thread
                known.endpoints, fault = before, str(error)
            if fault and fault != known.fault and self.lists.get(name) is known:
                LOG.warning("%s; its last %d addresses are kept", fault, len(before))
            known.fault = fault

    def members(self, entry: Endpoint) -> tuple[Endpoint, ...]:
        """Return the endpoints for which a current entry stands."""
        return self.lists[entry.name].endpoints if entry.is_list else (entry,)

    def _list_of(self, entry: Endpoint) -> _List:
        known = self.lists.get(entry.name)
        if known is not None and known.entry is entry:
            return known
        if known is not None and known.entry.base_url == entry.base_url:
            endpoints = tuple(_at(each.base_url, entry) for each in known.endpoints)
        else:
            endpoints = _read(entry)
        return _List(entry, endpoints, self._clock() + entry.refresh)

    def _follow(self, stopping: threading.Event) -> None:
        while self._on_change() is not None:
            due = min((known.due for known in self.lists.values()), default=self._clock() + 1)
            if stopping.wait(max(0.01, due - self._clock())):
                return
            self.check()


def resolved(config: ClientConfig) -> ClientConfig:
    """Return a configuration in which each entry with a list is replaced by its addresses. Raises ``ConfigError``."""
    endpoints, routes, _ = AddressLists(lambda: None).resolved(config.endpoints, config.routes)
    return config.model_copy(update={"endpoints": tuple(endpoints), "routes": tuple(routes)})


def _over(route: Route, members: Mapping[str, Sequence[Endpoint]]) -> Route:
    chosen = {each.name: name for name in route.endpoints for each in members[name]}
    weights = {each: route.weights[name] for each, name in chosen.items() if name in route.weights}
    return route.model_copy(update={"endpoints": tuple(chosen), "weights": weights})


def _read(entry: Endpoint, before: Iterable[Endpoint] = ()) -> tuple[Endpoint, ...]:
    """Return the endpoints of a list. An endpoint that was there before is the same object. Raises ``ConfigError``."""
    known = {each.base_url: each for each in before}
    try:
        found = [Endpoint.from_content({"base_url": address}) for address in look_up(entry.base_url)]
        fault = "it holds another list; write the addresses of servers" if any(each.is_list for each in found) else "it is empty"
    except Exception as error:
        found, fault = [], str(error) if isinstance(error, OSError | ValueError | ConfigError) else type(error).__name__
    if not found or any(each.is_list for each in found):
        raise ConfigError(f"endpoint {entry.name!r}: its list of addresses cannot be used: {fault}")
    return tuple(known.get(url) or _at(url, entry) for url in dict.fromkeys(each.base_url for each in found))


def _at(address: str, entry: Endpoint) -> Endpoint:
    return entry.model_copy(update={"base_url": address, "name": urlsplit(address).netloc})
