"""A route of which no endpoint is alive: what waits for it ends after one timeout, and what is busy is not dead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf

from scale import seeds
from scheduler_driver import Driver
from simulator import Server, Simulation

from qreward.errors import CircuitOpen, NoEndpoint, QRewardError
from qreward.scheduler.outcome import Answer, FailureKind
from qreward.scheduler.pool import deadline
from qreward.settings.policies import Limits

NEVER_SENT = "never sent: no endpoint of first has answered for 5 s"
ROUNDING = 1 / 8
"""Seconds by which ends may differ: the time in which breakers open, and the wheel's steps."""


class Play:
    """A driver whose servers answer, refuse connections or hang from some time to another."""

    def __init__(self, servers: dict[str, Server], *, seed: int = 0, caps: int = 8) -> None:
        self.driver = Driver(dict.fromkeys(servers, caps), seed=seed)
        self.simulation = Simulation(self.driver, servers, self.driver.rng)
        self.ended_at = self.answered_at = 0.0

    def run(self, count: int, timeout: float) -> Counter[str]:
        """Play a batch to its end; how many of its items ended how."""
        self.driver.feed(count, timeout=timeout)
        self.simulation.run()
        ends = [(when, entry[1]) for when, what, *entry in self.driver.watch.trace if what == "finish"]
        self.ended_at = ends[-1][0]
        self.answered_at = max((when for when, end in ends if end == "Answer"), default=0.0)
        return Counter("answered" if isinstance(end, Answer) else type(end).__name__ for end in self.driver.watch.finished.values())


def refusing(until: float = 1e9, since: float = 0.0) -> Server:
    return Server(dead=(since, until))


def hanging(until: float = 1e9, since: float = 0.0) -> Server:
    return Server(dead=(since, until), dead_after=1e6)


def test_a_batch_ends_about_one_timeout_after_the_last_sign_of_life_of_an_endpoint() -> None:
    """A refused connection shows an outage at once, requests that run out of their time show it after one timeout."""
    cases: dict[str, tuple[Callable[[], dict[str, Server]], float, float]] = {
        "one refuses": (lambda: {"a": refusing()}, 0.0, 5.0),
        "all refuse": (lambda: {name: refusing() for name in "abc"}, 0.0, 5.0),
        "they die amid the batch": (lambda: {name: refusing(since=20.0) for name in "ab"}, 20.0, 5.0),
        # an item that tests a source just before the end has the usual time of an answer, here 3 s
        "one after the other": (lambda: {"a": refusing(since=4.0), "b": refusing(since=20.0)}, 20.0, 6.0),
        "both hang": (lambda: {name: hanging() for name in "ab"}, 0.0, 10.0),
        "one hangs, one refuses": (lambda: {"a": hanging(), "b": refusing()}, 0.0, 10.0),
        "they hang amid the batch": (
            lambda: {name: hanging(since=20.0) for name in "ab"},
            20.0,
            13.0,
        ),
    }
    wrong = {}
    for what, (servers, died_at, longest) in cases.items():
        play = Play(servers())
        found = play.run(3000, timeout=5.0)
        late = play.ended_at > 1.25 * longest + play.answered_at + ROUNDING
        if found.total() != 3000 or late or play.ended_at < died_at + 5.0:
            wrong[what] = (play.ended_at, play.answered_at, found)
    assert wrong == {}


def test_the_items_say_which_endpoints_have_not_answered_and_what_the_last_failure_was() -> None:
    for names, told in ((("a", "b"), "('a', 'b')"), ([f"s{number}" for number in range(5)], "('s0', 's1', 's2' and 2 more)")):
        play = Play({name: refusing() for name in names})
        play.run(100, timeout=5.0)
        said = Counter(str(end) for end in play.driver.watch.finished.values() if str(end).startswith(NEVER_SENT))
        assert said.total() > 50
        assert said.keys() == {f"{NEVER_SENT}, the timeout of an item {told}; the last failure was: nobody there"}
        errors = [end for end in play.driver.watch.finished.values() if isinstance(end, QRewardError)]
        assert len({id(error) for error in errors}) == len(errors)  # each item has an error of its own


def test_an_endpoint_that_returns_within_the_timeout_rescues_the_batch() -> None:
    """If it returns late, those items are lost that were under way when it died, and wait for another try."""
    lost = {}
    for seed in seeds(2):
        for dies, back, most in ((0.0, 15.0, 0), (10.0, 25.0, 0), (0.0, 27.0, 20), (10.0, 37.0, 20)):
            play = Play({name: refusing(since=dies, until=back) for name in "ab"}, seed=seed)
            found = play.run(400, timeout=30.0)
            if found["answered"] < 400 - most:
                lost[seed, dies, back] = found
    assert lost == {}


def test_a_batch_that_takes_far_longer_than_its_timeout_does_not_fail_while_one_endpoint_is_alive() -> None:
    play = Play({"a": Server(mean=0.5), "b": refusing()}, caps=1)
    found = play.run(600, timeout=60.0)
    assert play.ended_at > 200
    assert found == {"answered": 600}


