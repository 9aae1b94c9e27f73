"""Who is next: by priority, by age, by deadline, retries first; and an entry that a source must not have is in nobody's way."""

from __future__ import annotations

from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_queue import A, B, C, feed, order, queue, task

from qreward.scheduler.queue import AGEING, BULK, LEVELS, PATIENCE, SWEEP, Queue
from qreward.scheduler.state import Source, Task, TaskState
from qreward.settings.policies import Priority


def test_what_waits_is_handed_out_by_level_age_and_deadline() -> None:
    """What is put into the queue; the order in which it comes out, by place in that list."""
    low, normal, high = Priority.LOW, Priority.NORMAL, Priority.HIGH
    avoiding = task(avoids=(A,))
    bulk = feed(3)
    items = list(bulk.buffer)
    items[2].deadline = 1.0
    scenes: dict[str, tuple[list[Task], list[int]]] = {
        "levels": ([task(low), task(normal), task(high)], [2, 1, 0]),
        "order of submission": ([task(born=float(number)) for number in range(5)], [0, 1, 2, 3, 4]),
        "just less than the ageing": ([task(normal, born=101.0 - 5 * AGEING), task(high, born=100.0)], [1, 0]),
        "just more than the ageing": ([task(normal, born=99.0 - 5 * AGEING), task(high, born=100.0)], [0, 1]),
        "retries": ([task(born=5.0), task(born=4.0, avoids=())], [1, 0]),
        "retries, oldest first": ([task(born=3.0, avoids=(C,)), task(born=1.0, avoids=(B,)), task(born=2.0, avoids=())], [1, 2, 0]),
        "what avoids the source stays": ([avoiding, task(born=9.0)], [1]),
        "deadlines": ([task(timeout=300.0), task(born=1.0, timeout=5.0), task(born=2.0, timeout=60.0)], [1, 2, 0]),
        "deadlines within a level": ([task(normal, timeout=1.0), task(high)], [1, 0]),
        "equal timeouts": ([task(timeout=60.0), task(timeout=5.0), task(timeout=60.0), task(timeout=60.0)], [1, 0, 2, 3]),
    }
    found = {}
    for what, (entries, expected) in scenes.items():
        taken = [entries.index(each) for each in order(queue(*entries))]
        if taken != expected:
            found[what] = taken
    assert not found
    assert order(queue(bulk)) == items, "a bulk keeps its order, whatever the deadlines"


def test_a_bulk_lets_single_tasks_of_its_level_go_first_for_a_minute_and_those_of_less_urgent_ones_not_at_all() -> None:
    bulk, early, late = feed(1, served=0.0), task(born=BULK - 1), task(born=BULK + 1)
    batch = next(iter(bulk.buffer))
    assert order(queue(bulk, early, late)) == [early, batch, late]
    urgent, single = feed(1, level=Priority.HIGH), task(Priority.NORMAL)
    assert order(queue(single, urgent))[0] is not single


def test_while_single_tasks_wait_a_bulk_of_their_level_gets_one_item_a_minute() -> None:
    bulk, waiting = feed(99), Queue()
    waiting.put_feed(bulk)
    for second in range(601):
        waiting.put(task(born=float(second)))
        waiting.take(A, float(second))
    assert len(bulk.buffer) == 99 - 600 // (BULK + 1)


def test_feeds_of_one_level_take_turns_and_one_that_is_dropped_is_no_longer_served() -> None:
    first, second, third, dropped = feed(3), feed(3), feed(1), feed(2)
    waiting, taken = queue(first, second, third, dropped), []
    for _ in range(2):
        waiting.drop_feed(dropped)
    while (entry := waiting.take(A, 1.0)) is not None:
        taken.append(entry[1])
    assert taken == [first, second, third, first, second, first, second]


def test_emptying_hands_over_everything_the_read_ahead_included() -> None:
    fresh, again, bulk = task(), task(avoids=(A,)), feed(2)
    ended = task()
    waiting = queue(fresh, again, bulk, ended)
    ended.state = TaskState.DONE
    inside = list(bulk.buffer)
    assert set(waiting.empty()) == {fresh, again, *inside}
    assert not bulk.buffer
    assert not bulk.queued
    assert not waiting


