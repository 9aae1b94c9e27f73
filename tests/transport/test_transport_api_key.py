"""Keys that expire: obtained once for many requests, again after a 401 and before their end, and never shown."""

from __future__ import annotations

import asyncio
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from qreward import ApiKey, AuthenticationFailed, ConfigError, Endpoint, QRewardClient
from qreward.codecs.base import TransportError
from qreward.testing import FakeEndpoint, FakeFleet
from qreward.transport import base as module
from qreward.transport.base import KeyedTransport, current_key
from qreward.transport.local import WholeResponse

MESSAGES = [{"role": "user", "content": "x"}]


class Keys:
    """A function that returns ``key-1``, ``key-2`` and so on."""

    def __init__(self) -> None:
        self.number = 0

    async def __call__(self) -> str:
        self.number += 1
        await asyncio.sleep(0)
        return f"key-{self.number}-of-the-test"


class Server:
    """Accepts the keys from number ``valid`` on, and records what it was sent."""

    cap = 1000

    def __init__(self) -> None:
        self.valid, self.sent = 1, []  # type: ignore[var-annotated]

    async def begin(self, method: str, path: str, body: bytes, headers: Any) -> WholeResponse:
        assert (method, path, body) == ("POST", "/chat", b"{}")
        self.sent.append(headers["Authorization"])
        number = int(headers["Authorization"].split("-")[1])
        return WholeResponse(200 if number >= self.valid else 401, b"")


def keyed(source: Any, **settings: Any) -> tuple[Server, KeyedTransport]:
    server = Server()
    return server, KeyedTransport(server, ApiKey(source, **settings))  # type: ignore[arg-type]


def test_requests_at_the_same_time_wait_for_one_key_and_a_refused_key_is_replaced_once() -> None:
    async def main() -> None:
        keys = Keys()
        server, transport = keyed(keys)
        replies = await asyncio.gather(*[transport.post("/chat", b"{}") for _ in range(20)])
        assert ({reply.status for reply in replies}, keys.number) == ({200}, 1)
        server.valid = 2
        replies = await asyncio.gather(*[transport.post("/chat", b"{}") for _ in range(20)])
        assert ({reply.status for reply in replies}, keys.number) == ({200}, 2)
        server.valid = 99
        assert (await transport.post("/chat", b"{}")).status == 401, "a second refusal is an answer"
        assert keys.number == 3

    asyncio.run(main())


def test_a_key_is_replaced_before_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(module, "monotonic", lambda: clock[0])

    async def main() -> list[str]:
        server, transport = keyed(Keys(), seconds=100)
        for clock[0] in (0.0, 89.0, 91.0, 180.0, 182.0):
            await transport.post("/chat", b"{}")
        return [sent.split("-")[1] for sent in server.sent]

    assert asyncio.run(main()) == ["1", "1", "2", "2", "3"]


def test_endpoints_with_the_same_source_share_a_key_also_in_another_loop() -> None:
    keys = Keys()
    one, other = ApiKey(keys), ApiKey(keys)
    assert (one, hash(one)) == (other, hash(other))
    assert asyncio.run(current_key(one)) == asyncio.run(current_key(other)) == "key-1-of-the-test"


def test_a_source_that_fails_is_an_error_without_its_text_and_the_next_request_asks_again() -> None:
    texts = iter(["", "hunter2", "good-1"])

    def source() -> str:
        found = next(texts)
        if found == "hunter2":
            raise ValueError(found)
        return found

    async def main() -> None:
        _, transport = keyed(source)
        for _ in range(2):
            with pytest.raises(TransportError, match=r"no API key: ApiKey.*failed with ValueError") as caught:
                await transport.post("/chat", b"{}")
            assert "hunter2" not in str(caught.value)
            assert caught.value.__context__ is None
        assert (await transport.post("/chat", b"{}")).status == 200

    asyncio.run(main())


def test_a_caller_that_is_cancelled_while_it_obtains_the_key_does_not_hang_the_others() -> None:
    async def main() -> str:
        begun, go = asyncio.Event(), asyncio.Event()

        async def source() -> str:
            begun.set()
            await go.wait()
            return "key-1"

        key = ApiKey(source)
        first = asyncio.create_task(current_key(key))
        await begun.wait()
        second = asyncio.create_task(current_key(key))
        await asyncio.sleep(0)
        first.cancel()
        go.set()
        return await second

    assert asyncio.run(main()) == "key-1"


def test_a_command_prints_the_key_and_files_name_it(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "print('key-7')"]
    assert asyncio.run(current_key(ApiKey(words))) == "key-7"
    endpoint = Endpoint("http://a/v1", api_key={"command": words, "seconds": 60})
    assert endpoint.api_key == ApiKey(words, 60)
    assert pickle.loads(pickle.dumps(endpoint)).api_key == endpoint.api_key
    shown = f"{endpoint!r} {endpoint.model_dump_json()}"
    assert "print" not in shown, "the arguments of a command may be secret"
    wrongs: list[Any] = [
        {"command": "x", "second": 3},
        {"command": []},
        {},
        {"command": "x", "seconds": 0},
        {"command": "x", "seconds": "x"},
    ]
    for wrong in wrongs:
        with pytest.raises(ConfigError):
            Endpoint("http://a/v1", api_key=wrong)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_sends_the_present_key_and_errors_do_not_show_it(stream: bool) -> None:
    keys = iter(["wrong-key-of-the-test", "right-key-of-the-test", "late-key-of-the-test"])

    async def main() -> None:
        async with FakeFleet([FakeEndpoint("a", api_key="right-key-of-the-test")]) as fleet:
            (url,) = fleet.urls.values()
            async with QRewardClient([Endpoint(url, name="a", proxy="", api_key=lambda: next(keys))]) as client:

                async def ask() -> str:
                    if stream:
                        return "".join([token async for token in client.stream_chat_completion(MESSAGES, model="m")])
                    return (await client.chat_completion(MESSAGES, model="m")).choices[0].message.content or ""

                assert await ask()
                fleet.set("a", api_key="another-key")
                with pytest.raises(AuthenticationFailed) as caught:
                    await ask()
                assert "key-of-the-test" not in str(caught.value)

    asyncio.run(main())
