"""Memory and CPU time of a batch of a million items from a generator, with a fake HTTP backend.

The backend responds after one iteration of the event loop, so only the library itself is measured: reading ahead, queueing, dispatch and
results. Results are passed to ``on_result`` and not kept, so memory must not grow with the input.

    python benchmarks/memory.py --json memory.json               # about half a minute
    python benchmarks/memory.py --json memory.json --markdown    # measures nothing; writes docs/benchmarks.md from that file
    python benchmarks/memory.py --quick
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import Iterator
from typing import Any

from _command import command, load, parsed, save
from _pages import PAGE, describe, machine, rewrite_section, table
from clients._harness import Memory, Messages, conversations

from qreward import Endpoint, Limits, QRewardClient, Result, Usage
from qreward.scheduler.outcome import Answer

MODEL = "judge"
ENDPOINTS = 4
WARM_UP = 1_000
COLUMNS = {
    "items": ("items", "{:,}"),
    "us_per_item": ("us an item", "{:.1f}"),
    "rss_mb": ("RSS growth, MB", "{:.1f}"),
    "base_rss_mb": ("RSS before, MB", "{:.0f}"),
    "most_ahead": ("most items read and not done", "{:,}"),
    "failed": ("failed", "{}"),
}


class Verdict:
    """A response that is already decoded."""

    __slots__ = ("usage",)

    def __init__(self) -> None:
        self.usage: Usage | None = None

    def build(self) -> str:
        return self.text()

    def text(self) -> str:
        return "7"


class NowhereWire:
    """An HTTP backend that responds to each request after one iteration of the event loop."""

    async def send(self, endpoint: object, call: object) -> Answer:  # noqa: ARG002 - the engine's signature
        await asyncio.sleep(0)
        return Answer(Verdict())

    async def aclose(self) -> None:
        """Do nothing, because nothing is open."""


class Ledger:
    """Counts the items read and done. Each item is a new conversation, so that memory would grow if references to items were kept."""

    def __init__(self) -> None:
        self.read = self.done = self.failed = self.most_ahead = 0

    def items(self, count: int) -> Iterator[Messages]:
        (template,) = conversations(1)
        for index in range(count):
            self.read += 1
            self.most_ahead = max(self.most_ahead, self.read - self.done)
            yield [{**message, "content": f"{index}\n{message['content']}"} for message in template]

    def result(self, result: Result[Any]) -> None:
        self.done += 1
        self.failed += not result.ok


async def measure(items: int, in_flight: int, *, adaptive: bool = False) -> dict[str, Any]:
    """Run one batch of ``items`` with at most ``in_flight`` calls in flight."""
    limits = Limits(max_concurrency=max(1, in_flight // ENDPOINTS), adaptive=adaptive)
    endpoints = [Endpoint(f"http://127.0.0.1:{port}/v1", limits=limits) for port in range(1, ENDPOINTS + 1)]
    async with QRewardClient(endpoints, backend_factory=NowhereWire) as client:
        await client.batch_chat_completion(Ledger().items(WARM_UP), model=MODEL, on_result=lambda _: None, keep_results=False)
        gc.collect()
        ledger, memory, cpu = Ledger(), Memory(), time.process_time()
        await client.batch_chat_completion(ledger.items(items), model=MODEL, on_result=ledger.result, keep_results=False)
        cpu = time.process_time() - cpu
    if ledger.done != items:
        raise SystemExit(f"{ledger.done} results for {items} items")
    return {
        "items": items,
        "in_flight": in_flight,
        "us_per_item": cpu / items * 1e6,
        "rss_mb": memory.growth(),
        "base_rss_mb": memory.before,
        "most_ahead": ledger.most_ahead,
        "failed": ledger.failed,
    }


def report(run: dict[str, Any]) -> str:
    """Return the table of one run."""
    row = [shape.format(run["result"][key]) for key, (_, shape) in COLUMNS.items()]
    return table([title for title, _ in COLUMNS.values()], [row])


def main() -> None:
    args = arguments()
    if args.markdown:
        run = load(args.json)
        rewrite_section(PAGE, "memory", f"Measured on {describe(run['machine'])} {run['result']['in_flight']} in flight.\n\n{report(run)}")
        return
    run = {"machine": machine(), "result": asyncio.run(measure(args.items, args.in_flight, adaptive=args.adaptive))}
    save(args.json, run)
    print(report(run))


def arguments() -> argparse.Namespace:
    parser = command(__doc__, "20,000 items")
    parser.add_argument("--items", type=int, default=1_000_000, metavar="N", help="items of the bulk (default %(default)s)")
    parser.add_argument("--in-flight", type=int, default=512, metavar="N", help="most calls in flight (default %(default)s)")
    parser.add_argument("--adaptive", action="store_true", help="with adaptive windows, up to 64 an endpoint used from the start")
    args = parsed(parser)
    if args.quick:
        args.items = 20_000
    return args


if __name__ == "__main__":
    main()
