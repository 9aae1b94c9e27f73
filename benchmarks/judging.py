"""CPU time per judged item: ``Judge.batch_score``, a batch of the same messages, and a judge written by hand.

The judge written by hand uses the openai SDK, ``json.loads`` and a semaphore. All three send the same messages to one fake endpoint in a
child process, 64 at a time. Each round measures all three in turn, and ratios are computed within a round. The messages are built before
the measurement, except by ``Judge``, which builds its own messages.

    python benchmarks/judging.py --json judging.json               # the table, a few minutes
    python benchmarks/judging.py --json judging.json --markdown    # measures nothing; writes docs/benchmarks.md from that file
    python benchmarks/judging.py --quick                           # seconds
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from _command import command, load, parsed, save
from _pages import PAGE, describe, machine, rewrite_section, table
from _rounds_report import spread
from openai import AsyncOpenAI
from openai.types.shared_params import ResponseFormatJSONObject

from qreward import Endpoint, Limits, QRewardClient
from qreward.judge import Criterion, Judge, Rubric
from qreward.testing import FakeEndpoint, FakeFleet

MODEL, IN_FLIGHT = "judge-7b", 64
PARAMS: dict[str, Any] = {"temperature": 0, "max_tokens": 512}
SERVER = FakeEndpoint("judge", responder="judge", decisions=True)
CRITERIA = Rubric([Criterion(f"c{number}", f"The answer meets condition {number} of the task.") for number in range(10)])
LEVELS = Rubric([Criterion(f"c{place}", f"How well is condition {place} met?", levels=["badly", "partly", "fully"]) for place in range(10)])
PROMPT = (
    "A tank holds {index} litres. It is filled at 12 litres a minute and leaks 3. How long until it is full, and how long without the leak?"
)
RESPONSE = (
    "The net rate is 12 - 3 = 9 litres a minute, so the tank is full after {index} / 9 minutes. Without the leak it would take {index} / "
    "12 minutes, which is three quarters of the first time. Therefore the leak costs a quarter of the time, or, said the other way round, "
    "filling takes a third longer than it would have to."
)
Item = tuple[str, str, str]
Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Work:
    """Items, with the messages that a judge builds from them if the model writes, and the text that it builds if the model decides."""

    items: list[Item]
    messages: list[Messages]
    decided: list[Messages]


@dataclass(frozen=True)
class Way:
    """One row of the table.

    Attributes:
        name: its name in the table.
        run: judges all items; returns the number of correct results.
        share: share of the items that it judges; less than 1 for expensive rows.
    """

    name: str
    run: Callable[[Work], Awaitable[int]]
    share: float = 1.0


BULK, THRICE, JUDGE, HAND = "batch_chat_completion", "the same, each three times", "Judge.batch_score", "by hand"
MAJORITY, MEAN = "Judge, samples=3, majority", "Judge, samples=3, mean"
PLAIN, DECIDED, LEVELLED = "the decided text, batch_chat_completion", "Judge, ten criteria decided", "the same, of three levels each"
SINGLE, ALONE = "the decided text, chat_completion", "Judge.score, ten criteria decided"
BESIDE = {
    BULK: BULK, JUDGE: BULK, THRICE: BULK, MAJORITY: THRICE, MEAN: THRICE, HAND: JUDGE,
    PLAIN: PLAIN, DECIDED: PLAIN, LEVELLED: PLAIN, SINGLE: SINGLE, ALONE: SINGLE,
}  # fmt: skip
"""Maps each row to the row with which it is compared."""
DECIDING = (PLAIN, DECIDED, LEVELLED, SINGLE, ALONE)


def work_of(count: int, judge: Judge, decider: Judge) -> Work:
    items = [(PROMPT.format(index=index), RESPONSE.format(index=index), f"{index / 9:g} minutes") for index in range(900, 900 + count)]
    fields = ("prompt", "response", "reference")
    inputs = [
        [each._requests.item(dict(zip(fields, item, strict=True)), limits=(most,), pairs=False).calls[0].inputs for item in items]
        for each, most in ((judge, 0), (decider, len(CRITERIA.criteria)))
    ]
    return Work(items, inputs[0], [[{"role": "user", "content": each.input}] for each in inputs[1]])


def ways(client: QRewardClient, sdk: AsyncOpenAI) -> list[Way]:
    """Return all rows. They use the same endpoint."""
    usual = {"model": MODEL, **PARAMS}

    def bulk(times: int, messages_of: Callable[[Work], list[Messages]] = lambda work: work.messages) -> Callable[[Work], Awaitable[int]]:
        async def run(work: Work) -> int:
            asked = [messages for messages in messages_of(work) for _ in range(times)]
            answers = await client.batch_chat_completion(asked, **usual)
            return sum(bool(text) for text in answers.texts()) // times

        return run

    def judged(**settings: Any) -> Callable[[Work], Awaitable[int]]:
        judge = Judge(client, **usual, **settings)

        async def run(work: Work) -> int:
            return sum(result.value.score == 0.0 for result in await judge.batch_score(work.items))

        return run

    return [
        Way(BULK, bulk(1)),
        Way(JUDGE, judged()),
        Way(THRICE, bulk(3)),
        Way(MAJORITY, judged(samples=3)),
        Way(MEAN, judged(samples=3, settle="mean")),
        Way(HAND, by_hand(sdk), share=0.25),
        Way(PLAIN, bulk(1, lambda work: work.decided)),
        *ways_of_deciding(client),
    ]


def ways_of_deciding(client: QRewardClient) -> list[Way]:
    """Return the rows of decisions, and of single calls without a judge for comparison."""
    decider = deciding(client, CRITERIA)

    async def single(work: Work) -> int:
        async def one(messages: Messages) -> bool:
            return bool((await client.chat_completion(messages, model=MODEL, **PARAMS)).choices)

        return await in_turns(one, work.decided)

    def decided(rubric: Rubric) -> Callable[[Work], Awaitable[int]]:
        judge = deciding(client, rubric)

        async def run(work: Work) -> int:
            return sum(len(result.value.criteria or ()) == len(rubric.criteria) for result in await judge.batch_score(work.items))

        return run

    async def alone(work: Work) -> int:
        async def one(item: Item) -> bool:
            return len((await decider.score(item[0], item[1], reference=item[2])).criteria or ()) == len(CRITERIA.criteria)

        return await in_turns(one, work.items)

    return [Way(DECIDED, decided(CRITERIA)), Way(LEVELLED, decided(LEVELS)), Way(SINGLE, single), Way(ALONE, alone)]


def deciding(client: QRewardClient, rubric: Rubric) -> Judge:
    """Return a judge that asks for decisions on all criteria."""
    return Judge(client, model=MODEL, method="decide", rubric=rubric)


async def in_turns(one: Callable[[Any], Awaitable[bool]], inputs: Sequence[Any]) -> int:
    """Make a call for each input, ``IN_FLIGHT`` at a time. Returns how many returned True."""
    waiting = iter(inputs)

    async def worker() -> int:
        return sum([await one(each) for each in waiting])

    return sum(await asyncio.gather(*(worker() for _ in range(IN_FLIGHT))))


def by_hand(sdk: AsyncOpenAI) -> Callable[[Work], Awaitable[int]]:
    """Return a judge as users of trainers write it by hand."""

    async def run(work: Work) -> int:
        gate, form = asyncio.Semaphore(IN_FLIGHT), ResponseFormatJSONObject(type="json_object")

        async def one(messages: Any) -> float:
            async with gate:
                answer = await sdk.chat.completions.create(model=MODEL, messages=messages, response_format=form, **PARAMS)
            return float(json.loads(answer.choices[0].message.content or "")["score"]) / 10

        return sum(score == 0.0 for score in await asyncio.gather(*map(one, work.messages)))

    return run


async def measured(way: Way, whole: Work, fleet: FakeFleet) -> dict[str, float]:
    """Return the CPU microseconds and the requests per item. Raises ``SystemExit`` if a result is missing or wrong."""
    count = max(1, round(len(whole.items) * way.share))
    work, before = Work(whole.items[:count], whole.messages[:count], whole.decided[:count]), fleet.seen(SERVER.name).requests
    gc.collect()
    begin = time.process_time()
    right = await way.run(work)
    spent = time.process_time() - begin
    if right != count:
        raise SystemExit(f"{way.name}: {count - right} of {count} items were not judged, or wrongly")
    return {"us": spent / count * 1e6, "requests": (fleet.seen(SERVER.name).requests - before) / count}


async def measure(rounds: int, items: int, only: Sequence[str] = ()) -> list[dict[str, dict[str, float]]]:
    """Return one record per round, which maps each way to its figures. ``only`` selects some ways.

    The first round is discarded: it opens the connections and learns the limits.
    """
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(FakeFleet([SERVER], process=True))
        url, limits = fleet.urls[SERVER.name], Limits(max_concurrency=IN_FLIGHT, adaptive=False)
        client = await stack.enter_async_context(QRewardClient([Endpoint(url, limits=limits, proxy="", decisions="openai")]))
        sdk = await stack.enter_async_context(AsyncOpenAI(base_url=url, api_key="none"))
        all_ways = [way for way in ways(client, sdk) if not only or way.name in only]
        work = work_of(items, Judge(client, model=MODEL), deciding(client, CRITERIA))
        records = []
        for number in range(-1, rounds):
            turned = all_ways[number % len(all_ways) :] + all_ways[: number % len(all_ways)]
            records.append({way.name: await measured(way, work, fleet) for way in turned})
    return records[1:]


def report(records: Sequence[dict[str, dict[str, float]]]) -> str:
    """Return a table with a row per way: medians over the rounds, with minimum and maximum."""
    rows = []
    for name, beside in BESIDE.items():
        if name not in records[0]:
            continue
        costs = [record[name]["us"] for record in records]
        ratios = [record[name]["us"] / record[beside]["us"] for record in records]
        requests = spread([record[name]["requests"] for record in records], "{:.2f}")
        rows.append([name, spread(costs, "{:.0f}"), requests, spread(ratios, "{:.2f}"), beside])
    return table(["way", "us an item", "requests an item", "ratio", "to"], rows)


def section(run: dict[str, Any]) -> str:
    """Return the section of the page for a run."""
    about = f"Medians of {run['rounds']} rounds with {run['items']:,} items (least-most), measured on {describe(run['machine'])}"
    return f"{about}\n\n{report(run['records'])}"


def main() -> None:
    args = arguments()
    if args.markdown:
        rewrite_section(PAGE, "judging", section(load(args.json)))
        return
    records = asyncio.run(measure(args.rounds, args.items, DECIDING if args.deciding else ()))
    run = {"machine": machine(), "rounds": args.rounds, "items": args.items, "records": records}
    save(args.json, run)
    print(report(records))


def arguments() -> argparse.Namespace:
    parser = command(__doc__, "one round of 16 items")
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="how often all is measured (default %(default)s)")
    parser.add_argument("--items", type=int, default=2000, metavar="N", help="items of a measurement (default %(default)s)")
    parser.add_argument("--deciding", action="store_true", help="measure judges that decide only, beside plain calls with the same text")
    args = parsed(parser)
    if args.quick:
        args.rounds, args.items = 1, 16
    return args


if __name__ == "__main__":
    main()
