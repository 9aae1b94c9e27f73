"""A pace is learned from rejects with a hint, raised while all is well, and taken back where that was too much."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest

from qreward.scheduler.limits.rate import EVIDENCE, FIRST_RAISE, SHARE, LearnedRate


def busy(pace: LearnedRate, start: float, seconds: int, per_second: int) -> float:
    for second in range(seconds):
        for number in range(per_second):
            pace.sent(start + second + number / per_second)
    pace.ok(start + seconds)
    return start + seconds


def test_a_hint_sets_just_less_than_what_was_accepted_in_the_last_minute() -> None:
    pace = LearnedRate()
    now = busy(pace, 0.0, 120, 10)
    pace.sent(now)
    pace.refused(now)
    pace.hinted(now, 5.0)
    assert pace.rate == pytest.approx(SHARE * 10, rel=0.03)


def test_a_young_source_counts_the_wait_that_it_asked_for() -> None:
    pace = LearnedRate()
    for _ in range(30):
        pace.sent(0.0)
    pace.ok(0.4)
    pace.hinted(0.5, 29.5)
    assert pace.rate == pytest.approx(SHARE * 30 / 30)


def test_it_is_raised_after_clean_seconds_the_raises_double_and_a_reject_takes_back_the_last() -> None:
    pace = LearnedRate()
    now = busy(pace, 0.0, 60, 10)
    pace.hinted(now, 1.0)
    assert pace.rate < inf
    rates = [pace.rate]
    pace.hinted(now + 0.9, 1.0)
    assert pace.rate == rates[0], "rejects within a second count once"
    for later in (21, 27, 33, 39, 45, 51):
        pace.ok(now + later)
        rates.append(pace.rate)
    raises = [after / before - 1 for before, after in pairwise(rates)]
    assert raises == pytest.approx([FIRST_RAISE, 0.04, 0.08, 0.16, 0.30, 0.30])
    pace.ok(now + 52)
    assert pace.rate == rates[-1], "not more often than every five seconds"
    pace.hinted(now + 60, 1.0)
    assert pace.rate == pytest.approx(rates[-2])
    sent, at = 0, now + 65
    while at < now + 125:
        at = max(at, pace.ready_at)
        pace.sent(at)
        sent += 1
    assert sent == pytest.approx(60 * pace.rate, rel=0.03), "sends are spread"


def test_a_pace_is_forgotten_when_rejects_go_on_amid_answers_although_it_was_not_raised() -> None:
    """They do not come from the rate. After few answers they may."""
    for answers, forgotten in ((EVIDENCE, True), (EVIDENCE - 1, False)):
        pace = LearnedRate()
        now = busy(pace, 0.0, 60, 10)
        pace.hinted(now, 1.0)
        for cut in (2.0, 4.0):
            assert pace.rate < inf
            for answer in range(answers):
                pace.ok(now + cut - 1 + answer / 10)
            pace.hinted(now + cut, 1.0)
        assert (pace.rate == inf) == forgotten, answers


def test_a_source_that_accepts_nothing_any_more_is_away_not_slow() -> None:
    pace = LearnedRate()
    now = busy(pace, 0.0, 60, 10)
    for later in range(0, 50, 5):
        pace.hinted(now + later, 5.0)
    assert pace.rate == pytest.approx(SHARE * 10, rel=0.03), "one cut for the whole outage"


def test_without_a_hint_and_after_a_few_requests_nothing_is_limited() -> None:
    pace = LearnedRate()
    busy(pace, 0.0, 10, 100)
    assert pace.rate == inf
    assert pace.ready_at == -inf
    pace = LearnedRate()
    pace.sent(0.0)
    pace.ok(0.5)
    pace.sent(1.0)
    pace.refused(1.0)
    pace.hinted(1.1, 1.0)
    assert pace.rate == inf
