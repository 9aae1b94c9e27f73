"""What a server tells of its limits paces a source: as fast as they allow, hardly ever too fast, and never stopped by nonsense."""

from __future__ import annotations

from heapq import heappop, heappush
from math import ceil, floor, inf, isnan
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scale import SCALE
from scheduler_driver import Driver
from scheduler_warm import live

from qreward.scheduler.limits.rate import LONGEST_WAIT, MINUTE, STEADY, Gcra, HeaderRateLimit
from qreward.scheduler.outcome import Answer, RateLimit, RateLimitInfo
from qreward.scheduler.source import make_source, standing
from qreward.settings.policies import Limits


def meter_after(limit: float | None, remaining: float, reset: float | None, *, window: float | None = None) -> HeaderRateLimit:
    """As of an answer at 1 s to a request that left at 0 s, with nothing else in flight."""
    meter = HeaderRateLimit()
    meter.update(1.0, 0.0, RateLimit(limit, remaining, reset, window))
    return meter


def window_after(limit: float, remaining: float, reset: float) -> HeaderRateLimit:
    """The same of what is known to be a window: with use, ``remaining`` and ``reset`` have both fallen."""
    meter = HeaderRateLimit()
    meter.update(0.5, -0.5, RateLimit(limit, limit, reset + 0.5))
    meter.take(0.6)
    meter.update(1.0, 0.6, RateLimit(limit, remaining, reset))
    return meter


def send(meter: HeaderRateLimit, times: int, now: float) -> None:
    for _ in range(times):
        assert meter.ready_at <= now
        meter.take(now)


# the count


def test_what_is_left_may_be_sent_at_once_and_then_the_window_is_waited_for() -> None:
    assert HeaderRateLimit().ready_at == -inf
    assert meter_after(100, 0, 20.0).ready_at == window_after(100, 0, 20.0).ready_at == 21.0
    meter = window_after(100, 3, 20.0)
    send(meter, 3, 2.0)
    assert meter.ready_at == 21.0
    send(meter, 100, 21.0)
    assert meter.ready_at > 21.0


def test_the_rate_is_the_lower_of_the_configured_and_the_advertised_one() -> None:
    """Configured requests a second -> the rate before and after a header of 60 a minute."""
    seen = {}
    for configured in (None, 5.0, 0.5):
        meter = HeaderRateLimit(None if configured is None else Gcra(configured))
        before = meter.rate
        meter.update(1.0, 0.0, RateLimit(60, 30, None))
        seen[configured] = before, meter.rate
    assert seen == {None: (inf, 1.0), 5.0: (5.0, 1.0), 0.5: (0.5, 0.5)}


def test_a_reset_that_is_always_zero_is_no_length_of_a_window_and_more_than_the_limit_may_remain() -> None:
    meter, now = meter_after(100, 0, 0.0), 1.0
    for _ in range(3):
        now = max(now + 120.0, meter.ready_at)
        meter.take(now)
        meter.update(now + 1.0, now, RateLimit(100, 50, 0.0))
    assert meter.ready_at <= now + 1.0
    meter = meter_after(60, 100, None)
    send(meter, 100, 1.0)
    assert meter.ready_at > 1.0


def test_what_may_be_a_bucket_brings_back_at_its_reset_no_more_than_was_used_at_the_last_header() -> None:
    meter = meter_after(100, 95, 3.0)
    send(meter, 95, 2.0)  # a bucket would be full much later now
    send(meter, 5, 4.0)
    assert meter.ready_at > 4.0


def test_what_was_sent_since_that_request_left_is_taken_off() -> None:
    meter = meter_after(100, 50, 30.0)
    send(meter, 1, 2.0)
    send(meter, 1, 3.0)
    send(meter, 4, 4.0)
    meter.update(5.0, 2.0, RateLimit(100, 11, 26.0))  # somebody else has used most of it
    send(meter, 6, 5.0)  # 11, less the 5 sent at 3 s and at 4 s
    assert meter.ready_at == pytest.approx(31.0)


def test_what_an_earlier_request_tells_is_old_and_of_those_of_one_instant_the_last_that_is_heard_counts() -> None:
    meter = meter_after(100, 10, 30.0)
    for now in (2.0, 3.0):
        send(meter, 1, now)
    meter.update(4.0, 3.0, RateLimit(100, 8, 27.0))
    meter.update(5.0, 2.0, RateLimit(100, 0, 900.0))
    send(meter, 8, 5.0)
    assert meter.ready_at == 31.0
    meter = meter_after(100, 10, 30.0)
    send(meter, 4, 2.0)
    for left in (8, 9, 7):  # any order; the fourth has not told yet
        meter.update(3.0, 2.0, RateLimit(100, left, 28.0))
    send(meter, 6, 3.0)
    assert meter.ready_at == 31.0


