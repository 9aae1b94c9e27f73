"""Settings of functions as they stand in a file. Knows files and what is wrong with them; knows not which settings there are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qreward.config import _expanded, _NotReadable, _parse
from qreward.errors import ConfigError


def read_settings(source: str | Path) -> dict[str, Any]:
    """What a YAML, JSON or TOML file maps names to; ``${VAR}`` is replaced by the environment's value in every text.

    Raises:
        ConfigError: it cannot be read, or is no mapping. A file that is empty is refused: it may be about to be written.
    """
    path = Path(source).expanduser()
    try:
        return _settings(_parse(path))
    except RecursionError:
        raise ConfigError(f"{path}: is nested without end; an alias must not hold itself") from None
    except _NotReadable as problem:
        raise ConfigError(f"{path}: {problem}") from None


def _settings(content: object) -> dict[str, Any]:
    if content is None:
        raise _NotReadable("is empty; write {} if nothing is to be set")
    if not isinstance(content, Mapping):
        raise _NotReadable(f"must be a mapping of settings, not a {type(content).__name__}")
    expanded: dict[str, Any] = _expanded(content, ())
    return expanded


def said(error: ConfigError) -> str:
    """What is wrong, without the name of the model, which the reader of a file does not know."""
    return str(error).removeprefix("ScheduleConfig: ").removeprefix("ClientConfig: ")
