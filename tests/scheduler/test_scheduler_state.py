"""All that keeps a source from being asked is one number: the time at which it may be."""

from __future__ import annotations

from math import inf
from random import Random
from typing import Any

import pytest

from qreward.scheduler.limits.concurrency import AdaptiveLimit
from qreward.scheduler.limits.rate import MINUTE, Gcra, HeaderRateLimit, LearnedRate
from qreward.scheduler.outcome import Answer, RateLimit, RateLimitInfo
from qreward.scheduler.pool import ExpectedFinish, Pool
from qreward.scheduler.prefixes import Prefix
from qreward.scheduler.queue import Queue
from qreward.scheduler.source import ATTEMPT_FIRST, ATTEMPT_LEAST, MOST_SLOWER, Source, make_source, standing
from qreward.scheduler.task import READ_AHEAD, Attempt, BatchFeed, Task
from qreward.settings.policies import Limits

POOL = Pool("p", [], ExpectedFinish(), Queue())


def source(limits: Limits | None = None, **more: Any) -> Source:
    return Source("a", Random(0), limits, **more)  # type: ignore[arg-type]


def attempt(source: Source, now: float) -> Attempt:
    return Attempt(Task(None, POOL, 5, None, None, 0), source, now)


def send(source: Source, now: float) -> None:
    assert source.ready_at(now) <= now
    source.sent(now, attempt(source, now))


def answered(source: Source, seconds: float, pool: Pool = POOL) -> None:
    """It answers a request that was the only one in flight."""
    sent = Attempt(Task(None, pool, 5, None, None, 0), source, 0.0)
    source.sent(0.0, sent)
    source.ended(seconds, sent)
    source.answered(seconds, sent, Answer("yes", 3, 4))


def test_the_time_limit_of_an_attempt_is_long_until_the_source_has_shown_its_speed_and_doubles_when_it_is_exceeded() -> None:
    new, fast, slow, fixed = source(), source(), source(), source(attempt_timeout=3.0)
    for _ in range(20):
        answered(fast, 0.01)
        answered(slow, 5.0)
    assert [new.attempt_limit(overdue) for overdue in range(3)] == [ATTEMPT_FIRST, 2 * ATTEMPT_FIRST, 4 * ATTEMPT_FIRST]
    assert new.attempt_limit(5000) > 480.0
    assert fast.attempt_limit(0) == ATTEMPT_LEAST
    assert slow.attempt_limit(0) == pytest.approx(8 * 5.0, rel=0.06)
    assert [slow.attempt_limit(overdue) / slow.attempt_limit(0) for overdue in range(5)] == [1, 1, 2, 4, 8]
    assert fixed.attempt_limit(0) == fixed.attempt_limit(4) == 3.0


def test_a_source_is_given_time_for_answers_as_slow_as_it_has_shown_or_as_were_cut() -> None:
    for longest, limit in ((4.0, ATTEMPT_LEAST), (10.5, 2 * 10.5), (100.0, MOST_SLOWER)):
        shown, cut = source(), source()
        for number in range(200):
            answered(shown, longest if number == 50 else 0.3)
            answered(cut, 0.3)
        cut.latency.cut(longest)
        for each in (shown, cut):
            assert each.latency.p99 is not None
            assert each.latency.p99 < 0.4
            assert each.attempt_limit(0) == pytest.approx(limit, rel=0.15), longest


def test_the_latest_of_gate_health_and_rate_counts() -> None:
    held = source(Limits(rpm=1))
    send(held, 0.0)
    assert held.ready_at(0.0) == MINUTE
    held.inflight -= 1
    held.rejected(0.5, attempt(held, 0.0), hint=20.0)
    assert held.ready_at(0.0) == MINUTE
    held.health.eject(1.0, 80.0)
    assert held.ready_at(0.0) == 81.0


def test_it_is_worth_waiting_for_if_it_can_take_work_within_a_second() -> None:
    held = source()
    held.cooldown.opens_at = 10.0
    assert [held.available_soon(now) for now in (8.5, 9.0, 9.5)] == [False, False, True]
    held.health.eject(9.5, 1.0)
    assert not held.available_soon(9.5)
    removed = source()
    removed.removed = True
    assert not removed.available_soon(0.0)
    metered = source(learned=LearnedRate())
    for unit in ("requests", "tokens"):
        metered.advertised(0.0, 0.0, RateLimitInfo(**{unit: RateLimit(limit=10, remaining=0, reset=5.0)}))
        assert [metered.available_soon(now) for now in (0.0, 6.0)] == [False, True], unit


