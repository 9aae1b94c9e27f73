"""When a call is tried again, how often, and when it is not."""

from __future__ import annotations

from itertools import product

from calls_driver import AT_ONCE, Driver, Hedging, Longest, Pause, Shortest

from qreward.errors import RequestError, RequestTimeout


def test_it_is_tried_so_many_times_more_and_ends_with_its_last_error() -> None:
    for retries, overloaded in product((0, 1, 4), (False, True)):
        driver = Driver()
        call = driver.call(driver.function(retries=retries, pause=Pause(0.1, 0.1)))
        for _ in range(retries + 1):
            error = driver.fail(call, after=0.2, overloaded=overloaded)
            driver.wait(0.2)
        assert driver.outcome(call) is error
        assert call.retries == retries
        assert len(driver.begun(call)) == retries + 1
        assert (call.function.counters.retries, call.function.counters.tries) == (retries, retries + 1)


def test_waits_double_up_to_the_longest() -> None:
    """Failed hedges make none longer; without a pause it is tried again at once."""
    for pause, hedging, waits in (
        (Pause(0.25, 1.0), None, [0.25, 0.5, 1.0, 1.0, 1.0]),
        (AT_ONCE, None, [0.0] * 5),
        (Pause(1.0, 60.0), Hedging(0.5, 0.0, 1, 1.0), [1.0]),
    ):
        driver = Driver(Longest())
        call = driver.call(driver.function(retries=5, pause=pause, hedging=hedging))
        if hedging is not None:
            driver.wait(0.5)
            driver.fail(driver.tries(call)[1])
        failed = []
        for _ in waits:
            failed.append(driver.now)
            driver.fail(call)
            driver.wait(1.0)
        starts = [start for start, attempt in driver.watch.sends if not attempt.is_copy]
        assert [start - then for start, then in zip(starts[1:], failed, strict=True)] == waits


def test_a_wait_that_a_failure_asks_for_is_kept_to_the_letter() -> None:
    found = {}
    for wait, overloaded, rng in product((0.0, 0.1, 2.0, 90.0), (False, True), (Shortest(), Longest())):
        driver = Driver(rng)
        call = driver.call(driver.function(retries=1, pause=Pause(1.0, 5.0)))
        driver.fail(call, after=1.0, wait=wait, overloaded=overloaded)
        driver.wait(100.0)
        if driver.begun(call) != [0.0, 1.0 + wait]:
            found[wait, overloaded, type(rng)] = driver.begun(call)
    assert not found


def test_an_error_that_is_final_ends_the_call_at_once() -> None:
    driver = Driver()
    call = driver.call(driver.function(retries=9, hedging=Hedging(0.5, 0.0, 1, 1.0)))
    driver.wait(0.5)
    first, hedge = driver.tries(call)
    error = driver.fail(hedge, again=False)
    assert driver.outcome(call) is error
    assert first in driver.watch.cancels


def test_a_wait_that_ends_too_late_ends_the_call_with_its_own_error() -> None:
    driver = Driver()
    f = driver.function(retries=3, timeout=10.0)
    late, enough = driver.calls(2, f)
    error = driver.fail(late, after=2.0, wait=8.0)
    assert driver.outcome(late) is error
    assert driver.watch.finished_at[late] == 2.0
    driver.fail(enough, wait=7.9)
    driver.wait(7.9)
    assert len(driver.begun(enough)) == 2


def test_an_endless_wait_ends_the_call_and_closes_no_key() -> None:
    driver = Driver()
    f = driver.function(retries=3)
    call = driver.call(f)
    error = driver.fail(call, wait=float("inf"), overloaded=True)
    assert driver.outcome(call) is error
    assert driver.begun(driver.call(f))


