"""Concurrency limits: the adaptive one finds what a server takes, the fixed one follows a server that takes less than is configured."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import ModuleType
from typing import Any

from scale import seeds

from qreward.scheduler.limits.concurrency import PATIENCE, TUNING, AdaptiveLimit, FixedLimit


def test_it_finds_the_capacity_of_servers_of_any_kind(module: Callable[[str], ModuleType]) -> None:
    """Server -> least share of its capacity that is used in 300 s, most rejects, longest recovery in seconds, highest limit in the end."""
    specs, laws, steps, doors = (module(f"simulation.{name}") for name in ("specs", "laws", "steps", "doors"))
    spec, hold = specs.Spec, steps.hold
    servers: dict[str, tuple[Any, float, float, float, float]] = {
        "a cap of 2": (spec(cap=hold(2)), 0.85, 50, 0, 2),
        "a cap of 6": (spec(cap=hold(6)), 0.85, 75, 0, 7),
        "a cap of 64": (spec(cap=hold(64)), 0.85, 250, 0, 70),
        "a cap that falls and rises": (spec(cap=steps.steps(64, (100.0, 16), (200.0, 64))), 0.85, 250, 15, 70),
        "an outage is no small cap": (spec(cap=hold(64), away=(60.0, 120.0)), 0.9, 300, 10, 70),
        "one that never rejects is not flooded": (spec(law=laws.Scoring(0.01, 40)), 0.9, 0, 0, 80),
        "stray rejects": (spec(law=laws.Scoring(0.01, 64), stray=0.001), 0.9, 30, 0, 128),
        "a rate learned from its hints": (spec(rates=(doors.Rate(600, burst=60, hint="exact"),)), 0.9, 60, 0, 2048),
    }
    missed = {}
    for name, (server, least, rejects, recovery, limit) in servers.items():
        for seed in seeds(1, 1):
            model = module("simulation.models").Model(name, name, server)
            found = module("simulation.closed_loop").run_model(model, "ours", seed, seconds=300.0)
            seen = found["fraction"], found["rejects"] * found["sent"], found["recovery"] or 0.0, found["limits"][-1]
            if seen[0] < least or seen[1] > rejects or seen[2] > recovery or seen[3] > limit or max(found["limits"]) > 128:
                missed[name, seed] = seen
    assert not missed


def test_a_small_configured_limit_is_used_at_once_and_kept_where_it_pays_and_a_large_one_is_no_target() -> None:
    assert AdaptiveLimit(Random(0), 1000).limit == TUNING.start
    window, seen, now = AdaptiveLimit(Random(0), 40), [], 0.0
    assert window.limit == 40
    for _ in range(40):  # rounds in which throughput is in proportion to the limit
        limit = window.limit
        for _ in range(limit):
            window.sent(now, limit)
        now += 1.0
        for _ in range(limit):
            window.ok(now, now - 1.0, 10, limit)
        seen.append(window.limit)
    assert max(seen) == 40
    assert sum(seen) >= 0.95 * 40 * len(seen)


def test_without_enough_work_it_learns_nothing() -> None:
    """A window that is not filled says nothing of what more would bring."""
    window = AdaptiveLimit(Random(0))
    for number in range(500):
        window.sent(float(number), 1)
        window.ok(number + 1.0, float(number), 100, 0)
    assert window.limit == TUNING.start


def answers(window: FixedLimit, count: int) -> None:
    for _ in range(count):
        window.ok(1.0, 0.0, None, 1)


def test_a_source_that_turns_away_what_is_too_much_is_full_not_gone() -> None:
    window = FixedLimit(64)
    assert [window.rejected(0.1, 0.0, None, others) for others in (63, 50, 40)] == [False, False, False]
    assert window.limit == 40, "what it still holds"


def test_the_limit_comes_back_by_doubling_and_never_beyond_what_was_set() -> None:
    window = FixedLimit(100)
    window.rejected(0.1, 0.0, None, 30)
    seen = []
    for _ in range(3):
        answers(window, PATIENCE)
        seen.append(window.limit)
    assert seen == [60, 100, 100]


def test_where_little_was_held_more_is_offered_sooner() -> None:
    window = FixedLimit(64)
    window.rejected(0.1, 0.0, None, 2)
    answers(window, 7)
    assert window.limit == 2
    answers(window, 1)
    assert window.limit == 4


def test_a_source_that_turns_everything_away_is_gone_not_full() -> None:
    window = FixedLimit(8)
    assert [window.rejected(0.1, 0.0, None, others) for others in (2, 1, 0)] == [False, False, True]
    assert window.limit == 8, "what it holds is not known"
    assert not window.rejected(0.2, 0.05, None, 3)
    assert window.limit == 8, "sent before it was left alone"


def test_a_lone_reject_amid_good_answers_is_noise() -> None:
    window = FixedLimit(8)
    answers(window, 4)
    assert not window.rejected(1.0, 0.5, None, 3)
    assert window.limit == 8
    assert not window.rejected(1.1, 0.6, None, 3)
    assert window.limit == 3, "a second one is not alone"


def test_a_hint_or_nothing_left_in_flight_means_that_the_source_wants_to_be_left_alone() -> None:
    for hint, others in ((None, 0), (2.0, 5), (2.0, 0)):
        window = FixedLimit(8)
        answers(window, 8)
        assert window.rejected(1.0, 0.5, hint, others), (hint, others)
        assert window.limit == 8
