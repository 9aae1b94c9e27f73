"""Cost of shared limits for a process: CPU time of a lease renewal by the number of members, and the share of a core that it takes.

``python benchmarks/sharing.py`` (``--quick`` for a short run). An active process renews its lease twice a second.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from math import inf
from pathlib import Path

from qreward.quota.file_ledger import FileLedger
from qreward.quota.ledger import RENEW, Demand, Ledger, RenewRequest

MEMBERS = (1, 8, 64)


def asked(number: int) -> RenewRequest:
    """Return a renewal of all three limits with high demand."""
    used = float(number)
    return RenewRequest(
        Demand(6000, want=20, rate=inf, spent=used),
        Demand(6e6, want=2e4, rate=inf, least=900.0, spent=900 * used),
        Demand(64, hold=8, rate=64),
    )


def cost(work: Callable[[int], object], times: int) -> float:
    """Return the CPU time per call in microseconds."""
    began = time.process_time()
    for number in range(times):
        work(number)
    return (time.process_time() - began) / times * 1e6


def measure(members: int, rounds: int) -> dict[str, float]:
    now = [0.0]

    def tick() -> float:
        now[0] += RENEW / members
        return now[0]

    ledger = Ledger()
    pure = cost(lambda number: ledger.renew(tick(), f"m{number % members}", asked(number // members)), rounds * members)
    with tempfile.TemporaryDirectory() as folder:
        carrier = FileLedger("k", Path(folder) / "shares", tick)
        carried = cost(lambda number: carrier.renew(f"m{number % members}", asked(number // members)), rounds * members)
        carrier.close()
    return {"members": members, "ledger_us": pure, "file_us": carried, "core_percent": carried / 1e6 / RENEW * 100}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--json", type=Path, help="write the numbers there as well")
    chosen = parser.parse_args()
    found = [measure(members, 20 if chosen.quick else 200) for members in MEMBERS]
    print(f"{'members':>8} {'ledger us':>10} {'with its file us':>17} {'% of a core':>12}")
    for row in found:
        print(f"{row['members']:8.0f} {row['ledger_us']:10.0f} {row['file_us']:17.0f} {row['core_percent']:12.3f}")
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
