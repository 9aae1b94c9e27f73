"""CPU time that prefix affinity costs, without a network.

Each round measures all rows. A figure is the median of the rounds. ``more`` is the difference to the first row of the same part and round.

- *scheduler*: a batch in ``qreward.scheduler`` alone, from the workloads ``grpo`` and ``votes`` of ``prefix.py``, shuffled. ``named``: the
  caller names the rubric and the question, for ``votes`` also the answer. ``found``: the groups are found by the hashes of blocks of text,
  which exist already. ``unshared``: no two prompts share a block.
- *prompt*: the search for the prefix of a prompt of 4 kB. Sixteen prompts in a row begin alike for 3 kB.
- *batch*: a whole client with a backend in the same process that answers after one turn of the event loop, and the prompts of *prompt*.
- *pick*: one task is taken and one is added, while a task of each of 100,000 groups waits.

    python benchmarks/prefix_cost.py --json cost.json               # about three minutes
    python benchmarks/prefix_cost.py --json cost.json --markdown    # measures nothing; writes docs/benchmarks.md from that file
    python benchmarks/prefix_cost.py --quick
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from statistics import median
from typing import Any

import msgspec
from _command import command, load, parsed, save
from _pages import PAGE, describe, machine, rewrite_section, table
from clients._harness import Messages
from memory import MODEL, NowhereWire
from prefix_workloads import WORKLOADS, PrefixJob, Workload, found, told

from qreward import Endpoint, Limits, QRewardClient
from qreward.codecs import chat
from qreward.codecs.base import WireRequest
from qreward.engine.prefix_finder import PrefixFinder
from qreward.scheduler.outcome import Answer
from qreward.scheduler.pool import ExpectedFinish, Pool
from qreward.scheduler.prefixes import AffineQueue, Holders, Prefix
from qreward.scheduler.queue import Queue
from qreward.scheduler.scheduler import MORE, SEND, Scheduler
from qreward.scheduler.source import Source, make_source
from qreward.scheduler.task import READ_AHEAD, Attempt, BatchFeed, Task
from qreward.settings.policies import Retry

ENDPOINTS, IN_FLIGHT = 4, 64
CHARACTERS, SHARED, SIBLINGS = 4096, 3072, 16
GROUPS = 100_000
PROMPT = "Does the answer meet the criterion? Quote the passage that decides, then give the grade. "
Rows = dict[str, float]
"""Row -> microseconds."""


def scheduled(jobs: Sequence[PrefixJob], prefixes: Sequence[Prefix | None]) -> float:
    """Run a batch in the scheduler. Returns the microseconds of an item."""
    rng = Random(7)
    scheduler = Scheduler(Retry(), rng)
    pool = Pool("all", [], ExpectedFinish(), Queue())
    sources = [make_source(f"e{number}", rng, Limits(max_concurrency=IN_FLIGHT, adaptive=False)) for number in range(ENDPOINTS)]
    for source in sources:
        scheduler.join(0.0, source, pool)
    feed, under_way = BatchFeed(pool, 5, None, 0.0), deque[Attempt]()
    todo, now, place = list(zip(jobs, prefixes, strict=True)), 0.0, 0
    gc.collect()
    began = time.process_time()
    scheduler.open(now, feed)
    while True:
        out, scheduler.out = scheduler.out, []
        for each in out:
            if each[0] == SEND:
                under_way.append(each[1])
            elif each[0] == MORE:
                most = min(len(todo), place + max(READ_AHEAD, feed.read_ahead - len(feed.buffer)))
                for at in range(place, most):
                    task = Task(todo[at][0], pool, 5, None, None, at)
                    task.prefix = todo[at][1]
                    feed.add(task)
                place, feed.ended = most, most == len(todo)
                scheduler.refill(now, feed)
        if scheduler.out:
            continue
        if not under_way:
            break
        attempt = under_way.popleft()
        now += 0.01
        job = attempt.task.payload
        scheduler.event(now, attempt, Answer(None, job.prompt, int(job.tokens), cached_tokens=int(attempt.cached.tokens)))
    took = time.process_time() - began
    if place != len(todo):
        raise SystemExit(f"{place} of {len(todo)} items were sent")
    return took / len(todo) * 1e6


def scheduler_rows(scale: float) -> Callable[[], Rows]:
    grpo, votes, apart = (workload(name).jobs(1, "shuffled", scale) for name in ("grpo", "votes", "nothing"))
    ways: dict[str, tuple[list[PrefixJob], list[Prefix | None]]] = {
        "no prefixes": (grpo, [None] * len(grpo)),
        "grpo, named": (grpo, [question_of(told(job)) for job in grpo]),
        "grpo, found": (grpo, [found(job) for job in grpo]),
        "votes, named": (votes, [told(job) for job in votes]),
        "votes, found": (votes, [found(job) for job in votes]),
        "unshared": (apart, [found(job) for job in apart]),
    }
    return lambda: {name: scheduled(*way) for name, way in ways.items()}


def workload(name: str) -> Workload:
    return next(each for each in WORKLOADS if each.name == name)


def question_of(prefix: Prefix) -> Prefix:
    """The prefix without the answer, which no other request of ``grpo`` has."""
    return msgspec.structs.replace(prefix, keys=prefix.keys[:2], lengths=prefix.lengths[:2])


def prompts(count: int) -> list[Messages]:
    """Prompts of ``CHARACTERS`` characters. ``SIBLINGS`` in a row begin with the same ``SHARED`` characters."""
    text = PROMPT * (CHARACTERS // len(PROMPT) + 1)
    return [
        [{"role": "user", "content": f"{number // SIBLINGS}\n{text}"[:SHARED] + f"{number}\n{text}"[: CHARACTERS - SHARED]}]
        for number in range(count)
    ]


def prompt_rows(count: int) -> Callable[[], Rows]:
    codec, batch = chat.ChatCodec(), prompts(count)
    named = [WireRequest(codec, MODEL, messages, {}, None, number // SIBLINGS) for number, messages in enumerate(batch)]
    unnamed = [WireRequest(codec, MODEL, messages, {}, None) for messages in batch]

    def searched(calls: Sequence[WireRequest], named_only: bool = False) -> float:
        finder = PrefixFinder()
        gc.collect()
        began = time.process_time()
        for call in calls:
            finder(call, named_only)
        return (time.process_time() - began) / len(calls) * 1e6

    return lambda: {"not looked at": searched(unnamed, True), "named": searched(named), "found": searched(unnamed)}


def question(messages: Messages) -> str:
    """The group of a prompt."""
    return messages[0]["content"][:8].partition("\n")[0]


async def batched(batch: Sequence[Messages], endpoints: int, *, named: bool = False, affinity: bool = True) -> float:
    """Run a batch in a whole client. Returns the microseconds of an item."""
    limits = Limits(max_concurrency=IN_FLIGHT * ENDPOINTS // endpoints, adaptive=False)
    fleet = [Endpoint(f"http://127.0.0.1:{port}/v1", limits=limits) for port in range(1, endpoints + 1)]
    setting: dict[str, Any] = {} if affinity else {"prefix_affinity": None}
    async with QRewardClient(fleet, backend_factory=NowhereWire, **setting) as client:
        await client.batch_chat_completion(batch[:1000], model=MODEL, keep_results=False)
        gc.collect()
        began = time.process_time()
        results = await client.batch_chat_completion(batch, model=MODEL, keep_results=False, group=question if named else None)
        took = time.process_time() - began
        results.raise_for_errors()
    return took / len(batch) * 1e6


def batch_rows(count: int) -> Callable[[], Rows]:
    shuffled, apart = prompts(count), prompts(SIBLINGS * count)[::SIBLINGS]
    Random(1).shuffle(shuffled)

    def measured(*args: Any, **options: Any) -> float:
        return asyncio.run(batched(*args, **options))

    return lambda: {
        "without affinity": measured(shuffled, ENDPOINTS, affinity=False),
        "named": measured(shuffled, ENDPOINTS, named=True),
        "found": measured(shuffled, ENDPOINTS),
        "unshared": measured(apart, ENDPOINTS),
        "one endpoint": measured(shuffled, 1),
        "one endpoint, without affinity": measured(shuffled, 1, affinity=False),
    }


def pick_rows(groups: int) -> Callable[[], Rows]:
    """Takes from a queue in which a task of each group waits. After each take the next task of another group is added."""

    def task_of(group: int) -> Task:
        task = Task(None, None, 5, None, None, group)  # type: ignore[arg-type]
        task.prefix = Prefix((1, 2 + group), (2000.0, 8000.0), 9000.0, named=True)
        return task

    def picked() -> Rows:
        sources = [Source(f"e{number}", Random(number)) for number in range(ENDPOINTS)]
        queue = AffineQueue(map(task_of, range(groups)))
        holders = Holders()
        for _ in range(groups):
            queue.form_groups(groups, holders)
        gc.collect()
        took, most = 0.0, min(20_000, groups)
        for number in range(most):
            queue.append(task_of(groups + number))
            source = sources[number % ENDPOINTS]
            began = time.process_time()
            task = queue.take(source, groups, holders)
            took += time.process_time() - began
            assert task.prefix is not None
            source.prefix_cache.use(0.0, task.prefix)
            holders.add(task.prefix, source)
        return {f"{groups:,} groups": took / most * 1e6}

    return picked


def rounds(args: argparse.Namespace) -> dict[str, list[Rows]]:
    small = args.quick
    parts = {
        "scheduler": scheduler_rows(0.05 if small else 2.0),
        "prompt": prompt_rows(300 if small else 6000),
        "batch": batch_rows(300 if small else 9000),
        "pick": pick_rows(1000 if small else GROUPS),
    }
    measured: dict[str, list[Rows]] = {name: [] for name in parts}
    for _ in range(args.rounds):
        for name, part in parts.items():
            measured[name].append(part())
    return measured


def report(parts: dict[str, list[Rows]]) -> str:
    """The table of one run."""
    rows = []
    for part, measured in parts.items():
        base = next(iter(measured[0]))
        for name in measured[0]:
            more = median(each[name] - each[base] for each in measured)
            rows.append((part, name, f"{median(each[name] for each in measured):.1f}", "" if name == base else f"{more:+.1f}"))
    return table(("part", "row", "us", "more"), rows)


def main() -> None:
    args = arguments()
    if args.markdown:
        run = load(args.json)
        rewrite_section(PAGE, "prefix-cost", f"Measured on {describe(run['machine'])} {run['rounds']} rounds.\n\n{report(run['parts'])}")
        return
    run = {"machine": machine(), "rounds": args.rounds, "parts": rounds(args)}
    save(args.json, run)
    print(report(run["parts"]))


def arguments() -> argparse.Namespace:
    parser = command(__doc__, "small batches, one round")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="rounds (default %(default)s)")
    args = parsed(parser)
    if args.quick:
        args.rounds = 1
    return args


if __name__ == "__main__":
    main()
