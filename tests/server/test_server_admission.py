"""Overload, long bodies, slow bodies, callers that leave: always an answer that says what to do, never a 500, and bounded memory."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from urllib.parse import urlsplit

import httpx
import pytest
from server_tools import Lengths, Served, served
from shared_tools import until

from qreward.server import ServerConfig
from qreward.server.app import RewardApp
from qreward.server.bodies import HTTPError
from qreward.testing.virtual_time import run_in_virtual_time

BODY = {"query": ["a"]}


def hint_of(answer: httpx.Response) -> float:
    """Seconds until one may come again; both headers must agree."""
    exact = int(answer.headers["retry-after-ms"]) / 1000
    assert int(answer.headers["retry-after"]) - 1 < exact <= int(answer.headers["retry-after"])
    return exact


async def test_a_full_queue_is_answered_429_with_when_to_come_again_and_nothing_is_lost() -> None:
    scorer = Lengths(held=True)
    async with served(scorer, max_batch_size=2, max_queue=8, max_items=4) as server:
        assert (await server.post("/get_reward", {"query": ["a"] * 5})).status_code == 422  # which can never have room
        callers = [asyncio.ensure_future(server.post("/get_reward", {"query": ["a", "b"]})) for _ in range(60)]
        await until(lambda: sum(caller.done() for caller in callers) == 55)  # 1 batch of 2, 8 waiting
        assert server.service.buffer.waiting == 8
        assert scorer.release is not None
        scorer.release.set()
        answers = await asyncio.gather(*callers)
        assert Counter(answer.status_code for answer in answers) == {200: 5, 429: 55}
        refused = [answer for answer in answers if answer.status_code == 429]
        assert all(hint_of(answer) > 0 and answer.json()["error"]["type"] == "queue_full" for answer in refused)
        assert len(scorer.seen) == 10
        assert server.service.pending == 0
        assert (await server.post("/get_reward", BODY)).status_code == 200


async def test_a_request_beyond_the_rate_is_answered_429_at_once_with_when_to_come_again() -> None:
    async with served(Lengths(), rate=0.25) as server:  # one at once, and the next in four seconds, so a busy machine is soon enough
        assert (await server.post("/get_reward", BODY)).status_code == 200
        refused = await server.post("/get_reward", BODY)
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limited")
        assert 0 < hint_of(refused) <= 4.0
        assert (await server.client.get("/health")).status_code == 200


async def status_of(reader: asyncio.StreamReader) -> int:
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
    return int(head.split()[1])


async def test_a_long_body_is_refused_before_it_ends_whether_its_length_is_announced_or_not_and_its_rest_is_discarded() -> None:
    scorer, chunk = Lengths(), b"3e8\r\n" + b" " * 1000 + b"\r\n"
    ways = [("content-length: 40000", b"", b" " * 40_000), ("transfer-encoding: chunked", chunk * 11, chunk * 29 + b"0\r\n\r\n")]
    async with served(scorer, max_body_bytes=10_000) as server:
        for framing, begun, rest in ways:
            reader, writer = await open_request(server, framing, begun)
            assert await status_of(reader) == 413
            content = json.dumps(BODY).encode()
            writer.write(rest + f"POST /get_reward HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content)
            assert await status_of(reader) == 200
            writer.close()
            await writer.wait_closed()
        assert server.service.pending == 0
        assert scorer.seen == ["a", "a"]
        for length, status in ((10_000, 200), (10_001, 413)):
            assert (await server.client.post("/get_reward", content=json.dumps(BODY).ljust(length))).status_code == status


async def test_a_body_that_is_no_json_or_packed_is_refused() -> None:
    no_json = [b"", b"{", b"\xff\xfe", b'{"query": "\\ud800"}', b'{"a":' * 100_000, b'{"query": NaN}']
    async with served(Lengths()) as server:
        for content, status in [*((content, 400) for content in no_json), (b"3", 422)]:
            answer = await server.client.post("/get_reward", content=content)
            assert (answer.status_code, bool(answer.json()["error"]["message"])) == (status, True), content[:20]
            assert ("infinities" in answer.text) == (b"NaN" in content or b"ud800" in content)
        assert (await server.post("/get_reward", BODY, **{"content-encoding": "gzip"})).status_code == 415


async def open_request(server: Served, framing: str, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request whose body has not come whole."""
    parts = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(f"POST /get_reward HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n".encode() + body)
    await writer.drain()
    return reader, writer


async def test_a_body_that_does_not_come_is_given_up() -> None:
    async with served(Lengths(), body_timeout=0.05) as server:
        reader, writer = await open_request(server, "content-length: 100", b"{")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"connection: close" in answer
        writer.close()
        await writer.wait_closed()
        assert server.service.pending == 0


async def test_bodies_that_are_being_read_share_a_bounded_memory() -> None:
    async with served(Lengths(), max_body_bytes=10_000, max_pending_bytes=10_000) as server:
        _, writer = await open_request(server, "content-length: 9000", b" " * 8_000)
        await until(lambda: server.service.pending == 8_000)
        refused = await server.client.post("/get_reward", content=b" " * 3_000)
        assert refused.status_code == 429
        assert hint_of(refused) > 0
        assert refused.json()["error"]["type"] == "memory_full"
        writer.close()
        await writer.wait_closed()
        await until(lambda: server.service.pending == 0)
        assert (await server.post("/get_reward", BODY)).status_code == 200


async def test_a_caller_that_hangs_up_is_not_scored_and_is_no_error_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    scorer = Lengths(held=True)
    async with served(scorer) as server:
        busy = asyncio.ensure_future(server.post("/get_reward", BODY))
        await until(lambda: scorer.batches)
        content = json.dumps({"query": ["left"]}).encode()
        _, writer = await open_request(server, f"content-length: {len(content)}", content)
        await until(lambda: server.service.buffer.waiting == 1)
        writer.close()
        await writer.wait_closed()
        await until(lambda: server.service.buffer.waiting == 0)
        assert scorer.release is not None
        scorer.release.set()
        assert (await busy).status_code == 200
        assert scorer.seen == ["a"]
        await until(lambda: server.service.active == 0)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_rate_lets_a_second_of_requests_in_at_once_and_its_hint_is_what_is_missing_of_one() -> None:
    async def main() -> None:
        for rate, at_once, seconds in ((0.5, 1, 2.0), (5.0, 5, 0.2)):
            service = RewardApp(Lengths(), ServerConfig(rate=rate))
            for _ in range(at_once):
                service.admit()
            await asyncio.sleep(seconds / 4)
            with pytest.raises(HTTPError) as refused:
                service.admit()
            missing = seconds * 750
            assert refused.value.headers["retry-after"] == str(math.ceil(missing / 1000))
            assert int(refused.value.headers["retry-after-ms"]) in {missing, missing + 1}  # rounded up
            await asyncio.sleep(seconds * 0.75 + 0.001)
            service.admit()
            await service.drain()

    run_in_virtual_time(main())
