"""Time of a batch on a fleet in relation to its lower bound: qreward, which gets only the URLs, and other clients with hand-tuned settings.

Uses real sockets on 127.0.0.1, with a fleet of fake judges in one process and a client in another. All clients of a seed get the same
endpoints, response lengths and faults. Responses are compared with the echo of their conversations. Rejections and served requests are
counted by the servers.

    python benchmarks/makespan.py --json makespan.json                # everything: half an hour to an hour
    python benchmarks/makespan.py --json makespan.json --markdown     # measures nothing; writes docs/benchmarks.md from that file
    python benchmarks/makespan.py --fleets uneven --clients qreward openai-pull --seeds 1
    python benchmarks/makespan.py --clients litellm litellm-least-busy --requests 500 --seeds 1    # the reason for litellm's settings
    python benchmarks/makespan.py --quick                             # seconds: ours and bare aiohttp on a small fleet
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from _command import command, load, parsed, save
from _pages import PAGE, machine, rewrite_section
from _processes import ClientFailed, cores
from makespan_clients import BARE, CANDIDATES, CLIENTS, OURS, Client
from makespan_fleets import FLEETS, QUICK, Fleet
from makespan_report import section, tables
from makespan_runs import run_bulk
from overhead_clients import ENVIRONMENTS

CAP = 12.0  # a batch is stopped after this many times its lower bound


def main() -> None:
    args = arguments()
    if args.markdown:
        rewrite_section(PAGE, "makespan", section(load(args.json)))
        return
    run = facts(args)
    try:
        for record in records(args):
            run["records"].append(record)
    finally:
        save(args.json, run)
    print(tables(run))
    if failed := [record for record in run["records"] if record.get("error") or record.get("wrong")]:
        sys.exit("\n".join(f"{each['client']} on {each['fleet']}: {each.get('error') or 'wrong answers'}" for each in failed))


def facts(args: argparse.Namespace) -> dict[str, Any]:
    """Return a run without its records: all that is known before the measurements."""
    used = {client.environment for client in args.clients}
    return {
        "machine": machine(),
        "environments": {name: pins for name, pins in ENVIRONMENTS.items() if name in used},
        "options": {"seeds": list(range(1, args.seeds + 1)), "cap": args.cap, "requests": args.requests, "quick": args.quick},
        "clients": [{"name": each.name, "what": each.what, "settings": each.settings} for each in args.clients],
        "fleets": {fleet.name: fleet.title for fleet in args.fleets},
        "records": [],
    }


def records(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure by seed, then by fleet, then by client. A client that fails yields a record with ``error``."""
    for client in args.clients:
        client.python()
    for seed in range(1, args.seeds + 1):
        for fleet in args.fleets:
            for client in turned(args.clients, seed - 1):
                record = measured(fleet, client, seed, args)
                progress(record)
                yield record


def measured(fleet: Fleet, client: Client, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the record of one client on one fleet."""
    about = {"fleet": fleet.name, "client": client.name, "seed": seed}
    try:
        return about | run_bulk(client, fleet.plan(seed, args.requests), args.cap, cores())
    except ClientFailed as error:
        return about | {"error": str(error)}


def turned(clients: list[Client], places: int) -> list[Client]:
    """Return the clients, rotated by ``places``."""
    first = places % len(clients)
    return clients[first:] + clients[:first]


def progress(record: dict[str, Any]) -> None:
    what = record.get("error") or (
        f"{record['ratio']:.2f} x {record['bound_s']:.1f} s{'' if record['finished'] else ', stopped'}, {record['right']} of "
        f"{record['requests']} right, {record['lost']} lost, {record['rejected']} rejects, {record['worked']} worked on"
    )
    print(f"seed {record['seed']}, {record['fleet']}: {record['client']} {what}", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    every = {client.name: client for client in (*CLIENTS, *CANDIDATES, BARE)}
    fleets = {fleet.name: fleet for fleet in FLEETS}
    usual = [client.name for client in CLIENTS]
    parser = command(__doc__, "ours and bare aiohttp on a fleet that needs a second, one seed")
    parser.add_argument("--fleets", nargs="+", choices=fleets, default=list(fleets), metavar="NAME", help=f"of {', '.join(fleets)}")
    parser.add_argument("--clients", nargs="+", choices=every, default=usual, metavar="NAME", help=f"of {', '.join(every)}")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="how many, from 1; of lengths and faults (default %(default)s)")
    parser.add_argument("--requests", type=int, metavar="N", help="conversations of a bulk, instead of each fleet's own number")
    parser.add_argument("--cap", type=float, default=CAP, metavar="N", help="bounds after which a bulk is stopped (default %(default)g)")
    args = parsed(parser)
    args.fleets, args.clients = [fleets[name] for name in args.fleets], [every[name] for name in args.clients]
    if args.quick:
        args.fleets, args.clients, args.seeds = [QUICK], [OURS, BARE], 1
    return args


if __name__ == "__main__":
    main()
