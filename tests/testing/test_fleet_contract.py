"""The fakes beside recordings of the real servers: statuses, headers, members and types of bodies, errors and events of streams.

``recordings/<server>-<version>/*.json`` holds the answers of a running server to the requests of ``tests/slow``, with its version and its
command. Values are not compared, because they belong to the model; the texts of errors are, but for their numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fakes.endpoint import ModelEndpoint

from qreward.testing import FakeFleet, Latency

RECORDINGS = [path for path in sorted((Path(__file__).parent / "recordings").rglob("*.json")) if path.parent.name != "sigterm"]
KEY = "sk-contract-key"


TASKS: dict[str, dict[str, Any]] = {
    "judge": {"task": "generate"},
    "reward": {"task": "classify"},
    "classes": {"task": "classify", "scoring": {"labels": ("bad", "fair", "good")}},
    "embedder": {"task": "embed"},
}


def endpoint_of(command: str) -> ModelEndpoint:
    """A fake with the settings of the command that started the real server."""
    words = command.split()
    options = dict(zip(words, [*words[1:], ""], strict=True))
    model, longest = options["--served-model-name"], int(options["--max-model-len"])
    settings = {**TASKS[model], "scoring": {"max_tokens": longest, **TASKS[model].get("scoring", {})}}
    if model == "judge":
        settings["prefix_cache"] = {}
    return ModelEndpoint("a", kind="vllm", models=(model,), api_key=KEY, max_model_len=longest, latency=Latency(tokens=30), **settings)


def shape(value: Any, place: str = "") -> dict[str, str]:
    """Path of each member of a document -> the type of its value. The elements of a list are one."""
    if isinstance(value, dict):
        found = {place or ".": "object"}
        for name, inner in value.items():
            found |= shape(inner, f"{place}.{name}")
        return found
    if isinstance(value, list):
        found = {place or ".": "list"}
        for inner in value:
            found |= shape(inner, f"{place}[]")
        return found
    kinds = {bool: "bool", int: "number", float: "number", str: "text", type(None): "null"}
    return {place or ".": kinds[type(value)]}


def differences(real: dict[str, Any], fake: dict[str, Any]) -> Iterator[str]:
    """What a client could see of the difference of two answers."""
    if real["status"] != fake["status"]:
        yield f"status {fake['status']} instead of {real['status']}"
        return
    for name in ("content-type", "x-request-id", "retry-after", "allow"):
        said, meant = fake["headers"].get(name, "").partition(";")[0], real["headers"].get(name, "").partition(";")[0]
        if said != meant:
            yield f"header {name} {said!r} instead of {meant!r}"
    wanted, found = (each.get("events") or [each.get("body")] for each in (real, fake))
    if "metrics" in real:
        yield from _of_metrics(real["metrics"], fake["body"])
        return
    yield from _of_documents(wanted, found)


def _of_metrics(wanted: dict[str, Any], text: str) -> Iterator[str]:
    """A fake has some of the metrics, under the same names and types, and with some of the labels."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    for name, labels in re.findall(r"^([a-z_:]+)\{(.*?)\} \S+$", text, re.MULTILINE):
        real = wanted.get(name, {"type": None, "labels": []})
        if kinds[name] != real["type"] or not {*re.findall(r"(\w+)=", labels)} <= {*real["labels"]}:
            yield f"metric {name} of type {kinds[name]} with {labels} instead of {real}"


def _of_documents(wanted: list[Any], found: list[Any]) -> Iterator[str]:
    wanted, found = _ends(wanted), _ends(found)
    if len(wanted) != len(found):
        yield f"{len(found)} kinds of events instead of {len(wanted)}"
        return
    for real, fake in zip(wanted, found, strict=True):
        left, right = shape(real), shape(fake)
        for place in sorted(left.keys() | right.keys()):
            if left.get(place) != right.get(place):
                yield f"{place or '.'} {right.get(place)} instead of {left.get(place)}"
        if isinstance(real, dict) and isinstance(real.get("error"), dict) and isinstance(fake, dict):
            for name, value in real["error"].items():
                said = fake.get("error", {}).get(name)
                if _numberless(said) != _numberless(value):
                    yield f"error.{name} {said!r} instead of {value!r}"


def _ends(events: list[Any]) -> list[Any]:
    """The first event, one in the middle, and the last three: a stream may have any number of pieces of text."""
    return events if len(events) <= 5 else [*events[:2], *events[-3:]]


def _numberless(value: Any) -> Any:
    return re.sub(r"\d+", "0", value) if isinstance(value, str) else value


async def answer_of(session: aiohttp.ClientSession, host: str, request: dict[str, Any]) -> dict[str, Any]:
    headers = {name: value.replace("KEY", KEY) for name, value in request["headers"].items()}
    body = request.get("body")
    content = None if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    async with session.request(request["method"], host + request["path"], data=content, headers=headers) as response:
        text = await response.text()
        found: dict[str, Any] = {"status": response.status, "headers": {name.lower(): value for name, value in response.headers.items()}}
        if response.content_type == "text/event-stream":
            events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
            return {**found, "events": [event if event == "[DONE]" else json.loads(event) for event in events]}
        if not text:
            found["headers"].pop("content-type", None)  # aiohttp's own, for no bytes
        return {**found, "body": json.loads(text) if response.content_type == "application/json" and text else text or None}


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


EXPLAINED = (
    r"^(systemone|generative scoring|tokenize): ",  # routes of ``dialect``
    r"\.choices\[\]\.logprobs",
    r"^stream of a text completion: ",
    r"error\.message .* validation error",  # the words of an error about a member of a wrong type
    r"^no body: error\.param",
)
"""Patterns of the differences that are on purpose, or not worth their code."""


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_a_fake_answers_as_its_server_did_but_for_what_is_listed(path: Path) -> None:
    recorded, unexplained = _read(path), []
    async with FakeFleet([endpoint_of(recorded["command"])]) as fleet, aiohttp.ClientSession() as session:
        host = fleet.urls["a"].removesuffix("/v1")
        for exchange in recorded["exchanges"]:
            found = await answer_of(session, host, exchange["request"])
            for text in differences(exchange["response"], found):
                named = f"{exchange['name']}: {text}"
                if not any(re.search(pattern, named) for pattern in EXPLAINED):
                    unexplained.append(named)
    assert unexplained == []
