"""Converts the records of the prefix benchmark to tables. Pure: JSON in, Markdown out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from _pages import describe, table

Record = dict[str, Any]
BASE = "pull"


def cell_of(record: Record) -> tuple[str, str, str, str]:
    return record["workload"], record["model"], record["order"], record["fleet"]


def tables(run: dict[str, Any]) -> str:
    """A table for each fleet: a row per cell, a column per policy: gain in makespan over today's pull, prefill tokens over ideal."""
    fleets = dict.fromkeys(record["fleet"] for record in run["records"])
    return "\n\n".join(_fleet([record for record in run["records"] if record["fleet"] == name]) for name in fleets)


def _fleet(records: Sequence[Record]) -> str:
    policies = list(dict.fromkeys(record["policy"] for record in records))
    rows = []
    for cell in dict.fromkeys(map(cell_of, records)):
        mine = [record for record in records if cell_of(record) == cell]
        most = median(record["makespan"] / record["bound"] for record in mine if record["policy"] == BASE)
        rows.append([" ".join(cell[:3]), f"{most:.2f}", *(_entry(mine, policy) for policy in policies)])
    return f"#### {records[0]['fleet']} replicas\n\n{table(['makespan gain / prefill over ideal', 'most', *policies], rows)}"


def _entry(records: Sequence[Record], policy: str) -> str:
    mine = [record for record in records if record["policy"] == policy]
    text = f"{gain(records, policy):.2f} / {median(record['prefill'] / record['ideal'] for record in mine):.2f}"
    if predicted := [record["predicted"] / record["reported"] for record in mine if record.get("reported")]:
        text += f", {median(predicted):.2f}"
    return text


def gain(records: Iterable[Record], policy: str) -> float:
    """The median over the seeds of the makespan of today's pull over that of a policy, in one cell."""
    spans = {(record["policy"], record["seed"]): record["makespan"] for record in records}
    return median(spans[BASE, seed] / span for (name, seed), span in spans.items() if name == policy)


def section(run: dict[str, Any]) -> str:
    """The section of ``docs/benchmarks.md``."""
    about = f"Simulated on {describe(run['machine'])} Seeds 1 to {run['options']['seeds']}, medians."
    kinds = [f"- `{name}`: {title}." for name, title in run["workloads"].items()]
    return "\n\n".join([about, "\n".join(kinds), tables(run)])
