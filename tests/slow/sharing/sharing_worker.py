"""One process of many that share: it sends all that its share allows, without end. ``python sharing_worker.py NUMBER SPEC``."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qreward import Endpoint, QRewardClient


def requests(model: str, number: int) -> Iterator[list[dict[str, str]]]:
    """Work without end; all prompts of a model are equally long."""
    while True:
        yield [{"role": "user", "content": f"{model} {number} {'judge this '.ljust(200, '.')}"}]


async def work(number: int, spec: dict[str, Any], until: Any = None) -> None:
    """Send until we are stopped, and note now and then how it stands."""
    async with QRewardClient([Endpoint(**endpoint) for endpoint in spec["endpoints"]]) as client:
        models = [endpoint["models"][0] for endpoint in spec["endpoints"]]
        bulks = [
            asyncio.ensure_future(client.batch_chat_completion(requests(model, number), model, keep_results=False)) for model in models
        ]
        try:
            while until is None or not until():
                await asyncio.sleep(1.0)
                tell(client, number, spec)
        finally:
            for bulk in bulks:
                bulk.cancel()
            await asyncio.gather(*bulks, return_exceptions=True)


def tell(client: QRewardClient, number: int, spec: dict[str, Any]) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    stats = client.stats()
    line = {
        "at": time.monotonic(),
        "pid": os.getpid(),
        "cpu": used.ru_utime + used.ru_stime,
        "sharing": {name: one.state.sharing for name, one in stats.items() if one.state is not None},
        "failed": sum(one.failed for one in stats.values()),
    }
    with Path(spec["notes"], f"{number}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    asyncio.run(work(int(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())))
