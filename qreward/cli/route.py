"""``qreward route CONFIG MODEL``: prints the pattern that a model matches, the endpoints that serve it, and their limits."""

from __future__ import annotations

import argparse

from qreward.client import QRewardClient
from qreward.engine.fleet import resolved
from qreward.errors import NoEndpoint
from qreward.scheduler.limits.concurrency import DEFAULT_LIMIT
from qreward.scheduler.routing import is_glob, matches
from qreward.settings.client import load_config
from qreward.settings.policies import Endpoint, Limits, Route


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="configuration file (.yaml, .json or .toml)")
    parser.add_argument("model", metavar="MODEL", help="name of the model, as calls give it")


def run(args: argparse.Namespace) -> int:
    """Print the route, and return 0. Raises ``ConfigError`` for an invalid file, and ``NoEndpoint`` if no route matches."""
    config = resolved(load_config(args.config))
    routes = QRewardClient.from_config(config).list_routes()
    found = [route for route in routes if matches(route.pattern, args.model)]
    if not found:
        patterns = ", ".join(repr(route.pattern) for route in routes)
        raise NoEndpoint(f"no route matches the model {args.model!r}; there are routes for {patterns}")
    taken, *others = found
    endpoints = {endpoint.name: endpoint for endpoint in config.endpoints}
    print(f"{args.model!r} takes the route {taken.pattern!r}: {_reason(taken)}; {taken.strategy} among {len(taken.endpoints)}")
    for name in taken.endpoints:
        print(f"  {describe(endpoints[name], taken, args.model)}")
    for route in others:
        print(f"not used: {route.pattern!r}, which is less specific")
    return 0


def _reason(route: Route) -> str:
    return "the most specific pattern that matches" if is_glob(route.pattern) else "an exact name goes first"


def describe(endpoint: Endpoint, route: Route, model: str) -> str:
    parts = [f"{endpoint.name}  {endpoint.base_url}"]
    if (renamed := endpoint.model_names.get(model)) is not None:
        parts.append(f"as {renamed!r}")
    weight = route.weights.get(endpoint.name, endpoint.weight)
    if weight != 1:
        parts.append(f"weight {weight:g}")
    return ", ".join([*parts, _limits(endpoint.limits)])


def _limits(limits: Limits) -> str:
    rates = [f"{name} {value:g}" for name in ("rpm", "tpm") if (value := getattr(limits, name)) is not None]
    most = f" up to {limits.max_concurrency}" if limits.max_concurrency is not None else ""
    concurrency = f"concurrency adapts{most}" if limits.adaptive else f"concurrency fixed at {limits.max_concurrency or DEFAULT_LIMIT}"
    return ", ".join([concurrency, *rates])