def test_an_answer_is_expected_to_take_longer_as_the_window_fills() -> None:
    loaded = source(Limits(max_concurrency=4))
    pool = Pool("p", [loaded, source()], ExpectedFinish(), Queue())
    answered(loaded, 2.0, pool)
    assert loaded.answers_in(2.0, pool) == pytest.approx(2.0)
    loaded.inflight = 4
    assert loaded.answers_in(2.0, pool) == pytest.approx(4.5)


def finish(source: Source, now: float, *failures: Source, unfit: tuple[Source, ...] = ()) -> float:
    """When the source is expected to answer a task that has failed there so often."""
    again = Task(None, source.pools[0], 5, None, None, 0)
    again.failures, again.unfit = tuple((failed, 0.0) for failed in failures), unfit
    return source.finishes_in(now, again)


def test_the_expected_finish_of_a_task_is_the_wait_and_twice_the_service_for_each_failure_there() -> None:
    """A source of four slots that needs 2 s for an answer, and one that has sent its request of the minute."""
    free, full, paced, away, other = (source(limits) for limits in (Limits(max_concurrency=4),) * 2 + (Limits(rpm=1),) + (Limits(),) * 2)
    pool = Pool("p", [free, full, paced, away, other], ExpectedFinish(), Queue())
    for each in (free, full, away):
        answered(each, 2.0, pool)
    send(paced, 2.0)
    paced.inflight, full.inflight = 0, 4
    away.cooldown.opens_at = 12.0
    cases = {
        "a free slot": (finish(free, 2.0), 2.0),
        "it failed there once": (finish(free, 2.0, free), 4.0),
        "twice": (finish(free, 2.0, free, free, other), 8.0),
        "and as slow as eight of them at most": (finish(free, 2.0, *[free] * 9), 16.0),
        "it cannot serve it": (finish(free, 2.0, unfit=(free,)), inf),
        "no slot": (finish(full, 2.0), 4.5 + 4.5 / 4),
        "a cooldown": (finish(away, 2.0), 10.0 + 2.0),
        "a rate": (finish(paced, 2.0), paced.ready_at(2.0) - 2.0 + 2.0),
    }
    wrong = {what: found for what, found in cases.items() if found[0] != pytest.approx(found[1])}
    assert not wrong
    for _ in range(3):  # further retries wait
        waiting = Task(None, pool, 5, None, None, 0)
        waiting.sent_at = 0.0
        pool.queue.put(waiting)
    assert finish(free, 2.0) == pytest.approx(2.0), "they go ahead of nobody who has a slot"
    assert finish(paced, 2.0) == pytest.approx(paced.ready_at(2.0) - 2.0 + 3 * 60.0 + 2.0)
    assert finish(full, 2.0) == pytest.approx(4.5 + (1 + 3) * 4.5 / 4)
    removed = source()
    Pool("q", [removed], ExpectedFinish(), Queue())
    removed.removed = True
    assert finish(removed, 0.0) == inf


def test_the_best_source_is_the_one_that_is_expected_to_answer_a_task_first_in_pools_of_any_size() -> None:
    for size in (3, 100):
        sources = [source() for _ in range(size)]
        pool = Pool("p", sources, ExpectedFinish(), Queue())
        for number, each in enumerate(sources):
            for _ in range(20):
                answered(each, 1.0 + number / size, pool)
        pool.common.count(2.0)
        task = Task(None, pool, 5, None, None, 0)
        assert pool.best(2.0, task)[1] is sources[0], size
        assert pool.best(2.0, task, besides=sources[0])[1] is sources[1], size
        task.failures = ((sources[0], 0.0),)
        seconds, found = pool.best(2.0, task)
        assert found is sources[1], size
        assert seconds == sources[1].finishes_in(2.0, task), size
        task.unfit = tuple(sources)
        assert pool.best(2.0, task) == (inf, None), size
        task.unfit = ()
        sources[1].removed = True
        assert pool.best(2.0, task)[1] is sources[2], size


