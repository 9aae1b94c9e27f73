"""CPU time that the scheduler needs for a failure and for a success, by the number of endpoints.

Runs only ``qreward.scheduler``, and sends nothing. All concurrency limits are reached, and a batch waits. Each row but the last is the
median of single calls of ``Scheduler.event``. The last row is the inspection of an endpoint that has been silent for so long that all its
requests are hedged.

    python benchmarks/failures.py                 # about a minute
    python benchmarks/failures.py --quick         # few endpoints, few events
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from statistics import median

from qreward.errors import ConnectionFailed, RateLimited, ServerError
from qreward.scheduler.hedging import stalls_at
from qreward.scheduler.outcome import CANCELLED, Answer, Failure, FailureKind, Outcome
from qreward.scheduler.pool import BALANCERS, Pool
from qreward.scheduler.queue import Queue
from qreward.scheduler.scheduler import CANCEL, MORE, SEND, Scheduler
from qreward.scheduler.source import Source, make_source
from qreward.scheduler.task import Attempt, BatchFeed, Task
from qreward.settings.policies import Hedge, Limits, LoadBalanceStrategy, Retry

HELD = 8
"""Requests in flight at each endpoint."""
SIZES = (10, 100, 500, 1000)


def rejected(hint: float | None) -> Failure:
    return Failure(FailureKind.OVERLOADED, RateLimited("no room"), retry_after=hint)


OUTCOMES: dict[str, Callable[[], Outcome]] = {
    "answer": lambda: Answer("yes", 10, 20),
    "500": lambda: Failure(FailureKind.TRANSIENT, ServerError("it broke")),
    "no connection": lambda: Failure(FailureKind.UNREACHABLE, ConnectionFailed("nobody there")),
    "429": lambda: rejected(None),
    "429 with Retry-After": lambda: rejected(30.0),
    "quota used up": lambda: Failure(FailureKind.QUOTA, RateLimited("the account is used up")),
}


class Scene:
    """A scheduler with all endpoints at their concurrency limit, and a batch with infinite input.

    Args:
        endpoints: number of endpoints.
        held: requests in flight at each endpoint.
        strategy: load balancing strategy.
    """

    def __init__(self, endpoints: int, held: int = HELD, strategy: LoadBalanceStrategy = LoadBalanceStrategy.EXPECTED_FINISH) -> None:
        self.now, self.rng, self.items = 0.0, Random(7), 0
        self.scheduler = Scheduler(Retry(), self.rng, hedge=Hedge(reserve=10_000))
        self.pool = Pool("all", [], BALANCERS[strategy](), Queue())
        self.sources = [make_source(f"e{number}", self.rng, Limits(max_concurrency=held)) for number in range(endpoints)]
        for source in self.sources:
            self.scheduler.join(self.now, source, self.pool)
        self.feed = BatchFeed(self.pool, 5, None, self.now)
        self.scheduler.open(self.now, self.feed)
        self.carry_out()

    def carry_out(self) -> list[Attempt]:
        """Execute the commands of the scheduler; return the attempts that it sent."""
        sent: list[Attempt] = []
        while self.scheduler.out:
            out, self.scheduler.out = self.scheduler.out, []
            for command in out:
                if command[0] == SEND:
                    sent.append(command[1])
                elif command[0] == CANCEL:
                    self.scheduler.event(self.now, command[1], CANCELLED)
                elif command[0] == MORE:
                    self.feed.buffer.extend(Task(None, self.pool, 5, None, None, self.items + place) for place in range(32))
                    self.items += 32
                    self.scheduler.refill(self.now, self.feed)
        return sent

    def end(self, attempt: Attempt, outcome: Outcome) -> float:
        """Report the outcome of an attempt; return the seconds that the scheduler took."""
        began = time.perf_counter()
        self.scheduler.event(self.now, attempt, outcome)
        took = time.perf_counter() - began
        self.carry_out()
        return took

    def answer_all(self, rounds: int, but: Source | None = None) -> None:
        """Complete the oldest request of every endpoint, ``rounds`` times. The endpoint ``but`` keeps its requests."""
        for _ in range(rounds):
            self.now += 1.0 / HELD
            for source in self.sources:
                if source is not but and source.attempts:
                    self.end(next(iter(source.attempts)), OUTCOMES["answer"]())

    def silence(self) -> float:
        """Let the last endpoint stop responding; return the CPU seconds of the inspection that detects it."""
        mute = self.sources[-1]
        while self.now < stalls_at(mute):
            self.answer_all(1, but=mute)
        began = time.process_time()
        self.scheduler._inspect(self.now, mute)
        took = time.process_time() - began
        assert not mute.health.in_service
        return took


def measure(name: str, endpoints: int, events: int) -> float:
    """Return the median microseconds per outcome. Between two measurements each endpoint completes eight requests."""
    scene, took = Scene(endpoints), []
    scene.answer_all(4)
    for _ in range(max(1, events // min(endpoints, 100))):
        scene.answer_all(8)
        took += [scene.end(attempt, OUTCOMES[name]()) for attempt in chosen(scene)]
        scene.now += 60.0
        scene.scheduler.tick(scene.now)
        scene.carry_out()
    return median(took) * 1e6


def chosen(scene: Scene) -> Iterator[Attempt]:
    """Yield the oldest request of up to a hundred endpoints, at most a tenth of all, so that the other endpoints stay healthy."""
    for source in scene.rng.sample(scene.sources, max(1, min(100, len(scene.sources) // 10))):
        if source.attempts and not source.health.half_open:
            yield next(iter(source.attempts))


def measure_silence(endpoints: int, held: int = 64) -> float:
    """Return the microseconds of the inspection of a silent endpoint with ``held`` requests in flight."""
    scene = Scene(endpoints, held)
    scene.answer_all(held + 30)
    return scene.silence() * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few endpoints, few events")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there as well")
    args = parser.parse_args()
    sizes, events = (SIZES[:1], 20) if args.quick else (SIZES, 300)
    found = {name: {str(size): measure(name, size, events) for size in sizes} for name in OUTCOMES}
    found["silent, 64 in flight"] = {str(size): measure_silence(size) for size in sizes}
    print(f"{'us, median':24}" + "".join(f"{size:>12}" for size in sizes))
    for name, row in found.items():
        print(f"{name:24}" + "".join(f"{row[str(size)]:12.0f}" if str(size) in row else f"{'-':>12}" for size in sizes))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
