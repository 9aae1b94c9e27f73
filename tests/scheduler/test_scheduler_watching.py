"""What watching must not forget: idle sources, late loops, and pools that come by a route."""

from __future__ import annotations

from scheduler_desk import Desk
from scheduler_warm import PACE, live, warm_all

from qreward.scheduler.outcome import Answer
from qreward.settings.policies import Hedge, Limits

SLOW = 10 * PACE


def test_a_slow_source_takes_the_last_items_when_the_quick_one_is_marked_down() -> None:
    desk = warm_all(Desk({"quick": 4, "slow": 4}), slow=SLOW)
    feed = desk.feed(8)
    assert (len(desk.at("quick")), len(desk.at("slow"))) == (4, 0)
    desk.mark("quick", down=True)
    desk.wait(1.0)
    assert len(desk.at("slow")) == 4
    assert not feed.buffer


def test_the_quickest_source_is_not_held_back_because_its_pace_moved_a_little() -> None:
    desk = warm_all(Desk({"quick": 4, "slow": 4}), slow=SLOW)
    desk.feed(12)
    began = desk.now
    for number, attempt in enumerate(desk.at("quick")):
        desk.until(began + 1.02 + 0.03 * number)
        desk.report(attempt, Answer("yes", 10, 20))
        assert len(desk.at("quick")) == 4


def test_tail_copies_leave_the_slots_that_are_kept_for_single_calls_while_another_bulk_waits() -> None:
    desk = warm_all(Desk({"a": 10, "b": 10}, hedge=Hedge(after=1000.0)), lengths=[40])
    desk.ok(live(desk.submit()), after=0.0)
    desk.feed(2)
    last = [attempt.task for attempt in desk.watch.live]
    assert len(last) == 2
    other = desk.feed(100)
    while desk.now < live(last[0]).sent_at + 2.2:  # longer than one percent, less than what a hang takes
        for attempt in list(desk.watch.live):
            if attempt.task not in last and desk.now - attempt.sent_at >= 1.0:
                desk.report(attempt, Answer("yes", 10, 20))
        desk.wait(0.1)
    assert other.buffer
    assert all(task.copy is None for task in last)


def test_after_a_stall_no_tail_copy_is_made_until_answers_could_be_read() -> None:
    desk = warm_all(Desk({"slow": 4, "quick": 4}, hedge=Hedge(after=1000.0)), slow=0.2)
    desk.mark("quick", down=True)
    desk.feed(1)
    [attempt] = desk.at("slow")
    desk.mark("quick", down=False)
    wake = desk.scheduler.next_wake()
    assert wake is not None
    desk.now = wake + 1.0
    desk.tick()
    assert attempt.task.copy is None


def test_a_loop_that_is_always_late_still_ends_what_is_overdue() -> None:
    desk = warm_all(Desk({"a": 4}))
    task = desk.submit()
    for _ in range(300):
        wake = desk.scheduler.next_wake()
        assert wake is not None
        desk.now = wake + 0.15
        desk.tick()
    assert desk.is_cancelled(live(task)), f"an attempt of {desk.now - live(task).sent_at:.0f} s"


def test_a_pool_that_gets_its_sources_by_a_route_shares_by_tokens_too() -> None:
    desk = Desk()
    pool = desk.new_pool("route")
    desk.add("a", Limits(max_concurrency=1))
    desk.reroute(["a"], pool)
    assert pool.queue.cost == desk.scheduler._cost


def test_a_source_that_comes_by_a_route_alone_is_looked_at_in_time() -> None:
    desk = Desk(hedge=Hedge(after=1.0))
    for name in "ab":
        desk.add(name, Limits(max_concurrency=4), pools=[])
    desk.reroute(["a", "b"])
    task = desk.submit()
    desk.wait(1.3)
    assert task.copy is not None
