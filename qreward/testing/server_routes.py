"""What the kinds of fake server are made of, and the routes of the kind ``openai``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

from qreward.testing import openai_api
from qreward.testing.openai_api import ChatLabel, ChatRequest, EmbeddingsRequest
from qreward.testing.prefix_cache import PromptCache
from qreward.testing.rewards import NAN, REFUSED, logits_of, score_of
from qreward.testing.spec import FakeEndpoint
from qreward.testing.text import canonical, count_tokens, echo_text, encode

JSON, PLAIN = "application/json", "text/plain"
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
_TEI_PERMITS = 512
MOST_LOGPROBS = 20  # maximum ``top_logprobs`` of a chat at OpenAI, and at vLLM unless it is started with --max-logprobs

R = TypeVar("R", ChatRequest, EmbeddingsRequest)


FAILURES = {
    500: ("The server had an error while processing the request.", "server_error"),
    503: ("The server is not ready.", "server_error"),
}


class ErrorResponse(Exception):
    """The server responds with an error. The response is not yet written in the format of the server."""

    body = b""

    def __init__(
        self,
        status: int,
        message: str,
        counted: str,
        type_: str = "invalid_request_error",
        code: str | int | None = None,
        ready_at: float | None = None,
        param: str | None = None,
        malformed: bool = False,
    ) -> None:
        super().__init__(message)
        self.param, self.malformed = param, malformed
        self.status, self.message, self.counted = status, message, counted
        self.type, self.code, self.ready_at = type_, code, ready_at


class Job(NamedTuple):
    """Holds a parsed request and the work that serves the request."""

    model: str | None
    digest: bytes
    prompt: int
    service: float
    items: int = 1
    length: int = 0
    most: int | None = None
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
    """Holds what the status routes of a server report: its settings and its present load."""

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
    """Defines a kind of fake server."""

    routes: Mapping[str, Route]
    error: Callable[[str, ErrorResponse], bytes]
    status: Mapping[str, tuple[str, Status]]
    health: frozenset[str] = frozenset({"/health"})
    guarded: tuple[str, ...] = ("/",)
    completion: Callable[..., dict[str, Any]] = openai_api.chat_completion
    chunks: type[openai_api.Chunks] = openai_api.Chunks
    unknown: str = "The model {model!r} does not exist."
    failures: Mapping[int, tuple[str, str]] = field(default_factory=lambda: FAILURES)
    full: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    wrong_method: int = 404
    request_ids: bool = True
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
            raise self._malformed(str(error)) from None
        if not isinstance(found, dict):
            raise self._malformed("the body must be an object")
        return found

    def read(self, kind: type[R], body: bytes | None = None) -> R:
        """Return the body as a request of the OpenAI API."""
        try:
            return openai_api.read(kind, self.body if body is None else body)
        except ValueError as error:
            raise self._malformed(str(error)) from None

    def chat(self) -> ChatRequest:
        """Return the body as a chat with messages."""
        request = self.read(ChatRequest)
        if not request.messages:
            raise self.invalid("'messages' must not be empty")
        return request

    def _malformed(self, message: str) -> ErrorResponse:
        return ErrorResponse(self.kind.invalid, message, "bad_request", malformed=True)

    def invalid(self, message: str) -> ErrorResponse:
        return ErrorResponse(self.kind.invalid, message, "bad_request")

    def job(self, items: list[Any], made: Callable[[int], Any], model: str | None = None) -> Job:
        """Return the job for a list of items. ``made`` is a function that returns the response from the number of prompt tokens."""
        prompt = sum(self._checked(items))
        failure = None
        if self.kind.nan is not None and any(is_nan(item) for item in items):
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
        if kind.permits and len(items) > permits_of(self.spec):
            raise ErrorResponse(429, "Model is overloaded", "rejected")
        encoded = [canonical(item) for item in items]
        if any(REFUSED.encode() in each for each in encoded):
            raise self.invalid(f"an input holds {REFUSED}")
        sizes = [count_tokens(each) for each in encoded]
        if max(sizes) > longest:
            raise ErrorResponse(
                kind.invalid, kind.too_long.format(most=longest, more=longest + 1, tokens=max(sizes)), "bad_request", param="input_tokens"
            )
        return sizes


def permits_of(spec: FakeEndpoint) -> int:
    return spec.max_concurrency or _TEI_PERMITS


def is_nan(item: Any) -> bool:
    return NAN in encode(item).decode()


def finite(values: list[float], item: Any) -> list[float | None]:
    """Return the values of an item. If the item contains ``NAN``, each value is None (JSON null)."""
    return [None] * len(values) if is_nan(item) else list(values)


def listed(given: Any) -> list[Any]:
    """Return the items of an input in OpenAI's format. A text is one item, and so is a list of numbers."""
    if isinstance(given, str) or (isinstance(given, list) and given and isinstance(given[0], int)):
        return [given]
    return given if isinstance(given, list) else []


