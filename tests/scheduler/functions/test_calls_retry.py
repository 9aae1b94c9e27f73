"""When a call is tried again, how often, and when it is not."""

from __future__ import annotations

from itertools import product
from math import nan
from random import Random

from calls_desk import AT_ONCE, Desk, Hedging, Longest, Pause, Shortest

from qreward.errors import RequestError, RequestTimeout


def test_it_is_tried_so_many_times_more_and_ends_with_its_last_error() -> None:
    for retries, overloaded in product((0, 1, 4), (False, True)):
        desk = Desk()
        call = desk.call(desk.function(retries=retries, pause=Pause(0.1, 0.1)))
        for _ in range(retries + 1):
            error = desk.fail(call, after=0.2, overloaded=overloaded)
            desk.wait(0.2)
        assert desk.outcome(call) is error
        assert call.retries == retries
        assert len(desk.begun(call)) == retries + 1
        assert (call.function.counters.retries, call.function.counters.tries) == (retries, retries + 1)


def test_waits_double_up_to_the_longest() -> None:
    """Failed hedges make none longer; without a pause it is tried again at once."""
    for pause, hedging, waits in (
        (Pause(0.25, 1.0), None, [0.25, 0.5, 1.0, 1.0, 1.0]),
        (AT_ONCE, None, [0.0] * 5),
        (Pause(1.0, 60.0), Hedging(0.5, 0.0, 1, 1.0), [1.0]),
    ):
        desk = Desk(Longest())
        call = desk.call(desk.function(retries=5, pause=pause, hedging=hedging))
        if hedging is not None:
            desk.wait(0.5)
            desk.fail(desk.tries(call)[1])
        failed = []
        for _ in waits:
            failed.append(desk.now)
            desk.fail(call)
            desk.wait(1.0)
        starts = [start for start, attempt in desk.watch.sends if not attempt.hedge]
        assert [start - then for start, then in zip(starts[1:], failed, strict=True)] == waits


def test_a_wait_is_drawn_from_all_of_its_range() -> None:
    """Full jitter: uniform between nothing and the longest."""
    desk = Desk(Random(1))
    f = desk.function(retries=1, pause=Pause(8.0, 60.0))
    calls = desk.calls(100, f)
    for call in calls:
        desk.fail(call)
    desk.wait(8.0)
    waits = sorted(desk.begun(call)[1] for call in calls)
    assert waits[0] < 0.3
    assert waits[-1] > 7.7
    assert 3.5 < sum(waits) / len(waits) < 4.5


def test_a_wait_that_a_failure_asks_for_is_kept_to_the_letter() -> None:
    """One that is none is no wait."""
    found = {}
    for wait, overloaded, rng in product((0.0, 0.1, 2.0, 90.0, -5.0, nan), (False, True), (Shortest(), Longest())):
        desk = Desk(rng)
        call = desk.call(desk.function(retries=1, pause=Pause(1.0, 5.0)))
        desk.fail(call, after=1.0, wait=wait, overloaded=overloaded)
        desk.wait(100.0)
        if desk.begun(call) != [0.0, 1.0 + (wait if wait > 0 else 0.0)]:
            found[wait, overloaded, type(rng)] = desk.begun(call)
    assert not found


def test_an_error_that_is_final_ends_the_call_at_once() -> None:
    desk = Desk()
    call = desk.call(desk.function(retries=9, hedging=Hedging(0.5, 0.0, 1, 1.0)))
    desk.wait(0.5)
    first, hedge = desk.tries(call)
    error = desk.fail(hedge, again=False)
    assert desk.outcome(call) is error
    assert first in desk.watch.cancels


def test_a_wait_that_ends_too_late_ends_the_call_with_its_own_error() -> None:
    desk = Desk()
    f = desk.function(retries=3, timeout=10.0)
    late, enough = desk.calls(2, f)
    error = desk.fail(late, after=2.0, wait=8.0)
    assert desk.outcome(late) is error
    assert desk.watch.finished_at[late] == 2.0
    desk.fail(enough, wait=7.9)
    desk.wait(7.9)
    assert len(desk.begun(enough)) == 2


def test_an_endless_wait_ends_the_call_and_closes_no_key() -> None:
    desk = Desk()
    f = desk.function(retries=3)
    call = desk.call(f)
    error = desk.fail(call, wait=float("inf"), overloaded=True)
    assert desk.outcome(call) is error
    assert desk.begun(desk.call(f))


