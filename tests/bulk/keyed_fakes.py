"""What one process of a bulk of rows consists of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bulk_fakes import MODEL, Backend, Sent, endpoint, refused

from qreward import QRewardClient
from qreward.bulk.keyed import JournalFolder, KeyedRun, keyed_settings
from qreward.runtime import runtime_of


async def _answer(sent: Sent) -> Any:
    """At once, but it refuses the text ``bad`` and never answers ``hang``."""
    await asyncio.sleep(3600 if sent.text == "hang" else 0)
    return refused() if sent.text == "bad" else f"re: {sent.text}"


def counting() -> Backend:
    return Backend(_answer)


@asynccontextmanager
async def worker(folder: Path, backend: Backend, scorer: Any = lambda _: None, **options: Any) -> AsyncIterator[KeyedRun]:
    """One process of a bulk: a client, and its part of the folder."""
    settings = keyed_settings({"model": MODEL, **options})
    journals = JournalFolder(folder, settings.shared_settings((), None), retry_failed=settings.retry_failed)
    async with QRewardClient([endpoint()], backend_factory=lambda: backend) as client:
        run = KeyedRun(runtime_of(client), journals, settings, scorer(client))
        yield run
        await run.aclose()