def test_what_keeps_a_source_from_being_asked_is_named_with_its_seconds_and_ready_at_says_the_same() -> None:
    def paced(limits: Limits) -> Source:
        made = source(limits)
        for limit in (made.requests, made.tokens):
            if limit is not None:
                limit.take(0.0, 1.0)
        return made

    well, removed, marked, ejected, half_open, away, full, learned = (source(Limits(max_concurrency=2)) for _ in range(8))
    removed.removed = True
    marked.health.mark_unhealthy()
    ejected.health.eject(0.0, 40.0)
    ejected.cooldown.opens_at = 30.0
    half_open.health.half_open = True
    half_open.inflight = 1
    away.cooldown.opens_at = 7.0
    full.inflight = 2
    learned.learned = LearnedRate()
    for number in range(60):
        learned.learned.sent(float(number))
        learned.learned.ok(float(number))
    learned.learned.rejected(57.0)
    learned.learned.hinted(57.0, 1.0)
    learned.learned.ok(58.5)
    learned.learned.hinted(59.0, 1.0)
    learned.learned.sent(59.0)
    scenes = {
        "ready": (well, 0.0),
        "removed": (removed, inf),
        "marked unhealthy": (marked, inf),
        "out of service after failures": (ejected, 40.0),
        "coming back: 1 at a time": (half_open, inf),
        "it turned requests away": (away, 7.0),
        "window full": (full, inf),
        "limit of 1 requests a minute": (paced(Limits(rpm=1)), MINUTE),
        "limit of 1 tokens a minute": (paced(Limits(tpm=1)), MINUTE),
    }
    for reason, (each, seconds) in scenes.items():
        assert standing(0.0, each)[:2] == (reason, pytest.approx(seconds)), reason
        assert max(0.0, each.ready_at(0.0)) == pytest.approx(seconds), reason
    reason, seconds, code = standing(59.0, learned)
    assert (reason[:12], code) == ("paced at 0.9", "rate_limit")
    assert learned.ready_at(59.0) - 59.0 == pytest.approx(seconds)
    assert 0.0 < seconds < 5.0


def test_the_rate_of_a_source_is_that_of_its_window_or_of_the_lowest_limit_on_requests() -> None:
    fast, limited, paced = source(Limits(max_concurrency=4)), source(Limits(rpm=30)), source(learned=LearnedRate())
    for each in (fast, limited, paced):
        answered(each, 2.0)
    assert fast.rate() == pytest.approx(2.0)
    assert limited.rate() == 0.5
    assert paced.rate() == pytest.approx(paced.window.limit / 2.0), "nothing was learned yet"


def test_a_source_adapts_its_limits_unless_that_is_switched_off_and_then_a_hint_lets_it_learn_a_rate() -> None:
    for adaptive in (True, False):
        made = make_source("a", Random(0), Limits(max_concurrency=9, adaptive=adaptive), weight=2.0, attempt_timeout=3.0)
        assert (made.learned is not None, isinstance(made.window, AdaptiveLimit)) == (adaptive, adaptive)
        assert (made.window.limit <= 9, made.weight, made.attempt_timeout) == (True, 2.0, 3.0)
        for number in range(60):
            sent = attempt(made, float(number))
            made.sent(float(number), sent)
            made.ended(number + 0.1, sent)
            made.answered(number + 0.1, sent, Answer("yes", 3, 4))
        assert made.rate() > 5.0
        for now in (60.0, 62.0):
            assert made.rate() > 5.0, "the first row lowers the concurrency limit, which may be enough"
            row = [attempt(made, now - 0.5) for _ in range(5)]
            for sent in row:
                made.sent(now - 0.5, sent)
            for sent in row[:4]:
                assert now > 60.0 or made.cooldown.pauses == 0, "the first three are stray"
                made.ended(now, sent)
                made.rejected(now, sent, hint=1.0)
            assert (made.tally.rejected, made.ready_at(now, slot=True)) == (4 if now == 60.0 else 8, now + 1.0)
            for sent in row[4:]:
                made.ended(now + 0.1, sent)
                made.answered(now + 0.1, sent, Answer("yes", 3, 4))
        assert (made.rate() < 1.1) is adaptive, "about one a second was accepted"


def test_a_latency_is_that_of_the_load_at_which_it_was_measured() -> None:
    """Two requests that overlap for half of their time, at a window of one."""
    held = source(Limits(max_concurrency=1))
    pool = Pool("p", [held, source()], ExpectedFinish(), Queue())
    first, second = (Attempt(Task(None, pool, 5, None, None, 0), held, now) for now in (0.0, 1.0))
    for each, now in ((first, 0.0), (second, 1.0)):
        held.sent(now, each)
    for each, now in ((first, 2.0), (second, 3.0)):
        held.ended(now, each)
        held.answered(now, each, Answer("yes", 3, 4))
    assert held.answers_in(3.0, pool) == pytest.approx(2.0 / 1.5)
    assert (held.inflight, held.inflight_seconds) == (0, 4.0)


