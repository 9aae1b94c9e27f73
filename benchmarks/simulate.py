"""Simulates the scheduler in virtual time: how much of an unknown capacity a limiter uses, and how near a batch comes to its lower bound.

Only ``qreward.scheduler`` runs, against simulated servers with seeded randomness; nothing is sent. ``--models`` simulates each server
alone behind one source, for ten minutes of virtual time. ``--scenarios`` simulates batches on fleets. Without either, both are run.
``--shell`` runs the scenarios through ``qreward.engine`` as well, on an event loop in virtual time.

    python benchmarks/simulate.py --json simulation.json                # everything, five seeds: a few minutes
    python benchmarks/simulate.py --json simulation.json --markdown     # runs nothing; writes docs/benchmarks.md from that file
    python benchmarks/simulate.py --models --controllers ours aimd gradient2 fixed64 --seeds 2
    python benchmarks/simulate.py --quick                               # a second: two models, one small batch
    python benchmarks/simulate.py --shell --only S2-500 S8              # scenarios through the whole engine on asyncio
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from _command import command, load, parsed, save
from _pages import PAGE, machine, rewrite_section
from simulation.closed_loop import run_model
from simulation.controllers import NAMES, OURS, PUSH
from simulation.fleets import Run
from simulation.models import MODELS
from simulation.report import REFERENCE, models_section, models_table, scenarios_section, scenarios_table
from simulation.scenarios import SCENARIOS

SECTIONS: dict[str, Callable[[dict[str, Any]], str]] = {"models": models_section, "scenarios": scenarios_section}
QUICK_MODELS, QUICK_SCENARIOS, QUICK_SECONDS = ("a", "b"), ("S2-500",), 60.0
MOST_PROCESSES = 2


@dataclass(frozen=True)
class Job:
    """One run of a model or a scenario, with one controller and one seed."""

    part: str
    name: str
    controller: str
    seed: int
    seconds: float | None
    timeout: float | None
    shell: bool = False

    def run(self) -> dict[str, Any]:
        """Run it and return its record."""
        if self.part == "models":
            model, more = MODELS[self.name], {"seconds": self.seconds, "timeout": self.timeout}
            return run_model(model, self.controller, self.seed, **more)
        return Run.prepare(SCENARIOS[self.name], self.controller, self.seed, shell=self.shell).play().record()


def main() -> None:
    args = arguments()
    if args.markdown:
        run = load(args.json)
        if run["options"].get("shell"):
            sys.exit("--markdown writes what the core alone does; this file is of --shell")
        for part, section in SECTIONS.items():
            if run[part]:
                rewrite_section(PAGE, part, section(run))
        return
    run = {"machine": machine(), "options": options(args), "models": [], "scenarios": []}
    for part in SECTIONS:
        run[part] = records(planned(args, part), args.processes, alone=part == "scenarios")
    save(args.json, run)
    if run["models"]:
        print(models_table(run["models"], args.controllers))
    if run["scenarios"]:
        print(scenarios_table(run["scenarios"]))


def options(args: argparse.Namespace) -> dict[str, Any]:
    return {"seeds": args.seeds, "controllers": args.controllers, "timeout": args.timeout, "quick": args.quick, "shell": args.shell}


def planned(args: argparse.Namespace, part: str) -> list[Job]:
    """Return all runs of a part, in the order of the tables."""
    return [
        Job(part, name, controller, seed, args.seconds, args.timeout, args.shell)
        for name in getattr(args, part)
        for controller in controllers(args, part, name)
        for seed in range(1, args.seeds + 1)
    ]


def controllers(args: argparse.Namespace, part: str, name: str) -> list[str]:
    """Return the requested controllers, and the oracle if the figures of the model are relative to it."""
    wanted = [name for name in args.controllers if part == "scenarios" or name != PUSH]
    if part == "models" and (MODELS[name].latency or MODELS[name].measured) and REFERENCE not in wanted:
        wanted.append(REFERENCE)
    return wanted


def records(jobs: list[Job], processes: int, *, alone: bool) -> list[dict[str, Any]]:
    """Run all jobs. ``alone`` runs each in a process of its own, so that its memory can be measured."""
    return [record for _, record in sorted(_carry_out(jobs, processes, alone=alone), key=lambda pair: pair[0])]


def _carry_out(jobs: list[Job], processes: int, *, alone: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    if processes == 1 or not jobs:
        for number, job in enumerate(jobs):
            yield number, job.run()
        return
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=1 if alone else None) as pool:
        for done, (number, record) in enumerate(pool.imap_unordered(_run, enumerate(jobs)), 1):
            job = jobs[number]
            print(f"[{done}/{len(jobs)}] {job.name} {job.controller} {job.seed}: {record['wall']:.1f} s", file=sys.stderr, flush=True)
            yield number, record


def _run(numbered: tuple[int, Job]) -> tuple[int, dict[str, Any]]:
    number, job = numbered
    return number, job.run()


def arguments() -> argparse.Namespace:
    parser = command(__doc__, "two models for a minute of virtual time, one small bulk, one seed")
    parser.add_argument("--models", action="store_true", help="one endpoint of each kind")
    parser.add_argument("--scenarios", action="store_true", help="bulks on fleets")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="runs of each, from as many seeds (default %(default)s)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"these; of {', '.join([*MODELS, *SCENARIOS])}")
    parser.add_argument("--controllers", nargs="+", choices=NAMES, default=[OURS], metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="of an attempt, in the models; by default it is learned")
    parser.add_argument("--processes", type=int, choices=range(1, MOST_PROCESSES + 1), default=min(MOST_PROCESSES, os.cpu_count() or 1))
    parser.add_argument("--shell", action="store_true", help="scenarios only, and ours: through the whole engine instead of the core")
    args = parsed(parser)
    if args.shell and (args.models or args.controllers != [OURS]):
        parser.error(f"--shell plays scenarios, with the controller {OURS!r}")
    if unknown := set(args.only or ()) - {*MODELS, *SCENARIOS}:
        parser.error(f"there is no {', '.join(sorted(unknown))}; see --help")
    _choose(args)
    return args


def _choose(args: argparse.Namespace) -> None:
    """Convert the flags to lists of names."""
    args.scenarios |= args.shell
    both = args.models == args.scenarios
    wanted = args.only or ([*QUICK_MODELS, *QUICK_SCENARIOS] if args.quick else [*MODELS, *SCENARIOS])
    args.models = [name for name in MODELS if name in wanted and (both or args.models)]
    args.scenarios = [name for name in SCENARIOS if name in wanted and (both or args.scenarios)]
    args.seconds = QUICK_SECONDS if args.quick else None
    if args.quick:
        args.seeds, args.processes = 1, 1


if __name__ == "__main__":
    main()
