"""What the tests of vLLM share: endpoints of replicas, questions, and what the server itself says."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import httpx
from _vllm import KEY, Replica

from qreward import Endpoint, QRewardClient

MODEL = "judge"
GOES_ON = {"ignore_eos": True}
PATIENCE = 20.0
"""Seconds until a test gives up on an event. No test passes because of it."""


def endpoint(replica: Replica, **settings: Any) -> Endpoint:
    name = "ab"[replica.core] if replica.model == MODEL else replica.model
    return Endpoint(replica.url, **{"name": name, "kind": "vllm", "api_key": KEY, "proxy": "", **settings})


def client_of(*replicas: Replica, of: dict[str, Any] | None = None, **settings: Any) -> QRewardClient:
    """Return a client of these replicas; ``of`` are settings of their endpoints."""
    return QRewardClient([endpoint(replica, **(of or {})) for replica in replicas], **settings)


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def said(replica: Replica, path: str, body: dict[str, Any]) -> Any:
    """Return what the server answers to a request that no client of ours has touched."""
    answer = httpx.post(
        f"{replica.root}{path}",
        json={"model": replica.model} | body,
        headers={"Authorization": f"Bearer {KEY}"},
        timeout=60,
        trust_env=False,
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def token(replica: Replica, text: str) -> int:
    """Return the id of a text that is one token."""
    tokens = said(replica, "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
    assert len(tokens) == 1, (text, tokens)
    return int(tokens[0])


async def idle(*replicas: Replica) -> None:
    for replica in replicas:
        await settled(replica, lambda now: not now["num_requests_running"] and not now["num_requests_waiting"])


async def settled(replica: Replica, wanted: Callable[[Counter[str]], Any]) -> Counter[str]:
    """Wait until the server's counters are as wanted, and return them."""
    async with asyncio.timeout(PATIENCE):
        while not wanted(now := await asyncio.to_thread(replica.metrics)):  # noqa: ASYNC110 - the event is in another process
            await asyncio.sleep(0.05)
    return now


async def counted(replicas: Iterable[Replica], work: Callable[[], Awaitable[Any]]) -> tuple[Any, Counter[str]]:
    """Return the result of some work, and what it added to the counters of idle servers."""
    replicas = list(replicas)
    await idle(*replicas)
    before = [replica.metrics() for replica in replicas]
    result = await work()
    await idle(*replicas)
    more: Counter[str] = Counter()
    for replica, old in zip(replicas, before, strict=True):
        now = replica.metrics()
        now.subtract(old)
        more.update(now)
    return result, more


def check(folder: Path, *arguments: str, **settings: Any) -> tuple[int, str]:
    """Run ``qreward check`` on one endpoint, and return its status and its output."""
    (folder / "config.json").write_text(json.dumps({"endpoints": [{"name": "server"} | settings]}))
    command = [sys.executable, "-m", "qreward", "check", str(folder / "config.json"), "--timeout", "30", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr
