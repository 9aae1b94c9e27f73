"""How settings are read from a file, and what is said if that cannot be done. Knows files and texts; knows not which settings there are.

It imports no YAML unless asked.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from qreward.errors import ConfigError
from qreward.policy import expand_variables


def read_settings(source: str | Path | Mapping[str, Any], *, empty: str, known: str = "") -> tuple[dict[str, Any], str]:
    """What a YAML, JSON or TOML file maps names to, or a mapping; ``${VAR}`` is replaced by the environment's value in every text.

    Args:
        source: the file's path, or what it would hold.
        empty: what is said of one that is empty.
        known: what the mapping must at least hold, for the message that says that it is none.

    Returns:
        The settings, and what the place is called in messages.

    Raises:
        ConfigError: it cannot be read, or is no mapping; with the file's name, never with a value.
    """
    place = "configuration" if isinstance(source, Mapping) else str(Path(source).expanduser())
    try:
        return _settings(source if isinstance(source, Mapping) else _parse(Path(place)), empty, known), place
    except RecursionError:
        raise ConfigError(f"{place}: is nested without end; an alias must not hold itself") from None
    except _NotReadable as problem:
        raise ConfigError(f"{place}: {problem}") from None


def _settings(content: object, empty: str, known: str) -> dict[str, Any]:
    if content is None:
        raise _NotReadable(f"is empty; {empty}")
    if not isinstance(content, Mapping):
        raise _NotReadable(f"must be a mapping {known or 'of settings'}, not a {type(content).__name__}")
    expanded: dict[str, Any] = _expanded(content, ())
    return expanded


class _NotReadable(Exception):
    """What is wrong with a file, without its name, which the caller adds. Never quotes a value: it may be a key."""


def repeated(names: Iterable[str]) -> str | None:
    return next((name for name, times in Counter(names).items() if times > 1), None)


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
    if double := repeated(name for name, _ in pairs):
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
            double = repeated(str(key.value) for key, _ in node.value)
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
