"""Settings of functions as they stand in a file. Knows files and what is wrong with them; knows not which settings there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qreward import reading
from qreward.errors import ConfigError


def read_settings(source: str | Path) -> dict[str, Any]:
    """What a file says. One that is empty is refused: it may be about to be written. Raises ``ConfigError``."""
    return reading.read_settings(source, empty="write {} if nothing is to be set")[0]


def said(error: ConfigError) -> str:
    """What is wrong, without the name of the model, which the reader of a file does not know."""
    return str(error).removeprefix("ScheduleConfig: ").removeprefix("ClientConfig: ")
