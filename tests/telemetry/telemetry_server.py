"""Judges inside ``httpx`` that do as a script says, on the time of the running loop, and clients that ask them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import httpx

from qreward import Endpoint, Limits, QRewardClient
from qreward.testing.virtual_time import VirtualTimeLoop

MODEL = "judge-7b"
KEY = "sk-live-0123456789abcdef"


@dataclass(frozen=True)
class Do:
    """What a server does with a request: ``after`` seconds it answers so, or breaks the connection off."""

    after: float = 0.5
    status: int = 200
    breaks: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    body: str | None = None


Script = dict[str, list[Do]]
"""Endpoint -> what it does with its first, second, ... request; the last holds for all that follow."""


class Judges(httpx.AsyncBaseTransport):
    """All servers of a test in one.

    Attributes:
        requests: as they would have gone out.
    """

    def __init__(self, script: Script | None = None) -> None:
        self._script = script or {}
        self._count: Counter[str] = Counter()
        self.requests: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        name = request.url.host.partition(".")[0]
        steps = self._script.get(name, [Do()])
        step = steps[min(self._count[name], len(steps) - 1)]
        self._count[name] += 1
        await asyncio.sleep(step.after)
        if step.breaks:
            raise httpx.ReadError("broken off")
        asked = json.loads(request.content)
        if step.body is not None or step.status != 200:
            return httpx.Response(step.status, headers=dict(step.headers), text=step.body or json.dumps({"error": {"message": "no"}}))
        if asked.get("stream"):
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Events(asked["model"]))
        return httpx.Response(200, json=embedded(asked) if "input" in asked else completed(asked["model"]))


class Events(httpx.AsyncByteStream):
    """An answer of three words, a tenth of a second apart."""

    def __init__(self, model: str) -> None:
        self._model = model

    async def __aiter__(self) -> Any:
        head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": f"{self._model}-0613"}
        for word in ("the ", "answer ", "is 7"):
            yield _event({**head, "choices": [{"index": 0, "delta": {"content": word}}]})
            await asyncio.sleep(0.1)
        yield _event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        yield _event({**head, "choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}})
        yield b"data: [DONE]\n\n"


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def completed(model: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": "the answer is 7"}
    details = {"prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 2}}
    usage = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14, **details}
    choices = [{"index": 0, "finish_reason": "stop", "message": message}]
    head = {"id": "c1", "object": "chat.completion", "created": 1, "model": f"{model}-0613", "system_fingerprint": "fp_1"}
    return {**head, "choices": choices, "usage": usage}


def embedded(asked: dict[str, Any]) -> dict[str, Any]:
    texts = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
    data = [{"object": "embedding", "index": place, "embedding": [0.5]} for place in range(len(texts))]
    return {"object": "list", "model": asked["model"], "data": data, "usage": {"prompt_tokens": 5, "total_tokens": 5}}


def endpoints(judges: Judges, names: Iterable[str], **settings: Any) -> list[Endpoint]:
    limits = settings.pop("limits", Limits(max_concurrency=4, adaptive=False))
    return [
        Endpoint(f"http://{name}.example:8000/v1", name=name, api_key=KEY, http_client=judges, limits=limits, **settings) for name in names
    ]


def client_of(judges: Judges, names: str = "ab", *, make: Callable[..., Any] = QRewardClient, **settings: Any) -> Any:
    """A client of these endpoints, on the running loop's time if that is virtual."""
    limits = settings.pop("limits", Limits(max_concurrency=4, adaptive=False))
    try:
        loop: Any = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    if isinstance(loop, VirtualTimeLoop):
        settings["clock"] = loop.time
    return make(endpoints(judges, names, limits=limits), **settings)


def chat(text: str = "what is 3 + 4?") -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]
