"""What is recorded of vLLM is what it says: the fast tests hold the fake servers against these recordings.

RECORD=1 make slow-vllm     # writes the recordings again, after a change of the version or of the questions
"""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from _vllm import Replica
from recording import CHAT, FOLDER, HELLO, VERSION, exchange, record, store

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("kind", ["judge", "pooling/reward", "pooling/classes", "pooling/embedder", "sigterm/judge"])
def test_the_server_says_what_is_recorded(kind: str, request: pytest.FixtureRequest) -> None:
    if kind == "sigterm/judge":
        now = drained(request.getfixturevalue("folder"))
    elif kind == "judge":
        now = record(request.getfixturevalue("pair")[0], generates=True)
    else:
        now = record(request.getfixturevalue(kind.removeprefix("pooling/")), generates=False)
    if os.environ.get("RECORD"):
        store(kind, now)
        return
    recorded = json.loads((FOLDER / f"vllm-{VERSION}" / f"{kind}.json").read_text(encoding="utf-8"))
    assert recorded["command"] == now["command"]
    old, new = ({each["name"]: shape(each["response"]) for each in recording["exchanges"]} for recording in (recorded, now))
    assert old.keys() == new.keys()
    if kind != "sigterm/judge":  # what was in flight may also have come to its end
        assert {name: said for name, said in new.items() if said != old[name]} == {}


def shape(said: Any) -> Any:
    """Return the members, types and statuses of a response, without its values."""
    if isinstance(said, dict):
        if said and all(isinstance(value, float) for value in said.values()):  # log probabilities by the token's text
            return {"": "int"}
        if "events" in said:  # how many depends on the length of the reply
            return shape({name: value for name, value in said.items() if name != "events"}) | {"events": shape(said["events"][0])}
        return {name: value if name in ("status", "type", "param") else shape(value) for name, value in said.items()}
    if isinstance(said, list):
        return shape(said[0]) if said else []
    return type(said).__name__ if not isinstance(said, float) else "int"


def drained(folder: Path) -> dict[str, Any]:
    """Record what a server says from the moment that it is asked to end (SIGTERM)."""
    with Replica("judge", 1, folder) as replica, httpx.Client(base_url=replica.root, timeout=60, trust_env=False) as client:
        chat = {"model": "judge", "messages": HELLO, "max_tokens": 3000, "ignore_eos": True}

        def ask(name: str, method: str, path: str, body: Any = None) -> dict[str, Any]:
            try:
                return exchange(client, name, method, path, body)
            except httpx.HTTPError as error:
                return {"name": name, "request": {"path": path, "body": body}, "response": {"error": type(error).__name__}}

        with ThreadPoolExecutor() as pool:
            flights = [
                pool.submit(ask, "chat in flight", "POST", CHAT, chat),
                pool.submit(ask, "stream in flight", "POST", CHAT, chat | {"stream": True}),
            ]
            while replica.metrics()["num_requests_running"] < len(flights):
                time.sleep(0.05)
            replica.signal(signal.SIGTERM)
            while ask("", "GET", "/health")["response"].get("status") == 200:
                time.sleep(0.05)
            said = [ask("new chat", "POST", CHAT, chat), *(ask(f"GET {path}", "GET", path) for path in ("/health", "/v1/models"))]
            said += [flight.result() for flight in flights]
        replica.ended()
    events = said[-1]["response"]["events"]
    said[-1]["response"]["events"] = [*events[:2], *events[-3:]]  # of some thousand
    about = {"server": f"vllm {VERSION}", "command": f"{replica.command}, then kill -TERM", "recorded": time.strftime("%Y-%m-%d")}
    return about | {"exchanges": sorted(said, key=lambda each: str(each["name"]))}
