"""What probes mean for a source: its own word counts only as far as it agrees with what happens to its requests."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import inf
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qreward.engine.probing import LONGEST_AWAY, VALID, ProbeState
from qreward.scheduler.limits.concurrency import AdaptiveLimit
from qreward.scheduler.outcome import Answer, ProbeResult
from qreward.scheduler.pool import ExpectedFinish, Pool
from qreward.scheduler.queue import Queue
from qreward.scheduler.source import Source, make_source
from qreward.scheduler.task import Attempt, Task
from qreward.settings.policies import Limits

READY, AWAY, SILENT = ProbeResult(ready=True), ProbeResult(ready=False), ProbeResult()
FULL, ROOM = ProbeResult(running=8.0, waiting=3.0), ProbeResult(running=5.0, waiting=0.0)
NONE, BETTER, LOST = False, True, True
PROBE = 1.0
POOL = Pool("p", [], ExpectedFinish(), Queue())
Event = tuple[float, ProbeResult | Callable[[Source, float], Any]]
"""When, and a probe's result or what happens to the source."""


def fresh() -> tuple[Source, ProbeState]:
    return make_source("a", Random(0), Limits()), ProbeState()


def probe(state: ProbeState, source: Source, *results: ProbeResult, since: float = 0.0) -> list[bool]:
    """One a second, the first at ``since``."""
    return [state.take(since + step, source, each, PROBE) for step, each in enumerate(results)]


def send(source: Source, now: float) -> Attempt:
    attempt = Attempt(Task(None, POOL, 5, None, None, 0), source, now)
    source.sent(now, attempt)
    return attempt


def answer(source: Source, now: float, sent_at: float | None = None) -> None:
    attempt = Attempt(Task(None, POOL, 5, None, None, 0), source, now if sent_at is None else sent_at)
    source.answered(now, attempt, Answer(None))


def send_late(source: Source, now: float) -> None:
    send(source, now)


def fail(source: Source, now: float) -> None:
    """The request that left at 1 s fails."""
    source.inflight -= 1
    source.health.failed(now, 1.0, source.tally.sent, 7)


def answer_late(source: Source, now: float) -> None:
    source.inflight -= 1
    answer(source, now, sent_at=1.6)
    assert not source.health.half_open


def eject(seconds: float) -> Any:
    return lambda source, now: source.health.eject(now, seconds)


def turn_away(hint: float | None = None) -> Any:
    """Five rejects in a row, so that a cooldown begins."""

    def rejects(source: Source, now: float) -> None:
        for _ in range(5):
            source.cooldown.rejected(now, now, hint)
        assert source.cooldown.opens_at > now + 1.2

    return rejects


def kept_cooldown() -> float:
    source, _ = fresh()
    turn_away()(source, 0.0)
    return source.cooldown.opens_at


