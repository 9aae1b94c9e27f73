"""Which task a source takes from a line: of what it has cached, of a new group, of another source's; and nobody is passed over for long."""

from __future__ import annotations

import gc
from collections import Counter
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scheduler_driver import Driver

from qreward.scheduler import prefixes
from qreward.scheduler.outcome import Answer
from qreward.scheduler.pool import EACH
from qreward.scheduler.prefixes import COMPARED, IN_VAIN, AffineQueue, Group, Holders, Prefix
from qreward.scheduler.source import Source
from qreward.scheduler.task import BatchFeed, Task, TaskState

AHEAD = 16


def named(key: int) -> Prefix:
    return Prefix((key,), (2000.0,), 2400.0, named=True)


class Scene:
    """A line and some sources, which take from it in any order."""

    def __init__(self, sources: int = 3, ahead: int = AHEAD) -> None:
        self.line: AffineQueue = AffineQueue()
        self.sources = [Source(str(number), Random(0)) for number in range(sources)]
        self.holders: Holders = Holders()
        self.ahead = ahead
        self.added: list[Task] = []

    def add(self, *keys: int, named: bool = True) -> Task:
        task = Task(None, None, 5, None, None, len(self.added))  # type: ignore[arg-type]
        if keys:
            task.prefix = Prefix(keys, tuple(1000.0 * place for place in range(1, len(keys) + 1)), 1000.0 * len(keys) + 500, named)
        self.added.append(task)
        self.line.append(task)
        return task

    def take(self, source: int = 0) -> int:
        """Let a source take a task, and send it there. Returns the number of the task."""
        task = self.line.take(self.sources[source], self.ahead, self.holders)
        if task.prefix is not None:
            self.sources[source].prefix_cache.use(0.0, task.prefix)
            self.holders.add(task.prefix, self.sources[source])
        return task.index


def test_a_source_stays_with_its_group_and_another_takes_a_new_one() -> None:
    scene = Scene()
    for number in range(12):
        scene.add(1, 100 + number % 3)
    assert [scene.take(0) for _ in range(3)] == [0, 3, 6]
    assert [scene.take(1) for _ in range(3)] == [1, 4, 7]
    assert [scene.take(0), scene.take(1)] == [9, 10]
    assert [scene.take(0) for _ in range(4)] == [2, 5, 8, 11], "the third group has no home: the first source that asks takes it"


def test_of_the_groups_that_a_source_has_it_takes_the_one_that_it_used_last() -> None:
    """Its cache loses the others first. The order in which tasks come does not matter."""
    for again in ((1, 2, 3), (3, 2, 1), (2, 3, 1)):
        scene = Scene()
        for key in (1, 1, 2, 2, 3, 3, 4, 4):
            scene.add(key)
        assert [scene.take() for _ in range(8)] == list(range(8))
        keys = {scene.add(key).index: key for key in again}
        assert [keys[scene.take()] for _ in range(3)] == [3, 2, 1], again


def test_the_largest_group_without_a_home_goes_first() -> None:
    scene = Scene()
    for key in (1, 2, 2, 3, 3, 3, 3, 3):
        scene.add(key)
    assert [scene.take(0) for _ in range(8)] == [3, 4, 5, 6, 7, 1, 2, 0]


def test_new_questions_go_to_the_source_that_has_their_rubric() -> None:
    scene = Scene()
    for question in range(4):
        for rubric in (1, 2):
            scene.add(rubric, 10 * rubric + question)
    taken = {source: [scene.take(source) for _ in range(4)] for source in (0, 1)}
    assert taken == {0: [0, 2, 4, 6], 1: [1, 3, 5, 7]}


def test_a_question_that_its_source_has_lost_goes_to_another_that_has_the_rubric() -> None:
    scene = Scene()
    for question in (10, 10, 11, 11, 12, 12):
        scene.add(1, question)
    assert [scene.take(source) for source in (0, 1, 1, 0, 0, 0)] == [0, 2, 3, 1, 4, 5]
    for rubric in (2, 2, 3, 3):
        scene.add(rubric)
    assert [scene.take(source) for source in (0, 1, 1, 0)] == [6, 8, 9, 7], "nothing of the first rubric waits"
    for keys in ((1, 11), (4,), (4,), (4,), (5,), (5,)):
        scene.add(*keys)
    scene.sources[1].prefix_cache.forget()
    assert [scene.take(1), scene.take(0)] == [11, 10]


