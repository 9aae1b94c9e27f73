"""``qreward demo``: judge a bulk of reference-answer requests over a fake fleet that limits, slows down and dies.

Shows what a caller would see: progress, verdicts in a file, what each endpoint did, and how near the bulk came to the
shortest time this fleet allows. It needs no key and no network, and knows nothing below the client.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from qreward.client import QRewardClient
from qreward.errors import ConfigError
from qreward.results import BatchResult, BatchStats, Result, endpoints_table
from qreward.testing import FakeEndpoint, FakeFleet, Latency, Phase

MODEL = "judge-7b"
INPUT = Path(__file__).with_name("judge_requests.jsonl")
OUTPUT = Path("out") / "verdicts.jsonl"
HEALTHY_RATE = 125.0
"""Requests a second that the fleet can answer while all of it lives."""
SLOTS = 16
"""Requests at once that judge-small and judge-mortal take. The client is told no limits: it finds out."""
TIMEOUT = 120.0
"""Seconds one request may take, queueing included; many times what the bulk takes."""


class JudgeRequest(msgspec.Struct, frozen=True):
    """One line of the input: a conversation with the judge, and the verdict it should end in."""

    id: str
    messages: list[dict[str, Any]]
    expected: str
    category: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """What a judge answers."""

    verdict: str
    score: float
    reason: str = ""


class Judged(msgspec.Struct, frozen=True):
    """One line of the output. ``verdict`` and ``score`` are None where there is none, and ``error`` says why."""

    id: str
    expected: str
    verdict: str | None
    score: float | None
    endpoint: str | None
    attempts: int
    latency: float
    error: str | None = None


class Progress:
    """One line about a running bulk: rewritten in place on a terminal, else a plain line every few seconds.

    Args:
        total: items of the bulk.
        stream: where the lines go.
        clock: seconds, monotonic.
    """

    def __init__(self, total: int, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._total = total
        self._stream = stream
        self._clock = clock
        self._terminal = stream.isatty()
        self._every = 0.1 if self._terminal else 3.0
        self._started = self._shown = clock()
        self._done = self._failed = 0

    def __call__(self, result: Result[Any]) -> None:
        """Count an item that has ended."""
        self._done += 1
        self._failed += not result.ok
        now = self._clock()
        if now - self._shown >= self._every or self._done == self._total:
            self._shown = now
            self._show(now - self._started)

    def _show(self, seconds: float) -> None:
        rate = self._done / seconds if seconds > 0 else 0.0
        line = f"judged {self._done}/{self._total}, {self._failed} failed, {seconds:.1f} s, {rate:.0f}/s"
        last = self._done == self._total
        self._stream.write(f"\r{line:<60}" + "\n" * last if self._terminal else line + "\n")
        self._stream.flush()


def demo_fleet(requests: int) -> FakeFleet:
    """Three uneven judges: one with few slots, one limited by the minute, one that dies half-way through so many requests."""
    judge: dict[str, Any] = {"models": ["judge-*"], "responder": "judge"}
    few = FakeEndpoint("judge-small", **judge, max_concurrency=SLOTS, latency=_latency(0.002))
    limited = FakeEndpoint("judge-limited", **judge, rpm=1500, burst=30, retry_after="seconds", latency=_latency(0.001))
    death = Phase(behaviour="dead", start=requests / HEALTHY_RATE / 2)
    mortal = FakeEndpoint("judge-mortal", **judge, max_concurrency=SLOTS, phases=[death], latency=_latency(0.001))
    return FakeFleet([few, limited, mortal], process=True)


def _latency(per_token: float) -> Latency:
    return Latency(base=0.05, per_token=per_token, tokens=200, sigma=0.3)


def read_requests(path: Path) -> list[JudgeRequest]:
    """The requests of a JSONL file. Raises ``ConfigError`` that names the file and the line that is wrong."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read the judge requests {str(path)!r}: {error.strerror}; name another file with --input") from None
    requests = [_request(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]
    if not requests:
        raise ConfigError(f"{str(path)!r} holds no judge requests; write one JSON object a line")
    return requests


def _request(line: bytes, path: Path, number: int) -> JudgeRequest:
    try:
        return msgspec.json.decode(line, type=JudgeRequest)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}, line {number}: {error}; needed are id, messages and expected") from None


