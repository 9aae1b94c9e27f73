"""Decides what follows from a failed attempt, for its source and for its task.

``RULES`` has what follows from each kind of failure. Overload costs the task no attempt, and affects the cooldown and the concurrency limit
of the source, not its health. Failures of the server, of connections and of time count against the health of the source, unless the task is
the likely cause. A task that may be sent again is queued after full jitter (Brooker, AWS 2015), unless another source is expected to answer
it first. A judge may send a question again in a new task (``judge.calls.evaluate``).
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import NamedTuple

from qreward.errors import AuthenticationFailed, ClientClosed, QRewardError, RequestTimeout
from qreward.results import AttemptRecord
from qreward.scheduler.outcome import Answer, Cancelled, Failure, FailureKind, LastFailure, Outcome, described
from qreward.scheduler.source import Source
from qreward.scheduler.task import Attempt, CancelReason, Task
from qreward.settings.policies import Retry


class FailureRule(NamedTuple):
    retryable: bool  # the task may be retried
    charged: bool = False  # the failure counts as one of the task's attempts
    other_source_only: bool = False  # only another source may serve the task
    hurts_health: bool = False  # the failure counts against the health of the source


RULES: dict[FailureKind, FailureRule] = {
    FailureKind.OVERLOADED: FailureRule(retryable=True),
    FailureKind.QUOTA: FailureRule(retryable=True, other_source_only=True),
    FailureKind.TRANSIENT: FailureRule(retryable=True, charged=True, hurts_health=True),
    FailureKind.UNREACHABLE: FailureRule(retryable=True, charged=True, hurts_health=True),
    FailureKind.TIMEOUT: FailureRule(retryable=True, charged=True, hurts_health=True),
    FailureKind.UNSUITABLE: FailureRule(retryable=True, other_source_only=True),
    FailureKind.REFUSED: FailureRule(retryable=False),
    FailureKind.UNSENDABLE: FailureRule(retryable=False),
    FailureKind.LOCAL: FailureRule(retryable=True, charged=True),
}


def rule_for(failure: Failure) -> FailureRule:
    """Return the rule of a failure. An endpoint's ``x-should-retry`` header says whether that endpoint may be asked again."""
    rule = RULES[FailureKind.TRANSIENT if failure.should_retry and failure.kind is FailureKind.REFUSED else failure.kind]
    rule = rule if failure.hurts_health else rule._replace(hurts_health=False)
    if failure.should_retry is not False:
        return rule
    hurts = rule.hurts_health and failure.kind is not FailureKind.TRANSIENT  # it says that the request is the cause
    return rule._replace(other_source_only=rule.retryable, hurts_health=hurts)


def backoff(base: float, cap: float, tries: int, rng: Random) -> float:
    """Return the seconds to wait after ``tries`` failed attempts (full jitter)."""
    return rng.uniform(0.0, min(cap, base * 2.0 ** min(tries - 1, 60)))


QUOTA_AWAY = 300.0
"""Seconds for which a source is out of service after it reported that the quota of its account is used up."""
OUTAGE = 4
"""Number of tasks that have first failed since the last answer of a pool's sources, from which the sources are taken to be the cause. With
6 instead, steps of four calls lost four to five in an outage of 10 s."""
MOST_UNFIT = 2
"""Number of sources that refuse the content of a task, after which the task fails. A wrong key does not count."""

NO_REFUSAL = frozenset({FailureKind.OVERLOADED, FailureKind.QUOTA})
ALIVE = frozenset({FailureKind.OVERLOADED, FailureKind.REFUSED})
NO_SIGN_OF_LIFE = frozenset({FailureKind.TIMEOUT, FailureKind.UNREACHABLE, FailureKind.UNSENDABLE, FailureKind.LOCAL})

MOST_TRAIL = 100
"""Maximum number of failed attempts that a task records. A task without a deadline is charged with failed connections to sources that are
out of service from then on; one with a deadline can wait until the outage ends."""


class RetryDecision(NamedTuple):
    lost: bool = False  # the failure made the source unavailable for a second or more
    wait: float = 0.0  # seconds after which the task is retried; 0 is now
    error: QRewardError | None = None  # the error that the task ends with, or None if it continues
    final: bool = False  # the task ends now, even if another of its attempts is in flight
    best: Source | None = None  # the source that is expected to answer it first, if that is known


