"""The endpoints and routes of one client, as sources and pools of its scheduler. They can be changed live, from any thread.

``Fleet`` adds and removes single endpoints and routes. ``LiveFleet`` also replaces the whole configuration while requests are in
flight:

- A reload is one change of the scheduler's state, under the engine's lock. No request sees a partial reload.
- Requests in flight finish at their endpoint.
- Queued requests stay queued. A pool continues to exist if its pattern does. A pool whose pattern is gone is served by the
  endpoints that now serve the models requested from it. If there are none, its queued requests fail with ``NoEndpoint``.
- New endpoints enter the pools before old ones leave, so that no pool is empty in between.
- An endpoint that is the same server with other limits, weight, price, models or timeouts keeps its learned state. Any other change
  (address, key, headers, ``limits.adaptive``, ...) makes it a new endpoint with the old name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any, cast
from weakref import ref

from qreward.engine.driver import Engine, LoopDriver
from qreward.errors import ConfigError, NoEndpoint
from qreward.scheduler.failure_policy import FailurePolicy
from qreward.scheduler.hedging import HedgingPolicy
from qreward.scheduler.limits.concurrency import AdaptiveLimit, ConcurrencyLimit, FixedLimit
from qreward.scheduler.limits.headers import HeaderRateLimit
from qreward.scheduler.limits.rate import Gcra
from qreward.scheduler.load_balancing import make_balancer
from qreward.scheduler.queue import Queue
from qreward.scheduler.routing import Routes
from qreward.scheduler.scheduler import Scheduler
from qreward.scheduler.state import Balancer, Pool, Source, make_source
from qreward.settings.client import ClientConfig
from qreward.settings.policies import Endpoint, Limits, LoadBalanceStrategy, Route
from qreward.spelling import did_you_mean


class Fleet:
    """Endpoints by name, and pools by pattern. A registered route takes precedence over an endpoint's own pattern."""

    def __init__(self, engine: Engine[Scheduler], endpoints: Iterable[Endpoint], routes: Iterable[Route]) -> None:
        self._engine = engine
        self._sources: dict[str, Source] = {}
        self._own: dict[str, Pool] = {}  # pattern -> the endpoints that declare it
        self._routes: dict[str, tuple[Route, Pool]] = {}
        self._table: Routes[Pool] = Routes()
        for endpoint in endpoints:
            self.add(endpoint)
        for route in routes:
            self.register(route)

    def pool(self, model: str) -> Pool:
        """Return the pool that serves a model. Raises ``NoEndpoint``, which names the existing routes."""
        pool = self._table.find(model)
        if pool is None:
            raise NoEndpoint(f"no route matches the model {model!r}; there are routes for {', '.join(map(repr, self._table.items()))}")
        return pool

    def source(self, name: str) -> Source:
        """Return the source of an endpoint by name. Raises ``ConfigError``, which names the closest valid name."""
        source = self._sources.get(name)
        if source is None:
            raise ConfigError(f"there is no endpoint {name!r}; {did_you_mean(name, self._sources, otherwise='the endpoints are')}")
        return source

    def sources(self) -> list[Source]:
        """Return all sources in the order in which they were added."""
        return list(self._sources.values())

    def routes(self) -> list[Route]:
        """Return all routes in the order in which they are matched, including the endpoints' own patterns."""
        listed = []
        for pattern, pool in self._table.items().items():
            registered = self._routes.get(pattern)
            own = tuple(source.name for source in pool.sources)
            listed.append(registered[0] if registered else Route(pattern=pattern, endpoints=own))
        return listed

    def is_registered(self, route: Route) -> bool:
        """Return True if the route was registered, False if it is an endpoint's own pattern."""
        return route.pattern in self._routes

    def add(self, endpoint: Endpoint) -> None:
        """Add an endpoint. Queued requests for its models can use it immediately. Raises ``ConfigError`` for a name in use."""
        if endpoint.name in self._sources:
            raise ConfigError(f"two endpoints are called {endpoint.name!r}; give each its own name=")
        rng, attempt = self._engine.scheduler.rng, endpoint.timeouts.attempt
        source = make_source(endpoint.name, rng, endpoint.limits, weight=endpoint.weight, attempt_timeout=attempt)
        source.handle = endpoint
        self._sources[endpoint.name] = source
        for pattern in dict.fromkeys(endpoint.models):
            pool = self._own.get(pattern)
            if pool is None:
                balancer = make_balancer(LoadBalanceStrategy.EXPECTED_FINISH, {}, self._engine.scheduler.rng)
                pool = self._own[pattern] = Pool(repr(pattern), [], balancer, Queue())
            self._engine.act(partial(self._engine.scheduler.join, source=source, pool=pool))
            if pattern not in self._routes:
                self._table.set(pattern, pool)
        self._changed()

    def remove(self, name: str) -> None:
        """Remove an endpoint.

        Its requests in flight are finished. Queued requests go to other endpoints, or fail with ``NoEndpoint`` if there are none.
        """
        source = self.source(name)
        scheduler = self._engine.scheduler
        del self._sources[name]
        source.removed = True
        for pool in list(source.pools):
            self._engine.act(partial(scheduler.leave, source=source, pool=pool))
        for pattern in [pattern for pattern, pool in self._own.items() if not pool.sources]:
            del self._own[pattern]
            if pattern not in self._routes:
                self._table.remove(pattern)
        for route, pool in list(self._routes.values()):
            left = tuple(other.name for other in pool.sources)
            if not left:
                del self._routes[route.pattern]
                self._restore_own(route.pattern)
            elif left != route.endpoints:
                weights = {key: weight for key, weight in route.weights.items() if key in left}
                kept = Route(pattern=route.pattern, endpoints=left, strategy=route.strategy, weights=weights)
                self._routes[route.pattern] = (kept, pool)
        self._changed()

    def register(self, route: Route) -> None:
        """Add a route, or replace the route with the same pattern. Requests queued on the old route follow the new one."""
        sources = [self.source(name) for name in dict.fromkeys(route.endpoints)]
        balancer = make_balancer(route.strategy, route.weights, self._engine.scheduler.rng)
        pool = self._routes[route.pattern][1] if route.pattern in self._routes else Pool(repr(route.pattern), [], balancer, Queue())
        self._engine.act(partial(self._engine.scheduler.reroute, pool=pool, sources=sources, balancer=balancer))
        self._routes[route.pattern] = (route, pool)
        self._table.set(route.pattern, pool)

    def mark(self, name: str, *, down: bool) -> None:
        """Take an endpoint out of service until it is marked healthy, or bring it back with a clean health record."""
        source = self.source(name)
        scheduler = self._engine.scheduler

        def change(now: float) -> None:
            if down:
                source.health.mark_unhealthy()
                scheduler.on_source_lost(now, source)
            else:
                source.health.restore()
                source.down_since = None
                scheduler.changed(now, source)

        self._engine.act(change)

    def _restore_own(self, pattern: str) -> None:
        if pattern in self._own:
            self._table.set(pattern, self._own[pattern])
        else:
            self._table.remove(pattern)

    def _changed(self) -> None:
        """Tell the scheduler and the backends that the set of endpoints has changed."""
        self._engine.act(lambda _: self._engine.scheduler.resize(self.sources()))
        self._keep()

    def _keep(self) -> None:
        """Let each backend close what it holds for endpoints that no longer exist."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        for shell in self._engine.shells():
            if shell.loop is here:
                self._keep_at(shell)
            else:
                shell.later(partial(self._keep_at, shell))

    def _keep_at(self, shell: LoopDriver) -> None:
        """As ``_keep``, for one loop driver, in its event loop.

        The endpoints are looked up here, because several changes may arrive in a different order.
        """
        keep: Callable[[list[object]], object] | None = getattr(shell.wire, "keep", None)
        if keep is not None:
            keep([source.handle for source in self.sources()])


SETTINGS = ("retry", "hedge", "max_queued", "timeout")
ADJUSTABLE = frozenset({"limits", "weight", "price", "models", "timeouts", "max_response_bytes", "keepalive", "probe"})
"""Settings of an endpoint that may change while it stays the same server."""
MOST_MODELS = 1000
"""Maximum number of requested models that a pool remembers. It is bounded because the names come from callers."""
HELD = 0.8
"""Share of the configured limit from which a window counts as restricted by that limit alone."""

_Way = tuple[LoadBalanceStrategy, dict[str, float]]
_OWN_WAY: _Way = (LoadBalanceStrategy.EXPECTED_FINISH, {})


class LiveFleet(Fleet):
    """A fleet whose endpoints and routes can all be replaced in one change."""

    def __init__(self, engine: Engine[Scheduler], endpoints: Iterable[Endpoint], routes: Iterable[Route]) -> None:
        self._left: list[tuple[str, Pool]] = []  # pools whose pattern is gone, kept because requests may still hold them
        super().__init__(engine, endpoints, routes)

    def pool(self, model: str) -> Pool:
        """Return the pool that serves a model, and record the model as requested from it.

        Raises ``NoEndpoint``, which names the existing routes.
        """
        pool = super().pool(model)
        asked = pool.models
        if model not in asked and len(asked) < MOST_MODELS:
            asked.add(model)
        return pool

    def reload(self, before: ClientConfig, after: ClientConfig, prices: dict[str, Any]) -> frozenset[str]:
        """Replace the configuration.

        Args:
            before: the current configuration.
            after: the new configuration; it must be valid.
            prices: endpoint name -> price, of all current and former endpoints; updated in place.

        Returns:
            The names of the endpoints that were added, removed or changed, the names of the settings that changed, and ``"routes"``
            if the routes changed.
        """
        changed = differences(before, after)
        if before != after:
            self._engine.act(partial(self._become, before=before, after=after))
            self._keep()
        for endpoint in after.endpoints:
            if endpoint.price is not None:
                prices[endpoint.name] = endpoint.price
            else:
                prices.pop(endpoint.name, None)
        return changed

    def _become(self, now: float, before: ClientConfig, after: ClientConfig) -> None:
        scheduler = self._engine.scheduler
        retuned = retune(scheduler, before, after)
        self._replace_sources(after.endpoints)
        for pool, sources, balancer in self._replace_pools(after.routes):
            scheduler.reroute(now, pool, sources, balancer)
        self._forget_unused()
        for _, pool in self._left:
            scheduler.reroute(now, pool, self._heirs(pool), self._balancer(_OWN_WAY))
        scheduler.resize(self.sources())
        if retuned:
            look_again(scheduler, now, self.sources())

    def _replace_sources(self, endpoints: Iterable[Endpoint]) -> None:
        """Replace the sources by those of ``endpoints``. Sources that are not among them receive no more requests."""
        old = self._sources
        self._sources = {endpoint.name: self._source_for(endpoint, old.get(endpoint.name)) for endpoint in endpoints}
        for source in old.values():
            source.removed = self._sources.get(source.name) is not source

    def _source_for(self, endpoint: Endpoint, old: Source | None) -> Source:
        rng = self._engine.scheduler.rng
        if old is not None and is_same_server(cast("Endpoint", old.handle), endpoint):
            adjust(old, endpoint, rng)
            return old
        source = make_source(endpoint.name, rng, endpoint.limits, weight=endpoint.weight, attempt_timeout=endpoint.timeouts.attempt)
        source.handle = endpoint
        if old is not None and old.health.marked_unhealthy:  # an operator took the endpoint of this name out of service
            source.health.mark_unhealthy()
        return source

    def _replace_pools(self, routes: Iterable[Route]) -> list[tuple[Pool, list[Source], Balancer]]:
        """Return a pool for each pattern, its old one if there was one, with its new sources and its balancer."""
        ways = {pool: (route.strategy, route.weights) for route, pool in self._routes.values()}
        stock = self._stock()
        served: list[tuple[Pool, list[Source], Balancer]] = []
        table: Routes[Pool] = Routes()

        def serve(pattern: str, sources: list[Source], way: _Way) -> Pool:
            pools = stock.get(pattern)
            pool = pools.pop() if pools else Pool(repr(pattern), [], self._balancer(_OWN_WAY), Queue())
            served.append((pool, sources, pool.balancer if ways.get(pool, _OWN_WAY) == way else self._balancer(way)))
            return pool

        registered = {}
        for route in routes:
            pool = serve(route.pattern, [self._sources[name] for name in route.endpoints], (route.strategy, route.weights))
            registered[route.pattern] = (route, pool)
            table.set(route.pattern, pool)
        own = {pattern: serve(pattern, sources, _OWN_WAY) for pattern, sources in self._declared().items()}
        for pattern in own.keys() - registered.keys():
            table.set(pattern, own[pattern])
        self._left = [(pattern, pool) for pattern, pools in stock.items() for pool in pools]
        self._own, self._routes, self._table = own, registered, table
        return served

    def _stock(self) -> dict[str, list[Pool]]:
        """Return all pools by pattern. The last pool of each pattern is the one in use."""
        stock: dict[str, list[Pool]] = {}
        used = self._table.items().items()
        for pattern, pool in (*self._left, *((each, pool) for each, pool in self._own.items() if each in self._routes), *used):
            stock.setdefault(pattern, []).append(pool)
        return stock

    def _forget_unused(self) -> None:
        """Drop the pools whose pattern is gone and that no request holds.

        A pool that is still referenced stays in ``_left``, and ``_become`` gives it sources again.
        """
        waiting = [(pattern, pool) for pattern, pool in self._left if len(pool.queue)]
        held = [(pattern, ref(pool)) for pattern, pool in self._left if not len(pool.queue)]
        self._left = waiting
        for _, weak in held:
            detach(weak())
        self._left += [(pattern, pool) for pattern, weak in held if (pool := weak()) is not None]

    def _heirs(self, pool: Pool) -> list[Source]:
        """Return the sources that now serve the models requested from a pool whose pattern is gone."""
        heirs = [self._table.find(model) for model in sorted(pool.models)]
        return list(dict.fromkeys(source for heir in heirs if heir is not None for source in heir.sources))

    def _declared(self) -> dict[str, list[Source]]:
        declared: dict[str, list[Source]] = {}
        for source in self._sources.values():
            for pattern in dict.fromkeys(cast("Endpoint", source.handle).models):
                declared.setdefault(pattern, []).append(source)
        return declared

    def _balancer(self, way: _Way) -> Balancer:
        return make_balancer(*way, self._engine.scheduler.rng)


def detach(pool: Pool | None) -> None:
    """Remove a pool with an empty queue from all its sources, whose references would keep it alive."""
    if pool is not None:
        for source in tuple(pool.sources):
            pool.leave(source)


def differences(before: ClientConfig, after: ClientConfig) -> frozenset[str]:
    """Return the names of the endpoints and settings that differ. Their order does not matter."""
    old, new = ({endpoint.name: endpoint for endpoint in config.endpoints} for config in (before, after))
    names = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    names |= {name for name in SETTINGS if getattr(before, name) != getattr(after, name)}
    if {route.pattern: route for route in before.routes} != {route.pattern: route for route in after.routes}:
        names.add("routes")
    return frozenset(names)


def is_same_server(old: Endpoint, new: Endpoint) -> bool:
    """Return True if what was learned about the old endpoint also holds for the new one."""
    if old.limits.adaptive != new.limits.adaptive or old.limits.shared != new.limits.shared:
        return False
    if new.limits.shared != "none" and _kinds(old.limits) != _kinds(new.limits):
        return False
    return all(getattr(old, name) == getattr(new, name) for name in Endpoint.model_fields if name not in ADJUSTABLE)


def adjust(source: Source, endpoint: Endpoint, rng: Random) -> None:
    """Give a source other limits. The source keeps its latencies, health, counts, and what was learned about its window and rates."""
    old, limits = cast("Endpoint", source.handle).limits, endpoint.limits
    if source.lease is not None:  # the share announces the new limits to the other processes
        if old.max_concurrency != limits.max_concurrency:
            source.lease.window.inner = _resized(source.lease.window.inner, limits.max_concurrency, rng)
    else:
        if old.max_concurrency != limits.max_concurrency:
            source.window = _resized(source.window, limits.max_concurrency, rng)
        source.requests = _paced(source.requests, limits.rpm)
        source.tokens = _paced(source.tokens, limits.tpm)
    source.reserved = limits.tpm_counts == "reserved"
    source.weight, source.attempt_timeout, source.handle = endpoint.weight, endpoint.timeouts.attempt, endpoint


def _kinds(limits: Limits) -> tuple[bool, ...]:
    return tuple(limit is not None for limit in (limits.rpm, limits.tpm, limits.max_concurrency))


def _resized(window: ConcurrencyLimit, most: int | None, rng: Random) -> ConcurrencyLimit:
    """Return the window under another configured limit.

    The window starts anew if only the old limit restricted it, because nothing was learned about sizes above that limit.
    """
    if not isinstance(window, AdaptiveLimit):
        return FixedLimit(most)
    fresh = AdaptiveLimit(rng, most)
    if window.limit >= HELD * window.most and fresh.limit > window.limit:
        fresh.changes = window.changes
        return fresh
    window.most = fresh.most
    window.limit = min(window.limit, window.most)
    return window


def _paced(limit: Gcra | HeaderRateLimit | None, per_minute: float | None) -> Gcra | HeaderRateLimit | None:
    """Return the same limit at another rate. It keeps the requests or tokens that were already charged."""
    if isinstance(limit, HeaderRateLimit):
        limit.pace = _pace(limit.pace, per_minute)
        return limit
    return _pace(limit, per_minute)


def _pace(pace: Gcra | None, per_minute: float | None) -> Gcra | None:
    if per_minute is None:
        return None
    if pace is None:
        return Gcra(per_minute / 60)
    pace.rate = per_minute / 60
    return pace


def retune(scheduler: Scheduler, before: ClientConfig, after: ClientConfig) -> bool:
    """Give a scheduler other policies. A budget whose policy changes starts anew.

    Returns:
        True if the hedging policy was replaced, so that attempts in flight must be checked again; see :func:`look_again`.
    """
    scheduler._most_waiting = after.max_queued
    if before.retry != after.retry:
        scheduler._failure_policy = FailurePolicy(after.retry, scheduler.rng)
    if before.hedge == after.hedge and before.retry.attempts == after.retry.attempts:
        return False
    scheduler._hedging = HedgingPolicy(after.hedge, after.retry.attempts)
    return True


def look_again(scheduler: Scheduler, now: float, sources: Iterable[Source]) -> None:
    """Recompute when attempts in flight are checked for being slow, because the hedging policy has changed."""
    for source in sources:
        source.look_after = scheduler._hedging.look_after(source)
        if source.attempts:
            oldest = next(iter(source.attempts))
            source.check_at = min(source.check_at, max(now, oldest.sent_at + source.look_after))
            scheduler._wake(source, source.check_at)
