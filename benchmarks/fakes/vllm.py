"""The kind ``vllm``: the routes, bodies and errors of vLLM 0.32, as its source has them and as recordings of a running server show them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from qreward.testing import bodies
from qreward.testing.bodies import BYTES_PER_TOKEN, ChatRequest, Chunks, EmbeddingsRequest, canonical, count_tokens, encode, sse
from qreward.testing.kinds import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    SERVER_KINDS,
    ErrorResponse,
    FakeServerKind,
    Job,
    RouteCall,
    chat_route,
    completions_job,
    inputs_of,
    vector_route,
)
from qreward.testing.server import FakeServer

MOST_LOGPROBS = 20  # maximum ``top_logprobs`` of a chat at OpenAI, and at vLLM unless it is started with --max-logprobs
VERSION = "0.32.0"
_FINGERPRINT = f"vllm-{VERSION}-fa4e0000"
_LABELS = '{engine="0",model_name="fake"}'


def _longest(spec: Any) -> int:
    return getattr(spec, "max_model_len", 131_072)


# Status routes


def _models(state: FakeServer) -> dict[str, Any]:
    permission = {
        "id": "modelperm-fake", "object": "model_permission", "created": 0, "allow_create_engine": False, "allow_sampling": True,
        "allow_logprobs": True, "allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False, "organization": "*",
        "group": None, "is_blocking": False,
    }  # fmt: skip
    more = {"owned_by": "vllm", "root": "fake", "parent": None, "max_model_len": _longest(state.spec), "permission": [permission]}
    found = bodies.models(state.spec.models)
    return {**found, "data": [{**row, **more} for row in found["data"]]}


def _metrics(state: FakeServer) -> str:
    text: str = SERVER_KINDS["vllm"].status["/metrics"](state)
    cache = state.cache
    if cache is None:
        return text
    for name, value in (("queries", cache.queried), ("hits", cache.hits)):
        full = f"vllm:prefix_cache_{name}_total"
        text += f"# HELP {full} .\n# TYPE {full} counter\n{full}{_LABELS} {float(value)}\n"
    info = "vllm:cache_config_info"
    labels = f'{{block_size="{cache.block}",cache_dtype="auto",engine="0",num_gpu_blocks="{cache.tokens // cache.block}"}}'
    return text + f"# HELP {info} .\n# TYPE {info} gauge\n{info}{labels} 1.0\n"


# Errors

_BUSY = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
GUARDED = ("/v1", "/v2", "/inference", "/cohere")
"""Beginnings of the paths that need a key."""
_TYPES = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError", 503: "Service Unavailable"}


def _error(path: str, error: ErrorResponse) -> bytes:
    if error.status == 401:
        return encode({"error": "Unauthorized"})
    if error.counted == "not_found":
        return encode({"detail": "Not Found" if error.status == 404 else "Method Not Allowed"})
    message, type_, param = error.message, _TYPES.get(error.status) or error.type, error.param
    if error.counted in ("error_500", "error_503", "rejected"):
        message = {500: _DEAD, 503: _BUSY}.get(error.status, message)
    elif error.malformed:
        place = re.search(r"\$((?:\.\w+)*)", message)
        type_, param = "Bad Request", "body" + (place[1] if place else ".0")
        message = f"1 validation error:\n  {{'type': 'value_error', 'loc': {param!r}, 'msg': {message!r}}}"
    elif error.counted == "unknown_model":
        param = "model" if path in _GENERATE else None
        message = message if path in _GENERATE else message.partition(" Valid aliases")[0]
    return bodies.error(message, type_, error.status, param)


def _wrong(name: str, value: Any, message: str) -> ErrorResponse:
    return ErrorResponse(400, f"{message} (parameter={name}, value={value})", "bad_request", param=name)


# Chats


class SampledChat(ChatRequest):
    """Holds the fields of a chat that say how tokens are sampled, and what is reported of them."""

    logprobs: bool | None = False
    top_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    response_format: Any = None

    @property
    def most(self) -> int | None:
        """Maximum number of output tokens."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def cut(self, content: str) -> tuple[str, str]:
        """Return as much of the response as the request allows, and why the response ends."""
        if self.most is None or len(content) <= BYTES_PER_TOKEN * self.most:
            return content, "stop"
        return content[: BYTES_PER_TOKEN * self.most], "length"