def test_what_else_is_in_flight_at_first_is_taken_off() -> None:
    meter = HeaderRateLimit()
    meter.update(1.0, 0.0, RateLimit(10, 9, 50.0), others=7)
    send(meter, 2, 1.0)
    assert meter.ready_at == 51.0


# kinds of limits


def test_a_bucket_is_known_by_its_reset_that_grows_with_use() -> None:
    meter = meter_after(600, 590, 0.9)
    assert meter.refill == 0.0
    for number, sent_at in enumerate(range(2, 8)):
        send(meter, 100, float(sent_at))
        meter.update(sent_at + 0.1, float(sent_at), RateLimit(600, 500 - 90 * number, 10 + 9.0 * number))
    assert meter.refill == pytest.approx(STEADY * 10.0)


def test_a_bucket_of_which_the_limit_is_not_told_is_measured() -> None:
    meter = meter_after(None, 50, 5.5)
    send(meter, 30, 2.0)
    meter.update(2.1, 2.0, RateLimit(None, 20, 8.5))
    assert meter.refill == pytest.approx(STEADY * 10.0)
    send(meter, 105, 20.0)
    assert 20.0 < meter.ready_at < 20.5, "it was full"


def test_a_usual_rate_is_known_at_first_sight() -> None:
    found = {}
    for limit, remaining, reset, window, per_second in (
        (20_000, 15_482, 13.554, None, 20_000 / 60),  # OpenAI, tokens a minute
        (14_400, 14_370, 179.56, None, 14_400 / 86_400),  # Groq, requests a day
        (5000, 4999, 0.012, None, 5000 / 60),  # OpenAI, requests a minute
        (600, 0, 60.0, None, 10.0),
        (600, 300, 10.0, None, 0.0),  # no usual window: it may end in 10 s
        (600, 100, None, None, 10.0),  # without a reset it comes back in a minute
        (600, 100, None, 3600.0, 1 / 6),  # or in the window that it names
    ):
        refill = meter_after(limit, remaining, reset, window=window).refill
        if refill != pytest.approx(per_second):
            found[limit, remaining, reset, window] = refill
    assert not found


def test_a_bucket_smaller_than_its_limit_fills_only_so_far() -> None:
    meter = meter_after(600, 0, 1.0)  # of ten
    for sent_at, left in ((2.0, 9.0), (3.0, 4.0), (3.5, 0.0)):
        send(meter, 1, sent_at)
        meter.update(sent_at + 0.01, sent_at, RateLimit(600, left, (10 - left) / 10))
    assert meter.refill == pytest.approx(STEADY * 10.0)
    meter.take(100.0)
    meter.update(100.1, 100.0, RateLimit(600, 9.0, 0.1))
    send(meter, 9, 100.1)
    assert meter.ready_at > 100.1
    send(meter, 10, 200.0)
    assert 200.0 < meter.ready_at < 200.11, "and no further if no answer tells in between"
    meter.update(200.1, 200.0, RateLimit(600, 700.0, 0.0))
    send(meter, 700, 300.0)
    meter = meter_after(60, 30, 31.0)  # its reset is rounded up
    send(meter, 60, 100.0)
    assert meter.ready_at == pytest.approx(101.0), "nor beyond its limit"


def test_a_window_that_is_over_tells_nothing_of_the_next() -> None:
    meter = window_after(100, 5, 9.0)
    send(meter, 5, 9.0)
    send(meter, 10, 10.0)  # a new one
    meter.update(10.5, 9.0, RateLimit(100, 0, 0.5))
    send(meter, 90, 10.5)


def test_the_end_of_a_window_is_the_soonest_that_is_advertised() -> None:
    """A request at 2 s is answered at 7 s: what it advertises was true when it was sent, or when it was answered."""
    meter = window_after(100, 50, 9.0)
    send(meter, 1, 2.0)
    meter.update(7.0, 2.0, RateLimit(100, 49, 8.0))
    send(meter, 49, 7.0)
    assert meter.ready_at == 10.0


# tokens


def tokens_after(limit: float, remaining: float, reset: float) -> HeaderRateLimit:
    meter = HeaderRateLimit()
    meter.update(1.0, 0.0, RateLimit(limit, remaining, reset))
    return meter


