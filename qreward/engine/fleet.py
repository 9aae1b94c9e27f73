"""The endpoints and routes of one client, as sources and pools of its scheduler. Changed live, from any thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from qreward.core.balance import make_balancer
from qreward.core.pool import Pool
from qreward.core.routing import Routes
from qreward.core.scheduler import Scheduler
from qreward.core.source import Source, make_source
from qreward.engine.shell import Engine, Shell
from qreward.errors import ConfigError, NoEndpoint
from qreward.policies import Endpoint, LoadBalanceStrategy, Route
from qreward.spelling import did_you_mean


class Fleet:
    """Endpoints by name, and pools by pattern. A route that was registered goes before an endpoint's own pattern."""

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
        """The pool that serves a model. Raises ``NoEndpoint`` naming the routes there are."""
        pool = self._table.find(model)
        if pool is None:
            raise NoEndpoint(f"no route matches the model {model!r}; there are routes for {', '.join(map(repr, self._table.items()))}")
        return pool

    def source(self, name: str) -> Source:
        """The endpoint of a name. Raises ``ConfigError`` with the nearest right name."""
        source = self._sources.get(name)
        if source is None:
            raise ConfigError(f"there is no endpoint {name!r}; {did_you_mean(name, self._sources, otherwise='the endpoints are')}")
        return source

    def sources(self) -> list[Source]:
        """All endpoints, in the order they were added."""
        return list(self._sources.values())

    def routes(self) -> list[Route]:
        """All routes in the order they are tried, an endpoint's own patterns among them."""
        listed = []
        for pattern, pool in self._table.items().items():
            registered = self._routes.get(pattern)
            own = tuple(source.name for source in pool.sources)
            listed.append(registered[0] if registered else Route(pattern=pattern, endpoints=own))
        return listed

    def is_registered(self, route: Route) -> bool:
        """True if the route was registered, False if it is an endpoint's own pattern."""
        return route.pattern in self._routes

    def add(self, endpoint: Endpoint) -> None:
        """Add an endpoint; work that waits for its models reaches it at once."""
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
                pool = self._own[pattern] = Pool(repr(pattern), [], balancer)
            self._engine.act(partial(self._engine.scheduler.join, source=source, pool=pool))
            if pattern not in self._routes:
                self._table.set(pattern, pool)
        self._changed()

    def remove(self, name: str) -> None:
        """Remove an endpoint: what it has in flight is finished, what waits goes elsewhere or fails with ``NoEndpoint``."""
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
        """Add a route, or replace the one of the same pattern; what waits on it follows the new one."""
        sources = [self.source(name) for name in dict.fromkeys(route.endpoints)]
        balancer = make_balancer(route.strategy, route.weights, self._engine.scheduler.rng)
        pool = self._routes[route.pattern][1] if route.pattern in self._routes else Pool(repr(route.pattern), [], balancer)
        self._engine.act(partial(self._engine.scheduler.reroute, pool=pool, sources=sources, balancer=balancer))
        self._routes[route.pattern] = (route, pool)
        self._table.set(route.pattern, pool)

    def mark(self, name: str, *, down: bool) -> None:
        """Take an endpoint out of service until it is marked healthy, or bring it back with a clean record."""
        source = self.source(name)
        scheduler = self._engine.scheduler

        def change(now: float) -> None:
            if down:
                source.health.down = True
                scheduler.lost(now, source)
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
        """There are other endpoints."""
        self._engine.act(lambda _: self._engine.scheduler.resize(self.sources()))
        self._keep()

    def _keep(self) -> None:
        """Let each wire close what it holds for endpoints that are not there any more."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        for shell in self._engine.shells():
            if shell.loop is here:
                self._keep_at(shell)
            else:
                shell.later(partial(self._keep_at, shell))

    def _keep_at(self, shell: Shell) -> None:
        """In the shell's loop: endpoints are looked up here, because several changes may arrive in another order."""
        keep: Callable[[list[object]], object] | None = getattr(shell.wire, "keep", None)
        if keep is not None:
            keep([source.handle for source in self.sources()])
