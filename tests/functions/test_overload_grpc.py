"""What gRPC says of overload: the code that a real server refuses with."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Iterator
from typing import Any

import pytest

from qreward.functions.overload import Overload, overload_of


class Server:
    """A gRPC server on loopback that refuses with a given code."""

    def __init__(self, grpc: Any) -> None:
        self.grpc = grpc
        self.code = grpc.StatusCode.OK
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
        method = grpc.unary_unary_rpc_method_handler(self._refuse)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("judge.Judge", {"Score": method}),))
        self._address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _refuse(self, request: bytes, context: Any) -> None:
        context.abort(self.code, "too many requests")

    def stop(self) -> None:
        self._server.stop(None).wait()

    def errors(self, code: str) -> list[Exception]:
        """What the blocking and the asynchronous client raise."""
        self.code = self.grpc.StatusCode[code]
        return [self._blocking(), asyncio.run(self._asynchronous())]

    def _blocking(self) -> Exception:
        with self.grpc.insecure_channel(self._address) as channel, pytest.raises(self.grpc.RpcError) as caught:
            channel.unary_unary("/judge.Judge/Score")(b"", timeout=30)
        return caught.value

    async def _asynchronous(self) -> Exception:
        async with self.grpc.aio.insecure_channel(self._address) as channel:
            with pytest.raises(self.grpc.RpcError) as caught:
                await channel.unary_unary("/judge.Judge/Score")(b"", timeout=30)
        return caught.value


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    grpc = pytest.importorskip("grpc")
    pytest.importorskip("grpc.aio")
    running = Server(grpc)
    yield running
    running.stop()


def test_what_a_server_says(server: Server) -> None:
    table = [("RESOURCE_EXHAUSTED", Overload()), ("UNAVAILABLE", Overload()), ("INTERNAL", None), ("DEADLINE_EXCEEDED", None)]
    found = [(code, [overload_of(error) for error in server.errors(code)]) for code, _ in table]
    assert found == [(code, [expected] * 2) for code, expected in table]


def test_the_error_of_google_api_core_counts_by_its_status(server: Server) -> None:
    exceptions = pytest.importorskip("google.api_core.exceptions")
    for error in server.errors("RESOURCE_EXHAUSTED"):
        assert overload_of(exceptions.from_grpc_error(error)) == Overload()
    assert overload_of(exceptions.TooManyRequests("x")) == Overload()
    assert overload_of(exceptions.NotFound("x")) is None
