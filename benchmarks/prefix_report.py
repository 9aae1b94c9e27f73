"""Converts the records of the prefix benchmark to tables. Pure: JSON in, Markdown out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from statistics import median
from typing import Any

from _pages import describe, table

Record = dict[str, Any]
Cell = tuple[str, str, str, str]
BASE = "pull"
ROUTERS = ("chwbl", "sglang", "llm-d")
GAINS = {
    ("grpo", "8B", "shuffled"): 1.7, ("grpo", "70B", "shuffled"): 2.3, ("grpo", "8B", "grouped"): 1.3, ("grpo", "70B", "grouped"): 1.3,
    ("votes", "8B", "shuffled"): 2.2, ("votes", "70B", "shuffled"): 3.0,
    **{(name, model, "shuffled"): 5.0 for name in ("criteria", "documents") for model in ("8B", "70B")},
}  # fmt: skip
"""Least gains of ``told-all`` on 8 replicas."""
LEAST, PREFILL, FOUND, GAIN, ERROR = 0.98, {"told-all": 1.1, "told-512": 1.5}, 0.9, 0.05, 0.1
"""Other targets. ``LEAST``: least gain of any cell. ``PREFILL``: largest number of computed prompt tokens divided by the fewest possible,
by policy. ``FOUND``: least share of the additional speed with named groups that found groups must reach, where that speed is more than
``GAIN`` above 1. ``ERROR``: largest relative error of the predicted cached tokens."""


def cell_of(record: Record) -> Cell:
    return record["workload"], record["model"], record["order"], record["fleet"]


def tables(run: dict[str, Any]) -> str:
    """Return a table for each fleet, with a row for each cell of the benchmark and a column for each policy."""
    fleets = dict.fromkeys(record["fleet"] for record in run["records"])
    return "\n\n".join(_fleet([record for record in run["records"] if record["fleet"] == name]) for name in fleets)


def _fleet(records: Sequence[Record]) -> str:
    policies = list(dict.fromkeys(record["policy"] for record in records))
    rows = []
    for cell in dict.fromkeys(map(cell_of, records)):
        mine = [record for record in records if cell_of(record) == cell]
        most = median(record["makespan"] / record["bound"] for record in mine if record["policy"] == BASE)
        rows.append([" ".join(cell[:3]), f"{most:.2f}", *(_entry(mine, policy) for policy in policies)])
    return f"#### {records[0]['fleet']} replicas\n\n{table(['gain / computed tokens (x fewest possible)', 'most', *policies], rows)}"


def _entry(records: Sequence[Record], policy: str) -> str:
    mine = [record for record in records if record["policy"] == policy]
    text = f"{gain(records, policy):.2f} / {median(record['prefill'] / record['ideal'] for record in mine):.2f}"
    if predicted := [record["predicted"] / record["reported"] for record in mine if record.get("reported")]:
        text += f", {median(predicted):.2f}"
    return text


def gain(records: Iterable[Record], policy: str) -> float:
    """Return the gain of a policy in one cell: the makespan of ``pull`` divided by that of the policy, as the median over the seeds."""
    spans = {(record["policy"], record["seed"]): record["makespan"] for record in records}
    return float(median(spans[BASE, seed] / span for (name, seed), span in spans.items() if name == policy))


MISS = ("workload", "replicas", "policy", "figure", "reached", "target")


def misses(run: dict[str, Any]) -> list[list[str]]:
    """Return the missed targets, a row of ``MISS`` for each."""
    cells: dict[Cell, list[Record]] = {}
    for record in run["records"]:
        cells.setdefault(cell_of(record), []).append(record)
    return [[" ".join(cell[:3]), cell[3], *row] for cell, records in cells.items() for row in _missed(cell, records)]


def _missed(cell: Cell, records: list[Record]) -> Iterator[tuple[str, str, str, str]]:
    gains = {policy: gain(records, policy) for policy in dict.fromkeys(record["policy"] for record in records)}
    routers = ROUTERS if cell[0] != "nothing" else ()
    best, router = max(((gains[name], name) for name in routers if name in gains), default=(0.0, ""))
    for policy in [name for name in gains if name not in (BASE, *ROUTERS)]:
        mine = [record for record in records if record["policy"] == policy]
        if gains[policy] < max(best if policy != "told-512" else 0.0, LEAST):
            yield policy, "makespan gain", f"{gains[policy]:.3f}", f"{max(best, LEAST):.3f}{f' ({router})' if router else ''}"
        told = gains.get(policy.replace("found", "told"), 0.0)
        if policy.startswith("found") and gains[policy] - 1 < FOUND * (told - 1) and told > 1 + GAIN:
            yield policy, "makespan gain", f"{gains[policy]:.2f}", f"{1 + FOUND * (told - 1):.2f} ({FOUND:.0%} of told)"
        if (share := median(record["prefill"] / record["ideal"] for record in mine)) > PREFILL.get(policy, inf):
            yield policy, "computed tokens (x fewest possible)", f"{share:.2f}", f"{PREFILL[policy]:.2f}"
        wrong = [abs(record["predicted"] / record["reported"] - 1) for record in mine if record["reported"]]
        if wrong and median(wrong) > ERROR:
            yield policy, "error of predicted cached tokens", f"{median(wrong):.0%}", f"{ERROR:.0%}"
    if cell[3] == "8" and gains.get("told-all", inf) < (target := GAINS.get(cell[:3], 0.0)):
        yield "told-all", "makespan gain", f"{gains['told-all']:.2f}", f"{target:.2f}"


def section(run: dict[str, Any]) -> str:
    """Return the section of ``docs/benchmarks.md``."""
    about = f"Simulated on {describe(run['machine'])} Seeds 1 to {run['options']['seeds']}, medians."
    kinds = [f"- `{name}`: {title}." for name, title in run["workloads"].items()]
    missed = table(MISS, found) if (found := misses(run)) else "none"
    return "\n\n".join([about, "\n".join(kinds), tables(run), f"#### Missed targets\n\n{missed}"])
