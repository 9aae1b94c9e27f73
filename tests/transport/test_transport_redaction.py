"""A key never shows, whoever says it and wherever: in no message, repr, argument, attribute, pickle or traceback."""

from __future__ import annotations

import html
import json
import pickle
import traceback
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_tools import completion, each
from transport_server import Connection, Request, Server, answer

from qreward.codecs.base import WireRequest
from qreward.codecs.chat import CHAT
from qreward.errors import BadRequest, ConfigError, QRewardError
from qreward.results import AttemptRecord, with_trail
from qreward.scheduler.outcome import Failure
from qreward.settings.policies import Endpoint
from qreward.transport.backend import HttpBackend
from qreward.transport.connection_settings import Secrets, secrets_of

KEY = 'K3y"of\\mine/+=x'
TEAM = "Team-Header-Value-1"
OF_CALL = "Header-Of-This-Call-2"
HEADERS = {"X-Team": TEAM, "X-Scheme": "Token Sch3me-Value"}
ALL = (KEY, TEAM, OF_CALL, "Sch3me-Value")

PRINTABLE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=8, max_size=30)


@given(PRINTABLE, st.text(max_size=20), st.text(max_size=20))
def test_a_secret_is_hidden_wherever_it_stands_and_however_it_is_spelled(secret: str, before: str, after: str) -> None:
    secrets = Secrets([secret])
    for spelled in (secret, json.dumps(secret)[1:-1], quote(secret), quote(secret, safe="")):
        assert spelled not in secrets.hide(before + spelled + after).replace("***", "")
    assert secret not in repr(secrets)


@each(
    "text, expected",
    [
        ("Bearer abcdefgh.ijk", "***"),
        ("authorization: bearer abcdefghijk!", "authorization: ***!"),
        ("key sk-abc***xyz is wrong", "key *** is wrong"),
        ("sk-proj-AbC_123-x is wrong", "*** is wrong"),
        ("task-force", "task-force"),
        ("http://me:pw@proxy:1", "http://***@proxy:1"),
        ("a bearer of news", "a bearer of news"),
    ],
)
def test_what_looks_like_a_key_is_hidden_too(text: str, expected: str) -> None:
    assert Secrets().hide(text) == expected


def test_a_short_key_is_hidden_where_it_stands_alone() -> None:
    secrets = Secrets(["a", "EMPTY"])
    assert secrets.hide("a bad key EMPTY, an EMPTYISH name") == "*** bad key ***, an EMPTYISH name"


def test_the_credentials_of_a_proxy_are_secret_however_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://proxyuser:pass%20word-1@proxy.example:1"
    monkeypatch.setenv("https_proxy", url)
    monkeypatch.delenv("no_proxy", raising=False)
    for setting in (url, None):  # by the setting, and by the environment
        secrets = secrets_of(Endpoint("https://judge.example/v1", proxy=setting))
        hidden = secrets.hide(f"{url} | proxyuser:pass word-1 | pass%20word-1 | pass word-1 | cHJveHl1c2VyOnBhc3Mgd29yZC0x")
        assert hidden == "*** | *** | *** | *** | ***"
        assert secrets.hide("proxyuser at proxy.example") == "proxyuser at proxy.example"
    token = secrets_of(Endpoint("https://judge.example/v1", proxy="http://to%2Bken%2F1@proxy.example:1"))
    assert token.hide("to%2Bken%2F1 | to+ken/1") == "*** | ***"


def test_the_user_and_the_password_of_a_basic_header_are_secret_too() -> None:
    secrets = secrets_of(Endpoint("https://judge.example/v1", headers={"Authorization": "Basic dXNlcjpodW50ZXIycGFzcw=="}))
    assert secrets.hide("bad user:hunter2pass, hunter2pass, dXNlcjpodW50ZXIycGFzcw==") == "bad ***, ***, ***"
    assert secrets_of(Endpoint("https://judge.example/v1", headers={"Authorization": "Basic no-base64"})).hide("no-base64") == "***"


def _says(text: str) -> list[bytes]:
    """Every way in which a server may give a text back."""
    told = {"error": {"message": f"bad {text}", "type": text, "code": text}}
    return [
        *(answer(told, status=status) for status in (400, 401, 503)),
        answer({"detail": [{"loc": [text], "msg": text}]}, status=422),
        answer(f"<p>{text}</p>".encode(), status=500),
        answer(f"<p>{text[:5]}<b></b>{text[5:]}</p>".encode(), status=500),
        answer(("x" * (290 - len(text)) + text * 3).encode(), status=500),
        answer(f"<p>{html.escape(text)}</p>".encode(), status=500),
        answer(json.dumps(text).encode(), status=400),
        answer(told),
        answer({"error": text}),
        answer(completion(error=text)),
        answer(text.encode()),
        answer(b"x" * 195 + text.encode()),
        answer(b'{"choices": [' + json.dumps(text).encode()),
        answer(
            b"",
            status=307,
            location=f"http://{text.lower().replace(chr(34), '').replace(chr(92), '').replace('/', '')}.example/{quote(text)}",
        ),
        answer(b"", status=500, x_request_id=text.encode("latin-1").decode()),
        b"HTTP/1.1 200 OK\r\ncontent-length: " + text.encode() + b"\r\n\r\n",
        b"HTTP/1.1 " + text.encode() + b"\r\n\r\n",
    ]


