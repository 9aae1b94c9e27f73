"""CPU time of a call of ``AsyncOpenAI`` over our transport and over the SDK's own connection pool, on httpx2 and on httpx.

Uses the same SDK in the same environment, with the server and the conversations of the overhead benchmark; with ``--streamed`` those
of the streaming benchmark, and the CPU time of a chunk. Each measurement is a fresh process, and each round measures all clients in turn.

    python benchmarks/drop_in.py --json drop_in.json                  # a few minutes
    python benchmarks/drop_in.py --json drop_in.json --markdown       # measures nothing; writes docs/benchmarks.md from that file
    python benchmarks/drop_in.py --streamed --json streamed.json      # the same for streams, about ten minutes
    python benchmarks/drop_in.py --quick                              # seconds: httpx2 only
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import overhead
import streaming
from _rounds import Way, carry_out, parsed, parser_of, plan
from overhead_clients import Client

POOL, OLDER_POOL = "pool-httpx2", "pool-httpx"
CLIENTS = (
    Client(POOL, "drop_in_pool_httpx2.py", cost=1800),
    Client("qreward-httpx2", "drop_in_httpx2.py", cost=1000),
    Client(OLDER_POOL, "drop_in_pool_httpx.py", cost=1800),
    Client("qreward-httpx", "drop_in_httpx.py", cost=1000),
)
QUICK = (POOL, "qreward-httpx2")
QUICK_REQUESTS = 32
PAUSE = 50
SECTION = "drop-in"
REFERENCES = {POOL: "{:.3f}", OLDER_POOL: "{:.3f}"}
LAYOUTS = {streamed: replace(room.LAYOUT, references=REFERENCES) for streamed, room in ((False, overhead), (True, streaming))}


def main() -> None:
    args = arguments()

    def requests(client: Client, in_flight: int, way: Way) -> int:
        if args.quick:
            return QUICK_REQUESTS
        return streaming.streams(client, in_flight, way) if args.streamed else client.requests(in_flight, **way)

    way = {"pause_ms": streaming.QUICK_PAUSE if args.quick else PAUSE} if args.streamed else {"delay_ms": 0}
    carry_out(args, list(plan(args, [way], requests)), LAYOUTS[args.streamed])


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__ or "", CLIENTS, SECTION, [64, 512])
    parser.add_argument("--streamed", action="store_true", help="read the answers as streams")
    args = parsed(parser, CLIENTS, QUICK)
    if args.streamed and args.section == SECTION:
        args.section = f"{SECTION}-streamed"
    if args.quick:
        args.in_flight = [streaming.QUICK_IN_FLIGHT]
    return args


if __name__ == "__main__":
    main()