def test_rate_limited_and_full_endpoints_are_alive() -> None:
    """Such an endpoint may turn everything away for longer than the timeout."""
    for server in (Server(overloaded=(2.0, 60.0)), Server(rate=0.05, burst=5)):
        play = Play({"a": server, "b": refusing()})
        play.run(30, timeout=8.0)
        texts = [str(end) for end in play.driver.watch.finished.values() if not isinstance(end, Answer)]
        assert not [text for text in texts if text.startswith("never sent")]
        assert play.ended_at > 16.0


def test_a_batch_that_comes_in_an_outage_has_its_whole_timeout() -> None:
    driver = Driver({"a": 2})
    early = driver.feed(100, timeout=20.0)
    _refuse_until(driver, 12.0)
    late = driver.feed(100, timeout=20.0)
    _refuse_until(driver, 25.0)
    assert early.make_error is not None
    assert late.make_error is None
    assert len(late.buffer) > 0
    _refuse_until(driver, 40.0)
    assert late.make_error is not None
    assert not early.buffer
    assert not late.buffer
    assert not driver.watch.open
    assert all(isinstance(end, QRewardError) for end in driver.watch.finished.values())


def test_an_outage_that_a_batch_finds_begins_when_it_comes_though_its_input_is_slow() -> None:
    driver = Driver({"a": 2}, refill=False)
    driver["a"].health.eject(driver.now, 300.0)
    driver.wait(100.0)
    feed = driver.feed(100, timeout=5.0)
    driver.wait(4.0)
    assert feed.make_error is None
    driver.wait(2.0)
    assert feed.make_error is not None


def test_an_item_sent_in_an_outage_has_the_time_that_answers_usually_take() -> None:
    driver = Driver({"a": 1})
    feed = driver.feed(100, timeout=20.0)
    _refuse_until(driver, 16.9)
    driver.withdraw(*driver.watch.open)  # whose time began before
    while not driver.at("a"):
        driver.wait(1 / 8)
        assert driver.now < 20
    (probe,) = driver.at("a")
    driver.ok(probe, after=4.5)
    assert driver.now > 21
    assert isinstance(driver.outcome(probe.task), Answer)
    assert feed.make_error is None
    assert not [end for end in driver.watch.finished.values() if str(end).startswith("never sent")]


def test_the_deadline_of_an_item_counts_from_the_outage_or_from_its_batch_whichever_began_later() -> None:
    """(since when no source is alive, when the batch came, when a source takes the item, 99th percentile) -> deadline, of 20 s each."""
    cases = {
        (inf, 0.0, 50.0, None): 70.0,
        (0.0, 0.0, 5.0, None): 20.0,
        (10.0, 0.0, 11.0, None): 30.0,
        (0.0, 12.0, 13.0, None): 32.0,
        (0.0, 12.0, 26.0, None): 32.0,
        (0.0, 12.0, 30.0, None): 35.0,  # without any answer a quarter of the timeout is allowed
        (0.0, 0.0, 18.0, 8.0): 26.0,
        (0.0, 0.0, 18.0, 1.0): 20.0,
        (0.0, 0.0, 18.0, 100.0): 38.0,
    }
    wrong = {}
    for (down_since, since, now, slow), expected in cases.items():
        driver = Driver({"a": 1})
        source, driver.pool.down_since = driver["a"], down_since
        for _ in range(0 if slow is None else 200):
            source.latency.add(slow or 0.0)
        found = deadline(now, source, driver.pool, 20.0, since)
        if abs(found - expected) > 0.05 * (slow or 0.0):  # a quantile is exact to some percent
            wrong[down_since, since, now, slow] = found
    assert wrong == {}


SIGNS: dict[str, Callable[[Driver], object]] = {
    "an answer": lambda driver: driver.ok(driver.at("a")[0], after=0.01),
    "the first token of one": lambda driver: driver.scheduler.commit(driver.now, driver.at("a")[0]),
    "a rejection of the request": lambda driver: driver.fail(driver.at("a")[0], FailureKind.REFUSED),
    "overload": lambda driver: driver.fail(driver.at("a")[0], FailureKind.OVERLOADED),
    "a mark of the operator": lambda driver: driver.mark("a", down=False),
    "another endpoint": lambda driver: driver.add("b", Limits(max_concurrency=1)),
}


def test_a_sign_of_life_ends_an_outage() -> None:
    for name, sign in SIGNS.items():
        driver = Driver({"a": 1})
        feed = driver.feed(1000, timeout=5.0)
        _refuse_until(driver, 8.0)
        feed.ended = False  # its input goes on
        assert feed.make_error is not None, name
        assert feed.pool.down_since < 1.0
        driver.submit()
        while not driver.at("a"):
            driver.wait(0.125)
        sign(driver)
        assert feed.make_error is None, name
        assert feed.pool.down_since > driver.now, name


