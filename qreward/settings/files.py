"""Reads settings from YAML, JSON and TOML files, and reports what cannot be read. Knows no particular setting.

PyYAML is imported only for a YAML file.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from qreward.errors import ConfigError, Fault
from qreward.settings.base import expand_variables, repeated, with_faults

Path_ = tuple[str | int, ...]
"""The names and list positions that lead to a setting."""


class SettingsLocation:
    """The origin of settings: a file, or ``configuration`` for a mapping. ``str()`` returns its name.

    Args:
        name: name used in messages.
        line_of: returns the line number of a path of settings, or None if it is not known.
    """

    def __init__(self, name: str, line_of: Callable[[Path_], int | None] = lambda _: None) -> None:
        self._name = name
        self._line_of = line_of

    def __str__(self) -> str:
        return self._name

    def named(self, error: ConfigError) -> ConfigError:
        """Return the error with this place, and the line where it is known, before each fault."""
        return with_faults(error.faults, self._prefix) if error.faults else ConfigError(f"{self}: {error}")

    def _prefix(self, path: Path_) -> str:
        line = self._line_of(path)
        return f"{self}: " if line is None else f"{self}, line {line}: "


def read_settings(source: str | Path | Mapping[str, Any], *, empty: str, known: str = "") -> tuple[dict[str, Any], SettingsLocation]:
    """Read the settings in a YAML, JSON or TOML file, or in a mapping. Variables are replaced; see ``expand_variables``.

    Args:
        source: path of the file, or a mapping.
        empty: end of the message for an empty file.
        known: what the mapping must contain, for the message about a file without a mapping.

    Returns:
        The settings, and their place.

    Raises:
        ConfigError: the settings cannot be read, or are not a mapping. The message names the file and contains no values.
    """
    place = SettingsLocation("configuration" if isinstance(source, Mapping) else str(Path(source).expanduser()))
    try:
        content: object = source
        if not isinstance(source, Mapping):
            content, line_of = _parse(Path(str(place)))
            place = SettingsLocation(str(place), line_of)
        return _settings(content, empty, known), place
    except RecursionError:
        raise ConfigError(f"{place}: is nested without end; an alias must not hold itself") from None
    except ConfigError as error:
        raise place.named(error) from None


def _settings(content: object, empty: str, known: str) -> dict[str, Any]:
    if content is None:
        raise ConfigError(f"is empty; {empty}")
    if not isinstance(content, Mapping):
        raise ConfigError(f"must be a mapping {known or 'of settings'}, not a {type(content).__name__}")
    faults: list[Fault] = []
    expanded: dict[str, Any] = _expanded(content, (), faults)
    if faults:
        raise with_faults(faults, lambda _: "")
    return expanded


def _expanded(value: Any, path: Path_, faults: list[Fault]) -> Any:
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                faults.append(((*path, str(key)), f"{_dotted((*path, repr(key)))}: this name is not a text; write it in quotes"))
        return {str(key): _expanded(inner, (*path, str(key)), faults) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_expanded(inner, (*path, index), faults) for index, inner in enumerate(value)]
    try:
        return expand_variables(value) if isinstance(value, str) else value
    except ValueError as error:
        faults.append((path, f"{_dotted(path)}: {error}"))
        return value


def _dotted(path: Path_) -> str:
    return ".".join(map(str, path))


def _parse(path: Path) -> tuple[object, Callable[[Path_], int | None]]:
    """Return the content of a file, and a function that returns the line number of a setting."""
    if path.suffix.lower() not in _FORMATS:
        raise ConfigError(f"is not a kind of file that can be read; its name must end in {', '.join(_FORMATS)}")
    parse, line_of = _FORMATS[path.suffix.lower()]
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}") from None
    except ValueError:
        raise ConfigError("is not UTF-8 text") from None
    try:
        return (parse(text) if text.strip() else None), partial(line_of, text)
    except ConfigError:
        raise
    except (ValueError, RecursionError):
        raise ConfigError("holds a number, a date or a nesting that cannot be read") from None


def _parse_json(text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise ConfigError(f"is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if double := repeated(name for name, _ in pairs):
        raise ConfigError(f"the name {double!r} is there twice in one mapping; keep one")
    return dict(pairs)


def _parse_toml(text: str) -> object:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"is not valid TOML: {error}") from None


def _parse_yaml(text: str) -> object:
    try:
        import yaml  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        raise ConfigError("PyYAML is needed to read YAML; install qreward[yaml], or write the file as JSON or TOML") from None

    Loader = _yaml_loader(yaml)  # noqa: N806 - a class
    try:
        return yaml.load(text, Loader)  # noqa: S506 - Loader is a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        problem = re.sub(r"'[^'<]{4,}'", "'...'", error.problem or error.context or "broken")
        raise ConfigError(f"is not valid YAML: {problem}{line}") from None
    except yaml.YAMLError:
        raise ConfigError("is not valid YAML: it holds a character that YAML does not allow") from None


def _yaml_loader(yaml: Any) -> Any:
    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Rejects repeated names in a mapping, of which YAML would silently keep the last."""

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            double = repeated(str(key.value) for key, _ in node.value)
            if double is not None:
                raise ConfigError(f"the name {double!r} is there twice in the mapping of line {node.start_mark.line + 1}; keep one")
            return node

    return Loader


def _line_of(text: str, path: Path_) -> int | None:
    """Return the line of the longest prefix of the path that exists in a YAML or JSON text, or None if PyYAML cannot tell."""
    try:
        import yaml  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        return None
    try:
        node, line = yaml.compose(text, yaml.SafeLoader), None
    except yaml.YAMLError:
        return None
    for part in path:
        found = next(((key, value) for key, value in _children(node) if key == part), None)
        if found is None:
            break
        node, line = found[1][1], found[1][0]
    return line


def _children(node: Any) -> Iterator[tuple[str | int, tuple[int, Any]]]:
    """Yield the name or index of each child of a YAML node, with its line and node. Children of merged mappings come last."""
    if node.id == "sequence":
        yield from ((index, (inner.start_mark.line + 1, inner)) for index, inner in enumerate(node.value))
    if node.id == "mapping":
        yield from ((key.value, (key.start_mark.line + 1, inner)) for key, inner in node.value)
        for key, inner in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                for merged in inner.value if inner.id == "sequence" else [inner]:
                    yield from _children(merged)


_FORMATS: dict[str, tuple[Callable[[str], object], Callable[[str, Path_], int | None]]] = {
    ".yaml": (_parse_yaml, _line_of),
    ".yml": (_parse_yaml, _line_of),
    ".json": (_parse_json, _line_of),
    ".toml": (_parse_toml, lambda _text, _path: None),  # tomllib does not report lines
}
"""Ending of a file's name -> its parser, and the function that returns the line of a setting."""
