"""From what servers say to what may be done about it: one row a dialect, as servers really put it."""

from __future__ import annotations

import json
import random
import string
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict
from shared_tools import each

from qreward.codecs.base import EmbeddedError, Malformed, Reply, TransportError, Unfinished, WireRequest
from qreward.codecs.chat import CHAT
from qreward.codecs.rate_limit_headers import retry_after, should_retry
from qreward.errors import (
    AuthenticationFailed,
    BadRequest,
    ConnectionFailed,
    InvalidResponse,
    QRewardError,
    RateLimited,
    RequestTimeout,
    ServerError,
)
from qreward.scheduler.outcome import Failure, FailureKind
from qreward.settings.policies import Endpoint
from qreward.transport.connection import EndpointConnection
from qreward.transport.error_mapping import failure_from_body, failure_from_reply, failure_from_transport
from qreward.transport.redaction import Secrets

NONE = Secrets()
NOW = 1_800_000_000.0
K = FailureKind
OVERLOADED, QUOTA, TRANSIENT, UNSUITABLE, REFUSED = K.OVERLOADED, K.QUOTA, K.TRANSIENT, K.UNSUITABLE, K.REFUSED


def failure(status: int, body: Any = b"", secrets: Secrets = NONE, **headers: str) -> Failure:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
    return failure_from_reply(Reply(status, fields, raw), "gpu-0", "judge-7b", secrets, NOW)


