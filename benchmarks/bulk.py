"""Bulk runs from files: the cost of a line, the time until a stopped run continues, and memory.

    python benchmarks/bulk.py --json bulk.json                # all parts; about ten minutes
    python benchmarks/bulk.py --json bulk.json --markdown     # measures nothing; writes docs/benchmarks.md from that file
    python benchmarks/bulk.py --quick
    python benchmarks/bulk.py --only resume --lines 10000000  # one part

Parts: ``journal`` compares the journal with SQLite (CPU time); ``throughput`` compares a run with ``batch_chat_completion`` of the same
conversations from memory, on the same server (wall time); ``resume`` stops a run after nine tenths of its lines and measures the
next one until its first request, with an HTTP backend that responds at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _command import command, load, parsed, save
from _pages import PAGE, describe, machine, rewrite_section, table
from _processes import Server, cores
from clients._harness import conversations

from qreward import Endpoint, Limits, QRewardClient, Usage
from qreward.bulk.journal import Journal
from qreward.codecs.chat import ChatAnswer
from qreward.scheduler.outcome import Answer

MODEL = "judge"
BODY = json.dumps(
    {
        "id": "x",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "7" * 600}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 300, "completion_tokens": 150, "total_tokens": 450},
    }
).encode()
ENDPOINTS, SLOTS = 4, 64
DELAY = 200
"""Milliseconds until the server answers. With 20, the CPU time limits the throughput, and not the fleet."""
COMMIT = 500
"""Number of lines in one transaction of SQLite, in the comparison that does not use one transaction per line."""


class AtOnce:
    """An HTTP backend that responds to each request after one iteration of the event loop.

    Attributes:
        first: time of the first request on the monotonic clock.
    """

    first: float | None = None

    async def send(self, endpoint: object, call: object) -> Answer:  # noqa: ARG002 - the engine's signature
        if AtOnce.first is None:
            AtOnce.first = time.monotonic()
        await asyncio.sleep(0)
        return Answer(ChatAnswer(BODY, MODEL, "7", Usage(300, 150, 450), "stop"), 300, 150)

    async def aclose(self) -> None:
        """Do nothing, because nothing is open."""


def lines(count: int) -> Iterator[dict[str, Any]]:
    (template,) = conversations(1)
    for index in range(count):
        messages = [{**message, "content": f"{index}\n{message['content']}"} for message in template]
        yield {"custom_id": f"id-{index}", "method": "POST", "url": "/v1/chat/completions", "body": {"model": MODEL, "messages": messages}}


def write_input(path: Path, count: int) -> Path:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines(count))
    return path


# journal


def journal_of_ours(folder: Path, count: int, result: bytes) -> None:
    journal = Journal(folder / "journal", {})
    for ordinal in range(count):
        journal.start(ordinal)
        journal.finish(ordinal, result, ok=True)
    journal.close()


def journal_in_sqlite(folder: Path, count: int, result: bytes, each: int) -> None:
    """Write the same records with SQLite: two statements a line, in transactions of ``each`` lines."""
    path = folder / f"journal-{each}.sqlite"
    base = sqlite3.connect(path, isolation_level=None)
    base.execute("PRAGMA journal_mode=WAL")
    base.execute("PRAGMA synchronous=NORMAL")  # a committed transaction has reached the operating system, as a record of ours has
    base.execute("CREATE TABLE lines (ordinal INTEGER PRIMARY KEY, digest INTEGER, state INTEGER, result BLOB)")
    for begin in range(0, count, each):
        ordinals = range(begin, min(begin + each, count))
        base.execute("BEGIN")
        base.executemany("INSERT OR REPLACE INTO lines VALUES (?, ?, 0, NULL)", [(ordinal, ordinal) for ordinal in ordinals])
        base.execute("COMMIT")  # before the requests are sent
        base.execute("BEGIN")
        base.executemany("UPDATE lines SET state = 1, result = ? WHERE ordinal = ?", [(result, ordinal) for ordinal in ordinals])
        base.execute("COMMIT")
    base.close()


def measure_journal(folder: Path, count: int, rounds: int) -> dict[str, float]:
    ways: dict[str, Callable[[Path], None]] = {
        "ours": lambda place: journal_of_ours(place, count, BODY),
        "SQLite, a transaction per line": lambda place: journal_in_sqlite(place, count, BODY, 1),
        f"SQLite, a transaction per {COMMIT} lines": lambda place: journal_in_sqlite(place, count, BODY, COMMIT),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            with tempfile.TemporaryDirectory(dir=folder) as place:
                begin = time.process_time()
                way(Path(place))
                found[name].append((time.process_time() - begin) / count * 1e6)
    return {name: statistics.median(each) for name, each in found.items()}


# throughput


async def measure_throughput(folder: Path, count: int, rounds: int) -> dict[str, Any]:
    source = write_input(folder / "in.jsonl", count)
    conversation = [line["body"]["messages"] for line in lines(count)]
    memory, file = [], []
    limits = Limits(max_concurrency=SLOTS, adaptive=False)
    with Server(core=cores()[1]) as server:
        endpoints = [Endpoint(url, limits=limits) for url in server.urls(DELAY)]
        async with QRewardClient(endpoints) as client:
            for number in range(rounds):
                begin = time.monotonic()
                await client.batch_chat_completion(conversation, model=MODEL, on_result=_ignore, keep_results=False)
                memory.append(time.monotonic() - begin)
                begin = time.monotonic()
                report = await client.run(source, folder / f"out-{number}.jsonl")
                file.append(time.monotonic() - begin)
                if report.done != count or report.failed:
                    raise SystemExit(str(report))
    bound = count * DELAY / 1000 / (ENDPOINTS * SLOTS)
    return {"lines": count, "bound": bound, "memory": statistics.median(memory), "file": statistics.median(file)}


def _ignore(_: object) -> None:
    """Ignore a result."""


# resume


def _memory() -> float:
    """Return the memory of this process in MB, without the content of files."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


