"""Says why the work of a pool waits, and makes the errors of tasks that wait in vain. All functions are pure.

Each source has one reason (``source.standing``). The pool's reason is that of the source which is expected to take a task first. Texts
name endpoints, routes, models, limits and kinds of failures. The text of a server is left out, because it may quote a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import get_args

from qreward.errors import CircuitOpen, NoEndpoint, QRewardError, QueueFull, RequestTimeout
from qreward.results import EndpointReason, Explanation, ReasonCode
from qreward.scheduler.outcome import FailureKind
from qreward.scheduler.pool import Pool
from qreward.scheduler.source import Availability, Source, standing
from qreward.scheduler.task import Attempt, BatchFeed, Task

ORDER = {code: place for place, code in enumerate(get_args(ReasonCode))}
MOST_NAMED = 3
"""Maximum number of endpoints that a sentence or an error names."""
SILENT, SLOWER = 5.0, 2.0
"""A source does not answer if it has answered nothing for ``SILENT`` seconds, and for ``SLOWER`` times the 99th percentile of its latency,
although a request was in flight all the time."""
KEPT = 0.25
"""Seconds for which the sentence of a pool is used again for errors, because many tasks may fail at once."""


def route_of(pool: Pool) -> str:
    """Return the pattern of a route. This is the name of the route's pool without the quotes."""
    return pool.name[1:-1]


def subject_of(pool: Pool) -> str:
    """Return the models of a route, or its pattern if there are none or many."""
    models = tuple(pool.models)
    return ", ".join(sorted(models)) if 0 < len(models) <= MOST_NAMED else route_of(pool)


def waiting_in(pool: Pool) -> int:
    """Return the number of items of a pool that are not in flight and have not ended, including those of batches that are not read yet."""
    unread = sum(feed.ahead() if feed.left is None else feed.left for feed in pool.feeds)
    return max(0, pool.live - len(_in_flight(pool))) + unread


def _in_flight(pool: Pool) -> list[Attempt]:
    return [each for source in pool.sources for each in source.attempts if each.task.attempt is each and each.task.pool is pool]


def explain(now: float, pool: Pool) -> Explanation:
    """Return why the work of a pool waits. If nothing waits, return what its requests in flight wait for."""
    route, subject, attempts, waiting = route_of(pool), subject_of(pool), _in_flight(pool), waiting_in(pool)
    found = sorted((reason_of(now, source) for source in pool.sources), key=_rank)
    if not found:
        return Explanation(route, "no_endpoint", f"no endpoint serves {subject}", waiting, len(attempts))
    busy = {each.source.name for each in attempts}
    if not waiting:  # what matters is at the endpoints that work
        found.sort(key=lambda each: each.endpoint not in busy)
    held = [each.holds_since for each in attempts if each.holds_since is not None]
    code = found[0].code
    if held and (not waiting or code in ("concurrency_limit", "no_answer")):
        text = f"{_count(len(held), 'stream')} for the reader to take what has arrived, for {seconds(now - min(held))} ({subject})"
        return Explanation(route, "consumer", text, waiting, len(attempts), tuple(found))
    if waiting:
        head = _count(waiting, "item")
        code = "held_back" if code == "ready" else code
        code = "failing" if code == "held_back" and _fails(pool.sources) else code
    elif attempts:
        head = f"{len(attempts)} in flight"
        code = "running" if code == "ready" else code
    else:
        return _idle(route, subject, pool, found)
    return Explanation(route, code, f"{head} for {subject}: {_listed(found)}", waiting, len(attempts), tuple(found))


def _idle(route: str, subject: str, pool: Pool, found: Sequence[EndpointReason]) -> Explanation:
    code: ReasonCode = "ready"
    text = f"nothing waits for {subject}"
    if pool.feeds:
        full = any(getattr(feed.waiter, "is_full", False) for feed in pool.feeds)
        code = "consumer" if full else "input"
        batches = _count(len(pool.feeds), "batch", "batches")
        text = f"{batches} for {'the reader to take what has arrived' if full else 'the next item of the input'} ({subject})"
    elif _fails(pool.sources):
        code, text = "failing", f"requests for {subject} fail: {_listed(found)}"
    return Explanation(route, code, text, endpoints=tuple(found))


def said(now: float, pool: Pool) -> str:
    """Return the sentence of :func:`explain` for an error. It may be a moment old."""
    if now >= pool.said[0] + KEPT:
        pool.said = now, explain(now, pool).text
    return pool.said[1]


def reason_of(now: float, source: Source) -> EndpointReason:
    """Return why a source takes no task now, or ``ready``."""
    found = standing(now, source)
    code = found.code
    silent = _silent(now, source)
    if code in ("ready", "concurrency_limit", "recovering") and silent > max(SILENT, SLOWER * (source.latency.p99 or source.latency.mean)):
        code = "no_answer"
    elif code == "out_of_service" and source.fault is not None and source.fault.kind is FailureKind.QUOTA:
        code = "quota"
    text = f"{source.name} {_says(now, source, code, found)}"
    if code != "out_of_service" and _fails((source,)) and source.fault is not None:
        text += f", but its last request failed: {source.fault.shown}"
    return EndpointReason(source.name, code, text, None if found.seconds == inf else found.seconds)


def _silent(now: float, source: Source) -> float:
    """Return the seconds for which a source has had a request in flight and has answered nothing; 0 if a stream is being delivered."""
    oldest = next(iter(source.attempts), None)
    if oldest is None or any(each.committed for each in source.attempts):
        return 0.0
    return now - max(oldest.sent_at, source.answered_at)


