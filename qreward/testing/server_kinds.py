"""The kinds of fake server. The record of a kind holds the routes, the error format, the status routes, and the rules for rejecting a list.

A route is a function that returns a :class:`Job` for a :class:`RouteCall`. This module uses no sockets, time or slots. Paths, bodies,
limits and formats follow the source and documentation of the servers. The fakes have not been compared with running servers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

from qreward.testing import openai_api
from qreward.testing.openai_api import ChatLabel, ChatRequest, EmbeddingsRequest
from qreward.testing.prefix_cache import PromptCache
from qreward.testing.rewards import NAN, REFUSED, logits_of, probabilities_of, score_of
from qreward.testing.spec import FakeEndpoint
from qreward.testing.synthetic_judge import softmax
from qreward.testing.text import canonical, count_tokens, echo_text, encode

JSON, PLAIN = "application/json", "text/plain"
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
MOST_LOGPROBS = 20  # maximum ``top_logprobs`` of a chat at OpenAI, and at vLLM unless it is started with --max-logprobs

R = TypeVar("R", ChatRequest, EmbeddingsRequest)


class ErrorResponse(Exception):
    """The server responds with an error. The response is not yet written in the format of the server.

    Attributes:
        status: HTTP status.
        message: text of the error.
        counted: name under which the error is counted.
        type: member ``type`` of the error in OpenAI's format.
        code: member ``code`` of the error in OpenAI's format.
        ready_at: time at which a retry can succeed; None if no ``Retry-After`` header is sent.
        body: the body, if a route writes errors in another format than its server; otherwise empty.
    """

    body = b""

    def __init__(
        self,
        status: int,
        message: str,
        counted: str,
        type_: str = "invalid_request_error",
        code: str | int | None = None,
        ready_at: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.counted = status, message, counted
        self.type, self.code, self.ready_at = type_, code, ready_at


class Job(NamedTuple):
    """Holds a parsed request and the work that serves the request.

    Attributes:
        model: name of the model; None if the request names no model.
        digest: digest of the messages or the input.
        prompt: number of prompt tokens.
        service: service time in seconds.
        items: number of items in the request; 1 for a chat.
        length: number of output tokens of one choice.
        completion: number of output tokens of all choices.
        chat: the chat request; None for any other request.
        label: the only token of the response, if the chat asks for one label.
        prompts: prompts to compute, each with one output token; empty for a chat.
        body: function that returns the body of the response to a request other than a chat. Its argument is the number of cached prompt
            tokens, or None without a cache. The function may raise :class:`ErrorResponse`.
    """

    model: str | None
    digest: bytes
    prompt: int
    service: float
    items: int = 1
    length: int = 0
    completion: int = 0
    chat: ChatRequest | None = None
    label: ChatLabel | None = None
    prompts: Sequence[bytes] = ()
    body: Callable[[int | None], bytes] = lambda _cached: b""

    @property
    def tokens(self) -> int:
        return self.prompt + self.completion


class Traffic:
    """Counts the present load of a server, in items."""

    def __init__(self) -> None:
        self.running = 0
        self.waiting = 0

    @contextmanager
    def count(self, state: str, items: int) -> Iterator[None]:
        """Count items as ``running`` or ``waiting`` while the block runs."""
        setattr(self, state, getattr(self, state) + items)
        try:
            yield
        finally:
            setattr(self, state, getattr(self, state) - items)


class ServerState(NamedTuple):
    """Holds what the status routes of a server report: its settings and its present load.

    Attributes:
        spec: the settings.
        traffic: the present load in items.
        requests: number of requests in flight.
        cache: what computes the prompts; None without a prefix cache.
    """

    spec: FakeEndpoint
    traffic: Traffic
    requests: int
    cache: PromptCache | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        return self.spec.scoring.labels or ("LABEL_0",)

    @property
    def load(self) -> tuple[float, float, float]:
        """The number of running items, the number of waiting items, and the used share (0 to 1) of the KV cache."""
        return self.cache.load if self.cache is not None else (float(self.traffic.running), float(self.traffic.waiting), 0.25)


Route = Callable[["RouteCall"], Job]
Status = Callable[[ServerState], str]


@dataclass(frozen=True)
class FakeServerKind:
    """Defines a kind of fake server.

    Attributes:
        routes: path of POST requests -> function that serves them.
        error: function that writes the body of an error at a path.
        status: path of a status route (GET) -> content type, and function that writes the text.
        health: paths at which a GET request is answered with 200 and no body.
        label: default label of the model.
        invalid: HTTP status of an invalid request.
        nan: HTTP status and text of the error for a list with a NaN score; None if such a list does not fail.
        most_items: maximum number of items in a list, unless ``scoring.max_items`` is set; None means no limit.
        too_many: text of the error for a list with too many items.
        too_long: text of the error for an item with too many tokens.
        permits: whether a list with more items than ``max_concurrency`` is rejected as an overload.
    """

    routes: Mapping[str, Route]
    error: Callable[[str, ErrorResponse], bytes]
    status: Mapping[str, tuple[str, Status]]
    health: frozenset[str] = frozenset({"/health"})
    label: str = "LABEL_0"
    invalid: int = 400
    nan: tuple[int, str] | None = None
    most_items: int | None = None
    too_many: str = "a list must have 1 to {most} items, not {count}"
    too_long: str = "This model's maximum context length is {most} tokens. However, you requested {tokens} tokens."
    permits: bool = False


class RouteCall:
    """Holds one POST request. The function of a route receives a ``RouteCall``. All methods may raise :class:`ErrorResponse`."""

    def __init__(self, kind: FakeServerKind, path: str, body: bytes, spec: FakeEndpoint) -> None:
        self.kind = kind
        self.path = path
        self.body = body
        self.spec = spec
        self.labels = spec.scoring.labels or (kind.label,)

    @cached_property
    def data(self) -> dict[str, Any]:
        """The body as a JSON object."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise self.invalid(str(error)) from None
        if not isinstance(found, dict):
            raise self.invalid("the body must be an object")
        return found

    def read(self, kind: type[R], body: bytes | None = None) -> R:
        """Return the body as a request of the OpenAI API."""
        try:
            return openai_api.read(kind, self.body if body is None else body)
        except ValueError as error:
            raise self.invalid(str(error)) from None

    def invalid(self, message: str) -> ErrorResponse:
        return ErrorResponse(self.kind.invalid, message, "bad_request")

    def job(self, items: list[Any], made: Callable[[int], Any], model: str | None = None) -> Job:
        """Return the job for a list of items. ``made`` is a function that returns the response from the number of prompt tokens."""
        prompt = sum(self._checked(items))
        failure = None
        if self.kind.nan is not None and any(_is_nan(item) for item in items):
            failure = ErrorResponse(*self.kind.nan, "backend")

        def body(_cached: int | None) -> bytes:
            if failure is not None:
                raise failure
            return encode(made(prompt))

        service = self.spec.latency.base + self.spec.scoring.per_item * len(items)
        return Job(model, sha256(canonical(items)).digest(), prompt, service, len(items), body=body)

    def _checked(self, items: list[Any]) -> list[int]:
        """Return the number of tokens of each item. A list with an unacceptable item is refused as a whole."""
        kind, most, longest = self.kind, self.spec.scoring.max_items or self.kind.most_items, self.spec.scoring.max_tokens
        if not items or (most is not None and len(items) > most):
            raise self.invalid(kind.too_many.format(most=most, count=len(items)))
        if kind.permits and len(items) > _permits(self.spec):
            raise ErrorResponse(429, "Model is overloaded", "rejected")
        encoded = [canonical(item) for item in items]
        if any(REFUSED.encode() in each for each in encoded):
            raise self.invalid(f"an input holds {REFUSED}")
        sizes = [count_tokens(each) for each in encoded]
        if max(sizes) > longest:
            raise self.invalid(kind.too_long.format(most=longest, tokens=max(sizes)))
        return sizes


