"""The random simulations of ``test_scheduler_simulation`` from many seeds: ``python tests/scheduler/soak.py 10000``.

Each scene checks every rule after every input. A seed that fails is printed with its error; the exit code is 1 then.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator

from scheduler_scenarios import random_simulation


def trial(seed: int) -> tuple[int, str]:
    """Play one scene; the error it ended with, or an empty text."""
    try:
        random_simulation(seed).run()
    except Exception as error:
        return seed, f"{type(error).__name__}: {error}"
    return seed, ""


def failures(first: int, last: int) -> Iterator[tuple[int, str]]:
    """The seeds that fail, as they are found."""
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for done, (seed, error) in enumerate(pool.imap_unordered(trial, range(first, last), chunksize=8), 1):
            if done % 1000 == 0:
                print(f"{done} of {last - first}", file=sys.stderr, flush=True)
            if error:
                yield seed, error


def main() -> int:
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    began, failed = time.perf_counter(), 0
    for seed, error in failures(first, first + count):
        failed += 1
        print(f"seed {seed}: {error}", flush=True)
    print(f"{count} seeds from {first} on: {failed} failed, {time.perf_counter() - began:.0f} s")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
