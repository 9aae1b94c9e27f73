"""The configuration of a client: its model, and how it is read from a file or the environment.

This room knows files and texts. It must not know how anything is sent or scheduled, and it imports no YAML unless asked.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import field_validator, model_validator

from qreward.errors import ConfigError
from qreward.policies import Endpoint, Hedge, Retry, Route
from qreward.policy import Many, Policy, Seconds, expand_variables

OPENAI_BASE_URL = "https://api.openai.com/v1"


class ClientConfig(Policy):
    """Everything a client is made from.

    Args:
        endpoints: at least one, each with a name of its own.
        routes: which endpoints serve which models; by default what the endpoints say in ``models``.
            A file may also write them as a mapping of pattern to ``{endpoints, strategy, weights}``.
        retry: see :class:`~qreward.policies.Retry`.
        hedge: see :class:`~qreward.policies.Hedge`; ``None`` never sends a request to two endpoints at once.
        max_queued: single calls that may wait for a route; one more ends with ``QueueFull``. ``None`` is any number.
        timeout: whole budget of one call in seconds, queueing included; ``None`` waits without end.

    Raises:
        ConfigError: a setting is unknown or wrong; the message says where, never the value of a secret.

    Example:
        >>> ClientConfig(endpoints=(Endpoint("http://gpu-0:8000/v1"),)).timeout
        600.0
    """

    endpoints: tuple[Endpoint, ...]
    routes: tuple[Route, ...] = ()
    retry: Retry = Retry()
    hedge: Hedge | None = Hedge()
    max_queued: Many | None = None
    timeout: Seconds | None = 600.0

    @field_validator("routes", mode="before")
    @classmethod
    def _from_mapping(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return [_route(pattern, body) for pattern, body in value.items()]

    @field_validator("endpoints")
    @classmethod
    def _distinct_names(cls, value: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
        if not value:
            raise ValueError("must hold at least one endpoint")
        if double := _repeated(endpoint.name for endpoint in value):
            raise ValueError(f"more than one is called {double!r}; give each a name of its own, such as name: {double + '-b'!r}")
        return value

    @model_validator(mode="after")
    def _routes_fit(self) -> ClientConfig:
        if double := _repeated(route.pattern for route in self.routes):
            raise ValueError(f"routes: the pattern {double!r} is there more than once; put its endpoints into one route")
        names = [endpoint.name for endpoint in self.endpoints]
        for route in self.routes:
            for stray in sorted(set(route.endpoints) - set(names)):
                near = difflib.get_close_matches(stray, names, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
                raise ValueError(f"routes: {route.pattern!r} names the endpoint {stray!r}, which does not exist; {hint}")
        return self


def load_config(source: str | Path | Mapping[str, Any]) -> ClientConfig:
    """Read a configuration from a YAML, JSON or TOML file, or from a mapping.

    ``${VAR}`` is replaced by the environment's value in every text.

    Args:
        source: path of a ``.yaml``, ``.yml``, ``.json`` or ``.toml`` file, or what such a file would hold.

    Raises:
        ConfigError: the file cannot be read or is not valid; the message names the file and the place in it.

    Example:
        >>> load_config({"endpoints": [{"base_url": "http://gpu-0:8000/v1"}]}).endpoints[0].name
        'gpu-0:8000'
    """
    if isinstance(source, Mapping):
        return _build(source, "configuration")
    path = Path(source).expanduser()
    try:
        content = _parse(path)
    except _NotReadable as problem:
        raise ConfigError(f"{path}: {problem}") from None
    return _build(content, str(path))


def config_from_env(environ: Mapping[str, str] = os.environ) -> ClientConfig:
    """Make a configuration from environment variables.

    ``QREWARD_CONFIG`` names a file; without it ``OPENAI_BASE_URL`` (or ``OPENAI_API_BASE``) and ``OPENAI_API_KEY`` make one endpoint.

    Args:
        environ: variable -> value. ``${VAR}`` inside a value is always looked up in the process's own environment.

    Raises:
        ConfigError: none of them is set, or what they say is wrong.
    """
    if file := environ.get("QREWARD_CONFIG"):
        return load_config(file)
    base_name = next((name for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE") if environ.get(name)), "OPENAI_BASE_URL")
    base_url, key = environ.get(base_name), environ.get("OPENAI_API_KEY")
    if not base_url and not key:
        raise ConfigError(
            "the environment names no endpoint; set QREWARD_CONFIG to a configuration file, "
            "or OPENAI_BASE_URL (also OPENAI_API_BASE) and, if the server wants a key, OPENAI_API_KEY"
        )
    try:
        return ClientConfig(endpoints=(Endpoint(base_url or OPENAI_BASE_URL, api_key=key or None),))
    except ConfigError as error:
        said = str(error).removeprefix("Endpoint: ").replace("base_url", base_name).replace("api_key", "OPENAI_API_KEY")
        raise ConfigError(f"environment: {said}") from None


class _NotReadable(Exception):
    """What is wrong with a file, without its name, which the caller adds. Never quotes a value: it may be a key."""


def _route(pattern: object, body: object) -> Route:
    if not isinstance(body, Mapping) or "pattern" in body:
        raise ValueError(f"{pattern!r} must be a mapping of endpoints, strategy and weights")
    settings: dict[str, Any] = {"pattern": pattern, **body}
    try:
        return Route(**settings)
    except ConfigError as error:
        raise ValueError(f"{pattern!r}: {str(error).removeprefix('Route: ')}") from None


def _repeated(names: Iterable[str]) -> str | None:
    return next((name for name, times in Counter(names).items() if times > 1), None)


def _build(content: object, place: str) -> ClientConfig:
    if content is None or content == {}:
        raise ConfigError(f"{place}: is empty; it must hold at least 'endpoints'")
    if not isinstance(content, Mapping):
        raise ConfigError(f"{place}: must be a mapping with 'endpoints', not a {type(content).__name__}")
    try:
        return ClientConfig(**_expanded(content, ()))
    except RecursionError:
        raise ConfigError(f"{place}: is nested without end; an alias must not hold itself") from None
    except _NotReadable as problem:
        raise ConfigError(f"{place}: {problem}") from None
    except ConfigError as error:
        raise ConfigError(f"{place}: {str(error).removeprefix('ClientConfig: ')}") from None


def _expanded(value: Any, path: tuple[str, ...]) -> Any:
    if isinstance(value, Mapping):
        if stray := [key for key in value if not isinstance(key, str)]:
            raise _NotReadable(f"{'.'.join((*path, repr(stray[0])))}: this name is not a text; write it in quotes")
        return {key: _expanded(inner, (*path, key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_expanded(inner, (*path, str(index))) for index, inner in enumerate(value)]
    try:
        return expand_variables(value) if isinstance(value, str) else value
    except ValueError as error:
        raise _NotReadable(f"{'.'.join(path)}: {error}") from None


def _parse(path: Path) -> object:
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None:
        raise _NotReadable(f"is not a kind of file that can be read; its name must end in {', '.join(_PARSERS)}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise _NotReadable(f"cannot be read: {error.strerror}") from None
    except ValueError:
        raise _NotReadable("is not UTF-8 text") from None
    try:
        return parse(text) if text.strip() else None
    except (ValueError, RecursionError):
        raise _NotReadable("holds a number, a date or a nesting that cannot be read") from None


def _parse_json(text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise _NotReadable(f"is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if double := _repeated(name for name, _ in pairs):
        raise _NotReadable(f"the name {double!r} is there twice in one mapping; keep one")
    return dict(pairs)


def _parse_toml(text: str) -> object:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _NotReadable(f"is not valid TOML: {error}") from None


def _parse_yaml(text: str) -> object:
    try:
        import yaml  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        raise _NotReadable("PyYAML is needed to read YAML; install qreward[yaml], or write the file as JSON or TOML") from None

    class Loader(yaml.SafeLoader):
        """Refuses a name that is there twice, of which YAML would silently keep the last."""

        def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
            node = super().compose_mapping_node(anchor)
            double = _repeated(str(key.value) for key, _ in node.value)
            if double is not None:
                raise _NotReadable(f"the name {double!r} is there twice in the mapping of line {node.start_mark.line + 1}; keep one")
            return node

    try:
        return yaml.load(text, Loader)  # noqa: S506 - Loader is a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        problem = re.sub(r"'[^'<]{4,}'", "'...'", error.problem or error.context or "broken")
        raise _NotReadable(f"is not valid YAML: {problem}{line}") from None
    except yaml.YAMLError:
        raise _NotReadable("is not valid YAML: it holds a character that YAML does not allow") from None


_PARSERS: dict[str, Callable[[str], object]] = {".yaml": _parse_yaml, ".yml": _parse_yaml, ".json": _parse_json, ".toml": _parse_toml}
