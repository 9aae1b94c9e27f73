"""A minimal asyncio queue: a list of futures and one callback, with one slot. No limits, errors, cancellation or context."""

from __future__ import annotations

import asyncio
from typing import Any

from _batching import Body, Job, Queue, main


class Bare:
    """Starts a batch when none is running, and collects items while one is running."""

    def __init__(self, body: Body, max_batch: int) -> None:
        self._body = body
        self._max_batch = max_batch
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._task: asyncio.Task[None] | None = None
        self._woken = False

    async def call(self, item: Any) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append((item, future))
        if not self._woken and self._task is None:
            self._woken = True
            self._loop.call_soon(self._send)
        return await future

    def _send(self, *_: object) -> None:
        self._woken, self._task = False, None
        if self._waiting:
            batch, self._waiting = self._waiting[: self._max_batch], self._waiting[self._max_batch :]
            self._task = self._loop.create_task(self._run(batch))
            self._task.add_done_callback(self._send)

    async def _run(self, batch: list[tuple[Any, asyncio.Future[Any]]]) -> None:
        for (_, future), result in zip(batch, await self._body([item for item, _ in batch]), strict=True):
            future.set_result(result)


def opens(body: Body, job: Job) -> Queue:
    return Queue(Bare(body, job["max_batch"]).call)


if __name__ == "__main__":
    main(opens)
