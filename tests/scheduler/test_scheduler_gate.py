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


def test_a_new_gate_is_open_and_stays_open_while_answers_come() -> None:
    new = gate()
    for now in range(5):
        send(new, now)
        new.ok(now)
        assert new.opens_at <= now


def test_a_hint_is_obeyed_to_the_letter() -> None:
    closed = gate()
    send(closed, 0.0)
    reject(closed, 0.1, 0.0, hint=7.5)
    assert closed.opens_at == 0.1 + 7.5


def test_without_a_hint_the_gate_closes_for_a_quarter_second_doubling_up_to_the_longest() -> None:
    closed, now, pauses = gate(), 0.0, []
    for _ in range(7):
        send(closed, now)
        reject(closed, now + 0.01, now)
        pauses.append(closed.opens_at - now - 0.01)
        now = closed.opens_at
    assert pauses == pytest.approx([0.25, 0.5, 1.0, 2.0, 3.2, 3.2, 3.2])
    assert FIRST == 0.25
    assert LONGEST == 3.2


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


def test_the_longest_hint_of_a_burst_counts() -> None:
    closed = gate()
    reject(closed, 1.0, 0.0, hint=2.0)
    reject(closed, 1.1, 0.0, hint=5.0)
    reject(closed, 1.2, 0.0, hint=1.0)
    reject(closed, 1.3, 0.0)
    assert closed.opens_at == pytest.approx(6.1)


def test_after_the_pause_one_probe_goes_and_the_rest_waits_for_its_answer() -> None:
    closed = gate()
    reject(closed, 0.0, 0.0, hint=1.0)
    send(closed, 1.0)
    assert closed.opens_at == pytest.approx(1.0 + FIRST)
    closed.ok(1.0)
    assert closed.opens_at <= 1.0


def test_a_probe_that_is_not_turned_away_soon_lets_the_rest_follow() -> None:
    """A long answer proves by its silence that there was room."""
    closed = gate()
    reject(closed, 0.0, 0.0, hint=1.0)
    send(closed, 1.0)
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


def test_an_answer_starts_the_pauses_anew() -> None:
    closed = gate()
    for now in (0.0, 10.0, 20.0):
        send(closed, now)
        reject(closed, now, now)
    assert closed.opens_at == pytest.approx(21.0)
    send(closed, 30.0)
    closed.ok(30.0)
    reject(closed, 40.0, 31.0)
    assert closed.opens_at == pytest.approx(40.25)


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


def test_a_reject_of_the_same_instant_does_not_shorten_a_hint() -> None:
    closed = gate()
    send(closed, 3.0)
    reject(closed, 3.0, 0.0, hint=10.0)
    reject(closed, 3.03, 3.0)
    assert closed.opens_at == 13.0


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
