"""CPU time that a chat call costs the client: ours, bare aiohttp, the openai SDK, litellm and QReward 0.1.7, same server, same run.

Each measurement is a fresh process; the rounds interleave all clients, and ratios are paired within a round. Peers get
environments of their own, made from PyPI the first time.

    python benchmarks/overhead.py --json overhead.json               # the whole table, about a quarter of an hour
    python benchmarks/overhead.py --json overhead.json --markdown    # nothing is measured: docs/benchmarks.md from that file
    python benchmarks/overhead.py --only qreward-batch --in-flight 512 --delay 0 --rounds 7
    python benchmarks/overhead.py --quick                            # seconds: ours and bare only
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _pages import PAGE, machine, rewrite_section
from _processes import ClientFailed, Server, cores, run_client
from overhead_clients import BARE, CLIENTS, ENVIRONMENTS, QUICK, Client, command_line
from overhead_report import section, tables

CLIENT_TIMEOUT = 300.0  # seconds that one client process may take
QUICK_REQUESTS = 256


@dataclass(frozen=True)
class Measurement:
    """One client process that is to be run."""

    client: Client
    round: int
    in_flight: int
    delay_ms: int
    gc: bool
    requests: int

    def run(self, server: Server, core: int | None) -> dict[str, Any]:
        """What the client process printed, with what the server saw. Raises ``ClientFailed``."""
        wanted = command_line(server.urls(self.delay_ms), server.verdict, self.in_flight, self.requests, core=core, gc=self.gc)
        try:
            found = run_client(self.client.python(), self.client.script, wanted, CLIENT_TIMEOUT)
        finally:
            seen = server.stats()
        return found | seen

    def facts(self) -> dict[str, Any]:
        """What the record says of it."""
        return {"client": self.client.name, "round": self.round, "in_flight": self.in_flight, "delay_ms": self.delay_ms, "gc": self.gc}


def main() -> None:
    args = arguments()
    if args.markdown:
        run = json.loads(args.json.read_text(encoding="utf-8"))
        rewrite_section(PAGE, args.section, section(run))
        return
    run = {"machine": machine(), "environments": used_environments(args), "options": options(args), "records": []}
    try:
        for record in records(list(plan(args))):
            run["records"].append(record)
    finally:
        if args.json:
            args.json.write_text(json.dumps(run, indent=1), encoding="utf-8")
    print(tables(run))
    if failed := [record for record in run["records"] if "error" in record]:
        sys.exit("\n".join(f"{record['client']}: {record['error']}" for record in failed))


def plan(args: argparse.Namespace) -> Iterator[Measurement]:
    """All measurements in order: round by round, in each round cell by cell, in each cell all clients, started in turn."""
    for number in range(args.rounds):
        clients = [client for client in args.clients if client.takes_part(number)]
        turned = clients[number % len(clients) :] + clients[: number % len(clients)]
        for delay in args.delay:
            for in_flight in args.in_flight:
                for relaxed in (False, True) if args.gc else (False,):
                    for client in turned:
                        requests = QUICK_REQUESTS if args.quick else client.requests(in_flight, delay)
                        yield Measurement(client, number, in_flight, delay, relaxed, requests)


def records(planned: list[Measurement]) -> Iterator[dict[str, Any]]:
    """Carry out the plan. A client that fails leaves a record with ``error``; the others go on."""
    for client in {measurement.client for measurement in planned}:
        client.python()
    client_core, server_core = cores()
    with Server(server_core) as server:
        for done, measurement in enumerate(planned, 1):
            try:
                record = measurement.facts() | measurement.run(server, client_core)
            except ClientFailed as error:
                record = measurement.facts() | {"error": str(error)}
            progress(done, len(planned), record)
            yield record


def progress(done: int, planned: int, record: dict[str, Any]) -> None:
    what = record.get("error") or f"{record['cpu_us']:.0f} us"
    where = f"round {record['round']}, {record['in_flight']} in flight, {record['delay_ms']} ms{', gc' if record['gc'] else ''}"
    print(f"[{done}/{planned}] {where}: {record['client']} {what}", file=sys.stderr, flush=True)


def used_environments(args: argparse.Namespace) -> dict[str, Any]:
    return {name: pins for name, pins in ENVIRONMENTS.items() if any(client.environment == name for client in args.clients)}


def options(args: argparse.Namespace) -> dict[str, Any]:
    return {"rounds": args.rounds, "in_flight": args.in_flight, "delay_ms": args.delay, "gc": args.gc, "quick": args.quick}


def arguments() -> argparse.Namespace:
    names = [client.name for client in CLIENTS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--section", default="overhead", metavar="NAME", help="section of the page for --markdown (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="how often all is repeated (default %(default)s)")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"these clients and {BARE}; of {', '.join(names)}")
    parser.add_argument(
        "--in-flight", type=int, nargs="+", default=[64, 512, 2048], metavar="N", help="calls in flight (default 64 512 2048)"
    )
    parser.add_argument("--delay", type=int, nargs="+", default=[0, 200], metavar="MS", help="server delay in ms (default 0 200)")
    parser.add_argument("--gc", action="store_true", help="also measure all with relaxed garbage collection; doubles the time")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the raw records there")
    parser.add_argument("--markdown", action="store_true", help="measure nothing; write docs/benchmarks.md from the file of --json")
    parser.add_argument("--quick", action="store_true", help="ours and bare, 64 in flight, no delay, one short round")
    args = parser.parse_args()
    if args.markdown and not args.json:
        parser.error("--markdown needs --json PATH, the file to read")
    if args.quick:
        args.rounds, args.in_flight, args.delay = 1, [64], [0]
    chosen = {BARE, *args.only} if args.only else set(QUICK if args.quick else names)
    args.clients = [client for client in CLIENTS if client.name in chosen]
    return args


if __name__ == "__main__":
    main()
