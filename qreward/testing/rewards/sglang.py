"""A fake SGLang server: the native ``/classify``, ``/v1/classify`` (with softmax), ``/v1/rerank``, ``/v1/loads``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qreward.testing.lower_bound import Job
from qreward.testing.rewards.dialect import JSON, PLAIN, Look, ReadJob, Told, finite, gauges, listed
from qreward.testing.rewards.scoring import logits_of, score_of, softmax
from qreward.testing.rewards.vllm import Vllm
from qreward.testing.spec import FakeEndpoint
from qreward.testing.text import canonical, count_tokens, encode


class Sglang(Vllm):
    """SGLang. Errors have one format under ``/v1/``, and another on the native routes."""

    health = frozenset({"/health", "/health_generate", "/ready"})

    def routes(self) -> Mapping[str, ReadJob]:
        shared = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
        above = super().routes()
        return {path: above[path] for path in shared} | {
            "/classify": self._native,
            "/v1/classify": self._classes,
            "/v1/rerank": self._ranking,
        }

    def error(self, told: Told) -> bytes:
        if not told.path.startswith("/v1/"):
            return encode({"error": {"message": told.message}})
        return encode({"object": "error", "message": told.message, "type": told.kind, "param": None, "code": told.status})

    def look_up(self, path: str, look: Look) -> tuple[str, str] | None:
        traffic = look.traffic
        if path == "/v1/loads":
            row = {"dp_rank": 0, "num_running_reqs": traffic.running, "num_waiting_reqs": traffic.waiting, "token_usage": 0.25}
            row["max_running_requests"] = look.spec.max_concurrency or 256
            return JSON, encode({"timestamp": "", "version": "0.5.23", "loads": [row]}).decode()
        if path == "/metrics":
            values = {"sglang:num_running_reqs": traffic.running, "sglang:num_queue_reqs": traffic.waiting, "sglang:token_usage": 0.25}
            return PLAIN, gauges({name: float(value) for name, value in values.items()}, '{model_name="fake"}')
        return super().look_up(path, look) if path == "/v1/models" else None

    def _native(self, body: bytes, spec: FakeEndpoint) -> Job:
        asked = self.read("/classify", body)
        given = asked["input_ids"] if "input_ids" in asked else asked.get("text")
        items = listed(given)

        def row(item: Any) -> Any:
            meta = {"id": "1", "finish_reason": {"type": "length", "length": 0}, "prompt_tokens": count_tokens(canonical(item))}
            return {"embedding": [finite(value, item) for value in logits_of(item, self.labels(spec))], "meta_info": meta}

        rows = [row(item) for item in items]
        alone = isinstance(given, str) or items == [given]
        return self.job("/classify", spec, None, items, lambda _: rows[0] if alone else rows)

    def _classes(self, body: bytes, spec: FakeEndpoint) -> Job:
        asked = self.read("/v1/classify", body)
        items, labels = listed(asked.get("input")), self.labels(spec)

        def row(index: int, item: Any) -> Any:
            probs = softmax(logits_of(item, labels))
            best = labels[probs.index(max(probs))]
            return {"index": index, "label": best, "probs": [finite(value, item) for value in probs], "num_classes": len(probs)}

        return self._listed("/v1/classify", spec, asked, items, [row(index, item) for index, item in enumerate(items)])

    def _ranking(self, body: bytes, spec: FakeEndpoint) -> Job:
        asked = self.read("/v1/rerank", body)
        items = [[asked.get("query"), document] for document in listed(asked.get("documents"))]
        rows = [{"score": finite(score_of(item), item), "document": item[1], "index": index} for index, item in enumerate(items)]
        rows.sort(key=lambda row: row["score"] or 0.0, reverse=True)
        return self.job("/v1/rerank", spec, asked.get("model"), items, lambda _: rows)
