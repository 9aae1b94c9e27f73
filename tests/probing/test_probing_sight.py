"""What looks mean for a source: its own word counts only as far as it agrees with what happens to its requests."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qreward.scheduler.limits.concurrency import AdaptiveLimit
from qreward.scheduler.outcome import Answer, ProbeResult
from qreward.scheduler.probe_state import LONGEST_AWAY, VALID, ProbeEffect, ProbeState
from qreward.scheduler.state import Attempt, Source, Task, make_source
from qreward.settings.policies import Limits

READY, AWAY, SILENT = ProbeResult(ready=True), ProbeResult(ready=False), ProbeResult()
FULL, ROOM = ProbeResult(running=8.0, waiting=3.0), ProbeResult(running=5.0, waiting=0.0)
PROBE = 1.0


def fresh() -> tuple[Source, ProbeState]:
    return make_source("a", Random(0), Limits()), ProbeState()


def look(sight: ProbeState, source: Source, *looks: ProbeResult, since: float = 0.0) -> list[ProbeEffect]:
    """One look a second, the first at ``since``."""
    return [sight.take(since + step, source, each, PROBE) for step, each in enumerate(looks)]


def send(source: Source, now: float) -> Attempt:
    attempt = Attempt(Task(None, None, 5, None, None, 0), source, now)  # type: ignore[arg-type]
    source.sent(now, attempt)
    return attempt


def answer(source: Source, now: float, sent_at: float | None = None) -> None:
    source.answered(now, now if sent_at is None else sent_at, Answer(None))


# L1: returned


def test_a_source_that_was_not_ready_and_is_ready_is_tried_at_once_by_one_request() -> None:
    source, sight = fresh()
    source.health.eject(0.0, 5.0)
    assert look(sight, source, AWAY, READY, since=1.0) == [ProbeEffect.NONE, ProbeEffect.BETTER]
    assert source.ready_at(0.0) == 2.0
    send(source, 2.0)
    assert source.health.in_service
    assert source.ready_at(0.0) == inf, "the rest follows when that one is answered"


def test_a_source_that_says_ready_while_it_fails_waits_as_ever() -> None:
    source, sight = fresh()
    look(sight, source, READY)
    source.health.eject(0.5, 5.0)
    assert set(look(sight, source, *[READY] * 4, since=1.0)) == {ProbeEffect.NONE}
    assert source.ready_at(0.0) == 5.5


def test_a_source_that_was_silent_and_is_ready_has_returned_as_well() -> None:
    source, sight = fresh()
    source.health.stall(0.0)
    assert look(sight, source, SILENT, READY, since=0.5) == [ProbeEffect.NONE, ProbeEffect.BETTER]
    assert source.ready_at(0.0) == 1.5


def test_a_trial_sent_while_it_was_away_tells_nothing_of_its_return() -> None:
    source, sight = fresh()
    source.health.eject(0.0, 1.0)
    look(sight, source, AWAY)
    send(source, 1.0)
    assert look(sight, source, AWAY, READY, since=2.0) == [ProbeEffect.NONE, ProbeEffect.BETTER]
    assert source.health.failed(3.5, 1.0, 7, last=False) is False
    assert source.health.open_until == 3.0, "its failure comes late, and takes it out no more"


def test_a_trial_sent_after_it_was_last_seen_away_is_waited_for() -> None:
    source, sight = fresh()
    source.health.eject(0.0, 1.5)
    look(sight, source, AWAY, AWAY)
    send(source, 1.6)
    assert look(sight, source, READY, since=2.0) == [ProbeEffect.NONE]
    answer(source, 2.5, sent_at=1.6)
    assert source.health.half_open_limit > 1


def test_a_source_in_full_service_or_well_on_its_way_is_left_alone_by_looks_that_fail_now_and_then() -> None:
    source, sight = fresh()
    assert set(look(sight, source, READY, SILENT, READY, SILENT, READY)) == {ProbeEffect.NONE}
    assert source.health.clean
    source.health.eject(5.0, 1.0)
    send(source, 6.0)
    answer(source, 7.0, sent_at=6.0)
    allowed = source.health.half_open_limit
    assert set(look(sight, source, SILENT, READY, SILENT, READY, since=7.0)) == {ProbeEffect.NONE}
    assert source.health.half_open_limit == allowed > 1


def test_an_account_that_is_used_up_is_no_matter_of_readiness() -> None:
    source, sight = fresh()
    source.health.eject(0.0, 300.0)
    assert set(look(sight, source, AWAY, READY, since=1.0)) == {ProbeEffect.NONE}
    assert source.ready_at(0.0) == 300.0


def test_one_that_an_operator_took_out_stays_out() -> None:
    source, sight = fresh()
    source.health.mark_unhealthy()
    look(sight, source, AWAY, READY)
    assert source.ready_at(0.0) == inf


# L2: away


def test_a_source_that_says_it_is_not_ready_and_answers_nothing_is_not_asked_until_it_says_otherwise() -> None:
    source, sight = fresh()
    answer(source, 0.5)
    assert look(sight, source, READY, AWAY, AWAY, since=1.0) == [ProbeEffect.NONE, ProbeEffect.LOST, ProbeEffect.NONE]
    assert source.ready_at(0.0) == 3.0 + VALID * PROBE
    assert look(sight, source, READY, since=4.0) == [ProbeEffect.BETTER]
    assert source.ready_at(0.0) == 4.0


def test_looks_that_cease_leave_it_out_for_two_intervals_only() -> None:
    source, sight = fresh()
    look(sight, source, READY, AWAY)
    assert source.ready_at(0.0) == 1.0 + VALID * PROBE


def test_a_source_that_never_said_ready_is_asked_all_the_same() -> None:
    source, sight = fresh()
    assert set(look(sight, source, *[AWAY] * 5)) == {ProbeEffect.NONE}
    assert source.ready_at(0.0) < 0


def test_a_source_that_answers_all_the_time_is_asked_all_the_time_whatever_it_says() -> None:
    source, sight = fresh()
    look(sight, source, READY)
    for now in range(1, 10):
        answer(source, now - 0.5)
        assert look(sight, source, AWAY, since=now) == [ProbeEffect.NONE]
    assert source.ready_at(0.0) < 0


def test_who_finishes_what_it_has_and_takes_nothing_new_is_not_asked() -> None:
    source, sight = fresh()
    sent = [send(source, 0.5).sent_at for _ in range(3)]
    look(sight, source, READY, AWAY)
    for now in (1.5, 2.5, 3.5):
        source.inflight -= 1
        answer(source, now, sent.pop())
        assert look(sight, source, AWAY, since=now + 0.5) == [ProbeEffect.NONE], "what was sent before says nothing of it"
    look(sight, source, AWAY, since=5.0)
    assert source.ready_at(0.0) == 5.0 + VALID * PROBE


def asked_all_the_same(*, answers: bool) -> list[float]:
    """When a source that has work, and says for five minutes that it is not ready, is sent a request."""
    source, sight = fresh()
    look(sight, source, READY, AWAY)
    sent, now = [], 2.0
    while now < 300.0:
        if source.ready_at(now) <= now:
            sent.append(now)
            send(source, now)
            source.inflight -= 1
            if answers:
                answer(source, now + 0.5, now)
            else:
                source.health.failed(now + 0.5, now, len(sent), last=False)
        look(sight, source, AWAY, since=now)
        now += PROBE
    return sent


def test_now_and_then_a_request_shows_whether_it_is_true() -> None:
    sent = asked_all_the_same(answers=False)
    assert 300 / LONGEST_AWAY - 2 <= len(sent) <= 300 / LONGEST_AWAY
    assert min(after - before for before, after in pairwise(sent)) >= LONGEST_AWAY


def test_one_that_answers_it_is_in_service_again_and_not_believed() -> None:
    sent = asked_all_the_same(answers=True)
    assert sent[0] >= LONGEST_AWAY
    assert len(sent) > 200


def test_a_longer_time_out_of_service_is_not_cut_by_a_word_of_not_ready() -> None:
    source, sight = fresh()
    look(sight, source, READY)
    source.health.eject(0.5, 300.0)
    look(sight, source, AWAY, since=1.0)
    assert source.ready_at(0.0) == 300.5


def test_it_comes_back_with_the_window_that_it_had_before_it_went() -> None:
    source, sight = fresh()
    window: Any = source.window
    grown(window, 0.0)
    had = window.limit
    look(sight, source, READY, since=1.0)
    for others in (20, 10, 5, 2):  # it finishes what it has, and turns away what is new
        window.rejected(1.5, 1.4, None, others)
    assert window.limit < had / 2
    look(sight, source, AWAY, AWAY, READY, since=2.0)
    assert window.limit >= min(had / 2, 32)


# L3: room


def closed_gate(hint: float | None = None) -> tuple[Source, ProbeState]:
    source, sight = fresh()
    for _ in range(5):
        source.cooldown.rejected(0.0, 0.0, hint)
    return source, sight


def test_a_gate_opens_when_a_server_that_was_full_has_room() -> None:
    source, sight = closed_gate()
    assert source.cooldown.opens_at > 1.2
    assert look(sight, source, FULL, ROOM, since=0.2) == [ProbeEffect.NONE, ProbeEffect.BETTER]
    assert source.ready_at(0.0) == 1.2


def test_a_wait_that_the_server_asked_for_is_kept_to_the_letter() -> None:
    source, sight = closed_gate(hint=30.0)
    assert look(sight, source, FULL, ROOM, AWAY, READY, since=0.2)[-1] == ProbeEffect.NONE
    assert source.ready_at(0.0) == 30.0


def test_a_server_that_turns_away_although_it_has_room_is_not_asked_sooner() -> None:
    source, sight = closed_gate()
    at = source.cooldown.opens_at
    assert set(look(sight, source, ROOM, ROOM, since=0.1)) == {ProbeEffect.NONE}
    assert source.cooldown.opens_at == at


def test_an_outage_that_is_over_opens_the_gate_as_well() -> None:
    source, sight = closed_gate()
    assert look(sight, source, AWAY, READY, since=0.1) == [ProbeEffect.NONE, ProbeEffect.BETTER]
    assert source.ready_at(0.0) == 1.1


@pytest.mark.parametrize(("said", "full"), [(ProbeResult(running=9.0, most=8.0), True), (ProbeResult(running=7.0, most=8.0), False)])
def test_full_is_who_works_on_as_many_as_it_can(said: ProbeResult, *, full: bool) -> None:
    source, sight = closed_gate()
    changes = look(sight, source, said, ROOM, since=0.1)
    assert (changes[-1] is ProbeEffect.BETTER) == full


# L4: a queue at the server


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


def test_a_window_does_not_grow_while_its_server_lets_requests_wait() -> None:
    source, sight = fresh()
    window: Any = source.window
    start = window.limit
    look(sight, source, FULL, FULL)
    grown(window, 1.0)
    assert window.limit == start
    look(sight, source, ROOM, since=2.0)
    grown(window, 2.0)
    assert window.limit > start


@pytest.mark.parametrize("looks", [[FULL], [FULL, ROOM, FULL], [ProbeResult(running=100.0, waiting=9.0)] * 3, [SILENT] * 3])
def test_a_few_that_wait_or_a_moment_of_it_are_no_queue(looks: list[ProbeResult]) -> None:
    source, sight = fresh()
    window: Any = source.window
    start = window.limit
    look(sight, source, *looks)
    grown(window, 1.0)
    assert window.limit > start


def test_what_was_said_of_a_queue_is_forgotten_when_looks_cease() -> None:
    source, sight = fresh()
    window: Any = source.window
    start = window.limit
    look(sight, source, FULL, FULL)
    grown(window, 1.0 + VALID * PROBE)
    assert window.limit > start


# what holds whatever is seen

LOOKS = st.builds(
    ProbeResult,
    ready=st.sampled_from([True, False, None]),
    running=st.none() | st.floats(0, 1000),
    waiting=st.none() | st.floats(0, 1000),
    most=st.none() | st.floats(1, 1000),
)


@given(st.lists(LOOKS, max_size=40), st.booleans())
def test_no_looks_take_a_source_that_answers_out_of_service(looks: list[ProbeResult], fixed: bool) -> None:
    source, sight = make_source("a", Random(0), Limits(adaptive=not fixed)), ProbeState()
    for now, each in enumerate(looks):
        answer(source, now + 0.5)
        assert sight.take(now + 1.0, source, each, PROBE) is ProbeEffect.NONE
    assert source.health.in_service
    assert source.ready_at(0.0) <= len(looks)


@given(st.lists(LOOKS, min_size=1, max_size=40))
def test_when_looks_cease_a_source_is_asked_again_soon(looks: list[ProbeResult]) -> None:
    source, sight = fresh()
    for now, each in enumerate(looks):
        sight.take(float(now), source, each, PROBE)
    assert source.ready_at(0.0) <= len(looks) - 1 + VALID * PROBE
