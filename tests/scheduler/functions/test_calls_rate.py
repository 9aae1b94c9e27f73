"""The rate of a key, kept over everything that starts."""

from __future__ import annotations

from calls_desk import AT_ONCE, Desk, Hedging, Rate


def test_no_more_than_size_start_in_any_window_and_none_later_than_that() -> None:
    desk = Desk()
    f = desk.function(rate=Rate(3, 1.0))
    desk.calls(2, f)
    desk.wait(0.75)
    desk.calls(6, f)
    desk.wait(10.0)
    assert [at for at, _ in desk.watch.sends] == [0.0, 0.0, 0.75, 1.0, 1.0, 1.75, 2.0, 2.0]


def test_the_clock_is_woken_at_the_very_time_for_each_key() -> None:
    for window in (0.001, 0.1, 1 / 3, 60.0):
        desk = Desk()
        f = desk.function(rate=Rate(1, window), keyed=True)
        desk.now = 1e6 / 7
        starts = [desk.now]
        for _ in range(3):
            starts.append(starts[-1] + window)
        calls = [desk.call(f, key) for key in "abababab"]
        desk.wait(5 * window)
        assert [desk.begun(call)[0] for call in calls] == [start for start in starts for _ in "ab"], window


def test_retries_and_hedges_count() -> None:
    desk = Desk()
    f = desk.function(rate=Rate(2, 10.0), retries=5, pause=AT_ONCE, hedging=Hedging(0.5, 0.0, 1, 1.0))
    call = desk.call(f)
    desk.fail(call, after=0.1)
    assert desk.begun(call) == [0.0, 0.1]
    desk.wait(9.0)
    assert len(desk.begun(call)) == 2, "the hedge waits"
    desk.wait(1.5)
    assert len(desk.begun(call)) == 3
    assert desk.tries(call)[1].hedge


def test_what_was_withdrawn_while_it_waited_takes_nothing() -> None:
    desk = Desk()
    f = desk.function(rate=Rate(1, 1.0))
    calls = desk.calls(4, f)
    desk.withdraw(calls[1], calls[2])
    desk.wait(1.0)
    assert desk.begun(calls[3]) == [1.0]


def test_a_late_tick_neither_loses_anybody_nor_gives_more_than_is_allowed() -> None:
    desk = Desk()
    f = desk.function(rate=Rate(2, 1.0))
    desk.calls(9, f)
    desk.now = 3.7
    desk.tick()
    assert [at for at, _ in desk.watch.sends] == [0.0, 0.0, 3.7, 3.7]
    desk.wait(9.0)
    assert len(desk.watch.sends) == 9


def test_when_the_first_leaves_while_a_tick_is_overdue_the_next_one_goes() -> None:
    desk = Desk()
    f = desk.function(rate=Rate(1, 1.0))
    _, second, third = desk.calls(3, f)
    desk.now = 1.5
    desk.withdraw(second)
    assert desk.begun(third) == [1.5]


def test_whoever_comes_while_a_tick_is_overdue_overtakes_nobody() -> None:
    desk = Desk()
    f, g = desk.function("f", rate=Rate(1, 1.0), most=2), desk.function("g")
    desk.call(f)
    high = desk.call(f, level=0)
    desk.now = 1.5
    low = desk.call(g, level=9)
    assert desk.begun(high) == [1.5]
    assert not desk.begun(low)


def test_one_that_is_not_paced_is_hedged_after_those_that_are_have_gone() -> None:
    desk = Desk()
    f = desk.function(rate=Rate(1, 10.0), hedging=Hedging(0.5, 0.0, 1, 1.0))
    hasty = desk.call(f, paced=False)
    waits = desk.call(f)
    desk.wait(9.9)
    assert len(desk.begun(hasty)) == 1
    desk.wait(1.0)
    assert desk.begun(waits)[0] == 10.0
    assert len(desk.begun(hasty)) == 2


def test_one_that_is_not_paced_waits_for_no_rate_and_counts() -> None:
    desk = Desk()
    f = desk.function(rate=Rate(1, 1.0), most=2)
    desk.call(f)
    hasty = desk.call(f, paced=False)
    assert desk.begun(hasty) == [0.0]
    paced, waits = desk.call(f), desk.call(f, paced=False)
    assert not desk.begun(waits), "there is no room"
    desk.ok(hasty, after=0.5)
    assert desk.begun(waits) == [0.5]
    desk.ok(waits)
    assert desk.begun(desk.call(f, paced=False)) == [0.5], "though another waits for the rate"
    desk.wait(3.0)
    assert not desk.begun(paced), "there is no room"
