"""What a failure costs the scheduler does not grow with the fleet. Counted in lines of Python, which no clock or machine changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median
from types import FrameType, ModuleType
from typing import Any

import pytest

from qreward.settings.policies import LoadBalanceStrategy

FEW, MANY = 20, 200
Module = Callable[[str], ModuleType]


def operations(work: Callable[..., object]) -> int:
    """Lines of Python that are carried out, in all functions that are called: each step of a loop counts."""
    count = 0

    def trace(_frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal count
        count += event in {"call", "line"}
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def cost(failures: ModuleType, name: str, endpoints: int, strategy: LoadBalanceStrategy, *, half_away: bool) -> float:
    """Median lines of an outcome, at endpoints that are well."""
    scene = failures.Scene(endpoints, strategy=strategy)
    scene.answer_all(4)
    if half_away:
        for source in scene.sources[: endpoints // 2]:
            source.health.eject(scene.now, 1e6)
            scene.scheduler.on_source_lost(scene.now, source)
            scene.carry_out()
    found = []
    for attempt in failures.chosen(scene):
        scene.now += 0.01
        outcome = failures.OUTCOMES[name]()
        found.append(operations(lambda attempt=attempt, outcome=outcome: scene.scheduler.event(scene.now, attempt, outcome)))
        scene.carry_out()
    return median(found)


@pytest.mark.parametrize(
    ("strategy", "half_away"), [(LoadBalanceStrategy.EXPECTED_FINISH, True), (LoadBalanceStrategy.LEAST_CONNECTIONS, False)]
)
def test_a_failure_costs_as_much_among_many_endpoints_as_among_few_and_at_most_three_times_an_answer(
    module: Module, strategy: LoadBalanceStrategy, half_away: bool
) -> None:
    failures = module("failures")
    found = []
    answer = cost(failures, "answer", MANY, strategy, half_away=half_away)
    for name in failures.OUTCOMES:
        few, many = (cost(failures, name, endpoints, strategy, half_away=half_away) for endpoints in (FEW, MANY))
        if many > 1.5 * few or many > 3 * answer:
            found.append(f"{name}: {few:.0f} lines among {FEW} endpoints, {many:.0f} among {MANY}; an answer {answer:.0f}")
    assert not found, "\n".join(found)