def test_a_request_larger_than_the_bucket_goes_alone_when_the_bucket_is_full() -> None:
    meter = tokens_after(600, 0, 60.0)
    meter._largest = 5000.0
    assert meter.ready_at == pytest.approx(61.0)
    meter.take(61.0, 5000.0)
    assert meter.ready_at == pytest.approx(61.0 + LONGEST_WAIT)


def test_an_answer_that_used_much_makes_the_next_request_wait_for_as_much() -> None:
    meter = tokens_after(600, 300, 30.0)
    meter.take(1.0, 10.0)
    meter.settle(10.0, 295.0, 1.0)
    assert meter.ready_at == pytest.approx(1.5)


def test_what_a_request_reserved_comes_back_if_it_was_turned_away_but_the_usage_of_an_answer_is_in_the_servers_own_count() -> None:
    for used, ready_at in ((0.0, -inf), (10.0, 41.0)):
        meter = tokens_after(1000, 500, 40.0)
        meter.take(2.0, 460.0)
        assert meter.ready_at == 41.0
        meter.settle(460.0, used, 2.0)
        assert meter.ready_at == ready_at, used
    configured = HeaderRateLimit(Gcra(10.0, 0.0))
    configured.take(0.0, 100.0)
    configured.settle(100.0, 40.0, 0.0)
    assert configured.ready_at == pytest.approx(4.0), "a configured limit counts the usage"


# nonsense


def test_what_says_nothing_of_use_changes_nothing() -> None:
    meter = HeaderRateLimit()
    useless = [
        RateLimit(0, 0, 10.0),
        RateLimit(None, 5, None),
        RateLimit(None, None, 30.0),
        RateLimit(5, None, 1.0),
        RateLimit(100, None, None),
        RateLimit(100, None, None, window=10.0),
    ]
    for said in useless:
        meter.update(1.0, 0.0, said)
        assert meter.ready_at == -inf, said


def test_nothing_left_is_not_believed_when_answers_come_all_the_same_but_when_requests_are_turned_away() -> None:
    meter, now = meter_after(100, 0, 1e9), 1.0
    waits = []
    for _ in range(10):
        waits.append(max(0.0, meter.ready_at - now))
        now = max(now, meter.ready_at)
        meter.take(now)
        meter.update(now + 1.0, now, RateLimit(100, 0, 1e9))
        now += 1.0
    assert waits == [LONGEST_WAIT, *[0.0] * 9]
    meter.take(now)
    meter.update(now + 1.0, now, RateLimit(100, 40, 30.0))  # sense again
    send(meter, 40, now + 1.0)
    assert meter.ready_at > now + 1.0
    meter = meter_after(100, 0, 1e9)
    meter.take(now := meter.ready_at)
    meter.update(now + 1.0, now, RateLimit(100, 0, 1e9))
    meter.take(now + 1.0)
    meter.update(now + 2.0, now + 1.0, RateLimit(100, 1, 1e9))
    send(meter, 1, now + 2.0)
    assert meter.ready_at > now + 2.0, "one that remains is sense as well"
    meter = meter_after(100, 0, 1e9)
    for _ in range(3):
        now = meter.ready_at
        meter.take(now)
        meter.update(now + 1.0, now, RateLimit(100, 0, 1e9), answered=False)
        assert meter.ready_at == pytest.approx(now + LONGEST_WAIT)


NUMBER = st.none() | st.sampled_from([0.0, 1.0, 1e9, 1e15]) | st.floats(0, 1e15)
SAID = st.builds(RateLimit, NUMBER, NUMBER, NUMBER, st.none() | st.floats(0.001, 1e9))


@given(steps=st.lists(st.tuples(st.floats(0, 100), st.floats(0, 30), SAID, st.booleans()), max_size=40), tokens=st.booleans())
def test_whatever_headers_say_the_server_is_asked_again_within_a_minute(
    steps: list[tuple[float, float, RateLimit, bool]], tokens: bool
) -> None:
    meter, now = HeaderRateLimit(), 0.0
    for gap, latency, said, answered in steps:
        now += gap
        if meter.ready_at <= now:
            meter.take(now, 100.0 if tokens else 1.0)
        meter.update(now, now - latency, said, answered=answered)
        assert meter.ready_at <= now + LONGEST_WAIT
        assert not isnan(meter.ready_at)
        if tokens:
            meter.settle(100.0, 80.0 if answered else 0.0, now)


# against servers


