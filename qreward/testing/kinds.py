"""The kinds of fake server: what they are made of, and the routes of OpenAI, vLLM, SGLang, TEI, OpenRLHF and NIM."""

from __future__ import annotations

import json
import math
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

import msgspec

from qreward.errors import ConfigError
from qreward.testing import bodies
from qreward.testing.bodies import ChatRequest, canonical, count_tokens, digest_of, encode, listed, logits_of, probabilities_of, score_of
from qreward.testing.responders import Asked, JudgeRead, Write, writer_of
from qreward.testing.spec import FakeEndpoint

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
_TEI_PERMITS = 512

R = TypeVar("R", bound=ChatRequest | bodies.EmbeddingsRequest)


@dataclass(eq=False)
class ErrorResponse(Exception):
    """The server responds with an error. The response is not yet written in the format of the server, unless there is a ``body``."""

    status: int
    message: str
    counted: str
    type: str = "invalid_request_error"
    code: str | int | None = None
    ready_at: float | None = None
    param: str | None = None
    malformed: bool = False
    body: bytes = b""


class Job(NamedTuple):
    model: str | None
    digest: bytes
    prompt: int
    service: float
    items: int = 1
    length: int = 0
    completion: int = 0
    prompts: Sequence[bytes] = ()
    body: Callable[[int | None], bytes] = lambda _cached: b""
    chunks: Callable[[int | None], bodies.Chunks] | None = None  # only for a stream

    @property
    def tokens(self) -> int:
        return self.prompt + self.completion


Route = Callable[["RouteCall"], Job]
Status = Callable[[Any], Any]  # a function of a ``FakeServer`` that returns what a status route reports: lines of text, or a JSON document


@dataclass(frozen=True)
class FakeServerKind:
    routes: Mapping[str, Route]
    error: Callable[[str, ErrorResponse], bytes]
    status: Mapping[str, Status]
    health: frozenset[str] = frozenset({"/health"})
    unknown: str = "The model {model!r} does not exist."
    label: str = "LABEL_0"
    invalid: int = 400
    nan: tuple[int, str] | None = None
    most_items: int | None = None
    too_many: str = "a list must have 1 to {most} items, not {count}"
    too_long: str = "This model's maximum context length is {most} tokens. However, you requested {tokens} tokens."
    permits: bool = False


