"""Settings of functions as they stand in a file. Knows files and what is wrong with them; knows not which settings there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qreward import reading


def read_settings(source: str | Path) -> dict[str, Any]:
    """The settings in a file. Raises ``ConfigError``."""
    return read_with_place(source)[0]


def read_with_place(source: str | Path) -> tuple[dict[str, Any], reading.Place]:
    """The settings in a file, and their place. One that is empty is refused: it may be about to be written. Raises ``ConfigError``."""
    return reading.read_settings(source, empty="write {} if nothing is to be set")
