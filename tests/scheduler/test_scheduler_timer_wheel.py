"""The wheel does what a plain table of times would do, nothing dead stays in it, and its clock never stands still."""

from __future__ import annotations

from math import ceil

from hypothesis import given
from hypothesis import strategies as st
from scheduler_memory import bytes_left_by

from qreward.scheduler.timer_wheel import PER_SECOND, TimerWheel

BUCKET = 1 / PER_SECOND
times = st.one_of(st.floats(0, 1e4), st.integers(0, 640).map(lambda k: k / PER_SECOND), st.floats(1e8, 1e9))


class Item:
    def __init__(self) -> None:
        self.due = -1


moves = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "move", "wake", "pop"]), st.integers(0, 7), times),
    max_size=60,
)


@given(moves)
def test_the_wheel_does_what_a_plain_table_of_times_does(moves: list[tuple[str, int, float]]) -> None:
    """The table has each item with its bucket."""
    wheel, items, held = TimerWheel(), [Item() for _ in range(8)], dict[Item, int]()
    for what, number, when in moves:
        item = items[number]
        if what == "remove":
            wheel.remove(item)
            held.pop(item, None)
        elif what == "pop":
            due = sorted((each for each in held if held[each] * BUCKET <= when), key=held.__getitem__)
            assert wheel.pop_due(when) == due
            held = {each: bucket for each, bucket in held.items() if each not in due}
        elif what == "wake":
            assert wheel.next_wake() == min((bucket * BUCKET for bucket in held.values()), default=None)
        elif what == "move" or item.due < 0:
            wheel.move(item, when)
            held.pop(item, None)
            held[item] = ceil(when * PER_SECOND)
        assert len(wheel) == len(held)
        assert all((each.due >= 0) == (each in held) for each in items)


def test_adding_a_delay_again_and_again_moves_the_clock() -> None:
    for seconds in (0.05, 0.1, 0.3, 1 / 3, 1e-9):
        wheel, item, now = TimerWheel(), Item(), 1e6
        for _ in range(1000):
            wheel.move(item, now + seconds)
            wake = wheel.next_wake()
            assert wake is not None
            assert wake > now or seconds < 1e-9
            now = max(now, wake)
            assert wheel.pop_due(now) == [item]


def test_what_was_removed_leaves_no_memory_behind() -> None:
    """Deadlines of 60 s that are met at once, ten minutes long, while something else is always due soon."""
    wheel, soon = TimerWheel(), Item()

    def work() -> None:
        for number in range(20 * 60 * 10):
            now, item = number / 20, Item()
            wheel.add(item, now + 60)
            wheel.move(soon, now + 10)
            wheel.next_wake()
            wheel.remove(item)

    assert bytes_left_by(work) < 400_000  # 60 s of empty buckets at most; ten minutes of them would be more
    assert len(wheel) == 1
    wheel.remove(soon)
    assert wheel.next_wake() is None
