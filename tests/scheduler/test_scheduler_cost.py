"""What a failure costs the scheduler does not grow with the fleet. Counted in bytecodes of Python, which no clock or machine changes."""

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
    """Bytecodes that are carried out, in all functions that are called."""
    return monitored(work) if sys.version_info >= (3, 12) else traced(work)


def monitored(work: Callable[..., object]) -> int:
    """By ``sys.monitoring``: since Python 3.12, tracing misses instructions of functions that it has not met before."""
    monitoring: Any = vars(sys)["monitoring"]  # which Python 3.11 does not have
    count, tool, every = 0, monitoring.PROFILER_ID, monitoring.events.INSTRUCTION

    def add(_code: object, _offset: int) -> None:
        nonlocal count
        count += 1

    monitoring.use_tool_id(tool, "operations")
    monitoring.register_callback(tool, every, add)
    monitoring.set_events(tool, every)
    try:
        work()
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)
    return count


def traced(work: Callable[..., object]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def cost(failures: ModuleType, name: str, endpoints: int, strategy: LoadBalanceStrategy, *, half_away: bool) -> float:
    """Median operations of an outcome, at endpoints that are well."""
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
    ("strategy", "half_away"), [(LoadBalanceStrategy.EXPECTED_FINISH, True), (LoadBalanceStrategy.POWER_OF_TWO, False)]
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
            found.append(f"{name}: {few:.0f} operations among {FEW} endpoints, {many:.0f} among {MANY}; an answer {answer:.0f}")
    assert not found, "\n".join(found)
