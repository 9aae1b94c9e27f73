"""Connections of endpoints that are replaced or removed are closed, each when its last request has ended."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from shared_tools import PATIENCE, completion
from stream_tools import MESSAGES, call
from transport_server import Connection, Request, Server, always, answer, backend_to, endpoint_of, hang

from qreward import QRewardClient, RewardModel
from qreward.scheduler.outcome import Answer, Failure
from qreward.settings.client import ClientConfig
from qreward.settings.policies import Endpoint, Limits, Timeouts
from qreward.transport.backend import ChatStream, HttpBackend

OK = answer(completion("fine"))


def connections(backend: HttpBackend) -> int:
    return len(backend._connections) + len(backend._dismissed)


async def all_closed(backend: HttpBackend, server: Server) -> None:
    """Wait until the server has seen all its connections being closed, and the backend has forgotten them."""
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(connection.gone.wait() for connection in server.connections))
        await asyncio.gather(*filter(None, backend._dismissed.values()))
    await asyncio.sleep(0)
    assert not backend._dismissed


async def test_an_endpoint_that_is_not_kept_closes_its_connections_and_may_come_back() -> None:
    async with backend_to(always(OK)) as (server, endpoint, backend):
        await backend.send(endpoint, call())
        backend.keep([])
        backend.keep([])
        await all_closed(backend, server)
        backend.keep([endpoint])
        for _ in range(2):
            assert isinstance(await backend.send(endpoint, call()), Answer)
        assert len(server.connections) == 2


async def test_what_is_still_sent_to_an_endpoint_that_is_not_kept_is_answered_and_leaves_nothing() -> None:
    async with backend_to(always(OK)) as (server, endpoint, backend):
        backend.keep([])
        for _ in range(3):
            assert isinstance(await backend.send(endpoint, call()), Answer)
        await all_closed(backend, server)
        assert len(server.connections) == 3
    async with backend_to(always(answer(b"{}", status=400))) as (server, endpoint, backend):
        assert isinstance(await backend.stream(endpoint, call()), Failure)
        backend.keep([])
        await all_closed(backend, server)


async def test_closing_the_backend_leaves_no_task_for_requests_that_it_ends() -> None:
    """Also for one that was sent when its endpoint was not kept any more."""
    for late in (False, True):
        async with backend_to(hang) as (server, endpoint, backend), asyncio.timeout(PATIENCE):
            if late:
                backend.keep([])
            asked = asyncio.ensure_future(backend.send(endpoint, call()))
            await server.until(1)
            backend.keep([])
            before = asyncio.all_tasks()
            await backend.aclose()
            assert isinstance(await asked, Failure)
            assert asyncio.all_tasks() <= before


async def test_all_requests_under_way_to_an_endpoint_that_is_not_kept_any_more_are_finished_first() -> None:
    begun, go_on = asyncio.Event(), asyncio.Semaphore(0)

    async def slow(_: Request, connection: Connection) -> None:
        begun.set()
        await go_on.acquire()
        await connection.send(OK)

    async with backend_to(slow) as (server, endpoint, backend):
        asked = [asyncio.ensure_future(backend.send(endpoint, call())) for _ in range(3)]
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
            backend.keep([])
            for outcome in asyncio.as_completed(asked):
                go_on.release()
                assert isinstance(await outcome, Answer)
        await all_closed(backend, server)


async def test_an_endpoint_of_another_weight_keeps_its_connections_and_one_of_other_timeouts_does_not() -> None:
    async with Server(always(OK)) as server:
        base = {"name": "a", "proxy": ""}
        table: dict[str, tuple[dict[str, Any], bool]] = {
            "weight": ({"weight": 2.0}, True),
            "models": ({"models": ["other"]}, True),
            "price": ({"price": (1.0, 2.0)}, True),
            "probe": ({"probe": 5.0}, True),
            "refresh": ({"refresh": 5.0}, True),
            "send_priority": ({"send_priority": True}, True),
            "limits": ({"limits": Limits(max_concurrency=5)}, True),
            "timeouts.attempt": ({"timeouts": Timeouts(attempt=3.0)}, True),
            "timeouts.connect": ({"timeouts": Timeouts(connect=3.0)}, False),
            "keepalive": ({"keepalive": 3.0}, False),
            "api_key": ({"api_key": "k"}, False),
            "headers": ({"headers": {"x-team": "a"}}, False),
            "proxy": ({"proxy": server.url.removesuffix("/v1")}, False),
            "verify": ({"verify": False}, False),
            "max_response_bytes": ({"max_response_bytes": 1 << 20}, False),
            "model_names": ({"model_names": {"judge-7b": "other"}}, False),
            "kind": ({"kind": "vllm"}, False),
            "reward": ({"reward": RewardModel(template="{prompt}{response}")}, False),
            "group_header": ({"group_header": "x-group"}, False),
            "decisions": ({"decisions": "chat"}, True),
            "decision_labels": ({"decisions": "generative_scoring", "decision_labels": [1, 2]}, True),
        }
        untold = Endpoint.model_fields.keys() - {what.partition(".")[0] for what in table} - {"base_url", "name", "http_client", "compute"}
        assert untold == set(), "say whether connections depend on it"
        wrong = []
        for what, (change, kept) in table.items():
            backend, before = HttpBackend(), len(server.connections)
            for settings in (base, {**base, **change}):
                endpoint = Endpoint(server.url, **settings)
                backend.keep([endpoint])
                assert isinstance(await backend.send(endpoint, call()), Answer)
            made = len(server.connections) - before
            if (made == 1) is not kept or connections(backend) > 2:
                wrong.append(f"{what}: {made} connections")
            await backend.aclose()
        assert wrong == []


async def test_a_stream_of_an_endpoint_that_is_not_kept_any_more_is_read_to_its_end() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    pieces = [b'data: {"choices": [{"index": 0, "delta": {"content": "%d"}}]}\n\n' % number for number in range(3)]
    go_on = asyncio.Event()

    async def slow(_: Request, connection: Connection) -> None:
        await connection.send(head, pieces[0])
        await go_on.wait()
        await connection.send(*pieces[1:], b"data: [DONE]\n\n")

    async with Server(slow) as server, endpoint_of("aiohttp", server.url) as endpoint:
        backend, texts = HttpBackend(), []
        stream = await backend.stream(endpoint, call())
        assert isinstance(stream, ChatStream)
        async with asyncio.timeout(PATIENCE), aclosing(stream):
            while (chunks := await stream.read()) is not None:
                texts += [chunk.text for chunk in chunks]
                backend.keep([])
                assert connections(backend) == 1
                go_on.set()
        await all_closed(backend, server)
        assert texts == ["0", "1", "2"]
        await backend.aclose()


async def test_a_stream_that_is_closed_twice_counts_once() -> None:
    """Counted twice, it would hide another request that is under way, whose connection would then be closed."""
    async with backend_to(always(OK)) as (_, endpoint, backend):
        streams = [await backend.stream(endpoint, call()) for _ in range(2)]
        in_flight = []
        for stream in (streams[0], streams[0], streams[1], streams[1]):
            assert isinstance(stream, ChatStream)
            await stream.aclose()
            in_flight += [connection.in_flight for connection in backend._connections.values()]
        assert in_flight == [1, 1, 0, 0]


async def test_changes_of_a_client_also_from_another_thread_keep_the_connections_that_can_be_kept_and_no_others() -> None:
    async with Server(always(OK)) as server:
        endpoint = Endpoint(server.url, name="a", models=["judge-7b"], proxy="")
        async with QRewardClient([endpoint]) as client:
            for number in range(6):
                await client.chat_completion(MESSAGES, "judge-7b")
                config = ClientConfig(endpoints=(endpoint.model_copy(update={"weight": 2.0 + number}),))
                if number % 2:
                    await asyncio.to_thread(client.reload, config)
                else:
                    client.reload(config)
                await asyncio.sleep(0)
            backend: Any = client._runtime.engine.driver().backend
            assert (len(server.connections), connections(backend)) == (1, 1)
            for number in range(6):
                client.add_endpoint(Endpoint(server.url, name=f"e{number}", models=[f"m{number}"], proxy=""))
                await client.chat_completion(MESSAGES, f"m{number}")
                client.remove_endpoint(f"e{number}")
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*(connection.gone.wait() for connection in server.connections[1:]))
            assert len(server.connections) == 7
