"""Machine instructions per chat call, of this tree and of another commit, counted by valgrind's cachegrind.

Unlike CPU time, the number does not depend on what else the machine does, and repeats to one or two percent. Each count is the difference
of two runs of the same client (``clients/qreward_*.py``) against ``server.py``, divided by the difference of their calls. The first
thousands of calls are left out: a batch that has been read ahead keeps what was known when it was read. Under cachegrind a program runs
about fifty times slower, so its clock is slowed as much (see ``clients/_slowed.py``); otherwise what happens once in so many milliseconds
would seem to happen at each call. Needs valgrind.

    git worktree add ../before 12bf937f && python -m venv ../before/.venv && ../before/.venv/bin/pip install -e ../before
    python benchmarks/instructions.py --before ../before                  # a quarter of an hour
    python benchmarks/instructions.py --only qreward_batch --calls 1024   # this tree alone, one client
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from _processes import HERE, Server, clean_environment

CLIENTS = ("qreward_batch", "qreward_calls", "qreward_gather", "bare")
IN_FLIGHT = 256
SLOWED = 50  # factor by which a program is slower under cachegrind


def main() -> None:
    args = arguments()
    trees = {"here": (HERE, Path(sys.executable))}
    if args.before is not None:
        trees = {"before": (args.before / "benchmarks", args.before / ".venv/bin/python")} | trees
    for client in args.only:
        counts = {name: per_call(benchmarks, python, client, args) for name, (benchmarks, python) in trees.items()}
        ratio = f", ratio {counts['here'] / counts['before']:.3f}" if "before" in counts else ""
        print(f"{client}: " + ", ".join(f"{name} {count / 1000:.1f} thousand" for name, count in counts.items()) + ratio, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="worktree of another commit, with its environment in .venv")
    parser.add_argument("--only", nargs="+", choices=CLIENTS, default=list(CLIENTS), help="these clients")
    parser.add_argument("--skipped", type=int, default=5000, help="calls that are not counted (default 5000)")
    parser.add_argument("--calls", type=int, default=2048, help="calls that are counted (default 2048)")
    args = parser.parse_args()
    if shutil.which("valgrind") is None:
        parser.error("valgrind is not installed (apt-get install valgrind)")
    return args


def per_call(benchmarks: Path, python: Path, client: str, args: argparse.Namespace) -> float:
    """Return the instructions of one call of a client."""
    few, many = (instructions(benchmarks, python, client, calls) for calls in (args.skipped, args.skipped + args.calls))
    return (many - few) / args.calls


def instructions(benchmarks: Path, python: Path, client: str, calls: int) -> int:
    """Return the instructions of a process that makes so many calls."""
    with Server(core=None) as server:
        command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", str(python)]
        command += [str(HERE / "clients/_slowed.py"), str(SLOWED), f"{client}.py", "--urls", ",".join(server.urls())]
        command += ["--verdict", server.verdict, "--concurrency", str(IN_FLIGHT), "--warm-up", str(IN_FLIGHT), "--requests", str(calls)]
        environment = clean_environment() | {"PYTHONHASHSEED": "0"}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=benchmarks / "clients")
    found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    if done.returncode or found is None:
        sys.exit(f"{client} failed:\n{done.stderr[-2000:]}")
    return int(found[1].replace(",", ""))


if __name__ == "__main__":
    main()
