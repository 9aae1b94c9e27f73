"""The scheduler reports once that a source went out of service, and once that it is back, with the reason."""

from __future__ import annotations

from scheduler_desk import Desk

from qreward.scheduler.outcome import FailureKind
from qreward.settings.policies import Retry

PATIENT = Retry(attempts=1000)


def serve(desk: Desk, dead: set[str], seconds: float) -> None:
    """Keep a bulk under way: requests at a dead source fail at once, all others are answered after a tenth of a second."""
    end = desk.now + seconds
    while desk.now < end:
        for attempt in desk.at("a") + desk.at("b"):
            if attempt.source.name in dead:
                desk.fail(attempt, FailureKind.UNREACHABLE, after=0.0)
            else:
                desk.ok(attempt, after=0.0)
        desk.wait(0.1)


def test_a_source_that_dies_and_returns_is_reported_once_each_with_the_reason_and_the_seconds() -> None:
    desk = Desk({"a": 4, "b": 4}, retry=PATIENT)
    desk.feed(5000)
    serve(desk, dead=set(), seconds=2.0)
    assert desk.scheduler.health_changes == []
    serve(desk, dead={"a"}, seconds=30.0)
    (gone,) = desk.scheduler.health_changes
    assert (gone.source, gone.seconds) == ("a", 0.0)
    assert "ConnectionFailed" in gone.reason
    assert desk["a"].down_since is not None
    serve(desk, dead=set(), seconds=30.0)
    _, back = desk.scheduler.health_changes
    assert (back.source, back.reason) == ("a", "")
    assert 25.0 < back.seconds < 40.0
    assert desk["a"].down_since is None


def test_what_an_operator_brings_back_is_reported_when_it_fails_again() -> None:
    desk = Desk({"a": 4, "b": 4}, retry=PATIENT)
    desk.feed(5000)
    serve(desk, dead={"a"}, seconds=5.0)
    assert [change.source for change in desk.scheduler.health_changes] == ["a"]
    desk.mark("a", down=False)
    desk["a"].down_since = None
    serve(desk, dead={"a"}, seconds=5.0)
    assert [change.source for change in desk.scheduler.health_changes] == ["a", "a"]