class FailurePolicy:
    def __init__(self, retry: Retry, rng: Random) -> None:
        self._retry = retry
        self._rng = rng

    def record(self, now: float, attempt: Attempt, outcome: Failure | Cancelled) -> RetryDecision:
        """Record a failure at the source and the task of an attempt. Returns what follows for the task."""
        task = attempt.task
        if isinstance(outcome, Cancelled):
            if attempt.cancel_reason is not CancelReason.OVERDUE:
                return self._stopped(now, attempt)
            outcome = attempt.failure = _overdue(now, attempt)
        rule = rule_for(outcome)
        was_back = attempt.source.health.is_back
        lost = self._record_failure(now, attempt, outcome, rule)
        if not task.holds(attempt):  # the task no longer depends on this attempt
            return RetryDecision(lost)
        error = task.last_error = outcome.error
        record_attempt(attempt, outcome.kind.name.lower(), now, getattr(error, "status_code", None), str(error))
        if attempt.committed and not task.restarts:  # part of the answer was delivered and cannot be taken back
            return RetryDecision(lost, error=error, final=True)
        wait, last, best = self._decide(now, attempt, outcome, rule, ejected=lost and was_back)
        return RetryDecision(lost, wait, last, not rule.retryable, best)

    def _stopped(self, now: float, attempt: Attempt) -> RetryDecision:
        source, task = attempt.source, attempt.task
        source.tally.cancelled += 1
        source.silence.ended(source.inflight, beaten=attempt.cancel_reason is CancelReason.BEATEN)
        source.advertised(now, attempt.sent_at, None)
        if attempt.cancel_reason is None:
            return RetryDecision(error=ClientClosed("the event loop was shut down before the request was done"))
        late = now >= task.deadline
        source.unanswered += late
        if late or attempt.cancel_reason is CancelReason.BEATEN:
            source.service.outlasted(now, now - attempt.sent_at - attempt.held, task.pool.common)
        return RetryDecision()

    def _record_failure(self, now: float, attempt: Attempt, failure: Failure, rule: FailureRule) -> bool:
        source, task = attempt.source, attempt.task
        if is_sign_of_life(failure):
            source.unanswered = 0
        requested, most = failure.retry_after, self._retry.max_retry_after
        hint = min(requested, most) if requested else None  # a wait of 0 s asks for none
        source.advertised(now, attempt.sent_at, failure.limits, hint=hint if failure.kind is FailureKind.OVERLOADED else None)
        if failure.kind is FailureKind.OVERLOADED:
            source.silence.ended(source.inflight)
            source.rejected(now, attempt, hint)
            source.cooldown.uncapped_hint = requested if requested is not None and requested > most else None
            return False
        source.tally.failed += 1
        before, source.fault = source.fault, LastFailure(now, failure.kind, str(failure.error), described(failure))
        source.tally.server_errors += (getattr(failure.error, "status_code", None) or 0) >= 500
        if failure.kind in NO_SIGN_OF_LIFE:
            source.silence.ended(source.inflight)
        else:
            source.silence.broken(now, source.inflight, source.latency.mean, source.inflight_seconds)
        if failure.kind is FailureKind.QUOTA and not source.is_last():
            in_service = source.health.in_service
            source.health.eject(now, QUOTA_AWAY)
            return in_service
        if not (rule.hurts_health or (failure.misconfigured and not source.is_last())):
            if rule.charged:  # so that the retry goes elsewhere
                task.failures = (*task.failures, (source, now))
            return False
        if failure.kind is not FailureKind.UNREACHABLE:  # a request that did not reach the source cannot be the cause
            is_new = not task.failures and attempt.sent_at >= task.pool.answered_at
            task.pool.failing += is_new and failure.kind is FailureKind.TRANSIENT
            # the task has failed at a source that served other tasks, or as often as the retry policy allows
            often = len(task.failures) >= self._retry.attempts and source.tally.ok > 0
            served = often or any(other.was_well(then, asked_now=other is source) for other, then in task.failures)
            task_to_blame = served and not _is_nobody_answered(task, failure)
            task.failures = (*task.failures, (source, now))
            if task_to_blame or (failure.kind is FailureKind.TIMEOUT and task.overdue):  # it seems to hang at every source
                return False
        source.failed(now)
        silent = failure.kind is FailureKind.UNREACHABLE and source.answered_at <= attempt.sent_at
        dead = silent or (isinstance(failure.error, AuthenticationFailed) and not source.tally.ok)
        if dead and source.is_last():  # it may be a wrong address, or an address of several servers of which one is away
            again = before is not None and before.kind is failure.kind and source.answered_at < before.at <= attempt.sent_at
            dead = again and source.tally.ok > 0
        return source.health.failed(now, attempt.sent_at, attempt.order, task.number, dead=dead)

    def _decide(
        self, now: float, attempt: Attempt, failure: Failure, rule: FailureRule, *, ejected: bool
    ) -> tuple[float, QRewardError | None, Source | None]:
        task, source = attempt.task, attempt.source
        if not rule.retryable:
            return 0.0, failure.error, None
        if rule.other_source_only:
            task.unfit = (*task.unfit, source)
            task.tries += rule.charged
            by_content = failure.hurts_health and failure.kind not in NO_REFUSAL  # not the way of a server, whatever is sent
            task.refusals += by_content and not isinstance(failure.error, AuthenticationFailed)
            fit = any(other.health.in_service and other not in task.unfit for other in task.pool.sources)
            again = fit and task.refusals < MOST_UNFIT and task.tries < self._retry.attempts
            return 0.0, None if again else failure.error, None
        if not rule.charged:
            return 0.0, None, None
        if failure.kind is FailureKind.TIMEOUT:
            task.overdue += 1
            source.latency.cut(now - attempt.sent_at)
        if self._is_charged(task, source, failure, rule, ejected=ejected):
            task.tries += 1
        if task.tries >= self._retry.attempts:
            return 0.0, failure.error, None
        wait, best = self._wait(now, task, source, failure)
        return wait, None, best

    def _is_charged(self, task: Task, source: Source, failure: Failure, rule: FailureRule, *, ejected: bool) -> bool:
        """Return whether a failure counts as one of the task's attempts.

        At a source that is out of service, or while nobody is answered, it counts if it has ``ejected`` the source, or if the task has had
        many.
        """
        if not rule.hurts_health or (source.health.in_service and not _is_nobody_answered(task, failure)):
            return True
        if failure.kind is FailureKind.UNREACHABLE:  # if it counted, four dead sources would fail a task beside a healthy one
            return (ejected and self._retry.attempts == 1) or (task.deadline == inf and len(task.trail or ()) > MOST_TRAIL)
        return ejected or len(task.failures) > self._retry.attempts

    def _wait(self, now: float, task: Task, source: Source, failure: Failure) -> tuple[float, Source | None]:
        tries = len(task.failures) if _is_nobody_answered(task, failure) else task.tries
        wait = backoff(self._retry.base, self._retry.cap, max(1, tries), self._rng)
        if tries >= 2:  # later retries wait in any case, so that circuit breakers open before the attempts are used up
            return wait, None
        elsewhere, best = task.pool.best(now, task)  # without ``source``, which still holds the attempt
        here = max(wait, source.ready_at(now, slot=True) - now) + 2.0 * source.answers_in(now, task.pool)  # 2 for this failure
        return (0.0, best) if elsewhere <= here else (wait, None)