def test_votes_on_an_answer_go_before_other_answers_to_its_question() -> None:
    scene = Scene()
    for _ in range(2):
        for answer in range(3):
            scene.add(1, 10, 100 + answer)
    assert [scene.take(0) for _ in range(6)] == [0, 3, 1, 4, 2, 5]


def test_a_group_that_left_the_cache_is_free_for_all() -> None:
    scene = Scene()
    for key in (1, 2, 2, 2, 1):
        scene.add(key)
    assert [scene.take(0), scene.take(1)] == [1, 0]
    for source in scene.sources:
        source.prefix_cache.forget()
    assert [scene.take(1), scene.take(0)] == [4, 2], "the first source that asks finds that its own is free, and takes it"


def test_an_outer_group_that_left_the_cache_has_work_as_long_as_inner_groups_count_as_held() -> None:
    """Only ``COMPARED`` groups of a source are looked at. Of these, some inner ones are not."""
    scene = Scene(sources=2, ahead=4 * COMPARED)
    for question in range(COMPARED + 8):
        scene.add(1, 100 + question)
        scene.take()
    scene.add(2)
    scene.take()
    questions = [scene.add(1, 100 + question, 1000 + question) for question in range(COMPARED + 8)]
    others = [scene.add(1, 500), *questions[-COMPARED:]]
    scene.add(2, 20)
    scene.line.form_groups(scene.ahead, scene.holders)
    scene.sources[0].prefix_cache.use(0.0, Prefix((3,), (1e7,), 1e7))
    scene.sources[0].prefix_cache.use(0.0, Prefix((2,), (1000.0,), 1500.0))
    assert scene.take(0) == scene.added[-1].index, "it finds that it has lost the rubric"
    for task in others:
        scene.line.discard(task)
    assert [scene.take(1) for _ in range(8)] == [task.index for task in questions[:8]]


