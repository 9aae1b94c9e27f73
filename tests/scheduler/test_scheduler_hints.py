"""``Retry-After`` beside what a server tells of its limits: the wait that it names goes first, and answers end what was inferred."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from qreward.scheduler.limits.headers import DOUBT, LONGEST_WAIT, HeaderRateLimit
from qreward.scheduler.outcome import RateLimit, RateLimitInfo
from qreward.scheduler.state import make_source, standing
from qreward.settings.policies import Limits


def test_a_server_that_says_when_to_come_back_is_asked_then_by_one_request_whatever_else_it_tells() -> None:
    meter = HeaderRateLimit(doubt=DOUBT)
    meter.update(1.0, 0.0, RateLimit(None, 0, 360.0), answered=False, hint=1.5)
    assert meter.ready_at == 2.5
    meter.take(2.5, 100.0)
    assert meter.ready_at == 2.5 + LONGEST_WAIT
    meter.update(2.6, 2.5, RateLimit(None, 0, 360.0), answered=False, hint=1.5)
    assert meter.ready_at == pytest.approx(4.1)


def test_what_was_told_with_a_reject_is_forgotten_when_a_later_request_is_answered_without_a_word_of_it() -> None:
    for refund in (0.0, 100.0):  # what the request that was turned away had reserved comes back
        meter = HeaderRateLimit(doubt=DOUBT)
        meter.update(1.0, 0.0, RateLimit(None, 0, 360.0), answered=False, hint=1.0)
        meter.settle(refund, 0.0)
        meter.update(1.5, 0.9, None, answered=True)  # sent before that was said
        assert meter.ready_at > 1.9 or refund
        meter.take(2.0, 100.0)
        meter.update(2.1, 2.0, None, answered=False)  # it failed, which says nothing: the next may ask at once
        assert meter.ready_at <= 2.1
        meter.take(2.2, 100.0)
        meter.update(2.3, 2.2, None, answered=True)
        assert meter.ready_at == -inf
        assert meter.rate == inf


def test_a_limit_of_which_answers_go_on_telling_is_not_forgotten() -> None:
    meter = HeaderRateLimit()
    meter.update(1.0, 0.0, RateLimit(100, 0, 20.0))
    meter.update(1.5, 0.5, None, answered=True)
    assert meter.ready_at == 21.0


def test_what_keeps_an_endpoint_from_being_asked_speaks_of_no_infinite_limit() -> None:
    source = make_source("a", Random(0), Limits())
    source.advertised(1.0, 0.0, RateLimitInfo(tokens=RateLimit(None, 0, 50.0)))
    assert standing(2.0, source) == ("no tokens left, as it says itself", pytest.approx(49.0))
    source.advertised(2.0, 1.5, RateLimitInfo(tokens=RateLimit(6000, 0, 60.0)))
    assert "inf" not in standing(3.0, source).reason
