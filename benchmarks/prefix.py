"""Prefix caches: how much faster a batch gets when requests that begin alike go to the same replica. In virtual time, over model servers
with a prefix cache (``fakes.model_server``).

A *policy* decides where requests go: the real scheduler with groups that are named or found, the scheduler without affinity (``pull``), or
a router. A cell of the table has the gain (the makespan of ``pull`` divided by that of the policy, median over the seeds), and the computed
prompt tokens divided by the fewest possible. For our policies it also has the cached tokens that the scheduler predicted, divided by those
that the servers reported. The column "most" is the largest possible gain: the makespan of ``pull`` divided by the lower bound.

    python benchmarks/prefix.py --json prefix.json                 # everything, ten seeds: an hour or two
    python benchmarks/prefix.py --json prefix.json --markdown      # simulates nothing; writes docs/benchmarks.md from that file
    python benchmarks/prefix.py --workloads grpo --models 8B --orders shuffled --fleets 8 --seeds 1
    python benchmarks/prefix.py --quick                            # seconds: small batches, one seed
    python benchmarks/prefix.py --sockets                          # a fake fleet with prefix caches, ours and other clients
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from _command import command, load, parsed, save
from _pages import PAGE, describe, machine, rewrite_section, table
from fakes.model_server import MODELS
from prefix_report import BASE, MISS, misses, section, tables
from prefix_routers import ROUTERS
from prefix_sockets import measure, report
from prefix_workloads import WORKLOADS, Workload, found, ideal, told
from prefix_world import FLEETS, WINDOW, Fleet, Pull, PulledWorld, RoutedWorld, bound

ALL = 1_000_000
"""Number of waiting requests for a look-ahead over the whole input."""
OURS = {
    BASE: Pull(look_ahead=0),
    "told": Pull(told),
    "found": Pull(found),
    "told-512": Pull(told, 512),
    "told-all": Pull(told, ALL),
    "found-all": Pull(found, ALL),
    "calls-told": Pull(told, calls=True),
}
"""The ways to use the scheduler, by the name of the policy."""
POLICIES = (*OURS, *ROUTERS)
SOCKETS = ("grpo", "votes", "documents")
"""The workloads that are measured over real sockets."""
ORDERS = ("grouped", "shuffled")
MOST_WORKERS = 2


@dataclass(frozen=True)
class Cell:
    """One batch, for all policies and one seed."""

    workload: Workload
    model: str
    order: str
    fleet: Fleet
    seed: int
    scale: float
    policies: tuple[str, ...]
    caching: bool
    usual: dict[str, Any]

    def run(self) -> list[dict[str, Any]]:
        """Simulate all policies. Returns their records."""
        jobs = self.workload.jobs(self.seed, self.order, self.scale)
        best, least = ideal(jobs), bound(jobs, self.fleet.models(MODELS[self.model]))
        found = []
        for policy in self.policies:
            begin = time.process_time()
            record = self._play(policy, jobs)
            found.append(self._name(policy) | record | {"ideal": best, "bound": least, "cpu": time.process_time() - begin})
        return found

    def _name(self, policy: str) -> dict[str, Any]:
        cell = {"workload": self.workload.name, "model": self.model, "order": self.order, "fleet": self.fleet.name}
        return cell | {"policy": policy, "seed": self.seed}

    def _play(self, policy: str, jobs: list[Any]) -> dict[str, Any]:
        model = MODELS[self.model].model_copy(update={"caching": self.caching})
        models, dies_after = self.fleet.models(model), len(jobs) // 2 if self.fleet.dies else None
        if policy in ROUTERS:
            routed = RoutedWorld(models, ROUTERS[policy](jobs, model.cache_tokens))
            return measured(routed, routed.play(jobs, dies_after))
        pull = replace(OURS[policy], **self.usual)
        pulled = PulledWorld(f"{self.seed}", models, pull)
        ledger = pulled.play(jobs, dies_after)
        assert not ledger.failed, ledger.failed[0].last_error
        return measured(pulled, ledger) | predicted(pulled)


def measured(world: PulledWorld | RoutedWorld, ledger: Any) -> dict[str, Any]:
    servers = [replica.server for replica in world.replicas]
    return {
        "makespan": ledger.last,
        "prefill": sum(server.prefilled for server in servers),
        "cached": sum(server.hits for server in servers),
    }


def predicted(world: PulledWorld) -> dict[str, Any]:
    """Return the figures that only our scheduler has.

    ``predicted`` and ``reported`` are the cached tokens that the scheduler predicted and that answers reported. ``hedged`` is the number of
    requests that were sent twice. ``late``: a request at place n of the input was sent after at most 2 n + ``late`` other requests. It must
    not exceed the look-ahead.
    """
    return {
        "predicted": sum(source.prefix_cache.predicted_tokens for source in world.sources),
        "reported": sum(source.tally.cached_tokens for source in world.sources),
        "late": max(rank - 2 * place for rank, place in enumerate(world.sent)),
        "hedged": sum(source.tally.hedged for source in world.sources),
    }


def main() -> None:
    args = arguments()
    if args.markdown:
        saved = load(args.json)
        name, text = ("prefix-sockets", over_sockets) if "sockets" in saved else ("prefix", section)
        rewrite_section(PAGE, name, text(saved))
        return
    if args.sockets:
        measured_over_sockets(args)
        return
    run: dict[str, Any] = {
        "machine": machine(),
        "options": {"seeds": args.seeds, "scale": args.scale, "hedge": args.hedge, "window": args.window},
    }
    run |= {"workloads": {workload.name: workload.title for workload in args.workloads}, "records": []}
    try:
        for records in results(cells(args), args.workers):
            run["records"] += records
    finally:
        save(args.json, run)
    print(tables(run))
    print("\nmissed targets:", table(MISS, misses(run)), sep="\n")


def over_sockets(run: dict[str, Any]) -> str:
    """Return the section of ``docs/benchmarks.md`` for real sockets."""
    return f"Measured on {describe(run['machine'])} Medians over the seeds.\n\n{report(run['sockets'])}"


def measured_over_sockets(args: argparse.Namespace) -> None:
    """Measure over real sockets and print the table."""
    records = []
    for record in measure(args.workloads, args.models[0], args.seeds):
        said = record.get("error") or f"{record['wall_s']:.1f} s, {record['right']} of {record['requests']} right"
        print(f"seed {record['seed']}, {record['workload']}: {record['client']} {said}", file=sys.stderr, flush=True)
        records.append(record)
    save(args.json, {"machine": machine(), "sockets": records})
    print(report(records))


def cells(args: argparse.Namespace) -> list[Cell]:
    usual = {"hedge": args.hedge, "window": args.window or None}
    return [
        Cell(workload, model, order, fleet, seed, args.scale, tuple(args.policies), not args.no_caching, usual)
        for seed in range(1, args.seeds + 1)
        for fleet in args.fleets
        for workload in args.workloads
        for model in args.models
        for order in args.orders
    ]


def results(todo: list[Cell], workers: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the records of all cells, in their order."""
    if workers == 1:
        yield from map(_run, todo)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap(_run, todo)


