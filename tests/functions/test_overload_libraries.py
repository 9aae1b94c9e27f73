"""The exceptions that real libraries raise for a real answer on loopback. A library that is not installed is skipped."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import qreward
from qreward.functions.calls import Overload, overload_of

LIMIT = {"error": {"message": "Rate limit reached for requests", "type": "requests", "param": None, "code": "rate_limit_exceeded"}}
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "too many requests"}]}


class Handler(BaseHTTPRequestHandler):
    """Answers with the status that the path begins with."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status = self.path.split("/")[1]
        body = json.dumps(LIMIT).encode()
        self.send_response(int(status))
        for field, value in {
            "Content-Type": "application/json",
            "Content-Length": len(body),
            "Retry-After": 2,
            "Connection": "close",
        }.items():
            self.send_header(field, str(value))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - http.server's name

    def log_message(self, *_: object) -> None: ...


class Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, address: Any) -> None:
        """Tells of what is wrong here, and not of clients that leave before they have read all."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, address)


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    """A server that has no room."""
    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def raised(make: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is
        make()
    return caught.value


def check(fetch: Callable[[str], object], base: str) -> None:
    """Overload with its wait for each status of it, none for others or a used-up account."""
    for status in (429, 503, 529):
        assert overload_of(raised(lambda status=status: fetch(f"{base}/{status}/limit"))) == Overload(2.0), status  # type: ignore[misc]
    assert overload_of(raised(lambda: fetch(f"{base}/404/limit"))) is None


@pytest.mark.parametrize("name", ["httpx", "httpx2"])
def test_httpx(name: str, base: str) -> None:
    httpx = pytest.importorskip(name)
    check(lambda url: httpx.get(url, trust_env=False).raise_for_status(), base)

    def streamed() -> None:
        with httpx.stream("GET", f"{base}/429/limit", trust_env=False) as response:
            response.raise_for_status()

    assert overload_of(raised(streamed)) == Overload(2.0)


def test_aiohttp(base: str) -> None:
    aiohttp = pytest.importorskip("aiohttp")

    async def fetch(url: str) -> None:
        async with aiohttp.ClientSession(raise_for_status=True) as session, session.get(url):
            pass

    check(lambda url: asyncio.run(fetch(url)), base)


def test_requests(base: str) -> None:
    requests = pytest.importorskip("requests")
    check(lambda url: requests.get(url, timeout=10).raise_for_status(), base)
    with requests.get(f"{base}/429/limit", timeout=10, stream=True) as response:
        assert overload_of(raised(response.raise_for_status)) == Overload(2.0)
        assert response._content is False, "it was read"


def test_openai(base: str) -> None:
    openai = pytest.importorskip("openai")

    def call(url: str) -> None:
        with openai.OpenAI(api_key="none", base_url=url, max_retries=0) as client:
            client.chat.completions.create(**CHAT)

    check(call, base)
    assert isinstance(raised(lambda: call(f"{base}/429/limit")), openai.RateLimitError)


def test_nothing_of_the_libraries_is_patched() -> None:
    httpx, openai = pytest.importorskip("httpx"), pytest.importorskip("openai")
    assert [getattr(qreward, name) for name in qreward.__all__], "all of it is loaded"
    for function, module in (
        (httpx.Response.json, httpx._models),
        (httpx._content.encode_json, httpx._content),
        (openai.resources.embeddings.AsyncEmbeddings.create, openai.resources.embeddings),
    ):
        assert inspect.unwrap(function).__code__.co_filename == function.__code__.co_filename == module.__file__


def test_anthropic(base: str) -> None:
    anthropic = pytest.importorskip("anthropic")

    def call(url: str, **settings: Any) -> None:
        with anthropic.Anthropic(api_key="none", base_url=url, max_retries=0) as client:
            answer = client.messages.create(max_tokens=1, **CHAT, **settings)
            for _ in answer:  # a stream raises as it is read
                pass

    check(call, base)