def _is_nan(item: Any) -> bool:
    return NAN in encode(item).decode()


def _finite(values: list[float], item: Any) -> list[float | None]:
    """Return the values of an item. If the item contains ``NAN``, each value is None (JSON null)."""
    return [None] * len(values) if _is_nan(item) else list(values)


def _listed(given: Any) -> list[Any]:
    """Return the items of an input in OpenAI's format. A text is one item, and so is a list of numbers."""
    if isinstance(given, str) or (isinstance(given, list) and given and isinstance(given[0], int)):
        return [given]
    return given if isinstance(given, list) else []


def _inputs(call: RouteCall) -> list[Any]:
    """Return the items of ``input``, or the one conversation of ``messages``."""
    return [call.data["messages"]] if "messages" in call.data else _listed(call.data.get("input"))


def _gauges(names: str, labels: str = "") -> Status:
    """Return a function that writes gauges in the Prometheus text format.

    Args:
        names: the names of the gauges for the running items, the waiting items and the used share of the cache, separated by spaces.
        labels: the labels of each gauge.
    """

    def text(state: ServerState) -> str:
        values = zip(names.split(), state.load, strict=False)
        return "".join(f"# HELP {name} .\n# TYPE {name} gauge\n{name}{labels} {value}\n" for name, value in values)

    return text


