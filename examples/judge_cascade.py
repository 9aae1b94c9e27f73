"""A cascade: a small judge scores first, and a strong judge scores the items of which the small judge is not sure.

Run it: ``python examples/judge_cascade.py``.
"""

from __future__ import annotations

import asyncio
import json
from itertools import count
from typing import Any

from connect import MODEL, connect

from qreward.judge import Cascade, Judge
from qreward.testing import FakeEndpoint, Latency

ITEMS = [(f"What is {number} x 7?", str(7 * number)) for number in range(1, 21)]
_calls = count()


def answer(messages: list[Any]) -> str:
    """A fake judge, which is unsure of products above 15 x 7: there its samples differ."""
    unsure = " x 7" in messages[-1]["content"] and int(messages[-1]["content"].split("What is ")[1].split()[0]) > 15
    return json.dumps({"reason": "checked", "score": next(_calls) % 3 * 5 if unsure else 10})


FLEET = (
    FakeEndpoint("small", models=[MODEL], responder=answer, latency=Latency(base=0.01)),
    FakeEndpoint("strong", models=["judge-70b"], responder=lambda _: '{"score": 10}', latency=Latency(base=0.05)),
)


async def main() -> None:
    async with connect(*FLEET) as client:
        small = Judge(client, model=MODEL, samples=3, settle="mean", temperature=1)
        cascade = Cascade({"small": small, "strong": Judge(client, model="judge-70b")}, min_confidence=0.8)
        batch = await cascade.batch_score(ITEMS, timeout=60)
    print(f"decided by {dict(batch.stats.decided_by)}; {batch.stats.escalated:.0%} escalated; mean {sum(batch.scores()) / len(batch):.2f}")


if __name__ == "__main__":
    asyncio.run(main())