def _is_nobody_answered(task: Task, failure: Failure) -> bool:
    """Return whether no source of the pool has answered since the task first failed, and others fail too, so that it is not the cause.

    A task that exceeds the time limit of an attempt may be the cause: when a batch ends, only tasks that no source can serve are left.
    """
    pool = task.pool
    is_first = not task.failures or task.failures[0][1] >= pool.answered_at
    return failure.kind is FailureKind.TRANSIENT and min(pool.failing, pool.live) >= OUTAGE and is_first


def is_sign_of_life(outcome: Outcome) -> bool:
    """Return whether the outcome shows that its source is running and reads requests."""
    return isinstance(outcome, Answer) or (isinstance(outcome, Failure) and outcome.kind in ALIVE)


def record_attempt(attempt: Attempt, outcome: str, now: float, status: int | None = None, detail: str = "") -> None:
    task = attempt.task
    if task.trail is None:
        task.trail = []
    if len(task.trail) <= MOST_TRAIL:
        hedge = attempt is task.copy
        task.trail.append(AttemptRecord(attempt.source.name, outcome, now - attempt.sent_at, status, detail, hedge))


def unanswered(task: Task, now: float) -> list[AttemptRecord]:
    """Return a record of each attempt in flight of a task whose timeout has passed."""
    attempts = [each for each in (task.attempt, task.copy) if each is not None]
    detail = "the timeout of the request came before an answer"
    return [AttemptRecord(each.source.name, "timeout", now - each.sent_at, None, detail, each is task.copy) for each in attempts]


def _overdue(now: float, attempt: Attempt) -> Failure:
    seconds = now - attempt.sent_at
    name = attempt.source.name
    hint = "set Timeouts(attempt=...) of the endpoint if such requests may take longer"
    return Failure(FailureKind.TIMEOUT, RequestTimeout(f"no answer from endpoint {name!r} within {seconds:.1f} s; {hint}", endpoint=name))
