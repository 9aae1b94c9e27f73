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


class Model:
    """What a wheel must do, without buckets: each item with its time, rounded up to a whole 1/64 s."""

    def __init__(self) -> None:
        self.held: dict[Item, int] = {}

    def add(self, item: Item, when: float) -> None:
        self.held[item] = ceil(when * PER_SECOND)

    def pop_due(self, now: float) -> list[Item]:
        due = sorted((item for item in self.held if self.held[item] * BUCKET <= now), key=lambda item: self.held[item])
        for item in due:
            del self.held[item]
        return due


@given(moves)
def test_the_wheel_does_what_a_plain_table_of_times_does(moves: list[tuple[str, int, float]]) -> None:
    wheel, model, items = TimerWheel(), Model(), [Item() for _ in range(8)]
    for what, number, when in moves:
        item = items[number]
        if what == "remove":
            wheel.remove(item)
            model.held.pop(item, None)
        elif what == "pop":
            assert wheel.pop_due(when) == model.pop_due(when)
        elif what == "wake":
            assert wheel.next_wake() == min((bucket * BUCKET for bucket in model.held.values()), default=None)
        elif what == "move" or item.due < 0:
            wheel.move(item, when)
            model.held.pop(item, None)
            model.add(item, when)
        assert len(wheel) == len(model.held)
        assert all((item.due >= 0) == (item in model.held) for item in items)


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
