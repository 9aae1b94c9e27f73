"""The life of a task: sent or queued, pulled, answered once, timed out, withdrawn; and bulks that are read as they are needed."""

from __future__ import annotations

from typing import Any

from scheduler_driver import CHUNK, ERRORS, Driver
from scheduler_warm import live
from scheduler_watch import BUCKET

from qreward import Endpoint
from qreward.errors import RequestTimeout
from qreward.scheduler.limits.rate import LearnedRate
from qreward.scheduler.outcome import Answer, FailureKind, RateLimit, RateLimitInfo
from qreward.scheduler.prefixes import Prefix
from qreward.scheduler.scheduler import FINISH, SEND, Scheduler
from qreward.scheduler.task import LOW, TaskState
from qreward.settings.client import ClientConfig
from qreward.settings.policies import Hedge, Limits, Retry

K = FailureKind


def test_a_task_is_sent_at_once_if_a_source_has_a_free_slot_and_its_answer_comes_with_source_and_seconds() -> None:
    driver = Driver({"a": 1})
    task = driver.task()
    scheduler: Scheduler = driver.scheduler
    scheduler.submit(5.0, task)
    [(what, attempt)] = scheduler.out
    scheduler.out = []
    assert what == SEND
    answer = Answer("yes")
    scheduler.event(7.5, attempt, answer)
    assert scheduler.out == [(FINISH, task, answer, driver["a"], 2.5)]
    assert task.state is TaskState.DONE
    assert task.attempt is None
    driver.now = 8.0
    driver.ok(live(driver.submit()), prompt=10, output=20)
    tally = driver["a"].tally
    assert (tally.sent, tally.ok, tally.prompt_tokens, tally.output_tokens) == (2, 2, 10, 20)


def test_an_answer_in_the_same_turn_as_the_timeout_counts_if_it_is_reported_first() -> None:
    driver = Driver({"a": 1})
    task = driver.submit(timeout=1.0)
    attempt = live(task)
    driver.now = 1.0
    driver.report(attempt, Answer("yes"))
    driver.tick()
    assert isinstance(driver.outcome(task), Answer)
    assert driver.scheduler.next_wake() is None


def test_a_tasks_timeout_counts_queue_attempts_and_back_off_together() -> None:
    driver = Driver({"a": 1}, retry=Retry(base=3.0, attempts=9))
    first, task = driver.submit(), driver.submit(timeout=10.0)
    driver.ok(live(first), after=4.0)
    driver.fail(live(task), K.TRANSIENT, after=4.0)
    driver.until(9.9)
    assert driver.outcome(task) is None
    driver.until(10.0 + BUCKET)
    error = driver.outcome(task)
    assert isinstance(error, RequestTimeout)
    assert error.__cause__ is ERRORS[K.TRANSIENT]
    assert "it broke" in str(error)


def test_a_timeout_stops_the_attempt_and_the_slot_comes_back_when_the_connection_is_closed() -> None:
    driver = Driver({"a": 1})
    task, waiting, impatient = driver.submit(timeout=5.0), driver.submit(), driver.submit(timeout=4.0)
    attempt = live(task)
    driver.until(5.1)
    assert "never sent" in str(driver.outcome(impatient))
    error = driver.outcome(task)
    assert isinstance(error, RequestTimeout)
    assert "an attempt was under way" in str(error)
    assert driver.is_cancelled(attempt)
    assert driver["a"].inflight == 1
    assert driver.where(waiting) is None
    driver.cancelled(attempt)
    assert driver.where(waiting) == "a"


def test_a_withdrawn_task_has_no_outcome_and_its_slot_comes_back_when_its_attempt_has_ended() -> None:
    """It was under way, answered after all, already overdue, waiting, or done."""
    driver = Driver({"a": 3})
    under_way, answered, overdue = driver.submit(timeout=150.0), driver.submit(), driver.submit()
    waiting = driver.submit(timeout=150.0)
    attempts = [live(task) for task in (under_way, answered, overdue)]
    driver.wait(121.0)
    driver.withdraw(waiting, under_way, answered, overdue)
    assert all(driver.is_cancelled(attempt) for attempt in attempts)
    assert driver["a"].inflight == 3, "a slot is held until the connection is closed"
    driver.cancelled(attempts[0])
    driver.ok(attempts[1])
    driver.cancelled(attempts[2])
    driver.wait(100.0)
    assert not driver.watch.finished
    done = driver.submit()
    driver.ok(live(done))
    before = list(driver.watch.trace)
    driver.withdraw(done, done)
    assert driver.watch.trace == before
    driver.watch.check_all_over()


def test_a_batch_that_is_withdrawn_with_items_that_are_done_leaves_no_timer() -> None:
    driver = Driver({"a": 1, "b": 1})
    feed = driver.feed(2)
    items = [attempt.task for attempt in driver.watch.live]
    driver.ok(live(items[0]))
    driver.close_feed(feed)
    attempt = live(items[1])
    driver.withdraw(*items)
    driver.cancelled(attempt)
    driver.wait(1.0)
    assert driver.scheduler.next_wake() is None


def test_after_a_hint_nothing_is_sent_until_it_has_passed_then_one_probe_then_all() -> None:
    driver = Driver({"a": 8})
    tasks = [driver.submit() for _ in range(20)]
    driver.until(0.1)
    for attempt in driver.at("a")[:4]:  # the first three are stray, and sent again
        assert len(driver.at("a")) == 8
        driver.fail(attempt, K.OVERLOADED, after=0.0, retry_after=7.0)
    for attempt in driver.at("a"):
        driver.fail(attempt, K.OVERLOADED, after=0.0)
    driver.until(7.09)
    assert not driver.at("a")
    assert driver.scheduler.health_changes == [], "it is not out of service"
    driver.until(7.1 + BUCKET)
    assert len(driver.at("a")) == 1
    driver.ok(driver.at("a")[0], after=0.01)
    assert len(driver.at("a")) == 8
    assert driver.at("a")[0].task is not tasks[-1]