def _shown(error: BaseException) -> str:
    """Everything by which an error can be looked at."""
    chain = "".join(traceback.format_exception(error))
    return "\n".join(
        [str(error), repr(error), repr(error.args), repr(vars(error)), chain, repr(pickle.loads(pickle.dumps(error)).__dict__)]
    )


def _check(outcome: Any, where: object) -> None:
    assert isinstance(outcome, Failure), where
    error = outcome.error
    assert isinstance(error, QRewardError)
    with_trail(error, (AttemptRecord("gpu-0", outcome.kind.name, 0.1, None, str(error)),))
    shown = _shown(error) + repr(outcome)
    ways: list[Callable[[str], str]] = [str, lambda text: json.dumps(text)[1:-1], quote, html.escape, lambda text: repr(text)[1:-1]]
    spellings = {way(secret) for secret in ALL for way in ways}
    assert not [spelled for spelled in spellings if spelled in shown], (where, shown)
    assert not any(secret[:-2] in shown for secret in ALL), ("cut off in the middle", where, shown)


CALL = WireRequest(CHAT, "judge-7b", [{"role": "user", "content": "?"}], {}, {"X-Call": OF_CALL})


@each("said, engine", [*((said, "aiohttp") for said in (*ALL, f"Bearer {KEY}", f"Bearer sk-{KEY}")), (KEY, "httpx")])
async def test_a_server_that_repeats_a_secret_does_not_bring_it_into_an_error(said: str, engine: str) -> None:
    lines = iter(_says(said))

    async def script(_: Request, connection: Connection) -> None:
        line = next(lines)
        await connection.send(line)
        connection.writer.close()

    async with Server(script) as server, httpx.AsyncClient(trust_env=False) as client:
        settings = {"http_client": client} if engine == "httpx" else {}
        endpoint = Endpoint(server.url, name="gpu-0", api_key=KEY, headers=HEADERS, proxy="", **settings)
        for number in range(len(_says(said))):
            backend = HttpBackend()  # a line of its own each, so that a closed connection cannot be picked up
            _check(await backend.send(endpoint, CALL), (number, said))
            await backend.aclose()
        assert next(lines, None) is None


class _Talkative(httpx.AsyncBaseTransport):
    """A user's transport that fails with all that it knows."""

    def __init__(self, kind: type[Exception]) -> None:
        self.kind = kind

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        raise self.kind(f"failed for {dict(request.headers)}")


@each("kind", [httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError, OSError, ValueError, AssertionError, RuntimeError])
async def test_an_exception_of_the_users_own_client_does_not_bring_a_secret_along(kind: type[Exception]) -> None:
    backend = HttpBackend()
    endpoint = Endpoint("http://judge.example/v1", name="gpu-0", api_key=KEY, headers=HEADERS, http_client=_Talkative(kind))
    _check(await backend.send(endpoint, CALL), kind)
    await backend.aclose()


@each(
    "settings",
    [
        {"headers": {"Content-Length": KEY}},
        {"proxy": f"socks5://me:{TEAM}@host:1"},
        {"base_url": "http://127.0.0.1:1/v1"},
        {"base_url": "https://127.0.0.1:1/v1", "proxy": f"http://me:{TEAM}@127.0.0.1:1"},
    ],
)
async def test_a_wrong_setting_or_a_dead_server_does_not_show_a_secret(settings: dict[str, Any]) -> None:
    backend = HttpBackend()
    endpoint = Endpoint(**({"base_url": "http://judge.example/v1", "name": "gpu-0", "api_key": KEY, "proxy": ""} | settings))
    _check(await backend.send(endpoint, CALL), settings)
    await backend.aclose()


def test_a_text_in_place_of_an_http_client_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="not a str") as caught:
        Endpoint("http://judge.example/v1", http_client=KEY)
    assert KEY not in f"{caught.value!r} {caught.value}"


@each(
    "headers",
    [{"X-Call": f"{OF_CALL}\r\nX-Other: 1"}, {"X Call": OF_CALL}, {"Transfer-Encoding": OF_CALL}, {"X-Call": OF_CALL + "é"}, {7: OF_CALL}],
)
async def test_an_extra_header_that_cannot_be_sent_is_named_without_its_value(headers: dict[str, str]) -> None:
    backend = HttpBackend()
    endpoint = Endpoint("http://127.0.0.1:1/v1", name="gpu-0", proxy="")
    outcome = await backend.send(endpoint, WireRequest(CHAT, "judge-7b", [], {}, headers))
    _check(outcome, headers)
    assert isinstance(outcome, Failure)
    assert str(next(iter(headers))).split()[0] in str(outcome.error), "what follows a blank may be a secret"
    assert isinstance(outcome.error, BadRequest)
    await backend.aclose()
