"""Run by a test: one endpoint in two event loops of a process, and in a forked child."""

from __future__ import annotations

import asyncio
import os

from shared_tools import completion
from transport_server import Server, always, answer

from qreward.codecs.base import WireRequest
from qreward.codecs.chat import CHAT
from qreward.scheduler.outcome import Answer
from qreward.settings.policies import Endpoint
from qreward.transport.backend import HttpBackend


async def serve_and_ask(who: str) -> None:
    async with Server(always(answer(completion()))) as server:
        # the object is made once, by the parent; only where it points to is the loop's own
        object.__setattr__(ENDPOINT, "base_url", server.url)
        backend = HttpBackend()
        outcome = await backend.send(ENDPOINT, WireRequest(CHAT, "judge-7b", [{"role": "user", "content": "?"}], {}, None))
        await backend.aclose()
    print(who, "ok" if isinstance(outcome, Answer) else outcome, flush=True)


ENDPOINT = Endpoint("http://127.0.0.1:1/v1", proxy="")
asyncio.run(serve_and_ask("first"))
asyncio.run(serve_and_ask("second"))
if (child := os.fork()) == 0:
    asyncio.run(serve_and_ask("child"))
    os._exit(0)
os.waitpid(child, 0)
