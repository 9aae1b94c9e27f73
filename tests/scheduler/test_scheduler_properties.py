"""What the scheduler promises, property by property (the table is in ``docs/design/scheduling.md``), where no other file holds it.

All is played in virtual time from fixed seeds; a failing seed is in the test's name or in the message.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
import scheduler_watch
from hypothesis import given
from hypothesis import strategies as st
from scale import seeds
from scheduler_driver import Driver, failure
from simulator import Server, Simulation

from qreward.scheduler.limits.concurrency import AdaptiveLimit
from qreward.scheduler.outcome import CANCELLED, Answer, FailureKind, Outcome
from qreward.settings.policies import Hedge, Limits, LoadBalanceStrategy

K = FailureKind


@pytest.mark.parametrize("seed", seeds(10))
def test_without_a_reason_to_hold_back_no_source_idles_while_a_task_waits(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bulks alone leave nothing to single calls; a balancer that is not by speed leaves no item to quicker sources."""
    monkeypatch.setattr(scheduler_watch, "_may_hold_back", lambda *_: False)
    rng = Random(seed)
    unhurried = [strategy for strategy in LoadBalanceStrategy if strategy is not LoadBalanceStrategy.EXPECTED_FINISH]
    driver = Driver(seed=seed, strategy=rng.choice(unhurried), hedge=rng.choice([None, Hedge()]))
    servers: dict[str, Server] = {}
    for name in ("a", "b", "c"):
        cap, rate = rng.choice([None, 2, 6]), rng.choice([None, None, 10.0])
        servers[name] = Server(mean=rng.choice([0.1, 0.5, 2.0]), cap=cap, rate=rate, faults=rng.choice([0.0, 0.1]))
        driver.add(name, Limits(max_concurrency=rng.choice([2, 12]), rpm=rng.choice([None, 300.0])))
    for _ in range(3):
        driver.feed(rng.randint(1, 150), rng.randrange(10), told=rng.random() < 0.5)
    Simulation(driver, servers, rng).run()


# P8: the same again

TRACE = """
import hashlib
from scheduler_scenarios import random_simulation
for seed in range(3000, 3004):
    simulation = random_simulation(seed)
    simulation.run()
    print(seed, hashlib.sha256(repr(simulation.driver.watch.trace).encode()).hexdigest())
"""


def test_commands_do_not_depend_on_how_a_process_hashes() -> None:
    """No set is gone through, no address decides: the trace is the same in another process with other hashes."""
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), *sys.path])
    said = [
        subprocess.run(
            [sys.executable, "-c", TRACE],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for hashes in ("1", "2")
    ]
    assert len(said[0].splitlines()) == 4
    assert said[0] == said[1]


@given(st.lists(st.sampled_from([0.0, 0.001, 0.02, 0.3, 5.0, 3600.0, 1e6]), min_size=1, max_size=30), st.sampled_from([60.0, 600.0, 6e4]))
def test_after_a_jump_of_the_clock_no_more_is_sent_in_a_minute_than_the_limit(jumps: list[float], rpm: float) -> None:
    driver = Driver(thorough=False)
    driver.add("a", Limits(max_concurrency=500, rpm=rpm))
    driver.feed(1500)
    for jump in jumps:
        for attempt in list(driver.watch.live):
            driver.report(attempt, Answer("yes", 1, 1))
        driver.now += jump
        driver.tick()
    sends = [now for now, _ in driver.watch.sends]
    assert sends
    assert all(later - now >= 60 for now, later in zip(sends, sends[int(rpm) :], strict=False))


def test_objects_that_are_kept_do_not_grow_with_what_was_done() -> None:
    """Bulk items, single calls of ever other tenants, those that went away, failed, were turned away, timed out."""
    rng, driver = Random(0), Driver(thorough=False, hedge=Hedge())
    watch = driver.watch
    for name in "abc":
        driver.add(name, Limits(max_concurrency=8, rpm=30_000), window=AdaptiveLimit(driver.rng, 8))

    def step() -> None:
        if len(driver.pool.queue) < 24:
            driver.feed(rng.randrange(60))
        if rng.random() < 0.3:
            single = driver.submit(rng.randrange(10), 3.0, tenant=f"tenant {rng.randrange(10**9)}")
            if rng.random() < 0.3:
                driver.withdraw(single)
        outcomes: list[Outcome] = [failure(K.TRANSIENT), failure(K.OVERLOADED), failure(K.UNSUITABLE)]
        attempt = next(iter(watch.live))
        outcome = CANCELLED if attempt.cancel_reason is not None else rng.choice(outcomes) if rng.random() < 0.05 else Answer("yes", 5, 9)
        driver.end(attempt, outcome, 0.005)
        for feed in [feed for feed in watch.feeds if feed.ended and not feed.buffer]:
            driver.close_feed(feed)
            del watch.feeds[feed], driver._input[feed]

    def kept(steps: int) -> int:
        for _ in range(steps):
            step()
        for notes in (watch.sends, watch.trace, watch.finished, watch.withdrawn):
            notes.clear()
        gc.collect()
        return len(gc.get_objects())

    before, tasks = kept(1000), driver.made
    assert kept(4000) - before < 200, "objects were left behind"
    assert driver.made - tasks > 2600


@pytest.mark.parametrize("seed", seeds(5))
def test_when_a_bulk_is_given_up_all_its_attempts_are_stopped_and_the_slots_come_back(seed: int) -> None:
    """Whatever its items are doing: under way, copied, waiting to be tried again, turned away, never sent."""
    rng = Random(seed)
    driver = Driver({"a": 4, "b": 7}, seed=seed, hedge=Hedge(quantile=0.5, budget=0.5))
    servers = {"a": Server(mean=0.3, faults=0.2, hangs=0.02), "b": Server(mean=0.6, cap=5, hangs=0.02)}
    simulation = Simulation(driver, servers, rng, cancel_takes=0.5)
    feed, other = driver.feed(2000), driver.feed(150)
    end = rng.uniform(1.0, 10.0)

    def give_up() -> None:
        nonlocal end
        mine = [task for task in driver.watch.open if task.feed is feed]
        attempts = [attempt for attempt in driver.watch.live if attempt.task in mine]
        if not attempts:  # all slots belong to the other bulk by chance
            end += 0.1
            simulation.plan(end, give_up)
            return
        driver.withdraw(*driver.close_feed(feed), *mine)
        assert all(driver.is_cancelled(attempt) for attempt in attempts)

    simulation.plan(end, give_up)
    simulation.run()
    assert feed.ended
    assert all(now <= end for now, attempt in driver.watch.sends if attempt.task.feed is feed)
    assert sum(task.feed is other for task in driver.watch.finished) == 150
    assert all(source.inflight == 0 and not source.attempts for source in driver.sources.values())
    assert driver.pool.batch_inflight == 0