def _fails(sources: Sequence[Source]) -> bool:
    return any(source.fault is not None and source.fault.at > source.answered_at for source in sources)


def _rank(reason: EndpointReason) -> tuple[float, int, str]:
    """Sort by the time at which an endpoint is expected to take a request. A slot that is in use is expected to be free soon."""
    soon = 0.0 if reason.code == "concurrency_limit" else inf
    return soon if reason.ready_in is None else reason.ready_in, ORDER[reason.code], reason.endpoint


def _listed(found: Sequence[EndpointReason]) -> str:
    named = "; ".join(each.text for each in found[:MOST_NAMED])
    return named + (f"; and {len(found) - MOST_NAMED} more endpoints" if len(found) > MOST_NAMED else "")


def _count(number: int, one: str, many: str = "") -> str:
    return f"1 {one} waits" if number == 1 else f"{number} {many or f'{one}s'} wait"


def seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 9.95 else f"{value:.0f} s" if value < 600 else f"{value / 60:.0f} min"


def _says(now: float, source: Source, code: ReasonCode, found: Availability) -> str:
    """Return what an endpoint does, after its name."""
    limit, lease, rejected, mean = source.window, source.lease, source.tally.rejected, source.latency.mean
    slots, wait = f"{source.inflight} of {limit.limit} slots in use", seconds(found.seconds)
    reason = "configured" if limit.reason == "fixed" or getattr(limit, "most", None) == limit.limit else limit.reason
    lasts = "is out of service" if source.down_since is None else f"has been out of service for {seconds(now - source.down_since)}"
    share = f"reports that the quota of its account is used up, and is tried again in {wait}"
    if lease is not None and found.code != "out_of_service":
        others = "no other process" if lease.members == 1 else f"{lease.members} processes" if lease.members else "others"
        share = f"waits for its share of a limit that it shares with {others}"
    texts: dict[ReasonCode, str] = {
        "ready": f"is ready, {slots}",
        "rate_limit": f"takes the next in {wait}: {found.reason}",
        "token_limit": f"takes the next in {wait}: {found.reason}",
        "concurrency_limit": f"is at its limit of {limit.limit} in flight ({reason}{f', {seconds(mean)} for an answer' if mean else ''})",
        "recovering": "comes back into service, with 1 in flight at most",
        "cooldown": f"is left alone for {wait} because {found.reason}"
        + (f" ({rejected} of {source.tally.sent} so far)" if rejected else ""),
        "out_of_service": f"{lasts}, and is tried again in {wait}{'' if source.fault is None else f': {source.fault.shown}'}",
        "quota": share,
        "no_answer": f"has answered nothing for {seconds(_silent(now, source))}, with {slots}",
        "paused": f"is {source.paused}",
        "marked_unhealthy": "is marked unhealthy, until mark_healthy",
        "removed": "was removed",
    }
    return texts[code]


def timeout_error(now: float, task: Task) -> RequestTimeout:
    """Return the error of a task whose own timeout has passed."""
    seen = "it was never sent: no endpoint had room" if task.sent_at is None else "an attempt was under way or waiting"
    if task.last_error is not None:
        seen = f"the last failure was: {task.last_error}"
    within = f"no answer within the timeout of {task.timeout:g} s (queueing included) over {task.pool.name}"
    error = RequestTimeout(f"{within}; {seen}; {said(now, task.pool)}")
    error.__cause__ = task.last_error
    return error


def outage_error_factory(feed: BatchFeed) -> Callable[[], RequestTimeout]:
    """Return a factory of errors for batch items that waited for their whole timeout while no source of the pool was alive."""
    pool = feed.pool
    names = ", ".join(repr(source.name) for source in pool.sources[:MOST_NAMED])
    if len(pool.sources) > MOST_NAMED:
        names += f" and {len(pool.sources) - MOST_NAMED} more"
    reason = next((f"; the last failure was: {source.fault.message}" for source in pool.sources if source.fault is not None), "")
    return partial(
        RequestTimeout,
        f"never sent: no endpoint of {pool.name} has answered for {feed.timeout:g} s, the timeout of an item ({names}){reason}",
    )


def too_late_error(now: float, task: Task) -> RequestTimeout:
    error = RequestTimeout(
        f"dropped before it was sent: no endpoint of {task.pool.name} answers within what is left of the timeout of {task.timeout:g} s"
        f" (queueing included); raise the timeout, send less at once, or add endpoints ({said(now, task.pool)})"
    )
    error.__cause__ = task.last_error
    return error


def queue_full_error(now: float, pool: Pool, most: float) -> QueueFull:
    return QueueFull(f"{most} requests wait for {pool.name} already; send fewer at once, or raise max_queued ({said(now, pool)})")


def unservable_error(pool: Pool) -> QRewardError | None:
    """Return an error if no source of a pool can serve any task until the sources change. Otherwise return None."""
    if pool.is_alive() or any(source.health.in_service for source in pool.sources):  # the one that was alive last is asked first
        return None
    if not pool.sources:
        return NoEndpoint(f"the route {pool.name} has no endpoint left; add one, or register the route anew")
    if all(source.health.marked_unhealthy for source in pool.sources):
        names = ", ".join(repr(source.name) for source in pool.sources)
        return CircuitOpen(f"every endpoint of the route {pool.name} is marked unhealthy ({names}); mark_healthy brings one back")
    return None


def unsuitable_error(task: Task) -> QRewardError | None:
    """Return the task's last error if every source is unsuitable for it or marked unhealthy, else None."""
    if task.unfit and all(source in task.unfit or source.health.marked_unhealthy for source in task.pool.sources):
        return task.last_error
    return None
