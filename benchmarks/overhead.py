"""Client CPU time per chat call: qreward, bare aiohttp, the openai SDK, litellm and QReward 0.1.7, with the same server in the same run.

Each measurement is a fresh process. The rounds interleave all clients, and ratios are computed within a round. The other libraries get
environments of their own, which are installed from PyPI on the first run.

    python benchmarks/overhead.py --json overhead.json               # the whole table, about a quarter of an hour
    python benchmarks/overhead.py --json overhead.json --markdown    # measures nothing; writes docs/benchmarks.md from that file
    python benchmarks/overhead.py --only qreward-batch --in-flight 512 --delay 0 --rounds 7
    python benchmarks/overhead.py --quick                            # seconds: ours and bare only
"""

from __future__ import annotations

import argparse

from _rounds import Way, carry_out, parsed, parser_of, plan
from _rounds_report import Layout
from overhead_clients import BARE, CLIENTS, QUICK, YARDSTICK, Client

QUICK_REQUESTS = 256
LAYOUT = Layout("call", "in flight", "delay_ms", "ms server delay", {BARE: "{:.2f}", YARDSTICK: "{:.3f}"})


def main() -> None:
    args = arguments()

    def requests(client: Client, in_flight: int, way: Way) -> int:
        return QUICK_REQUESTS if args.quick else client.requests(in_flight, **way)

    carry_out(args, list(plan(args, [{"delay_ms": delay} for delay in args.delay], requests)), LAYOUT)


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__ or "", CLIENTS, "overhead", [64, 512, 2048])
    parser.add_argument("--delay", type=int, nargs="+", default=[0, 200], metavar="MS", help="server delay in ms (default 0 200)")
    args = parsed(parser, CLIENTS, QUICK)
    if args.quick:
        args.in_flight, args.delay = [64], [0]
    return args


if __name__ == "__main__":
    main()
