"""Probes on the fleets of the simulation: a return is noticed within one, and nothing gets worse, nor by a server that lies."""

from __future__ import annotations

from statistics import mean
from typing import Any

from probing_fleets import play

PROBE = 1.0
SEEDS = (1, 2, 3)


def first_after(run: Any, end: float) -> float:
    """Seconds from the return of the largest server until it was sent something; counted by whole seconds."""
    sent = [each[0] for each in run.sent]
    before = sent[int(end)]
    return next(second for second in range(int(end), len(sent)) if sent[second] > before) - end


def test_a_server_that_died_is_used_again_within_one_probe_of_its_return_and_hardly_asked_meanwhile() -> None:
    blind = [play("S8", seed, None, items=6000) for seed in SEEDS[:2]]
    looking = [play("S8", seed, PROBE, items=6000) for seed in SEEDS[:2]]
    for runs, asked in ((blind, 20), (looking, 4)):
        for run in runs:
            begin, end = run.specs[0].dead
            # what is sent before its death is noticed does not count
            assert run.sent[int(end)][0] - run.sent[int(begin) + 8][0] <= asked
            assert run.record()["lost"] == 0
    noticed = [first_after(run, run.specs[0].dead[1]) for run in looking]
    assert max(noticed) <= PROBE + 1.1, "one probe, and the second that is counted in"
    assert mean(noticed) < mean(first_after(run, run.specs[0].dead[1]) for run in blind)


def test_probes_cost_no_bulk_anything_nor_do_those_of_a_server_that_always_says_ready() -> None:
    wrong = []
    for name, items in (("S2-500", 500), ("S9", 1500), ("S10", 1500), ("S11", 1500)):
        without = [play(name, seed, None, items=items).record() for seed in SEEDS]
        for honest in (True, False):
            probed = [play(name, seed, PROBE, items=items, honest=honest).record() for seed in SEEDS]
            assert all(each["lost"] == each["over_limit"] == 0 and each["ended"] == items for each in probed), name
            for what, more in (("ratio", 0.05), ("extra", 0.02), ("rejects", 0.05)):
                before, after = (mean(each[what] for each in runs) for runs in (without, probed))
                if after > before * (1 + more) + 0.01:
                    wrong.append((name, honest, what, before, after))
    assert wrong == []


def test_servers_that_queue_without_a_word_are_not_overfilled() -> None:
    def fleet(_: float) -> Any:
        from simulation.laws import Shared
        from simulation.specs import Spec

        return (Spec(law=Shared(seqs=64)),) * 4

    blind, looking = ([play("S6", seed, probe, items=1200, fleet=fleet).record() for seed in SEEDS] for probe in (None, PROBE))
    for what in ("ratio", "p99", "extra"):
        assert mean(each[what] for each in looking) <= mean(each[what] for each in blind) * 1.02, what
