"""Compares ``qreward run``, Ray Data's HTTP processor and a script with the same file of requests: undisturbed, and killed half-way.

    python benchmarks/bulk_peers.py --json bulk_peers.json                # about ten minutes; makes an environment for Ray the first time
    python benchmarks/bulk_peers.py --json bulk_peers.json --markdown     # measures nothing; writes docs/benchmarks.md from that file
    python benchmarks/bulk_peers.py --quick                               # ours and the scripts, few lines

A fake server in this process serves 16 requests at once and refuses others with 429 and ``Retry-After: 1``. It counts by content what it
served. Each client is started as a user would start it. Only the rows that say so have settings for this server. When half of the lines are
served, all processes of the client are killed with ``kill -9``, and the same command is started again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _command import command, load, parsed, save
from _environments import python_of
from _pages import PAGE, describe, machine, rewrite_section, table
from _processes import HERE, clean_environment
from clients._harness import conversations

from qreward.testing import FakeEndpoint, FakeFleet, Latency

SLOTS, SECONDS = 16, 0.1
RAY = ("ray[data]==2.60.0", "aiohttp")
TIME_LIMIT = 900.0
"""Maximum number of seconds of one run of a client."""


@dataclass(frozen=True)
class Client:
    """One row of the table.

    Attributes:
        what: its description on the page.
        script: its file in ``clients``; None for ``qreward run``.
        numbers: the last arguments of its script: the number of requests at once, or the numbers of workers and of rows in a batch.
        needs_ray: it runs in an environment with Ray.
    """

    what: str
    script: str | None = None
    numbers: tuple[int, ...] = ()
    needs_ray: bool = False

    def command(self, source: Path, output: Path, url: str) -> list[str]:
        if self.script is None:
            return [sys.executable, "-m", "qreward", "run", str(source), "--output", str(output), "--progress", "none"]
        python = str(python_of("ray_data", RAY)) if self.needs_ray else sys.executable
        return [python, str(HERE / "clients" / self.script), str(source), str(output), url, *map(str, self.numbers)]


CLIENTS = {
    "qreward run": Client("the command, no settings"),
    "script, 64 at once": Client("`AsyncOpenAI` behind a semaphore that does not know the limit", "bulk_script.py", (64,)),
    "script, 16 at once": Client("the same, with the limit of the server", "bulk_script.py", (SLOTS,)),
    "Ray Data, 1 worker": Client("`HttpRequestProcessorConfig(max_retries=5)`, else with its defaults", "bulk_ray_http.py", (1, 64), True),
    "Ray Data, 4 workers": Client(
        "the same with `concurrency=4, batch_size=16`, which fits this server", "bulk_ray_http.py", (4, 16), True
    ),
}
QUICK = ("qreward run", "script, 64 at once")


class CountedFleet:
    """A server that counts what it served.

    Attributes:
        served: text of the last message -> times that the server began an answer to it.
    """

    def __init__(self) -> None:
        self.served: Counter[str] = Counter()
        latency = Latency(per_token=SECONDS / 100, tokens=100, sigma=0.5)
        settings: dict[str, Any] = {"latency": latency, "max_concurrency": SLOTS, "retry_after": "seconds", "responder": self._respond}
        self.fleet = FakeFleet([FakeEndpoint("server", **settings)])

    def _respond(self, messages: list[Any]) -> str:
        self.served[messages[-1]["content"]] += 1
        return "Score: 7"

    @property
    def requests(self) -> int:
        return sum(self.served.values())


def write_input(path: Path, count: int) -> Path:
    with path.open("w", encoding="utf-8") as file:
        for index, messages in enumerate(conversations(count)):
            last = {**messages[-1], "content": f"{index}\n{messages[-1]['content']}"}
            body = {"model": "judge", "messages": [*messages[:-1], last]}
            file.write(json.dumps({"custom_id": f"id-{index}", "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n")
    return path


def answered(output: Path) -> Iterator[str]:
    """Yield the identifiers of the lines with an answer, in a file or in the files of a folder."""
    paths = sorted(output.glob("*.json")) if output.is_dir() else [output] if output.exists() else []
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = _read(line)
            if row.get("response") is not None:
                yield row["custom_id"]


def _read(line: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError:  # a line that the kill has cut off
        return {}
    return found


def run_client(client: Client, source: Path, output: Path, fleet: CountedFleet, kill_at: int | None = None) -> float:
    """Run a client to its end, or until the fleet has served so many requests. Returns the seconds."""
    url = fleet.fleet.urls["server"]
    settings = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "key-of-the-benchmark", "RAY_USAGE_STATS_ENABLED": "0"}
    settings["PYTHONPATH"] = str(HERE.parent)  # this checkout, even if qreward is installed
    quiet: dict[str, Any] = {
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
        "env": clean_environment() | settings,
        "start_new_session": True,
    }
    command, begin = client.command(source, output, url), time.monotonic()
    process = subprocess.Popen(command, cwd=source.parent, **quiet)
    try:
        while process.poll() is None and time.monotonic() - begin < TIME_LIMIT:
            if kill_at is not None and fleet.requests >= kill_at:
                break
            time.sleep(0.01)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # the processes of Ray in other process groups end with it
            process.wait()
    return time.monotonic() - begin


def measure(client: Client, folder: Path, source: Path, count: int) -> dict[str, float]:
    """Run a client undisturbed, and killed at half and started again."""
    found: dict[str, float] = {}
    for name, kill_at in (("undisturbed", None), ("killed", count // 2)):
        fleet, output = CountedFleet(), folder / f"{name}.jsonl"
        with fleet.fleet:
            seconds = run_client(client, source, output, fleet, kill_at)
            if kill_at is not None:
                seconds += run_client(client, source, output, fleet)
            lines = Counter(answered(output))
            found |= {
                f"{name}_seconds": seconds,
                f"{name}_lost": count - len(lines),
                f"{name}_duplicates": sum(lines.values()) - len(lines),
                f"{name}_twice": fleet.requests - len(fleet.served),
            }
    return found


def report(run: dict[str, Any]) -> str:
    head = ["client", "s undisturbed", "lines lost", "s with a kill", "lines lost", "lines twice", "paid twice"]
    rows = [
        [
            name,
            f"{each['undisturbed_seconds']:.1f}",
            f"{each['undisturbed_lost']:.0f}",
            f"{each['killed_seconds']:.1f}",
            *(f"{each[f'killed_{what}']:.0f}" for what in ("lost", "duplicates", "twice")),
        ]
        for name, each in run["clients"].items()
    ]
    return table(head, rows)


def section(run: dict[str, Any]) -> str:
    bound = run["lines"] * SECONDS / SLOTS
    who = table(["client", "what it is"], [[name, CLIENTS[name].what] for name in run["clients"]])
    about = f"{run['lines']:,} lines; no client can need less than {bound:.1f} s. {describe(run['machine'])}"
    return f"{about}\n\n{who}\n\n{report(run)}"


def main() -> None:
    args = arguments()
    if args.markdown:
        rewrite_section(PAGE, "bulk-peers", section(load(args.json)))
        return
    run: dict[str, Any] = {"machine": machine(), "lines": args.lines, "clients": {}}
    for name in args.only:
        with tempfile.TemporaryDirectory() as folder:
            run["clients"][name] = measure(CLIENTS[name], Path(folder), write_input(Path(folder) / "in.jsonl", args.lines), args.lines)
        print(f"{name}: {run['clients'][name]}", file=sys.stderr, flush=True)
        save(args.json, run)
    print(report(run))


def arguments() -> argparse.Namespace:
    parser = command(__doc__, "160 lines, ours and a script")
    parser.add_argument("--only", nargs="+", choices=tuple(CLIENTS), metavar="NAME", help=f"of {', '.join(CLIENTS)} (default: all)")
    parser.add_argument("--lines", type=int, default=1000, metavar="N", help="lines of the input (default %(default)s)")
    args = parsed(parser)
    if args.quick:
        args.lines = 160
    args.only = args.only or (QUICK if args.quick else tuple(CLIENTS))
    return args


if __name__ == "__main__":
    main()
