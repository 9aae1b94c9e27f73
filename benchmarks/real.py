"""Two replicas of vLLM on two cores, with small models that are made on the spot: who sends where, and what that costs.

- ``equal``: one long answer, then six rounds of 24 short calls. How many calls does each of the two equal servers get?
- ``mixed``: 160 calls of mixed lengths, 24 in flight. The seconds until the last answer, and the median latency.
- ``documents``, ``rubrics``, ``votes``, ``groups``: shuffled prompts that begin alike. The prompt tokens that the servers computed (their
  own counters), divided by the fewest possible (each distinct block of 128 tokens computed once), and the seconds until the last answer.

All clients of a row get the same conversations but for their first word, so that no run finds the cache of another. The runs of the clients
alternate, because the machine may be busy.

    python benchmarks/real.py --json real.json               # everything, three runs each
    python benchmarks/real.py --json real.json --markdown    # measures nothing; writes docs/benchmarks.md from that file
    python benchmarks/real.py --worlds documents --clients qreward openai --runs 1
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from _environments import python_of
from _pages import PAGE, describe, machine, rewrite_section, table
from _processes import ClientFailed, cores, run_client
from _vllm import BLOCK, KEY, REQUIREMENTS, Replica, two_replicas
from overhead_clients import ENVIRONMENTS
from prefix_sockets import sglang_router

Call = tuple[list[dict[str, str]], int]
WIDTH = 16  # --max-num-seqs
LONG, SHORT = 1200, 8  # tokens of an answer
TIMEOUT = 900.0
OURS, ALONE, OPENAI, ROUTER = "qreward", "qreward without affinity", "openai", "sglang-router"
CLIENTS: dict[str, tuple[str, dict[str, Any]]] = {
    OURS: ("real_qreward.py", {}),
    ALONE: ("real_qreward.py", {"prefix_affinity": None}),
    OPENAI: ("real_openai.py", {"in_flight": WIDTH}),
    ROUTER: ("real_openai.py", {"in_flight": 2 * WIDTH}),
}
"""Name of a client -> its script and its settings."""
TITLES = {
    "equal": "1 long answer, then 6 x 24 short calls",
    "mixed": "160 calls with answers of 8 to 400 tokens, 24 in flight",
    "documents": "12 documents of about 2,400 tokens, 20 questions on each",
    "rubrics": "12 rubrics of about 2,400 tokens, 20 answers of about 60 tokens to each",
    "votes": "one rubric of about 600 tokens, 40 answers of about 900 tokens, 5 votes on each",
    "groups": "20 questions of about 1,500 tokens, 8 answers of about 100 tokens to each",
}
PREFIXES = ("documents", "rubrics", "votes", "groups")
WORDS = sorted({word for word in PAGE.read_text(encoding="utf-8").split() if word.isalpha() and len(word) > 2})


def rounds(world: str, seed: int, run: str) -> list[list[Call]]:
    """Return the rounds of calls of a world. ``run`` is the first word of all texts, and of the same length for all clients."""
    draw = random.Random(f"{world} {seed}")

    def words(tokens: int) -> str:
        return " ".join(draw.choice(WORDS) for _ in range(round(tokens / 2.07)))  # tokens of a word of this page, by our tokenizer

    def chat(*parts: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": " ".join((run, *parts))}]

    if world == "equal":
        return [[(chat(words(20)), LONG)], *([(chat(words(20)), SHORT) for _ in range(24)] for _ in range(6))]
    if world == "mixed":
        return [[(chat(words(40)), draw.choice((8, 8, 16, 32, 64, 128, 400))) for _ in range(160)]]
    if world == "documents":
        calls = [(chat(document, words(20)), 2) for document in [words(2400) for _ in range(12)] for _ in range(20)]
    elif world == "rubrics":
        calls = [(chat(rubric, words(60)), 2) for rubric in [words(2400) for _ in range(12)] for _ in range(20)]
    elif world == "votes":
        rubric = words(600)
        calls = [(chat(rubric, answer), SHORT) for answer in [words(900) for _ in range(40)] for _ in range(5)]
    else:
        calls = [(chat(question, words(100)), 2) for question in [words(1500) for _ in range(20)] for _ in range(8)]
    draw.shuffle(calls)
    return [calls]


def fewest(prompts: Iterable[Sequence[int]]) -> int:
    """Return the fewest tokens of these prompts that must be computed: all, less the blocks that a prompt before it begins with.

    The last token of a prompt is always computed, and its block with it.
    """
    seen: set[tuple[int, ...]] = set()
    least = 0
    for tokens in prompts:
        begins = [tuple(tokens[:end]) for end in range(BLOCK, len(tokens), BLOCK)]
        known = sum(begin in seen for begin in begins)  # a begin is there only with all that are shorter
        seen.update(begins)
        least += len(tokens) - BLOCK * known
    return least


def tokens_of(replica: Replica, calls: Iterable[Call]) -> Iterator[list[int]]:
    """Yield the tokens of each prompt, as a server counts them."""
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    for messages, _ in calls:
        body = json.dumps({"model": replica.model, "messages": messages}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{replica.root}/tokenize", body, headers), timeout=60) as answer:
            yield json.load(answer)["tokens"]


def run_one(client: str, world: str, job: dict[str, Any], replicas: Sequence[Replica], folder: Path) -> dict[str, Any]:
    """Let one client send one job, and return what it says and what the servers counted."""
    script, settings = CLIENTS[client]
    idle(replicas)
    before = [replica.metrics() for replica in replicas]
    with front(client, replicas) as urls:
        whole = job | {"urls": urls, "key": KEY, "settings": settings, "batch": world in PREFIXES}
        place = folder / "job.json"
        place.write_text(json.dumps(whole), encoding="utf-8")
        python = Path(sys.executable) if script == "real_qreward.py" else python_of("openai", ENVIRONMENTS["openai"])
        said = run_client(python, script, [str(place)], TIMEOUT)
    idle(replicas)
    counts = []
    for replica, old in zip(replicas, before, strict=True):
        now = replica.metrics()
        now.subtract(old)
        counts.append(now)
    said["computed"] = sum(each["prompt_tokens_total"] - each["prompt_tokens_cached_total"] for each in counts)
    said["generated"] = sum(each["generation_tokens_total"] for each in counts)
    ended = [round(each["finished:length"] + each["finished:stop"]) for each in counts]
    said["split"] = [
        count - (world == "equal" and each["generation_tokens_total"] >= LONG) for count, each in zip(ended, counts, strict=True)
    ]  # without the long one
    return said


def idle(replicas: Sequence[Replica]) -> None:
    while any(now["num_requests_running"] or now["num_requests_waiting"] for now in (replica.metrics() for replica in replicas)):
        time.sleep(0.1)
    time.sleep(0.3)


@contextmanager
def front(client: str, replicas: Sequence[Replica]) -> Iterator[list[str]]:
    """Yield the addresses that a client gets: those of the servers, or that of the router."""
    urls = [replica.url for replica in replicas]
    if client != ROUTER:
        yield urls
    else:
        with sglang_router(urls) as routed:
            yield list(routed)


def measure(worlds: Sequence[str], clients: Sequence[str], runs: int) -> Iterator[dict[str, Any]]:
    """Yield a record of each run."""
    number = 0
    for model in ("judge", "reader"):
        mine = [world for world in worlds if (world in PREFIXES) == (model == "reader")]
        if not mine:
            continue
        first, second = (core or 0 for core in cores())
        with tempfile.TemporaryDirectory() as name, two_replicas(model, Path(name), (first, second)) as replicas:
            warm_up(replicas, model, Path(name))
            for world in mine:
                for run in range(runs):
                    for client in clients:
                        number += 1
                        work = rounds(world, run, f"run{1000 + number}{time.time_ns() % 10**6:06d}")
                        job = {"model": model, "rounds": work, "width": 24 if world in ("equal", "mixed") else 10**6}
                        about = {"world": world, "client": client, "run": run, "calls": sum(map(len, work))}
                        about["fewest"] = fewest(tokens_of(replicas[0], [call for each in work for call in each]))
                        try:
                            yield about | run_one(client, world, job, replicas, Path(name))
                        except ClientFailed as error:
                            yield about | {"error": str(error)}


def warm_up(replicas: Sequence[Replica], model: str, folder: Path) -> None:
    """The first requests of a server compile its kernels."""
    calls = rounds("documents", 99, "warm")[0][:24]
    run_one(OPENAI, "mixed", {"model": model, "rounds": [calls, calls], "width": 24}, replicas, folder)


def report(run: dict[str, Any]) -> str:
    """Return the tables."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in run["records"]:
        if "error" not in record:
            found.setdefault((record["world"], record["client"]), []).append(record)

    def middle(records: Sequence[dict[str, Any]], name: str) -> float:
        return float(median(record[name] for record in records))

    single, prefix = [], []
    for (world, client), records in found.items():
        seconds = f"{middle(records, 'wall_s'):.2f}"
        splits = ", ".join(":".join(map(str, sorted(record["split"], reverse=True))) for record in records)
        if world not in PREFIXES:
            latency = median(median(record["latencies"]) for record in records)
            single.append([f"{TITLES[world]}: {client}", splits, seconds, f"{1000 * latency:.0f}", f"{sum(r['failed'] for r in records)}"])
            continue
        share = median(record["computed"] / record["fewest"] for record in records)
        base = found.get((world, ALONE), [])
        gains = [mine["wall_s"] / other["wall_s"] for mine in records for other in base if mine["run"] == other["run"]]
        gain = f"{median(gains):.2f}" if gains else "-"
        row = [f"{world}: {client}", f"{middle(records, 'computed'):,.0f}", f"{share:.2f}", seconds, gain, splits]
        prefix.append([*row, f"{sum(record['failed'] for record in records)}"])
    parts = []
    if single:
        parts.append(table(["calls and client", "split", "seconds", "median latency, ms", "failed"], single))
    if prefix:
        head = ["workload and client", "computed tokens", "/ fewest", "seconds", "/ without affinity", "split", "failed"]
        parts.append(table(head, prefix))
    errors = [f"{each['world']}, {each['client']}: {each['error']}" for each in run["records"] if "error" in each]
    return "\n\n".join([*parts, *errors])


def section(run: dict[str, Any]) -> str:
    """Return the section of ``docs/benchmarks.md``."""
    kinds = "\n".join(f"- `{name}`: {title}." for name, title in TITLES.items())
    about = f"{' '.join(REQUIREMENTS)}; medians of {run['runs']} runs on {describe(run['machine'])}"
    return f"{about}\n\n{kinds}\n\n{report(run)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", choices=list(TITLES), default=list(TITLES), metavar="NAME", help=f"of {', '.join(TITLES)}")
    parser.add_argument(
        "--clients", nargs="+", choices=list(CLIENTS), default=list(CLIENTS), metavar="NAME", help=f"of {', '.join(CLIENTS)}"
    )
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="runs of each (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the raw records there")
    parser.add_argument("--markdown", action="store_true", help="measure nothing; write docs/benchmarks.md from the file of --json")
    args = parser.parse_args()
    if args.markdown:
        if not args.json:
            parser.error("--markdown needs --json PATH, the file to read")
        rewrite_section(PAGE, "real", section(json.loads(args.json.read_text(encoding="utf-8"))))
        return
    run: dict[str, Any] = {"machine": machine(), "runs": args.runs, "records": []}
    for record in measure(args.worlds, args.clients, args.runs):
        run["records"].append(record)
        shown = {key: value for key, value in record.items() if key != "latencies"}
        print(json.dumps(shown), file=sys.stderr, flush=True)
        if args.json:
            args.json.write_text(json.dumps(run, indent=1), encoding="utf-8")
    print(report(run))


if __name__ == "__main__":
    main()