def _chat(call: RouteCall) -> Job:
    request, longest = call.read(SampledChat), _longest(call.spec)
    if not request.messages:
        message = "Cannot apply chat template to an empty conversation. Provide at least one message."
        raise ErrorResponse(400, message, "bad_request")
    _check_logprobs(request)
    name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    most = request.most
    if most is not None and most > longest:
        more = "Please request fewer output tokens."
        raise _wrong(name, most, f"{name}={most} cannot be greater than max_model_len={longest}. {more}")
    if most is not None and most < 1:
        raise _wrong(name, most, f"{name} must be at least 1, got {most}.")
    if (heat := request.temperature) is not None and not 0 <= heat <= 2:
        rule = "must be non-negative" if heat < 0 else "must be in [0, 2]"
        raise _wrong("temperature", float(heat), f"temperature {rule}, got {float(heat)}.")
    _check_schema(request.response_format)
    job = chat_route(call)
    if job.prompt > longest:
        raise ErrorResponse(400, _TOO_LONG.format(most=longest, more=longest + 1), "bad_request", param="input_tokens")
    length = job.length if most is None else min(job.length, most)
    output = length * (request.n or 1)

    def parts(cached: int | None) -> tuple[Any, ...]:
        return request, job.digest, call.content(request.messages, job.digest), bodies.usage(job.prompt, output, cached)

    return job._replace(
        service=call.spec.latency.seconds(length), length=length, completion=output,
        body=lambda cached: encode(completion_of(*parts(cached))),
        chunks=(lambda cached: VllmChunks(*parts(cached))) if request.stream else None,
    )  # fmt: skip


def _check_logprobs(request: SampledChat) -> None:
    most = request.top_logprobs or 0
    if most and not request.logprobs:
        message = "when using `top_logprobs`, `logprobs` must be set to true. (parameter=top_logprobs)"
        raise ErrorResponse(400, message, "bad_request", param="top_logprobs")
    if most > MOST_LOGPROBS:
        raise _wrong("logprobs", most, f"Requested sample logprobs of {most}, which is greater than max allowed: {MOST_LOGPROBS}")


_FORMATS = {"text", "json_object", "json_schema", "structural_tag"}
_SCHEMA_TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}


def _check_schema(given: Any) -> None:
    """Refuse a format of an unknown type, and a JSON schema of an unknown type, as the compiler of grammars does."""
    if isinstance(given, dict) and given.get("type") not in _FORMATS:
        raise ErrorResponse(
            400, "Input should be 'text', 'json_object' or 'json_schema' - at `$.response_format.type`", "bad_request", malformed=True
        )
    schema = given.get("json_schema", {}).get("schema") if isinstance(given, dict) and given.get("type") == "json_schema" else None
    if isinstance(schema, dict) and isinstance(kind := schema.get("type"), str) and kind not in _SCHEMA_TYPES:
        raise ErrorResponse(400, f"Grammar error: Invalid type: {kind}", "bad_request")


def _used(used: dict[str, Any]) -> dict[str, Any]:
    details = used.get("prompt_tokens_details")
    if details is not None:
        details = {**details, "created_cache_tokens": 0, "multimodal_tokens": None}
    return {**used, "prompt_tokens_details": details, "completion_tokens_details": None}


def completion_of(request: SampledChat, digest: bytes, content: str, used: dict[str, Any]) -> dict[str, Any]:
    content, finish = request.cut(content)
    made = bodies.chat_completion(request, digest, content, _used(used))
    for choice in made["choices"]:
        choice["message"] = {**choice["message"], **dict.fromkeys(("annotations", "audio", "function_call", "reasoning"))}
        choice |= {"finish_reason": finish, "stop_reason": None, "token_ids": None, "routed_experts": None}
    nothing = (
        "service_tier", "prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params", "ec_transfer_params", "metrics",
    )  # fmt: skip
    return {**made, **dict.fromkeys(nothing), "system_fingerprint": _FINGERPRINT}