class RouteCall:
    """Holds one POST request. The function of a route receives a ``RouteCall``. All methods may raise :class:`ErrorResponse`."""

    def __init__(self, kind: FakeServerKind, path: str, body: bytes, spec: FakeEndpoint, write: Write | None = None) -> None:
        self.kind = kind
        self.path = path
        self.body = body
        self.spec = spec
        self._write = write or writer_of(spec.responder)
        self.labels = spec.scoring.labels or (kind.label,)

    @cached_property
    def data(self) -> dict[str, Any]:
        """The body. It may contain lone surrogates or NaN; real servers accept them, but strict decoders do not."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise self.invalid(str(error), malformed=True) from None
        if not isinstance(found, dict):
            raise self.invalid("the body must be an object", malformed=True)
        return found

    def read(self, kind: type[R]) -> R:
        try:
            return msgspec.convert(self.data, kind)
        except ValueError as error:
            raise self.invalid(str(error), malformed=True) from None

    def chat(self) -> ChatRequest:
        request = self.read(ChatRequest)
        if not request.messages:
            raise self.invalid("'messages' must not be empty")
        return request

    def content(self, messages: list[Any], digest: bytes) -> str:
        try:
            return self._write(messages, digest)
        except Exception as error:
            raise ErrorResponse(500, f"the responder raised {error!r}", "responder", "server_error") from error

    def invalid(self, message: str, malformed: bool = False) -> ErrorResponse:
        return ErrorResponse(self.kind.invalid, message, "bad_request", malformed=malformed)

    def documents(self, member: str = "documents") -> list[list[Any]]:
        return [[self.data.get("query"), document] for document in listed(self.data.get(member))]

    def job(self, items: list[Any], made: Callable[[int], Any]) -> Job:
        """Return the job for a list of items, which is refused as a whole if an item is unacceptable. ``made`` is a function that returns
        the response from the number of prompt tokens."""
        kind, most, longest = self.kind, self.kind.most_items, self.spec.scoring.max_tokens
        if not items or (most is not None and len(items) > most):
            raise self.invalid(kind.too_many.format(most=most, count=len(items)))
        if kind.permits and len(items) > (self.spec.max_concurrency or _TEI_PERMITS):
            raise ErrorResponse(429, "Model is overloaded", "rejected")
        encoded = [canonical(item) for item in items]
        if any(bodies.REFUSED.encode() in each for each in encoded):
            raise self.invalid(f"an input holds {bodies.REFUSED}")
        sizes = [count_tokens(each) for each in encoded]
        if max(sizes) > longest:
            raise ErrorResponse(
                kind.invalid, kind.too_long.format(most=longest, more=longest + 1, tokens=max(sizes)), "bad_request", param="input_tokens"
            )
        if kind.nan is not None and any(map(bodies.is_nan, items)):
            raise ErrorResponse(*kind.nan, "backend")
        prompt, service = sum(sizes), self.spec.latency.base + self.spec.scoring.per_item * len(items)
        model, digest = self.data.get("model"), digest_of(items)
        return Job(model, digest, prompt, service, len(items), body=lambda _cached: encode(made(prompt)))


def ranked(scores: list[float]) -> list[int]:
    """Return the indices of the scores, the highest score first, and NaN last."""
    return sorted(range(len(scores)), key=lambda at: -math.inf if math.isnan(scores[at]) else scores[at], reverse=True)


def inputs_of(call: RouteCall) -> list[Any]:
    return [call.data["messages"]] if "messages" in call.data else listed(call.data.get("input"))


def gauges(names: str, labels: str = "") -> Status:

    def text(server: Any) -> str:
        values = zip(names.split(), server.load, strict=False)
        return "".join(f"# HELP {name} .\n# TYPE {name} gauge\n{name}{labels} {value}\n" for name, value in values)

    return text


# OpenAI


def chat_route(call: RouteCall) -> Job:
    request, latency = call.chat(), call.spec.latency
    encoded = canonical(request.messages)
    digest, prompt = sha256(encoded).digest(), count_tokens(encoded)
    length = latency.draw(digest)
    output = length * (request.n or 1)

    def parts(cached: int | None) -> tuple[Any, ...]:
        return request, digest, call.content(request.messages, digest), bodies.usage(prompt, output, cached)

    return Job(
        request.model, digest, prompt, latency.seconds(length), length=length, completion=output, prompts=[encoded],
        body=lambda cached: encode(bodies.chat_completion(*parts(cached))),
        chunks=(lambda cached: bodies.Chunks(*parts(cached))) if request.stream else None,
    )  # fmt: skip


def embeddings_job(call: RouteCall) -> Job:
    request = call.read(bodies.EmbeddingsRequest)
    return call.job(request.items(), lambda prompt: bodies.embeddings(request, prompt))


def completions_job(call: RouteCall) -> Job:
    prompts = listed(call.data.get("prompt"))
    texts = [bodies.echo_text(digest_of(item)) for item in prompts for _ in range(call.data.get("n") or 1)]
    choices = [{"index": index, "text": text, "logprobs": None, "finish_reason": "stop"} for index, text in enumerate(texts)]
    made = {"id": "cmpl-1", "object": "text_completion", "model": call.data.get("model"), "choices": choices}
    return call.job(prompts, lambda prompt: {**made, "usage": bodies.usage(prompt, len(choices))})


def moderations_job(call: RouteCall) -> Job:
    data = call.data
    given = data.get("input")
    whole = isinstance(given, list) and all(isinstance(part, dict) for part in given)
    items = [given] if whole else listed(given)
    results = [{"flagged": score_of(item) > 0, "category_scores": {"harm": abs(score_of(item)) / 10}} for item in items]
    return call.job(items, lambda _: {"id": "modr-1", "model": data.get("model"), "results": results})


OPENAI = FakeServerKind(
    routes={CHAT: chat_route, EMBEDDINGS: embeddings_job, COMPLETIONS: completions_job, "/v1/moderations": moderations_job},
    error=lambda _path, error: bodies.error(error.message, error.type, error.code),
    status={"/v1/models": lambda server: bodies.models(server.spec.models)},
)


# Decisions, in OpenAI's form: the synthetic judge of the endpoint answers the questions


def decision_job(
    call: RouteCall, given: str, asked: Sequence[Asked], answer: Callable[[list[JudgeRead], int, int], Any], *, together: bool = False
) -> Job:
    """Return the job for a decision request, which takes the time of a chat with one output token per question.

    ``answer`` returns the response from what the judge reads, the prompt tokens and the cached tokens. The questions have one prompt each,
    or one ``together``.
    """
    judge, count = call.spec.synthetic_judge, len(asked)
    try:
        reads = [judge.read(given, each) for each in asked]
    except ConfigError as error:
        raise ErrorResponse(500, f"the synthetic judge: {error}", "responder", "server_error") from None
    written = [_written(each) for each in asked]
    prompts = [f"{given}\n\n{text}".encode(errors="replace") for text in (["\n\n".join(written)] if together else written)]
    tokens = sum(map(count_tokens, prompts))
    return Job(
        call.data.get("model"), digest_of([given, written]), tokens, call.spec.latency.seconds(count), items=count, completion=count,
        prompts=prompts, body=lambda cached: encode(answer(reads, tokens, cached or 0)),
    )  # fmt: skip


def _written(asked: Asked) -> str:
    labels = ("yes", "no") if asked.kind == "yes_no" else string.digits if asked.kind == "score" else string.ascii_uppercase
    lines = [f"{label}: {option}" for label, option in zip(labels, asked.options, strict=False)]
    return "\n".join([f"Question: {asked.text}", *lines])


def asked_of(question: Mapping[str, Any]) -> Asked:
    text, name = question["instructions"], question.get("name")
    if not isinstance(text, str):
        text = "\n".join(part["text"] for part in text)
    if question["type"] == "predicate":
        return Asked("yes_no", text, (True, False), name)
    if question["type"] == "choice":
        return Asked("choice", text, tuple(each["value"] for each in question["choices"]), name)
    return Asked("score", text, tuple(each["label"] for each in question["levels"]), name)


def expected_level(read: JudgeRead) -> float:
    return math.fsum(level * number for level, number in enumerate(read.probabilities))


def answer_of(asked: Asked, read: JudgeRead) -> dict[str, Any]:
    if asked.kind == "yes_no":
        return {"type": "predicate", "name": asked.name, "probability": read.probabilities[0]}
    confidence = max(read.probabilities) * read.label_mass
    pairs = list(zip(asked.options, read.probabilities, strict=True))
    if asked.kind == "choice":
        probabilities: list[dict[str, Any]] = [{"value": option, "probability": number} for option, number in pairs]
        decided: dict[str, Any] = {"choice": asked.options[read.place]}
    else:
        probabilities = [{"value": level, "label": option, "probability": number} for level, (option, number) in enumerate(pairs)]
        decided = {"score": expected_level(read)}
    return {"type": asked.kind, "name": asked.name, **decided, "probabilities": probabilities, "confidence": confidence}


def openai_job(call: RouteCall, given: str, asked: list[Asked], *, refuses: bool = True) -> Job:
    """Return the job for a request in OpenAI's form. vLLM has this form too: a prompt for each question, and no refusals (``refuses``)."""

    def answer(reads: list[JudgeRead], tokens: int, cached: int) -> Any:
        answers = [
            {"type": "refusal", "name": each.name} if refuses and read.refused else answer_of(each, read)
            for each, read in zip(asked, reads, strict=True)
        ]
        used = {
            "input_tokens": tokens, "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": len(asked), "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": tokens + len(asked),
        }  # fmt: skip
        return {"model": call.data.get("model"), "answers": answers, "usage": used}

    return decision_job(call, given, asked, answer, together=refuses)


def decisions_route(call: RouteCall) -> Job:
    try:
        asked = [asked_of(question) for question in call.data["questions"]]
        given = bodies.text_of(call.data["input"])
    except (KeyError, TypeError, AttributeError) as error:
        raise call.invalid(f"'input' and 'questions' must have the form of OpenAI's decisions: {error!r}") from None
    return openai_job(call, given, asked, refuses=call.spec.kind != "vllm")


# What vLLM and SGLang have in common


def rows_job(call: RouteCall, items: list[Any], row: Callable[[Any], dict[str, Any]]) -> Job:
    rows = [{"index": index, **row(item)} for index, item in enumerate(items)]
    made = {"id": f"{call.path}-1", "object": "list", "created": 1, "model": call.data.get("model"), "data": rows}
    details = {"prompt_tokens_details": None, "completion_tokens_details": None}
    return call.job(items, lambda prompt: {**made, "usage": {**bodies.usage(prompt, 0), **details}})


def class_row(call: RouteCall, probs: list[float]) -> dict[str, Any]:
    return {"label": call.labels[probs.index(max(probs))], "probs": probs, "num_classes": len(probs)}


def vector_route(call: RouteCall) -> Job:
    if not call.spec.scoring.reward_vectors:
        return embeddings_job(call)
    return rows_job(call, inputs_of(call), lambda item: {"object": "embedding", "embedding": logits_of(item, call.labels)})


