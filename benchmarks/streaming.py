"""Client CPU time per chunk of a streamed chat: qreward, bare aiohttp, the openai SDK and litellm, with the same server in the same run.

A stream is 100 chunks of about 250 bytes, each in a write of its own. The server pauses between two chunks, 50 ms by default, so that
each chunk arrives as a separate read, as tokens do. With ``--pause 0`` a whole stream is one write, and only the work on the chunks is
measured. All texts are joined and compared; a client that loses a chunk fails the run.

    python benchmarks/streaming.py --json streaming.json               # the whole table, about half an hour
    python benchmarks/streaming.py --json streaming.json --markdown    # measures nothing; writes docs/benchmarks.md from that file
    python benchmarks/streaming.py --clients qreward-tokens --in-flight 512 --rounds 7
    python benchmarks/streaming.py --quick                             # seconds: ours and bare only
"""

from __future__ import annotations

import argparse

from _rounds import Way, carry_out, parsed, parser_of, plan
from _rounds_report import Layout
from overhead_clients import BARE, YARDSTICK, Client
from streaming_clients import CLIENTS, QUICK, SDK

FEWEST = 128  # streams in a measured window
FEWEST_WHOLE = 1024  # streams in a measured window if a stream is one write
QUICK_IN_FLIGHT, QUICK_PAUSE = 16, 1
LAYOUT = Layout("chunk", "streams", "pause_ms", "ms between chunks", {BARE: "{:.2f}", YARDSTICK: "{:.3f}", SDK: "{:.3f}"})


def main() -> None:
    args = arguments()
    carry_out(args, list(plan(args, [{"pause_ms": pause} for pause in args.pause], streams)), LAYOUT)


def streams(_client: Client, in_flight: int, way: Way) -> int:
    """Return the number of streams in a measured window: a multiple of ``in_flight``."""
    fewest = FEWEST if way["pause_ms"] else FEWEST_WHOLE
    return in_flight * max(1, round(fewest / in_flight))


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__ or "", CLIENTS, "streaming", [64, 512])
    parser.add_argument("--pause", type=int, nargs="+", default=[50], metavar="MS", help="from one chunk to the next (default 50)")
    args = parsed(parser, CLIENTS, QUICK)
    if args.quick:
        args.in_flight, args.pause = [QUICK_IN_FLIGHT], [QUICK_PAUSE]
    return args


if __name__ == "__main__":
    main()