async def measure_resume(folder: Path, count: int) -> dict[str, float]:
    source, output = write_input(folder / "in.jsonl", count), folder / "out.jsonl"
    limits = Limits(max_concurrency=SLOTS, adaptive=False)
    endpoints = [Endpoint(f"http://127.0.0.1:{port}/v1", limits=limits) for port in range(1, ENDPOINTS + 1)]
    async with QRewardClient(endpoints, backend_factory=AtOnce) as client:
        before = _memory()
        cpu = time.process_time()
        await client.run(source, output, sample=count * 9 // 10)
        cpu = (time.process_time() - cpu) / (count * 9 // 10) * 1e6
        AtOnce.first, begin = None, time.monotonic()
        report = await client.run(source, output)
        assert AtOnce.first is not None
    if (report.done, report.failed, report.sent) != (count, 0, count - count * 9 // 10):
        raise SystemExit(str(report))
    return {"lines": count, "seconds": AtOnce.first - begin, "memory_mb": _memory() - before, "us_per_line": cpu}


# report


def report(run: dict[str, Any]) -> str:
    parts = []
    if found := run.get("journal"):
        rows = [[name, f"{cost:.1f}"] for name, cost in found.items()]
        parts.append(table(["journal, sent and done", "CPU us a line"], rows))
    if found := run.get("throughput"):
        rows = [
            [name, f"{found[key]:.2f}", f"{found['memory'] / found[key]:.3f}", f"{found[key] / found['bound']:.3f}"]
            for name, key in (("batch_chat_completion from memory", "memory"), ("client.run from a file", "file"))
        ]
        parts.append(table([f"{found['lines']:,} lines", "seconds", "throughput", "over bound"], rows))
    if found := run.get("resume"):
        row = [f"{found['lines']:,}", f"{found['seconds']:.2f}", f"{found['memory_mb']:.0f}", f"{found['us_per_line']:.1f}"]
        parts.append(table(["lines, of which 9/10 are done", "s until the first request", "memory, MB", "CPU us a line"], [row]))
    return "\n\n".join(parts)


def main() -> None:
    args = arguments()
    if args.markdown:
        run = load(args.json)
        rewrite_section(PAGE, "bulk", f"Measured on {describe(run['machine'])}\n\n{report(run)}")
        return
    run = {"machine": machine()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "journal" in args.only:
            run["journal"] = measure_journal(folder, args.lines // 20, args.rounds)
        if "throughput" in args.only:
            run["throughput"] = asyncio.run(measure_throughput(folder, args.lines // 25, args.rounds))
        if "resume" in args.only:
            run["resume"] = asyncio.run(measure_resume(folder, args.lines))
    save(args.json, run)
    print(report(run))


PARTS = ("journal", "throughput", "resume")


def arguments() -> argparse.Namespace:
    parser = command(__doc__, "5,000 lines, one round")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts (default: all)")
    parser.add_argument("--lines", type=int, default=1_000_000, metavar="N", help="lines of the input (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of journal and throughput (default %(default)s)")
    args = parsed(parser)
    if args.quick:
        args.lines, args.rounds = 5_000, 1
    return args


if __name__ == "__main__":
    main()