def _json(made: Callable[[ServerState], Any]) -> tuple[str, Status]:
    return JSON, lambda state: encode(made(state)).decode()


# OpenAI


def chat_job(call: RouteCall, label: ChatLabel | None = None) -> Job:
    """Return the job for a chat. ``label`` is the only token of the response, if the chat asks for one."""
    request, latency = call.read(ChatRequest), call.spec.latency
    encoded = canonical(request.messages)
    digest = sha256(encoded).digest()
    length = latency.draw(digest) if label is None else 1
    return Job(
        request.model,
        digest,
        count_tokens(encoded),
        latency.seconds(length),
        length=length,
        completion=length * (request.n or 1),
        chat=request,
        label=label,
    )


def _chat(call: RouteCall) -> Job:
    request = call.read(ChatRequest)
    most = request.top_logprobs or 0
    if most and not request.logprobs:
        raise call.invalid("when using `top_logprobs`, `logprobs` must be set to true.")
    if not 0 <= most <= MOST_LOGPROBS:
        raise call.invalid(f"Invalid value for 'top_logprobs': must be from 0 to {MOST_LOGPROBS}, not {most}.")
    return chat_job(call)


def _embeddings(call: RouteCall) -> Job:
    request = call.read(EmbeddingsRequest)
    items = request.items()
    prompt, digest = sum(count_tokens(canonical(each)) for each in items), sha256(canonical(request.input)).digest()
    return Job(
        request.model,
        digest,
        prompt,
        call.spec.latency.base,
        len(items),
        body=lambda _cached: encode(openai_api.embeddings(request, prompt)),
    )


def _completions(call: RouteCall) -> Job:
    data = call.data
    prompts, each = _listed(data.get("prompt")), data.get("n") or 1

    def made(prompt: int) -> Any:
        texts = [echo_text(sha256(canonical(item)).digest()) for item in prompts for _ in range(each)]
        choices = [{"index": index, "text": text, "logprobs": None, "finish_reason": "stop"} for index, text in enumerate(texts)]
        used = openai_api.usage(prompt, len(choices))
        return {"id": "cmpl-1", "object": "text_completion", "model": data.get("model"), "choices": choices, "usage": used}

    return call.job(prompts, made, data.get("model"))


def _moderations(call: RouteCall) -> Job:
    data = call.data
    given = data.get("input")
    whole = isinstance(given, list) and all(isinstance(part, dict) for part in given)
    items = [given] if whole else _listed(given)
    results = [{"flagged": score_of(item) > 0, "category_scores": {"harm": abs(score_of(item)) / 10}} for item in items]
    return call.job(items, lambda _: {"id": "modr-1", "model": data.get("model"), "results": results}, data.get("model"))


_OPENAI = FakeServerKind(
    routes={CHAT: _chat, EMBEDDINGS: _embeddings, COMPLETIONS: _completions, "/v1/moderations": _moderations},
    error=lambda _path, error: openai_api.error(error.message, error.type, error.code),
    status={"/v1/models": _json(lambda state: openai_api.models(state.spec.models))},
)


# vLLM

