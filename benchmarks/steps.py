"""Batches one after another, as the steps of a trainer: which strategy shares them best over servers whose limits nobody has set?

The real scheduler runs against ``fakes.model_server`` in virtual time, with adaptive limits. The limits grow in the first steps
and may then exceed the batch. So all requests are sent at once, and the load balancing strategy alone decides how long a step takes. A
figure is the mean of the seconds of a step, from the third step on, over all seeds.

    python benchmarks/steps.py --json steps.json                # some minutes
    python benchmarks/steps.py --json steps.json --markdown     # simulates nothing; writes docs/benchmarks.md from that file
    python benchmarks/steps.py --quick
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from random import Random
from statistics import mean
from typing import Any

from _command import command, load, parsed, save
from _pages import PAGE, describe, machine, rewrite_section, table
from fakes.model_server import MODELS
from prefix_workloads import PrefixJob
from prefix_world import AheadBulk, Pull, PulledWorld

from qreward.scheduler.pool import BALANCERS
from qreward.settings.policies import LoadBalanceStrategy

FLEETS: dict[str, Sequence[tuple[int, float]]] = {
    "2 equal, 64 sequences": [(64, 1)] * 2,
    "4 equal, 64 sequences": [(64, 1)] * 4,
    "4 equal, 256 sequences": [(256, 1)] * 4,
    "4, one takes twice as long": [(64, 1)] * 3 + [(64, 2)],
    "2, one takes three times as long": [(256, 1), (256, 3)],
    "8 of five kinds": [(64, 1), (64, 2), (32, 1), (256, 1), (256, 0.5), (16, 2), (128, 1), (64, 0.7)],
}
"""Name -> for each server, the number of sequences that it computes at once, and its time relative to the model "8B"."""
SIZES = (100, 300, 1000, 3000)
STEPS, FIRST = 10, 2
PAUSE = 5.0
"""Seconds between two steps."""
STRATEGIES = [
    LoadBalanceStrategy.EXPECTED_FINISH,
    LoadBalanceStrategy.LEAST_CONNECTIONS,
    LoadBalanceStrategy.ROUND_ROBIN,
]


def steps(fleet: str, size: int, strategy: LoadBalanceStrategy, seed: int) -> list[float]:
    """Run the batches; return the seconds of each."""
    model = MODELS["8B"].model_copy(update={"caching": False})
    models = [model.model_copy(update={"sequences": sequences, "time_scale": scale}) for sequences, scale in FLEETS[fleet]]
    world = PulledWorld(f"{seed}", models, Pull(window=None))
    world.pool.balancer = BALANCERS[strategy]()
    for source in world.sources:
        world.pool.balancer.offer(source)
    rng, found = Random(f"{fleet} {size} {seed}"), []
    for step in range(STEPS):
        jobs = [PrefixJob(((f"{seed} {step} {place}", 400),), max(1, round(rng.lognormvariate(0, 0.8) * 60)), 1) for place in range(size)]
        begun = world.agenda.now
        bulk = AheadBulk(jobs, world.pool, None)
        world._scheduler.open(begun, bulk.feed)
        world.run(bulk=bulk)
        found.append(bulk.last - begun)
        world.agenda.now = bulk.last + PAUSE
    return found


def records(args: argparse.Namespace) -> list[dict[str, Any]]:
    return [
        {"fleet": fleet, "size": size, "strategy": strategy.value, "seed": seed, "seconds": steps(fleet, size, strategy, seed)}
        for fleet in args.fleets
        for size in args.sizes
        for strategy in STRATEGIES
        for seed in range(1, args.seeds + 1)
    ]


def report(found: list[dict[str, Any]]) -> str:
    """The table: a row for each fleet and size."""
    cells: dict[tuple[str, int], dict[str, list[float]]] = {}
    for record in found:
        cell = cells.setdefault((record["fleet"], record["size"]), {})
        cell.setdefault(record["strategy"], []).append(mean(record["seconds"][FIRST:]))
    rows = [(fleet, str(size), *(f"{mean(cell[strategy.value]):.1f}" for strategy in STRATEGIES)) for (fleet, size), cell in cells.items()]
    return table(("servers", "requests of a step", *(f"`{strategy.value}`" for strategy in STRATEGIES)), rows)


def main() -> None:
    args = arguments()
    if args.markdown:
        run = load(args.json)
        text = f"{run['seeds']} seeds, virtual time, on {describe(run['machine'])}\n\n{report(run['records'])}"
        rewrite_section(PAGE, "steps", text)
        return
    run = {"machine": machine(), "seeds": args.seeds, "records": records(args)}
    save(args.json, run)
    print(report(run["records"]))


def arguments() -> argparse.Namespace:
    parser = command(__doc__, "one fleet, one size, one seed")
    parser.add_argument("--fleets", nargs="+", choices=list(FLEETS), default=list(FLEETS), metavar="NAME", help=f"of {', '.join(FLEETS)}")
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES), metavar="N", help="requests of a step")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="runs of each, from as many seeds (default %(default)s)")
    args = parsed(parser)
    if args.quick:
        args.fleets, args.sizes, args.seeds = list(FLEETS)[:1], list(SIZES)[1:2], 1
    return args


if __name__ == "__main__":
    main()
