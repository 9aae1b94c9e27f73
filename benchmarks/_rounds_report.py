"""Converts the raw records of a benchmark that compares clients to tables. Pure: JSON in, Markdown out.

A ratio is computed between two clients of the same round and the same cell, and the median is taken over the rounds. Changes in the
speed of the machine therefore affect both sides alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from _pages import describe, table

Record = dict[str, Any]
MISSING = "-"
SMALL = 30.0  # microseconds below which a figure has one decimal


@dataclass(frozen=True)
class Layout:
    """The words of the tables, and the clients to which the other clients are compared.

    Attributes:
        unit: unit of the CPU time: ``call`` or ``chunk``.
        in_flight: text after the number of calls in flight in the heading of a cell.
        way: field of a record that identifies its cell, together with the calls in flight.
        way_words: text after the value of that field.
        references: reference client -> format of a ratio to it; the first is the minimal client.
    """

    unit: str
    in_flight: str
    way: str
    way_words: str
    references: Mapping[str, str]

    def cell(self, record: Record) -> str:
        """Return the name of a record's cell."""
        return f"{record['in_flight']} {self.in_flight}, {record[self.way]} {self.way_words}"


def tables(run: dict[str, Any], layout: Layout) -> str:
    """Return the tables of all cells of a run, in its order, each with a heading."""
    records: list[Record] = run["records"]
    cells = dict.fromkeys(map(layout.cell, records))
    return "\n\n".join(
        f"#### {cell}\n\n{cell_table([record for record in records if layout.cell(record) == cell], layout)}" for cell in cells
    )


def section(run: dict[str, Any], layout: Layout) -> str:
    """Return the section of ``docs/benchmarks.md``: the machine, the pins, then :func:`tables`."""
    pins = "; ".join(f"{name}: {', '.join(f'`{pin}`' for pin in wanted)}" for name, wanted in run["environments"].items())
    about = f"Measured on {describe(run['machine'])} {run['options']['rounds']} rounds."
    return "\n\n".join([about, f"Peers: {pins}." if pins else "No peers.", tables(run, layout)])


def cell_table(records: Sequence[Record], layout: Layout) -> str:
    """Return a table with a row per client. Records with relaxed garbage collection get a second pair of columns."""
    relaxed = any(record["gc"] for record in records)
    bare = next(iter(layout.references))
    head = ["client", f"us a {layout.unit}", *(f"/ {name}" for name in layout.references)]
    head += ["RSS MB", "lag ms", f"{layout.unit}s/s", "peak", "n"]
    head += ["us, gc relaxed", f"/ {bare}"] if relaxed else []
    rows = [row(records, name, layout, relaxed=relaxed) for name in dict.fromkeys(record["client"] for record in records)]
    return table(head, rows)


def row(records: Sequence[Record], name: str, layout: Layout, *, relaxed: bool) -> list[str]:
    usual, others = ([record for record in records if record["gc"] == gc] for gc in (False, True))
    mine = measured(usual, name)
    cells = [name, cost(usual, name), *(spread(ratios(usual, name, other), shape) for other, shape in layout.references.items())]
    cells += [typical(mine, key, shape) for key, shape in (("rss_mb", "{:.1f}"), ("lag_ms", "{:.0f}"), ("wall_rps", "{:.0f}"))]
    cells += [typical(mine, "peak", "{:.0f}"), str(len(mine))]
    if relaxed:
        bare, shape = next(iter(layout.references.items()))
        cells += [cost(others, name), spread(ratios(others, name, bare), shape)]
    return cells


def cost(records: Sequence[Record], name: str) -> str:
    """Return the CPU time in microseconds, with one decimal for small figures."""
    found = [record["cpu_us"] for record in measured(records, name)]
    return failure(records, name) or spread(found, "{:.1f}" if found and max(found) < SMALL else "{:.0f}")


def measured(records: Iterable[Record], name: str) -> list[Record]:
    return [record for record in records if record["client"] == name and "error" not in record]


def failure(records: Iterable[Record], name: str) -> str | None:
    """Return ``failed`` for a client of which all measurements failed, else None."""
    mine = [record for record in records if record["client"] == name]
    return "failed" if mine and all("error" in record for record in mine) else None


def ratios(records: Sequence[Record], name: str, reference: str) -> list[float]:
    """Return the CPU time of ``name`` divided by that of ``reference``, for each round that has both. The records are of one cell."""
    base = {record["round"]: record["cpu_us"] for record in measured(records, reference)}
    return [record["cpu_us"] / base[record["round"]] for record in measured(records, name) if record["round"] in base]


def spread(values: Sequence[float], shape: str) -> str:
    """Return ``median (min-max)``, or the median alone if there is one value."""
    if not values:
        return MISSING
    middle, least, most = (shape.format(value) for value in (median(values), min(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({least}-{most})"


def typical(records: Sequence[Record], key: str, shape: str) -> str:
    return shape.format(median(record[key] for record in records)) if records else MISSING
