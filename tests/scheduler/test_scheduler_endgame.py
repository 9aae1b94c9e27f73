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


def test_only_sources_that_are_known_to_be_much_slower_are_held_back_from_the_last_items() -> None:
    """Paces, None for one of which nothing is known; and how many items each holds."""
    for paces, held in (
        ({"quick": PACE, "slow": 1.8 * PACE}, [4, 4]),
        ({"quick": PACE, "new": None}, [4, 4]),
        ({"new": None, "newer": None}, [4, 4]),
        ({"slow": 100 * PACE}, [4]),
        ({"quick": PACE, "middling": 1.5 * PACE, "slow": SLOW}, [4, 4, 0]),
    ):
        desk = Desk(dict.fromkeys(paces, 4))
        for name, pace in paces.items():
            if pace is not None:
                warm(desk, name, pace)
        desk.feed(12)
        assert [len(desk.at(name)) for name in paces] == held, paces


def test_a_bulk_of_unknown_length_is_for_all_sources() -> None:
    desk = two()
    feed = desk.feed(2 * CHUNK)
    assert not feed.ended
    assert len(desk.at("slow")) == 4


def test_what_is_still_to_be_read_counts_if_it_is_known() -> None:
    for left, takes in ((1000, True), (0, False)):
        desk = two()
        feed = BatchFeed(desk.pool, 5, None, desk.now)
        feed.left = left
        feed.buffer.extend(desk.task() for _ in range(4))
        desk.pool.queue.put_feed(feed)
        assert desk.pool.allows_batch(desk.now, desk["slow"]) is takes
        assert desk.pool.allows_batch(desk.now, desk["quick"])


def test_single_calls_go_to_a_slow_source_all_the_same() -> None:
    desk = two()
    desk.feed(8)
    single = desk.submit()
    assert desk.where(single) == "slow"


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
