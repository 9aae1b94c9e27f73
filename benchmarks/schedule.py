"""CPU time that a decorator adds to a function call: qreward, QReward 0.1.7, tenacity and stamina; and the memory for keys.

Each measurement is a fresh process, and each round measures all decorators in turn. tenacity and stamina only retry.

    python benchmarks/schedule.py --json schedule.json               # a few minutes
    python benchmarks/schedule.py --json schedule.json --markdown    # measures nothing; writes docs/benchmarks.md from that file
    python benchmarks/schedule.py --quick                            # ours only, few calls
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from _command import command, load, parsed, save
from _environments import python_of
from _pages import PAGE, describe, machine, rewrite_section, table
from _processes import ClientFailed, run_client
from overhead_clients import ENVIRONMENTS

TIMEOUT = 300.0  # seconds that one process may take
RETRIES = ("tenacity==9.2.1", "stamina==26.1.0")
CASES = ("async", "async, timeout", "sync", "sync, timeout")
KEYS = "keys"
MEMORY = {
    "mb_held": "objects right after",
    "mb_after_idling": "after idling",
    "rss_first": "growth of the process",
    "rss_second": "of it in a second pass",
}


class Peer(NamedTuple):
    """A decorator: its script, its environment (None is that of the benchmark), its cases, and the most calls of a case."""

    script: str
    environment: str | None
    cases: Sequence[str]
    most_calls: int = 10**9

    def python(self) -> Path:
        """Return the interpreter of its environment."""
        if self.environment is None:
            return Path(sys.executable)
        return python_of(self.environment, RETRIES if self.environment == "retries" else ENVIRONMENTS[self.environment])


PEERS = {
    "no decorator": Peer("functions_plain.py", None, ("async", "sync")),
    "qreward": Peer("functions_qreward.py", None, (*CASES, KEYS)),
    "qreward 0.1.7": Peer("functions_qreward_0_1.py", "qreward-0.1.7", (*CASES, KEYS), 2_000),  # each call copies a list of start times
    "tenacity": Peer("functions_tenacity.py", "retries", ("async", "sync")),
    "stamina": Peer("functions_stamina.py", "retries", ("async", "sync")),
}
QUICK = ("no decorator", "qreward")


def plan(args: argparse.Namespace) -> Iterator[tuple[int, str, str, int]]:
    """Yield the measurements in order: round, decorator, case and number of calls."""
    for number in range(args.rounds):
        for case in (*CASES, KEYS):
            for name, peer in PEERS.items():
                if case in peer.cases and not (args.quick and name not in QUICK):
                    calls = args.keys if case == KEYS else min(args.calls, peer.most_calls)
                    yield number, name, case, calls


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one record for each measurement. A failed one has the reason as ``error``."""
    records = []
    for number, name, case, calls in plan(args):
        peer = PEERS[name]
        try:
            found = run_client(peer.python(), peer.script, ["--case", case, "--calls", str(calls)], TIMEOUT)
        except ClientFailed as error:
            found = {"error": str(error)}
        records.append({"round": number, "decorator": name, "case": case, "calls": calls, **found})
        print(f"round {number + 1}: {name}, {case}: {found}", file=sys.stderr, flush=True)
    return records


def report(records: Sequence[dict[str, Any]]) -> str:
    """Return two tables: microseconds per call, and megabytes for the keys."""
    names = list(dict.fromkeys(record["decorator"] for record in records))
    times = [[name, *(_middle(records, name, case, "us", "{:.1f}") for case in CASES)] for name in names]
    keyed = [name for name in names if KEYS in PEERS[name].cases]
    memory = [[name, *(_middle(records, name, KEYS, what, "{:.1f}") for what in MEMORY)] for name in keyed]
    calls = max((record["calls"] for record in records if record["case"] == KEYS), default=0)
    first = table(["CPU us a call", *CASES], times)
    return f"{first}\n\n{table([f'MB for {calls:,} keys', *MEMORY.values()], memory)}"


def _middle(records: Sequence[dict[str, Any]], name: str, case: str, what: str, shape: str) -> str:
    mine = [record for record in records if (record["decorator"], record["case"]) == (name, case)]
    values = [record[what] for record in mine if what in record]
    return shape.format(median(values)) if values else "failed" if mine else ""


def main() -> None:
    args = arguments()
    if args.markdown:
        run = load(args.json)
        text = f"Medians of {run['rounds']} rounds, measured on {describe(run['machine'])}\n\n{report(run['records'])}"
        rewrite_section(PAGE, "schedule", text)
        return
    run = {"machine": machine(), "rounds": args.rounds, "records": measure(args)}
    save(args.json, run)
    print(report(run["records"]))


def arguments() -> argparse.Namespace:
    parser = command(__doc__, "one round of ours and of no decorator, 2,000 calls and keys")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="default %(default)s")
    parser.add_argument("--calls", type=int, default=20_000, metavar="N", help="calls of a measurement (default %(default)s)")
    parser.add_argument("--keys", type=int, default=100_000, metavar="N", help="keys of the measurement of memory (default %(default)s)")
    args = parsed(parser)
    if args.quick:
        args.rounds, args.calls, args.keys = 1, 2_000, 2_000
    return args


if __name__ == "__main__":
    main()
