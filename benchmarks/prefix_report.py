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
ASKED = {
    ("grpo", "8B", "shuffled"): 1.7, ("grpo", "70B", "shuffled"): 2.3, ("grpo", "8B", "grouped"): 1.3, ("grpo", "70B", "grouped"): 1.3,
    ("votes", "8B", "shuffled"): 2.2, ("votes", "70B", "shuffled"): 3.0,
    **{(name, model, "shuffled"): 5.0 for name in ("criteria", "documents") for model in ("8B", "70B")},
}  # fmt: skip
"""The gain that was asked of the whole look-ahead on 8 replicas."""
LEAST, PREFILL, FOUND, GAIN, ERROR = 0.98, {"told-all": 1.1, "told-512": 1.5}, 0.9, 0.05, 0.1
"""Asked elsewhere: the gain anywhere, prefill over ideal, the share of the gain of told groups that found ones reach, the least such gain
that is compared, the error of the predicted cached tokens."""


def cell_of(record: Record) -> Cell:
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


def misses(run: dict[str, Any]) -> list[str]:
    """What was asked and is not reached, one sentence each."""
    cells: dict[Cell, list[Record]] = {}
    for record in run["records"]:
        cells.setdefault(cell_of(record), []).append(record)
    return [f"{', '.join(cell)}: {text}" for cell, records in cells.items() for text in _missed(cell, records)]


def _missed(cell: Cell, records: list[Record]) -> Iterator[str]:
    gains = {policy: gain(records, policy) for policy in dict.fromkeys(record["policy"] for record in records)}
    routers = ROUTERS if cell[0] != "nothing" else ()
    best, router = max(((gains[name], name) for name in routers if name in gains), default=(0.0, ""))
    for policy in gains.keys() - {BASE, *ROUTERS}:
        mine = [record for record in records if record["policy"] == policy]
        if gains[policy] < max(best if policy != "told-512" else 0.0, LEAST):
            yield f"{policy} gains {gains[policy]:.3f}, {router or 'asked'} {max(best, LEAST):.3f}"
        told = gains.get(policy.replace("found", "told"), 0.0)
        if policy.startswith("found") and gains[policy] - 1 < FOUND * (told - 1) and told > 1 + GAIN:
            yield f"{policy} gains {gains[policy]:.2f}, told {told:.2f}"
        if (share := median(record["prefill"] / record["ideal"] for record in mine)) > PREFILL.get(policy, inf):
            yield f"{policy} computes {share:.2f} of the ideal, asked {PREFILL[policy]:.2f}"
        wrong = [abs(record["predicted"] / record["reported"] - 1) for record in mine if record["reported"]]
        if wrong and median(wrong) > ERROR:
            yield f"{policy} predicts {median(wrong):.0%} wrong"
    if cell[3] == "8" and gains.get("told-all", inf) < (asked := ASKED.get(cell[:3], 0.0)):
        yield f"told-all gains {gains['told-all']:.2f}, asked {asked:.2f}"


def section(run: dict[str, Any]) -> str:
    """The section of ``docs/benchmarks.md``."""
    about = f"Simulated on {describe(run['machine'])} Seeds 1 to {run['options']['seeds']}, medians."
    kinds = [f"- `{name}`: {title}." for name, title in run["workloads"].items()]
    missed = "\n".join(f"- {text}" for text in misses(run)) or "- nothing"
    return "\n\n".join([about, "\n".join(kinds), tables(run), f"Asked and not reached:\n\n{missed}"])
