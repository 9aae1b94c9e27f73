"""Functions, callers and users in virtual time: whatever they do, the rules hold. A failing seed is in the test's name."""

from __future__ import annotations

import pytest
from calls_scenes import Scene
from scheduler_seeds import seeds

from qreward.errors import CircuitOpen, RequestTimeout
from qreward.scheduler.outcome import Answer
from qreward.scheduler.state import CancelReason


@pytest.mark.parametrize("seed", seeds(30, 40))
def test_every_rule_holds_after_every_input(seed: int) -> None:
    Scene(seed).run()


def test_the_same_seed_gives_the_same_commands_and_another_seed_others() -> None:
    traces = []
    for seed in (0, 0, 1):
        scene = Scene(seed)
        scene.run()
        traces.append(scene.driver.watch.trace)
    assert traces[0]
    assert traces[0] == traces[1]
    assert traces[0] != traces[2]


def test_the_scenes_contain_everything_that_can_happen() -> None:
    """So that the rules are not held in vain."""
    seen: set[object] = set()
    for seed in range(40):
        scene = Scene(seed)
        scene.run()
        watch = scene.driver.watch
        for call, outcome in watch.finished.items():
            seen |= {type(outcome), *(["retry"] if call.retries else []), *(["hedge"] if call.hedges else [])}
        seen |= {command[3] for command in watch.trace if command[1] == "cancel"}
        seen |= {"hedge won" for attempt in (attempt for _, attempt in watch.sends) if attempt.hedge and attempt.won}
        seen |= {"withdrawn" for _ in watch.withdrawn} | {"overload" for function in watch.functions if function.counters.overloaded}
    kinds = {Answer, RequestTimeout, CircuitOpen, "retry", "hedge", "hedge won", "withdrawn", "overload", *CancelReason}
    assert kinds <= seen, kinds - seen
