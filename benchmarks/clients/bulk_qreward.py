"""Ours: one ``batch_chat_completion``, configured with the URLs only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from _bulk import MODEL, Drive, Job, Messages, Tally, main

from qreward import QRewardClient, Result


@asynccontextmanager
async def untuned(job: Job) -> AsyncIterator[Drive]:
    async with QRewardClient(job.urls) as client:

        async def drive(work: list[Messages], tally: Tally) -> None:
            def note(result: Result[Any]) -> None:
                if result.error is None:
                    tally.answer(result.index, result.text)
                else:
                    tally.lose(result.error)

            await client.batch_chat_completion(work, model=MODEL, temperature=0, on_result=note, keep_results=False)

        yield drive


if __name__ == "__main__":
    main(untuned)