def judged(request: JudgeRequest, result: Result[Any]) -> Judged:
    """What became of one request."""
    verdict, error = None, None
    try:
        verdict = msgspec.json.decode(result.text, type=Verdict) if result.ok else None
        error = f"{type(result.error).__name__}: {result.error}" if result.error is not None else None
    except msgspec.DecodeError as problem:
        error = f"not a verdict: {problem}"
    return Judged(
        id=request.id,
        expected=request.expected,
        verdict=verdict.verdict if verdict else None,
        score=verdict.score if verdict else None,
        endpoint=result.endpoint,
        attempts=len(result.attempts),
        latency=round(result.latency, 4),
        error=error,
    )


def make_room(path: Path) -> None:
    """Make the folder of the output, so that a bad path fails before anything is judged. Raises ``ConfigError``."""
    if path.is_dir():
        raise ConfigError(f"cannot write the verdicts to {str(path)!r}: it is a folder; name a file with --output")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write the verdicts to {str(path)!r}: {error.strerror}; name another file with --output") from None


def write_lines(path: Path, rows: Sequence[Judged]) -> None:
    """Write the file whole or not at all: a reader never sees half of it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def report(rows: Sequence[Judged], stats: BatchStats, bound: float) -> str:
    """The table, how many verdicts agree, and the bulk's time against the fleet's bound."""
    agree = sum(row.verdict == row.expected for row in rows)
    missing = sum(row.verdict is None for row in rows)
    return "\n".join(
        (
            endpoints_table(stats.endpoints),
            "",
            f"verdicts      {agree} of {len(rows)} as expected, {len(rows) - agree - missing} wrong, {missing} missing",
            f"bulk          {stats.seconds:.2f} s",
            f"lower bound   {bound:.2f} s (no scheduler can beat it, not even one that knows each answer's length beforehand)",
            f"ratio         {stats.seconds / bound:.2f}",
        )
    )


async def judge_all(fleet: FakeFleet, requests: Sequence[JudgeRequest], progress: Progress) -> tuple[BatchResult[Any], float]:
    """The bulk's results and the fleet's lower bound in seconds."""
    conversations = [request.messages for request in requests]
    async with fleet, QRewardClient(fleet.endpoints) as client:
        batch = await client.batch_chat_completion(conversations, model=MODEL, temperature=0, timeout=TIMEOUT, on_result=progress)
        return batch, fleet.lower_bound(conversations)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what ``qreward demo`` can be told."""
    parser.add_argument(
        "--input", type=Path, default=INPUT, metavar="PATH", help="judge requests, one JSON object a line (default: those of the package)"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="PATH", help="where the verdicts go (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="judge the input N times over")


def run(args: argparse.Namespace) -> int:
    """Run the demo; 0 if each item has the verdict that was expected, else 1. Raises ``ConfigError``."""
    if args.repeat < 1:
        raise ConfigError(f"--repeat must be at least 1, not {args.repeat}")
    requests = read_requests(args.input) * args.repeat
    make_room(args.output)
    logging.basicConfig(format="\r%(message)s" if sys.stderr.isatty() else "%(message)s")  # over the progress line, not behind it
    batch, bound = asyncio.run(judge_all(demo_fleet(len(requests)), requests, Progress(len(requests), sys.stderr)))
    rows = [judged(request, result) for request, result in zip(requests, batch, strict=True)]
    write_lines(args.output, rows)
    print(report(rows, batch.stats, bound))
    print(f"written       {args.output}")
    return 0 if all(row.verdict == row.expected for row in rows) else 1
