"""What servers' codes, types and phrases mean, as the HTTP status they ought to have sent. Data, and its lookup."""

from __future__ import annotations

import re

from qreward.wire.complaints import Complaint

QUOTA = frozenset({
    "insufficient_quota",
    "billing_hard_limit_reached",
    "billing_hard_limit",
    "billing_not_active",
    "insufficient_balance",
    "insufficient_credits",
    "insufficient_funds",
    "payment_required",
    "402",
})  # fmt: skip
"""Names that say the account is used up."""

INVALID_SCORES = "invalid_scores"
"""What our own reward server calls a scorer that did not return one reward for each completion."""

_NAMES = {
    400: (
        "invalid_request_error", "badrequesterror", "bad_request", "bad_request_error", "invalid_argument", "invalid_value", "validation",
        "content_filter", "content_policy_violation", "context_length_exceeded", "exceed_context_size_error", "string_above_max_length",
        "unprocessableentityerror", "tokenizer", "empty",
    ),
    401: ("invalid_api_key", "incorrect_api_key", "authentication_error", "authenticationerror", "unauthorized", "unauthenticated"),
    403: ("permission_error", "permission_denied", "permissiondeniederror", "forbidden"),
    404: ("model_not_found", "not_found_error", "notfounderror", "not_found", "deploymentnotfound"),
    429: (
        "rate_limit_exceeded", "rate_limit_error", "rate_limited", "ratelimiterror", "rate_limit", "too_many_requests", "toomanyrequests",
        "resource_exhausted", "throttled", "throttling", "throttlingexception", "tokens", "requests",
    ),
    500: ("server_error", "internal_error", "internal_server_error", "internalservererror", "api_error", "internal", "backend"),
    503: (
        "overloaded", "overloaded_error", "server_overloaded", "engine_overloaded", "service_unavailable", "service_unavailable_error",
        "serviceunavailableerror", "unavailable", "queueoverflowerror", "queue_full", "slow_down", "server_busy", "unhealthy",
    ),
    504: ("timeout", "timeout_error", "request_timeout", "gateway_timeout", "deadline_exceeded"),
}  # fmt: skip
_STATUS_OF = {name: status for status, names in _NAMES.items() for name in names} | dict.fromkeys(QUOTA, 402)

_SAYS_OVERLOAD = re.compile(
    r"(?i)\boverloaded\b|too many requests|rate.?limit(?:s|ed)?\b.{0,20}\b(?:exceeded|reached|hit)|rate.?limited\b"
    r"|queue is full|server (?:is )?(?:too |currently )?busy|\bat (?:full )?capacity\b"
)
_SAYS_TOO_LONG = re.compile(
    r"(?i)maximum context length|longer than the (?:maximum model|model's context|maximum context) length|max_model_len"
    r"|exceeds? the (?:model's |maximum |available )?(?:maximum )?(?:context|model length|number of tokens)"
    r"|must have less than \d+ tokens|(?:prompt|input) is too long|input token count .{0,40}exceeds"
)
_TOO_LONG = frozenset({"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded"})


def status_of(complaint: Complaint) -> int | None:
    """The HTTP status that the words stand for: by the first name that is known, else by a phrase; None if they do not tell.

    Example:
        >>> status_of(Complaint("slow down", ("rate_limit_exceeded",)))
        429
    """
    for name in complaint.names:
        if name in _STATUS_OF:
            status = _STATUS_OF[name]
            # "invalid_request_error" beside a phrase of overload: servers reuse the type for everything
            return 503 if status == 400 and _SAYS_OVERLOAD.search(complaint.text) else status
        if name.isdecimal() and 400 <= int(name) < 600:
            return int(name) if int(name) != 400 or not _SAYS_OVERLOAD.search(complaint.text) else 503
    if _SAYS_OVERLOAD.search(complaint.text):
        return 503
    return 400 if is_too_long(complaint) else None


def is_too_long(complaint: Complaint) -> bool:
    """Whether the input does not fit into the model's context, as OpenAI, vLLM, SGLang, TEI, llama.cpp and Gemini put it."""
    return not _TOO_LONG.isdisjoint(complaint.names) or _SAYS_TOO_LONG.search(complaint.text) is not None
