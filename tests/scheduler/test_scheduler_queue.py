"""Who is next: by priority, by age, by deadline, retries first; and an entry that a source must not have is in nobody's way."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from scheduler_queue import A, B, C, feed, order, queue, task

from qreward.scheduler.estimate import CommonService, SourceService
from qreward.scheduler.pool import ExpectedFinish, Pool
from qreward.scheduler.queue import AGEING, BULK, DUE_AFTER, LEVELS, SWEEP, Queue, should_take
from qreward.scheduler.source import Source
from qreward.scheduler.task import BatchFeed, Task, TaskState
from qreward.settings.policies import Priority


def test_what_waits_is_handed_out_by_level_age_and_deadline() -> None:
    """What is put into the queue; the order in which it comes out, by place in that list."""
    low, normal, high = Priority.LOW, Priority.NORMAL, Priority.HIGH
    bulk = feed(3)
    items = list(bulk.buffer)
    items[2].deadline = 1.0
    scenes: dict[str, tuple[list[Task], list[int]]] = {
        "levels": ([task(low), task(normal), task(high)], [2, 1, 0]),
        "just less than the ageing": ([task(normal, born=101.0 - 5 * AGEING), task(high, born=100.0)], [1, 0]),
        "just more than the ageing": ([task(normal, born=99.0 - 5 * AGEING), task(high, born=100.0)], [0, 1]),
        "retries before what is as old": ([task(born=5.0), task(born=5.0, avoids=()), task(born=9.0, avoids=())], [1, 0, 2]),
        "deadlines within a level": ([task(normal, timeout=1.0), task(high)], [1, 0]),
        "earlier and earlier": ([task(timeout=timeout) for timeout in (300.0, 200.0, 100.0, 250.0)], [2, 1, 3, 0]),
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
    served, single = feed(3, served=0.0), task(born=101.0)
    waiting = queue(served)
    waiting.take(A, 100.0)
    waiting.put(single)
    assert order(waiting)[0] is single, "the minute counts from the last item that was taken"
    urgent, single = feed(1, level=Priority.HIGH), task(Priority.NORMAL)
    assert order(queue(single, urgent))[0] is not single


def test_feeds_of_one_level_take_turns_and_one_that_is_dropped_is_no_longer_served() -> None:
    first, second, third, dropped = feed(3), feed(3), feed(1), feed(2)
    waiting, taken = queue(first, second, third, dropped), []
    for _ in range(2):
        waiting.drop_feed(dropped)
    while (entry := waiting.take(A, 1.0)) is not None:
        taken.append(entry[1])
    assert taken == [first, second, third, first, second, first, second]


def test_tenants_of_one_level_take_turns_however_much_each_has_and_without_credit_for_the_past() -> None:
    """Two batches of one tenant, single tasks of a second; a third comes later, and the second comes back."""
    waiting = queue(feed(9, tenant="x"), feed(9, tenant="x"), *(task(tenant="y") for _ in range(3)))

    def taken(count: int) -> str:
        found = [waiting.take(A, 1.0) for _ in range(count)]
        return "".join(str(entry[0].tenant or (entry[0].feed and entry[0].feed.tenant)) for entry in found if entry is not None)

    assert taken(4) == "xyxy"
    waiting.put_feed(feed(9, tenant="z"))
    assert taken(6) == "xyzxzx"
    for _ in range(3):
        waiting.put(task(tenant="y"))
    assert taken(6) == "zxyzxy"


def test_the_oldest_retry_goes_first_and_at_a_source_that_is_being_tested_the_one_with_fewest_failures() -> None:
    source = Source("d", Random(0))
    often, once = task(born=1.0, avoids=()), task(born=2.0, avoids=())
    often.failures = ((A, 0.0), (B, 0.0))
    once.failures = ((A, 0.0),)
    seen = {}
    for tested in (False, True):
        source.health.half_open = tested
        seen[tested] = order(queue(often, once), source)
    assert seen == {False: [often, once], True: [once, often]}


def test_a_retry_is_taken_by_the_source_that_is_expected_to_answer_it_first_and_by_any_other_that_beats_where_it_failed() -> None:
    """Seconds of an answer at three sources, where the task failed, and which of them take it."""
    cases: list[tuple[tuple[float, float, float], tuple[int, ...], list[int]]] = [
        ((1, 1, 1), (), [0, 1, 2]),
        ((1, 1, 1), (0,), [1, 2]),
        ((1, 1.5, 5), (0,), [1]),
        ((1, 3, 5), (0,), [0]),
        ((1, 3, 5), (0, 0), [1]),
        ((1, 3, 5), (0, 1), [0]),
        ((1, 3, 20), (0, 0, 0, 0, 1, 1, 1), [0]),
        ((1, 5, 5), (2,), [0, 1]),
    ]
    wrong = {}
    for seconds, failed, takes in cases:
        sources = [Source(name, Random(0)) for name in "abc"]
        pool = Pool("p", sources, ExpectedFinish(), Queue())
        for source, each in zip(sources, seconds, strict=True):
            for _ in range(1000):
                pool.common.answered(0.0, source.service, each * 1.1 - 0.1, None, 0.0, 1)  # less the pull of the prior
                pool.common.count(0.0)
        pool.common = CommonService()
        pool.common.answered(0.0, SourceService(), 1.0, None, 0.0, 1)
        again = Task(None, pool, 5, None, None, 0)
        again.sent_at, again.failures = 0.0, tuple((sources[place], 0.0) for place in failed)
        found = [place for place, source in enumerate(sources) if should_take(source, again, 0.0)]
        pool.queue.put(again)
        assert [place for place, source in enumerate(sources) if pool.queue.best(source, 0.0)[0] < inf] == found
        if found != takes:
            wrong[seconds, failed] = found
    assert not wrong


def test_a_source_that_leaves_new_tasks_to_others_takes_those_that_were_sent_before() -> None:
    """The last hope of an item that was sent may be this source: others may have to leave it."""
    bulk = feed(3)
    waiting = queue(bulk)
    entry = waiting.take(A, 0.0)
    assert entry is not None
    item = entry[0]
    assert entry[1] is item.feed is bulk
    item.sent_at, item.unfit = 0.0, (B,)
    single, again = task(born=5.0), task(born=7.0, avoids=(B,))
    for each in (item, single, again):
        waiting.put(each)
    assert (waiting.waiting, len(waiting)) == (2, 5), "items of batches are not counted as waiting"
    assert order(waiting, now=1e6, patience=1e9) == [item, again]
    assert waiting.best(A, 0.0, patience=1e9)[0] == float("inf")
    assert (waiting.waiting, len(waiting)) == (1, 3)
    assert order(waiting)[0] is single
    assert len(waiting) == 0


def test_a_bulks_item_that_is_tried_again_is_not_counted_as_waiting_however_it_leaves() -> None:
    def end(waiting: Queue, item: Task) -> None:
        item.state = TaskState.DONE
        waiting.ended(item)

    def take_back(waiting: Queue, item: Task) -> None:
        item.state = TaskState.SENT
        waiting.take_back(item)

    ways: dict[str, tuple[Callable[[Queue, Task], object], int]] = {
        "taken": (lambda waiting, _: waiting.take(B, 0.0), 1),
        "unservable": (lambda waiting, _: waiting.unservable((A,)), 1),
        "ended": (end, 1),
        "taken back": (take_back, 1),
        "emptied": (lambda waiting, _: waiting.empty(), 0),
    }
    for way, (leave, left) in ways.items():
        item, single = task(avoids=(A,)), task(born=9.0, avoids=(B,))
        item.feed = feed(0)
        waiting = queue(item, single)
        assert waiting.waiting == 1, way
        leave(waiting, item)
        assert (waiting.waiting, item.queued, single.queued) == (left, False, left > 0), way


def test_it_is_known_how_much_waits_and_is_to_be_read() -> None:
    ended, counted, endless = feed(3), feed(3), feed(3)
    ended.ended, counted.left = True, 50
    waiting = queue(ended, counted, task())
    assert waiting.left() == 54
    waiting.put_feed(endless)
    assert waiting.left() == float("inf")
    assert Queue().left() == 0


def test_what_ended_behind_one_that_waits_is_not_kept() -> None:
    waiting, first = Queue(), task(timeout=0.5)
    waiting.put(first)
    for number in range(20 * SWEEP):
        each = task(born=float(number % 7), timeout=20.0 - number % 7, avoids=(B,) if number % 3 else None)
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
        able = [each for each in left if source not in each.unfit]
        best = min((each.born + each.level * AGEING for each in able), default=None)
        entry = waiting.take(source, 0.0)
        if entry is None:
            assert best is None
        else:
            taken = entry[0]
            assert source not in taken.unfit
            assert taken.born + taken.level * AGEING == best
            left.remove(taken)
    assert len(waiting) == len(left)


moves = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 1), st.sampled_from([None, 1.0, 3.0, 1000.0])),
        st.tuples(st.just("again"), st.integers(0, 1), st.sampled_from([(), (A,), (A, B)])),
        st.tuples(st.sampled_from(["end", "take back"]), st.integers(0, 50), st.none()),
        st.tuples(st.just("feed"), st.integers(1, 3), st.none()),
        st.tuples(st.just("take"), st.sampled_from([A, B]), st.booleans()),
        st.tuples(st.just("unservable"), st.sampled_from([(A,), (A, B)]), st.none()),
    ),
    min_size=20,
    max_size=80,
)


def overtaken(taken: Task, waiting: list[Task]) -> list[Task]:
    """The fresh tasks of its level that are due before it."""

    def place(task: Task) -> tuple[float, int]:
        return min(task.deadline, task.born + DUE_AFTER), task.number

    fresh = [each for each in waiting if each.level == taken.level and each.sent_at is None]
    return [] if taken.sent_at is not None else [each for each in fresh if place(each) < place(taken)]


@given(moves)
def test_counts_are_right_and_deadlines_are_kept_whatever_happens(moves: list[tuple[str, Any, Any]]) -> None:
    """Against a plain list: within a level the fresh task that is taken is the one that is due first."""
    waiting, inside, now = Queue(), list[Task](), 0.0
    feeds: list[BatchFeed] = []  # those with items left
    for what, first, second in moves:
        now += 0.5
        if what in {"put", "again"}:
            made = task(first, now, timeout=second) if what == "put" else task(first, now, avoids=second)
            made.number = int(2 * now)
            waiting.put(made)
            inside.append(made)
        elif what == "feed":
            feeds.append(feed(first, level=3, served=now))
            waiting.put_feed(feeds[-1])
        elif what in {"end", "take back"} and inside:
            gone = inside.pop(first % len(inside))
            gone.state = TaskState.DONE
            {"end": waiting.ended, "take back": waiting.take_back}[what](gone)
        elif what == "take":
            entry = waiting.take(first, now, patience=0.0 if second else 1e9)
            if entry is None:
                assert all(first in each.unfit for each in inside if second or each.sent_at is not None)
                assert not (second and feeds)
                continue
            if entry[1] is None:
                inside.remove(entry[0])
            assert not overtaken(entry[0], inside)
        elif what == "unservable":
            stuck = waiting.unservable(first)
            assert set(stuck) == {each for each in inside if each.sent_at is not None and set(first) <= set(each.unfit)}
            inside = [each for each in inside if each not in stuck]
        feeds = [each for each in feeds if each.buffer]
        items = sum(len(each.buffer) for each in feeds)
        for source in (A, B):
            able = [each for each in inside if source not in each.unfit]
            again = [each for each in able if each.sent_at is not None]
            assert (waiting.best(source, now)[0] < float("inf")) == bool(able or feeds)
            assert (waiting.best(source, now, patience=1e9)[0] < float("inf")) == bool(again)
        assert waiting.again == sum(each.sent_at is not None for each in inside)
        assert waiting.waiting == len(inside)
        assert len(waiting) >= len(inside) + items
        assert bool(waiting) == bool(inside or feeds)
        assert waiting.entries == len(inside) + len(feeds)
        fresh = [each for each in inside if each.sent_at is None]
        assert {each.level for each in fresh} | {each.level for each in feeds} == waiting._levels.keys()
    left = [*inside, *(item for each in feeds for item in each.buffer)]
    assert sorted(map(id, waiting.empty())) == sorted(map(id, left))
    assert not waiting
    assert (waiting.waiting, waiting.entries, waiting._levels, [each for each in feeds if each.buffer or each.queued]) == (0, 0, {}, [])