_VLLM_LABELS = '{engine="0",model_name="fake"}'
_vllm_gauges = _gauges("vllm:num_requests_running vllm:num_requests_waiting vllm:kv_cache_usage_perc", _VLLM_LABELS)


def _vllm_metrics(state: ServerState) -> str:
    """Return vLLM's metrics.

    With a prefix cache, the metrics include its size, the tokens looked up in it, and the tokens found.
    """
    text, cache = _vllm_gauges(state), state.cache
    if cache is None:
        return text
    for name, value in (("queries", cache.queried), ("hits", cache.hits)):
        full = f"vllm:prefix_cache_{name}_total"
        text += f"# HELP {full} .\n# TYPE {full} counter\n{full}{_VLLM_LABELS} {float(value)}\n"
    info = "vllm:cache_config_info"
    labels = f'{{block_size="{cache.block}",cache_dtype="auto",engine="0",num_gpu_blocks="{cache.tokens // cache.block}"}}'
    return text + f"# HELP {info} .\n# TYPE {info} gauge\n{info}{labels} 1.0\n"


_VLLM_TYPES = {
    400: "BadRequestError",
    401: "Unauthorized",
    404: "NotFoundError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}
_PAIRS = (("text_1", "queries"), ("text_2", "documents"))


def _vllm_values(call: RouteCall, item: Any) -> list[float]:
    logits = logits_of(item, call.labels)
    return logits if call.data.get(call.spec.scoring.activation_field) is False else probabilities_of(logits)


def _list_route(row: Callable[[RouteCall, Any], dict[str, Any]], items_of: Callable[[RouteCall], list[Any]] = _inputs) -> Route:
    """Return a route whose response has vLLM's form: one row for each item."""

    def serve(call: RouteCall) -> Job:
        items, model = items_of(call), call.data.get("model")
        rows = [{"index": index, **row(call, item)} for index, item in enumerate(items)]

        def made(prompt: int) -> Any:
            used = {"prompt_tokens": prompt, "total_tokens": prompt, "completion_tokens": 0, "prompt_tokens_details": None}
            return {"id": f"{call.path}-1", "object": "list", "created": 1, "model": model, "data": rows, "usage": used}

        return call.job(items, made, model)

    return serve


def _class_row(call: RouteCall, item: Any, probs: list[float]) -> dict[str, Any]:
    return {"label": call.labels[probs.index(max(probs))], "probs": _finite(probs, item), "num_classes": len(probs)}


def _pooling_row(call: RouteCall, item: Any) -> dict[str, Any]:
    values = _finite(_vllm_values(call, item), item)
    return {"object": "pooling", "data": [[0.0] * len(values), values] if call.data.get("task") == "token_classify" else values}


def _pairs(call: RouteCall) -> list[Any]:
    left, right = (_listed(call.data.get(new) if new in call.data else call.data.get(old)) for new, old in _PAIRS)
    if len(left) not in (1, len(right)) or len(call.labels) > 1:
        raise call.invalid("Input lengths must be either 1:1, 1:N or N:N, and num_labels 1")
    return [list(pair) for pair in zip(left * len(right) if len(left) == 1 else left, right, strict=True)]


def _vllm_rerank(call: RouteCall) -> Job:
    data = call.data
    items = [[data.get("query"), document] for document in _listed(data.get("documents"))]
    scores = [_vllm_values(call, item)[0] for item in items]
    order = sorted(range(len(items)), key=scores.__getitem__, reverse=True)[: data.get("top_n") or len(items)]
    ranked = [{"index": at, "document": {"text": items[at][1]}, "relevance_score": _finite([scores[at]], items[at])[0]} for at in order]

    def made(prompt: int) -> Any:
        used = {"prompt_tokens": prompt, "total_tokens": prompt}
        return {"id": "rerank-1", "model": data.get("model"), "usage": used, "results": ranked}

    return call.job(items, made, data.get("model"))


_reward_vectors = _list_route(lambda call, item: {"object": "embedding", "embedding": _finite(logits_of(item, call.labels), item)})


def _vllm_embeddings(call: RouteCall) -> Job:
    return _reward_vectors(call) if call.spec.scoring.reward_vectors else _embeddings(call)


_VLLM = replace(
    _OPENAI,
    routes={
        **_OPENAI.routes, EMBEDDINGS: _vllm_embeddings, "/pooling": _list_route(_pooling_row),
        "/classify": _list_route(lambda call, item: _class_row(call, item, _vllm_values(call, item))),
        **dict.fromkeys(("/score", "/v1/score"), _list_route(
            lambda call, item: {"object": "score", "score": _finite(_vllm_values(call, item), item)[0]}, _pairs
        )),
        **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), _vllm_rerank),
    },
    error=lambda _path, error: openai_api.error(error.message, _VLLM_TYPES.get(error.status) or error.type, error.status),
    status={
        **_OPENAI.status,
        "/load": _json(lambda state: {"server_load": state.requests}),
        "/version": (JSON, lambda _: '{"version":"0.29.0"}'),
        "/metrics": (PLAIN, _vllm_metrics),
    },
)  # fmt: skip


