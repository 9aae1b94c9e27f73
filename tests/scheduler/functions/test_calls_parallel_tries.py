"""Several tries of one call at once, while it fails."""

from __future__ import annotations

from calls_driver import AT_ONCE, Breaking, Driver, Pause

from qreward.scheduler.task import CancelReason


def test_after_each_failure_one_more_is_tried_at_once_up_to_the_most_and_being_turned_away_sets_it_back_to_one() -> None:
    """How many may be tried abreast, how many retries there are; failures (f) or overload (o); tries in flight after each of them."""
    for parallel, retries, outcomes, expected in (
        (3, 9, "ffff", [1, 2, 3, 3, 3]),
        (4, 20, "fffooof", [1, 2, 3, 4, 3, 2, 1, 2]),
        (4, 20, "fffoooof", [1, 2, 3, 4, 3, 2, 1, 1, 2]),
        (5, 3, "ffff", [1, 2, 2, 1, 0]),  # they are retries
    ):
        driver = Driver()
        call = driver.call(driver.function(parallel_tries=parallel, retries=retries, pause=AT_ONCE))
        seen, error = [len(driver.tries(call))], None
        for outcome in outcomes:
            error = driver.fail(call, after=1.0, overloaded=outcome == "o")
            seen.append(len(driver.tries(call)))
        assert seen == expected, (parallel, retries, outcomes)
        assert driver.outcome(call) is (error if seen[-1] == 0 else None)


def test_they_begin_one_pause_after_the_other() -> None:
    driver = Driver()
    call = driver.call(driver.function(parallel_tries=3, retries=9, pause=Pause(1.0, 1.0)))
    driver.fail(call)
    driver.wait(1.0)
    assert len(driver.tries(call)) == 1
    driver.wait(1.0)
    assert len(driver.tries(call)) == 2
    driver.wait(60.0)
    assert len(driver.tries(call)) == 2


def test_the_first_that_returns_wins() -> None:
    driver = Driver()
    call = driver.call(driver.function(parallel_tries=3, retries=9, pause=AT_ONCE))
    driver.fail(call)
    one, two = driver.tries(call)
    driver.fail(one)
    assert driver.outcome(call) is None, "one that fails does not end the call"
    other = next(attempt for attempt in driver.tries(call) if attempt is not two)
    driver.ok(two)
    assert driver.is_ok(call)
    assert other.cancel_reason is CancelReason.BEATEN


def test_being_turned_away_takes_back_what_was_planned() -> None:
    driver = Driver()
    call = driver.call(driver.function(parallel_tries=3, retries=20, pause=Pause(1.0, 1.0)))
    driver.fail(call)
    driver.wait(2.0)
    driver.fail(call)
    assert call.planned
    driver.fail(call, overloaded=True)
    driver.wait(0.5)
    assert len(driver.tries(call)) == 0
    driver.wait(60.0)
    assert len(driver.tries(call)) == 1


def test_being_turned_away_takes_back_what_waits_for_a_free_slot() -> None:
    driver = Driver()
    f = driver.function(parallel_tries=3, retries=20, pause=AT_ONCE, most=4)
    call, *others = driver.calls(3, f)
    driver.fail(call)
    driver.fail(call)
    assert call in call.key_state.queue
    assert len(driver.tries(call)) == 2
    driver.fail(call, overloaded=True)
    assert not call.planned
    for other in others:
        driver.ok(other)
    driver.wait(60.0)
    assert len(driver.tries(call)) == 1


def test_a_wait_that_a_failure_asks_for_holds_for_those_beside_for_what_waits_and_for_what_was_planned() -> None:
    driver = Driver()
    call = driver.call(driver.function(parallel_tries=2, retries=20, pause=AT_ONCE))
    driver.fail(call)
    one, two = driver.tries(call)
    driver.fail(one, wait=10.0)
    driver.wait(9.0)
    assert driver.tries(call) == [two]
    driver.fail(two)
    assert not driver.tries(call), "the failure of the other does not end the wait"
    driver.wait(1.0)
    assert len(driver.tries(call)) == 2
    planned = driver.call(driver.function("g", parallel_tries=3, retries=20, pause=Pause(1.0, 1.0)))
    began = driver.now
    driver.fail(planned)
    driver.wait(1.5)
    assert planned.planned
    driver.fail(planned, wait=10.0)
    driver.wait(20.0)
    assert driver.begun(planned)[2] == began + 11.5


def test_when_the_breaker_opens_a_retry_that_waits_for_a_free_slot_is_given_up_and_not_its_call() -> None:
    driver = Driver()
    f = driver.function(parallel_tries=3, retries=20, pause=AT_ONCE, most=2, breaking=Breaking(2, 100.0))
    call, other = driver.calls(2, f)
    driver.fail(call)
    assert call in call.key_state.queue
    driver.fail(other)
    assert not call.planned
    assert driver.outcome(call) is None
    driver.ok(call)
    assert driver.is_ok(call)
    assert call.retries == 1
