"""What happens when a function says that there are too many."""

from __future__ import annotations

from itertools import product

from calls_desk import Adapting, Desk, Hedging, Longest, Rate, Shortest

from qreward.scheduler.functions.state import Function


def test_a_hint_closes_the_key_for_all_its_calls_for_exactly_so_long() -> None:
    for hint, rng in product((0.05, 0.3, 20.0), (Shortest(), Longest())):
        desk = Desk(rng)
        f = desk.function(keyed=True, most=2)
        first, second, waits = (desk.call(f, "a") for _ in range(3))
        desk.fail(first, after=1.0, wait=hint, overloaded=True)
        desk.ok(second)
        later = desk.call(f, "a")
        assert desk.begun(desk.call(f, "b")) == [1.0]
        desk.wait(hint)
        assert desk.begun(waits) == [1.0 + hint], "it waited for room"
        desk.ok(waits)
        assert desk.begun(later) == [1.0 + hint]


def test_the_longest_of_several_hints_holds() -> None:
    desk = Desk()
    f = desk.function()
    one, two = desk.calls(2, f)
    desk.fail(one, wait=5.0, overloaded=True)
    desk.fail(two, wait=2.0, overloaded=True)
    call = desk.call(f)
    desk.wait(9.0)
    assert desk.begun(call) == [5.0]


def test_no_hedge_is_made_of_a_key_that_is_closed() -> None:
    desk = Desk()
    f = desk.function(hedging=Hedging(0.5, 0.0, 1, 1.0))
    slow, away = desk.calls(2, f)
    desk.fail(away, wait=5.0, overloaded=True)
    desk.wait(4.9)
    assert len(desk.begun(slow)) == 1


def test_without_a_hint_only_the_call_itself_waits() -> None:
    desk = Desk()
    f = desk.function(retries=1)
    desk.fail(desk.call(f), overloaded=True)
    assert desk.begun(desk.call(f))
    assert f.counters.overloaded == 1


# the limit that moves


def run(desk: Desk, f: Function, count: int, *, ok: bool = False) -> None:
    """So many calls, as many at once as may be, each ending after a second."""
    calls = desk.calls(count, f)
    while any(not call.done for call in calls):
        desk.wait(1.0)
        for call in desk.under_way():
            if ok:
                desk.ok(call)
            else:
                desk.fail(call)


def test_the_limit_of_the_group_falls_when_tries_fail_are_slow_time_out_or_are_turned_away_and_is_what_is_enforced() -> None:
    for what, seconds, timeout in (("fails", None, None), ("slow", 0.5, None), ("times out", None, 1.0), ("turned away", None, None)):
        desk = Desk()
        f = desk.function(most=32, adapting=Adapting(2, 500, 0.3, seconds), timeout=timeout)
        if what == "turned away":
            for call in desk.calls(32, f):
                desk.fail(call, after=0.01, overloaded=True)
        elif what == "times out":
            desk.calls(32, f)
            desk.wait(2.0)
            for attempt in list(desk.watch.live):
                desk.stopped(attempt)
        else:
            run(desk, f, 32, ok=what == "slow")
        assert desk.scheduler.group.limit == 16, what
        desk.calls(100, f)
        assert len(desk.under_way()) == 16, what


def test_with_a_rate_it_is_the_rate_of_the_key_that_moves_and_never_beyond_what_is_set() -> None:
    desk = Desk()
    f = desk.function(rate=Rate(20, 10.0), adapting=Adapting(2, 500, 0.3, None), keyed=True)
    for call in [desk.call(f, "a") for _ in range(20)]:
        desk.fail(call)
    ration = f.keys["a"].rate_limit
    assert ration is not None
    assert ration.size == 10
    assert desk.scheduler.group.limit == float("inf")
    desk.wait(10.0)
    calls = [desk.call(f, "a") for _ in range(50)]
    assert sum(bool(desk.begun(call)) for call in calls) == 10
    assert desk.begun(desk.call(f, "b")), "another key is not concerned"
    for _ in range(400):
        for call in desk.under_way():
            desk.ok(call)
        desk.call(f, "a")
        desk.wait(0.25)
    assert ration.size == 20


def test_the_rate_of_a_key_falls_at_once_when_a_try_is_turned_away() -> None:
    desk = Desk()
    f = desk.function(rate=Rate(20, 10.0), adapting=Adapting(2, 500, 0.3, None))
    desk.fail(desk.call(f), overloaded=True)
    assert sum(bool(desk.begun(call)) for call in desk.calls(20, f)) == 9


def test_a_key_that_was_asked_to_be_left_alone_does_not_want_a_higher_rate() -> None:
    desk = Desk()
    f = desk.function(rate=Rate(20, 10.0), adapting=Adapting(2, 500, 0.3, None))
    (away, *calls) = desk.calls(20, f)
    desk.fail(away, wait=100.0, overloaded=True)
    adaptive = f.keys[None].adaptive
    assert adaptive is not None
    desk.call(f)
    desk.wait(20.0)
    adaptive.wanted = False
    desk.call(f)
    for call in calls:
        desk.ok(call)
    assert not adaptive.wanted