def test_tasks_with_earlier_deadlines_than_those_before_them_are_counted_emptied_and_dropped_once_ended() -> None:
    tasks = [task(timeout=timeout) for timeout in (300.0, 200.0, 100.0, 250.0)]
    waiting = queue(*tasks)
    assert len(waiting) == 4
    tasks[1].state = TaskState.DONE
    waiting.take_back(tasks[1])
    assert len(waiting) == 3
    assert set(waiting.empty()) == {tasks[0], tasks[2], tasks[3]}
    assert len(waiting) == 0


def test_the_oldest_retry_goes_first_and_at_a_source_that_is_being_tested_the_one_with_fewest_failures() -> None:
    source = Source("d", Random(0))
    often, once = task(born=1.0, avoids=()), task(born=2.0, avoids=())
    often.failures = ((A, 0.0), (B, 0.0))
    once.failures = ((A, 0.0),)
    seen = {}
    for limit in (inf, 2, 1):
        source.health.half_open_limit = limit
        seen[limit] = order(queue(often, once), source)
    assert seen == {inf: [often, once], 2: [often, once], 1: [once, often]}


def test_equal_deadlines_keep_the_order_of_submission_although_one_between_them_has_ended() -> None:
    late, early, behind = task(born=0.0, timeout=100.0), task(born=50.0, timeout=50.0), task(timeout=500.0)
    for entries in ((late, early), (behind, late, early), (late, behind, early)):
        assert order(queue(*entries)) == [each for each in (late, early, behind) if each in entries]
    gone, first, second = task(timeout=100.0), task(timeout=50.0), task(timeout=50.0)
    waiting = queue(gone, first)
    gone.state = TaskState.DONE
    assert waiting.key(A) == 5 * AGEING
    waiting.put(second)
    assert order(waiting) == [first, second]


def test_a_task_without_a_deadline_is_not_starved_by_those_that_have_one() -> None:
    patient, waiting = task(born=0.0), Queue()
    waiting.put(patient)
    for second in range(2000):
        waiting.put(task(born=float(second), timeout=30.0))
        entry = waiting.take(A, float(second))
        assert entry is not None
        if entry[0] is patient:
            assert second <= PATIENCE
            return
    pytest.fail("the patient one never went")


def test_a_reserved_slot_takes_single_tasks_only() -> None:
    bulk, single, again = feed(2), task(born=5.0), task(born=7.0, avoids=(B,))
    waiting = queue(bulk, single, again)
    assert order(waiting, now=1e6, allow_batch=False) == [single, again]
    assert waiting.key(A, allow_batch=False) == float("inf")
    assert len(order(waiting)) == 2


def test_a_reserved_slot_takes_a_bulks_item_that_is_tried_again_but_no_fresh_one() -> None:
    """Its last hope may be this source: others may have to leave it."""
    bulk = feed(2)
    waiting = queue(bulk)
    entry = waiting.take(A, 0.0)
    assert entry is not None
    item = entry[0]
    assert item.feed is bulk
    item.sent_at, item.excluded = 0.0, (B,)
    waiting.put(item)
    single = task(born=9.0)
    waiting.put(single)
    assert waiting.waiting == 1, "items of batches do not count"
    assert order(waiting, allow_batch=False) == [item, single]
    assert waiting.waiting == 0
    assert len(waiting) == 1


def test_a_reserved_slot_takes_the_single_task_of_the_tenant_that_is_next() -> None:
    waiting = queue(feed(9, tenant="bulk"), *(task(tenant="x", cost=5.0) for _ in range(3)), *(task(tenant="y") for _ in range(3)))
    taken = order(waiting, allow_batch=False)
    assert [each.tenant for each in taken] == ["x", "y", "y", "y", "x", "x"]


def test_a_level_is_as_urgent_for_a_reserved_slot_as_its_single_tasks() -> None:
    waiting = queue(feed(1, level=Priority.HIGH), task(Priority.HIGH, born=200.0), task(Priority.NORMAL, born=10.0))
    assert waiting.key(A, allow_batch=False) == 10.0 + AGEING * Priority.NORMAL
    assert waiting.key(A) == BULK


