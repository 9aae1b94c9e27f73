"""Who is next: by priority, by age, feeds in turn, retries first; and an entry that a source must not have is in nobody's way."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qreward.core.balance import ExpectedFinish
from qreward.core.pool import Pool
from qreward.core.queue import AGEING, BULK, LEVELS, MOST_GROUPS, Queue
from qreward.core.source import Source
from qreward.core.task import Feed, State, Task
from qreward.policies import Priority

A, B, C = (Source(name, Random(0)) for name in "abc")
POOL = Pool("p", [], ExpectedFinish())


def task(level: int = 5, born: float = 0.0, *, avoids: tuple[Source, ...] | None = None) -> Task:
    """A task that waits; one that avoids sources has been sent before."""
    made = Task(None, POOL, level, None, None, 0)
    made.born = born
    if avoids is not None:
        made.sent_at, made.excluded = born, avoids
    return made


def feed(size: int, level: int = 5, served: float = 0.0) -> Feed:
    made = Feed(POOL, level, None, served)
    made.buffer.extend(task(level) for _ in range(size))
    return made


def queue(*entries: Task | Feed) -> Queue:
    made = Queue()
    for entry in entries:
        if isinstance(entry, Task):
            made.put(entry)
        else:
            made.put_feed(entry)
    return made


def order(waiting: Queue, source: Source = A, now: float = 0.0) -> list[Task]:
    """All that a source would take, in order."""
    taken = []
    while (entry := waiting.take(source, now)) is not None:
        taken.append(entry[0])
    return taken


def test_urgent_goes_before_normal_before_low() -> None:
    low, normal, high = task(Priority.LOW), task(Priority.NORMAL), task(Priority.HIGH)
    assert order(queue(low, normal, high)) == [high, normal, low]


def test_tasks_of_one_level_go_in_the_order_they_came() -> None:
    tasks = [task(born=float(number)) for number in range(5)]
    assert order(queue(*tasks)) == tasks


@pytest.mark.parametrize(("age", "first"), [(AGEING * 5 - 1, "high"), (AGEING * 5 + 1, "normal")])
def test_fifteen_seconds_of_waiting_outweigh_a_level(age: float, first: str) -> None:
    normal, high = task(Priority.NORMAL, born=100.0 - age), task(Priority.HIGH, born=100.0)
    assert order(queue(normal, high))[0] is (normal if first == "normal" else high)


def test_nothing_starves_under_a_flood_of_urgent_tasks() -> None:
    low, waiting = task(Priority.LOW, born=0.0), Queue()
    waiting.put(low)
    for second in range(1000):
        waiting.put(task(Priority.HIGH, born=float(second)))
        entry = waiting.take(A, float(second))
        assert entry is not None
        if entry[0] is low:
            assert second <= AGEING * Priority.LOW + 1
            return
    pytest.fail("the low one never went")


def test_a_bulk_lets_single_tasks_of_its_level_go_first_for_a_minute() -> None:
    bulk, early, late = feed(1, served=0.0), task(born=BULK - 1), task(born=BULK + 1)
    batch = bulk.buffer[0]
    assert order(queue(bulk, early, late)) == [early, batch, late]


def test_an_urgent_bulk_goes_before_normal_single_tasks() -> None:
    bulk, single = feed(1, level=Priority.HIGH), task(Priority.NORMAL)
    assert order(queue(single, bulk))[0] is not single


def test_feeds_of_one_level_take_turns() -> None:
    first, second, third = feed(3), feed(3), feed(1)
    waiting, taken = queue(first, second, third), []
    while (entry := waiting.take(A, 1.0)) is not None:
        taken.append(entry[1])
    assert taken == [first, second, third, first, second, first, second]


def test_a_feed_that_ran_dry_joins_again_at_the_end_of_the_round() -> None:
    first, second = feed(1), feed(2)
    waiting = queue(first, second)
    waiting.take(A, 1.0)
    assert not first.lined
    first.buffer.append(task())
    waiting.put_feed(first)
    waiting.put_feed(first)
    turns = [entry[1] for entry in iter(lambda: waiting.take(A, 2.0), None)]
    assert turns == [second, first, second]


def test_a_retried_task_goes_before_fresh_ones_that_came_after_it() -> None:
    fresh, again = task(born=5.0), task(born=4.0, avoids=())
    assert order(queue(fresh, feed(1), again))[0] is again


def test_retried_tasks_go_oldest_first_whatever_they_avoid() -> None:
    one, two, three = task(born=1.0, avoids=(B,)), task(born=2.0, avoids=()), task(born=3.0, avoids=(C,))
    assert order(queue(three, one, two)) == [one, two, three]


def test_an_entry_that_avoids_a_source_does_not_keep_others_from_it() -> None:
    avoiding, other = task(born=0.0, avoids=(A,)), task(born=9.0)
    waiting = queue(avoiding, other)
    assert waiting.key(A) == 9.0 + 5 * AGEING
    assert order(waiting) == [other]
    assert order(waiting, B) == [avoiding]


def test_any_number_of_entries_that_avoid_a_source_cost_it_one_look() -> None:
    """They stand in one line, not each at the head of the queue."""
    avoiding = [task(born=0.0, avoids=(A,)) for _ in range(1000)]
    other = task(born=9.0, avoids=(B,))
    assert MOST_GROUPS >= 2
    assert order(queue(*avoiding, other)) == [other]


def test_the_key_is_that_of_the_task_that_would_be_taken() -> None:
    waiting = queue(task(7, born=3.0), task(5, born=20.0, avoids=(A,)))
    assert waiting.key(A) == 3.0 + 7 * AGEING
    assert waiting.key(B) == 20.0 + 5 * AGEING
    assert Queue().key(A) == float("inf")


def test_tasks_that_ended_while_they_waited_are_not_handed_out() -> None:
    gone, gone_again, left = task(born=0.0), task(born=0.0, avoids=()), task(born=1.0)
    waiting = queue(gone, gone_again, left)
    gone.state = gone_again.state = State.DONE
    assert order(waiting) == [left]
    assert not waiting
    assert len(waiting) == 0


def test_emptying_hands_over_everything_the_read_ahead_included() -> None:
    fresh, again, bulk = task(), task(avoids=(A,)), feed(2)
    ended = task()
    waiting = queue(fresh, again, bulk, ended)
    ended.state = State.DONE
    inside = list(bulk.buffer)
    tasks, feeds = waiting.empty()
    assert set(tasks) == {fresh, again, *inside}
    assert feeds == [bulk]
    assert not bulk.buffer
    assert not bulk.lined
    assert not waiting


def test_only_tasks_that_avoid_all_that_is_left_are_reclaimed() -> None:
    stuck, free, fresh = task(avoids=(A,)), task(avoids=(B,)), task()
    waiting = queue(stuck, free, fresh)
    assert waiting.reclaim((A, B)) == []
    assert waiting.reclaim((A,)) == [stuck]
    assert set(order(waiting)) == {free, fresh}


def test_a_feed_that_is_dropped_is_no_longer_served() -> None:
    first, second = feed(2), feed(1)
    waiting = queue(first, second)
    waiting.drop_feed(first)
    waiting.drop_feed(first)
    assert [entry[1] for entry in iter(lambda: waiting.take(A, 0.0), None)] == [second]


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
