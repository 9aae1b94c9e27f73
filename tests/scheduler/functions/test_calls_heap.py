"""A heap whose things may move and leave: order, and that it stays small."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from qreward.scheduler.function_limits import SWEEP, IndexedHeap

moves = st.lists(st.tuples(st.sampled_from(["put", "put", "drop", "take"]), st.integers(0, 7), st.integers(0, 4), st.integers(0, 3)))


@given(moves)
def test_it_gives_what_a_sorted_list_gives(steps: list[tuple[str, int, int, int]]) -> None:
    heap: IndexedHeap[str] = IndexedHeap()
    model: dict[str, tuple[int, int, int]] = {}
    for turn, (what, thing, rank, number) in enumerate(steps):
        name = str(thing)
        if what == "put":
            heap.put(name, (rank, number))
            if model.get(name, ())[:2] != (rank, number):
                model[name] = rank, number, turn
        elif what == "drop":
            heap.put(name, inf)
            model.pop(name, None)
        elif model:
            first = min(model, key=model.__getitem__)
            assert heap.take() == first
            del model[first]
        assert heap.first() == min(model, key=model.__getitem__, default=None)
        assert heap.rank() == min((place[:2] for place in model.values()), default=inf)
        assert len(heap) == len(model)
        assert {str(name) for name in range(8) if str(name) in heap} == model.keys()
    assert [heap.take() for _ in range(len(heap))] == sorted(model, key=model.__getitem__)
    assert len(heap) == 0
    assert heap.first() is None


def test_items_of_equal_rank_go_in_the_order_in_which_they_came() -> None:
    heap: IndexedHeap[str] = IndexedHeap()
    for item, rank in (("a", 1.5), ("b", 1.0), ("c", 1.0)):
        heap.put(item, rank)
    heap.put("b", 1.0)
    assert heap.first() == "b", "putting it again where it is changes nothing"
    heap.put("b", 2.0)
    assert [heap.take() for _ in range(len(heap))] == ["c", "a", "b"]


def test_what_left_or_moved_is_not_kept() -> None:
    def put_and_drop(heap: IndexedHeap[int], thing: int) -> None:
        heap.put(thing, 1.0)
        heap.put(thing, inf)

    def move(heap: IndexedHeap[int], thing: int) -> None:
        heap.put(-2, float(thing))

    steps: list[Callable[[IndexedHeap[int], int], None]] = [put_and_drop, move]
    for step in steps:
        heap: IndexedHeap[int] = IndexedHeap()
        heap.put(-1, 0.0)
        for thing in range(1000):
            step(heap, thing)
            assert len(heap._heap) <= 2 * len(heap) + SWEEP

    class Thing:
        pass

    things: IndexedHeap[Thing] = IndexedHeap()
    watched = []
    for rank in range(4):
        last = Thing()
        things.put(last, float(rank))
        watched.append(weakref.ref(last))
    things.put(last, 9.0)
    things.put(last, inf)  # behind others, and after it was moved
    del last
    gc.collect()
    assert [reference() is None for reference in watched] == [False, False, False, True]