def _run(cell: Cell) -> list[dict[str, Any]]:
    records = cell.run()
    first = records[0]
    spans = ", ".join(f"{record['policy']} {first['makespan'] / record['makespan']:.2f}" for record in records)
    name = f"{cell.seed} {cell.fleet.name} {cell.workload.name} {cell.model} {cell.order}"
    print(f"{name}: {spans} ({sum(record['cpu'] for record in records):.1f} s)", file=sys.stderr, flush=True)
    return records


def arguments() -> argparse.Namespace:
    workloads, fleets = {each.name: each for each in WORKLOADS}, {each.name: each for each in FLEETS}
    parser = command(__doc__, "small batches of two workloads, one seed")
    parser.add_argument("--workloads", nargs="+", choices=list(workloads), metavar="NAME", help=f"of {', '.join(workloads)}")
    _choice(parser, "--fleets", fleets)
    _choice(parser, "--models", MODELS)
    _choice(parser, "--orders", ORDERS)
    _choice(parser, "--policies", POLICIES)
    parser.add_argument("--seeds", type=int, metavar="N", help="runs of each, from as many seeds (default 10; over sockets 3)")
    parser.add_argument("--scale", type=float, default=1.0, metavar="X", help="share of the groups of each workload (default %(default)g)")
    parser.add_argument("--workers", type=int, choices=range(1, MOST_WORKERS + 1), default=min(MOST_WORKERS, os.cpu_count() or 1))
    parser.add_argument(
        "--window", type=int, default=WINDOW, metavar="N", help="in flight per replica, for ours; 0 is learned (default 64)"
    )
    parser.add_argument("--hedge", action="store_true", help="the scheduler may send slow requests twice")
    parser.add_argument("--no-caching", action="store_true", help="servers without a prefix cache")
    parser.add_argument("--sockets", action="store_true", help="real sockets: a fake fleet with prefix caches, and other clients")
    args = parsed(parser)
    if args.quick:
        args.workloads, args.models, args.fleets, args.seeds, args.scale, args.workers = ["grpo", "nothing"], ["8B"], ["4"], 1, 0.1, 1
    args.seeds = args.seeds or (3 if args.sockets else 10)
    args.workloads = args.workloads or (SOCKETS if args.sockets else workloads)
    if BASE not in args.policies:
        args.policies = [BASE, *args.policies]
    args.workloads, args.fleets = [workloads[name] for name in args.workloads], [fleets[name] for name in args.fleets]
    return args


def _choice(parser: argparse.ArgumentParser, flag: str, names: Any) -> None:
    parser.add_argument(flag, nargs="+", choices=list(names), default=list(names), metavar="NAME", help=f"of {', '.join(names)}")


if __name__ == "__main__":
    main()
