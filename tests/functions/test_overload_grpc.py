"""What gRPC says of overload: by the code, and by RetryInfo or a pushback in the trailing metadata of a real server."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qreward.functions.overload import Overload, _retry_delay, overload_of

RETRY_INFO = b"\x0a\x08\x08\x02\x10\x80\xca\xb5\xee\x01"
"""``RetryInfo(retry_delay=Duration(seconds=2, nanos=500_000_000))`` as protobuf writes it."""
ALONE = ("google.rpc.retryinfo-bin", RETRY_INFO)
STATUS = b"\x08\x08\x12\x01m\x1a\x36\x0a(type.googleapis.com/google.rpc.RetryInfo\x12\x0a" + RETRY_INFO
"""``Status(code=8, message="m", details=[Any(RetryInfo)])``."""
IN_STATUS = ("grpc-status-details-bin", STATUS)


class Server:
    """A gRPC server on loopback that refuses with a given code and metadata."""

    def __init__(self, grpc: Any) -> None:
        self.grpc = grpc
        self.code = grpc.StatusCode.OK
        self.trailing: tuple[tuple[str, Any], ...] = ()
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
        method = grpc.unary_unary_rpc_method_handler(self._refuse)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("judge.Judge", {"Score": method}),))
        self._address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _refuse(self, request: bytes, context: Any) -> None:
        context.set_trailing_metadata(self.trailing)
        context.abort(self.code, "too many requests")

    def stop(self) -> None:
        self._server.stop(None).wait()

    def errors(self, code: str, *trailing: tuple[str, Any]) -> list[Exception]:
        """What the blocking and the asynchronous client raise."""
        self.code, self.trailing = self.grpc.StatusCode[code], trailing
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
    table: list[tuple[str, tuple[Any, ...], Overload | None]] = [
        ("RESOURCE_EXHAUSTED", (), Overload()),
        ("UNAVAILABLE", (), Overload()),
        ("RESOURCE_EXHAUSTED", (ALONE,), Overload(2.5)),
        ("UNAVAILABLE", (IN_STATUS,), Overload(2.5)),
        ("RESOURCE_EXHAUSTED", (("grpc-retry-pushback-ms", "1500"), ALONE), Overload(1.5)),
        ("RESOURCE_EXHAUSTED", (("retry-pushback-ms", "250"),), Overload(0.25)),
        ("UNAVAILABLE", (("grpc-retry-pushback-ms", "-1"), ALONE), Overload(None, should_retry=False)),
        ("RESOURCE_EXHAUSTED", (("google.rpc.retryinfo-bin", b"\xff\xff"),), Overload()),
        ("INTERNAL", (ALONE,), None),
        ("DEADLINE_EXCEEDED", (), None),
    ]
    found = [(code, trailing, [overload_of(error) for error in server.errors(code, *trailing)]) for code, trailing, _ in table]
    assert found == [(code, trailing, [expected] * 2) for code, trailing, expected in table]


def test_the_error_of_google_api_core_gets_the_wait_of_the_call_behind_it(server: Server) -> None:
    exceptions = pytest.importorskip("google.api_core.exceptions")
    for error in server.errors("RESOURCE_EXHAUSTED", ALONE):
        with pytest.raises(exceptions.ResourceExhausted) as caught:
            raise exceptions.from_grpc_error(error) from error
        assert overload_of(caught.value) == Overload(2.5)
    assert overload_of(exceptions.TooManyRequests("x")) == Overload()
    assert overload_of(exceptions.NotFound("x")) is None


@given(st.integers(0, 2**40), st.integers(0, 999_999_999))
def test_every_delay_is_read_back(seconds: int, nanos: int) -> None:
    details = pytest.importorskip("google.rpc.error_details_pb2")
    duration = pytest.importorskip("google.protobuf.duration_pb2").Duration(seconds=seconds, nanos=nanos)
    written = details.RetryInfo(retry_delay=duration).SerializeToString()
    assert _retry_delay({"google.rpc.retryinfo-bin": written}) == seconds + nanos / 1e9