def test_it_is_known_how_much_the_bulks_are_still_to_give() -> None:
    ended, counted, endless = feed(3), feed(3), feed(3)
    ended.ended, counted.left = True, 50
    waiting = queue(ended, counted, task())
    assert waiting.left() == 53
    waiting.put_feed(endless)
    assert waiting.left() == float("inf")
    assert Queue().left() == 0


def test_what_ended_behind_one_that_waits_is_not_kept() -> None:
    waiting, first = Queue(), task()
    waiting.put(first)
    for number in range(20 * SWEEP):
        each = task(born=float(number % 7), timeout=1.0 + number % 5, avoids=(B,) if number % 3 else None)
        waiting.put(each)
        each.state = TaskState.DONE
        waiting.ended(each)
    assert len(waiting) <= SWEEP + 1
    assert order(waiting) == [first]


entries = st.lists(st.tuples(st.integers(0, LEVELS - 1), st.floats(0, 500), st.sampled_from([None, (), (A,), (B,), (A, B)])), max_size=30)


@given(entries, st.lists(st.sampled_from([A, B, C]), max_size=40))
def test_the_queue_hands_out_what_sorting_by_age_and_level_would(
    entries: list[tuple[int, float, tuple[Source, ...] | None]], takers: list[Source]
) -> None:
    """Fresh tasks come in the order of time, as they do in life; retried ones keep theirs."""
    made = [task(level, born, avoids=avoids) for level, born, avoids in sorted(entries, key=lambda entry: entry[1])]
    waiting, left = queue(*made), list(made)
    for source in takers:
        able = [each for each in left if source not in each.excluded]
        best = min((each.born + each.level * AGEING for each in able), default=None)
        entry = waiting.take(source, 0.0)
        if entry is None:
            assert best is None
        else:
            taken = entry[0]
            assert source not in taken.excluded
            assert taken.born + taken.level * AGEING == best
            left.remove(taken)
    assert len(waiting) == len(left)


moves = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 2), st.sampled_from([None, 1.0, 30.0, 1000.0])),
        st.tuples(st.just("again"), st.integers(0, 2), st.sampled_from([(), (A,), (A, B)])),
        st.tuples(st.just("end"), st.integers(0, 50), st.none()),
        st.tuples(st.just("take"), st.sampled_from([A, B]), st.booleans()),
        st.tuples(st.just("reclaim"), st.sampled_from([(A,), (A, B)]), st.none()),
    ),
    max_size=80,
)


@given(moves)
def test_counts_are_right_and_deadlines_are_kept_whatever_happens(moves: list[tuple[str, Any, Any]]) -> None:
    """Against a plain list: within a level the fresh task that is taken is the one that is due first."""
    waiting, inside, now = Queue(), list[Task](), 0.0
    for what, first, second in moves:
        now += 0.5
        if what in {"put", "again"}:
            made = task(first, now, timeout=second) if what == "put" else task(first, now, avoids=second)
            made.number = int(2 * now)
            waiting.put(made)
            inside.append(made)
        elif what == "end" and inside:
            gone = inside.pop(first % len(inside))
            gone.state = TaskState.DONE
            waiting.ended(gone)
        elif what == "take":
            entry = waiting.take(first, now, allow_batch=bool(second))
            if entry is None:
                assert all(first in each.excluded for each in inside)
                continue
            taken = entry[0]
            inside.remove(taken)
            rivals = [each for each in inside if each.level == taken.level and each.sent_at is None and taken.sent_at is None]
            due = min(taken.deadline, taken.born + PATIENCE)
            assert all((due, taken.number) < (min(each.deadline, each.born + PATIENCE), each.number) for each in rivals)
        elif what == "reclaim":
            stuck = waiting.reclaim(first)
            assert set(stuck) == {each for each in inside if each.sent_at is not None and set(first) <= set(each.excluded)}
            inside = [each for each in inside if each not in stuck]
        for source in (A, B):
            able = [each for each in inside if source not in each.excluded]
            assert (waiting.key(source) < float("inf")) == bool(able)
        assert waiting.waiting == len(inside)
        assert bool(waiting) == bool(inside)
        assert sorted({each.level for each in inside}) == waiting.levels