def inputs_of(call: RouteCall) -> list[Any]:
    """Return the items of ``input``, or the one conversation of ``messages``."""
    return [call.data["messages"]] if "messages" in call.data else listed(call.data.get("input"))


def gauges(names: str, labels: str = "") -> Status:
    """Return a function that writes gauges in the Prometheus text format."""

    def text(state: ServerState) -> str:
        values = zip(names.split(), state.load, strict=False)
        return "".join(f"# HELP {name} .\n# TYPE {name} gauge\n{name}{labels} {value}\n" for name, value in values)

    return text


def json_status(made: Callable[[ServerState], Any]) -> tuple[str, Status]:
    return JSON, lambda state: encode(made(state)).decode()


# OpenAI


def chat_job(call: RouteCall, label: ChatLabel | None = None) -> Job:
    """Return the job for a chat. ``label`` is the only token of the response, if the chat asks for one."""
    request, latency = call.chat(), call.spec.latency
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


def chat_route(call: RouteCall) -> Job:
    request = call.chat()
    most = request.top_logprobs or 0
    if most and not request.logprobs:
        raise call.invalid("when using `top_logprobs`, `logprobs` must be set to true.")
    if not 0 <= most <= MOST_LOGPROBS:
        raise call.invalid(f"Invalid value for 'top_logprobs': must be from 0 to {MOST_LOGPROBS}, not {most}.")
    return chat_job(call)


def embeddings_job(call: RouteCall) -> Job:
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


def completions_job(call: RouteCall) -> Job:
    data = call.data
    prompts, each = listed(data.get("prompt")), data.get("n") or 1

    def made(prompt: int) -> Any:
        texts = [echo_text(sha256(canonical(item)).digest()) for item in prompts for _ in range(each)]
        choices = [{"index": index, "text": text, "logprobs": None, "finish_reason": "stop"} for index, text in enumerate(texts)]
        used = openai_api.usage(prompt, len(choices))
        return {"id": "cmpl-1", "object": "text_completion", "model": data.get("model"), "choices": choices, "usage": used}

    return call.job(prompts, made, data.get("model"))


def moderations_job(call: RouteCall) -> Job:
    data = call.data
    given = data.get("input")
    whole = isinstance(given, list) and all(isinstance(part, dict) for part in given)
    items = [given] if whole else listed(given)
    results = [{"flagged": score_of(item) > 0, "category_scores": {"harm": abs(score_of(item)) / 10}} for item in items]
    return call.job(items, lambda _: {"id": "modr-1", "model": data.get("model"), "results": results}, data.get("model"))


OPENAI = FakeServerKind(
    routes={CHAT: chat_route, EMBEDDINGS: embeddings_job, COMPLETIONS: completions_job, "/v1/moderations": moderations_job},
    error=lambda _path, error: openai_api.error(error.message, error.type, error.code),
    status={"/v1/models": json_status(lambda state: openai_api.models(state.spec.models))},
)


# What vLLM and SGLang have in common


def list_route(row: Callable[[RouteCall, Any], dict[str, Any]], items_of: Callable[[RouteCall], list[Any]] = inputs_of) -> Route:
    """Return a route whose response has vLLM's form: one row for each item."""

    def serve(call: RouteCall) -> Job:
        items, model = items_of(call), call.data.get("model")
        rows = [{"index": index, **row(call, item)} for index, item in enumerate(items)]

        def made(prompt: int) -> Any:
            used = {"prompt_tokens": prompt, "total_tokens": prompt, "completion_tokens": 0, "prompt_tokens_details": None}
            if call.spec.kind == "vllm":
                used["completion_tokens_details"] = None
            return {"id": f"{call.path}-1", "object": "list", "created": 1, "model": model, "data": rows, "usage": used}

        return call.job(items, made, model)

    return serve


def class_row(call: RouteCall, item: Any, probs: list[float]) -> dict[str, Any]:
    return {"label": call.labels[probs.index(max(probs))], "probs": finite(probs, item), "num_classes": len(probs)}


_reward_vectors = list_route(lambda call, item: {"object": "embedding", "embedding": finite(logits_of(item, call.labels), item)})


def vector_route(call: RouteCall) -> Job:
    return _reward_vectors(call) if call.spec.scoring.reward_vectors else embeddings_job(call)