def test_its_own_wait_is_shortened_so_that_it_is_still_tried_before_its_time_is_up() -> None:
    desk = Desk(Longest())
    call = desk.call(desk.function(retries=9, timeout=10.0, pause=Pause(60.0, 60.0)))
    desk.fail(call, after=4.0)
    desk.wait(3.0)
    assert len(desk.begun(call)) == 2
    desk.ok(call)
    assert desk.is_ok(call)


def test_a_failure_after_its_time_is_up_is_not_followed_by_another_try() -> None:
    """The timer is late."""
    desk = Desk()
    call = desk.call(desk.function(retries=9, timeout=1.0, pause=AT_ONCE))
    desk.now = 1.2
    error = desk.fail(call)
    assert desk.outcome(call) is error


def test_a_try_that_somebody_else_cancelled_ends_the_call() -> None:
    desk = Desk()
    call = desk.call(desk.function(retries=3))
    desk.stopped(call)
    assert isinstance(desk.outcome(call), RequestError)
    assert "cancelled by other code" in str(desk.outcome(call))


def test_a_try_that_somebody_else_cancelled_ends_nothing_while_another_goes_on_or_is_planned() -> None:
    desk = Desk()
    call = desk.call(desk.function(retries=3, parallel_tries=2, pause=Pause(1.0, 1.0), hedging=Hedging(0.5, 0.0, 1, 1.0)))
    desk.wait(0.5)
    first, hedge = desk.tries(call)
    desk.stopped(hedge)
    assert desk.outcome(call) is None
    desk.fail(first)
    desk.wait(1.1)
    desk.stopped(desk.tries(call)[0])
    assert call.planned
    assert desk.outcome(call) is None


def test_a_wait_that_was_told_while_a_hedge_went_on_holds_when_that_fails() -> None:
    desk = Desk()
    call = desk.call(desk.function(retries=1, pause=AT_ONCE, hedging=Hedging(0.5, 0.0, 1, 1.0)))
    desk.wait(0.5)
    first, hedge = desk.tries(call)
    desk.fail(first, wait=10.0)
    desk.fail(hedge, after=1.0)
    desk.wait(20.0)
    assert desk.begun(call)[2] == 10.5


def test_a_second_report_of_a_try_is_ignored() -> None:
    desk = Desk()
    call = desk.call(desk.function(retries=3, pause=AT_ONCE))
    (first,) = desk.tries(call)
    desk.fail(first)
    desk.fail(first)
    desk.ok(first)
    assert len(desk.begun(call)) == 2
    assert desk.outcome(call) is None


def test_what_is_decided_is_noted_if_that_is_wanted() -> None:
    desk = Desk()
    f = desk.function(retries=1, pause=Pause(1.0, 1.0), noted=True, most=1)
    call, waits = desk.calls(2, f)
    desk.fail(call, after=0.5)
    desk.fail(waits, after=0.25, again=False)
    desk.wait(1.0)
    desk.ok(call)
    assert call.notes is not None
    assert [text for _, text in call.notes] == ["try 1 failed after 0.5 s: Broken", "retry 1 of 1", "done after 1.75 s"]
    assert waits.notes is not None
    assert waits.notes[0] == (0.0, "waits for room: 1 of 1 in flight")
    assert desk.call(f, noted=False).notes is None


# the deadline


def timed_out(desk: Desk, call: object, at: float) -> bool:
    outcome, when = desk.watch.finished[call], desk.watch.finished_at[call]  # type: ignore[index]
    return isinstance(outcome, RequestTimeout) and at <= when <= at


def test_a_call_ends_at_its_deadline_wherever_it_is() -> None:
    desk = Desk()
    f = desk.function(timeout=10.3, retries=3, most=2, hedging=Hedging(60.0, 0.0, 1, 1.0))
    under_way, waits_to_be_tried_again = desk.calls(2, f)
    desk.fail(waits_to_be_tried_again, wait=10.2)
    desk.call(desk.function("other"), timeout=None)
    never_tried = desk.call(f)
    (attempt,) = desk.tries(under_way)
    desk.wait(11.0)
    assert timed_out(desk, under_way, 10.3)
    assert timed_out(desk, never_tried, 10.3)
    assert desk.watch.cancels == {attempt: None}
    assert "a try was under way" in str(desk.outcome(under_way))
    assert "it was never tried" in str(desk.outcome(never_tried))
    assert "its next try" in str(desk.outcome(waits_to_be_tried_again))
    assert desk.outcome(waits_to_be_tried_again).__cause__ is waits_to_be_tried_again.error
    assert f.counters.timeouts == 3


def test_an_answer_that_comes_just_in_time_counts() -> None:
    desk = Desk()
    call = desk.call(desk.function(timeout=1.0))
    desk.now = 1.005
    desk.ok(call)
    assert desk.is_ok(call)
