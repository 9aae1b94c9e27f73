"""Ours, as ``@batch`` or as ``BatchQueue.submit``; ``wait`` None is its default, without any wait."""

from __future__ import annotations

from typing import Any

from _batching import Body, Job, Queue, main

from qreward import BatchQueue, batch
from qreward.testing import run_in_virtual_time


def opens(body: Body, job: Job) -> Queue:
    settings: dict[str, Any] = {"max_batch_size": job["max_batch"], "max_concurrent_batches": job["slots"]}
    if job["wait"] is not None:
        settings["batch_wait_timeout_s"] = job["wait"]
    if job["face"] == "decorator":
        decorated = batch(**settings)(body)
        return Queue(decorated, decorated.close)
    queue = BatchQueue(body, **settings)
    return Queue(queue.submit, queue.close)


if __name__ == "__main__":
    main(opens, run_in_virtual_time)
