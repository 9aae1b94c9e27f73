"""CPU time without HTTP of a judge whose model decides: the whole client runs, and a transport in the same process answers at once.

Each round measures all rows of the table. The report has the minimum and the median over the rounds, and the ratio to a plain chat call
with the same text in the same round. The cost of HTTP, which all calls have in common, is missing. So the ratios are well above those of
``judging.py``.

    python benchmarks/judging_parts.py --rounds 15 --items 500
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

from _pages import table
from judging import CRITERIA, IN_FLIGHT, LEVELS, MODEL, PARAMS, deciding, in_turns, work_of

from qreward import Endpoint, Limits, QRewardClient
from qreward.codecs.base import Reply
from qreward.judge import Judge
from qreward.transport import connection

USAGE = {"input_tokens": 200, "output_tokens": 10, "total_tokens": 210}
MESSAGE = {"role": "assistant", "content": "The answer meets all conditions. " * 4}
NAMES = ("badly", "partly", "fully")
SPREAD = [{"value": place, "label": name, "probability": (0.25, 0.5, 0.25)[place]} for place, name in enumerate(NAMES)]
YES_NO = {"type": "predicate", "name": None, "probability": 0.8125}
RATED = {"type": "score", "name": None, "score": 1.0, "confidence": 0.5, "probabilities": SPREAD}
WRITTEN = {
    "id": "chat-1",
    "object": "chat.completion",
    "created": 0,
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
}
CHAT = json.dumps({**WRITTEN, "model": MODEL, "usage": {"prompt_tokens": 200, "completion_tokens": 40, "total_tokens": 240}}).encode()
DECIDED, RATINGS = (json.dumps({"model": MODEL, "answers": [row] * 10, "usage": USAGE}).encode() for row in (YES_NO, RATED))


class Answering:
    """A transport that answers at once, with fixed bytes."""

    cap = 1 << 20

    def __init__(self, *_: object) -> None:
        """Ignore the endpoint, which is never reached, and the transport."""

    async def post(self, path: str, body: bytes, headers: Mapping[str, str] | None) -> Reply:  # noqa: ARG002 - as transports have it
        await asyncio.sleep(0)
        return Reply(200, {}, CHAT if path == "/chat/completions" else RATINGS if b'"levels"' in body else DECIDED)

    async def aclose(self) -> None:
        """Do nothing, because nothing is open."""


async def measure(rounds: int, count: int) -> dict[str, list[float]]:
    """Return for each way the CPU microseconds per item of each round. The first round is discarded."""
    endpoint = Endpoint("http://none/v1", limits=Limits(max_concurrency=IN_FLIGHT, adaptive=False), proxy="", decisions="openai")
    async with QRewardClient([endpoint]) as client:
        judges = {"ten criteria": deciding(client, CRITERIA), "ten of three levels": deciding(client, LEVELS)}
        work = work_of(count, Judge(client, model=MODEL), judges["ten criteria"])

        async def chat(messages: Any) -> bool:
            return bool((await client.chat_completion(messages, model=MODEL, **PARAMS)).choices)

        async def batch_chat() -> int:
            return sum(map(bool, (await client.batch_chat_completion(work.decided, model=MODEL, **PARAMS)).texts()))

        ways: dict[str, Callable[[], Awaitable[int]]] = {"batch: chat": batch_chat, "single: chat": lambda: in_turns(chat, work.decided)}
        for name, judge in judges.items():
            ways[f"batch: {name}"], ways[f"single: {name}"] = partial(batch_of, judge, work.items), partial(single_of, judge, work.items)
        costs: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(-1, rounds):
            for name, way in ways.items():
                gc.collect()
                begin = time.process_time()
                if await way() != count:
                    raise SystemExit(f"{name}: not all items were answered")
                costs[name] += [(time.process_time() - begin) / count * 1e6] * (number >= 0)
    return costs


async def batch_of(judge: Judge, items: list[Any]) -> int:
    return sum(result.value.score > 0 for result in await judge.batch_score(items))


async def single_of(judge: Judge, items: list[Any]) -> int:
    async def one(item: Any) -> bool:
        return (await judge.score(item[0], item[1], reference=item[2])).score > 0

    return await in_turns(one, items)


def report(costs: Mapping[str, list[float]]) -> str:
    """Return a table with a row per way."""
    rows = []
    for name, cost in sorted(costs.items()):
        beside = costs[f"{name.partition(':')[0]}: chat"]
        ratio = median(one / other for one, other in zip(cost, beside, strict=True))
        rows.append([name, f"{min(cost):.0f}", f"{median(cost):.0f}", f"{ratio:.2f}"])
    return table(["way", "us an item, least", "median", "ratio to chat"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="how often all is measured (default %(default)s)")
    parser.add_argument("--items", type=int, default=500, metavar="N", help="items of a measurement (default %(default)s)")
    args = parser.parse_args()
    connection.open_transport = Answering  # type: ignore[assignment]
    print(report(asyncio.run(measure(args.rounds, args.items))))


if __name__ == "__main__":
    main()
