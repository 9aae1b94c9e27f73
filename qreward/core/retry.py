"""What a failure costs and what follows from it: one table, one back-off, one budget.

Overload costs nothing. A request that is refused is never sent again. All else goes to another source at once, or,
where there is none, waits with full jitter (Brooker, AWS 2015). Retries draw on one budget (Finagle's RetryBudget),
so that a failing fleet is not hit harder than a healthy one.
"""

from __future__ import annotations

from math import exp, inf
from random import Random
from typing import NamedTuple, Protocol

from qreward.core.outcome import Failure, FailureKind
from qreward.policies import Retry


class Rule(NamedTuple):
    """What one kind of failure means.

    Attributes:
        again: the task may be tried again.
        charged: it counts as one of the task's attempts, and draws on the budget.
        elsewhere: only another source may serve the task.
        unwell: it speaks against the health of the source.
    """

    again: bool
    charged: bool = False
    elsewhere: bool = False
    unwell: bool = False


RULES: dict[FailureKind, Rule] = {
    FailureKind.OVERLOADED: Rule(again=True),
    FailureKind.QUOTA: Rule(again=True, elsewhere=True),
    FailureKind.TRANSIENT: Rule(again=True, charged=True, unwell=True),
    FailureKind.UNREACHABLE: Rule(again=True, charged=True, unwell=True),
    FailureKind.TIMEOUT: Rule(again=True, charged=True, unwell=True),
    FailureKind.UNSUITABLE: Rule(again=True, elsewhere=True),
    FailureKind.REFUSED: Rule(again=False),
    FailureKind.UNSENDABLE: Rule(again=False),
    FailureKind.LOCAL: Rule(again=True, charged=True),
}
_TOLD_NO = Rule(again=False)


def rule_for(failure: Failure) -> Rule:
    """The rule of a failure; the endpoint's own word (``x-should-retry``) goes first."""
    if failure.should_retry is None:
        return RULES[failure.kind]
    if not failure.should_retry:
        return _TOLD_NO
    return RULES[FailureKind.TRANSIENT] if failure.kind is FailureKind.REFUSED else RULES[failure.kind]


class Pauses(Protocol):
    """Waits that double from ``base`` to ``cap``, in seconds."""

    @property
    def base(self) -> float: ...

    @property
    def cap(self) -> float: ...


def backoff(policy: Pauses, tries: int, rng: Random) -> float:
    """Seconds to wait before try number ``tries`` + 1 at the same source: full jitter."""
    return rng.uniform(0.0, min(policy.cap, policy.base * 2.0 ** min(tries - 1, 60)))


class Budget:
    """Retries that may be made: a share of recent requests, and a reserve that refills at a fixed rate.

    The reserve also covers everything that can be in flight, so that the loss of a whole endpoint can always be
    redirected at once. Source: Finagle RetryBudget (20 %, 10 a second, over 10 s).
    """

    __slots__ = ("_earned", "_floor", "_reserve", "_share", "_then", "capacity")

    TTL = 10.0

    def __init__(self, policy: Retry) -> None:
        self._share = policy.budget
        self._floor = policy.budget_floor
        self.capacity = 0  # requests that all sources can have in flight
        self._earned = 0.0
        self._reserve = inf  # full; the size is known when sources are
        self._then = -inf

    def deposit(self) -> None:
        """A request was sent for the first time."""
        self._earned += self._share

    def withdraw(self, now: float) -> bool:
        """Take one retry, if there is one."""
        self._advance(now)
        if self._earned >= 1:
            self._earned -= 1
        elif self._reserve >= 1:
            self._reserve -= 1
        else:
            return False
        return True

    def grant(self, retries: int) -> None:
        """So many requests are under way at a source that was lost: each may be tried again."""
        self._earned += retries

    def wait(self) -> float:
        """Seconds until the reserve has grown by one."""
        return 1 / self._floor

    def _advance(self, now: float) -> None:
        passed = min(now - self._then, 1e6)
        self._then = now
        self._earned *= exp(-passed / self.TTL)
        self._reserve = min(self._floor * self.TTL + self.capacity, self._reserve + passed * self._floor)
