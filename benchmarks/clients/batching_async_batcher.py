"""async-batcher. ``wait`` None is its default: it waits 10 ms for more items."""

from __future__ import annotations

from functools import partial
from typing import Any

from _batching import Body, Job, Queue, main
from async_batcher.batcher import AsyncBatcher


def opens(body: Body, job: Job) -> Queue:
    class Batcher(AsyncBatcher):  # type: ignore[misc]
        async def process_batch(self, batch: list[Any]) -> list[Any]:
            return await body(batch)

    waits = {} if job["wait"] is None else {"max_queue_time": job["wait"]}
    batcher = Batcher(max_batch_size=job["max_batch"], concurrency=job["slots"], **waits)
    return Queue(batcher.process, partial(batcher.stop, force=True))


if __name__ == "__main__":
    main(opens)
