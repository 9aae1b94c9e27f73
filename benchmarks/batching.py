"""Compares queues that merge single calls into batches: qreward, Ray Serve, async-batcher, batched, and hand-tuned fixed waits.

Three parts: ``cpu``, the CPU time per call of a function that does nothing; ``busy``, latencies in real time at 100 calls per second to
a function that takes 100 ms; ``loads``, latencies at several loads in virtual time, with the real queues of all libraries. Each
measurement is a fresh process, and each round measures all queues in turn.

    python benchmarks/batching.py --json batching.json               # half an hour; creates the environments on the first run
    python benchmarks/batching.py --json batching.json --parts cpu   # measures one part again and keeps the others in the file
    python benchmarks/batching.py --json batching.json --markdown    # measures nothing; writes docs/benchmarks.md from that file
    python benchmarks/batching.py --quick                            # ours only, few calls
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from _command import command, load, parsed, save
from _pages import PAGE, describe, machine, rewrite_section
from _processes import ClientFailed, run_client
from batching_queues import PARTS, Sizes, Task, plan
from batching_report import TABLES

TIMEOUT = 900.0  # seconds that one process may take
QUICK = Sizes(rounds=1, seeds=1, calls=1_280, flood=500, busy=20, requests=100, quick=True)
HEADINGS = {
    "cpu": "CPU time of a call, medians of {rounds} rounds (least-most).",
    "busy": "Latencies in real time, medians of {rounds} rounds.",
    "loads": "Latencies in virtual time: {requests:,} Poisson arrivals, medians of {seeds} seeds.",
}


def measure(part: str, sizes: Sizes) -> dict[str, Any]:
    """Measure one part. Return its records, and the load average of the machine during the measurements."""
    load = [os.getloadavg()[0]]
    records = []
    for task in plan(part, sizes):
        records.append(run(task))
        load.append(os.getloadavg()[0])
        shown = {key: value for key, value in records[-1].items() if key != "runs"}
        print(f"{part}: {shown}", file=sys.stderr, flush=True)
    return {"sizes": sizes._asdict(), "load_average": [min(load), max(load)], "records": records}


def run(task: Task) -> dict[str, Any]:
    """Run one measurement. A failed one has the reason as ``error``."""
    try:
        found = run_client(task.peer.python(), task.peer.script, [json.dumps(task.job)], TIMEOUT)
    except ClientFailed as error:
        found = {"error": str(error)}
    return {"round": task.round, "queue": task.queue, "cell": task.cell, **found}


def report(run: dict[str, Any]) -> str:
    """Return a heading and the tables for each measured part."""
    shown = []
    for part, its in run["parts"].items():
        heading = HEADINGS[part].format(**its["sizes"])
        if part != "loads":
            heading += " Load average of the machine {:.1f} to {:.1f}.".format(*its["load_average"])
        shown.append(f"{heading}\n\n{TABLES[part](its['records'])}")
    return "\n\n".join(shown)


def main() -> None:
    args = arguments()
    saved = load(args.json) if args.json and args.json.exists() else {"parts": {}}
    if args.markdown:
        rewrite_section(PAGE, "batching", f"Measured on {describe(saved['machine'])}\n\n{report(saved)}")
        return
    parts = dict(saved["parts"])
    for part in args.parts:
        parts[part] = measure(part, args.sizes)
        found = {"machine": machine(), "parts": {name: parts[name] for name in PARTS if name in parts}}
        save(args.json, found)
    print(report({"parts": {part: parts[part] for part in args.parts}}))


def arguments() -> argparse.Namespace:
    parser = command(__doc__, "one small round of ours and of no peer")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of cpu and busy (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="of loads (default %(default)s)")
    args = parsed(parser)
    args.sizes = QUICK if args.quick else Sizes(args.rounds, args.seeds)
    return args


if __name__ == "__main__":
    main()