def test_an_answer_to_what_was_sent_before_the_outage_does_not_end_it() -> None:
    driver = Driver({"a": 8})
    before = driver.submit()
    feed = driver.feed(100, timeout=60.0)
    driver.wait(1.0)
    for attempt in driver.at("a")[1:]:
        driver.fail(attempt, FailureKind.UNREACHABLE, after=0.0)
    assert before.attempt is not None
    driver.ok(before.attempt, after=0.1)
    assert isinstance(driver.outcome(before), Answer)
    assert feed.pool.down_since < inf


def test_in_each_outage_the_end_is_postponed_once_for_a_request_that_may_still_be_answered() -> None:
    driver = Driver({"a": 1})
    feed = driver.feed(1000, timeout=20.0)
    outages, pool = driver.scheduler.outages, driver.pool
    for _ in range(3):
        pool.down_since = driver.now
        assert [outages.postpone(driver.now, feed) for _ in range(2)] == [True, False]
        outages.down[pool] = None
        outages.end(driver["a"])
        assert pool.down_since == inf


def test_items_fail_at_once_where_all_endpoints_are_marked_unhealthy_or_gone_and_go_on_when_one_is_back() -> None:
    for down, back, error in (
        (lambda driver: driver.mark("a", down=True), lambda driver: driver.mark("a", down=False), CircuitOpen),
        (lambda driver: driver.remove("a"), lambda driver: driver.add("b", Limits(max_concurrency=2)), NoEndpoint),
    ):
        driver = Driver({"a": 2}, refill=False)
        feed = driver.feed(100, timeout=None)
        driver.serve(feed)
        down(driver)
        assert [type(end) for end in driver.watch.finished.values()] == [error] * 30  # two are under way
        driver.serve(feed)
        assert [type(end) for end in driver.watch.finished.values()] == [error] * 62
        back(driver)
        driver.serve(feed)
        assert len(driver.watch.finished) == 62
        assert len(feed.buffer) + len(driver.watch.live) > 30


def test_the_waiting_items_of_a_batch_that_was_read_to_its_end_fail_as_well() -> None:
    driver = Driver({"a": 2})
    driver.feed(20)
    driver.mark("a", down=True)
    assert [type(end) for end in driver.watch.finished.values()] == [CircuitOpen] * 18
    driver = Driver({"a": 1})
    driver.feed(20, timeout=5.0)
    _refuse_until(driver, 8.0)
    assert len(driver.watch.finished) >= 18


def test_items_that_are_read_after_all_endpoints_were_marked_say_so_though_an_outage_went_before() -> None:
    driver = Driver({"a": 1}, refill=False)
    feed = driver.feed(1000, timeout=5.0)
    driver.serve(feed)
    _refuse_until(driver, 2.0)
    driver.mark("a", down=True)
    driver.serve(feed)
    driver.wait(10.0)
    assert feed.make_error is not None
    assert isinstance(feed.make_error(), CircuitOpen)


def test_a_limit_that_is_raised_in_an_outage_is_no_sign_of_life() -> None:
    driver = Driver({"a": 1})
    feed = driver.feed(100, timeout=60.0)
    _refuse_until(driver, 2.0)
    began = feed.pool.down_since
    assert began < 2.0
    driver.scheduler.changed(driver.now, driver["a"])
    assert feed.pool.down_since == began


def test_a_feed_without_a_timeout_waits_for_ever() -> None:
    driver = Driver({"a": 1})
    feed = driver.feed(100)
    _refuse_until(driver, 600.0)
    assert feed.make_error is None
    assert feed.buffer


def test_a_feed_that_is_closed_in_an_outage_leaves_nothing_behind_and_the_outage_of_another_goes_on() -> None:
    driver = Driver({"a": 1})
    feed, other = driver.feed(100, timeout=60.0), driver.feed(100, timeout=20.0)
    _refuse_until(driver, 10.0)
    began = feed.pool.down_since
    driver.withdraw(*driver.close_feed(other))
    assert (other.due < 0, feed.pool.down_since) == (True, began)
    driver.withdraw(*driver.close_feed(feed), *driver.watch.open)
    assert feed.due < 0
    assert not feed.pool.feeds
    assert feed.pool.down_since == inf
    driver.wait(100.0)
    driver.watch.check_all_over()


def test_one_long_stall_of_the_loop_is_not_taken_for_an_outage() -> None:
    """What came meanwhile may lie unread."""
    driver = Driver({"a": 1})
    feed = driver.feed(100, timeout=5.0)
    _refuse_until(driver, 1.9)
    while not driver.at("a"):
        driver.wait(1 / 8)
        assert driver.now < 5
    driver.now += 60.0
    driver.tick()
    assert feed.make_error is None
    assert isinstance(driver.scheduler.wheel.next_wake(), float)


def _refuse_until(driver: Driver, then: float) -> None:
    """Refuse all connections as they are made."""
    while driver.now < then:
        driver.wait(1 / 32)
        for attempt in list(driver.watch.live):
            driver.fail(attempt, FailureKind.UNREACHABLE, after=0.0)
