"""What follows when an attempt gave no answer: for its source, and for its task.

Overload concerns the gate and the window, never health or the task's attempts. A failure concerns health, unless the
task has failed at another source that is well: then the task is the poison, for a sick source is found by those that come
to it first. The task goes to another source at once if one is worth waiting for; otherwise it waits and may return to the
same one.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from qreward.core.outcome import Cancelled, Failure, FailureKind
from qreward.core.retry import Budget, Rule, backoff, rule_for
from qreward.core.source import Source
from qreward.core.task import Attempt, State, Task, Why
from qreward.errors import ClientClosed, QRewardError, RequestTimeout
from qreward.policies import Retry
from qreward.results import AttemptRecord

QUOTA_AWAY = 300.0
"""Seconds a source is left alone after it said its account is used up."""
MOST_UNFIT = 2
"""Sources that may find a task unsuitable before its error is believed."""

NO_SIGN_OF_LIFE = frozenset({FailureKind.TIMEOUT, FailureKind.UNREACHABLE, FailureKind.UNSENDABLE, FailureKind.LOCAL})

MOST_TRAIL = 100
"""Failed attempts that a task remembers: an outage may be waited out for long. Beyond them every failure is charged."""


class Verdict(NamedTuple):
    """What follows.

    Attributes:
        lost: the source is out of reach for a while.
        wait: seconds after which the task goes on; 0 is now.
        error: what the task ends with, or None if it goes on.
        final: no other source could do better, not even one that works on it already.
    """

    lost: bool = False
    wait: float = 0.0
    error: QRewardError | None = None
    final: bool = False


class Aftermath:
    """Decides, and keeps the retry budget."""

    def __init__(self, retry: Retry, rng: Random) -> None:
        self._retry = retry
        self._rng = rng
        self.budget = Budget(retry)

    def of(self, now: float, attempt: Attempt, outcome: Failure | Cancelled) -> Verdict:
        """Decide what follows, and tell the source."""
        source, task = attempt.source, attempt.task
        if isinstance(outcome, Cancelled):
            if attempt.why is not Why.OVERDUE:
                return self._stopped(now, attempt)
            outcome = attempt.failure = _overdue(now, attempt)
        rule = rule_for(outcome)
        lost = self._blame(now, attempt, outcome, rule)
        if not task.holds(attempt):  # nobody waits for it any more: it only tells of its source
            return Verdict(lost)
        self._note(now, attempt, outcome)
        if attempt.committed and not task.restarts:  # what was given out cannot be taken back
            return Verdict(lost, error=outcome.error, final=True)
        wait, error = self._decide(now, task, source, outcome, rule)
        return Verdict(lost, wait, error, final=not rule.again)

    def _stopped(self, now: float, attempt: Attempt) -> Verdict:
        source = attempt.source
        source.tally.cancelled += 1
        source.window.ended()
        source.silence.ended(source.inflight)
        error = None if attempt.why else ClientClosed("the event loop was shut down before the request was done")
        slow = source.latency.slow
        task = attempt.task
        hopeless = attempt.why is Why.ABANDONED and (task.tries or task.suspected)  # it has failed elsewhere, too
        if attempt.why is None or attempt.committed or slow is None or hopeless or now - attempt.sent_at < 4 * slow:
            return Verdict(error=error)
        # given up by its caller, but so late that it speaks against the source: short timeouts must not hide a hang
        return Verdict(source.health.failed(now, attempt.sent_at, attempt.task.number, last=source.is_last()), error=error)

    def _blame(self, now: float, attempt: Attempt, failure: Failure, rule: Rule) -> bool:
        source, task = attempt.source, attempt.task
        if failure.limits is not None:
            source.advertised(now, attempt.sent_at, failure.limits)
        if failure.kind is FailureKind.OVERLOADED:
            source.silence.ended(source.inflight)
            source.rejected(now, attempt.sent_at, failure.retry_after)
            return not source.worth_waiting_for(now)
        source.tally.failed += 1
        source.window.ended()
        if failure.kind in NO_SIGN_OF_LIFE:
            source.silence.ended(source.inflight)
        else:
            source.silence.broken(now, source.inflight, source.latency.mean)
        if failure.kind is FailureKind.QUOTA and not source.is_last():
            source.health.eject(now, QUOTA_AWAY)
            return True
        unwell = rule.unwell or (failure.misconfigured and not source.is_last())
        poison = any(other.health.in_service for other in task.excluded if other is not source)
        if unwell and not poison and not (failure.kind is FailureKind.TIMEOUT and _hangs_elsewhere(now, attempt)):
            return source.health.failed(now, attempt.sent_at, task.number, last=source.is_last())
        return False

    def _note(self, now: float, attempt: Attempt, failure: Failure) -> None:
        error = failure.error
        status = getattr(error, "status_code", None)
        remember(attempt, failure.kind.name.lower(), now, status, str(error))
        attempt.task.last_error = error

    def _decide(self, now: float, task: Task, source: Source, failure: Failure, rule: Rule) -> tuple[float, QRewardError | None]:
        if not rule.again:
            return 0.0, failure.error
        if rule.elsewhere:
            task.unfit = (*task.unfit, source)
            self._avoid(task, (*task.excluded, source))
            fit = [other for other in task.pool.sources if other not in task.unfit and other.health.in_service]
            enough = len(task.unfit) >= MOST_UNFIT and failure.kind is not FailureKind.QUOTA
            return 0.0, None if fit and not enough else failure.error
        if not rule.charged:
            return 0.0, None
        if failure.kind is FailureKind.TIMEOUT:
            task.overdue += 1
        known = rule.unwell and not source.health.in_service  # that it is dead was found out: the task is not to blame
        if not known or len(task.trail or ()) > MOST_TRAIL:
            task.tries += 1
        if task.tries >= self._retry.attempts:
            return 0.0, failure.error
        return self._wait(now, task, source), None

    def _wait(self, now: float, task: Task, source: Source) -> float:
        avoided = task.excluded if source in task.excluded else (*task.excluded, source)
        others = task.pool.awaits(now, avoided)
        self._avoid(task, avoided if others else task.unfit)
        # the first time at once; then more slowly, so that breakers open before the attempts are used up
        wait = 0.0 if others and task.tries < 2 else backoff(self._retry, max(1, task.tries), self._rng)
        return wait if self.budget.withdraw(now) else wait + self.budget.wait()

    @staticmethod
    def _avoid(task: Task, sources: tuple[Source, ...]) -> None:
        if task.state is not State.QUEUED:  # where it waits for a second attempt, it waits under what it avoids
            task.excluded = sources


def remember(attempt: Attempt, outcome: str, now: float, status: int | None = None, detail: str = "") -> None:
    """Put an attempt into its task's trail."""
    task = attempt.task
    if task.trail is None:
        task.trail = []
    if len(task.trail) <= MOST_TRAIL:
        hedge = attempt is task.copy
        task.trail.append(AttemptRecord(attempt.source.name, outcome, now - attempt.sent_at, status, detail, hedge))


def _hangs_elsewhere(now: float, attempt: Attempt) -> bool:
    """Whether the task has run into a time limit before, or is long overdue at another source: then it is not this one's fault."""
    task = attempt.task
    other = task.other(attempt)
    if task.overdue or other is None:
        return task.overdue > 0
    slow = other.source.latency.slow
    return slow is not None and now - other.sent_at > 2 * slow


def _overdue(now: float, attempt: Attempt) -> Failure:
    seconds = now - attempt.sent_at
    name = attempt.source.name
    hint = "set Timeouts(attempt=...) of the endpoint if such requests may take longer"
    return Failure(FailureKind.TIMEOUT, RequestTimeout(f"no answer from endpoint {name!r} within {seconds:.1f} s; {hint}", endpoint=name))
