"""A fake vLLM server: ``/classify``, ``/pooling``, ``/score``, ``/rerank``, and the routes that report its load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qreward.testing import responders
from qreward.testing.lower_bound import Job
from qreward.testing.rewards.dialect import JSON, PLAIN, Dialect, Look, ReadJob, Told, finite, gauges, listed
from qreward.testing.rewards.scoring import logits_of, probabilities_of
from qreward.testing.spec import FakeEndpoint
from qreward.testing.text import encode

_TYPES = {400: "BadRequestError", 401: "Unauthorized", 404: "NotFoundError", 500: "InternalServerError", 503: "ServiceUnavailableError"}


class Vllm(Dialect):
    """vLLM. A list is accepted as a whole or refused."""

    def routes(self) -> Mapping[str, ReadJob]:
        own: dict[str, ReadJob] = {"/classify": self._classify, "/pooling": self._pooling, "/score": self._score, "/v1/score": self._score}
        own |= dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), self._rerank)
        return {**super().routes(), "/v1/embeddings": self._embeddings, **own}

    def error(self, told: Told) -> bytes:
        return responders.error(told.message, _TYPES.get(told.status, told.kind), told.status)

    def look_up(self, path: str, look: Look) -> tuple[str, str] | None:
        if path == "/load":
            return JSON, encode({"server_load": look.requests}).decode()
        if path == "/version":
            return JSON, '{"version":"0.29.0"}'
        if path == "/metrics":
            traffic = look.traffic
            values = {"num_requests_running": traffic.running, "num_requests_waiting": traffic.waiting, "kv_cache_usage_perc": 0.25}
            return PLAIN, gauges({f"vllm:{name}": float(value) for name, value in values.items()}, '{engine="0",model_name="fake"}')
        return super().look_up(path, look)

    def _classify(self, body: bytes, spec: FakeEndpoint) -> Job:
        asked = self.read("/classify", body)
        items, labels = _inputs(asked), self.labels(spec)

        def row(index: int, item: Any) -> Any:
            probs = self._values(item, asked, spec)
            best = labels[probs.index(max(probs))]
            return {"index": index, "label": best, "probs": [finite(value, item) for value in probs], "num_classes": len(probs)}

        return self._listed("/classify", spec, asked, items, [row(index, item) for index, item in enumerate(items)])

    def _pooling(self, body: bytes, spec: FakeEndpoint) -> Job:
        asked = self.read("/pooling", body)
        items, by_token = _inputs(asked), asked.get("task") == "token_classify"

        def data(item: Any) -> Any:
            values = [finite(value, item) for value in self._values(item, asked, spec)]
            return [[0.0] * len(values), values] if by_token else values

        rows = [{"index": index, "object": "pooling", "data": data(item)} for index, item in enumerate(items)]
        return self._listed("/pooling", spec, asked, items, rows)

    def _score(self, body: bytes, spec: FakeEndpoint) -> Job:
        asked = self.read("/score", body)
        left, right = (listed(asked.get(new) if new in asked else asked.get(old)) for new, old in _NAMES)
        if len(left) not in (1, len(right)) or len(self.labels(spec)) > 1:
            raise self.refusal("/score", 400, "Input lengths must be either 1:1, 1:N or N:N, and num_labels 1")
        items = [list(pair) for pair in zip(left * len(right) if len(left) == 1 else left, right, strict=True)]
        rows = [
            {"index": index, "object": "score", "score": finite(self._values(item, asked, spec)[0], item)}
            for index, item in enumerate(items)
        ]
        return self._listed("/score", spec, asked, items, rows)

    def _rerank(self, body: bytes, spec: FakeEndpoint) -> Job:
        asked = self.read("/rerank", body)
        documents = listed(asked.get("documents"))
        items = [[asked.get("query"), document] for document in documents]
        scores = [self._values(item, asked, spec)[0] for item in items]
        order = sorted(range(len(items)), key=scores.__getitem__, reverse=True)[: asked.get("top_n") or len(items)]
        ranked = [
            {"index": index, "document": {"text": items[index][1]}, "relevance_score": finite(scores[index], items[index])}
            for index in order
        ]

        def made(prompt: int) -> Any:
            used = {"prompt_tokens": prompt, "total_tokens": prompt}
            return {"id": "rerank-1", "model": asked.get("model"), "usage": used, "results": ranked}

        return self.job("/rerank", spec, asked.get("model"), items, made)

    def _embeddings(self, body: bytes, spec: FakeEndpoint) -> Job:
        if not spec.scoring.reward_vectors:
            return super().routes()["/v1/embeddings"](body, spec)
        asked = self.read("/v1/embeddings", body)
        items = _inputs(asked)
        vectors = [[finite(value, item) for value in logits_of(item, self.labels(spec))] for item in items]
        rows = [{"index": index, "object": "embedding", "embedding": vector} for index, vector in enumerate(vectors)]
        return self._listed("/v1/embeddings", spec, asked, items, rows)

    def _listed(self, path: str, spec: FakeEndpoint, asked: dict[str, Any], items: list[Any], rows: list[Any]) -> Job:
        def made(prompt: int) -> Any:
            used = {"prompt_tokens": prompt, "total_tokens": prompt, "completion_tokens": 0, "prompt_tokens_details": None}
            return {"id": f"{path}-1", "object": "list", "created": 1, "model": asked.get("model"), "data": rows, "usage": used}

        return self.job(path, spec, asked.get("model"), items, made)

    def _values(self, item: Any, asked: dict[str, Any], spec: FakeEndpoint) -> list[float]:
        logits = logits_of(item, self.labels(spec))
        return logits if asked.get(spec.scoring.activation_field) is False else probabilities_of(logits)


_NAMES = (("text_1", "queries"), ("text_2", "documents"))


def _inputs(asked: dict[str, Any]) -> list[Any]:
    """The items of ``input``, or the one conversation of ``messages``."""
    return [asked["messages"]] if "messages" in asked else listed(asked.get("input"))