def test_what_an_answer_says_of_both_limits_is_taken_over_and_a_configured_limit_that_must_not_adapt_stays() -> None:
    limits = RateLimitInfo(requests=RateLimit(limit=60, remaining=0, reset=5.0), tokens=RateLimit(limit=600, remaining=0, reset=8.0))
    adapts, fixed = source(learned=LearnedRate()), source(Limits(rpm=60))
    for each in (adapts, fixed):
        sent = attempt(each, 0.0)
        each.sent(0.0, sent)
        each.ended(1.0, sent)
        each.answered(1.0, sent, Answer("yes", 3, 4, limits=limits))
    assert adapts.metered
    assert adapts.ready_at(1.0) > 1.0
    assert not fixed.metered
    assert isinstance(fixed.requests, Gcra)
    assert fixed.tokens is None


class Told(HeaderRateLimit):
    """A limit that notes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[tuple[Any, ...]] = []

    def update(self, now: float, sent_at: float, info: RateLimit | None, **more: Any) -> None:
        self.notes.append((now, sent_at, info, more["answered"], more["others"], more["hint"]))


def test_both_limits_are_told_of_every_end_what_it_used_and_what_else_is_under_way() -> None:
    """While answers carry limits, those without them count too; of tokens the others are taken to use as many as this answer."""
    metered = source(learned=LearnedRate())
    metered.advertised(0.0, 0.0, RateLimitInfo(requests=RateLimit(limit=9), tokens=RateLimit(limit=99)))
    requests, tokens = metered.requests, metered.tokens = Told(), Told()
    attempts = [attempt(metered, 0.0) for _ in range(3)]
    for each in attempts:
        metered.sent(0.0, each)
    metered.ended(1.0, attempts[0])
    metered.answered(1.0, attempts[0], Answer("yes", 3, 4, cached_tokens=2))
    metered.advertised(2.0, 0.0, RateLimitInfo(requests=(info := RateLimit(limit=9))), used=0)
    metered.advertised(3.0, 0.5, None, hint=7.0)
    metered.ended(4.0, attempts[1])
    metered.answered(4.0, attempts[1], Answer("yes"))
    assert requests.notes == [
        (1.0, 0.0, None, True, 2, None),
        (2.0, 0.0, info, True, 2, None),
        (3.0, 0.5, None, False, 2, 7.0),
        (4.0, 0.0, None, True, 1, None),
    ]
    assert [note[2:5] for note in tokens.notes] == [(None, True, 14), (None, True, 0), (None, False, 0), (None, True, 0)]
    tally = metered.tally
    assert (tally.sent, tally.ok, tally.prompt_tokens, tally.output_tokens, tally.cached_tokens) == (3, 2, 3, 4, 2)


def test_five_requests_in_a_row_that_time_out_or_an_open_breaker_mean_that_a_source_is_not_alive() -> None:
    for unanswered, removed, away, alive in (
        (4, False, False, True),
        (5, False, False, False),
        (0, True, False, False),
        (0, False, True, False),
    ):
        each = source()
        each.unanswered, each.removed = unanswered, removed
        if away:
            each.health.eject(0.0, 9.0)
        pool = Pool("p", [source(), each], ExpectedFinish(), Queue())
        pool.sources[0].health.mark_unhealthy()
        assert each.is_alive() is pool.is_alive() is alive, (unanswered, removed, away)
    each = source()
    for sign in ("answer", "first token"):
        each.unanswered = 5
        if sign == "answer":
            answered(each, 1.0)
        else:
            each.began(2.0, 1.0)
        assert each.is_alive(), sign


def test_a_batch_reads_further_ahead_once_its_items_have_prefixes() -> None:
    pool = Pool("p", [source(), source()], ExpectedFinish(), Queue())
    pool.set_look_ahead(100)
    feed = BatchFeed(pool, 5, None, 0.0)
    seen = []
    for prefix in (None, Prefix((1,), (2000.0,), 2400.0), None):
        item = Task(None, pool, 5, None, None, 0)
        item.prefix = prefix
        feed.add(item)
        seen.append(feed.read_ahead)
    assert seen == [READ_AHEAD, 100, 100]
    assert feed.ahead() == 3


def test_a_stream_has_waited_for_its_reader_before_and_waits_now() -> None:
    stream = attempt(source(), 0.0)
    stream.held = 2.0
    assert stream.held_until(10.0) == 2.0
    stream.holds_since = 7.0
    assert stream.held_until(10.0) == 5.0