class VllmChunks(Chunks):
    """Makes the events as vLLM does: the last piece of text has the reason why the response ended."""

    def __init__(self, request: SampledChat, digest: bytes, content: str, used: dict[str, Any]) -> None:
        content, self._finish = request.cut(content)
        super().__init__(request, digest, content, used)
        if self._used is not None:
            details = (
                {"prompt_tokens_details": {**inner, "created_cache_tokens": 0}} if (inner := used.get("prompt_tokens_details")) else {}
            )
            self._used = {**self._used, **details}
        self._head = {name: value for name, value in self._head.items() if name != "system_fingerprint"}

    def first(self) -> bytes:
        choice = {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return self._events(choice, prompt_token_ids=None, prompt_text=None)

    def piece(self, number: int, tokens: int) -> bytes:
        is_last = number == tokens - 1
        choice = {"delta": {"content": self._text(number, tokens)}, "logprobs": None, "finish_reason": self._finish if is_last else None}
        if is_last:
            choice["stop_reason"] = None
        more = {"system_fingerprint": _FINGERPRINT} if is_last and self._used is None else {}
        return self._events({**choice, "token_ids": None}, **more)

    def last(self) -> bytes:
        closing = b""
        if self._used is not None:
            closing = sse({**self._head, "choices": [], "usage": self._used, "system_fingerprint": _FINGERPRINT})
        return closing + b"data: [DONE]\n\n"

    def failed(self) -> bytes:
        return b"data: " + bodies.error(_DEAD, _TYPES[500], 500) + b"\n\ndata: [DONE]\n\n"

    def _events(self, choice: dict[str, Any], **more: Any) -> bytes:
        return b"".join(sse({**self._head, "choices": [{"index": index, **choice}], **more}) for index in self._indices)


# Text completions, scores, labels and rankings


def _pooling(call: RouteCall) -> Job:
    if "" in inputs_of(call):
        raise ErrorResponse(400, "The decoder prompt cannot be empty", "bad_request")
    return SERVER_KINDS["vllm"].routes[call.path](call)


def _completions(call: RouteCall) -> Job:
    job = completions_job(call)

    def body(cached: int | None) -> bytes:
        made = json.loads(job.body(cached))
        none = dict.fromkeys(("stop_reason", "token_ids", "prompt_logprobs", "prompt_token_ids", "routed_experts"))
        used = _used(made["usage"])
        if call.spec.prefix_cache is not None:
            used["prompt_tokens_details"] = {"cached_tokens": 0, "created_cache_tokens": None, "multimodal_tokens": None}
        choices = [{**choice, **none} for choice in made["choices"]]
        more = dict.fromkeys(("service_tier", "kv_transfer_params", "ec_transfer_params", "metrics"))
        return encode({**made, **more, "created": 1, "system_fingerprint": _FINGERPRINT, "choices": choices, "usage": used})

    return job._replace(body=body)


def _embeddings(call: RouteCall) -> Job:
    if call.spec.scoring.reward_vectors:
        return vector_route(call)
    longest = _longest(call.spec)
    if any(count_tokens(canonical(item)) > longest for item in call.read(EmbeddingsRequest).items()):
        raise ErrorResponse(400, _TOO_LONG.format(most=longest, more=longest + 1), "bad_request", param="input_tokens")
    job = vector_route(call)

    def body(cached: int | None) -> bytes:
        made = json.loads(job.body(cached))
        used = {"completion_tokens": 0, "prompt_tokens_details": None, "completion_tokens_details": None}
        return encode({**made, "id": "embd-1", "created": 1, "usage": {**made["usage"], **used}})

    return job._replace(body=body)


_TOO_LONG = (
    "This model's maximum context length is {most} tokens. However, your prompt contains at least {more} input tokens, which exceeds this "
    "limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value={more})"
)
_GENERATE = {CHAT: _chat, COMPLETIONS: _completions}
_COMPARING = frozenset({"/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"})
_POOLING = {"/pooling", "/classify", EMBEDDINGS, *_COMPARING}


def vllm_of(task: str | None, labels: Sequence[str]) -> FakeServerKind:
    """Return the server with a model of this task, which lacks the routes of other tasks; None has all routes."""
    missing: set[str] = {"generate": _POOLING, "embed": {*_GENERATE, "/classify"}, "classify": {*_GENERATE, EMBEDDINGS}}.get(
        task or "", set()
    )
    if task == "classify" and len(labels) > 1:
        missing |= _COMPARING
    return replace(VLLM, routes={path: route for path, route in VLLM.routes.items() if path not in missing})


VLLM = replace(
    SERVER_KINDS["vllm"],
    routes={**SERVER_KINDS["vllm"].routes, **_GENERATE, EMBEDDINGS: _embeddings, "/pooling": _pooling, "/classify": _pooling},
    error=_error,
    status={
        "/v1/models": _models,
        "/load": lambda state: {"server_load": state.admission.in_flight + state.waiting},
        "/version": lambda _: {"version": VERSION},
        "/metrics": _metrics,
    },
    unknown="The model `{model}` does not exist. Valid aliases: {served}.",
    too_many="You must pass at least one prompt",
    too_long=_TOO_LONG,
)
