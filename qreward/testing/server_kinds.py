"""The kinds of fake server: vLLM, SGLang, TEI, OpenRLHF and NIM, and the table of all kinds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

from qreward.testing import openai_api
from qreward.testing.openai_api import EmbeddingsRequest
from qreward.testing.rewards import logits_of, probabilities_of, score_of
from qreward.testing.server_routes import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    OPENAI,
    PLAIN,
    ErrorResponse,
    FakeServerKind,
    Job,
    RouteCall,
    ServerState,
    chat_route,
    class_row,
    completions_job,
    finite,
    gauges,
    inputs_of,
    is_nan,
    json_status,
    list_route,
    listed,
    permits_of,
    vector_route,
)
from qreward.testing.synthetic_judge import softmax
from qreward.testing.text import canonical, count_tokens, encode

# vLLM


def _inputs(call: RouteCall) -> list[Any]:
    items = inputs_of(call)
    if "" in items:
        raise ErrorResponse(400, "The decoder prompt cannot be empty", "bad_request")
    return items


_PAIRS = (("text_1", "queries"), ("text_2", "documents"))


def _values(call: RouteCall, item: Any) -> list[float]:
    logits = logits_of(item, call.labels)
    return logits if call.data.get(call.spec.scoring.activation_field) is False else probabilities_of(logits)


def _pooling_row(call: RouteCall, item: Any) -> dict[str, Any]:
    values = finite(_values(call, item), item)
    return {"object": "pooling", "data": [[0.0] * len(values), values] if call.data.get("task") == "token_classify" else values}


def _pairs(call: RouteCall) -> list[Any]:
    left, right = (listed(call.data.get(new) if new in call.data else call.data.get(old)) for new, old in _PAIRS)
    if len(left) not in (1, len(right)) or len(call.labels) > 1:
        raise call.invalid("Input lengths must be either 1:1, 1:N or N:N, and num_labels 1")
    return [list(pair) for pair in zip(left * len(right) if len(left) == 1 else left, right, strict=True)]


def _rerank(call: RouteCall) -> Job:
    data = call.data
    items = [[data.get("query"), document] for document in listed(data.get("documents"))]
    scores = [_values(call, item)[0] for item in items]
    order = sorted(range(len(items)), key=scores.__getitem__, reverse=True)[: data.get("top_n") or len(items)]
    ranked = [
        {"index": at, "document": {"text": items[at][1], "multi_modal": None}, "relevance_score": finite([scores[at]], items[at])[0]}
        for at in order
    ]

    def made(prompt: int) -> Any:
        used = {"prompt_tokens": prompt, "total_tokens": prompt}
        return {"id": "rerank-1", "model": data.get("model"), "usage": used, "results": ranked}

    return call.job(items, made, data.get("model"))


_VLLM = replace(
    OPENAI,
    routes={
        **OPENAI.routes,
        EMBEDDINGS: vector_route,
        "/pooling": list_route(_pooling_row, _inputs),
        "/classify": list_route(lambda call, item: class_row(call, item, _values(call, item)), _inputs),
        **dict.fromkeys(
            ("/score", "/v1/score"),
            list_route(lambda call, item: {"object": "score", "score": finite(_values(call, item), item)[0]}, _pairs),
        ),
        **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), _rerank),
    },
    status={
        **OPENAI.status,
        "/metrics": (
            PLAIN,
            gauges("vllm:num_requests_running vllm:num_requests_waiting vllm:kv_cache_usage_perc", '{engine="0",model_name="fake"}'),
        ),
    },
    health=frozenset({"/health", "/ping"}),
)


# SGLang: errors have one format under /v1/, and a different format on the native routes


def _sglang_classify(call: RouteCall) -> Job:
    given = call.data["input_ids"] if "input_ids" in call.data else call.data.get("text")
    items = listed(given)

    def row(item: Any) -> Any:
        meta = {"id": "1", "finish_reason": {"type": "length", "length": 0}, "prompt_tokens": count_tokens(canonical(item))}
        return {"embedding": finite(logits_of(item, call.labels), item), "meta_info": meta}

    alone = isinstance(given, str) or items == [given]
    return call.job(items, lambda _: row(items[0]) if alone else [row(item) for item in items])


def _sglang_rerank(call: RouteCall) -> Job:
    items = [[call.data.get("query"), document] for document in listed(call.data.get("documents"))]
    rows = [{"score": finite([score_of(item)], item)[0], "document": item[1], "index": index} for index, item in enumerate(items)]
    rows.sort(key=lambda row: row["score"] or 0.0, reverse=True)
    return call.job(items, lambda _: rows, call.data.get("model"))


def _sglang_error(path: str, error: ErrorResponse) -> bytes:
    if not path.startswith("/v1/"):
        return encode({"error": {"message": error.message}})
    return encode({"object": "error", "message": error.message, "type": error.type, "param": None, "code": error.status})


def _sglang_loads(state: ServerState) -> Any:
    row = {"dp_rank": 0, "num_running_reqs": state.traffic.running, "num_waiting_reqs": state.traffic.waiting, "token_usage": 0.25}
    row["max_running_requests"] = state.spec.max_concurrency or 256
    return {"timestamp": "", "version": "0.5.23", "loads": [row]}


_SGLANG = FakeServerKind(
    routes={
        CHAT: chat_route, COMPLETIONS: completions_job, EMBEDDINGS: vector_route, "/classify": _sglang_classify,
        "/v1/rerank": _sglang_rerank,
        "/v1/classify": list_route(lambda call, item: class_row(call, item, softmax(logits_of(item, call.labels)))),
    },
    error=_sglang_error,
    status={
        **OPENAI.status,
        "/v1/loads": json_status(_sglang_loads),
        "/metrics": (PLAIN, gauges("sglang:num_running_reqs sglang:num_queue_reqs sglang:token_usage", '{model_name="fake"}')),
    },
    health=frozenset({"/health", "/health_generate", "/ready"}),
)  # fmt: skip


# TEI: errors have one format on TEI's own routes, and a different format on the OpenAI routes

_TEI_TYPES = {400: "Empty", 413: "Validation", 422: "Validation", 424: "Backend", 429: "Overloaded", 503: "Unhealthy"}
_TEI_ITEMS = 32


def _by_score(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: float(row["score"]), reverse=True)


def _tei_predict(call: RouteCall) -> Job:
    given: Any = call.data.get("inputs")
    raw = call.data.get("raw_scores") is True
    is_list = isinstance(given, list) and bool(given) and isinstance(given[0], list)
    # ["t"] stands for the text "t"; ["q", "a"] stays a pair
    items = [item[0] if isinstance(item, list) and len(item) == 1 else item for item in (given if is_list else [given])]

    def row(item: Any) -> Any:
        logits = logits_of(item, call.labels)
        pairs = zip(call.labels, logits if raw else probabilities_of(logits), strict=True)
        return _by_score([{"score": score, "label": label} for label, score in pairs])

    return call.job(items, lambda _: [row(item) for item in items] if is_list else row(items[0]))


def _tei_rerank(call: RouteCall) -> Job:
    raw = call.data.get("raw_scores") is True
    items = [[call.data.get("query"), text] for text in call.data.get("texts") or []]
    logits = [logits_of(item, ("",)) for item in items]
    rows = [{"index": index, "score": (each if raw else probabilities_of(each))[0]} for index, each in enumerate(logits)]
    return call.job(items, lambda _: _by_score(rows))


def _tei_vectors(call: RouteCall) -> Job:
    own = call.path == "/embed"
    given = {"input": call.data.get("inputs")} if own else call.data
    request = call.read(EmbeddingsRequest, encode({"model": "fake", **given}))

    def made(prompt: int) -> Any:
        found = openai_api.embeddings(request, prompt)
        return [row["embedding"] for row in found["data"]] if own else found

    return call.job(request.items(), made)


def _tei_error(path: str, error: ErrorResponse) -> bytes:
    name = _TEI_TYPES.get(error.status, "Backend")
    if path.startswith("/v1/") or path == "/embeddings":
        return encode({"message": error.message, "code": error.status, "type": name})
    return encode({"error": error.message, "error_type": name})


def _tei_info(state: ServerState) -> Any:
    spec, names = state.spec, {str(position): name for position, name in enumerate(state.labels)}
    return {
        "model_id": "fake", "model_type": {"classifier": {"id2label": names}}, "max_concurrent_requests": permits_of(spec),
        "max_input_length": spec.scoring.max_tokens, "max_batch_tokens": 16384, "max_batch_requests": None,
        "max_client_batch_size": spec.scoring.max_items or _TEI_ITEMS, "auto_truncate": False, "version": "1.9.0",
    }  # fmt: skip


_TEI = FakeServerKind(
    routes={
        "/predict": _tei_predict,
        "/rerank": _tei_rerank,
        **dict.fromkeys(("/embed", "/v1/embeddings", "/embeddings"), _tei_vectors),
    },
    error=_tei_error,
    status={"/info": json_status(_tei_info), "/metrics": (PLAIN, gauges("te_batch_next_size te_queue_size"))},
    health=frozenset({"/health", "/ping", "/"}),
    invalid=422,
    nan=(424, "score is NaN"),
    most_items=_TEI_ITEMS,
    too_many="batch size {count} > maximum allowed batch size {most}",
    too_long="`inputs` must have less than {most} tokens. Given: {tokens}",
    permits=True,
)


# OpenRLHF has no status routes. NIM scores one chat and responds with a line of name:value pairs.


def _openrlhf_rewards(call: RouteCall) -> Job:
    queries = call.data.get("query")
    lengths = {len(each) for each in (queries, call.data.get("prompts"), call.data.get("labels")) if isinstance(each, list)}
    if not isinstance(queries, list) or len(lengths) != 1:
        raise call.invalid("query, prompts and labels must be lists of one length")
    rewards = [score_of(query) for query in queries]
    made = {"rewards": rewards, "scores": [reward / 10 for reward in rewards], "extra_logs": {"length": list(map(len, queries))}}
    return call.job(queries, lambda _: made)


def _nim_chat(call: RouteCall) -> Job:
    request = call.chat()
    values = [math.nan if is_nan(request.messages) else value for value in logits_of(request.messages, call.labels)]
    content = ",".join(f"{name}:{value:.3f}" for name, value in zip(call.labels, values, strict=True))
    digest = sha256(canonical(request.messages)).digest()
    return call.job(
        [request.messages], lambda prompt: openai_api.chat_completion(request, digest, content, openai_api.usage(prompt, 1)), request.model
    )


SERVER_KINDS: Mapping[str, FakeServerKind] = {
    "openai": OPENAI,
    "vllm": _VLLM,
    "sglang": _SGLANG,
    "tei": _TEI,
    "openrlhf": FakeServerKind(
        routes={"/get_reward": _openrlhf_rewards},
        error=lambda _path, error: b"Internal Server Error" if error.status == 500 else encode({"detail": error.message}),
        status={},
        health=frozenset(),
        invalid=422,
        nan=(500, ""),
    ),
    "nim": replace(OPENAI, routes={CHAT: _nim_chat}, label="reward", health=frozenset({"/v1/health/ready", "/v1/health/live"})),
}
"""The record of each kind of server, by the value of ``FakeEndpoint.kind``."""
