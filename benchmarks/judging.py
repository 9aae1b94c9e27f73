"""CPU time of a judged item: ``Judge.batch_score`` beside a bulk of the same messages, and beside a judge written by hand.

By hand is the openai SDK, ``json.loads`` and a semaphore. All ask the same messages of one fake endpoint in a child process, 64 at a
time, and take turns in each round; a ratio is taken within a round. Messages are made before, but for the judge, which makes its own.

    python benchmarks/judging.py --json judging.json               # the table, a few minutes
    python benchmarks/judging.py --json judging.json --markdown    # nothing is measured: docs/benchmarks.md from that file
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
from pathlib import Path
from typing import Any

from _pages import PAGE, describe, machine, rewrite_section, table
from _rounds_report import spread
from openai import AsyncOpenAI
from openai.types.shared_params import ResponseFormatJSONObject

from qreward import Endpoint, Limits, QRewardClient
from qreward.judge import Judge
from qreward.testing import FakeEndpoint, FakeFleet

MODEL, IN_FLIGHT = "judge-7b", 64
PARAMS: dict[str, Any] = {"temperature": 0, "max_tokens": 512}
SERVER = FakeEndpoint("judge", responder="judge")
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
    """Items, and the messages that the judge makes of them."""

    items: list[Item]
    messages: list[Messages]


@dataclass(frozen=True)
class Way:
    """One row.

    Attributes:
        name: as the table calls it.
        run: judges all of the work; how many items came out right.
        share: of the items, as the dear ones need fewer.
    """

    name: str
    run: Callable[[Work], Awaitable[int]]
    share: float = 1.0


BULK, THRICE, JUDGE, HAND = "batch_chat_completion", "the same, each three times", "Judge.batch_score", "by hand"
MAJORITY, MEAN = "Judge, samples=3, majority", "Judge, samples=3, mean"
BESIDE = {BULK: BULK, JUDGE: BULK, THRICE: BULK, MAJORITY: THRICE, MEAN: THRICE, HAND: JUDGE}
"""The rows, and with which other each is compared."""


def work_of(count: int, judge: Judge) -> Work:
    items = [(PROMPT.format(index=index), RESPONSE.format(index=index), f"{index / 9:g} minutes") for index in range(900, 900 + count)]
    fields = ("prompt", "response", "reference")
    return Work(items, [judge._points.asks(dict(zip(fields, item, strict=True)))[0].messages for item in items])


def ways(client: QRewardClient, sdk: AsyncOpenAI) -> list[Way]:
    """All rows, over the one endpoint."""
    usual = {"model": MODEL, **PARAMS}

    def bulk(times: int) -> Callable[[Work], Awaitable[int]]:
        async def run(work: Work) -> int:
            asked = [messages for messages in work.messages for _ in range(times)]
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
    ]


def by_hand(sdk: AsyncOpenAI) -> Callable[[Work], Awaitable[int]]:
    """As users of trainers write it."""

    async def run(work: Work) -> int:
        gate, form = asyncio.Semaphore(IN_FLIGHT), ResponseFormatJSONObject(type="json_object")

        async def one(messages: Any) -> float:
            async with gate:
                answer = await sdk.chat.completions.create(model=MODEL, messages=messages, response_format=form, **PARAMS)
            return float(json.loads(answer.choices[0].message.content or "")["score"]) / 10

        return sum(score == 0.0 for score in await asyncio.gather(*map(one, work.messages)))

    return run


async def measured(way: Way, whole: Work, fleet: FakeFleet) -> dict[str, float]:
    """CPU time of an item in microseconds, and the requests that it took. Raises ``SystemExit`` if an item came out wrong."""
    count = max(1, round(len(whole.items) * way.share))
    work, before = Work(whole.items[:count], whole.messages[:count]), fleet.seen(SERVER.name).requests
    gc.collect()
    begin = time.process_time()
    right = await way.run(work)
    spent = time.process_time() - begin
    if right != count:
        raise SystemExit(f"{way.name}: {count - right} of {count} items were not judged, or wrongly")
    return {"us": spent / count * 1e6, "requests": (fleet.seen(SERVER.name).requests - before) / count}


async def measure(rounds: int, items: int) -> list[dict[str, dict[str, float]]]:
    """One record a round: way -> figures. What is measured first is not kept: it opens connections and finds out what the server takes."""
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(FakeFleet([SERVER], process=True))
        url, limits = fleet.urls[SERVER.name], Limits(max_concurrency=IN_FLIGHT, adaptive=False)
        client = await stack.enter_async_context(QRewardClient([Endpoint(url, limits=limits, proxy="")]))
        sdk = await stack.enter_async_context(AsyncOpenAI(base_url=url, api_key="none"))
        all_ways, work = ways(client, sdk), work_of(items, Judge(client, model=MODEL))
        records = []
        for number in range(-1, rounds):
            turned = all_ways[number % len(all_ways) :] + all_ways[: number % len(all_ways)]
            records.append({way.name: await measured(way, work, fleet) for way in turned})
    return records[1:]


def report(records: Sequence[dict[str, dict[str, float]]]) -> str:
    """One row a way: medians over the rounds, with the least and the most."""
    rows = []
    for name, beside in BESIDE.items():
        costs = [record[name]["us"] for record in records]
        ratios = [record[name]["us"] / record[beside]["us"] for record in records]
        requests = spread([record[name]["requests"] for record in records], "{:.2f}")
        rows.append([name, spread(costs, "{:.0f}"), requests, spread(ratios, "{:.2f}"), beside])
    return table(["way", "us an item", "requests an item", "ratio", "to"], rows)


def section(run: dict[str, Any]) -> str:
    """What the page says of a run."""
    about = f"Medians of {run['rounds']} rounds with {run['items']:,} items (least-most), measured on {describe(run['machine'])}"
    return f"{about}\n\n{report(run['records'])}"


def main() -> None:
    args = arguments()
    if args.markdown:
        rewrite_section(PAGE, "judging", section(json.loads(args.json.read_text(encoding="utf-8"))))
        return
    records = asyncio.run(measure(args.rounds, args.items))
    run = {"machine": machine(), "rounds": args.rounds, "items": args.items, "records": records}
    if args.json:
        args.json.write_text(json.dumps(run, indent=1), encoding="utf-8")
    print(report(records))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="how often all is measured (default %(default)s)")
    parser.add_argument("--items", type=int, default=2000, metavar="N", help="items of a measurement (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there")
    parser.add_argument("--markdown", action="store_true", help="measure nothing; write docs/benchmarks.md from the file of --json")
    parser.add_argument("--quick", action="store_true", help="one round of 16 items")
    args = parser.parse_args()
    if args.markdown and not args.json:
        parser.error("--markdown needs --json PATH, the file to read")
    if args.quick:
        args.rounds, args.items = 1, 16
    return args


if __name__ == "__main__":
    main()