def openai(message: str = "words", kind: str | None = None, code: Any = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def sglang(message: str, code: int) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": "BadRequest", "param": None, "code": code}


TOO_LONG_TEXTS = [
    "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.",
    "The decoder prompt (length 9000) is longer than the maximum model length of 8192. Make sure that ...",
    "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
    "Requested token count exceeds the model's maximum context length of 8192 tokens.",
    "the request exceeds the available context size, try increasing it",
    "prompt is too long: 210000 tokens > 200000 maximum",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
]

TABLE: list[tuple[int, Any, FailureKind, type[QRewardError], bool]] = [
    # status, body, kind, error, misconfigured
    (429, openai("Rate limit reached", "tokens", "rate_limit_exceeded"), OVERLOADED, RateLimited, False),
    (429, b"", OVERLOADED, RateLimited, False),
    (429, {"error": "Model is overloaded", "error_type": "overloaded"}, OVERLOADED, RateLimited, False),
    (429, {"message": "Model is overloaded", "code": 429, "type": "overloaded"}, OVERLOADED, RateLimited, False),
    (429, openai("You exceeded your current quota", "insufficient_quota", "insufficient_quota"), QUOTA, RateLimited, False),
    (429, openai("Billing hard limit has been reached", "insufficient_quota", "billing_hard_limit_reached"), QUOTA, RateLimited, False),
    (400, openai("Billing hard limit has been reached", "invalid_request_error", "billing_hard_limit_reached"), QUOTA, RateLimited, False),
    (403, openai("no credit", code="insufficient_quota"), QUOTA, RateLimited, False),
    (400, openai("Wrong key; too many requests came with it", code="invalid_api_key"), UNSUITABLE, AuthenticationFailed, True),
    (402, {"error": {"message": "Insufficient Balance"}}, QUOTA, RateLimited, False),
    (
        429,
        [{"error": {"code": 429, "message": "exceeded your current quota", "status": "RESOURCE_EXHAUSTED"}}],
        OVERLOADED,
        RateLimited,
        False,
    ),
    (503, sglang("The request queue is full.", 503), OVERLOADED, RateLimited, False),
    (503, b"upstream connect error", OVERLOADED, RateLimited, False),
    (529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, OVERLOADED, RateLimited, False),
    (500, {"error": {"type": "overloaded_error", "message": "Overloaded"}}, OVERLOADED, RateLimited, False),
    (400, openai("The server is overloaded, try later", "invalid_request_error"), OVERLOADED, RateLimited, False),
    (400, openai("rate limit exceeded", code=429), OVERLOADED, RateLimited, False),
    (400, sglang("The request queue is full.", 400), OVERLOADED, RateLimited, False),
    (500, openai("upstream account", "server_error", "insufficient_quota"), TRANSIENT, ServerError, False),
    (502, {"error": {"message": "no credit there", "code": "insufficient_credits"}}, TRANSIENT, ServerError, False),
    (503, openai("upstream account", None, "insufficient_quota"), OVERLOADED, RateLimited, False),
    (500, openai("boom", "InternalServerError", 500), TRANSIENT, ServerError, False),
    (500, b"Internal Server Error", TRANSIENT, ServerError, False),
    (502, b"<html><head><title>502 Bad Gateway</title></head></html>", TRANSIENT, ServerError, False),
    (504, b"", TRANSIENT, ServerError, False),
    (520, b"", TRANSIENT, ServerError, False),
    (408, b"", TRANSIENT, ServerError, False),
    (409, b"", TRANSIENT, ServerError, False),
    (425, b"", TRANSIENT, ServerError, False),
    (424, {"error": "NaN in the scores", "error_type": "Backend"}, TRANSIENT, ServerError, False),
    (400, {"message": "NaN in the scores", "code": 424, "type": "Backend"}, TRANSIENT, ServerError, False),
    (501, openai("not for this model", "NotImplementedError", 501), UNSUITABLE, ServerError, True),
    (401, openai("Incorrect API key provided", "invalid_request_error", "invalid_api_key"), UNSUITABLE, AuthenticationFailed, True),
    (401, {"error": "Unauthorized"}, UNSUITABLE, AuthenticationFailed, True),
    (403, {"detail": "Not authenticated"}, UNSUITABLE, AuthenticationFailed, True),
    (400, openai("API key not valid", "invalid_request_error", "invalid_api_key"), UNSUITABLE, AuthenticationFailed, True),
    (407, b"", UNSUITABLE, AuthenticationFailed, True),
    (404, openai("The model `m` does not exist.", "NotFoundError", 404), UNSUITABLE, BadRequest, True),
    (404, {"detail": "Not Found"}, UNSUITABLE, BadRequest, True),
    (405, {"detail": "Method Not Allowed"}, UNSUITABLE, BadRequest, True),
    (410, b"", UNSUITABLE, BadRequest, True),
    (400, openai("no such model", "invalid_request_error", "model_not_found"), UNSUITABLE, BadRequest, True),
    *((status, b"", UNSUITABLE, InvalidResponse, True) for status in (300, 307, 399)),
    (400, b"", REFUSED, BadRequest, False),
    (400, openai("unknown role", "BadRequestError", 400), REFUSED, BadRequest, False),
    (400, openai("filtered", None, "content_filter"), REFUSED, BadRequest, False),
    (400, sglang("bad temperature", 400), REFUSED, BadRequest, False),
    (413, b"", REFUSED, BadRequest, False),
    (415, b"", REFUSED, BadRequest, False),
    (422, {"detail": [{"loc": ["body", "messages"], "msg": "field required", "type": "missing"}]}, REFUSED, BadRequest, False),
    (422, {"error": "batch size 64 > maximum allowed batch size 32", "error_type": "Validation"}, REFUSED, BadRequest, False),
    (418, b"", REFUSED, BadRequest, False),
    (422, {"error": "`inputs` must have less than 512 tokens. Given: 600", "error_type": "Validation"}, UNSUITABLE, BadRequest, False),
    (400, openai("too many tokens", "invalid_request_error", "context_length_exceeded"), UNSUITABLE, BadRequest, False),
    (400, sglang(TOO_LONG_TEXTS[2], 400), UNSUITABLE, BadRequest, False),
    *((400, openai(text, "BadRequestError", 400), UNSUITABLE, BadRequest, False) for text in TOO_LONG_TEXTS),
    (999, b"", TRANSIENT, ServerError, False),
    (503, {"error": "unhealthy", "error_type": "Unhealthy"}, OVERLOADED, RateLimited, False),
    (422, {"error": "x", "error_type": "Tokenizer"}, REFUSED, BadRequest, False),
    (400, {"error": "`inputs` cannot be empty", "error_type": "Empty"}, REFUSED, BadRequest, False),
    (422, {"message": "x", "code": 422, "type": "Validation"}, REFUSED, BadRequest, False),
    (413, {"error": "payload too large", "error_type": "Validation"}, REFUSED, BadRequest, False),
    (503, {"error": {"message": "aborted by a higher priority request"}}, OVERLOADED, RateLimited, False),
    (400, {"error": {"message": "bad"}}, REFUSED, BadRequest, False),
    (503, openai("x", "QueueOverflowError", 503), OVERLOADED, RateLimited, False),
    (400, openai("max 300000 tokens per request", "max_tokens_per_request", "x"), REFUSED, BadRequest, False),
]


@each("status, body, kind, error, misconfigured", TABLE)
def test_what_a_status_and_its_body_mean(status: int, body: Any, kind: FailureKind, error: type[QRewardError], misconfigured: bool) -> None:
    got = failure(status, body, x_request_id="req-1")
    assert (got.kind, type(got.error), got.misconfigured) == (kind, error, misconfigured)
    told = got.error
    assert (told.endpoint, told.model, told.status_code, told.request_id) == ("gpu-0", "judge-7b", status, "req-1")  # type: ignore[attr-defined]
    assert str(told).startswith(f"endpoint 'gpu-0' answered {status} for model 'judge-7b'")


EMBEDDED: list[tuple[Any, FailureKind]] = [
    ({"code": 429, "message": "Rate limited upstream"}, OVERLOADED),
    ({"code": "429", "message": "x"}, OVERLOADED),
    ({"code": "rate_limit_exceeded", "message": "x"}, OVERLOADED),
    ({"code": 503, "message": "x"}, OVERLOADED),
    ({"type": "overloaded_error", "message": "x"}, OVERLOADED),
    ("Too many requests, slow down", OVERLOADED),
    ({"code": "insufficient_quota"}, QUOTA),
    ({"code": 402, "message": "Insufficient credits"}, QUOTA),
    ({"code": 500, "message": "x"}, TRANSIENT),
    ({"code": 502, "message": "Provider returned error"}, TRANSIENT),
    ({"code": -1, "message": "x"}, TRANSIENT),
    ({"message": "no code at all"}, TRANSIENT),
    ("CUDA out of memory", TRANSIENT),
    ({"code": 400, "message": "x"}, REFUSED),
    ({"type": "invalid_request_error", "message": "x"}, REFUSED),
    ({"code": "context_length_exceeded", "message": "x"}, UNSUITABLE),
    (TOO_LONG_TEXTS[0], UNSUITABLE),
    ({"code": 401, "message": "x"}, UNSUITABLE),
    ({"code": "model_not_found", "message": "x"}, UNSUITABLE),
    (["odd"], TRANSIENT),
    (7, TRANSIENT),
]


@each("error, kind", EMBEDDED)
def test_what_an_error_in_a_successful_answer_means(error: Any, kind: FailureKind) -> None:
    got = failure_from_body(EmbeddedError(error), Reply(200, CIMultiDict({"retry-after": "3"}), b""), "gpu-0", "judge-7b", NONE, NOW)
    assert (got.kind, got.retry_after) == (kind, 3.0)
    assert "answered 200 for model 'judge-7b': an error in the body: " in str(got.error)


MESSAGES: list[tuple[int, Any, str]] = [
    (401, openai("Incorrect API key"), "Incorrect API key; check api_key of endpoint 'gpu-0'"),
    (401, openai("Incorrect API key provided."), "Incorrect API key provided; check api_key of endpoint 'gpu-0'"),
    (401, openai("Wait..."), "Wait...; check api_key of endpoint 'gpu-0'"),
    (
        404,
        openai("no such model"),
        "no such model; check base_url of endpoint 'gpu-0', and that it serves 'judge-7b' (model_names maps names)",
    ),
    (429, openai("slow\r\ndown\x00"), "answered 429 for model 'judge-7b': slow down"),
    (422, {"detail": [{"loc": ["body", 0], "msg": "bad", "input": "the prompt"}, {"msg": "worse"}]}, ": body.0: bad; worse"),
    (400, {"detail": {"message": "inner"}}, ": inner"),
    (400, {"error": {"message": {"message": "deep"}}}, ": deep"),
    (400, {"message": "outer", "error": {"message": "inner"}}, ": inner"),
    (422, {"detail": [{"loc": [], "msg": "nowhere"}]}, "'judge-7b': nowhere"),
    (400, {"unknown": 1}, "answered 400 for model 'judge-7b'"),
    (500, b"<html><style>p {}</style><h1>Oh&nbsp;no</h1><script>alert(1)</script></html>", ": Oh&nbsp;no"),
    (500, b"plain words", ": plain words"),
    (500, b"\xff\xfe", "answered 500 for model 'judge-7b'"),
    (413, b"", "answered 413 for model 'judge-7b'; send a smaller request"),
]


def test_a_refusal_of_a_request_without_a_key_says_that_none_was_sent_and_how_to_set_one() -> None:
    request = WireRequest(CHAT, "judge-7b", [], {}, None)
    sent = "answered 401 for model 'judge-7b': Incorrect API key provided; check api_key of endpoint 'gpu-0'"
    none = "answered 401 for model 'judge-7b', and no API key was sent: Incorrect API key provided; set api_key of endpoint 'gpu-0'"
    cases: list[tuple[dict[str, Any], WireRequest, str]] = [
        ({}, request, none),
        ({"api_key": ""}, request, none),
        ({"api_key": "sk-wrong-key"}, request, sent),
        ({"headers": {"X-Key": "abc"}}, request, sent),
        ({}, WireRequest(CHAT, "judge-7b", [], {}, {"Authorization": "Bearer abc"}), sent),
        ({"http_client": httpx.AsyncClient(auth=("user", "password"))}, request, sent),
    ]
    body = json.dumps(openai("Incorrect API key provided")).encode()
    for settings, call, expected in cases:
        connection = EndpointConnection(Endpoint("http://gpu-0:8000/v1", name="gpu-0", **settings))
        got = connection.failure_from_reply(Reply(401, CIMultiDict(), body), call)
        assert expected in str(got.error), settings
        assert isinstance(got.error, AuthenticationFailed)
        assert ("'${JUDGE_KEY}'" in str(got.error)) is (expected is none)


@each("status, body, expected", MESSAGES)
def test_the_message_gives_the_servers_words_and_what_to_change(status: int, body: Any, expected: str) -> None:
    text = str(failure(status, body).error)
    assert expected in text
    assert text.isprintable()
    assert text.strip("; ") == text
    assert "the prompt" not in text


@each("body", [openai("long " * 1000), b"long " * 1000, b"<p>" * 100_000, {"detail": [{"msg": "x" * 999}] * 50}])
def test_long_words_are_cut(body: Any) -> None:
    assert len(str(failure(500, body).error)) < 400


@each(
    "location, shown",
    [
        ("https://other.example/v1?token=abc", "it points to host 'other.example'"),
        ("https://user:pw@other.example", "it points to host 'other.example'"),
        ("/v2/chat?token=abc", "it points to another path of the same host"),
        ("http://[", "it points to another path of the same host"),
        (None, "it points to another path of the same host"),
    ],
)
def test_a_redirect_names_the_host_it_points_to_and_nothing_else(location: str | None, shown: str) -> None:
    headers: dict[str, Any] = {"location": location} if location else {}
    text = str(failure(307, b"", **headers).error)
    assert text == f"endpoint 'gpu-0' answered 307 for model 'judge-7b': {shown}; set base_url of endpoint 'gpu-0' to the final address"


TRANSPORT = [
    (TransportError("x"), TRANSIENT, ConnectionFailed),
    (TransportError("x", sent=False), K.UNREACHABLE, ConnectionFailed),
    (TransportError("x", sent=False, timeout=True), K.UNREACHABLE, ConnectionFailed),
    (TransportError("x", timeout=True), K.TIMEOUT, RequestTimeout),
    (TransportError("x", sent=False, local=True), K.LOCAL, ConnectionFailed),
    (TransportError("x", malformed=True), TRANSIENT, InvalidResponse),
]


@each("error, kind, cls", TRANSPORT)
def test_what_a_broken_line_means(error: TransportError, kind: FailureKind, cls: type[QRewardError]) -> None:
    got = failure_from_transport(error, "gpu-0", "judge-7b", NONE)
    assert (got.kind, type(got.error)) == (kind, cls)
    assert str(got.error) == "endpoint 'gpu-0', model 'judge-7b': x"


def test_a_body_that_is_no_answer_shows_how_it_begins() -> None:
    got = failure_from_body(Malformed("the answer is not JSON"), Reply(200, {}, b"<html>\n" + b"x" * 999), "gpu-0", "judge-7b", NONE)
    assert (got.kind, type(got.error)) == (TRANSIENT, InvalidResponse)
    assert str(got.error).startswith("endpoint 'gpu-0' answered 200 for model 'judge-7b': the answer is not JSON; it begins: <html> xxx")
    assert len(str(got.error)) < 320
    nothing = failure_from_body(Malformed("the answer is empty"), Reply(200, {}, b""), "gpu-0", "judge-7b", NONE)
    assert str(nothing.error) == "endpoint 'gpu-0' answered 200 for model 'judge-7b': the answer is empty"


def test_a_failure_tells_the_rate_limits_that_its_response_states_even_if_the_body_is_no_answer() -> None:
    headers = CIMultiDict({"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "7"})
    found = [failure_from_reply(Reply(429, headers, b""), "gpu-0", "judge-7b", NONE)]
    for error in (EmbeddedError("odd"), Malformed("no JSON"), Unfinished("length")):
        found.append(failure_from_body(error, Reply(200, headers, b""), "gpu-0", "judge-7b", NONE))
    assert [failure.limits and failure.limits.requests and failure.limits.requests.remaining for failure in found] == [7] * 4


DATE = "Fri, 15 Jan 2027 08:00:30 GMT"  # 30 seconds after NOW
HINTS: list[tuple[dict[str, str], float | None]] = [
    ({}, None),
    ({"retry-after": "7"}, 7.0),
    ({"retry-after": "0"}, 0.0),
    ({"retry-after": " 1.5 "}, 1.5),
    ({"retry-after": DATE}, 30.0),
    ({"retry-after": "Fri, 15 Jan 2027 07:00:00 GMT"}, None),
    ({"retry-after": "-3"}, None),
    ({"retry-after": "nan"}, None),
    ({"retry-after": "inf"}, None),
    ({"retry-after": "1e999"}, None),
    ({"retry-after": "soon"}, None),
    ({"retry-after": ""}, None),
    ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
    ({"retry-after-ms": "x", "retry-after": "7"}, 7.0),
    ({"retry-after": "x", "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "2"}, 2.0),
    ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 360.0),
    ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "12ms"}, 0.012),
    ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1h2m3.5s"}, 3723.5),
    ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(NOW) + 9)}, 9.0),
    ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": f"{NOW * 1000 + 9000:.0f}"}, 9.0),
    ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(NOW) - 9)}, None),
    ({"x-ratelimit-remaining-requests": "5", "x-ratelimit-reset-requests": "6m0s"}, None),
    ({"x-ratelimit-reset-requests": "6m0s"}, None),
    ({"x-ratelimit-remaining-requests": "0"}, None),
    (
        {
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-requests": "1s",
            "x-ratelimit-remaining-tokens": "0",
            "x-ratelimit-reset-tokens": "4s",
        },
        4.0,
    ),
]


