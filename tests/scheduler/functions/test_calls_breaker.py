"""The breaker of one key, by itself."""

from __future__ import annotations

from qreward.scheduler.functions.limits import Breaker, Breaking

A, B, C = "a", "b", "c"


def opened(threshold: int = 1, recovery: float = 10.0) -> Breaker:
    breaker = Breaker(Breaking(threshold, recovery))
    for _ in range(threshold):
        breaker.failed(0.0, A)
    return breaker


def test_it_opens_at_the_threshold_of_failures_in_a_row() -> None:
    breaker = Breaker(Breaking(3, 10.0))
    assert [breaker.failed(0.0, A), breaker.failed(0.0, B)] == [False, False]
    breaker.ok(A)
    assert [breaker.failed(0.0, A), breaker.failed(0.0, B), breaker.state] == [False, False, "closed"]
    assert breaker.failed(0.0, C)
    assert breaker.state == "open"
    assert not breaker.admits(9.9, B)


def test_after_recovery_exactly_one_call_is_let_through() -> None:
    breaker = opened()
    assert breaker.admits(10.0, B)
    assert breaker.state == "half-open"
    assert breaker.admits(11.0, B), "with all its tries"
    assert not breaker.admits(11.0, C)


def test_its_success_closes_it_and_begins_to_count_anew() -> None:
    breaker = opened(threshold=2)
    breaker.admits(10.0, B)
    breaker.ok(B)
    assert breaker.state == "closed"
    assert not breaker.failed(10.0, C)


def test_its_failure_opens_it_again() -> None:
    breaker = opened(threshold=5)
    breaker.admits(10.0, B)
    assert breaker.failed(12.0, B)
    assert not breaker.admits(21.9, C)
    assert breaker.admits(22.0, C)


def test_what_began_before_it_opened_decides_nothing() -> None:
    breaker = opened()
    breaker.ok(C)
    assert breaker.state == "open"
    assert not breaker.failed(9.0, C)
    assert breaker.admits(10.0, B), "the failure at 9 s has not put that off"
    breaker.ok(C)
    assert not breaker.failed(11.0, C)
    assert breaker.state == "half-open"


def test_a_call_that_ends_without_finding_out_leaves_it_to_the_next() -> None:
    breaker = opened()
    breaker.admits(10.0, B)
    breaker.over(C)
    assert breaker.probe == B
    breaker.over(B)
    assert breaker.admits(10.0, C)


def test_who_only_asks_is_not_taken_for_the_one_that_finds_out() -> None:
    breaker = opened()
    assert not breaker.trusts(B)
    assert breaker.probe is None


def test_another_recovery_holds_for_a_breaker_that_is_open() -> None:
    breaker = opened(recovery=100.0)
    breaker.terms = Breaking(1, 5.0)
    assert breaker.open_until == 5.0
    assert breaker.admits(5.0, B)
