"""The end of a bulk: a slow source leaves the last items to the quick ones while those will be done sooner."""

from __future__ import annotations

import pytest
from scheduler_desk import CHUNK, Desk
from scheduler_warm import PACE, live, warm, warm_all

from qreward.scheduler.outcome import Answer
from qreward.scheduler.queue import Queue
from qreward.scheduler.state import REFRESH, BatchFeed

SLOW = 10 * PACE


def two() -> Desk:
    """A source that answers four a second, and one that needs ten seconds for an answer."""
    return warm_all(Desk({"quick": 4, "slow": 4}), slow=SLOW)


def test_a_slow_source_takes_none_of_the_last_items_if_the_quick_ones_are_done_sooner() -> None:
    desk = two()
    feed = desk.feed(8)
    assert (len(desk.at("quick")), len(desk.at("slow"))) == (4, 0)
    while feed.buffer:
        desk.ok(desk.at("quick")[0], after=0.25)
    desk.wait(0.5)
    assert not feed.buffer
    assert desk["slow"].tally.sent == 128
    assert len(desk.at("quick")) == 4


def test_a_slow_source_takes_its_part_while_much_is_left_and_stops_when_little_is() -> None:
    """10 s at the slow one against 20 s and more that the quick one needs alone, and then against less."""
    desk = two()
    feed = desk.feed(CHUNK - 1)
    assert feed.ended
    while feed.buffer:
        before = desk["slow"].tally.sent
        left = len(feed.buffer)
        ending = min(desk.watch.live, key=lambda attempt: attempt.sent_at + (10.0 if attempt.source.name == "slow" else 1.0))
        desk.until(max(desk.now, ending.sent_at + (10.0 if ending.source.name == "slow" else 1.0)))
        desk.report(ending, Answer("yes", 10, 20))
        if left < 12:
            assert desk["slow"].tally.sent == before
    assert desk["slow"].tally.sent > 128


def test_a_bulk_of_which_nobody_knows_the_end_is_for_everybody() -> None:
    desk = two()
    feed = desk.feed(2 * CHUNK)
    assert not feed.ended
    assert len(desk.at("slow")) == 4


@pytest.mark.parametrize(("left", "takes"), [(1000, True), (0, False)])
def test_what_is_still_to_be_read_counts_if_it_is_known(left: int, takes: bool) -> None:
    desk = two()
    feed = BatchFeed(desk.pool, 5, None, desk.now)
    feed.left = left
    feed.buffer.extend(desk.task() for _ in range(4))
    desk.pool.queue.put_feed(feed)
    assert desk.pool.allows_batch(desk.now, desk["slow"]) is takes
    assert desk.pool.allows_batch(desk.now, desk["quick"])


def test_a_slow_source_is_given_the_rest_once_the_quick_ones_are_away() -> None:
    desk = two()
    desk.feed(8)
    assert not desk.pool.allows_batch(desk.now, desk["slow"])
    desk.watch.thorough = False
    desk.mark("quick", down=True)
    assert desk.pool.allows_batch(desk.now + 0.5, desk["slow"])


def test_a_source_that_is_only_a_little_slower_is_not_held_back() -> None:
    desk = warm_all(Desk({"quick": 4, "slow": 4}), slow=1.8 * PACE)
    desk.feed(8)
    assert len(desk.at("slow")) == 4


def test_a_source_of_which_nothing_is_known_is_not_held_back() -> None:
    desk = Desk({"quick": 4, "new": 4})
    warm(desk, "quick")
    desk.feed(8)
    assert len(desk.at("new")) == 4


def test_nobody_is_held_back_while_nobody_is_known() -> None:
    desk = Desk({"a": 4, "b": 4})
    desk.feed(8)
    assert (len(desk.at("a")), len(desk.at("b"))) == (4, 4)


def test_the_quickest_source_is_never_held_back_however_slow() -> None:
    desk = warm_all(Desk({"slow": 4}), slow=100 * PACE)
    desk.feed(3)
    assert len(desk.at("slow")) == 3


def test_single_calls_go_to_a_slow_source_all_the_same() -> None:
    desk = two()
    desk.feed(8)
    single = desk.submit()
    assert desk.where(single) == "slow"


def test_of_three_only_the_slowest_is_held_back() -> None:
    desk = warm_all(Desk({"quick": 4, "middling": 4, "slow": 4}), middling=1.5 * PACE, slow=SLOW)
    feed = desk.feed(12)
    assert [len(desk.at(name)) for name in ("quick", "middling", "slow")] == [4, 4, 0]
    assert len(feed.buffer) == 4


def test_the_whole_pool_is_looked_at_a_few_times_a_second_however_much_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = two()
    looks: list[float] = []
    left = Queue.left

    def counted(queue: Queue) -> float:
        looks.append(desk.now)
        return left(queue)

    monkeypatch.setattr(Queue, "left", counted)
    desk.feed(8)
    singles = [desk.submit() for _ in range(3)]
    for single in singles[1:]:
        desk.ok(live(single), after=REFRESH / 4)
    assert len(looks) == 1
    desk.ok(live(singles[0]), after=0.5)
    assert 1 < len(looks) <= 3
