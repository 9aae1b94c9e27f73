"""``qreward demo`` judges a batch of answers on a fleet of fake judges; ``qreward fleet`` runs such a fleet until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from qreward.errors import ConfigError
from qreward.results import BatchStats, Result, endpoints_table
from qreward.sync_client import SyncQRewardClient
from qreward.testing import FakeEndpoint, FakeFleet, Latency, Phase

MODEL = "judge-7b"
INPUT = Path(__file__).with_name("judge_requests.jsonl")
OUTPUT = Path("out") / "verdicts.jsonl"
HEALTHY_RATE = 125.0
"""Requests per second that the fleet can serve while all endpoints are alive."""
SLOTS = 16
"""Maximum number of concurrent requests at judge-small, and at judge-mortal. The client's settings do not contain this number: the
client has to learn it."""
TIMEOUT = 120.0
"""Timeout of one request in seconds, including time in the queue. The timeout is many times as long as the whole batch takes."""


class DemoVerdict(msgspec.Struct, frozen=True):
    verdict: str
    score: float
    reason: str = ""


def demo_fleet(requests: int) -> FakeFleet:
    def judge(name: str, per_token: float, **limits: Any) -> FakeEndpoint:
        latency = Latency(base=0.05, per_token=per_token, tokens=200, sigma=0.3)
        return FakeEndpoint(name, models=["judge-*"], responder="judge", latency=latency, **limits)

    death = Phase(behaviour="dead", start=requests / HEALTHY_RATE / 2)
    small = judge("judge-small", 0.002, max_concurrency=SLOTS)
    limited = judge("judge-limited", 0.001, rpm=1500, burst=30, retry_after="seconds")
    mortal = judge("judge-mortal", 0.001, max_concurrency=SLOTS, phases=[death])
    return FakeFleet([small, limited, mortal], process=True)


def row_of(request: Mapping[str, Any], result: Result[Any]) -> dict[str, Any]:
    """Return one line of the output. If there is no verdict, ``verdict`` and ``score`` are None, and ``error`` is the reason."""
    verdict = score = error = None
    if result.error is not None:
        error = f"{type(result.error).__name__}: {result.error}"
    else:
        try:
            answer = msgspec.json.decode(result.text, type=DemoVerdict)
            verdict, score = answer.verdict, answer.score
        except msgspec.DecodeError as problem:
            error = f"not a verdict: {problem}"
    found = {"id": request["id"], "expected": request["expected"], "verdict": verdict, "score": score, "endpoint": result.endpoint}
    return {**found, "attempts": len(result.attempts), "latency": round(result.latency, 4), "error": error}


def report(rows: Sequence[dict[str, Any]], stats: BatchStats) -> str:
    agree = sum(row["verdict"] == row["expected"] for row in rows)
    missing = sum(row["verdict"] is None for row in rows)
    return "\n".join(
        (
            endpoints_table(stats.endpoints),
            "",
            f"verdicts      {agree} of {len(rows)} as expected, {len(rows) - agree - missing} wrong, {missing} missing",
            f"bulk          {stats.seconds:.2f} s",
        )
    )


def add_demo(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=demo)
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="PATH", help="file for the verdicts (default: %(default)s)")


def demo(args: argparse.Namespace) -> int:
    """Run the demo. Returns 0 if each item has the expected verdict, else 1. Raises ``ConfigError`` if the output cannot be written."""
    requests = [msgspec.json.decode(line) for line in INPUT.read_bytes().splitlines()]
    try:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        output = args.output.open("wb")
    except OSError as error:
        raise ConfigError(f"cannot write the verdicts to {str(args.output)!r}: {error.strerror}; name another file with --output") from None
    with output:
        with demo_fleet(len(requests)) as fleet, SyncQRewardClient(fleet.endpoints) as client:
            conversations = [request["messages"] for request in requests]
            batch = client.batch_chat_completion(conversations, model=MODEL, temperature=0, timeout=TIMEOUT, progress=True)
        rows = [row_of(request, result) for request, result in zip(requests, batch, strict=True)]
        output.writelines(msgspec.json.encode(row) + b"\n" for row in rows)
    print(report(rows, batch.stats))
    print(f"written       {args.output}")
    return 0 if all(row["verdict"] == row["expected"] for row in rows) else 1


def add_fleet(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=fleet)
    parser.add_argument(
        "spec", metavar="SPEC", help="file with the endpoints (.yaml, .json or .toml), as qreward.testing.FakeEndpoint describes them"
    )


def fleet(args: argparse.Namespace) -> int:
    """Run the fleet until a signal arrives. Raises ``ConfigError`` for an invalid spec or a port that is taken."""
    running, stop = FakeFleet(args.spec), threading.Event()
    try:
        with running:
            for each in (signal.SIGINT, signal.SIGTERM):
                signal.signal(each, lambda *_: stop.set())
            ready = [{"name": each.name, "base_url": each.base_url, "models": each.models} for each in running.endpoints]
            print(json.dumps({"endpoints": ready}), flush=True)
            print("Ctrl-C ends it.", file=sys.stderr, flush=True)
            stop.wait()
    except (ConfigError, OSError) as error:
        raise ConfigError(f"{args.spec}: {getattr(error, 'strerror', None) or error}") from None
    print(json.dumps({"seen": msgspec.to_builtins([running.seen(name) for name in running.names])}))
    return 0