# vLLM


_PAIRS = (("text_1", "queries"), ("text_2", "documents"))


def _values(call: RouteCall, item: Any) -> list[float]:
    logits = logits_of(item, call.labels)
    return logits if call.data.get(call.spec.scoring.activation_field) is False else probabilities_of(logits)


def _pooling(call: RouteCall) -> Job:
    def row(item: Any) -> dict[str, Any]:
        values = _values(call, item)
        return {"object": "pooling", "data": [[0.0] * len(values), values] if call.data.get("task") == "token_classify" else values}

    return rows_job(call, inputs_of(call), row)


def _scores(call: RouteCall) -> Job:
    left, right = (listed(call.data.get(new) if new in call.data else call.data.get(old)) for new, old in _PAIRS)
    if len(left) not in (1, len(right)) or len(call.labels) > 1:
        raise call.invalid("Input lengths must be either 1:1, 1:N or N:N, and num_labels 1")
    pairs = [list(pair) for pair in zip(left * len(right) if len(left) == 1 else left, right, strict=True)]
    return rows_job(call, pairs, lambda pair: {"object": "score", "score": _values(call, pair)[0]})


def _rerank(call: RouteCall) -> Job:
    data, items = call.data, call.documents()
    scores = [_values(call, item)[0] for item in items]
    rows = [
        {"index": at, "document": {"text": items[at][1], "multi_modal": None}, "relevance_score": scores[at]}
        for at in ranked(scores)[: data.get("top_n") or len(items)]
    ]
    made = {"id": "rerank-1", "model": data.get("model"), "results": rows}
    return call.job(items, lambda prompt: {**made, "usage": {"prompt_tokens": prompt, "total_tokens": prompt}})


