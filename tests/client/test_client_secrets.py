"""Keys are sent to their endpoint and shown nowhere: not in a repr, an error, a log, a traceback's words or a warning."""

from __future__ import annotations

import asyncio
import logging
import pickle
import traceback
from typing import Any

import httpx
import pytest
from client_tools import HI, MODEL, Recorder, endpoint, use

from qreward import ConfigError, Endpoint, QRewardClient, QRewardError, Retry, Timeouts

KEY, HEADER, CALL, PROXY = "sk-Kx81-very-secret", "team-token-4471", "per-call-9023", "proxy-pass-5518"
SECRETS = (KEY, HEADER, CALL, PROXY)


def hidden(text: str) -> bool:
    found = [secret for secret in SECRETS if secret in text]
    assert not found, f"{found} in {text!r}"
    return True


def fleet(transport: Any) -> QRewardClient:
    made = Endpoint(
        "http://gpu-0.example/v1",
        name="gpu-0",
        api_key=KEY,
        headers={"x-token": HEADER},
        proxy=f"http://user:{PROXY}@proxy.example",
        http_client=transport,
        timeouts=Timeouts(attempt=0.05),
    )
    return QRewardClient([made], retry=Retry(attempts=2, base=0.001))


def echoes(status: int) -> Any:
    """A server that quotes everything it was sent."""

    def reply(request: httpx.Request) -> httpx.Response:
        said = f"you sent {dict(request.headers)} through {PROXY}"
        return httpx.Response(status, json={"error": {"message": said, "code": KEY}}, headers={"x-request-id": KEY})

    return Recorder(reply)


def raises(error: type[Exception]) -> Any:
    def reply(request: httpx.Request) -> httpx.Response:
        raise error(f"with {dict(request.headers)} through {PROXY}")

    return Recorder(reply)


class Hangs(httpx.AsyncBaseTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(30)
        raise AssertionError("nobody waits that long")


def troubles() -> list[httpx.AsyncBaseTransport]:
    answers = [echoes(status) for status in (200, 400, 401, 404, 500)]
    return [*answers, *map(raises, (httpx.ConnectError, httpx.ReadError, RuntimeError, KeyError)), Hangs()]


def test_no_error_shows_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "qreward")
    for transport in troubles():
        client = fleet(transport)
        with pytest.raises(QRewardError) as caught:
            use(client, lambda client: client.chat_completion(HI, MODEL, extra_headers={"x-call": CALL}, timeout=5))
        error = caught.value
        assert hidden(f"{error} {error!r} {getattr(error, 'attempts', None)!r} {getattr(error, 'request_id', '')}")
        assert hidden("".join(traceback.format_exception(error)))
        assert hidden(repr(pickle.loads(pickle.dumps(error)).__dict__))
        assert hidden(f"{client!r} {client.config!r} {client.stats()!r}")
    assert hidden(caplog.text)


def test_an_error_of_a_setting_or_header_shows_no_secret_beside_it() -> None:
    wrong: list[dict[str, Any]] = [
        {"api_key": f"{KEY}\n"},
        {"headers": {"x-token": f"{HEADER}\r\nx: y"}},
        {"headers": {"bad name": HEADER}},
        {"api_key": 7, "headers": {"x-token": HEADER}},
        {"api_key": KEY, "proxy": f"http://user:{PROXY}@proxy", "modles": ["x"]},
    ]
    for settings in wrong:
        with pytest.raises(ConfigError) as refused:
            QRewardClient([{"base_url": "http://gpu-0.example/v1", **settings}])
        assert hidden("".join(traceback.format_exception_only(refused.value)))
        assert refused.value.__cause__ is None
    with pytest.raises(QRewardError, match="x-call") as caught:
        use(
            QRewardClient([endpoint(Recorder())]),
            lambda client: client.chat_completion(HI, MODEL, extra_headers={"x-call": f"{CALL}\n"}),
        )
    assert hidden(str(caught.value))
