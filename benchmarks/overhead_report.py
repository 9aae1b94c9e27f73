"""From the raw records of the overhead benchmark to its tables. Pure: JSON in, Markdown out.

A ratio is taken between two clients of the same round and the same cell, then the median over the rounds; so a machine
that is slower in one minute than in the next bends both sides alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from _pages import describe, table
from overhead_clients import BARE, YARDSTICK

Record = dict[str, Any]
Cell = tuple[int, int]
MISSING = "-"


def tables(run: dict[str, Any]) -> str:
    """All cells of a run, each with its heading."""
    records: list[Record] = run["records"]
    return "\n\n".join(f"{heading(cell)}\n\n{cell_table(records, cell)}" for cell in cells(records))


def section(run: dict[str, Any]) -> str:
    """What ``docs/benchmarks.md`` shows: the machine, the pins, then :func:`tables`."""
    pins = "; ".join(f"{name}: {', '.join(f'`{pin}`' for pin in wanted)}" for name, wanted in run["environments"].items())
    about = f"Measured on {describe(run['machine'])} {run['options']['rounds']} rounds."
    return "\n\n".join([about, f"Peers: {pins}." if pins else "No peers.", tables(run)])


def cells(records: Iterable[Record]) -> list[Cell]:
    """(in flight, delay in ms) in the order of the run."""
    return list(dict.fromkeys((record["in_flight"], record["delay_ms"]) for record in records))


def heading(cell: Cell) -> str:
    return f"#### {cell[0]} in flight, {cell[1]} ms server delay"


def cell_table(records: Sequence[Record], cell: Cell) -> str:
    """One row a client. With records under relaxed garbage collection, a second pair of columns for them."""
    here = [record for record in records if (record["in_flight"], record["delay_ms"]) == cell]
    relaxed = any(record["gc"] for record in here)
    head = ["client", "us a call", f"/ {BARE}", f"/ {YARDSTICK}", "RSS MB", "lag ms", "calls/s", "peak", "n"]
    head += ["us, gc relaxed", f"/ {BARE}"] if relaxed else []
    rows = [row(here, name, relaxed) for name in dict.fromkeys(record["client"] for record in here)]
    return table(head, rows)


def row(records: Sequence[Record], name: str, relaxed: bool) -> list[str]:
    usual = [record for record in records if not record["gc"]]
    mine = measured(usual, name)
    cells = [
        name,
        failure(usual, name) or spread([record["cpu_us"] for record in mine], "{:.0f}"),
        spread(ratios(usual, name, BARE), "{:.2f}"),
        spread(ratios(usual, name, YARDSTICK), "{:.3f}"),
        *(typical(mine, key, shape) for key, shape in (("rss_mb", "{:.1f}"), ("lag_ms", "{:.0f}"), ("wall_rps", "{:.0f}"))),
        typical(mine, "peak", "{:.0f}"),
        str(len(mine)),
    ]
    if relaxed:
        others = [record for record in records if record["gc"]]
        cells += [failure(others, name) or spread([record["cpu_us"] for record in measured(others, name)], "{:.0f}")]
        cells += [spread(ratios(others, name, BARE), "{:.2f}")]
    return cells


def measured(records: Iterable[Record], name: str) -> list[Record]:
    return [record for record in records if record["client"] == name and "error" not in record]


def failure(records: Iterable[Record], name: str) -> str | None:
    """``failed`` for a client that has failures and nothing else."""
    mine = [record for record in records if record["client"] == name]
    return "failed" if mine and all("error" in record for record in mine) else None


def ratios(records: Sequence[Record], name: str, reference: str) -> list[float]:
    """CPU time of ``name`` over that of ``reference`` in each round that has both. The records are of one cell."""
    base = {record["round"]: record["cpu_us"] for record in measured(records, reference)}
    return [record["cpu_us"] / base[record["round"]] for record in measured(records, name) if record["round"] in base]


def spread(values: Sequence[float], shape: str) -> str:
    """``median (least-most)``, the median alone if there is one value."""
    if not values:
        return MISSING
    middle, least, most = (shape.format(value) for value in (median(values), min(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({least}-{most})"


def typical(records: Sequence[Record], key: str, shape: str) -> str:
    return shape.format(median(record[key] for record in records)) if records else MISSING
