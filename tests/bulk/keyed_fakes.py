"""A backend that answers the requests of rows and counts them, and what one process of a bulk consists of."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from qreward import Endpoint, Limits, QRewardClient
from qreward.bulk.folder import JournalFolder
from qreward.bulk.keyed import KeyedRun, keyed_settings
from qreward.errors import BadRequest
from qreward.runtime import runtime_of
from qreward.scheduler.outcome import Answer, Failure, FailureKind

MODEL = "judge-7b"


class Counting:
    """Answers at once, but refuses the text ``bad`` and never answers ``hang``.

    Attributes:
        sent: text -> times that it was sent.
    """

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()

    async def send(self, endpoint: object, call: Any) -> Any:
        text = json.loads(call.codec.encode(call, call.model))["messages"][-1]["content"]
        self.sent[text] += 1
        await asyncio.sleep(3600 if text == "hang" else 0)
        if text == "bad":
            return Failure(FailureKind.REFUSED, BadRequest("the server answered 400: bad", endpoint="a", status_code=400))
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": f"re: {text}"}}
        body = json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice], "usage": usage})
        return Answer(call.codec.decode(body.encode(), call), 10, 5)

    async def aclose(self) -> None:
        """Nothing is open."""


@asynccontextmanager
async def worker(folder: Path, backend: Counting, **options: Any) -> AsyncIterator[KeyedRun]:
    """One process of a bulk: a client, and its part of the folder."""
    settings = keyed_settings({"model": MODEL, **options})
    journals = JournalFolder(folder, settings.shared_settings((), None), retry_failed=settings.retry_failed)
    endpoint = Endpoint("http://a.example/v1", name="a", limits=Limits(max_concurrency=8, adaptive=False))
    async with QRewardClient([endpoint], backend_factory=lambda: backend) as client:
        run = KeyedRun(runtime_of(client), journals, settings)
        yield run
        await run.aclose()


def asked(*texts: str) -> list[dict[str, Any]]:
    return [{"id": f"id of {text}", "prompt": text} for text in texts]


def answers(results: list[Any]) -> list[str | None]:
    """The texts of the answers; None for a row that failed."""
    lines = [json.loads(each.line) if each.ok else None for each in results]
    return [line and line["response"]["body"]["choices"][0]["message"]["content"] for line in lines]
