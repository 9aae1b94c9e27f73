"""From what servers say to what may be done about it, in the words in which servers really put it."""

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

from qreward.codecs.base import Codec, EmbeddedError, Malformed, Reply, TransportError, Unfinished, WireRequest
from qreward.codecs.chat import CHAT, passthrough
from qreward.codecs.embeddings import EMBEDDINGS
from qreward.codecs.rate_limit_headers import retry_after
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
from qreward.integrations.openai import ROUTES
from qreward.scheduler.outcome import Answer, Failure, FailureKind
from qreward.settings.policies import Endpoint
from qreward.transport.backend import EndpointConnection
from qreward.transport.connection_settings import Secrets
from qreward.transport.error_mapping import FailedReply, failure_from_transport

NONE = Secrets()
NOW = 1_800_000_000.0
K = FailureKind

Meaning = tuple[FailureKind, type[QRewardError], bool]
OVERLOADED: Meaning = (K.OVERLOADED, RateLimited, False)
QUOTA: Meaning = (K.QUOTA, RateLimited, False)
TRANSIENT: Meaning = (K.TRANSIENT, ServerError, False)
WRONG_KEY: Meaning = (K.UNSUITABLE, AuthenticationFailed, True)
WRONG_PLACE: Meaning = (K.UNSUITABLE, BadRequest, True)
NO_MODEL: Meaning = (K.UNSUITABLE, BadRequest, False)
TOO_LONG: Meaning = (K.UNSUITABLE, BadRequest, False)
REFUSED: Meaning = (K.REFUSED, BadRequest, False)


def failure(status: int, body: Any = b"", secrets: Secrets = NONE, **headers: str) -> Failure:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
    return FailedReply(Reply(status, fields, raw), "gpu-0", "judge-7b", secrets, now=NOW).by_status()


def of_body(error: Any, body: bytes = b"", **headers: str) -> Failure:
    fields = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
    return FailedReply(Reply(200, fields, body), "gpu-0", "judge-7b", NONE, now=NOW).by_body(error)