def test_a_bulk_is_read_as_it_is_needed() -> None:
    driver = Driver({"a": 3}, refill=False)
    feed = driver.feed(1000)
    for _ in range(300):
        while driver.watch.asked:
            driver.serve(feed)
        assert len(feed.buffer) <= CHUNK + LOW
        driver.ok(driver.at("a")[0], after=0.1)
    assert len(driver.watch.finished) == 300


def test_the_timeout_of_a_bulks_task_begins_when_it_is_taken() -> None:
    driver = Driver({"a": 1})
    driver.feed(3, timeout=10.0)
    driver.ok(driver.at("a")[0], after=9.0)
    driver.ok(driver.at("a")[0], after=9.0)
    driver.ok(driver.at("a")[0], after=9.0)
    assert len(driver.watch.finished) == 3
    assert all(isinstance(outcome, Answer) for outcome in driver.watch.finished.values())


def test_a_closed_bulk_returns_what_was_read_ahead_and_never_started() -> None:
    driver = Driver({"a": 2})
    feed = driver.feed(1000)
    rest = driver.close_feed(feed)
    assert len(rest) == CHUNK - 2
    assert feed.ended, "nothing more is read"
    assert all(task.state is TaskState.NEW for task in rest)
    while driver.watch.live:
        driver.ok(driver.at("a")[0])
    assert len(driver.watch.finished) == 2
    driver.watch.check_all_over()


def test_other_policies_apply_from_then_on_and_those_that_stay_keep_what_they_have_counted() -> None:
    """Of the hedging policy the budget is spent; a new one begins with its own."""
    once = Hedge(after=1.0, budget=0.0, reserve=1)
    endpoints = (Endpoint("http://a/v1"),)
    before = ClientConfig(endpoints=endpoints, hedge=once, retry=Retry(attempts=2), max_queued=None)
    scenes: dict[str, dict[str, Any]] = {
        "nothing": {},
        "queue": {"max_queued": 0},
        "hedge": {"hedge": Hedge(after=0.5, budget=0.0, reserve=1)},
        "retry": {"retry": Retry(attempts=1)},
        "retry base": {"retry": Retry(attempts=2, base=9.0)},
    }
    seen = {}
    for name, changes in scenes.items():
        driver = Driver({"a": 2, "b": 2}, hedge=once, retry=before.retry)
        sources = list(driver.sources.values())
        first = driver.submit()
        driver.wait(1.1)
        assert (first.copy is not None, driver.scheduler._hedging.balance) == (True, 0.0)
        driver.scheduler.set_policies(before, before.model_copy(update=changes))
        driver.scheduler.check_attempts_again(driver.now, sources)
        failing = driver.submit()
        driver.fail(live(failing), K.TRANSIENT)
        retried = driver.outcome(failing) is None
        driver.submit()
        waits = [driver.outcome(driver.submit()) is None for _ in range(2)][-1]
        seen[name] = (driver.scheduler._hedging.balance, retried, waits)
    assert seen == {
        "nothing": (0.0, True, True),
        "queue": (0.0, True, False),
        "hedge": (1.0, True, True),
        "retry": (1.0, False, True),
        "retry base": (0.0, True, True),
    }


def test_a_hedge_that_is_to_come_sooner_applies_to_what_is_under_way() -> None:
    before = ClientConfig(endpoints=(Endpoint("http://a/v1"),), hedge=Hedge(after=30.0))
    driver = Driver({"a": 2, "b": 2}, hedge=before.hedge)
    task = driver.submit()
    driver.wait(2.0)
    driver.scheduler.set_policies(before, before.model_copy(update={"hedge": Hedge(after=3.0)}))
    driver.scheduler.check_attempts_again(driver.now, list(driver.sources.values()))
    driver.wait(0.9)
    assert task.copy is None
    driver.wait(0.3)
    assert task.copy is not None


def test_limits_that_a_stream_announces_hold_while_it_goes_on() -> None:
    driver = Driver()
    driver.add("a", Limits(max_concurrency=9), learned=LearnedRate())
    stream = live(driver.submit())
    limits = RateLimitInfo(requests=RateLimit(limit=60, remaining=0, reset=60.0))
    driver.scheduler.opened(driver.now, stream, limits)
    assert driver.where(driver.submit()) is None


def test_a_failed_request_gives_back_its_tokens_and_its_prefix_is_not_expected_in_the_cache() -> None:
    for kind, cached in ((K.UNREACHABLE, False), (K.REFUSED, False)):
        driver = Driver(estimate=lambda _payload: (100.0, 0.0), retry=Retry(attempts=1))
        source = driver.add("a", Limits(tpm=60, max_concurrency=1))
        driver.add("b", Limits(max_concurrency=1))
        driver.mark("b", down=True)
        task = driver.submit(prefix=Prefix((1,), (2000.0,), 2400.0, named=True))
        assert source.tokens is not None
        reserved = source.tokens.ready_at
        assert source.prefix_cache.is_warm(1)
        driver.fail(live(task), kind)
        assert source.tokens.ready_at <= reserved - 99.0, kind
        assert source.prefix_cache.is_warm(1) is cached, kind
