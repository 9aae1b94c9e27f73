"""The page on configuration lists every parameter of a function as it is in the code, and says truly what can be read where."""

from __future__ import annotations

import inspect
import json
import re
from enum import Enum
from pathlib import Path
from typing import Any

from qreward import schedule
from qreward.callables import NOT_GIVEN
from qreward.functions.config import FIXED, ScheduleConfig

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "configuration.md").read_text()
SECONDS = {name for name in ScheduleConfig.model_fields if name.endswith(("_time", "interval", "window", "recovery"))}
SECONDS |= {"timeout", "adaptive_latency_threshold"}


WORDS = inspect.cleandoc(ScheduleConfig.__doc__ or "")  # Python 3.13 takes the indentation away, older ones leave it


def rows() -> list[list[str]]:
    found = re.search(r"^### ScheduleConfig\n(.*?)(?=^#|\Z)", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert found
    lines = [line for line in found[1].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[2:]]


def shown(value: Any) -> str:
    if value is NOT_GIVEN:
        return "not set"
    if isinstance(value, type):
        return f"`{value.__name__}`"
    return f"`{json.dumps(value.value if isinstance(value, Enum) else value)}`"


def test_the_page_lists_every_parameter_with_its_default_and_unit() -> None:
    assert [tuple(row[:2]) for row in rows()] == [(f"`{name}`", shown(value)) for name, value in ScheduleConfig().snapshot().items()]
    for name, _, unit, meaning in rows():
        assert meaning
        assert (unit == "seconds") == (name.strip("`") in SECONDS), name


def test_the_docstring_and_the_decorator_name_every_parameter() -> None:
    arguments = WORDS[WORDS.index("Args:") : WORDS.index("Raises:")]
    assert re.findall(r"^    (\w+): ", arguments, flags=re.MULTILINE) == list(ScheduleConfig.model_fields)
    assert ScheduleConfig.model_fields.keys() <= inspect.signature(schedule).parameters.keys(), "which help() shows"


def test_the_page_names_what_cannot_be_changed() -> None:
    assert {row[0].strip("`") for row in rows() if "cannot be changed" in row[3]} == FIXED