CASES: dict[str, tuple[list[Event], list[bool], float]] = {
    # returned
    "it was not ready and is ready": ([(0, eject(5)), (1, AWAY), (2, READY)], [NONE, BETTER], 2.0),
    "it says ready while it fails": ([(0, READY), (0.5, eject(5)), *[(at, READY) for at in (1, 2, 3, 4)]], [NONE] * 5, 5.5),
    "it was silent and is ready": ([(0, lambda source, now: source.health.stall(now)), (0.5, SILENT), (1.5, READY)], [NONE, BETTER], 1.5),
    "its account is used up": ([(0, eject(300)), (1, AWAY), (2, READY)], [NONE, NONE], 300.0),
    "it is out for longer than breakers are open": ([(0, eject(12)), (1, AWAY), (2, READY)], [NONE, NONE], 12.0),
    "it is out for as long as breakers may be open": ([(0, eject(4.9)), (1, AWAY), (2, READY)], [NONE, BETTER], 2.0),
    "an operator took it out": ([(0, lambda source, _: source.health.mark_unhealthy()), (0, AWAY), (1, READY)], [NONE, NONE], inf),
    "a trial sent while it was away tells nothing": (
        [(0, eject(1)), (0, AWAY), (1, send_late), (2, AWAY), (3, READY), (3.5, fail)],
        [NONE, NONE, BETTER],
        3.0,
    ),
    "a trial sent before it was silent tells nothing": (
        [(0, eject(1)), (0, AWAY), (1, send_late), (2, SILENT), (3, READY), (3.5, fail)],
        [NONE, NONE, BETTER],
        3.0,
    ),
    "a trial sent since is waited for": (
        [(0, eject(1.5)), (0, AWAY), (1, AWAY), (1.6, send_late), (2, READY), (2.5, answer_late)],
        [NONE] * 3,
        -inf,
    ),
    # away
    "it says not ready, and answers nothing": ([(0.5, answer), (1, READY), (2, AWAY), (3, AWAY)], [NONE, LOST, NONE], 3.0 + VALID * PROBE),
    "it says ready again": ([(0.5, answer), (1, READY), (2, AWAY), (3, AWAY), (4, READY)], [NONE, LOST, NONE, BETTER], 4.0),
    "it answers what came after its word": (
        [(0.5, answer), (1, READY), (2, AWAY), (4.5, answer), (5, AWAY), (6, AWAY)],
        [NONE, LOST, NONE, NONE],
        2.0 + VALID * PROBE,
    ),
    "it never said ready": ([(at, AWAY) for at in range(5)], [NONE] * 5, -inf),
    "it is out for longer": ([(0, READY), (0.5, eject(300)), (1, AWAY)], [NONE, NONE], 300.5),
    # room
    "it was full and has room": ([(0, turn_away()), (0.2, FULL), (1.2, ROOM)], [NONE, BETTER], 1.2),
    "it asked for a wait": ([(0, turn_away(30)), (0.2, FULL), (1.2, ROOM), (2.2, AWAY), (3.2, READY)], [NONE] * 4, 30.0),
    "it turns away although it has room": ([(0, turn_away()), (0.1, ROOM), (1.1, ROOM)], [NONE, NONE], kept_cooldown()),
    "its outage is over": ([(0, turn_away()), (0.1, AWAY), (1.1, READY)], [NONE, BETTER], 1.1),
    "more than it can are full": ([(0, turn_away()), (0.1, ProbeResult(running=9.0, most=8.0)), (1.1, ROOM)], [NONE, BETTER], 1.1),
    "only what it works on is known": ([(0, turn_away()), (0.1, FULL), (1.1, ProbeResult(running=5.0))], [NONE, NONE], kept_cooldown()),
    "less are not": ([(0, turn_away()), (0.1, ProbeResult(running=7.0, most=8.0)), (1.1, ROOM)], [NONE, NONE], kept_cooldown()),
}


def test_what_probes_change_and_when_the_source_may_be_sent_to() -> None:
    wrong = []
    for name, (events, effects, ready_at) in CASES.items():
        source, state = fresh()
        found = []
        for at, event in events:
            if isinstance(event, ProbeResult):
                found.append(state.take(at, source, event, PROBE))
            else:
                event(source, at)
        if (found, source.ready_at(0.0)) != (effects, ready_at):
            wrong.append((name, found, source.ready_at(0.0)))
    assert wrong == []


def test_the_word_of_a_server_holds_for_two_intervals_and_two_seconds_at_least() -> None:
    for interval, holds in ((5.0, 10.0), (0.5, 2.0)):
        source, state = fresh()
        answer(source, 0.5)
        assert [state.take(now, source, each, interval) for now, each in ((1.0, READY), (2.0, AWAY))] == [NONE, LOST]
        assert source.ready_at(0.0) == 2.0 + holds, interval


def test_one_that_has_returned_is_tried_by_one_request() -> None:
    source, state = fresh()
    source.health.eject(0.0, 5.0)
    probe(state, source, AWAY, READY, since=1.0)
    send(source, 2.0)
    assert source.health.in_service
    assert source.ready_at(0.0) == inf, "the rest follows when that one is answered"


def test_a_source_in_full_service_or_well_on_its_way_is_left_alone_by_probes_that_fail_now_and_then() -> None:
    source, state = fresh()
    assert set(probe(state, source, READY, SILENT, READY, SILENT, READY)) == {NONE}
    assert source.health.clean
    source.health.eject(5.0, 1.0)
    send(source, 6.0)
    answer(source, 7.0, sent_at=6.0)
    assert set(probe(state, source, SILENT, READY, SILENT, READY, since=7.0)) == {NONE}
    assert source.health.is_back


def test_a_source_that_answers_all_the_time_is_asked_all_the_time_whatever_it_says() -> None:
    source, state = fresh()
    probe(state, source, READY)
    for now in range(1, 10):
        answer(source, now - 0.5)
        assert probe(state, source, AWAY, since=now) == [NONE]
    assert source.ready_at(0.0) < 0


def test_a_source_that_only_finishes_what_it_has_is_not_sent_anything_new() -> None:
    source, state = fresh()
    sent = [send(source, 0.5).sent_at for _ in range(3)]
    probe(state, source, READY, AWAY)
    for now in (1.5, 2.5, 3.5):
        source.inflight -= 1
        answer(source, now, sent.pop())
        assert probe(state, source, AWAY, since=now + 0.5) == [NONE], "what was sent before says nothing of it"
    probe(state, source, AWAY, since=5.0)
    assert source.ready_at(0.0) == 5.0 + VALID * PROBE


