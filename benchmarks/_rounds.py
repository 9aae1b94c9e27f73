"""Benchmarks that compare clients by CPU time. Each measurement is a fresh process, and each round measures all clients in turn.

The caller decides what is measured, for how long, and how it is presented.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import _command
from _command import command, load, save
from _pages import PAGE, machine, rewrite_section
from _processes import ClientFailed, Server, cores, run_client
from _rounds_report import Layout, section, tables
from overhead_clients import BARE, ENVIRONMENTS, Client, command_line

CLIENT_TIMEOUT = 600.0  # seconds that one client process may take

Way = dict[str, int]
"""How the server responds, as arguments of ``Server.urls``: ``{"delay_ms": 200}`` or ``{"pause_ms": 50}``."""


@dataclass(frozen=True)
class Measurement:
    """One planned run of a client process."""

    client: Client
    round: int
    in_flight: int
    requests: int
    way: Way
    gc: bool

    def run(self, server: Server, core: int | None, *more: str) -> dict[str, Any]:
        """Run the client with the options ``more``; return its output and the statistics of the server. Raises ``ClientFailed``."""
        urls, pieces = server.urls(**self.way), server.chunks if "pause_ms" in self.way else 1
        wanted = command_line(urls, server.verdict, self.in_flight, self.requests, core=core, gc=self.gc, pieces=pieces)
        try:
            found = run_client(self.client.python(), self.client.script, [*wanted, *more], CLIENT_TIMEOUT)
        finally:
            seen = server.stats()
        return found | seen

    def facts(self) -> dict[str, Any]:
        """Return the fields of the record that describe the measurement."""
        return {"client": self.client.name, "round": self.round, "in_flight": self.in_flight, **self.way, "gc": self.gc}


def plan(args: argparse.Namespace, ways: Sequence[Way], requests: Callable[[Client, int, Way], int]) -> Iterator[Measurement]:
    """Yield all measurements in order: by round, then by cell, then by client. The first client changes from round to round.

    Args:
        args: the parsed arguments.
        ways: how the server responds, one for each cell.
        requests: number of calls in the measured window, for a client, a number of calls in flight, and a way.
    """
    for number in range(args.rounds):
        clients = [client for client in args.clients if client.takes_part(number)]
        turned = clients[number % len(clients) :] + clients[: number % len(clients)]
        for way in ways:
            for in_flight in args.in_flight:
                for relaxed in (False, True) if args.gc else (False,):
                    for client in turned:
                        yield Measurement(client, number, in_flight, requests(client, in_flight, way), way, relaxed)


def carry_out(args: argparse.Namespace, planned: list[Measurement], layout: Layout) -> None:
    """Measure and print, or with ``--markdown`` write the page from a file. Exits with status 1 if a client failed."""
    if args.markdown:
        rewrite_section(PAGE, args.section, section(load(args.json), layout))
        return
    used = {name: pins for name, pins in ENVIRONMENTS.items() if any(client.environment == name for client in args.clients)}
    options = {"rounds": args.rounds, "in_flight": args.in_flight, "gc": args.gc, "quick": args.quick}
    run: dict[str, Any] = {"machine": machine(), "environments": used, "options": options, "records": []}
    try:
        for record in records(planned, layout):
            run["records"].append(record)
    finally:
        save(args.json, run)
    print(tables(run, layout))
    if failed := [record for record in run["records"] if "error" in record]:
        sys.exit("\n".join(f"{record['client']}: {record['error']}" for record in failed))


def records(planned: list[Measurement], layout: Layout) -> Iterator[dict[str, Any]]:
    """Run the planned measurements. A client that fails yields a record with ``error``; the others continue."""
    for client in {measurement.client for measurement in planned}:
        client.python()
    client_core, server_core = cores()
    with Server(server_core) as server:
        for done, measurement in enumerate(planned, 1):
            try:
                record = measurement.facts() | measurement.run(server, client_core)
            except ClientFailed as error:
                record = measurement.facts() | {"error": str(error)}
            progress(f"[{done}/{len(planned)}]", record, layout)
            yield record


def progress(done: str, record: dict[str, Any], layout: Layout) -> None:
    what = record.get("error") or f"{record['cpu_us']:.1f} us a {layout.unit}"
    where = f"round {record['round']}, {layout.cell(record)}{', gc' if record['gc'] else ''}"
    print(f"{done} {where}: {record['client']} {what}", file=sys.stderr, flush=True)


def parser_of(text: str, clients: Sequence[Client], name: str, in_flight: list[int]) -> argparse.ArgumentParser:
    """Return a parser with the options that these benchmarks share. ``name`` is the section of the page."""
    names = [client.name for client in clients]
    shown = " ".join(map(str, in_flight))
    parser = command(text, "ours and bare in one short round")
    parser.add_argument("--section", default=name, metavar="NAME", help="section of the page for --markdown (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="how often all is repeated (default %(default)s)")
    only = f"these clients and {BARE}; of {', '.join(names)}"
    parser.add_argument("--clients", "--only", nargs="+", choices=names, metavar="NAME", dest="only", help=only)
    parser.add_argument("--in-flight", type=int, nargs="+", default=in_flight, metavar="N", help=f"calls in flight (default {shown})")
    parser.add_argument("--gc", action="store_true", help="also measure all with relaxed garbage collection; doubles the time")
    return parser


def parsed(parser: argparse.ArgumentParser, clients: Sequence[Client], quick: Sequence[str]) -> argparse.Namespace:
    """Return the parsed arguments, with the chosen ``clients``. ``quick`` lists the names that take part in a quick run."""
    args = _command.parsed(parser)
    chosen = {BARE, *args.only} if args.only else set(quick if args.quick else [client.name for client in clients])
    args.clients = [client for client in clients if client.name in chosen]
    if args.quick:
        args.rounds = 1
    return args