def test_its_own_wait_is_shortened_so_that_it_is_still_tried_before_its_time_is_up() -> None:
    driver = Driver(Longest())
    call = driver.call(driver.function(retries=9, timeout=10.0, pause=Pause(60.0, 60.0)))
    driver.fail(call, after=4.0)
    driver.wait(3.0)
    assert len(driver.begun(call)) == 2
    driver.ok(call)
    assert driver.is_ok(call)


def test_a_try_that_other_code_cancelled_ends_the_call_unless_another_goes_on_or_is_planned() -> None:
    driver = Driver()
    alone = driver.call(driver.function(retries=3))
    driver.stopped(alone)
    assert isinstance(driver.outcome(alone), RequestError)
    assert "cancelled by other code" in str(driver.outcome(alone))
    call = driver.call(driver.function(retries=3, parallel_tries=2, pause=Pause(1.0, 1.0), hedging=Hedging(0.5, 0.0, 1, 1.0)))
    driver.wait(0.5)
    first, hedge = driver.tries(call)
    driver.stopped(hedge)
    assert driver.outcome(call) is None
    driver.fail(first)
    driver.wait(1.1)
    driver.stopped(driver.tries(call)[0])
    assert call.planned
    assert driver.outcome(call) is None


def test_a_wait_that_a_failure_asks_for_while_a_hedge_goes_on_holds_when_that_fails() -> None:
    driver = Driver()
    call = driver.call(driver.function(retries=1, pause=AT_ONCE, hedging=Hedging(0.5, 0.0, 1, 1.0)))
    driver.wait(0.5)
    first, hedge = driver.tries(call)
    driver.fail(first, wait=10.0)
    driver.fail(hedge, after=1.0)
    driver.wait(20.0)
    assert driver.begun(call)[2] == 10.5


def test_what_is_decided_is_noted_if_that_is_wanted() -> None:
    driver = Driver()
    f = driver.function(retries=1, pause=Pause(1.0, 1.0), noted=True, most=1)
    call, waits = driver.calls(2, f)
    driver.fail(call, after=0.5)
    driver.fail(waits, after=0.25, again=False)
    driver.wait(1.0)
    driver.ok(call)
    assert call.notes is not None
    assert [text for _, text in call.notes] == ["try 1 failed after 0.5 s: Broken", "retry 1 of 1", "done after 1.75 s"]
    assert waits.notes is not None
    assert waits.notes[0] == (0.0, "waits for room: 1 of 1 in flight")
    assert driver.call(f, noted=False).notes is None


# the deadline


def timed_out(driver: Driver, call: object, at: float) -> bool:
    outcome, when = driver.watch.finished[call], driver.watch.finished_at[call]  # type: ignore[index]
    return isinstance(outcome, RequestTimeout) and at <= when <= at


def test_a_call_ends_at_its_deadline_wherever_it_is() -> None:
    driver = Driver()
    f = driver.function(timeout=10.3, retries=3, most=2, hedging=Hedging(60.0, 0.0, 1, 1.0))
    under_way, waits_to_be_tried_again = driver.calls(2, f)
    driver.fail(waits_to_be_tried_again, wait=10.2)
    driver.call(driver.function("other"), timeout=None)
    never_tried = driver.call(f)
    (attempt,) = driver.tries(under_way)
    driver.wait(11.0)
    assert timed_out(driver, under_way, 10.3)
    assert timed_out(driver, never_tried, 10.3)
    assert driver.watch.cancels == {attempt: None}
    assert "a try was under way" in str(driver.outcome(under_way))
    assert "it was never tried" in str(driver.outcome(never_tried))
    assert "its next try" in str(driver.outcome(waits_to_be_tried_again))
    assert driver.outcome(waits_to_be_tried_again).__cause__ is waits_to_be_tried_again.error
    assert f.counters.timeouts == 3


def test_an_answer_that_comes_just_in_time_counts() -> None:
    driver = Driver()
    call = driver.call(driver.function(timeout=1.0))
    driver.now = 1.005
    driver.ok(call)
    assert driver.is_ok(call)