def asked_all_the_same(*, answers: bool) -> list[float]:
    """When a source that has work, and says for five minutes that it is not ready, is sent a request."""
    source, state = fresh()
    probe(state, source, READY, AWAY)
    sent, now = [], 2.0
    while now < 300.0:
        if source.ready_at(now) <= now:
            sent.append(now)
            send(source, now)
            source.inflight -= 1
            if answers:
                answer(source, now + 0.5, now)
            else:
                source.health.failed(now + 0.5, now, source.tally.sent, len(sent))
        probe(state, source, AWAY, since=now)
        now += PROBE
    return sent


def test_now_and_then_a_request_shows_whether_it_is_true_and_one_that_is_answered_brings_it_back() -> None:
    sent = asked_all_the_same(answers=False)
    assert 300 / LONGEST_AWAY - 2 <= len(sent) <= 300 / LONGEST_AWAY
    assert min(after - before for before, after in pairwise(sent)) >= LONGEST_AWAY
    sent = asked_all_the_same(answers=True)
    assert sent[0] >= LONGEST_AWAY
    assert len(sent) > 200, "it is not believed any more"


def test_a_source_comes_back_with_the_concurrency_limit_that_it_had_before_it_went() -> None:
    source, state = fresh()
    window: Any = source.window
    grown(window, 0.0)
    had = window.limit
    probe(state, source, READY, since=1.0)
    for order, others in enumerate((20, 10, 5, 3, 2)):  # it finishes what it has, and turns away what is new
        window.rejected(1.5, 1.4, order, None, others)
    assert window.limit < had / 2
    probe(state, source, AWAY, AWAY, READY, since=2.0)
    assert window.limit >= min(had / 2, 32)


# a queue at the server


def grown(window: AdaptiveLimit, now: float, seconds: float = 0.1, rounds: int = 4) -> float:
    """After a few rounds at full use in which throughput keeps up."""
    for _ in range(rounds):
        limit = window.limit
        for _ in range(limit):
            window.sent(now, limit)
        now += seconds
        for _ in range(limit):
            window.ok(now, now - seconds, 10, limit)
    return now


def test_the_limit_does_not_grow_while_the_server_lets_requests_wait_and_says_so_again_and_again() -> None:
    cases = {
        "a queue": ([FULL, FULL], 1.0, False),
        "a queue that is gone": ([FULL, FULL, ROOM], 2.0, True),
        "once": ([FULL], 1.0, True),
        "now and then": ([FULL, ROOM, FULL], 1.0, True),
        "a tenth of many": ([ProbeResult(running=100.0, waiting=10.0)] * 2, 1.0, False),
        "one, and nothing is worked on": ([ProbeResult(running=0.0, waiting=1.0)] * 2, 1.0, False),
        "few of many": ([ProbeResult(running=100.0, waiting=9.0)] * 3, 1.0, True),
        "silence": ([SILENT] * 3, 1.0, True),
        "no probe since": ([FULL, FULL], 1.0 + VALID * PROBE, True),
    }
    wrong = []
    for name, (results, at, grows) in cases.items():
        source, state = fresh()
        window: Any = source.window
        start = window.limit
        probe(state, source, *results)
        grown(window, at)
        if (window.limit > start) != grows:
            wrong.append((name, start, window.limit))
    assert wrong == []


# what holds whatever is seen

RESULTS = st.builds(
    ProbeResult,
    ready=st.sampled_from([True, False, None]),
    running=st.none() | st.floats(0, 1000),
    waiting=st.none() | st.floats(0, 1000),
    most=st.none() | st.floats(1, 1000),
)


@given(st.lists(RESULTS, max_size=40), st.booleans())
def test_no_probes_take_a_source_that_answers_out_of_service(results: list[ProbeResult], fixed: bool) -> None:
    source, state = make_source("a", Random(0), Limits(adaptive=not fixed)), ProbeState()
    for now, each in enumerate(results):
        answer(source, now + 0.5)
        assert state.take(now + 1.0, source, each, PROBE) is False
    assert source.health.in_service
    assert source.ready_at(0.0) <= len(results)


@given(st.lists(RESULTS, min_size=1, max_size=40))
def test_when_probes_cease_a_source_is_sent_to_again_soon(results: list[ProbeResult]) -> None:
    source, state = fresh()
    for now, each in enumerate(results):
        state.take(float(now), source, each, PROBE)
    assert source.ready_at(0.0) <= len(results) - 1 + VALID * PROBE
