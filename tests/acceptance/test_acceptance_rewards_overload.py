"""More work than a reward server lets in, from our client and from a crowd that heeds no 429: all is scored, in bounded memory."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import aiohttp
from acceptance_tools import in_flight, needs_proc
from reward_servers import MODEL, RewardProcess, is_poison, pair, resident, statuses

from qreward import Limits, QRewardClient

CROWD = 8
LONG = 50_000
"""Characters of a completion that the crowd sends, eight of them in a request."""
SETTINGS = {"max_batch_size": 16, "max_queue": 64, "max_items": 64, "max_pending_bytes": 3_000_000, "max_body_bytes": 2_000_000}


@needs_proc
def test_a_server_that_is_asked_for_too_much_never_fails_nor_grows_and_the_client_gets_all_its_scores() -> None:
    count = 300
    numbers = [number for number in range(count) if not is_poison(number)]

    async def test() -> None:
        server = RewardProcess(0.002, **SETTINGS)
        try:
            await server.start()
            before, peak, crowd = resident(server.pid), 0, asyncio.ensure_future(press(server.url))
            many = Limits(max_concurrency=64, adaptive=False)
            async with QRewardClient([server.endpoint("openrlhf", limits=many)]) as client:
                bulk = asyncio.ensure_future(client.batch_score([pair(number) for number in numbers], MODEL))
                singles = [asyncio.ensure_future(client.score(*pair(number), model=MODEL)) for number in numbers[:60]]
                while not (bulk.done() and all(call.done() for call in singles)):
                    peak = max(peak, resident(server.pid))
                    await asyncio.wait([bulk, *singles], timeout=0.05)
                assert (await bulk).values() == [float(-number) for number in numbers], bulk.result().errors
                assert await asyncio.gather(*singles) == [float(-number) for number in numbers[:60]]
                assert in_flight(client) == 0
            crowd.cancel()
            await asyncio.wait([crowd])
            said = statuses(await server.metrics())
            assert set(said) <= {200, 422, 429, 499}, said  # 422 says that a list is too long, 499 that the crowd went away
            assert min(said[200], said[429]) > 40, said
            assert peak - before < 60_000_000
            code, words = await server.drain()
            assert (code, words) == (0, "")
        finally:
            await server.kill()

    asyncio.run(asyncio.wait_for(test(), 100))


async def press(url: str) -> None:
    """Many at once who send long texts again and again, and come back at once when they are sent away."""
    first, answer = "<user>1 + 1 = ?<assistant>", "The answer is 2."
    body: dict[str, Any] = {"query": [first + "." * LONG + answer] * 8}

    async def push(session: aiohttp.ClientSession) -> None:
        while True:
            with suppress(aiohttp.ClientError):
                async with session.post(f"{url}/get_reward", json=body) as said:
                    await said.read()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.TaskGroup() as group:
        for _ in range(CROWD):
            group.create_task(push(session))
