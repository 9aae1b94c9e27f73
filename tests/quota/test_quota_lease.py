"""What a process may still send of its share: less after answers that cost more than expected, nothing once the lease has run out."""

from __future__ import annotations

from math import inf

from qreward.quota.lease import Lease
from qreward.quota.messages import LEASE, Grant, RenewReply
from qreward.scheduler.limits.concurrency import FixedLimit
from qreward.settings.policies import Limits


def test_what_was_left_of_a_lease_that_has_run_out_is_not_sent_later() -> None:
    lease = Lease(Limits(rpm=600), FixedLimit())
    lease.take_over(0.0, 0.0, RenewReply(1, requests=Grant(600, 600, 10)))
    assert lease.requests is not None
    assert lease.requests.ready_at <= 1.0
    assert not lease.lapse(LEASE - 0.1)
    assert lease.requests.ready_at <= 1.0
    assert lease.lapse(LEASE + 1)
    assert lease.requests.ready_at == inf


def test_tokens_beyond_the_estimate_are_taken_from_what_is_left() -> None:
    lease = Lease(Limits(tpm=60_000), FixedLimit())
    lease.take_over(0.0, 0.0, RenewReply(1, tokens=Grant(60_000, 60_000, 2000)))
    assert lease.tokens is not None
    lease.tokens.take(0.0, 500)
    lease.tokens.settle(500, 600)
    assert lease.tokens.ready_at < inf
    lease.tokens.take(1.0, 500)
    lease.tokens.settle(500, 1500)
    assert lease.tokens.ready_at == inf
