"""A scorer on a real Ray Serve: over HTTP in the reward server's forms, and by handle; one queue for both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from ray_scorers import Noting, Rewards, noted

from qreward.integrations.ray import deployment

pytestmark = [pytest.mark.timeout(300), pytest.mark.real_time(240), pytest.mark.filterwarnings("ignore")]  # what Serve warns of is not ours
ACTOR = {"num_cpus": 0.1}


@pytest.fixture
def handle(serving: Any, killings: Path) -> Iterator[Any]:
    """A scorer that takes 50 ms for a batch, at ``/rm``."""
    app = deployment(Noting, name="lengths", init_args=(str(killings), 0.05), max_batch_size=16, ray_actor_options=ACTOR)
    yield serving.run(app, name="lengths", route_prefix="/rm")
    serving.delete("lengths")


async def test_http_and_handle_share_batches_and_the_scorer_is_closed_at_the_end(serving: Any, handle: Any, killings: Path) -> None:
    async with httpx.AsyncClient(base_url=f"{serving.url}/rm", timeout=60) as http:
        assert (await http.get("/health")).json() == {"status": "ok"}
        texts = ["x" * at for at in range(40)]
        by_http = [http.post("/get_reward", json={"query": [text]}) for text in texts]
        by_handle = [handle.score.remote([text, "bad"]) for text in texts]
        answers = await asyncio.gather(*by_http)
        assert [answer.json()["rewards"] for answer in answers] == [[float(at)] for at in range(40)]
        for at, reference in enumerate(by_handle):
            good, bad = await reference
            assert (good.reward, bad.error) == (float(at), "ValueError: bad")
        metrics = (await http.get("/metrics")).text
        assert 'qreward_server_requests_total{route="/get_reward",status="200"} 40' in metrics
    sizes = [len(batch) for batch in noted(killings)]
    assert sum(sizes) == 120
    assert max(sizes) == 16
    assert len(sizes) < 40
    serving.delete("lengths")
    assert (killings / "closed").exists()


async def test_a_query_with_metadata_and_a_token_of_the_replica(serving: Any, killings: Path) -> None:
    variables = {"env_vars": {"REWARD_TOKEN": "not-secret"}}
    options = ACTOR | {"runtime_env": variables}
    app = deployment(Rewards, init_args=(str(killings),), token="${REWARD_TOKEN}", ray_actor_options=options)
    handle = serving.run(app, name="guarded", route_prefix="/guarded")

    body = {"query": "abcd", "metadata": {"scale": 0.25}}
    assert (await handle.add_query.remote(body)).reward == 1.0
    async with httpx.AsyncClient(base_url=f"{serving.url}/guarded", timeout=60) as http:
        assert (await http.post("/get_reward", json=body)).status_code == 401
        assert (await http.post("/get_reward", json=body, headers={"authorization": "Bearer not-secret"})).json()["reward"] == 1.0
    serving.delete("guarded")
