"""The end of a bulk: a slow source leaves the last items to the quick ones while those will be done sooner."""

from __future__ import annotations

from scheduler_driver import CHUNK, Driver
from scheduler_warm import PACE, warm, warm_all

from qreward.scheduler.outcome import Answer
from qreward.scheduler.task import BatchFeed

SLOW = 10 * PACE


def two() -> Driver:
    """A source that answers four a second, and one that needs ten seconds for an answer."""
    return warm_all(Driver({"quick": 4, "slow": 4}), slow=SLOW)


def test_a_slow_source_takes_none_of_the_last_items_if_the_quick_ones_are_done_sooner() -> None:
    driver = two()
    feed = driver.feed(8)
    assert (len(driver.at("quick")), len(driver.at("slow"))) == (4, 0)
    while feed.buffer:
        driver.ok(driver.at("quick")[0], after=0.25)
    driver.wait(0.5)
    assert not feed.buffer
    assert driver["slow"].tally.sent == 128
    assert len(driver.at("quick")) == 4
    driver.feed(8)
    driver.mark("quick", down=True)
    driver.wait(1.0)
    assert len(driver.at("slow")) == 4, "nobody else is there"


def test_a_slow_source_takes_its_part_while_much_is_left_and_stops_when_little_is() -> None:
    """10 s at the slow one against 20 s and more that the quick one needs alone, and then against less."""
    driver = two()
    feed = driver.feed(CHUNK - 1)
    assert feed.ended
    while feed.buffer:
        before = driver["slow"].tally.sent
        left = len(feed.buffer)
        ending = min(driver.watch.live, key=lambda attempt: attempt.sent_at + (10.0 if attempt.source.name == "slow" else 1.0))
        driver.until(max(driver.now, ending.sent_at + (10.0 if ending.source.name == "slow" else 1.0)))
        driver.report(ending, Answer("yes", 10, 20))
        if left < 12:
            assert driver["slow"].tally.sent == before
    assert driver["slow"].tally.sent > 128


def test_only_sources_that_are_known_to_be_much_slower_are_held_back_from_the_last_items() -> None:
    """Paces, None for one of which nothing is known; and how many items each holds."""
    for paces, held in (
        ({"quick": PACE, "slow": 1.8 * PACE}, [4, 4]),
        ({"quick": PACE, "new": None}, [4, 4]),
        ({"new": None, "newer": None}, [4, 4]),
        ({"slow": 100 * PACE}, [4]),
        ({"quick": PACE, "middling": 1.5 * PACE, "slow": SLOW}, [4, 4, 0]),
    ):
        driver = Driver(dict.fromkeys(paces, 4))
        for name, pace in paces.items():
            if pace is not None:
                warm(driver, name, pace)
        driver.feed(12)
        assert [len(driver.at(name)) for name in paces] == held, paces


def test_a_bulk_of_unknown_length_or_of_which_much_is_to_be_read_is_for_all_sources() -> None:
    for left, takes in ((None, True), (1000, True), (0, False)):
        driver = two()
        feed = BatchFeed(driver.pool, 5, None, driver.now)
        feed.left = left
        feed.buffer.extend(driver.task() for _ in range(4))
        driver.pool.queue.put_feed(feed)
        assert (not driver.pool.patience(driver.now, driver["slow"])) is takes, left
        assert not driver.pool.patience(driver.now, driver["quick"])


def test_what_was_sent_of_a_bulk_is_not_left() -> None:
    """What is left of its input, while that goes on: less with each item that a source takes, whether it waited or not."""
    driver = two()
    before, feed = len(driver.watch.finished), driver.feed(3 * CHUNK, told=True)
    for _ in range(8):
        taken = sum(attempt.task.feed is feed for attempt in driver.watch.live) + len(driver.watch.finished) - before
        assert taken > 0
        assert feed.left == 3 * CHUNK - taken
        driver.ok(driver.at("quick")[0], after=0.25)


def test_the_quickest_source_is_not_held_back_because_its_pace_moved_a_little() -> None:
    driver = warm_all(Driver({"quick": 4, "slow": 4}), slow=SLOW)
    driver.feed(12)
    began = driver.now
    for number, attempt in enumerate(driver.at("quick")):
        driver.until(began + 1.02 + 0.03 * number)
        driver.report(attempt, Answer("yes", 10, 20))
        assert len(driver.at("quick")) == 4