# SGLang: errors have one format under /v1/, and a different format on the native routes


def _sglang_classify(call: RouteCall) -> Job:
    given = call.data["input_ids"] if "input_ids" in call.data else call.data.get("text")
    items = _listed(given)

    def row(item: Any) -> Any:
        meta = {"id": "1", "finish_reason": {"type": "length", "length": 0}, "prompt_tokens": count_tokens(canonical(item))}
        return {"embedding": _finite(logits_of(item, call.labels), item), "meta_info": meta}

    alone = isinstance(given, str) or items == [given]
    return call.job(items, lambda _: row(items[0]) if alone else [row(item) for item in items])


def _sglang_rerank(call: RouteCall) -> Job:
    items = [[call.data.get("query"), document] for document in _listed(call.data.get("documents"))]
    rows = [{"score": _finite([score_of(item)], item)[0], "document": item[1], "index": index} for index, item in enumerate(items)]
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
        CHAT: _chat, COMPLETIONS: _completions, EMBEDDINGS: _vllm_embeddings, "/classify": _sglang_classify, "/v1/rerank": _sglang_rerank,
        "/v1/classify": _list_route(lambda call, item: _class_row(call, item, softmax(logits_of(item, call.labels)))),
    },
    error=_sglang_error,
    status={
        **_OPENAI.status,
        "/v1/loads": _json(_sglang_loads),
        "/metrics": (PLAIN, _gauges("sglang:num_running_reqs sglang:num_queue_reqs sglang:token_usage", '{model_name="fake"}')),
    },
    health=frozenset({"/health", "/health_generate", "/ready"}),
)  # fmt: skip


# TEI: errors have one format on TEI's own routes, and a different format on the OpenAI routes

_TEI_TYPES = {400: "Empty", 413: "Validation", 422: "Validation", 424: "Backend", 429: "Overloaded", 503: "Unhealthy"}
_TEI_ITEMS, _TEI_PERMITS = 32, 512


def _permits(spec: FakeEndpoint) -> int:
    return spec.max_concurrency or _TEI_PERMITS


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
        "model_id": "fake", "model_type": {"classifier": {"id2label": names}}, "max_concurrent_requests": _permits(spec),
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
    status={"/info": _json(_tei_info), "/metrics": (PLAIN, _gauges("te_batch_next_size te_queue_size"))},
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
    request = call.read(ChatRequest)
    values = [math.nan if _is_nan(request.messages) else value for value in logits_of(request.messages, call.labels)]
    content = ",".join(f"{name}:{value:.3f}" for name, value in zip(call.labels, values, strict=True))
    digest = sha256(canonical(request.messages)).digest()
    return call.job(
        [request.messages], lambda prompt: openai_api.chat_completion(request, digest, content, openai_api.usage(prompt, 1)), request.model
    )


SERVER_KINDS: Mapping[str, FakeServerKind] = {
    "openai": _OPENAI,
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
    "nim": replace(_OPENAI, routes={CHAT: _nim_chat}, label="reward", health=frozenset({"/v1/health/ready", "/v1/health/live"})),
    "openai_batch": _OPENAI,
}
"""The record of each kind of server, by the value of ``FakeEndpoint.kind``."""