def test_a_rubric_counts_for_questions_that_come_after_all_earlier_ones_have_left() -> None:
    scene = Scene(sources=2)
    for question in (10, 10, 11, 11, 20, 20, 21, 21):
        scene.add(question // 10, question)
    assert sorted(scene.take() for _ in range(8)) == list(range(8))
    scene.sources[0].prefix_cache.forget()
    for question in (10, 20, 11, 21):
        scene.add(question // 10, question)
    assert [scene.take() for _ in range(4)] == [8, 10, 9, 11]


def test_a_task_that_is_passed_over_goes_early_to_a_source_with_its_prefix_but_not_to_one_that_has_lost_it() -> None:
    places = []
    for lost in (False, True):
        scene = Scene()
        for key in (1, 1, 2, 2):
            scene.add(key)
        assert [scene.take() for _ in range(4)] == [0, 1, 2, 3]
        if lost:
            scene.sources[0].prefix_cache.forget()
        for key in (1, *[2] * 20):
            scene.add(key)
        places.append([scene.take() for _ in range(20)].index(4))
    assert places == [AHEAD // 2, AHEAD]


def test_tasks_without_a_prefix_go_in_order_and_after_groups_but_are_not_forgotten() -> None:
    scene = Scene(ahead=4)
    for key in [1, 0, 0, *[1] * 20]:
        scene.add(*[key] * (key > 0))
    taken = [scene.take(0) for _ in range(23)]
    assert [taken.index(plain) for plain in (1, 2)] == [2 * 1 + 4, 2 * 2 + 4]
    assert sorted(taken) == list(range(23))


def test_found_groups_are_those_of_the_deepest_block_that_another_task_has() -> None:
    scene = Scene()
    for answer in range(6):
        scene.add(1, 2, 10 + answer % 2, 100 + answer, named=False)
    assert [scene.take(0) for _ in range(3)] == [0, 2, 4]
    assert [scene.take(1) for _ in range(3)] == [1, 3, 5]


def test_the_first_of_a_found_group_is_regrouped_when_its_sibling_comes() -> None:
    scene = Scene(ahead=64)
    for question in range(4):
        scene.add(1, 10 + question, 100 + question, named=False)
    first = scene.take(0)
    for question in range(4):
        scene.add(1, 10 + question, 200 + question, named=False)
    assert scene.take(0) == 4 + first
    pairs = [(scene.take(source), scene.take(source)) for source in (1, 2, 1)]
    assert all(later - earlier == 4 for earlier, later in pairs), pairs


def test_what_is_found_to_be_shared_only_later_counts_as_used_with_each_task_from_then_on() -> None:
    scene = Scene()
    for answer in range(3):
        scene.add(1, 2, 100 + answer, named=False)
    assert scene.take() == 0
    scene.add(1, 3, 200, named=False)
    assert scene.take() == 1
    cache = scene.sources[0].prefix_cache
    assert cache.warm_since(1) == cache.clock


def test_the_oldest_task_may_be_taken_away_although_it_is_in_a_group() -> None:
    scene = Scene()
    for key in (1, 2, 1, 2):
        scene.add(key)
    assert scene.take() == 0
    assert scene.line.popleft().index == 1
    assert [task.index for task in scene.line] == [2, 3]
    assert (len(scene.line), scene.take(), scene.take(), bool(scene.line)) == (2, 2, 3, False)


def test_groups_of_which_nothing_waits_are_forgotten_and_what_sources_hold_is_not() -> None:
    """The groups around them too: each of these has two inner ones."""
    scene = Scene(sources=2)
    for key in range(100):
        for inner in (1, 1, 2, 2):
            scene.add(key, 1000 * inner + key)
        for _ in range(4):
            scene.take(key % 2)
        assert len(scene.line._groups) == 0
    gc.collect()
    assert sum(isinstance(each, Group) for each in gc.get_objects()) <= 1 + 2 * 2, "the root, and where each source was last"
    for key in (1, 0, 1, 0):
        scene.add(key, 1000 + key)
    assert [scene.take(source) for source in (0, 1, 0, 1)] == [401, 400, 403, 402]


def test_a_group_around_one_that_was_there_before_is_forgotten_if_no_task_is_in_it() -> None:
    """The line finds the outer group only after it has forgotten older tasks."""
    scene = Scene(sources=1)
    for last in (4, 5):
        scene.add(1, 2, 3, last, named=False)
    assert scene.take() == 0
    scene.line._seen.clear()
    other = scene.add(1, 2, 6, named=False)
    scene.line.form_groups(AHEAD, scene.holders)
    scene.line.discard(other)
    scene.add(1, 2, 3, 7, named=False)
    assert [scene.take() for _ in range(2)] == [1, 3]
    assert len(scene.line._groups) == scene.line._root.inner == 0


def test_half_of_the_keys_of_recent_tasks_are_remembered_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each two tasks of a document have three others between them, with 40 keys in all."""
    monkeypatch.setattr(prefixes, "REMEMBERED", 100)
    scene = Scene(ahead=1000)
    for number in range(120):
        document = number // 8 * 4 + number % 4
        scene.add(*(100 * document + place for place in range(9)), 100_000 + number, named=False)
    scene.line.form_groups(scene.ahead, scene.holders)
    assert len(scene.line._seen) <= 110
    assert len(scene.line._groups) == 60


def test_groups_within_which_tasks_wait_are_not_forgotten_and_each_knows_how_many_are_directly_in_it() -> None:
    for named in (True, False):
        scene = Scene()
        for keys in ((1,), (1, 10), (1, 10, 100), (1, 10, 101), (1, 11), (1, 11, 102)):
            for _ in range(2):
                scene.add(*keys, named=named)
        scene.line.form_groups(AHEAD, scene.holders)
        groups = scene.line._groups
        assert {key: group.inner for key, group in groups.items()} == {1: 2, 10: 2, 11: 1, 100: 0, 101: 0, 102: 0}, named
        assert scene.line._root.inner == 1, named
        assert sorted(scene.take() for _ in range(12)) == list(range(12)), named


keys = st.one_of(
    st.just(()),
    st.tuples(st.integers(1, 2), st.integers(10, 14)),
    st.tuples(st.integers(1, 2), st.integers(10, 12), st.integers(100, 103)),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), keys, st.booleans()),
        st.tuples(st.just("take"), st.integers(0, 2)),
        st.sampled_from([("first",), ("popleft",), ("discard",), ("forget",)]),
    ),
    max_size=120,
)


def nested(found: tuple[int, ...]) -> tuple[int, ...]:
    """Keys that say the whole text before them, as hashes do."""
    return tuple(hash(found[: place + 1]) for place in range(len(found)))


@given(steps, st.sampled_from([0, 1, 4, AHEAD, 1000]))
def test_nothing_is_lost_or_doubled_and_nobody_is_passed_over_for_long(steps: list[tuple[Any, ...]], ahead: int) -> None:
    scene, waiting = Scene(ahead=ahead), []
    passed: Counter[int] = Counter()
    for step in steps:
        if step[0] == "add":
            waiting.append(scene.add(*nested(step[1]), named=step[2]).index)
        elif step[0] == "forget":
            scene.sources[0].prefix_cache.forget()
        elif not waiting:
            assert not scene.line
        elif step[0] == "take":
            taken = scene.take(step[1])
            assert taken in waiting
            assert ahead or taken == waiting[0]
            passed.update(each for each in waiting if each < taken)
            waiting.remove(taken)
            assert all(passed[each] <= 2 * ahead for each in waiting)
        elif step[0] == "first":
            found = scene.line.first()
            assert found is not None
            assert found.index == waiting[0]
        elif step[0] == "popleft":
            assert scene.line.popleft().index == waiting.pop(0)
        else:
            middle = scene.added[waiting[len(waiting) // 2]]
            if middle.group is not None:
                scene.line.discard(middle)
                waiting.remove(middle.index)
        assert [task.index for task in scene.line] == waiting
        assert len(scene.line) == len(waiting)
    order = [scene.take(number % 3) for number in range(len(waiting))]
    assert sorted(order) == waiting
    assert not scene.line


busy = st.lists(st.tuples(st.sampled_from([0, 1, 1, 1, 1, 2]), st.integers(0, 1)), min_size=40, max_size=80)


@given(busy, st.sampled_from([1, 2, 4]), st.booleans())
def test_no_task_is_overtaken_by_more_younger_ones_than_were_before_it_and_a_look_ahead(
    steps: list[tuple[int, int]], ahead: int, named: bool
) -> None:
    """The line stays as long as it is: one task comes for each that goes, and a source likes to stay with its group."""
    scene, before, passed = Scene(2, ahead), list(range(ahead)), Counter[int]()
    for number in range(ahead):
        scene.add(number % 2, named=named)
    for key, source in steps:
        taken = scene.take(source)
        passed.update(task.index for task in scene.line if task.index < taken)
        before.append(len(scene.line))
        scene.add(*[key] * (key > 0), named=named)
        assert all(count <= before[index] + ahead for index, count in passed.items())


@example([([0], False, 0), ([1], False, -1), ([0], False, 0), ([0, 0], False, 0)])
@example([([2], False, 0), ([1], False, -1), ([1, 2], False, 0), ([0], False, 0), ([1, 2, 1], False, 0)])
@given(st.lists(st.tuples(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.booleans(), st.integers(-1, 2)), max_size=60))
def test_nothing_is_lost_if_keys_are_equal_by_chance(steps: list[tuple[list[int], bool, int]]) -> None:
    scene, taken = Scene(ahead=8), []
    for keys, named, taker in steps:
        scene.add(*keys, named=named)
        if taker >= 0:
            taken.append(scene.take(taker))
    taken += [scene.take(number % 3) for number in range(len(scene.line))]
    assert sorted(taken) == list(range(len(steps)))


def played(driver: Driver, keys: list[int | None], *, singles: bool, cached: int | None = 0) -> list[int]:
    """Run tasks of these groups, all of which last one second. Returns their order."""
    tasks, before = [], len(driver.watch.finished)
    for key in keys:
        task = driver.task()
        task.prefix = None if key is None else Prefix((1, key), (400.0, 2000.0), 2400.0, named=True)
        tasks.append(task)
    if singles:
        for task in tasks:
            driver.watch.open[task] = None
            driver.scheduler.submit(driver.now, task)
    else:
        feed = BatchFeed(driver.pool, 5, None, driver.now, read_ahead=driver.pool.look_ahead)
        driver.watch.feeds[feed] = None
        feed.buffer.extend(tasks)
        feed.ended = True
        driver.scheduler.open(driver.now, feed)
        driver.scheduler.out.clear()
        driver.scheduler.refill(driver.now, feed)
    driver._after()
    while driver.watch.live:
        driver.now += 0.01
        driver.report(next(iter(driver.watch.live)), Answer("yes", 600, 5, cached_tokens=cached))
    assert all(task.state is TaskState.DONE for task in tasks)
    assert len(driver.watch.finished) == before + len(tasks)
    return [attempt.task.index - tasks[0].index for _, attempt in driver.watch.sends]


def test_answers_that_report_no_cached_tokens_although_some_were_expected_are_counted_until_one_reports_some() -> None:
    driver = Driver({"a": 1, "b": 1})
    counts = []
    for cached in (0, None, 0, 600, 0):
        played(driver, [1] * 10, singles=True, cached=cached)
        counts.append(driver.pool.holders.uncached)
    none, unknown, again, some, then = counts
    assert 5 <= none <= 10, "the first of each source is not expected to find anything"
    assert (unknown, again, some, then) == (none, none + 10, 0, 10)


def test_single_calls_that_wait_and_items_of_batches_follow_the_same_rule() -> None:
    """Every invariant of the scheduler is checked after each step, work conservation among them."""
    for singles in (False, True):
        driver = Driver({"a": 2, "b": 2})
        keys = [2 + number % 4 for number in range(64)]
        order = played(driver, list(keys), singles=singles)
        assert sorted(order) == list(range(64))
        where: dict[str, Counter[int]] = {"a": Counter(), "b": Counter()}
        for index, (_, attempt) in zip(order, driver.watch.sends, strict=True):
            where[attempt.source.name][keys[index]] += 1
        at_home = sum(max(where["a"][key], where["b"][key]) for key in range(2, 6))
        assert at_home >= 52, f"of 64 tasks {at_home} went where their group went: {where}"


def test_with_one_source_or_without_prefixes_the_order_is_that_of_arrival_in_the_scheduler() -> None:
    for singles in (False, True):
        assert played(Driver({"a": 2}), [number % 4 for number in range(40)], singles=singles) == list(range(40))
        assert played(Driver({"a": 2, "b": 3}), [None] * 40, singles=singles) == list(range(40))


def test_prompts_are_looked_at_seldom_while_they_share_nothing_and_all_of_them_again_when_one_does() -> None:
    driver = Driver({"a": 1, "b": 1})
    pool, looked = driver.pool, []
    assert pool.find_prefix(0) is None, "there is no affinity"
    pool.prefix_of = lambda payload, named_only: None if named_only else looked.append(payload)
    pool.holders.unshared = IN_VAIN
    for number in range(5 * EACH):
        pool.find_prefix(number)
    assert len(looked) == 5
    pool.holders.unshared = 0
    for number in range(EACH):
        pool.find_prefix(number)
    assert len(looked) == 5 + EACH
    pool.holders.uncached = IN_VAIN
    for number in range(2 * EACH):
        pool.find_prefix(number)
    assert len(looked) == 5 + EACH + 2, "the servers report that they cache nothing"
    pool.holders.uncached = pool.holders.unshared = 0
    del looked[5 + EACH :]
    driver.remove("b")
    assert pool.find_prefix(0) is None, "there is nothing to choose"
    assert len(looked) == 5 + EACH


def test_a_call_that_ends_before_it_is_in_a_group_is_not_sent() -> None:
    """Neither one that its caller has left nor one whose time is over, wherever it stands in the line."""
    for ends, keys in product((2, 3, 4, 5), ((1, 2, 2, 1, 1, 2), (1, 2, 1, 2, 2, 1), (1, 2, 2, 1, 2, 1))):
        for left in (True, False):
            driver, tasks = Driver({"a": 1, "b": 1}), []
            for number, key in enumerate(keys):
                tasks.append(driver.submit(timeout=None if left or number != ends else 5.0, prefix=named(key)))
            if left:
                driver.withdraw(tasks[ends])
            else:
                driver.wait(5.1)
            while driver.watch.live:
                driver.ok(next(iter(driver.watch.live)))
            sent = {task.index for task in tasks if task.sent_at is not None}
            assert sent == {task.index for task in tasks} - {tasks[ends].index}, (ends, keys, left)
            assert driver.pool.queue.waiting == 0, (ends, keys, left)


def test_a_single_call_that_has_waited_for_half_of_its_timeout_is_no_longer_passed_over() -> None:
    driver = Driver({"a": 1, "b": 1})
    tasks = [driver.submit(timeout=100.0, prefix=named(key)) for key in (1, 2, 3, 1, 1, 1)]
    driver.ok(driver.at("a")[0])
    assert driver.where(tasks[3]) == "a"
    driver.ok(driver.at("a")[0], after=55.0)
    assert driver.where(tasks[2]) == "a"
