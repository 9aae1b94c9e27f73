"""Batches over real sockets on fake endpoints with prefix caches: ours, the openai SDK (round robin), litellm and SGLang's router.

The fleet runs in one process, a client in another, a router in a third. All clients get the same texts; responses are compared with the
echo of their conversations.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

from _environments import python_of
from _pages import table
from _processes import ClientFailed, clean_environment, cores
from fakes.endpoint import ModelEndpoint
from fakes.model_server import MODELS, ModelRequest, ideal_prefill
from makespan_clients import CANDIDATES, CLIENTS, OURS, Client
from makespan_fleets import Conversation, Plan
from makespan_runs import Front, run_bulk
from prefix_workloads import CHARACTERS, PrefixJob, Workload
from prefix_world import WINDOW, bound

from qreward.testing import Latency
from qreward.testing.bodies import canonical, count_tokens
from qreward.testing.endpoint import chain

REPLICAS, SHARE, TIME_SCALE, CAP = 4, 0.25, 0.5, 40.0
"""``REPLICAS``: number of endpoints. ``SHARE``: share of the groups of each workload. ``TIME_SCALE``: factor on all times. ``CAP``: a
client is stopped after this many times the lower bound."""
ROUTER = ("sglang-router==0.3.2",)
START = 60.0  # seconds that a router may take until it is ready
ROUND_ROBIN = "openai"


def measure(workloads: Sequence[Workload], model: str, seeds: int) -> Iterator[dict[str, Any]]:
    """Yield the records of all clients on all workloads, shuffled."""
    for seed in range(1, seeds + 1):
        for workload in workloads:
            jobs = workload.jobs(seed, "shuffled", SHARE)
            plan = plan_of(jobs, model, seed)
            for name, client, front in clients():
                about = {"workload": workload.name, "client": name, "seed": seed, "model": model, "ideal": ideal(plan.work)}
                try:
                    yield about | run_bulk(client, plan, CAP, cores(), front)
                except ClientFailed as error:
                    yield about | {"error": str(error)}


def clients() -> Iterator[tuple[str, Client, Front]]:
    """Yield the name, the client and the router of each row."""
    known = {client.name: client for client in (*CLIENTS, *CANDIDATES)}

    def told(name: str, in_flight: int) -> Client:
        client = known[name]
        return Client(name, client.script, client.what, client.environment, client.settings | {"in_flight": in_flight, "timeout": 600.0})

    yield OURS.name, OURS, direct
    yield ROUND_ROBIN, told(ROUND_ROBIN, WINDOW), direct
    yield "litellm", told("litellm", WINDOW), direct
    yield "sglang-router", told(ROUND_ROBIN, WINDOW * REPLICAS), sglang_router


@contextmanager
def direct(urls: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the URLs of the endpoints themselves: there is no router."""
    yield urls


@contextmanager
def sglang_router(urls: Sequence[str]) -> Iterator[Sequence[str]]:
    """Run SGLang's router with its policy ``cache_aware`` and its defaults in front of the endpoints, and yield its URL."""
    python = python_of("sglang-router", ROUTER)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    workers = [url.removesuffix("/v1") for url in urls]
    options = ["--policy", "cache_aware", "--host", "127.0.0.1", "--port", str(port), "--log-level", "warn"]
    command = [str(python), "-m", "sglang_router.launch_router", *options, "--worker-urls", *workers]
    home = tempfile.mkdtemp()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=clean_environment(), cwd=home)
    try:
        _await(f"http://127.0.0.1:{port}/readiness", process)
        yield [f"http://127.0.0.1:{port}/v1"]
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(home, ignore_errors=True)


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise ClientFailed(f"the router is not ready after {START:g} s, or has ended ({process.poll()})")


def plan_of(jobs: Sequence[PrefixJob], model: str, seed: int) -> Plan:
    """Return the endpoints and conversations. The output lengths are drawn from the conversations, with the mean of the jobs."""
    served = MODELS[model].model_copy(update={"time_scale": TIME_SCALE})
    length = Latency(tokens=sum(job.tokens for job in jobs) / len(jobs), sigma=0.4, seed=seed)
    endpoints = [ModelEndpoint(f"replica {number}", kind="sglang", served=served, latency=length) for number in range(REPLICAS)]
    return Plan(endpoints, [conversation(job) for job in jobs], bound(jobs, [served] * REPLICAS))


def conversation(job: PrefixJob) -> Conversation:
    """Return the prompt of a job as text. The outermost part is the system message."""
    first, *rest = (_text(key, tokens) for key, (_, tokens) in zip(job.keys, job.path, strict=True))
    return [{"role": "system", "content": first}, {"role": "user", "content": "".join(rest)}]


def _text(key: int, tokens: int) -> str:
    word = f"{key & (2**64 - 1):x} "
    return (word * (CHARACTERS * tokens // len(word) + 1))[: CHARACTERS * tokens]


def ideal(work: Iterable[Conversation]) -> int:
    """Return the fewest prompt tokens that must be computed for these conversations."""
    texts = [canonical(messages) for messages in work]
    chains = [chain("", text, 16 * CHARACTERS) for text in texts]
    sizes = [[16 * (place + 1) for place in range(len(keys))] for keys in chains]
    return ideal_prefill([ModelRequest(count_tokens(text), 1, *parts) for text, *parts in zip(texts, chains, sizes, strict=True)])


HEAD = ("workload and client", "seconds", "times faster", "computed / ideal", "cached", "right", "lost", "CPU s")


def report(records: Sequence[dict[str, Any]]) -> str:
    """Return a table of the results. ``times faster`` is the makespan of the openai SDK divided by that of the row."""
    rows = []
    for workload, client in dict.fromkeys((record["workload"], record["client"]) for record in records):
        mine = {each["seed"]: each for each in records if (each["workload"], each["client"]) == (workload, client) and "error" not in each}
        base = {each["seed"]: each for each in records if (each["workload"], each["client"]) == (workload, ROUND_ROBIN)}
        name = f"{workload}, {client}"
        if not mine:
            rows.append([name, "failed", *["-"] * (len(HEAD) - 2)])
            continue
        gains = [base[seed]["wall_s"] / each["wall_s"] for seed, each in mine.items() if "wall_s" in base.get(seed, {})]
        rows.append([name, *_cells(list(mine.values()), gains)])
    return table(HEAD, rows)


def _cells(mine: Sequence[dict[str, Any]], gains: Sequence[float]) -> list[str]:
    def middle(value: Callable[[dict[str, Any]], float], shape: str) -> str:
        return shape.format(median(map(value, mine)))

    def tokens(record: dict[str, Any], what: str) -> int:
        return sum(endpoint[what] for endpoint in record["endpoints"])

    return [
        middle(lambda record: record["wall_s"], "{:.1f}"),
        f"{median(gains):.2f}" if gains else "-",
        middle(lambda record: tokens(record, "computed") / record["ideal"], "{:.2f}"),
        middle(lambda record: tokens(record, "cached") / (tokens(record, "cached") + tokens(record, "computed")), "{:.0%}"),
        middle(lambda record: record["right"], "{:.0f}"),
        middle(lambda record: record["lost"] + record["wrong"], "{:.0f}"),
        middle(lambda record: record["cpu_s"], "{:.1f}"),
    ]