_VLLM = replace(
    OPENAI,
    routes={
        **OPENAI.routes,
        EMBEDDINGS: vector_route,
        "/pooling": _pooling,
        "/classify": lambda call: rows_job(call, inputs_of(call), lambda item: class_row(call, _values(call, item))),
        **dict.fromkeys(("/score", "/v1/score"), _scores),
        **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), _rerank),
    },
    status={
        **OPENAI.status,
        "/metrics": gauges(
            "vllm:num_requests_running vllm:num_requests_waiting vllm:kv_cache_usage_perc", '{engine="0",model_name="fake"}'
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
        return {"embedding": logits_of(item, call.labels), "meta_info": meta}

    alone = isinstance(given, str) or items == [given]
    return call.job(items, lambda _: row(items[0]) if alone else [row(item) for item in items])


def _sglang_rerank(call: RouteCall) -> Job:
    items = call.documents()
    scores = [logits_of(item, ("",))[0] for item in items]
    return call.job(items, lambda _: [{"score": scores[at], "document": items[at][1], "index": at} for at in ranked(scores)])


def _sglang_error(path: str, error: ErrorResponse) -> bytes:
    if not path.startswith("/v1/"):
        return encode({"error": {"message": error.message}})
    return encode({"object": "error", "message": error.message, "type": error.type, "param": None, "code": error.status})


def _sglang_loads(server: Any) -> Any:
    row = {"dp_rank": 0, "num_running_reqs": server.running, "num_waiting_reqs": server.waiting, "token_usage": 0.25}
    row["max_running_requests"] = server.spec.max_concurrency or 256
    return {"timestamp": "", "version": "0.5.23", "loads": [row]}


_SGLANG = FakeServerKind(
    routes={
        CHAT: chat_route, COMPLETIONS: completions_job, EMBEDDINGS: vector_route, "/classify": _sglang_classify,
        "/v1/rerank": _sglang_rerank,
        "/v1/classify": lambda call: rows_job(
            call, inputs_of(call), lambda item: class_row(call, bodies.softmax(logits_of(item, call.labels)))
        ),
    },
    error=_sglang_error,
    status={
        **OPENAI.status,
        "/v1/loads": _sglang_loads,
        "/metrics": gauges("sglang:num_running_reqs sglang:num_queue_reqs sglang:token_usage", '{model_name="fake"}'),
    },
    health=frozenset({"/health", "/health_generate", "/ready"}),
)  # fmt: skip


# TEI: errors have one format on TEI's own routes, and a different format on the OpenAI routes

_TEI_TYPES = {400: "Empty", 413: "Validation", 422: "Validation", 424: "Backend", 429: "Overloaded", 503: "Unhealthy"}
_TEI_ITEMS = 32


def _tei_cut(call: RouteCall, item: Any) -> Any:
    """Return the beginning of a text or pair that is too long, or the whole if the request has ``truncate: false``."""
    most = bodies.BYTES_PER_TOKEN * call.spec.scoring.max_tokens
    match item:
        case str() if call.data.get("truncate") is not False:
            return item[:most]
        case [str() as first, str() as second] if call.data.get("truncate") is not False:
            return [first, second[: max(0, most - len(first) - 4)]]
    return item


def _tei_predict(call: RouteCall) -> Job:
    given: Any = call.data.get("inputs")
    raw = call.data.get("raw_scores") is True
    is_list = isinstance(given, list) and bool(given) and isinstance(given[0], list)
    # ["t"] stands for the text "t"; ["q", "a"] stays a pair
    items = [_tei_cut(call, item[0] if isinstance(item, list) and len(item) == 1 else item) for item in (given if is_list else [given])]

    def row(item: Any) -> Any:
        logits = logits_of(item, call.labels)
        scores = logits if raw else probabilities_of(logits)
        return [{"score": scores[at], "label": call.labels[at]} for at in ranked(scores)]

    return call.job(items, lambda _: [row(item) for item in items] if is_list else row(items[0]))


def _tei_rerank(call: RouteCall) -> Job:
    raw = call.data.get("raw_scores") is True
    items = [_tei_cut(call, item) for item in call.documents("texts")]
    logits = [logits_of(item, ("",)) for item in items]
    scores = [(each if raw else probabilities_of(each))[0] for each in logits]
    return call.job(items, lambda _: [{"index": at, "score": scores[at]} for at in ranked(scores)])


def _tei_error(path: str, error: ErrorResponse) -> bytes:
    name = _TEI_TYPES.get(error.status, "Backend")
    if path.startswith("/v1/"):
        return encode({"message": error.message, "code": error.status, "type": name})
    return encode({"error": error.message, "error_type": name})


def _tei_info(server: Any) -> Any:
    spec = server.spec
    names = {str(position): name for position, name in enumerate(spec.scoring.labels or ("LABEL_0",))}
    return {
        "model_id": "fake", "model_type": {"classifier": {"id2label": names}}, "max_input_length": spec.scoring.max_tokens,
        "max_concurrent_requests": spec.max_concurrency or _TEI_PERMITS, "max_batch_tokens": 16384, "max_batch_requests": None,
        "max_client_batch_size": _TEI_ITEMS, "auto_truncate": True, "version": "1.9.0",
    }  # fmt: skip


_TEI = FakeServerKind(
    routes={"/predict": _tei_predict, "/rerank": _tei_rerank, EMBEDDINGS: embeddings_job},
    error=_tei_error,
    status={"/info": _tei_info, "/metrics": gauges("te_batch_next_size te_queue_size")},
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
    content = ",".join(f"{name}:{value:.3f}" for name, value in zip(call.labels, logits_of(request.messages, call.labels), strict=True))
    digest = digest_of(request.messages)
    return call.job([request.messages], lambda prompt: bodies.chat_completion(request, digest, content, bodies.usage(prompt, 1)))


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
