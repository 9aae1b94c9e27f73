"""Where our client spends more CPU time than bare aiohttp: microseconds per call, or per chunk of a stream, by package.

A sampling profiler; only garbage collection is timed exactly. The running Python frame is sampled once in several milliseconds of CPU
time, so figures of a few microseconds are rough. More ``--requests`` make them more precise. Unix only.

    python benchmarks/profile_overhead.py --in-flight 512
    python benchmarks/profile_overhead.py --in-flight 512 --pause 50 --requests 1536    # the clients of streaming.py
"""

from __future__ import annotations

import argparse
import sys

from _pages import PAGE, rewrite_section, table
from _processes import Server, cores
from _rounds import Measurement, Way
from overhead import LAYOUT as CALLS
from overhead_clients import BARE, CLIENTS, Client
from streaming import LAYOUT as CHUNKS
from streaming_clients import CLIENTS as STREAMING

SMALLEST = 0.3  # microseconds; packages below it in every client are summed as "other"

Split = dict[str, float]


def main() -> None:
    args = arguments()
    way, layout = ({"delay_ms": args.delay}, CALLS) if args.pause is None else ({"pause_ms": args.pause}, CHUNKS)
    splits = {client.name: profile(client, way, args) for client in args.chosen}
    cell = layout.cell({"in_flight": args.in_flight, **way})
    text = f"us a {layout.unit}: {cell}, {args.requests} calls\n\n{profile_table(splits)}"
    print(text)
    if args.section:
        rewrite_section(PAGE, args.section, text)


def profile(client: Client, way: Way, args: argparse.Namespace) -> Split:
    """Return the microseconds per call or chunk by package for one client, in a fresh process with a fresh server."""
    client_core, server_core = cores()
    print(f"profiling {client.name}", file=sys.stderr, flush=True)
    with Server(server_core) as server:
        measurement = Measurement(client, 0, args.in_flight, args.requests, way, args.gc)
        split: Split = measurement.run(server, client_core, "--profile")["profile"]
    return split


def profile_table(splits: dict[str, Split]) -> str:
    """Return a table with a row per package, the largest first. Each client has a second column: the excess over bare."""
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
    parser.add_argument("--clients", nargs="+", metavar="NAME", help="as overhead.py or streaming.py call them (default: two of ours)")
    parser.add_argument("--in-flight", type=int, default=512, metavar="N", help="calls in flight (default %(default)s)")
    parser.add_argument("--delay", type=int, default=0, metavar="MS", help="server delay in ms (default %(default)s)")
    parser.add_argument("--pause", type=int, metavar="MS", help="of streams, with so many ms from one chunk to the next")
    parser.add_argument("--requests", type=int, default=30_000, metavar="N", help="calls in the window (default %(default)s)")
    parser.add_argument("--section", metavar="NAME", help="write it into this section of docs/benchmarks.md")
    parser.add_argument("--gc", action="store_true", help="with relaxed garbage collection")
    args = parser.parse_args()
    known = {client.name: client for client in (CLIENTS if args.pause is None else STREAMING)}
    names = args.clients or (["qreward-calls", "qreward-batch"] if args.pause is None else ["qreward-tokens", "qreward-batch"])
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no client {', '.join(unknown)}; there are {', '.join(known)}")
    args.chosen = [known[name] for name in dict.fromkeys([BARE, *names])]
    return args


if __name__ == "__main__":
    main()
