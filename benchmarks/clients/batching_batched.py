"""batched with its defaults: it checks for items every 5 ms, unless a full batch waits. It runs one batch at a time."""

from __future__ import annotations

from _batching import Body, Job, Queue, main
from batched.aio import AsyncBatchProcessor


def opens(body: Body, job: Job) -> Queue:
    waits = {} if job["wait"] is None else {"timeout_ms": job["wait"] * 1000}
    return Queue(AsyncBatchProcessor(body, batch_size=job["max_batch"], **waits))


if __name__ == "__main__":
    main(opens)
