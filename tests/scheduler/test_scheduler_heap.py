"""A heap whose things may move and leave: order, and that it stays small."""

from __future__ import annotations

import gc
import weakref
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from qreward.scheduler.heap import SWEEP, IndexedHeap

moves = st.lists(st.tuples(st.sampled_from(["put", "put", "drop", "take"]), st.integers(0, 7), st.integers(0, 4), st.integers(0, 3)))


@given(moves)
def test_it_gives_what_a_sorted_list_gives(steps: list[tuple[str, int, int, int]]) -> None:
    heap: IndexedHeap[str] = IndexedHeap()
    model: dict[str, tuple[int, int, int]] = {}
    for turn, (what, thing, rank, number) in enumerate(steps):
        name = str(thing)
        if what == "put":
            heap.put(name, rank, number)
            if model.get(name, ())[:2] != (rank, number):
                model[name] = rank, number, turn
        elif what == "drop":
            heap.drop(name)
            model.pop(name, None)
        elif model:
            first = min(model, key=model.__getitem__)
            assert heap.take() == first
            del model[first]
        assert heap.first() == min(model, key=model.__getitem__, default=None)
        assert heap.rank() == min((place[0] for place in model.values()), default=inf)
        assert len(heap) == len(model)
        assert all((str(name) in heap) == (str(name) in model) for name in range(8))
    assert heap.empty() == sorted(model, key=model.__getitem__)
    assert len(heap) == 0
    assert heap.first() is None


def test_what_left_or_moved_is_not_kept() -> None:
    heap: IndexedHeap[int] = IndexedHeap()
    heap.put(-1, 0.0)
    for thing in range(1000):
        heap.put(thing, 1.0)
        heap.drop(thing)
        heap.put(-2, float(thing))
        assert len(heap._heap) <= 2 * len(heap) + SWEEP
    for thing in range(1000):
        heap.put(thing, 1.0)
    for thing in range(1000):
        heap.drop(thing)
    assert len(heap._heap) <= 2 * len(heap) + SWEEP


def test_what_left_is_not_kept_alive() -> None:
    class Thing:
        pass

    heap: IndexedHeap[Thing] = IndexedHeap()
    things = [Thing() for _ in range(3)]
    watched = [weakref.ref(thing) for thing in things]
    for rank, thing in enumerate(things):
        heap.put(thing, float(rank))
    heap.drop(things[2])  # behind others
    del things[2], thing
    gc.collect()
    assert [reference() is None for reference in watched] == [False, False, True]