class Limited:
    """A server with one limit on requests. It counts as it says, and tells what was left when it let a request in, or at its answer."""

    def __init__(self, limit: int, period: float, *, bucket: bool, late: bool, whole: bool) -> None:
        self.limit, self.period, self.bucket, self.late, self.whole = limit, period, bucket, late, whole
        self.left, self.then = float(limit), 0.0
        self.served = self.refused = 0

    def pass_time(self, now: float) -> None:
        if self.bucket:
            self.left = min(self.limit, self.left + (now - self.then) * self.limit / self.period)
        elif now // self.period > self.then // self.period:
            self.left = self.limit
        self.then = max(self.then, now)

    def arrives(self, now: float) -> bool:
        self.pass_time(now)
        if self.left < 1 - 1e-9:
            self.refused += 1
            return False
        self.left -= 1
        self.served += 1
        return True

    def says(self, now: float) -> RateLimit:
        self.pass_time(now)
        reset = (self.limit - self.left) * self.period / self.limit if self.bucket else self.period - now % self.period
        return RateLimit(self.limit, floor(max(0.0, self.left)), ceil(reset) if self.whole else reset)


def play(server: Limited, seconds: float, latency: float, seed: int, most: int = 200) -> None:
    """Endless work, at most so many in flight; the first requests leave before anything is known."""
    meter, rng, now = HeaderRateLimit(), Random(seed), 0.0
    flying: list[tuple[float, int, float, bool, RateLimit | None]] = []
    held = 0.0  # a Retry-After is obeyed
    while now < seconds:
        at = max(now, meter.ready_at, held)
        if len(flying) < (most if server.served > 8 else 8) and (not flying or at <= flying[0][0]):
            now = at
            meter.take(now)
            let_in = server.arrives(now)
            lasts = latency * rng.uniform(0.5, 1.5) if let_in else 0.01
            heappush(flying, (now + lasts, server.served + server.refused, now, let_in, None if server.late else server.says(now)))
        else:
            now, _, sent_at, let_in, said = heappop(flying)
            said = said or server.says(now)
            if not let_in:
                held = now + (said.reset or 0.0) / (server.limit if server.bucket else 1)
            meter.update(now, sent_at, said, answered=let_in, others=len(flying))


@given(
    limit=st.integers(50, 2000),
    bucket=st.booleans(),
    period=st.sampled_from([30.0, 60.0, 300.0]),
    latency=st.floats(0.05, 5.0),
    late=st.booleans(),
    whole=st.booleans(),
    seed=st.integers(0, 2**16),
)
@example(limit=600, bucket=True, period=60.0, latency=2.0, late=False, whole=False, seed=0)
@example(limit=600, bucket=False, period=60.0, latency=2.0, late=True, whole=True, seed=0)
@example(limit=73, bucket=True, period=300.0, latency=3.0, late=True, whole=True, seed=73)
@settings(max_examples=15 * SCALE, deadline=None)
def test_a_limit_is_used_to_the_full_and_hardly_ever_overrun(
    limit: int, bucket: bool, period: float, latency: float, late: bool, whole: bool, seed: int
) -> None:
    server = Limited(limit, period, bucket=bucket, late=late, whole=whole)
    play(server, 5 * period, latency, seed)
    allowed = limit * (6 if bucket else 5)
    able = min(1.0, 0.9 * 200 / latency * 5 * period / allowed)  # of what is allowed, with so many in flight
    assert server.served >= 0.9 * able * allowed, f"{server.served} of {allowed}, {server.refused} refused"
    asked = 5 if period > LONGEST_WAIT and not bucket else 0  # once in each window, although it is said to be used up
    share = 0.1 if late and whole else 0.05  # whole numbers told late are the least that can be known
    assert server.refused <= 4 + asked + share * server.served, f"{server.refused} refused, {server.served} served"


# in a source


def finding_out(estimate: tuple[float, float] = (0.0, 0.0)) -> Driver:
    """A scheduler with one source that finds out what it can take."""
    driver = Driver(estimate=lambda _: estimate)
    found_out = make_source("a", driver.rng, Limits(max_concurrency=8))
    driver.add("a", Limits(max_concurrency=8), window=found_out.window, learned=found_out.learned)
    return driver


def test_an_answer_that_tells_paces_its_source() -> None:
    driver = finding_out()
    driver.end(live(driver.submit()), Answer("yes", 10, 20, RateLimitInfo(RateLimit(60, 2, 30.0))), after=1.0)
    driver.wait(1.0)
    tasks = [driver.submit() for _ in range(5)]
    assert len(driver.at("a")) == 2
    assert driver["a"].ready_at(0.0) == 31.0
    driver.until(31.1)
    assert all(task.attempt is not None for task in tasks)