@each("headers, seconds", HINTS)
def test_how_long_to_stay_away(headers: dict[str, Any], seconds: float | None) -> None:
    assert retry_after(CIMultiDict(headers), NOW) == (None if seconds is None else pytest.approx(seconds))
    assert failure(429, **headers).retry_after == (None if seconds is None else pytest.approx(seconds))


@given(st.text(alphabet=string.digits + string.ascii_letters + " .:,-+", max_size=30), st.floats(0, 1e10))
def test_a_wait_is_never_negative_or_endless_whatever_the_header_says(text: str, now: float) -> None:
    for headers in ({"retry-after": text}, {"retry-after-ms": text}, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": text}):
        seconds = retry_after(headers, now)
        assert seconds is None or 0 <= seconds < float("inf")


@each("text, expected", [("true", True), ("False", False), ("maybe", None), ("", None)])
def test_the_servers_own_word_about_retrying(text: str, expected: bool | None) -> None:
    assert should_retry({"x-should-retry": text}) is expected
    assert failure(500, x_should_retry=text).should_retry is expected


@each("seed", range(5))
def test_no_body_is_too_odd_to_be_a_failure(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(300):
        body = json.dumps(_odd(dice, 4)).encode()
        cut = body[: dice.randrange(len(body) + 1)]
        for raw in (body, cut):
            assert isinstance(failure(dice.choice([400, 429, 500, 503]), raw), Failure), f"seed {seed}: {raw!r}"
        assert isinstance(failure_from_body(EmbeddedError(json.loads(body)), Reply(200, {}, body), "e", "m", NONE), Failure), (
            f"seed {seed}: {body!r}"
        )


def _odd(dice: random.Random, depth: int) -> Any:
    names = ["error", "message", "detail", "code", "type", "status", "error_type", "loc", "msg", "metadata"]
    leaf: Any = dice.choice([None, True, -1, 429, 1e400, "429", "", "words", "rate_limit_exceeded", "\ud800", {}, []])
    kind = dice.randrange(3) if depth else 0
    if kind == 0:
        return leaf
    if kind == 1:
        return [_odd(dice, depth - 1) for _ in range(dice.randrange(3))]
    return {dice.choice(names): _odd(dice, depth - 1) for _ in range(dice.randrange(4))}
