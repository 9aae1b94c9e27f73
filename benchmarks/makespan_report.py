"""Converts the raw records of the makespan benchmark to tables. Pure: JSON in, Markdown out.

A cell is the median over the seeds, with minimum and maximum in brackets. A batch that was stopped counts as longer than any other. A batch
that ended without some of its responses is called incomplete; its makespan is that of the requests that were answered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from _pages import describe, table

Record = dict[str, Any]
HEAD = ("client", "makespan / bound", "seconds", "99 % after, s", "answers", "lost", "rejects", "extra load", "CPU s")


def tables(run: dict[str, Any]) -> str:
    """Return the tables of all fleets of a run, each with a heading."""
    return "\n\n".join(_fleet(run, name) for name in dict.fromkeys(record["fleet"] for record in run["records"]))


def section(run: dict[str, Any]) -> str:
    """Return the section of ``docs/benchmarks.md``: the machine, the clients with their settings and pins, then :func:`tables`."""
    options = run["options"]
    about = f"Measured on {describe(run['machine'])} Seeds {_listed(options['seeds'])}; a bulk is stopped after {options['cap']:g} bounds."
    if loads := [record["load_before"] for record in run["records"] if record.get("load_before") is not None]:
        about += f" Load average before a bulk: {_spread(loads, '{:.1f}')}; above 2 it is caused by other programs."
    pins = "; ".join(f"{name}: {', '.join(f'`{pin}`' for pin in wanted)}" for name, wanted in run["environments"].items())
    return "\n\n".join([about, f"Peers: {pins}." if pins else "No peers.", clients_table(run["clients"]), tables(run)])


def clients_table(clients: Sequence[dict[str, Any]]) -> str:
    """Return the measured clients with their settings."""
    rows = [f"| `{each['name']}` | {each['what']} | {_settings(each['settings'])} |" for each in clients]
    return "\n".join(["| client | what it is | settings besides the URLs |", "| --- | --- | --- |", *rows])


def extra(record: Record) -> float:
    """Return the requests that the servers processed without a correct response, divided by the batch. Requests in flight are left out."""
    return float((record["worked"] - record["right"] - record["open_upstream"]) / record["requests"])


def _fleet(run: dict[str, Any], name: str) -> str:
    records = [record for record in run["records"] if record["fleet"] == name]
    measured = [record for record in records if "error" not in record]
    rows = [
        _row([record for record in records if record["client"] == client]) for client in dict.fromkeys(each["client"] for each in records)
    ]
    title = f"#### Fleet `{name}`\n\n{run['fleets'][name]}."
    if measured:
        title += f" {measured[0]['requests']} conversations; bound {_spread([each['bound_s'] for each in measured], '{:.1f}')} s."
        if informed := [each["informed_s"] / each["bound_s"] for each in measured if each.get("informed_s")]:
            title += f" A client that knew all slots beforehand, but no lengths, would take {_spread(informed, '{:.2f}')} bounds."
    return f"{title}\n\n{table(HEAD, rows)}"


def _row(records: Sequence[Record]) -> list[str]:
    """Return the row of one client in the table of a fleet."""
    name, mine = records[0]["client"], [record for record in records if "error" not in record]
    if not mine:
        return [name, "failed", *["-"] * (len(HEAD) - 2)]
    return [
        name,
        _makespan(mine),
        _spread([_finish(each, "wall_s") for each in mine], "{:.1f}"),
        _spread([each["reached_s"]["99%"] or math.inf for each in mine], "{:.1f}"),
        _spread([each["right"] for each in mine], "{:.0f}"),
        _spread([each["lost"] + each["wrong"] for each in mine], "{:.0f}"),
        _spread([each["rejected"] for each in mine], "{:.0f}"),
        _spread([extra(each) for each in mine], "{:.1%}"),
        _spread([each["cpu_s"] for each in mine], "{:.1f}"),
    ]


def _makespan(records: Sequence[Record]) -> str:
    stopped = [record for record in records if not record["finished"]]
    if len(stopped) == len(records):
        return f"did not finish: {median(record['right'] for record in records):.0f} of {records[0]['requests']}"
    notes = [_spread([_finish(record, "ratio") for record in records], "{:.2f}")]
    if stopped:
        notes.append(f"{len(stopped)} of {len(records)} did not finish")
    if any(record["right"] < record["requests"] for record in records if record["finished"]):
        notes.append("incomplete")
    return ", ".join(notes)


def _finish(record: Record, key: str) -> float:
    return float(record[key]) if record["finished"] else math.inf


def _spread(values: Sequence[float], shape: str) -> str:
    """Return ``median (min-max)``, the median alone if all three look the same, or a dash for values that were never reached."""
    low, high = sorted(values)[(len(values) - 1) // 2], sorted(values)[len(values) // 2]
    middle = high if math.isinf(high) else (low + high) / 2
    shown = ["-" if math.isinf(value) else shape.format(value) for value in (middle, min(values), max(values))]
    return shown[0] if len(set(shown)) == 1 else f"{shown[0]} ({shown[1]}-{shown[2].replace('-', 'never')})"


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"`{name}={value}`" for name, value in settings.items()) or "nothing"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
