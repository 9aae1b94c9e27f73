"""All that keeps a source from being asked is one number: the time at which it may be."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from qreward.scheduler.limits.rate import LearnedRate
from qreward.scheduler.load_balancing import ExpectedFinish
from qreward.scheduler.outcome import Answer, RateLimit, RateLimitInfo
from qreward.scheduler.queue import Queue
from qreward.scheduler.state import ATTEMPT_FIRST, ATTEMPT_LEAST, Attempt, Pool, Source, Task
from qreward.settings.policies import Limits

POOL = Pool("p", [], ExpectedFinish(), Queue())


def source(limits: Limits | None = None, **more: Any) -> Source:
    return Source("a", Random(0), limits, **more)  # type: ignore[arg-type]


def attempt(source: Source, now: float) -> Attempt:
    return Attempt(Task(None, POOL, 5, None, None, 0), source, now)


def send(source: Source, now: float) -> None:
    assert source.ready_at(now) <= now
    source.sent(now, attempt(source, now))


def answered(source: Source, seconds: float) -> None:
    """It answers a request that was the only one in flight."""
    sent = attempt(source, 0.0)
    source.sent(0.0, sent)
    source.ended(seconds, sent)
    source.answered(seconds, sent, Answer("yes", 3, 4))


def test_the_time_limit_of_an_attempt_is_long_until_the_source_has_shown_its_speed_and_doubles_when_it_is_exceeded() -> None:
    new, fast, slow, fixed = source(), source(), source(), source(attempt_timeout=3.0)
    for _ in range(20):
        answered(fast, 0.01)
        answered(slow, 5.0)
    assert [new.attempt_limit(overdue) for overdue in range(3)] == [ATTEMPT_FIRST, 2 * ATTEMPT_FIRST, 4 * ATTEMPT_FIRST]
    assert new.attempt_limit(5000) > 480.0
    assert fast.attempt_limit(0) == ATTEMPT_LEAST
    assert slow.attempt_limit(0) == pytest.approx(8 * 5.0, rel=0.06)
    assert [slow.attempt_limit(overdue) / slow.attempt_limit(0) for overdue in range(4)] == [1, 1, 2, 4]
    assert fixed.attempt_limit(0) == fixed.attempt_limit(4) == 3.0


def test_the_latest_of_gate_health_and_rate_counts() -> None:
    held = source(Limits(rpm=6))
    send(held, 0.0)
    assert held.ready_at(0.0) == pytest.approx(9.9)
    held.inflight -= 1
    held.rejected(0.5, 0.0, hint=20.0)
    assert held.ready_at(0.0) == 20.5
    held.health.eject(1.0, 40.0)
    assert held.ready_at(0.0) == 41.0


def test_it_is_worth_waiting_for_if_it_can_take_work_within_a_second() -> None:
    held = source()
    held.cooldown.opens_at = 10.0
    assert [held.available_soon(now) for now in (8.5, 9.0, 9.5)] == [False, False, True]
    held.health.eject(9.5, 1.0)
    assert not held.available_soon(9.5)
    removed = source()
    removed.removed = True
    assert not removed.available_soon(0.0)
    metered = source(learned=LearnedRate())
    for unit in ("requests", "tokens"):
        metered.advertised(0.0, 0.0, RateLimitInfo(**{unit: RateLimit(limit=10, remaining=0, reset=5.0)}))
        assert [metered.available_soon(now) for now in (0.0, 6.0)] == [False, True], unit


def test_it_is_essential_unless_half_of_the_others_are_in_service() -> None:
    first, second, third = (Source(name, Random(0)) for name in "abc")
    Pool("p", [first, second, third], ExpectedFinish(), Queue())
    assert not first.is_essential()
    second.health.eject(0.0, 60.0)
    assert not first.is_essential()
    third.health.eject(0.0, 60.0)
    assert first.is_essential()


def test_the_expected_finish_grows_as_the_window_fills() -> None:
    loaded = source(Limits(max_concurrency=4))
    assert loaded.expected_finish() == 0.0
    answered(loaded, 2.0)
    assert loaded.expected_finish() == pytest.approx(2.0)
    loaded.inflight = 4
    assert loaded.expected_finish() == pytest.approx(4.0)
