"""Reads settings from YAML, JSON and TOML files. Errors name the file and the setting."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from qreward.errors import ConfigError, Fault
from qreward.settings.base import Policy, expand_variables, repeated, with_faults

Path_ = tuple[str | int, ...]
Settings = TypeVar("Settings", bound=Policy)


class SettingsLocation:
    """The origin of settings: a file, or ``configuration`` for a mapping."""

    def __init__(self, name: str, content: object = None) -> None:
        self._name, self.content = name, content

    def __str__(self) -> str:
        return self._name

    def validated(self, model: type[Settings], content: Mapping[str, Any]) -> Settings:
        """Return the settings in the content of this file. A ``ConfigError`` names the file."""
        try:
            return model.from_content(content)
        except ConfigError as error:
            raise self.named(error) from None

    def named(self, error: ConfigError) -> ConfigError:
        """Return the error with this origin in front of each fault."""
        faults = [(path, _with_name(path, text, self.content)) for path, text in error.faults]
        return with_faults(faults, lambda _: f"{self}: ") if faults else ConfigError(f"{self}: {error}")


def _with_name(path: Path_, text: str, content: Any) -> str:
    """Return a message with the name of a list item, as in ``endpoints.1.limits (of 'api'): ...``."""
    if "name" in path:
        return text
    setting, colon, message = text.partition(": ")
    for depth, part in enumerate(path, 1):
        try:
            content = content[part]
        except (TypeError, LookupError):
            break
        item, name = _dotted(path[:depth]), content.get("name") if isinstance(content, Mapping) else None
        if isinstance(part, int) and isinstance(name, str) and name and f"{setting}.".startswith(f"{item}."):
            return f"{setting} ({'' if setting == item else 'of '}{name!r}){colon}{message}"
    return text


def read_settings(
    source: str | Path | Mapping[str, Any], *, empty: str, known: str = "", expand: bool = True
) -> tuple[dict[str, Any], SettingsLocation]:
    """Return the settings in a file or mapping, and their location. Raises ``ConfigError``, which names the file and contains no values."""
    place = SettingsLocation("configuration" if isinstance(source, Mapping) else str(Path(str(source)).expanduser()), content=source)
    try:
        if not isinstance(source, Mapping):
            place.content = _parse(Path(str(place)))
        return _settings(place.content, empty, known, expand), place
    except RecursionError:
        raise ConfigError(f"{place}: is nested without end: an alias contains itself") from None
    except ConfigError as error:
        raise place.named(error) from None


def _settings(content: object, empty: str, known: str, expand: bool) -> dict[str, Any]:
    if content is None:
        raise ConfigError(f"is empty; {empty}")
    if not isinstance(content, Mapping):
        raise ConfigError(f"must be a mapping {known or 'of settings'}, not a {type(content).__name__}")
    if not expand:
        return {str(name): value for name, value in content.items()}
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


def _parse(path: Path) -> object:
    ending = path.suffix.lower()
    if ending not in _ENDINGS:
        raise ConfigError(f"has an unknown format; its name must end in {', '.join(_ENDINGS)}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}") from None
    except ValueError:
        raise ConfigError("is not UTF-8 text") from None
    try:
        if not text.strip():
            return None
        if ending == ".toml":
            return tomllib.loads(text)
        return json.loads(text, object_pairs_hook=_without_repeats) if ending == ".json" else _parse_yaml(text)
    except ConfigError:
        raise
    except json.JSONDecodeError as error:
        raise ConfigError(f"is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"is not valid TOML: {error}") from None
    except (ValueError, RecursionError):
        raise ConfigError("contains a number or a date that cannot be read, or is nested too deeply") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if double := repeated(name for name, _ in pairs):
        raise ConfigError(f"the name {double!r} occurs twice in one mapping; keep one")
    return dict(pairs)


def _parse_yaml(text: str) -> object:
    try:
        import yaml  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        raise ConfigError("PyYAML is needed to read YAML; install qreward[yaml], or write the file as JSON or TOML") from None

    class Loader(yaml.SafeLoader):
        """Rejects a mapping in which a name is repeated, of which PyYAML would keep only the last value."""

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            double = repeated(str(key.value) for key, _ in node.value)
            if double is not None:
                raise ConfigError(f"the name {double!r} occurs twice in the mapping of line {node.start_mark.line + 1}; keep one")
            return node

    try:
        return yaml.load(text, Loader)  # noqa: S506 - Loader is a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        problem = re.sub(r"'[^'<]{4,}'", "'...'", error.problem or error.context or "broken")
        raise ConfigError(f"is not valid YAML: {problem}{line}") from None
    except yaml.YAMLError:
        raise ConfigError("is not valid YAML: it holds a character that YAML does not allow") from None


_ENDINGS = (".yaml", ".yml", ".json", ".toml")
