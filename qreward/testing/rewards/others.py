"""Fake OpenRLHF (``/get_reward``) and NIM servers. NIM scores one chat and responds with a line of ``name:value`` pairs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from qreward.testing import responders
from qreward.testing.lower_bound import Job, Problem
from qreward.testing.rewards.dialect import Dialect, Look, ReadJob, Told
from qreward.testing.rewards.scoring import NAN, logits_of, score_of
from qreward.testing.spec import FakeEndpoint
from qreward.testing.text import canonical, encode


class OpenRlhf(Dialect):
    """OpenRLHF. It has no status routes, and fails the whole list if one score is NaN."""

    health = frozenset()

    def routes(self) -> Mapping[str, ReadJob]:
        return {"/get_reward": self._rewards}

    def error(self, told: Told) -> bytes:
        return b"Internal Server Error" if told.status == 500 else encode({"detail": told.message})

    def look_up(self, path: str, look: Look) -> tuple[str, str] | None:  # noqa: ARG002 - it has no status routes
        return None

    def refusal(self, path: str, status: int, message: str) -> Problem:
        return super().refusal(path, 422 if status == 400 else status, message)

    def not_a_number(self, path: str) -> Problem:
        return Problem(500, self.error(Told(path, 500, "")), "backend")

    def _rewards(self, body: bytes, spec: FakeEndpoint) -> Job:
        asked = self.read("/get_reward", body)
        queries = asked.get("query")
        lengths = {len(each) for each in (queries, asked.get("prompts"), asked.get("labels")) if isinstance(each, list)}
        if not isinstance(queries, list) or len(lengths) != 1:
            raise self.refusal("/get_reward", 422, "query, prompts and labels must be lists of one length")
        rewards = [score_of(query) for query in queries]
        made = {"rewards": rewards, "scores": [reward / 10 for reward in rewards], "extra_logs": {"length": list(map(len, queries))}}
        return self.job("/get_reward", spec, None, queries, lambda _: made)


class Nim(Dialect):
    """NIM. A request holds one conversation. The attributes in the response have three decimals."""

    label = "reward"
    health = frozenset({"/v1/health/ready", "/v1/health/live"})

    def routes(self) -> Mapping[str, ReadJob]:
        return {"/v1/chat/completions": self._chat}

    def _chat(self, body: bytes, spec: FakeEndpoint) -> Job:
        path = "/v1/chat/completions"
        try:
            asked = responders.read_chat(body)
        except ValueError as error:
            raise self.refusal(path, 400, str(error)) from None
        messages, names = asked.messages, self.labels(spec)
        broken = NAN in encode(messages).decode()
        values = [math.nan if broken else value for value in logits_of(messages, names)]
        content = ",".join(f"{name}:{value:.3f}" for name, value in zip(names, values, strict=True))

        def made(prompt: int) -> Any:
            return json.loads(responders.chat_completion(asked, sha256(canonical(messages)).digest(), content, responders.usage(prompt, 1)))

        return self.job(path, spec, asked.model, [messages], made)
