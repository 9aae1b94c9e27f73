"""Markdown tables, the description of the machine, and the marked sections of ``docs/benchmarks.md`` that are generated from JSON."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with padded columns, so that it is also readable in a terminal. Only the first column is left-aligned."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if column else cell.ljust(width) for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    rule = "|" + "|".join("-" * (width + 1) + ("-" if column == 0 else ":") for column, width in enumerate(widths)) + "|"
    return "\n".join([line(head), rule, *map(line, rows)])


def machine() -> dict[str, str]:
    """Return the properties of the machine that are needed to interpret the results."""
    return {
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def describe(about: dict[str, str]) -> str:
    """Return the result of :func:`machine` as a sentence."""
    return f"{about['cpu']}, {about['cores']} cores, {about['system']}, {about['python']}."


def _cpu() -> str:
    with suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found[1]
    return platform.processor() or "unknown CPU"


def rewrite_section(page: Path, name: str, text: str) -> None:
    """Replace the text between the markers ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``.

    Raises:
        ValueError: the page does not contain the two markers once each and in this order.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    old = page.read_text(encoding="utf-8")
    head, opened, rest = old.partition(begin)
    _, closed, tail = rest.partition(end)
    if not opened or not closed or begin in tail or end in head + tail:
        raise ValueError(f"{page.name} must hold {begin} and {end} once, in this order")
    page.write_text(f"{head}{begin}\n{text.strip()}\n{end}{tail}", encoding="utf-8")
