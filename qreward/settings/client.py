"""The configuration of a client, and how it is loaded. This module does not depend on how requests are sent or scheduled."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter, field_validator, model_validator

from qreward.errors import ConfigError, did_you_mean
from qreward.settings.base import Accepting, Many, Policy, Seconds, instead, must, repeated, with_faults, wrong
from qreward.settings.files import SettingsLocation, read_settings
from qreward.settings.local import http_package_of
from qreward.settings.policies import WEIGHTED, Endpoint, Hedge, PrefixAffinity, Retry, Route

_log = logging.getLogger("qreward")
OPENAI_BASE_URL = "https://api.openai.com/v1"
CONFIG_VARIABLE = "QREWARD_CONFIG"
TRANSPORT_VARIABLE = "QREWARD_TRANSPORT"
TRANSPORTS = ("aiohttp", "httpx")


def _no_transport(value: object) -> str:
    origin = f" ({TRANSPORT_VARIABLE} of the environment)" if value == os.environ.get(TRANSPORT_VARIABLE) else ""
    return f"must be 'aiohttp', 'httpx' or an httpx.AsyncClient{instead(value, TRANSPORTS, origin)}"


_TRANSPORT = must(lambda value: value in TRANSPORTS if isinstance(value, str) else http_package_of(value) is not None, _no_transport)
_NOT_NONE = must(lambda value: value is not None, "must be a mapping with endpoints, strategy and weights", BeforeValidator)
_ROUTES = TypeAdapter(dict[str, Annotated[Route, _NOT_NONE]])


class ClientConfig(Policy):
    """The complete configuration of a client.

    Args:
        endpoints: the endpoints: at least one, each with a unique name.
        routes: which endpoints serve which models, in addition to the endpoints' ``models``; also a mapping of pattern to ``{endpoints,
            strategy, weights}``.
        retry, hedge, prefix_affinity: see their classes. ``None`` disables hedging, or prefix affinity.
        max_queued: maximum number of single calls that wait for a route. A further call fails with ``QueueFull``.
        timeout: total seconds of one call, including the time in the queue. ``None`` sets no limit.
        transport: what sends the requests of endpoints without an ``http_client``: ``aiohttp``; ``httpx``, for respx and other tools that
            know httpx; or, in code, an ``httpx.AsyncClient`` of your own. The default is ``QREWARD_TRANSPORT``, or ``aiohttp``.

    Raises:
        ConfigError: a setting is unknown or invalid. The message says where, and never contains the value of a secret.

    Example:
        >>> ClientConfig(endpoints=(Endpoint("http://gpu-0:8000/v1"),)).timeout
        600.0
    """

    endpoints: Accepting[tuple[Endpoint, ...], list[Endpoint] | tuple[Endpoint, ...]]
    routes: tuple[Route, ...] = ()
    retry: Retry = Retry()
    hedge: Hedge | None = Hedge()
    prefix_affinity: PrefixAffinity | None = PrefixAffinity()
    max_queued: Many | None = None
    timeout: Seconds | None = 600.0
    transport: Annotated[Any, _TRANSPORT] = Field(
        default_factory=lambda: os.environ.get(TRANSPORT_VARIABLE) or "aiohttp", validate_default=True
    )

    @field_validator("routes", mode="before")
    @classmethod
    def _from_mapping(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        named = {
            key: {"pattern": key, **body} if isinstance(body, Mapping) and "pattern" not in body else None for key, body in value.items()
        }
        return list(_ROUTES.validate_python(named).values())

    @field_validator("endpoints")
    @classmethod
    def _distinct_names(cls, value: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
        if not value:
            raise ValueError("must contain at least one endpoint")
        if double := repeated(endpoint.name for endpoint in value):
            raise ValueError(f"more than one is called {double!r}; give each a name of its own, such as {double + '-b'!r}")
        return value

    def __getstate__(self) -> dict[Any, Any]:
        if not isinstance(self.transport, str):
            raise ConfigError("these settings cannot be pickled: transport is an HTTP client; make the client in each process")
        return super().__getstate__()

    @model_validator(mode="after")
    def _routes_fit(self) -> ClientConfig:
        if double := repeated(route.pattern for route in self.routes):
            raise wrong((("routes",), f"more than one route has the pattern {double!r}; put its endpoints into one route"))
        names = [endpoint.name for endpoint in self.endpoints]
        faults = []
        for route in self.routes:
            for stray in sorted(set(route.endpoints) - set(names)):
                hint = did_you_mean(stray, names, otherwise="the endpoints are")
                faults.append((("routes", route.pattern, "endpoints"), f"there is no endpoint {stray!r}; {hint}"))
        if faults:
            raise wrong(*faults)
        return self


def load_config(source: str | Path | Mapping[str, Any] | ClientConfig) -> ClientConfig:
    """Return the configuration in a YAML, JSON or TOML file, or in a mapping. A ``ClientConfig`` is returned as it is.

    Environment variables are replaced, and settings that are valid but have no effect are logged as warnings.

    Raises:
        ConfigError: the file cannot be read or is invalid. The message names the file and the setting.

    Example:
        >>> load_config({"endpoints": [{"base_url": "http://gpu-0:8000/v1"}]}).endpoints[0].name
        'gpu-0:8000'
    """
    if isinstance(source, ClientConfig):
        return source
    config, place = read_config(source)
    for endpoint, warning in without_effect(config):
        _log.warning("%s: endpoint %r: %s", place, endpoint, warning)
    return config


def read_config(source: str | Path | Mapping[str, Any]) -> tuple[ClientConfig, SettingsLocation]:
    """Return the configuration, and its location for messages. Unlike :func:`load_config`, this function logs no warnings."""
    content, place = read_settings(source, empty=_LEAST, known="with 'endpoints'")
    config, path = config_of(content, place), Path(f"{place}{OVERLAY}")
    return (config if isinstance(source, Mapping) else _Overlay.read(path).over(config, path)), place


OVERLAY = ".overlay.json"
"""Ending of the file beside a configuration file, such as ``qreward.yaml.overlay.json``, with the limits that an operator has changed."""


class _Overlay(Policy):
    """The content of an overlay: endpoint -> name of a limit -> limit, and endpoint -> why."""

    limits: dict[str, dict[str, Any]] = Field(default_factory=dict)
    reasons: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> _Overlay:
        if not path.exists():
            return cls()
        content, place = read_settings(path, empty="delete it", expand=False)
        return place.validated(cls, content)

    def over(self, config: ClientConfig, path: Path) -> ClientConfig:
        """Return a configuration with these limits. An endpoint that the configuration no longer has is left out."""
        changed = []
        for endpoint in config.endpoints:
            try:
                limits = endpoint.limits.changed(self.limits.get(endpoint.name, {}))
            except ConfigError as error:
                raise SettingsLocation(f"{path}: {endpoint.name!r}").named(error) from None
            changed.append(endpoint if limits == endpoint.limits else endpoint.model_copy(update={"limits": limits}))
        return config.model_copy(update={"endpoints": tuple(changed)}) if self.limits else config


def keep_limits(file: str | Path, endpoint: str, limits: Mapping[str, float | None], reason: str) -> Path:
    """Write limits of an endpoint to the overlay of a configuration file. Returns its path. Raises ``ConfigError``."""
    config, place = read_config(file)
    names = [each.name for each in config.endpoints]
    if endpoint not in names:
        raise ConfigError(f"{place}: there is no endpoint {endpoint!r}; {did_you_mean(endpoint, names, otherwise='the endpoints are')}")
    path = Path(f"{place}{OVERLAY}")
    overlay = _Overlay.read(path)
    overlay.limits[endpoint] = {**overlay.limits.get(endpoint, {}), **limits}
    overlay.reasons[endpoint] = reason
    overlay.over(config, path)
    new = path.with_suffix(".new")
    new.write_text(f"{overlay.model_dump_json(indent=2)}\n", encoding="utf-8")
    new.replace(path)
    return path


_LEAST = "it must contain at least 'endpoints'"
USUAL_FILES = ("qreward.toml", "qreward.yaml", "qreward.yml", "qreward.json")
"""Usual names of a configuration file. Such a file is not read unless it is named, but messages about missing settings name it."""


def usual_file() -> str | None:
    """Return the first of the usual names that a file in the working directory has; None if there is no such file."""
    return next((name for name in USUAL_FILES if Path(name).is_file()), None)


def config_of(content: Mapping[str, Any], place: SettingsLocation) -> ClientConfig:
    """Return the configuration in settings that :func:`~qreward.settings.files.read_settings` has read."""
    if not content:
        raise ConfigError(f"{place}: is empty; {_LEAST}")
    return place.validated(ClientConfig, content)


def without_effect(config: ClientConfig) -> Iterator[tuple[str, str]]:
    """Yield the names of endpoints whose settings are valid but probably mistakes, with a warning."""
    routed = {name for route in config.routes for name in route.endpoints}
    patterns = {route.pattern for route in config.routes}
    weighted = {name for route in config.routes if route.strategy in WEIGHTED for name in route.endpoints}
    seen: dict[object, Endpoint] = {}
    for endpoint in config.endpoints:
        if endpoint.name not in routed and patterns:
            if patterns >= set(endpoint.models):
                yield endpoint.name, "it gets no requests: the routes of its models do not name it; add it to a route"
            elif "models" not in endpoint.model_fields_set:
                yield endpoint.name, "no route names it, so it gets only models that match no route; add it to a route, or set its models"
        if endpoint.weight != 1 and endpoint.name not in weighted:
            yield endpoint.name, "weight has no effect without a route whose strategy is weighted_round_robin or least_connections"
        ours = id(endpoint.http_client), id(endpoint.compute)
        key = (endpoint.base_url, endpoint.api_key, tuple(endpoint.headers.items()), endpoint.proxy, ours)
        other = seen.setdefault(key, endpoint)
        if other is not endpoint and _overlap(other, endpoint, config):
            yield (
                endpoint.name,
                f"it is the same server as {other.name!r} (the same base_url and key), so its limits count twice; remove one",
            )


def _overlap(one: Endpoint, other: Endpoint, config: ClientConfig) -> bool:
    both = {one.name, other.name}
    return (
        "*" in (*one.models, *other.models) or bool({*one.models} & {*other.models}) or any(both <= {*r.endpoints} for r in config.routes)
    )


def config_from_env(environ: Mapping[str, str] = os.environ) -> ClientConfig:
    """Return the configuration in the file of ``QREWARD_CONFIG``, or one endpoint from OpenAI's variables. Raises ``ConfigError``."""
    if file := environ.get(CONFIG_VARIABLE):
        return load_config(file)
    base_name = next((name for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE") if environ.get(name)), "OPENAI_BASE_URL")
    base_url, key = environ.get(base_name), environ.get("OPENAI_API_KEY")
    if not base_url and not key:
        file = usual_file()
        found = "to a configuration file (`qreward init` writes one)" if file is None else f"to {file}, which is in the working directory"
        raise ConfigError(
            f"the environment names no endpoint; set QREWARD_CONFIG {found}, "
            "or OPENAI_BASE_URL (also OPENAI_API_BASE) and, if the server requires a key, OPENAI_API_KEY"
        )
    try:
        return ClientConfig(endpoints=(Endpoint(base_url or OPENAI_BASE_URL, api_key=key or None),))
    except ConfigError as error:
        named = [(path, text.replace("base_url", base_name).replace("api_key", "OPENAI_API_KEY")) for path, text in error.faults]
        raise with_faults(named, lambda _: "environment: ") from None
