"""Servers inside ``httpx`` that speak one dialect of decisions each, on virtual time, and count what they are asked."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from math import log
from typing import Any

import httpx

from qreward import Decision, Endpoint, Limits, QRewardClient, YesNo
from qreward.codecs.decisions import PROBE
from qreward.testing.virtual_time import VirtualTimeLoop

MODEL = "judge-7b"
NOT_FOUND = {"detail": "Not Found"}
EXTRA = {"error": {"message": "questions: Extra inputs are not permitted", "type": "BadRequestError", "code": 400}}
BAD = "bad"
Reply = Callable[[str, dict[str, Any]], httpx.Response | None]


class DecisionServer(httpx.AsyncBaseTransport):
    """Speaks ``openai``, ``vllm``, ``chat`` or None, that is no path at all; the probability of question ``q7`` is 0.07.

    It takes ``most`` questions a request and ``seconds`` for an answer; ``reply`` may answer otherwise, by path and body. ``asked`` holds
    the paths and numbers of questions of all requests, ``probes`` the paths of the probes, and ``live`` is the number under way.
    """

    def __init__(self, speaks: str | None = "openai", *, seconds: float = 1.0, most: int = 400, reply: Reply | None = None) -> None:
        self.speaks, self.seconds, self.most, self.reply = speaks, seconds, most, reply
        self.asked: list[tuple[str, int]] = []
        self.probes: list[str] = []
        self.live = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path, body = request.url.path.removeprefix("/v1"), json.loads(request.content)
        if PROBE.questions[0].instructions in request.content.decode():
            self.probes.append(path)
        else:
            self.asked.append((path, len(body.get("questions", "1"))))
        self.live += 1
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.live -= 1
        reply = None if self.reply is None else self.reply(path, body)
        return self._usual(path, body) if reply is None else reply

    def _usual(self, path: str, body: dict[str, Any]) -> httpx.Response:
        if path == "/decisions" and self.speaks in ("openai", "vllm"):
            return self._decisions(body)
        if path == "/chat/completions" and self.speaks is not None:
            return self._chat(body)
        return httpx.Response(404, json=NOT_FOUND)

    def _decisions(self, body: dict[str, Any]) -> httpx.Response:
        texts = [question["instructions"] for question in body["questions"]]
        if len(texts) > self.most:
            return refused(f"questions: at most {self.most} questions per request")
        if bad := [text for text in texts if BAD in text]:
            return refused(f"the question {bad[0]!r} cannot be read")
        answers = [{"type": "predicate", "name": question.get("name"), "probability": number_of(question["instructions"])}
                   for question in body["questions"]]  # fmt: skip
        usage = {"input_tokens": 10, "output_tokens": len(texts), "total_tokens": 10 + len(texts)}
        return httpx.Response(200, json={"id": "d-1", "object": "decision", "model": MODEL, "answers": answers, "usage": usage})

    def _chat(self, body: dict[str, Any]) -> httpx.Response:
        text = str(body["messages"][-1]["content"])
        if BAD in text:
            return refused("the question cannot be read")
        yes = number_of(text)
        seen = [{"token": "yes", "logprob": log(yes)}, {"token": "no", "logprob": log(1 - yes)}]
        choice = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "no"},
                  "logprobs": {"content": [{**seen[1], "top_logprobs": seen}]}}  # fmt: skip
        usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
        return httpx.Response(200, json={"id": "c-1", "object": "chat.completion", "model": MODEL, "choices": [choice], "usage": usage})


def refused(message: str, status: int = 400) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": message, "type": "BadRequestError", "code": status}})


def number_of(text: str) -> float:
    """The probability of the questions ``q7`` and ``q107`` is 0.07; that of a probe is 0.5."""
    found = re.findall(r"q(\d+)", text)
    return int(found[-1]) % 100 / 100 if found else 0.5


def questions(count: int, bad: frozenset[int] = frozenset()) -> list[YesNo]:
    """Questions ``q1``, ``q2``, ..., of which those at the places ``bad`` are refused."""
    return [YesNo(f"{BAD if place in bad else ''} q{place + 1}") for place in range(count)]


def read(decision: Decision) -> list[float | str]:
    """The probabilities, and the class of an error where there is none."""
    return [round(answer.probability, 4) if answer.ok else type(answer.error).__name__ for answer in decision]


def expected(count: int, bad: frozenset[int] = frozenset()) -> list[float | str]:
    return ["BadRequest" if place in bad else (place + 1) % 100 / 100 for place in range(count)]


def client_of(servers: dict[str, DecisionServer], most: int = 64, **settings: Any) -> QRewardClient:
    """A client over servers by name, which may have ``most`` requests in flight each. ``decisions`` is that of all endpoints."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualTimeLoop):
        settings["clock"] = loop.time
    decisions = settings.pop("decisions", None)
    return QRewardClient([endpoint(name, server, most, decisions=decisions) for name, server in servers.items()], **settings)


def endpoint(name: str, server: DecisionServer, most: int = 64, **settings: Any) -> Endpoint:
    limits = Limits(max_concurrency=most, adaptive=False)
    return Endpoint(f"http://{name}.example/v1", name=name, http_client=server, limits=limits, **settings)


def now() -> float:
    """Seconds of virtual time."""
    return round(asyncio.get_running_loop().time(), 2)
