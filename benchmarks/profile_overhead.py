"""Where our client spends CPU time over bare aiohttp: microseconds a call by package, sampled, with garbage collection timed exactly.

A sample is one look at the running Python frame in some milliseconds of CPU time, so shares of a few microseconds are rough;
more ``--requests`` make them finer. Unix only.

    python benchmarks/profile_overhead.py --in-flight 512
"""

from __future__ import annotations

import argparse
import sys

from _pages import PAGE, rewrite_section, table
from _processes import Server, cores, run_client
from overhead_clients import BARE, CLIENTS, command_line

SMALLEST = 0.3  # microseconds; packages below it in every client are added up as "other"
TIMEOUT = 600.0  # seconds that one client process may take

Split = dict[str, float]


def main() -> None:
    args = arguments()
    splits = {name: profile(name, args) for name in dict.fromkeys([BARE, *args.clients])}
    text = f"us a call: {args.in_flight} in flight, {args.delay} ms server delay, {args.requests} calls\n\n{profile_table(splits)}"
    print(text)
    if args.section:
        rewrite_section(PAGE, args.section, text)


def profile(name: str, args: argparse.Namespace) -> Split:
    """Package -> microseconds a call of one client, in a fresh process and with a fresh server."""
    client = next(client for client in CLIENTS if client.name == name)
    client_core, server_core = cores()
    print(f"profiling {name}", file=sys.stderr, flush=True)
    with Server(server_core) as server:
        wanted = command_line(server.urls(args.delay), server.verdict, args.in_flight, args.requests, core=client_core, gc=args.gc)
        split: Split = run_client(client.python(), client.script, [*wanted, "--profile"], TIMEOUT)["profile"]
    return split


def profile_table(splits: dict[str, Split]) -> str:
    """A row a package, largest first, then the rest and the sum; after each client's column, what it is over bare."""
    largest = {package: max(split.get(package, 0.0) for split in splits.values()) for split in splits.values() for package in split}
    shown = sorted((package for package, most in largest.items() if most >= SMALLEST), key=lambda package: -largest[package])
    rows = [(package, {name: split.get(package, 0.0) for name, split in splits.items()}) for package in shown]
    rest = {name: sum(split.values()) - sum(split.get(package, 0.0) for package in shown) for name, split in splits.items()}
    rows += [("other", rest), ("all", {name: sum(split.values()) for name, split in splits.items()})]
    others = [name for name in splits if name != BARE]
    head = ["package", BARE, *(text for name in others for text in (name, "over bare"))]
    return table(head, [[package, *figures(row, others)] for package, row in rows])


def figures(row: Split, others: list[str]) -> list[str]:
    return [f"{row[BARE]:.1f}", *(text for name in others for text in (f"{row[name]:.1f}", f"{row[name] - row[BARE]:+.1f}"))]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", nargs="+", choices=[client.name for client in CLIENTS], default=["qreward-calls", "qreward-batch"])
    parser.add_argument("--in-flight", type=int, default=512, metavar="N", help="calls in flight (default %(default)s)")
    parser.add_argument("--delay", type=int, default=0, metavar="MS", help="server delay in ms (default %(default)s)")
    parser.add_argument("--requests", type=int, default=30_000, metavar="N", help="calls in the window (default %(default)s)")
    parser.add_argument("--section", metavar="NAME", help="write it into this section of docs/benchmarks.md")
    parser.add_argument("--gc", action="store_true", help="with relaxed garbage collection")
    return parser.parse_args()


if __name__ == "__main__":
    main()
