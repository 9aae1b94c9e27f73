"""Run by tests: a process that renews in a file as fast as it can, until it is killed. ``python quota_child.py DIRECTORY MEMBER``."""

from __future__ import annotations

import sys
import time
from math import inf
from pathlib import Path

from qreward.quota.file_ledger import FileLedger
from qreward.quota.ledger import Demand, RenewRequest

KEY = "k"


def asked(limit: int = 8, hold: float = 0.0) -> RenewRequest:
    return RenewRequest(Demand(600, want=5, rate=inf), None, Demand(limit, rate=inf, hold=hold))


if __name__ == "__main__":
    transport, hold = FileLedger(KEY, Path(sys.argv[1])), 0.0
    for turn in range(10**9):
        time.sleep(0.0005)  # the lock is not fair: who never lets go of it keeps it
        share = transport.renew(sys.argv[2], asked(hold=hold))
        assert share.permits is not None
        hold = share.permits.hold
        if turn == 0:
            print("joined", flush=True)
