"""The collector by itself: what is taken, what stays, what goes back, and which items are too late."""

from __future__ import annotations

from math import inf
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qreward.batching.collector import OVER, TAKEN, WAITING, Collector, Item, halves
from qreward.scheduler.queue import AGEING, SWEEP


def backlog(*items: Item) -> Collector:
    made = Collector()
    for item in items:
        made.put(item)
    return made


def values(items: list[Any]) -> list[Any]:
    return [item.value for item in items]


def test_costs_that_are_fractions_add_up_to_zero_when_all_are_taken() -> None:
    waiting = backlog(*(Item(cost, cost=cost) for cost in (0.1, 0.7, 0.3)))
    waiting.take(1)
    waiting.take(limit=0.9)
    waiting.take(limit=0.2)
    assert waiting.queues() == []
    waiting.put(Item(1))
    assert [line.cost for line in waiting.queues()] == [1]


def test_a_batch_is_of_one_key_that_of_the_item_which_is_next() -> None:
    waiting = backlog(Item(1, 0.0, "a"), Item(2, 1.0, "b"), Item(3, 2.0, "a"), Item(4, 3.0, ("b",)))
    assert [values(waiting.take()) for _ in range(4)] == [[1, 3], [2], [4], []]
    assert len(waiting.queues()) == 0


def test_items_that_are_put_back_keep_their_place() -> None:
    waiting = backlog(*(Item(number, level=number % 2) for number in range(9)))
    first, second = waiting.take(3), waiting.take(3)
    second[1].state = OVER  # answered in the meantime
    waiting.put_back(first)
    waiting.put_back(second)
    assert waiting.waiting == 8
    assert values(waiting.take()) == [0, 2, 4, 6, 1, 3, 5, 7]


def test_an_item_is_removed_at_once_from_any_place() -> None:
    items = [Item(number, cost=2) for number in range(10 * SWEEP)]
    waiting = backlog(*items)
    for item in items[1:-1]:
        waiting.remove(item)
    (line,) = waiting.queues()
    assert (waiting.waiting, len(line.items), line.cost) == (2, 2, 4)
    assert values(waiting.take()) == [0, 10 * SWEEP - 1]


def test_a_list_is_halved_until_one_item_is_left() -> None:
    assert (halves([1, 2, 3]), halves("ab")) == (([1, 2], [3]), ("a", "b"))


def test_items_past_their_deadline_are_reported_once() -> None:
    items = [Item(number, deadline=float(number)) for number in range(1, 6)]
    waiting = backlog(*items, Item("for ever"))
    assert waiting.next_deadline() == 1.0
    late = waiting.due(2.0)
    assert values(late) == [1, 2]
    for item in late:
        waiting.remove(item)
    assert values(waiting.take(2)) == [3, 4]
    items[2].state = OVER  # 3 was answered in time
    assert values(waiting.due(4.0)) == [4]
    assert (items[0].state, items[3].state) == (OVER, TAKEN)
    assert waiting.due(4.0) == []
    assert waiting.next_deadline() == 5.0
    assert values(waiting.due(inf)) == [5]
    waiting.remove(items[4])
    assert values(waiting.take()) == ["for ever"]
    assert waiting.next_deadline() == inf


def test_no_deadline_is_reported_late_however_many_were_met() -> None:
    waiting, random, live = Collector(), Random(1), list[float]()
    for number in range(20 * SWEEP):
        deadline = random.uniform(1.0, 1e6)
        waiting.put(Item(number, deadline=deadline))
        (item,) = waiting.take()
        if random.random() < 0.7:
            item.state = OVER
        else:
            live.append(deadline)
    found = 0
    for now in sorted(live)[::10]:
        found += len(waiting.due(now))
        assert found == sum(deadline <= now for deadline in live), now


def test_deadlines_that_were_met_are_forgotten() -> None:
    waiting = Collector()
    for number in range(20 * SWEEP):
        waiting.put(Item(number, deadline=1e9))
        for item in waiting.take():
            item.state = OVER
    assert len(waiting._deadlines) <= 3 * SWEEP


class Model:
    """What a backlog of one key and no deadlines must do, in the most obvious way."""

    def __init__(self) -> None:
        self.items: list[Item] = []

    def take(self, most: int, cost: float) -> list[Item]:
        taken: list[Item] = []
        self.items.sort(key=lambda item: (item.arrived + item.level * AGEING, item.number))
        while self.items and len(taken) < most and (not taken or sum(i.cost for i in taken) + self.items[0].cost <= cost):
            taken.append(self.items.pop(0))
        return taken


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 9), st.integers(0, 5)),
        st.tuples(st.just("take"), st.integers(1, 5), st.integers(1, 12)),
        st.tuples(st.just("remove"), st.integers(0, 99), st.just(0)),
        st.tuples(st.just("put back"), st.integers(0, 99), st.just(0)),
    ),
    max_size=60,
)


@given(OPERATIONS)
def test_a_collector_does_what_an_obvious_model_does(operations: list[tuple[str, int, int]]) -> None:
    waiting, model = Collector(), Model()
    held: list[list[Item]] = []
    for now, (what, number, other) in enumerate(operations):
        if what == "put":
            item = Item(now, float(now), level=number, cost=other)
            waiting.put(item)
            model.items.append(item)
        elif what == "take":
            taken = waiting.take(number, limit=other)
            assert taken == model.take(number, other)
            assert all(item.state is TAKEN for item in taken)
            held.append(taken)
        elif what == "remove" and model.items:
            waiting.remove(model.items.pop(number % len(model.items)))
        elif what == "put back" and held:
            back = held.pop(number % len(held))
            waiting.put_back(back)
            model.items += back
        assert waiting.waiting == len(model.items) == len(waiting.items())
        assert all(item.state is WAITING for item in model.items)
        assert sum(len(line.items) for line in waiting.queues()) == len(model.items)
        assert sum(line.cost for line in waiting.queues()) == sum(item.cost for item in model.items)
    assert waiting.take() == model.take(10**6, inf)
