"""``qreward demo``: judges a batch of reference-answer requests on a fake fleet with limits, different speeds and a failing endpoint.

Shows progress, writes the verdicts to a file, and reports the statistics of each endpoint and the time of the batch in relation to the
lower bound for this fleet. Needs no API key and no network. Uses only the public client.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from qreward.client import QRewardClient
from qreward.errors import ConfigError
from qreward.results import BatchResult, BatchStats, Result, endpoints_table
from qreward.testing import FakeEndpoint, FakeFleet, Latency, Phase

MODEL = "judge-7b"
INPUT = Path(__file__).with_name("judge_requests.jsonl")
OUTPUT = Path("out") / "verdicts.jsonl"
HEALTHY_RATE = 125.0
"""Requests per second that the fleet can serve while all endpoints are alive."""
SLOTS = 16
"""Concurrency limit of judge-small and judge-mortal. It is not in the client's settings: the client has to learn it."""
TIMEOUT = 120.0
"""Timeout of one request in seconds, including time in the queue; many times the duration of the batch."""


class DemoRequest(msgspec.Struct, frozen=True):
    """One line of the input: the messages for the judge, and the expected verdict."""

    id: str
    messages: list[dict[str, Any]]
    expected: str
    category: str = ""


class DemoVerdict(msgspec.Struct, frozen=True):
    verdict: str
    score: float
    reason: str = ""


class DemoRow(msgspec.Struct, frozen=True):
    """One line of the output. If there is no verdict, ``verdict`` and ``score`` are None, and ``error`` is the reason."""

    id: str
    expected: str
    verdict: str | None
    score: float | None
    endpoint: str | None
    attempts: int
    latency: float
    error: str | None = None


def demo_fleet(requests: int) -> FakeFleet:
    """Three different judges: one with few slots, one with a rate limit, one that dies about half-way through ``requests``."""

    def judge(name: str, per_token: float, **limits: Any) -> FakeEndpoint:
        latency = Latency(base=0.05, per_token=per_token, tokens=200, sigma=0.3)
        return FakeEndpoint(name, models=["judge-*"], responder="judge", latency=latency, **limits)

    death = Phase(behaviour="dead", start=requests / HEALTHY_RATE / 2)
    small = judge("judge-small", 0.002, max_concurrency=SLOTS)
    limited = judge("judge-limited", 0.001, rpm=1500, burst=30, retry_after="seconds")
    mortal = judge("judge-mortal", 0.001, max_concurrency=SLOTS, phases=[death])
    return FakeFleet([small, limited, mortal], process=True)


def read_requests(path: Path) -> list[DemoRequest]:
    """Read a JSONL file. Raises a ``ConfigError`` that names the file and the invalid line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read the judge requests {str(path)!r}: {error.strerror}; name another file with --input") from None
    requests = [_request(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]
    if not requests:
        raise ConfigError(f"{str(path)!r} holds no judge requests; write one JSON object a line")
    return requests


def _request(line: bytes, path: Path, number: int) -> DemoRequest:
    try:
        return msgspec.json.decode(line, type=DemoRequest)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}, line {number}: {error}; needed are id, messages and expected") from None


def judged(request: DemoRequest, result: Result[Any]) -> DemoRow:
    verdict = score = error = None
    if result.error is not None:
        error = f"{type(result.error).__name__}: {result.error}"
    else:
        try:
            answer = msgspec.json.decode(result.text, type=DemoVerdict)
            verdict, score = answer.verdict, answer.score
        except msgspec.DecodeError as problem:
            error = f"not a verdict: {problem}"
    return DemoRow(request.id, request.expected, verdict, score, result.endpoint, len(result.attempts), round(result.latency, 4), error)


def make_output_dir(path: Path) -> None:
    """Create the folder of the output, so that an invalid path fails before the first request."""
    if path.is_dir():
        raise ConfigError(f"cannot write the verdicts to {str(path)!r}: it is a folder; name a file with --output")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write the verdicts to {str(path)!r}: {error.strerror}; name another file with --output") from None


def report(rows: Sequence[DemoRow], stats: BatchStats, bound: float) -> str:
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


async def judge_all(fleet: FakeFleet, requests: Sequence[DemoRequest]) -> tuple[BatchResult[Any], float]:
    """Judge all requests; return the results and the fleet's lower bound in seconds."""
    conversations = [request.messages for request in requests]
    async with fleet, QRewardClient(fleet.endpoints) as client:
        batch = await client.batch_chat_completion(conversations, model=MODEL, temperature=0, timeout=TIMEOUT, progress=True)
        return batch, fleet.lower_bound(conversations)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input", type=Path, default=INPUT, metavar="PATH", help="judge requests, one JSON object a line (default: those of the package)"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="PATH", help="where the verdicts go (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="judge the input N times over")


def run(args: argparse.Namespace) -> int:
    """Run the demo; 0 if each item has the expected verdict, else 1. Raises ``ConfigError``."""
    if args.repeat < 1:
        raise ConfigError(f"--repeat must be at least 1, not {args.repeat}")
    requests = read_requests(args.input) * args.repeat
    make_output_dir(args.output)
    batch, bound = asyncio.run(judge_all(demo_fleet(len(requests)), requests))
    rows = [judged(request, result) for request, result in zip(requests, batch, strict=True)]
    args.output.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    print(report(rows, batch.stats, bound))
    print(f"written       {args.output}")
    return 0 if all(row.verdict == row.expected for row in rows) else 1