def test_tokens_are_reserved_from_the_answer_on_that_tells_of_them() -> None:
    driver = finding_out((100.0, 50.0))
    first, second = live(driver.submit()), live(driver.submit())
    driver.end(first, Answer("yes", 10, 20, RateLimitInfo(tokens=RateLimit(1000, 650, 30.0))), after=1.0)
    driver.end(second, Answer("yes", 10, 20), after=0.5)  # sent before there was a limit: nothing was reserved, nothing comes back
    driver.wait(0.5)
    for _ in range(5):
        driver.submit()
    assert len(driver.at("a")) == 4  # of the 620 that the second leaves: each takes 150
    assert driver["a"].ready_at(0.0) == 31.0


def test_an_operators_rate_stays_when_the_server_tells_a_higher_one_and_without_adapting_nothing_else_counts() -> None:
    source = make_source("a", Random(0), Limits(rpm=1, tpm=600))
    source.advertised(1.0, 0.0, RateLimitInfo(RateLimit(6000, 5999, 0.01), RateLimit(1e6, 1e6, 0.0)), used=30)
    assert isinstance(source.requests, HeaderRateLimit)
    assert isinstance(source.tokens, HeaderRateLimit)
    source.requests.take(2.0)
    assert source.ready_at(0.0) == 2.0 + MINUTE
    source.tokens.take(4.0, 600.0)
    assert source.ready_at(0.0) == 4.0 + MINUTE
    fixed = make_source("a", Random(0), Limits(adaptive=False))
    fixed.advertised(1.0, 0.0, RateLimitInfo(RateLimit(60, 0, 30.0)), used=0)
    assert fixed.ready_at(0.0) <= 1.0


def test_a_server_that_says_when_to_come_back_is_asked_then_by_one_request_whatever_else_it_tells() -> None:
    meter = HeaderRateLimit()
    meter.update(1.0, 0.0, RateLimit(None, 0, 360.0), answered=False, hint=1.5)
    assert meter.ready_at == 2.5
    meter.take(2.5, 100.0)
    assert meter.ready_at == 2.5 + LONGEST_WAIT
    meter.update(2.6, 2.5, RateLimit(None, 0, 360.0), answered=False, hint=1.5)
    assert meter.ready_at == pytest.approx(4.1)
    for hint, asked_at in ((5.0, 7.0), (58.0, 60.0), (59.0, 61.0), (300.0, 61.0)):  # without headers it makes it earlier, never later
        meter = meter_after(100, 0, 360.0)
        meter.take(1.0)
        meter.update(2.0, 1.0, None, answered=False, hint=hint)
        assert meter.ready_at == asked_at, hint


def test_headers_of_a_reject_are_forgotten_when_a_later_request_is_answered_without_them() -> None:
    told = meter_after(100, 0, 20.0)
    told.update(1.5, 0.5, None, answered=True)  # others go on telling
    assert told.ready_at == 21.0
    for refund in (0.0, 100.0):  # what the request that was turned away had reserved comes back
        meter = HeaderRateLimit()
        meter.update(1.0, 0.0, RateLimit(None, 0, 360.0), answered=False, hint=1.0)
        meter.settle(refund, 0.0, 0.0)
        meter.update(1.5, 0.9, None, answered=True)  # sent before that was said
        assert meter.ready_at > 1.9 or refund
        meter.take(2.0, 100.0)
        meter.update(2.1, 2.0, None, answered=False)  # it failed, which says nothing: the next may ask at once
        assert meter.ready_at <= 2.1
        meter.take(2.2, 100.0)
        meter.update(2.3, 2.2, None, answered=True)
        assert meter.ready_at == -inf
        assert meter.rate == inf


def test_what_keeps_an_endpoint_from_being_asked_speaks_of_no_infinite_limit() -> None:
    source = make_source("a", Random(0), Limits())
    source.advertised(1.0, 0.0, RateLimitInfo(tokens=RateLimit(None, 0, 50.0)))
    assert standing(2.0, source) == ("no tokens left, as it says itself", pytest.approx(49.0), "token_limit")
    source.advertised(2.0, 1.5, RateLimitInfo(tokens=RateLimit(6000, 0, 60.0)))
    assert "inf" not in standing(3.0, source).reason
