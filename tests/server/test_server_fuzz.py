"""Whatever is sent, the answer is rewards or a refusal: 2xx or 4xx with words, never a 500, and the server lives on."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scale import SCALE
from server_tools import Lengths, served

PATHS = st.sampled_from(["/get_reward", "/classify", "/score", "/v1/score"])
NAMES = st.sampled_from(
    "query prompts labels metadata input messages text_1 text_2 queries documents use_activation model role".split()  # noqa: SIM905
)
ATOMS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    ATOMS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | NAMES, inner, max_size=4), max_leaves=12
)
BODIES = st.dictionaries(NAMES, st.lists(st.text(max_size=4), max_size=4) | st.text(max_size=4) | VALUES, max_size=5)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A client of a server in a thread of its own, so that hypothesis may ask it from this one."""
    found: Future[str] = Future()
    stop = threading.Event()

    async def serve() -> None:
        async with served(Lengths(), max_items=3, max_text_chars=6, max_body_bytes=2000) as server:
            found.set_result(server.url)
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        with httpx.Client(base_url=found.result(20), trust_env=False, timeout=20) as client:
            yield client
    finally:
        stop.set()
        thread.join(20)


def damaged(body: Any, at: int, junk: bytes) -> bytes:
    whole = json.dumps(body).encode()
    return whole[:at] + junk + whole[at + 1 :]


DAMAGED = st.builds(damaged, BODIES, st.integers(0, 200), st.binary(min_size=1, max_size=3))
BYTES = (
    st.binary(max_size=60) | st.text(max_size=40).map(str.encode) | DAMAGED | (BODIES | VALUES).map(lambda body: json.dumps(body).encode())
)


@settings(max_examples=180 * SCALE)
@given(path=PATHS, body=BYTES)
def test_any_body_is_answered(client: httpx.Client, path: str, body: bytes) -> None:
    answer = client.post(path, content=body)
    assert answer.status_code == 200 or 400 <= answer.status_code < 500, (answer.status_code, answer.text)
    document = answer.json()
    if answer.status_code == 200:
        assert {"rewards", "reward", "data"} & set(document)
    else:
        assert document["error"]["message"]
        assert document["error"]["code"] == answer.status_code


@settings(max_examples=40 * SCALE)
@given(
    path=st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=12),
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE"]),
)
def test_any_path_is_answered(client: httpx.Client, path: bytes, method: str) -> None:
    answer = client.request(method, f"/x{quote(path)}")
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["message"]


def test_the_server_is_as_it_was(client: httpx.Client) -> None:
    assert client.post("/get_reward", json={"query": ["abc"]}).json()["rewards"] == [3.0]
    samples = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if not line.startswith("#"))
    assert samples["qreward_server_pending_bytes"] == samples["qreward_server_active_requests"] == "0"
    assert samples["qreward_serve_batch_queue_length"] == "0"
    assert not any('status="5' in name for name in samples)
