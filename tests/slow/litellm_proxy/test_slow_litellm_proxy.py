"""LiteLLM's proxy in front of fake servers: what it changes on the way, and what its errors mean to a caller."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator

import pytest
from _environments import python_of
from reward_servers import free_port
from slow_tools import wait_for

from qreward import AuthenticationFailed, Endpoint, QRewardClient, RequestError
from qreward.testing import FakeEndpoint, FakeFleet, Latency

pytestmark = pytest.mark.timeout(600)
REQUIREMENTS = ("litellm[proxy]==1.106.2",)
KEY = "sk-of-the-proxy"


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="session")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a proxy of two equal servers for ``judge``, a server that lacks ``missing``, and nothing behind ``down``."""
    try:
        python = python_of("litellm-proxy", REQUIREMENTS)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{' '.join(REQUIREMENTS)} could not be installed: pip ended with {error.returncode}")
    folder = tmp_path_factory.mktemp("litellm")
    servers = [FakeEndpoint(name, models=["judge"], latency=Latency(base=0.01)) for name in "ab"]
    with FakeFleet(servers) as fleet:
        a, b = fleet.urls.values()
        down = f"http://127.0.0.1:{free_port()}/v1"
        deployments = [("judge", "judge", a), ("judge", "judge", b), ("missing", "missing", a), ("down", "judge", down)]
        config = folder / "config.yaml"
        config.write_text(
            "model_list:\n"
            + "".join(
                f"  - model_name: {name}\n    litellm_params: {{model: openai/{model}, api_base: '{url}', api_key: none}}\n"
                for name, model, url in deployments
            )
            + f"general_settings: {{master_key: {KEY}}}\n",
            encoding="utf-8",
        )
        port = free_port()
        command = [str(python.with_name("litellm")), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("QREWARD")}
        environment |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DO_NOT_TRACK": "1", "LITELLM_TELEMETRY": "False"}
        with (folder / "said.txt").open("wb") as said:
            process = subprocess.Popen(command, env=environment, cwd=folder, stdout=said, stderr=said)
            try:
                wait_for(f"http://127.0.0.1:{port}/health/liveliness", process, folder / "said.txt")
                yield f"http://127.0.0.1:{port}/v1"
            finally:
                process.terminate()
                process.wait(30)


def client_of(proxy: str, key: str = KEY) -> QRewardClient:
    return QRewardClient([Endpoint(proxy, name="proxy", api_key=key, proxy="")])


def test_a_batch_through_the_proxy_is_answered_whole(proxy: str) -> None:
    async def main() -> list[str]:
        async with client_of(proxy) as client:
            batch = await client.batch_chat_completion([user(f"question {number}") for number in range(150)], model="judge", max_tokens=8)
            return batch.texts()

    texts = asyncio.run(main())
    assert len(texts) == 150
    assert all(texts)


def test_a_stream_through_the_proxy_ends_with_its_usage(proxy: str) -> None:
    async def main() -> tuple[str, object]:
        async with client_of(proxy) as client:
            stream = client.stream_chat_completion(user("say it"), model="judge", max_tokens=8)
            text = "".join([token async for token in stream])
            return text, (await stream.final()).usage

    text, usage = asyncio.run(main())
    assert text
    assert usage is not None


def test_a_wrong_key_is_named_although_the_proxy_speaks_of_its_database(proxy: str) -> None:
    async def main() -> tuple[RequestError, int]:
        async with client_of(proxy, "sk-wrong") as client:
            with pytest.raises(RequestError) as caught:
                await client.chat_completion(user("x"), model="judge")
            return caught.value, client.stats()["proxy"].sent

    error, sent = asyncio.run(main())
    assert isinstance(error, AuthenticationFailed), error
    assert "sk-wrong" not in str(error)
    assert sent == 1


def test_a_model_that_the_proxy_does_not_have_fails_at_once_and_the_others_are_served(proxy: str) -> None:
    async def main() -> tuple[RequestError, str, int]:
        async with client_of(proxy) as client:
            with pytest.raises(RequestError) as caught:
                await client.chat_completion(user("x"), model="nope")
            completion = await client.chat_completion(user("x"), model="judge")
            return caught.value, completion.choices[0].message.content or "", client.stats()["proxy"].sent

    error, text, sent = asyncio.run(main())
    assert error.status_code in (400, 404)
    assert "nope" in str(error)
    assert text
    assert sent == 2


def test_a_404_that_the_proxy_hides_behind_its_cool_down_is_still_named(proxy: str) -> None:
    async def main() -> tuple[list[RequestError], int]:
        async with client_of(proxy) as client:
            chats = [user(f"question {number}") for number in range(60)]
            batch = await client.batch_chat_completion(chats, model="missing", timeout=15)
            return list(batch.errors.values()), client.stats()["proxy"].sent

    errors, sent = asyncio.run(main())
    print(f"{sent} requests; {errors[0]}")
    assert len(errors) == 60
    assert {error.status_code for error in errors} == {404}


def test_a_server_behind_the_proxy_that_is_down_is_an_error_and_no_answer(proxy: str) -> None:
    async def main() -> RequestError:
        async with client_of(proxy) as client:
            with pytest.raises(RequestError) as caught:
                await client.chat_completion(user("x"), model="down", timeout=20)
            return caught.value

    print(asyncio.run(main()))
