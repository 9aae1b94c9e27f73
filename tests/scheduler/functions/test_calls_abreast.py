"""Several tries of one call at once, while it fails."""

from __future__ import annotations

from calls_desk import AT_ONCE, Breaking, Desk, Pause

from qreward.scheduler.state import CancelReason


def test_after_each_failure_one_more_is_tried_at_once_up_to_the_most() -> None:
    desk = Desk()
    call = desk.call(desk.function(parallel_tries=3, retries=9, pause=AT_ONCE))
    desk.wait(60.0)
    seen = [len(desk.tries(call))]
    for _ in range(4):
        desk.fail(call, after=1.0)
        seen.append(len(desk.tries(call)))
    assert seen == [1, 2, 3, 3, 3]


def test_they_begin_one_pause_after_the_other() -> None:
    desk = Desk()
    call = desk.call(desk.function(parallel_tries=3, retries=9, pause=Pause(1.0, 1.0)))
    desk.fail(call)
    desk.wait(1.0)
    assert len(desk.tries(call)) == 1
    desk.wait(1.0)
    assert len(desk.tries(call)) == 2
    desk.wait(60.0)
    assert len(desk.tries(call)) == 2


def test_they_are_retries_and_no_more_than_those_are_made() -> None:
    desk = Desk()
    call = desk.call(desk.function(parallel_tries=5, retries=3, pause=AT_ONCE))
    for _ in range(3):
        desk.fail(call)
    assert len(desk.begun(call)) == 4
    error = desk.fail(call)
    assert desk.outcome(call) is error
    assert len(desk.begun(call)) == 4


def test_the_first_that_returns_wins() -> None:
    desk = Desk()
    call = desk.call(desk.function(parallel_tries=3, retries=9, pause=AT_ONCE))
    desk.fail(call)
    one, two = desk.tries(call)
    desk.fail(one)
    assert desk.outcome(call) is None, "one that fails does not end the call"
    other = next(attempt for attempt in desk.tries(call) if attempt is not two)
    desk.ok(two)
    assert desk.is_ok(call)
    assert other.cancel_reason is CancelReason.BEATEN


def test_being_turned_away_sets_it_back_to_one() -> None:
    desk = Desk()
    call = desk.call(desk.function(parallel_tries=4, retries=20, pause=AT_ONCE))
    for _ in range(3):
        desk.fail(call)
    assert len(desk.tries(call)) == 4
    for left in (3, 2, 1):
        desk.fail(call, overloaded=True)
        assert len(desk.tries(call)) == left
    desk.fail(call, overloaded=True)
    assert len(desk.tries(call)) == 1, "it is tried again, alone"
    desk.fail(call)
    assert len(desk.tries(call)) == 2, "and counts its failures anew"


def test_being_turned_away_takes_back_what_was_planned() -> None:
    desk = Desk()
    call = desk.call(desk.function(parallel_tries=3, retries=20, pause=Pause(1.0, 1.0)))
    desk.fail(call)
    desk.wait(2.0)
    desk.fail(call)
    assert call.planned
    desk.fail(call, overloaded=True)
    desk.wait(0.5)
    assert len(desk.tries(call)) == 0
    desk.wait(60.0)
    assert len(desk.tries(call)) == 1


def test_being_turned_away_takes_back_what_waits_for_room() -> None:
    desk = Desk()
    f = desk.function(parallel_tries=3, retries=20, pause=AT_ONCE, most=4)
    call, *others = desk.calls(3, f)
    desk.fail(call)
    desk.fail(call)
    assert call in call.key_state.queue
    assert len(desk.tries(call)) == 2
    desk.fail(call, overloaded=True)
    assert not call.planned
    for other in others:
        desk.ok(other)
    desk.wait(60.0)
    assert len(desk.tries(call)) == 1


def test_a_wait_that_a_failure_asks_for_holds_for_those_beside_for_what_waits_and_for_what_was_planned() -> None:
    desk = Desk()
    call = desk.call(desk.function(parallel_tries=2, retries=20, pause=AT_ONCE))
    desk.fail(call)
    one, two = desk.tries(call)
    desk.fail(one, wait=10.0)
    desk.wait(9.0)
    assert desk.tries(call) == [two]
    desk.fail(two)
    assert not desk.tries(call), "the failure of the other does not end the wait"
    desk.wait(1.0)
    assert len(desk.tries(call)) == 2
    planned = desk.call(desk.function("g", parallel_tries=3, retries=20, pause=Pause(1.0, 1.0)))
    began = desk.now
    desk.fail(planned)
    desk.wait(1.5)
    assert planned.planned
    desk.fail(planned, wait=10.0)
    desk.wait(20.0)
    assert desk.begun(planned)[2] == began + 11.5


def test_when_the_breaker_opens_a_retry_that_waits_for_room_is_given_up_and_not_its_call() -> None:
    desk = Desk()
    f = desk.function(parallel_tries=3, retries=20, pause=AT_ONCE, most=2, breaking=Breaking(2, 100.0))
    call, other = desk.calls(2, f)
    desk.fail(call)
    assert call in call.key_state.queue
    desk.fail(other)
    assert not call.planned
    assert desk.outcome(call) is None
    desk.ok(call)
    assert desk.is_ok(call)
    assert call.retries == 1
