"""A fake TEI server: ``/predict``, ``/rerank``, ``/embed``, ``/v1/embeddings``, ``/info``. A list is accepted as a whole or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from qreward.testing import responders
from qreward.testing.lower_bound import Job, Problem
from qreward.testing.rewards.dialect import JSON, PLAIN, Dialect, Look, ReadJob, Told, gauges
from qreward.testing.rewards.scoring import logits_of, probabilities_of
from qreward.testing.spec import FakeEndpoint
from qreward.testing.text import canonical, count_tokens, encode

_MOST_ITEMS = 32
_PERMITS = 512
_TYPES = {400: "Empty", 413: "Validation", 422: "Validation", 424: "Backend", 429: "Overloaded", 503: "Unhealthy"}


class Tei(Dialect):
    """TEI. Errors have one format on its own routes, and another on the OpenAI routes."""

    health = frozenset({"/health", "/ping", "/"})

    def routes(self) -> Mapping[str, ReadJob]:
        own = {"/predict": self._predict, "/rerank": self._rerank, "/embed": self._embed}
        return own | dict.fromkeys(("/v1/embeddings", "/embeddings"), self._embeddings)

    def error(self, told: Told) -> bytes:
        name = _TYPES.get(told.status, "Backend")
        if told.path.startswith("/v1/") or told.path == "/embeddings":
            return encode({"message": told.message, "code": told.status, "type": name})
        return encode({"error": told.message, "error_type": name})

    def look_up(self, path: str, look: Look) -> tuple[str, str] | None:
        spec, traffic = look.spec, look.traffic
        if path == "/info":
            names = {str(position): name for position, name in enumerate(self.labels(spec))}
            return JSON, encode({
                "model_id": "fake", "model_type": {"classifier": {"id2label": names}}, "max_concurrent_requests": _permits(spec),
                "max_input_length": spec.scoring.max_tokens, "max_batch_tokens": 16384, "max_batch_requests": None,
                "max_client_batch_size": spec.scoring.max_items or _MOST_ITEMS, "auto_truncate": False, "version": "1.9.0",
            }).decode()  # fmt: skip
        return (PLAIN, gauges({"te_queue_size": traffic.waiting, "te_batch_next_size": traffic.running})) if path == "/metrics" else None

    def headers(self, job: Job) -> dict[str, str]:
        times = dict.fromkeys(("x-tokenization-time", "x-queue-time"), "0")
        milliseconds = f"{job.service * 1000:.0f}"
        return times | {"x-inference-time": milliseconds, "x-total-time": milliseconds, "x-compute-tokens": str(job.prompt)}

    def check(self, path: str, spec: FakeEndpoint, items: list[Any]) -> list[int]:
        most = spec.scoring.max_items or _MOST_ITEMS
        if len(items) > most:
            raise self.refusal(path, 422, f"batch size {len(items)} > maximum allowed batch size {most}")
        if len(items) > _permits(spec):  # each item needs a permit, so such a list can never be admitted
            raise Problem(429, self.error(Told(path, 429, "Model is overloaded")), "rejected")
        return super().check(path, spec, items)

    def refusal(self, path: str, status: int, message: str) -> Problem:
        return super().refusal(path, 422 if status == 400 else status, message)

    def too_long(self, path: str, most: int, tokens: int) -> Problem:
        return self.refusal(path, 422, f"`inputs` must have less than {most} tokens. Given: {tokens}")

    def not_a_number(self, path: str) -> Problem:
        return Problem(424, self.error(Told(path, 424, "score is NaN")), "backend")

    def _predict(self, body: bytes, spec: FakeEndpoint) -> Job:
        asked = self.read("/predict", body)
        given, raw, labels = asked.get("inputs"), asked.get("raw_scores") is True, self.labels(spec)
        batch = given if isinstance(given, list) and given and isinstance(given[0], list) else None
        items = [_unwrapped(item) for item in ([given] if batch is None else batch)]

        def row(item: Any) -> Any:
            logits = logits_of(item, labels)
            pairs = zip(labels, logits if raw else probabilities_of(logits), strict=True)
            return sorted(({"score": score, "label": label} for label, score in pairs), key=_score, reverse=True)

        return self.job("/predict", spec, None, items, lambda _: row(items[0]) if batch is None else [row(item) for item in items])

    def _rerank(self, body: bytes, spec: FakeEndpoint) -> Job:
        asked = self.read("/rerank", body)
        raw = asked.get("raw_scores") is True
        items = [[asked.get("query"), text] for text in asked.get("texts") or []]
        logits = [logits_of(item, ("",)) for item in items]
        rows = [{"index": index, "score": (each if raw else probabilities_of(each))[0]} for index, each in enumerate(logits)]
        return self.job("/rerank", spec, None, items, lambda _: sorted(rows, key=_score, reverse=True))

    def _embed(self, body: bytes, spec: FakeEndpoint) -> Job:
        asked = self.read("/embed", body)
        return self._vectors("/embed", spec, {"input": asked.get("inputs")}, lambda made: [row["embedding"] for row in made["data"]])

    def _embeddings(self, body: bytes, spec: FakeEndpoint) -> Job:
        return self._vectors("/v1/embeddings", spec, self.read("/v1/embeddings", body), lambda made: made)

    def _vectors(self, path: str, spec: FakeEndpoint, given: dict[str, Any], shown: Callable[[Any], Any]) -> Job:
        try:
            asked = responders.read_embeddings(encode({"model": "fake", **given}))
        except ValueError as error:
            raise self.refusal(path, 400, str(error)) from None
        items = asked.items()
        self.check(path, spec, items)
        prompt = sum(count_tokens(canonical(item)) for item in items)
        made = shown(json.loads(responders.embeddings(asked, prompt)))
        return self.job(path, spec, None, items, lambda _: made)


def _permits(spec: FakeEndpoint) -> int:
    return spec.max_concurrency or _PERMITS


def _score(row: Mapping[str, Any]) -> float:
    return float(row["score"])


def _unwrapped(given: Any) -> Any:
    """``["t"]`` is the text ``"t"``; ``["q", "a"]`` stays a pair."""
    return given[0] if isinstance(given, list) and len(given) == 1 else given
