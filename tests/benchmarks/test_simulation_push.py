"""The baseline that pushes: it plays by its own rules, so that what the library is compared with is what it is said to be."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def sim(module: Any) -> Any:
    """The simulation's rooms."""
    return SimpleNamespace(**{room: module(f"simulation.{room}") for room in ("fleets", "push", "scenarios", "specs", "steps")})


def fleet(sim: Any, items: int, *caps: int | None, **each: Any) -> Any:
    """A scenario on servers with these caps; None takes everything."""
    specs = [sim.specs.Spec(cap=None if cap is None else sim.steps.hold(cap), **each) for cap in caps]
    return replace(sim.scenarios.SCENARIOS["S2-500"], items=items, fleet=lambda _bound: tuple(specs))


def play(sim: Any, scenario: Any, seed: int = 1) -> Any:
    return sim.fleets.Run.prepare(scenario, "push64", seed).play()


def test_where_everything_is_taken_it_loses_nothing_and_keeps_to_its_semaphores(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    most: list[int] = []
    receive = sim.push.Server.receive

    def counted(server: Any, attempt: Any) -> None:
        receive(server, attempt)
        most.append(len(server.held))

    monkeypatch.setattr(sim.push.Server, "receive", counted)
    record = play(sim, fleet(sim, 1000, None, None)).record()
    assert (record["lost"], record["ended"], record["rejects"], record["extra"]) == (0, 1000, 0, 0)
    assert max(most) == 64


def test_what_is_turned_away_keeps_its_place_and_is_lost_after_ten_retries(sim: Any) -> None:
    run = play(sim, fleet(sim, 400, 1))
    record = run.record()
    assert record["lost"] > 0
    assert record["ended"] == 400
    assert {task.tries for task in run.bulk.failed} == {sim.push.RETRIES + 1}
    assert all(source.inflight == 0 for source in run.world.sources)


def test_a_hang_costs_the_whole_time_limit(sim: Any) -> None:
    record = play(sim, fleet(sim, 200, None, hangs=0.02)).record()
    assert record["lost"] == 0
    assert record["makespan"] > sim.push.TIMEOUT


def test_each_request_goes_to_the_endpoint_that_was_given_the_fewest(sim: Any) -> None:
    run = play(sim, fleet(sim, 999, None, None, None))
    assert [source.tally.sent for source in run.world.sources] == [333, 333, 333]
