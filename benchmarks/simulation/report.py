"""Converts the records of runs to tables. Pure: JSON in, Markdown out. A figure is the mean over the seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from _pages import describe, table

from simulation.models import MODELS
from simulation.scenarios import SCENARIOS

Record = dict[str, Any]
MISSING = "-"
REFERENCE = "known"
"""The oracle: the controller that knows the best limits. The latencies of other controllers are divided by its latencies. If the capacity
cannot be computed, their throughputs are divided by its throughput."""


def models_section(run: dict[str, Any]) -> str:
    """Return the section of ``docs/benchmarks.md`` on the models."""
    about = (
        f"{_about(run)} A cell has the used share of the capacity, the rejections in percent of the requests, after `i` the p99 latency "
        f"divided by that of `{REFERENCE}`, and after `r` the seconds until 85 % of a changed capacity is used."
    )
    return f"{about}\n\n{models_table(run['models'], run['options']['controllers'])}"


def scenarios_section(run: dict[str, Any]) -> str:
    """Return the section of ``docs/benchmarks.md`` on the fleets."""
    return f"{_about(run)}\n\n{scenarios_table(run['scenarios'])}"


def _about(run: dict[str, Any]) -> str:
    return f"{run['options']['seeds']} seeds, virtual time; wall seconds on {describe(run['machine'])}"


def models_table(records: Sequence[Record], controllers: Sequence[str]) -> str:
    """Return a table with a row per model and a column per controller."""
    names = list(dict.fromkeys(record["model"] for record in records))
    rows = [[f"{name} {MODELS[name].title}", *(model_cell(records, name, each) for each in controllers)] for name in names]
    return table(["model", *controllers], [*rows, ["mean / worst, rejects", *(summary(records, each) for each in controllers)]])


def model_cell(records: Sequence[Record], model: str, controller: str) -> str:
    """Return the cell ``fraction/rejects iLATENCY rRECOVERY``. The last two figures are present only for models that measure them."""
    mine = select(records, model=model, controller=controller)
    if not mine:
        return MISSING
    cell = f"{fraction(records, model, controller):.2f}/{mean(mine, 'rejects'):.1%}"
    if MODELS[model].latency and (paired := pairs(records, mine)):
        cell += f" i{fmean(record['p99'] / known['p99'] for record, known in paired):.1f}"
    if all(record["recovery"] is not None for record in mine):
        cell += f" r{mean(mine, 'recovery'):.0f}"
    return cell


def fraction(records: Sequence[Record], model: str, controller: str) -> float:
    """Return the used fraction of the capacity, or, for a ``measured`` model, of the throughput of the oracle."""
    mine = select(records, model=model, controller=controller)
    if MODELS[model].measured:
        return fmean(record["fraction"] / known["fraction"] for record, known in pairs(records, mine))
    return mean(mine, "fraction")


def pairs(records: Sequence[Record], mine: Iterable[Record]) -> list[tuple[Record, Record]]:
    """Return each record with the oracle's record of the same model and seed, if there is one."""
    known = {(record["model"], record["seed"]): record for record in records if record["controller"] == REFERENCE}
    return [(record, known[key]) for record in mine if (key := (record["model"], record["seed"])) in known]


def summary(records: Sequence[Record], controller: str) -> str:
    """Return the mean and the worst fraction, and the mean rejections, over the models."""
    names = list(dict.fromkeys(record["model"] for record in records if record["controller"] == controller))
    if not names:
        return MISSING
    found = [fraction(records, name, controller) for name in names]
    rejects = fmean(mean(select(records, model=name, controller=controller), "rejects") for name in names)
    return f"{fmean(found):.3f} / {min(found):.2f}, {rejects:.1%}"


def scenarios_table(records: Sequence[Record]) -> str:
    """Return a table with a row per scenario and controller."""
    head = ["scenario", "items", "controller", "makespan / bound", "extra sends", "rejects", "over limit", "p99 s", "lost", "wall s"]
    keys = list(dict.fromkeys((record["scenario"], record["controller"]) for record in records))
    return table([*head, "other figures"], [scenario_row(records, *key) for key in keys])


def scenario_row(records: Sequence[Record], scenario: str, controller: str) -> list[str]:
    """Return one row: means over the seeds, the minimum and maximum of the ratio, and the worst values of ``over_limit`` and ``lost``."""
    mine = select(records, scenario=scenario, controller=controller)
    ratios = [record["ratio"] for record in mine]
    spread = f" ({min(ratios):.2f}-{max(ratios):.2f})" if len(ratios) > 1 else ""
    return [
        f"{scenario} {SCENARIOS[scenario].title}",
        f"{mine[0]['items']}",
        controller,
        f"{fmean(ratios):.2f}{spread}",
        f"{mean(mine, 'extra'):.1%}",
        f"{mean(mine, 'rejects'):.1%}",
        f"{max(record['over_limit'] for record in mine)}",
        f"{mean(mine, 'p99'):.1f}",
        f"{max(record['lost'] for record in mine)}",
        f"{mean(mine, 'wall'):.1f}",
        figures_cell(mine),
    ]


def figures_cell(records: Sequence[Record]) -> str:
    """Return ``name value`` for each metric, with its target and the number of runs that missed it."""
    cells = []
    for name, (_, target, _) in records[0]["figures"].items():
        found = [record["figures"][name] for record in records]
        missed = sum(not met for _, _, met in found)
        verdict = "" if target is None else f" (target {target:g}{f', missed in {missed} of {len(found)}' if missed else ''})"
        cells.append(f"{name} {fmean(value for value, _, _ in found):.4g}{verdict}")
    return "; ".join(cells) or MISSING


def select(records: Iterable[Record], **wanted: str) -> list[Record]:
    return [record for record in records if all(record[key] == value for key, value in wanted.items())]


def mean(records: Sequence[Record], key: str) -> float:
    return fmean(record[key] for record in records)
