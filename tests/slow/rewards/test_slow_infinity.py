"""An inference server that is not ours, Infinity from PyPI, with real models: our client gets what they compute, merged or not."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _environments import python_of
from reward_servers import free_port
from slow_tools import wait_for

from qreward import BatchResult, Endpoint, InvalidResponse, QRewardClient

pytestmark = pytest.mark.timeout(900)
REQUIREMENTS = ("infinity-emb[server,torch]==0.0.78", "torch<2.14")  # that of newer torch needs what this server has not
MODELS = ("embedder", "ranker", "classifier")
QUERY = "question of the answer"
TEXTS = [f"the answer {at} is word {at * at} of {chr(97 + at % 26)}" for at in range(200)]
CLOSE = 2e-5
"""How far a sum of floats may be off when it is made in another batch."""


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter of the server's own environment."""
    try:
        return python_of("infinity", REQUIREMENTS)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{' '.join(REQUIREMENTS)} could not be installed: pip ended with {error.returncode}")


@pytest.fixture(scope="session")
def models(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where three models with random weights are: nothing has to be downloaded."""
    folder = tmp_path_factory.mktemp("models")
    run_tool(python, "make", folder)
    return folder


@pytest.fixture(scope="session")
def expected(python: Path, models: Path) -> Any:
    """What the models make of the texts, without any server."""
    return json.loads(run_tool(python, "say", models, json.dumps({"texts": TEXTS, "query": QUERY})))


@pytest.fixture(scope="session")
def server(python: Path, models: Path) -> Iterator[str]:
    """The address of a server of the three models."""
    port, command = (
        free_port(),
        [str(python.with_name("infinity_emb")), "v2", "--host", "127.0.0.1", "--engine", "torch", "--device", "cpu"],
    )
    command += ["--no-bettertransformer", "--no-model-warmup", "--port", str(port)]
    for name in MODELS:
        command += ["--model-id", str(models / name), "--served-model-name", name]
    with (models / "said.txt").open("wb") as said:
        process = subprocess.Popen(command, env=offline(models), stdout=said, stderr=said)
        try:
            wait_for(f"http://127.0.0.1:{port}/health", process, models / "said.txt")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)


def offline(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "home"),
        "DO_NOT_TRACK": "1",
        "INFINITY_ANONYMOUS_USAGE_STATS": "0",
    }


def run_tool(python: Path, verb: str, folder: Path, given: str = "") -> str:
    command = [str(python), str(Path(__file__).with_name("tiny_models.py")), verb, str(folder)]
    done = subprocess.run(command, input=given, env=offline(folder), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def asked(url: str, kind: Any, question: Any) -> tuple[Any, int]:
    """What a client says to a question, and how many requests it took."""

    async def main() -> tuple[Any, int]:
        async with QRewardClient([Endpoint(url, name="infinity", kind=kind, proxy="")]) as client:
            answer = await question(client)
            return answer, client.stats()["infinity"].sent

    return asyncio.run(main())


def vectors_in(batch: BatchResult[Any]) -> list[list[float]]:
    return [list(result.value.data[0].embedding) for result in batch]


@pytest.mark.parametrize("kind", ["openai", "vllm"])
def test_vectors_are_those_of_the_model_whether_they_came_in_one_list_or_were_merged(server: str, expected: Any, kind: str) -> None:
    whole, _ = asked(server, kind, lambda client: client.embeddings(TEXTS, model="embedder"))
    assert [each.index for each in whole.data] == list(range(len(TEXTS)))
    merged, requests = asked(server, kind, lambda client: client.batch_embeddings(TEXTS, "embedder"))
    assert requests < len(TEXTS) / 2
    for vectors in ([each.embedding for each in whole.data], vectors_in(merged)):
        assert len(vectors) == len(TEXTS)
        assert all(got == pytest.approx(wanted, abs=CLOSE) for got, wanted in zip(vectors, expected["vectors"], strict=True))
    assert all(result.usage is not None and result.usage_is_estimated for result in merged)


@pytest.mark.parametrize("kind", ["openai", "vllm"])
def test_a_ranking_has_the_relevance_of_each_document_in_their_order(server: str, expected: Any, kind: str) -> None:
    scores, _ = asked(server, kind, lambda client: client.rerank(QUERY, TEXTS, model="ranker"))
    assert scores == pytest.approx(expected["relevances"], abs=CLOSE)


def test_classes_have_the_probabilities_of_the_model_by_name(server: str, expected: Any) -> None:
    batch, requests = asked(server, "vllm", lambda client: client.batch_classify(TEXTS, "classifier"))
    assert all(got == pytest.approx(wanted, abs=CLOSE) for got, wanted in zip(batch.values(), expected["classes"], strict=True))
    assert requests < len(TEXTS) / 2
    one, _ = asked(server, "vllm", lambda client: client.classify(TEXTS[0], model="classifier"))
    assert one == pytest.approx(expected["classes"][0], abs=CLOSE)


def test_probabilities_are_not_taken_for_a_reward(server: str) -> None:
    with pytest.raises(InvalidResponse):
        asked(server, "vllm", lambda client: client.score(TEXTS[0], model="classifier"))