def openai(message: str = "words", kind: str | None = None, code: Any = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def sglang(message: str, code: int) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": "BadRequest", "param": None, "code": code}


OVERLONG = (
    "This model's maximum context length is 4096 tokens. However, your prompt contains at least 4097 input tokens, which exceeds this "
    "limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=4097)"
)
TOO_LONG_TEXTS = [
    "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.",
    "The decoder prompt (length 9000) is longer than the maximum model length of 8192. Make sure that ...",
    "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
    "Requested token count exceeds the model's maximum context length of 8192 tokens.",
    "the request exceeds the available context size, try increasing it",
    "prompt is too long: 210000 tokens > 200000 maximum",
    OVERLONG,
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens",
    "litellm.ContextWindowExceededError: OpenAIException - Input tokens exceed the configured limit of 272000 tokens. Your messages ...",
    "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "Invalid request: Your request exceeded model token limit: 131072 (requested: 140000)",
    "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
    "Prompt exceeds max length",
    "the prompt is longer than the context length currently available",
    "Input length (9000 tokens) exceeds the maximum allowed length (8186 tokens). Use a shorter input or enable --allow-auto-truncate.",
    "Requested input length 39818 exceeds maximum input length 32767",
    "Prompt length 9000 is greater than max_seq_len 8192",
    "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000. Try using a shorter prompt",
]
TOO_LONG_TOGETHER_TEXTS = [
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 3900 `inputs` tokens and 1000 `max_new_tokens`",
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length or `max_tokens` and try again",
]
OF_VLLM = (
    "You passed {} input tokens and requested {} output tokens. However, the model's context length is only 4096 tokens, resulting in a "
    "maximum input length of {} tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value={})"
)
NO_CREDIT = "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits."
TOKEN_LIMIT = "You exceeded your current quota. For details, see: https://help.aliyun.com/zh/model-studio/error-code#token-limit"
NO_PATH = "Unexpected endpoint or method. (POST /chat/completions)"
COOLED_DOWN = "No deployments available for selected model, Try again in 5 seconds. Passed model=rm. cooldown_list=['a1']"

MINUTE = "in organization org-1 on tokens per min (TPM): Limit 30000, Requested 35000."
TOO_MUCH_OUTPUT_TEXTS = [
    "'max_tokens' or 'max_completion_tokens' is too large: 9000. This model's maximum context length is 4096 tokens ...",
    "max_tokens is too large: 100000. This model supports at most 16384 completion tokens, whereas you provided 100000.",
    "max_tokens: 9000 > 8192, which is the maximum allowed number of output tokens for this model",
    OF_VLLM.format(13, 100000, -95904, 13),
    "max_tokens=100000 cannot be greater than max_model_len=4096. Please request fewer output tokens. (parameter=max_tokens, value=100000)",
    "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (20 in the messages, 4980 in the completion).",
]

SAID: dict[Meaning, list[tuple[int, Any]]] = {
    OVERLOADED: [
        *((status, b"") for status in (429, 503, 529)),
        (429, openai("Rate limit reached", "tokens", "rate_limit_exceeded")),
        (429, openai(COOLED_DOWN, "all_deployments_in_cooldown", "429")),
        (429, {"error": "Model is overloaded", "error_type": "overloaded"}),
        (429, [{"error": {"code": 429, "message": "exceeded your current quota", "status": "RESOURCE_EXHAUSTED"}}]),
        *((status, openai(TOKEN_LIMIT, "insufficient_quota", "insufficient_quota")) for status in (400, 429)),
        (503, {"error": {"message": "aborted by a higher priority request"}}),
        (503, openai("upstream account", None, "insufficient_quota")),
        (503, openai("The model `judge-7b` was not found")),
        (498, openai("`flex` tier capacity exceeded", "server_error", "capacity_exceeded")),
        (500, {"error": {"type": "overloaded_error", "message": "Overloaded"}}),
        *((500, openai(code=code)) for code in (429, 503, 529)),
        (500, {"error": "Model is overloaded"}),
        *((400, {"message": f"The {what}."}) for what in ("request queue is full", "server is too busy", "pool is at full capacity")),
        *((400, openai(text)) for text in ("Too many requests", "the rate limit of 3 was exceeded", "You are rate-limited")),
        (400, openai(code=429)),
        (400, b'event: error\ndata: {"error": {"message": "slow down", "code": 429}}\n\n'),
        (400, openai(kind=" Rate-Limit Exceeded ")),
        *((403, openai(kind=kind, code="rate_limit_exceeded")) for kind in (None, "requests", "invalid_request_error")),
        (403, {"error": {"code": 403, "message": "x", "errors": [{"reason": "rateLimitExceeded"}], "status": "PERMISSION_DENIED"}}),
        (400, {"error_code": 18, "error_msg": "Open api qps request limit reached"}),
        (400, openai(kind="overloaded_error", code=400)),
        (400, openai(kind="api_error", code=429)),
        (400, openai(kind="invalid_api_key", code="rate_limit_exceeded")),
        (400, openai(code="rate_limit_exceeded") | {"code": "invalid_api_key"}),
    ],
    QUOTA: [
        (402, {"error": {"message": "Insufficient Balance"}}),
        (429, openai("You exceeded your current quota", "insufficient_quota", "insufficient_quota")),
        (400, openai("Billing hard limit has been reached", "invalid_request_error", "billing_hard_limit_reached")),
        (403, openai("no credit", code="insufficient_quota")),
        (400, openai(NO_CREDIT, "invalid_request_error")),
        (400, openai(f"litellm.BadRequestError: AnthropicException - {NO_CREDIT}", "invalid_request_error")),
        (400, openai("You have reached your specified API usage limits. You will regain access on 2026-12-01", "invalid_request_error")),
        (400, openai("Access denied", "Arrearage", "Arrearage")),
        *((status, openai("Budget has been exceeded!", "budget_exceeded", str(status))) for status in (400, 429)),
        (429, openai("Your account is suspended", "exceeded_current_quota_error")),
        (429, {"type": "error", "error": {"type": "billing_error", "message": "spend limit reached"}}),
        (429, {"error": {"code": "1113", "message": "Insufficient balance or no resource package. Please recharge."}}),
        (403, openai("your account has an overdue balance", "Forbidden", "AccountOverdueError")),
        *((403, openai("x", "new_api_error", code)) for code in ("insufficient_user_quota", "pre_consume_token_quota_failed")),
    ],
    TRANSIENT: [
        *((status, b"") for status in (408, 409, 424, 425, 499, 500, 504, 520, 999)),
        (500, openai("boom", "InternalServerError", 500)),
        (500, openai("busy")),
        (500, openai("the model crashed: the server is busy", "InternalServerError", 500)),
        (500, openai(code=400)),
        (500, b"Internal Server Error"),
        (500, openai("upstream account", "server_error", "insufficient_quota")),
        (502, b"<html><head><title>502 Bad Gateway</title></head></html>"),
        (502, {"error": {"message": "no credit there", "code": "insufficient_credits"}}),
        (424, {"error": "NaN in the scores", "error_type": "Backend"}),
        (400, {"message": "NaN in the scores", "code": 424, "type": "Backend"}),
        (400, openai(code=599)),
    ],
    (K.TRANSIENT, InvalidResponse, False): [(500, openai(code="invalid_scores")), (502, {"error": {"type": "invalid_scores"}})],
    WRONG_KEY: [
        *((status, b"") for status in (401, 403, 407)),
        (412, openai("Account a is suspended", "error", "PRECONDITION_FAILED")),
        (400, [{"error": {"code": 400, "status": "INVALID_ARGUMENT", "details": [{}, {"reason": "API_KEY_INVALID"}, 1]}}]),
        (400, [{"error": {"code": 400, "message": "User location is not supported.", "status": "FAILED_PRECONDITION"}}]),
        (401, openai("Incorrect API key provided", "invalid_request_error", "invalid_api_key")),
        (403, {"detail": "Not authenticated"}),
        (400, openai("Wrong key; too many requests came with it", code="invalid_api_key")),
        (400, openai("No connected db.", "no_db_connection", "400")),
        (403, openai("overloaded with roles", "invalid_request_error", "unsupported_country_region_territory")),
    ],
    WRONG_PLACE: [
        *((status, b"") for status in (404, 405, 410)),
        (404, openai(TOO_LONG_TEXTS[0])),
    ],
    (K.UNSUITABLE, InvalidResponse, True): [(status, b"") for status in (300, 307, 399)],
    (K.UNSUITABLE, ServerError, True): [(501, openai("not for this model", "NotImplementedError", 501))],
    TOO_LONG: [
        (422, {"error": "`inputs` must have less than 512 tokens. Given: 600", "error_type": "Validation"}),
        (413, sglang(TOO_LONG_TEXTS[2], 413)),
        *((400, openai("x", "invalid_request_error", code)) for code in ("context_length_exceeded", "exceed_context_size_error")),
        (400, openai(code="context_window_exceeded")),
        *((400, openai(text, "BadRequestError", 400)) for text in TOO_LONG_TEXTS),
        *((400, openai(text, "BadRequestError", 400)) for text in TOO_MUCH_OUTPUT_TEXTS),
        *((status, {"error": text}) for text in TOO_LONG_TOGETHER_TEXTS for status in (400, 422)),
        *((status, openai(f"Request too large for gpt-x {MINUTE}", "tokens", "rate_limit_exceeded")) for status in (413, 429)),
    ],
    REFUSED: [
        *((status, b"") for status in (400, 413, 415, 418, 422, 498)),
        (400, openai(f"messages[0] must not be {NO_CREDIT!r}", "invalid_request_error")),
        (400, openai("max 300000 tokens per request", "max_tokens_per_request", "x")),
        (400, openai("number of images exceeds maximum context limit")),
        (400, openai("model: Field required", "invalid_request_error")),
        *((400, openai(code=code)) for code in (399, 600)),
        (422, {"detail": [{"loc": ["body", "messages"], "msg": "field required", "type": "missing"}]}),
        (422, {"error": "batch size 64 > maximum allowed batch size 32", "error_type": "Validation"}),
        (422, {"error": "x", "error_type": "Tokenizer"}),
        (400, openai("Invalid 'messages[0].content': the server is busy", code=400)),
        (400, openai("Invalid 'messages[0].content': the server is busy")),
        (400, openai("Invalid 'messages[0].content': the server is busy", "invalid_request_error") | {"code": "429 reasons to wait"}),
        (400, {"error": {"message": "The server is busy", "param": "messages[0].content"}}),
        *((400, openai("The server is overloaded, try later", **said)) for said in ({"kind": "invalid_request_error"}, {"code": 400})),
        (400, sglang("The request queue is full.", 400)),
        (400, {"detail": [{"loc": ["body", "messages", 0], "msg": "too many requests"}]}),
        (400, b"no such role: too many requests"),
        (403, {"error": {"code": 403, "message": "flagged", "metadata": {"reasons": ["violence"], "flagged_input": "x"}}}),
        (403, openai(kind="content_policy_violation", code=403)),
        (400, openai("x", code="4" * 5000)),
        (400, openai("It failed.", "server_error", "400")),
    ],
}


def test_what_a_status_and_its_body_mean() -> None:
    wrong = []
    for meaning, cases in SAID.items():
        for status, body in cases:
            got = failure(status, body, x_request_id="req-1")
            told: Any = got.error
            found = (got.kind, type(told), got.misconfigured)
            about = (told.endpoint, told.model, told.status_code, told.request_id)
            named = str(told).startswith(f"endpoint 'gpu-0' answered {status} for model 'judge-7b'")
            if found != meaning or about != ("gpu-0", "judge-7b", status, "req-1") or not named:
                wrong.append((status, body, found, about))
    assert wrong == []


UNKNOWN_MODELS: list[tuple[int, Any]] = [
    (400, openai("no such model", "invalid_request_error", "model_not_found")),
    (403, openai("no access to the model", "invalid_request_error", "model_not_found")),
    (404, openai("The model `nope` does not exist.", "NotFoundError", 404)),
    (404, openai("litellm.NotFoundError: NotFoundError: OpenAIException - The model `nope` does not exist.")),
    (400, openai("/chat/completions: Invalid model name passed in model=nope. Call `/v1/models` to view available models for your key.")),
    (404, sglang("model 'nope' not found", 404)),
    (400, openai("{'error': '/chat/completions: Invalid model name passed in model=nope. Call `/v1/models` ...'}", "None", "400")),
    (400, openai("Model Not Exist", "invalid_request_error", "invalid_request_error")),
    (400, {"error": {"message": "a/nope is not a valid model ID", "code": 400}, "user_id": "u"}),
    (404, {"error": {"message": "No endpoints found for a/nope.", "code": 404}}),
    (400, {"code": 20012, "message": "Model does not exist. Please check it carefully.", "data": None}),
    (400, {"error": {"code": "1211", "message": "模型不存在"}}),
    (404, [{"error": {"code": 404, "message": "models/nope is not found for API version v1main, or ...", "status": "NOT_FOUND"}}]),
    (404, {"type": "error", "error": {"type": "not_found_error", "message": "model: nope"}}),
    (404, openai("Model not found, inaccessible, and/or not deployed", "error", "NOT_FOUND")),
    (404, openai("Unable to access model nope. Please visit ...", "invalid_request_error", "model_not_available")),
    (404, openai("Not found the model nope or Permission denied", "resource_not_found_error")),
    (404, openai("The model or endpoint nope does not exist or you do not have access to it.", "NotFound")),
    (404, openai("x", "NotFound", "InvalidEndpointOrModel.NotFound")),
]


def test_an_unknown_model_is_no_fault_of_its_endpoint_and_always_a_404() -> None:
    found = [failure(status, body) for status, body in UNKNOWN_MODELS]
    assert {(got.kind, type(got.error), got.misconfigured, getattr(got.error, "status_code", None)) for got in found} == {(*NO_MODEL, 404)}
    texts = [str(got.error) for got in found]
    assert not [text for text in texts if "404" not in text or "that it serves 'judge-7b' (model_names maps names" not in text]


CODES: dict[Meaning, str] = {
    REFUSED: """invalid_request_error BadRequestError bad_request bad_request_error invalid_argument invalid_value Validation content_filter
        content_policy_violation string_above_max_length UnprocessableEntityError Tokenizer Empty""",
    WRONG_KEY: """invalid_api_key incorrect_api_key authentication_error AuthenticationError unauthorized unauthenticated
        permission_error permission_denied PermissionDeniedError forbidden""",
    NO_MODEL: "model_not_found DeploymentNotFound",
    WRONG_PLACE: "not_found_error NotFoundError not_found",
    OVERLOADED: """rate_limit_exceeded rate_limit_error rate_limited RateLimitError rate_limit too_many_requests TooManyRequests
        RESOURCE_EXHAUSTED throttled throttling ThrottlingException tokens requests
        overloaded overloaded_error server_overloaded engine_overloaded service_unavailable service_unavailable_error
        ServiceUnavailableError unavailable QueueOverflowError queue_full slow_down server_busy Unhealthy""",
    TRANSIENT: """server_error internal_error internal_server_error InternalServerError api_error internal Backend
        timeout timeout_error request_timeout gateway_timeout DEADLINE_EXCEEDED""",
    QUOTA: """insufficient_quota billing_hard_limit_reached billing_hard_limit billing_not_active insufficient_balance
        insufficient_credits insufficient_funds payment_required 402""",
}


def test_what_the_codes_of_servers_mean_where_the_status_says_nothing() -> None:
    found = {(code, 400): failure(400, openai(kind=code)) for codes in CODES.values() for code in codes.split()}
    found |= {(code, 200): of_body(EmbeddedError({"code": code})) for codes in CODES.values() for code in codes.split()}
    expected = {(code, status): meaning for meaning, codes in CODES.items() for code in codes.split() for status in (400, 200)}
    assert {key: (got.kind, type(got.error), got.misconfigured) for key, got in found.items()} == expected


EMBEDDED: list[tuple[Any, Meaning]] = [
    ({"code": "429", "message": "x"}, OVERLOADED),
    ("Too many requests, slow down", OVERLOADED),
    ({"code": "insufficient_quota", "message": TOKEN_LIMIT}, OVERLOADED),
    ({"code": 402, "message": "Insufficient credits"}, QUOTA),
    *((error, TRANSIENT) for error in ({"code": 502}, {"code": -1}, {"message": "no code at all"}, "CUDA out of memory", ["odd"], 7)),
    ({"code": 400, "message": "x"}, REFUSED),
    (TOO_LONG_TEXTS[0], TOO_LONG),
    ({"code": 401, "message": "x"}, WRONG_KEY),
]


@each("error, meaning", EMBEDDED)
def test_what_an_error_in_a_successful_answer_means(error: Any, meaning: Meaning) -> None:
    got = of_body(EmbeddedError(error), retry_after="3")
    assert (got.kind, type(got.error), got.misconfigured, got.retry_after) == (*meaning, 3.0)
    assert "answered 200 for model 'judge-7b': an error in the body: " in str(got.error)


SLOW = "slow down"
INSIDE_200: list[tuple[Any, Meaning]] = [
    ({"object": "error", "code": 429, "message": SLOW}, OVERLOADED),
    ({"code": 429, "msg": SLOW}, OVERLOADED),
    ({"code": "429", "message": SLOW}, OVERLOADED),
    ({"code": "Throttling.RateQuota", "message": SLOW}, OVERLOADED),
    ({"error_code": 18, "error_msg": "Open api qps request limit reached"}, OVERLOADED),
    ({"errors": [{"code": 429, "message": SLOW}]}, OVERLOADED),
    ({"success": False, "errors": [{"code": "rate_limit_exceeded", "message": SLOW}], "result": None}, OVERLOADED),
    ({"status": 503, "detail": SLOW}, OVERLOADED),
    ({"error": SLOW, "code": 503}, OVERLOADED),
    ([{"error": {"code": 429, "message": SLOW}}], OVERLOADED),
    ({"code": 401, "msg": "x"}, WRONG_KEY),
    ({"error": NO_PATH}, WRONG_PLACE),
    ({"error_code": 17, "error_msg": "x"}, TRANSIENT),
    ({"errors": ["no"]}, TRANSIENT),
    ({"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}, QUOTA),
    ({"base_resp": {"status_code": 1000, "status_msg": "unknown error"}, "choices": None}, TRANSIENT),
    ({"code": 400, "msg": "too many requests of yours"}, REFUSED),
]
NO_ERROR: list[Any] = [
    {"code": 0, "msg": "ok"},
    {"code": 200, "message": "success"},
    {"base_resp": {"status_code": 0, "status_msg": "success"}},
    {"errors": [], "status": "ok"},
    {"type": "ping"},
    [],
    1,
]


def test_an_error_with_status_200_is_read_alike_in_every_form_by_every_codec_and_in_a_stream() -> None:
    connection = EndpointConnection(Endpoint("http://gpu-0:8000/v1", name="gpu-0", api_key="a-long-key"))
    wrong: list[Any] = []
    any_route, legacy = passthrough("/v1/any"), passthrough("/v1/completions")
    for_sdk = ROUTES["/completions"][1]
    codecs: list[tuple[Codec, Any]] = [(CHAT, []), (EMBEDDINGS, "text"), (any_route, None), (legacy, None), (for_sdk, None)]
    for codec, inputs in codecs:
        call = WireRequest(codec, "judge-7b", inputs, {}, None)
        for document, meaning in INSIDE_200:
            for body in (json.dumps(document).encode(), b"event: error\ndata: " + json.dumps(document).encode() + b"\n\n"):
                got: Any = connection.outcome_of(Reply(200, CIMultiDict(), body), call)
                if isinstance(got, Answer) and codec is any_route:
                    continue  # a route may use the names of such members for other things
                if (got.kind, type(got.error), got.misconfigured) != meaning or "an error in the body: " not in str(got.error):
                    wrong.append((codec, body, got.kind, got.error))
    for document in NO_ERROR:
        got = connection.outcome_of(Reply(200, CIMultiDict(), json.dumps(document).encode()), WireRequest(CHAT, "judge-7b", [], {}, None))
        if (got.kind, type(got.error)) != (K.TRANSIENT, InvalidResponse):
            wrong.append((document, got.kind, got.error))
    assert wrong == []


MESSAGES: list[tuple[int, Any, str]] = [
    (401, openai("Incorrect API key provided."), "Incorrect API key provided; check api_key of endpoint 'gpu-0'"),
    (401, openai("Wait..."), "Wait...; check api_key of endpoint 'gpu-0'"),
    (404, openai("no such model"), "no such model; check base_url of endpoint 'gpu-0', and that it serves 'judge-7b' (model_names"),
    (429, openai("slow\r\ndown\x00"), "answered 429 for model 'judge-7b': slow down"),
    (422, {"detail": [{"loc": ["body", 0], "msg": "bad", "input": "the prompt"}, {"msg": "worse"}]}, ": body.0: bad; worse"),
    (422, {"detail": [{"msg": "1"}, [], {"msg": "2"}, {"msg": "3"}]}, ": 1; 2"),
    (422, {"detail": [{"loc": [], "msg": "nowhere"}]}, "'judge-7b': nowhere"),
    (400, {"detail": {"message": "inner"}}, ": inner"),
    (400, {"error": {"message": {"message": "deep"}}}, ": deep"),
    (400, {"message": "outer", "error": {"message": "inner"}}, ": inner"),
    (400, {"message": "outer", "error": {"code": 1}}, ": outer"),
    *((400, {member: "words"}, "'judge-7b': words") for member in ("error", "detail", "msg", "error_message", "title")),
    (400, {"unknown": 1}, "answered 400 for model 'judge-7b'"),
    (500, b"<html><style>p {}</style><h1>Oh&nbsp;no</h1><script>alert(1)</script></html>", "'judge-7b': Oh&nbsp;no"),
    (500, b"\xff\xfe", "answered 500 for model 'judge-7b'"),
    (413, b"", "answered 413 for model 'judge-7b'; send a smaller request"),
]


@each("status, body, expected", MESSAGES)
def test_the_message_gives_the_servers_words_and_what_to_change(status: int, body: Any, expected: str) -> None:
    text = str(failure(status, body).error)
    assert expected in text
    assert text.isprintable()
    assert text.strip("; ") == text
    assert "the prompt" not in text
    assert "alert" not in text


def test_a_refusal_of_a_request_without_a_key_says_that_none_was_sent_and_how_to_set_one() -> None:
    request = WireRequest(CHAT, "judge-7b", [], {}, None)
    cases: list[tuple[dict[str, Any], WireRequest, bool]] = [
        ({}, request, True),
        ({"api_key": ""}, request, True),
        ({"api_key": "sk-wrong-key"}, request, False),
        ({"headers": {"X-Key": "abc"}}, request, False),
        ({}, WireRequest(CHAT, "judge-7b", [], {}, {"Authorization": "Bearer abc"}), False),
        ({"http_client": httpx.AsyncClient(auth=("user", "password"))}, request, False),
    ]
    body = json.dumps(openai("Incorrect API key provided")).encode()
    for settings, call, keyless in cases:
        connection = EndpointConnection(Endpoint("http://gpu-0:8000/v1", name="gpu-0", **settings))
        refused = connection.failed(Reply(401, CIMultiDict(), body), call).by_status()
        embedded = connection.failed(Reply(200, CIMultiDict(), b""), call).by_body(EmbeddedError({"code": 401}))
        for text in (str(refused.error), str(embedded.error)):
            assert ("no API key was sent" in text, "'${JUDGE_KEY}'" in text) == (keyless, keyless), settings
    assert "no API key" not in str(FailedReply(Reply(404, {}, b""), "gpu-0", "m", NONE, keyless=True).by_status().error)


@each("body", [openai("long " * 1000), b"long " * 1000, b"<p>" * 100_000, {"detail": [{"msg": "x" * 999}] * 50}])
def test_long_words_are_cut(body: Any) -> None:
    assert len(str(failure(500, body).error)) < 400


@each(
    "location, shown",
    [
        ("https://user:pw@other.example/v1?token=abc", "it points to host 'other.example'"),
        ("/v2/chat?token=abc", "it points to another path of the same host"),
        ("http://[", "it points to another path of the same host"),
    ],
)
def test_a_redirect_names_the_host_it_points_to_and_nothing_else(location: str | None, shown: str) -> None:
    headers: dict[str, Any] = {"location": location} if location else {}
    text = str(failure(307, b"", **headers).error)
    assert text == f"endpoint 'gpu-0' answered 307 for model 'judge-7b': {shown}; set base_url of endpoint 'gpu-0' to the final address"


def test_a_redirect_without_a_target_is_not_said_to_point_anywhere() -> None:
    for status in (300, 304, 307):
        got = failure(status)
        assert str(got.error) == (
            f"endpoint 'gpu-0' answered {status} for model 'judge-7b': it points to no other address; "
            "check base_url of endpoint 'gpu-0', and a proxy or cache in front of the server"
        )
        assert (got.kind, type(got.error), got.misconfigured) == (K.UNSUITABLE, InvalidResponse, True)


def test_the_advice_for_too_many_tokens_names_what_is_too_large() -> None:
    together = "you requested 5000 tokens (3000 in the messages, 2000 in the completion)."
    table = {
        **dict.fromkeys(TOO_LONG_TEXTS[1:], "shorten the input, or route it to a model with a longer context"),
        **dict.fromkeys(TOO_MUCH_OUTPUT_TEXTS, "lower max_tokens, or route it to a model with a longer context"),
        **dict.fromkeys(TOO_LONG_TOGETHER_TEXTS, "shorten the input or lower max_tokens, or route it to a model with a longer context"),
        f"{TOO_LONG_TEXTS[0]} {together}": "shorten the input or lower max_tokens, or route it to a model with a longer context",
        f"Request too large for gpt-x {MINUTE}": "it exceeds the tokens per minute of endpoint 'gpu-0'; shorten the input or lower "
        "max_tokens",
    }
    table[OF_VLLM.format(4093, 4, 4092, 4093)] = table[f"{TOO_LONG_TEXTS[0]} {together}"]
    told = {text: str(failure(429 if MINUTE in text else 400, openai(text)).error) for text in table}
    assert {text: words for text, words in told.items() if not words.endswith(f"; {table[text]}")} == {}


def test_what_a_broken_line_means() -> None:
    table: list[tuple[dict[str, bool], FailureKind, type[QRewardError]]] = [
        ({}, K.TRANSIENT, ConnectionFailed),
        ({"sent": False}, K.UNREACHABLE, ConnectionFailed),
        ({"sent": False, "timeout": True}, K.UNREACHABLE, ConnectionFailed),
        ({"timeout": True}, K.TIMEOUT, RequestTimeout),
        ({"sent": False, "local": True}, K.LOCAL, ConnectionFailed),
        ({"local": True}, K.LOCAL, ConnectionFailed),
        ({"malformed": True}, K.TRANSIENT, InvalidResponse),
    ]
    for flags, kind, cls in table:
        got = failure_from_transport(TransportError("x", **flags), "gpu-0", "judge-7b", NONE)  # type: ignore[arg-type]
        assert (got.kind, type(got.error), str(got.error)) == (kind, cls, "endpoint 'gpu-0', model 'judge-7b': x"), flags


def test_a_body_that_is_no_answer_shows_how_it_begins() -> None:
    got = of_body(Malformed("the answer is not JSON"), b"<html>\n" + b"x" * 999)
    assert (got.kind, type(got.error)) == (K.TRANSIENT, InvalidResponse)
    assert str(got.error).startswith("endpoint 'gpu-0' answered 200 for model 'judge-7b': the answer is not JSON; it begins: <html> xxx")
    assert len(str(got.error)) < 320
    assert str(of_body(Malformed("the answer is empty")).error) == "endpoint 'gpu-0' answered 200 for model 'judge-7b': the answer is empty"


def test_a_failure_tells_the_rate_limits_that_its_response_states_even_if_the_body_is_no_answer() -> None:
    headers: dict[str, Any] = {"x_ratelimit_limit_requests": "60", "x_ratelimit_remaining_requests": "7"}
    found = [of_body(error, **headers) for error in (EmbeddedError("odd"), Malformed("x"), Unfinished("length"))]
    for got in (failure(429, **headers), *found):
        assert got.limits is not None
        assert got.limits.requests is not None
        assert got.limits.requests.remaining == 7


HINTS: list[tuple[dict[str, str], float | None]] = [
    ({}, None),
    ({"retry-after": "0"}, 0.0),
    ({"retry-after": " 1.5 "}, 1.5),
    ({"retry-after": "Fri, 15 Jan 2027 08:00:30 GMT"}, 30.0),
    ({"retry-after": "Fri, 15 Jan 2027 09:00:04 GMT", "date": "Fri, 15 Jan 2027 09:00:00 GMT"}, 4.0),
    ({"retry-after": "Fri, 15 Jan 2027 07:00:04 GMT", "date": "Fri, 15 Jan 2027 07:00:00 GMT"}, 4.0),
    ({"retry-after": "Fri, 15 Jan 2027 08:00:30 GMT", "date": "today"}, 30.0),
    *(({"retry-after": text}, None) for text in ("Fri, 15 Jan 2027 07:00:00 GMT", "-3", "nan", "inf", "1e999", "soon", "")),
    ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
    ({"retry-after-ms": "x", "retry-after": "7"}, 7.0),
    ({"retry-after": "x", "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "2"}, 2.0),
    ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 360.0),
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
    assert failure(429, **headers).retry_after == (None if seconds is None else pytest.approx(seconds))


@given(st.text(alphabet=string.digits + string.ascii_letters + " .:,-+", max_size=30), st.floats(0, 1e10))
def test_a_wait_is_never_negative_or_endless_whatever_the_header_says(text: str, now: float) -> None:
    for headers in ({"retry-after": text}, {"retry-after-ms": text}, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": text}):
        seconds = retry_after(headers, now)
        assert seconds is None or 0 <= seconds < float("inf")


@each("text, expected", [("true", True), ("False", False), ("maybe", None), ("", None)])
def test_the_servers_own_word_about_retrying(text: str, expected: bool | None) -> None:
    assert failure(500, x_should_retry=text).should_retry is expected


@each("seed", range(5))
def test_no_body_is_too_odd_to_be_a_failure(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(300):
        body = json.dumps(_odd(dice, 4)).encode()
        for raw in (body, body[: dice.randrange(len(body) + 1)]):
            assert isinstance(failure(dice.choice([400, 429, 500, 503]), raw), Failure), f"seed {seed}: {raw!r}"
        assert isinstance(of_body(EmbeddedError(json.loads(body)), body), Failure), f"seed {seed}: {body!r}"


def _odd(dice: random.Random, depth: int) -> Any:
    names = ["error", "message", "detail", "code", "type", "status", "error_type", "loc", "msg", "metadata"]
    leaf: Any = dice.choice([None, True, -1, 429, 1e400, "429", "", "words", "rate_limit_exceeded", "\ud800", {}, []])
    kind = dice.randrange(3) if depth else 0
    if kind == 0:
        return leaf
    if kind == 1:
        return [_odd(dice, depth - 1) for _ in range(dice.randrange(3))]
    return {dice.choice(names): _odd(dice, depth - 1) for _ in range(dice.randrange(4))}
