"""Converts the records of the batching benchmark to tables. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

from _pages import table
from batching_queues import BATCHERS, FIXED, LOADS, OURS, RAYS, SERVICES

Record = dict[str, Any]
LESS = 0.99
"""Share of our latency. A latency below it counts as lower than ours."""


def names(records: Iterable[Record], key: str) -> list[str]:
    """Return the distinct values of a key, in the order of their first occurrence."""
    return list(dict.fromkeys(record[key] for record in records))


def cpu_table(records: Sequence[Record]) -> str:
    """Return a table of microseconds per call: median, minimum and maximum over the rounds."""
    cells = names(records, "cell")
    rows = [[queue, *(_cell(records, queue, cell, _spread) for cell in cells)] for queue in names(records, "queue")]
    return table(["CPU us a call", *cells], rows)


def busy_table(records: Sequence[Record]) -> str:
    """Return a table of latencies, total time and batch size: medians over the rounds."""
    cells = names(records, "cell")
    figures: dict[str, Callable[[Sequence[Record]], str]] = {
        "p50 ms": lambda mine: f"{_middle(mine, 'p50') * 1000:.0f}",
        "p99 ms": lambda mine: f"{_middle(mine, 'p99') * 1000:.0f}",
        "all, s": lambda mine: f"{_middle(mine, 'makespan'):.2f}",
        "batch": lambda mine: f"{_middle(mine, 'batch'):.1f}",
    }
    rows = [
        [queue, *(_cell(records, queue, cell, figure) for cell in cells for figure in figures.values())]
        for queue in names(records, "queue")
    ]
    return table(["100 calls/s, 100 ms", *(f"{cell}: {figure}" for cell in cells for figure in figures)], rows)


def load_tables(records: Sequence[Record]) -> str:
    """Return a table of p50 / p99 in milliseconds by load for each service, as medians over the seeds, then :func:`waits_table`."""
    parts = []
    for service in names(records, "cell"):
        mine = [record for record in records if record["cell"] == service]
        rows = [[record["queue"], *_by_load(record, service)] for record in mine]
        parts.append(f"#### {service}\n\n{table(['p50 / p99 ms', *(f'{load:.0%} load' for load in LOADS)], rows)}")
    return "\n\n".join([*parts, f"#### Each single wait beside ours\n\n{waits_table(records)}"])


def waits_table(records: Sequence[Record]) -> str:
    """Return a table of the queues with one wait for all loads: where their latencies are below ours, and their worst ratios to ours."""
    rows = []
    for record in records:
        if record["queue"] in (*FIXED, *RAYS, *BATCHERS) and "runs" in record:
            ours = next(other for other in records if (other["queue"], other["cell"]) == (OURS, record["cell"]))
            ratios = {what: _ratios(record, ours, what) for what in ("p50", "p99", "p99_later")}
            worst = [_times(max(ratios[what].values())) for what in ("p50", "p99")]
            rows.append([record["cell"].split(":")[0], record["queue"], *map(_lower, ratios.values()), *worst])
    head = [
        "service",
        "queue",
        "lower p50 than ours at",
        "lower p99 at",
        "without the first second",
        "highest p50 / ours",
        "highest p99 / ours",
    ]
    return table(head, rows)


def _ratios(record: Record, ours: Record, what: str) -> dict[float, float]:
    """Return for each load the latency divided by ours: computed for each seed, then the median over the seeds."""
    by_run = {(run["rate"], run["seed"]): run[what] for run in ours["runs"]}
    found = {}
    for load in LOADS:
        pairs = [run[what] / by_run[run["rate"], run["seed"]] for run in _at(record, record["cell"], load)]
        found[load] = median(pairs)
    return found


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"


def _lower(ratios: dict[float, float]) -> str:
    return ", ".join(f"{load:.0%} ({ratio:.2f})" for load, ratio in ratios.items() if ratio < LESS) or "-"


def _by_load(record: Record, service: str) -> list[str]:
    if "runs" not in record:
        return ["failed"] * len(LOADS)
    return [" / ".join(f"{_middle(_at(record, service, load), what) * 1000:.0f}" for what in ("p50", "p99")) for load in LOADS]


def _at(record: Record, service: str, load: float) -> list[Record]:
    """Return the runs at a load."""
    rate = load * SERVICES[service].capacity()
    return [run for run in record["runs"] if abs(run["rate"] / rate - 1) < 1e-9]


def _cell(records: Sequence[Record], queue: str, cell: str, figure: Callable[[Sequence[Record]], str]) -> str:
    mine = [record for record in records if (record["queue"], record["cell"]) == (queue, cell)]
    good = [record for record in mine if "error" not in record]
    return figure(good) if good else "failed" if mine else ""


def _middle(records: Sequence[Record], what: str) -> float:
    value: float = median(record[what] for record in records)
    return value


def _spread(records: Sequence[Record]) -> str:
    values = [record["us"] for record in records]
    return f"{median(values):.1f} ({min(values):.1f}-{max(values):.1f})"


TABLES: dict[str, Callable[[Sequence[Record]], str]] = {"cpu": cpu_table, "busy": busy_table, "loads": load_tables}
