"""A source that said "too much" is left alone as long as it asked, then asked once, then used again."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qreward.scheduler.health import FIRST, LONGEST, Cooldown


class Middle(Random):
    """Jitter of exactly one."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def gate() -> Cooldown:
    return Cooldown(Middle())


def send(gate: Cooldown, now: float) -> None:
    """As a source does: an open gate need not be told."""
    assert gate.opens_at <= now
    if gate.closed:
        gate.sent(now)


def reject(gate: Cooldown, now: float, sent_at: float, hint: float | None = None) -> None:
    gate.rejected(now, sent_at, hint)


def test_without_a_hint_it_closes_for_a_quarter_second_doubling_up_to_the_longest_until_there_is_an_answer() -> None:
    closed, now, pauses = gate(), 0.0, []
    for number in range(9):
        send(closed, now)
        if number == 7:
            closed.ok(now)
            assert closed.opens_at <= now
        else:
            reject(closed, now + 0.01, now)
            pauses.append(closed.opens_at - now - 0.01)
        now = max(now, closed.opens_at) + 1.0
    assert pauses == pytest.approx([FIRST, 0.5, 1.0, 2.0, LONGEST, LONGEST, LONGEST, FIRST])
    assert (FIRST, LONGEST) == (0.25, 3.2)


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_jitter_is_at_most_half_of_the_pause(seed: int, rejects: int) -> None:
    closed, now = Cooldown(Random(seed)), 0.0
    for number in range(rejects):
        send(closed, now)
        reject(closed, now, now)
        pause = min(LONGEST, FIRST * 2.0**number)
        assert 0.5 * pause <= closed.opens_at - now <= 1.5 * pause
        now = closed.opens_at + 0.001


def test_a_burst_of_rejects_closes_once() -> None:
    closed = gate()
    for _ in range(5):
        send(closed, 0.0)
    reject(closed, 0.03, 0.0)
    until = closed.opens_at
    for late in (0.04, 0.05, 0.2):
        reject(closed, late, 0.0)
    assert closed.opens_at == until
    send(closed, until)
    reject(closed, until + 0.01, until)
    assert closed.opens_at == pytest.approx(until + 0.01 + 0.5), "the burst counted as one closing"


def test_a_hint_is_obeyed_to_the_letter_and_the_longest_of_several_counts() -> None:
    closed = gate()
    reject(closed, 1.0, 0.0, hint=2.0)
    assert closed.opens_at == 3.0
    reject(closed, 1.1, 0.0, hint=5.0)
    reject(closed, 1.2, 0.0, hint=1.0)
    reject(closed, 1.3, 1.2)
    assert closed.opens_at == pytest.approx(6.1)


def test_after_the_pause_one_probe_goes_and_the_rest_waits_for_its_answer_but_not_for_long() -> None:
    """A long answer proves by its silence that there was room."""
    for answered in (True, False):
        closed = gate()
        reject(closed, 0.0, 0.0, hint=1.0)
        send(closed, 1.0)
        assert closed.opens_at == pytest.approx(1.0 + FIRST)
        if answered:
            closed.ok(1.0)
            assert closed.opens_at <= 1.0
        else:
            send(closed, 1.3)
            assert closed.opens_at <= 1.3


def test_the_rest_waits_three_times_as_long_as_a_reject_takes() -> None:
    slow = gate()
    for now in range(0, 300, 10):
        send(slow, now)
        reject(slow, now + 2.0, now, hint=1.0)
    send(slow, 400.0)
    assert slow.opens_at == pytest.approx(400.0 + 3 * 2.0, rel=0.01)


def test_an_answer_to_what_was_sent_before_the_closing_does_not_open_it() -> None:
    closed = gate()
    send(closed, 0.0)
    send(closed, 0.0)
    reject(closed, 0.5, 0.0, hint=10.0)
    closed.ok(0.0)
    assert closed.opens_at == 10.5
    send(closed, 10.5)
    closed.ok(0.0)
    assert closed.opens_at > 10.5, "only the probe's own answer opens"


def test_a_hint_that_comes_while_the_probe_is_under_way_outlasts_the_probes_answer() -> None:
    """Two were sent; the first is turned away at once, the second only later, and with a hint."""
    closed = gate()
    send(closed, 0.0)
    send(closed, 0.0)
    reject(closed, 0.1, 0.0)
    probe = closed.opens_at
    send(closed, probe)
    reject(closed, probe + 0.1, 0.0, hint=10.0)
    closed.ok(probe)
    assert closed.opens_at == probe + 0.1 + 10.0
    send(closed, closed.opens_at)
    assert closed.opens_at >= probe + 10.1 + FIRST, "one probe goes first after a hint, too"


moves = st.lists(
    st.tuples(st.sampled_from(["send", "ok", "reject"]), st.integers(0, 9), st.floats(0, 2), st.sampled_from([None, 0.5, 5.0])), max_size=40
)


@given(moves)
def test_whatever_happens_nothing_is_allowed_before_a_hint_has_passed(moves: list[tuple[str, int, float, float | None]]) -> None:
    closed, now, under_way, stay_away = gate(), 0.0, [], 0.0
    for what, pick, passed, hint in moves:
        now += passed
        if what == "send":
            if closed.opens_at <= now:
                assert now >= stay_away
                send(closed, now)
                under_way.append(now)
        elif under_way:
            sent_at = under_way.pop(pick % len(under_way))
            if what == "ok":
                closed.ok(sent_at)
            else:
                stay_away = max(stay_away, now + (hint or 0.0))
                reject(closed, now, sent_at, hint)
