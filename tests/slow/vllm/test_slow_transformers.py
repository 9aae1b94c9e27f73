"""``transformers serve``, with the model that the tests of vLLM use: a plain server, without batches of prompts and without metrics."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import _vllm
import pytest
from _vllm import OFFLINE, free_port
from slow_tools import wait_for
from vllm_tools import check, user

from qreward import Endpoint, QRewardClient

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    port, said = free_port(), folder / "transformers.txt"
    command = [str(_vllm.python().with_name("transformers")), "serve", "--host", "127.0.0.1", "--port", str(port)]
    with said.open("wb") as output:
        process = subprocess.Popen(command, env=_vllm.clean_environment() | OFFLINE, cwd=folder, stdout=output, stderr=output)
        try:
            wait_for(f"http://127.0.0.1:{port}/health", process, said)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.kill()
            process.wait(30)


@pytest.fixture(scope="module")
def model() -> str:
    return str(_vllm.models() / "judge")


def client_of(server: str) -> QRewardClient:
    return QRewardClient([Endpoint(server, name="server", proxy="")])


def test_chats_and_batches_are_answered(server: str, model: str) -> None:
    async def main() -> tuple[str, list[str]]:
        async with client_of(server) as client:
            completion = await client.chat_completion(user("Say yes."), model=model, max_tokens=4)
            batch = await client.batch_chat_completion([user(f"question {number}") for number in range(40)], model=model, max_tokens=8)
            return completion.choices[0].message.content or "", batch.texts()

    text, texts = asyncio.run(main())
    assert text
    assert len(texts) == 40


def test_a_stream_is_the_same_text_as_the_answer(server: str, model: str) -> None:
    async def main() -> tuple[str, str]:
        async with client_of(server) as client:
            whole = await client.chat_completion(user("Tell me."), model=model, max_tokens=6, temperature=0)
            stream = client.stream_chat_completion(user("Tell me."), model=model, max_tokens=6, temperature=0)
            return whole.choices[0].message.content or "", "".join([token async for token in stream])

    whole, streamed = asyncio.run(main())
    assert streamed == whole


def test_one_prompt_is_sent_as_a_string_because_this_server_refuses_a_list(server: str, model: str) -> None:
    async def main() -> tuple[int, int]:
        async with client_of(server) as client:
            one = await client.text_completion("The sky is", model=model, max_tokens=2)
            batch = await client.batch_text_completion([f"The sky {number} is" for number in range(20)], model=model, max_tokens=2)
            assert not batch.errors, next(iter(batch.errors.values()))
            return len(one), len(batch)

    assert asyncio.run(main()) == (1, 20)


def test_check_does_not_take_a_broken_list_of_models_for_a_wrong_path(server: str, folder: Path) -> None:
    """Without a model hub, this server answers ``/v1/models`` with 500."""
    _, said = check(folder, base_url=server, proxy="")
    print(said)
    assert "404" not in said
    assert "500" in said
