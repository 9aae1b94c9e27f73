"""The reader of error bodies: in responses with an error status, in responses with status 2xx, and in events of a stream."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import Malformed

LOOKED_AT = 8192  # maximum number of characters or bytes that are examined; messages show far fewer
_MARKUP = re.compile(r"(?is)<(script|style)\b.*?</\1\s*>|<!--.*?-->|<[^>]*>")
_EVENT = re.compile(rb"\s*(?:event:[^\n]*\n)?data:([^\n]*)")


# OpenAI, vLLM: {"error": {"message", "type", "code", "param"}}; others: {"error": "text"}, {"errors": [...]}, {"code", "msg"};
# TEI: {"error", "error_type"}; SGLang: {"object": "error", "message", "code"}; FastAPI: {"detail": ...}; lists, events, text, HTML


class ErrorBody(msgspec.Struct, frozen=True):
    text: str
    names: tuple[str, ...] = ()


def parse_error_body(body: bytes) -> ErrorBody:
    try:
        return error_body_of(read_error(body))
    except Malformed:
        return ErrorBody(one_line(_MARKUP.sub(" ", body[:LOOKED_AT].decode("utf-8", "replace"))))


def read_error(body: bytes) -> Any:
    """Return the JSON document in a body or in the first event of a body. Raises ``Malformed``."""
    event = _EVENT.match(body)
    return jsonio.read_leniently(body if event is None else event[1])


def error_in(document: Any) -> Any:
    """Return the error in a document with status 2xx, or None if the document is no error."""
    if isinstance(document, list):
        return error_in(document[0]) if document else None
    if not isinstance(document, dict):
        return None
    if document.get("error") or document.get("object") == "error":
        return document
    if "choices" in document:
        return None
    codes = _names({name: document.get(name) for name in ("code", "status")})
    return document if document.get("errors") or document.get("error_code") or any(map(_status, codes)) else None


def error_body_of(document: Any) -> ErrorBody:
    if isinstance(document, list):
        return error_body_of(document[0]) if document else ErrorBody("")
    if not isinstance(document, dict):
        return ErrorBody("" if document is None else one_line(str(document)))
    inner = document.get("error") or document.get("errors")
    if isinstance(inner, dict | list) and inner:
        within = error_body_of(inner)
        return ErrorBody(within.text or _text(document), within.names + _names(document))
    return ErrorBody(_text(document), _names(document))


def one_line(text: str) -> str:
    """Return the text without line breaks and control characters, so that it cannot forge a log line."""
    text = text[:LOOKED_AT]
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(text.split())


def _text(document: dict[Any, Any]) -> str:
    members = ("message", "error", "detail", "msg", "error_message", "error_msg", "title")
    return next((one_line(text) for member in members if (text := _message(document.get(member)))), "")


def _message(value: Any) -> str:
    """Return the message in a text or in FastAPI's list of ``{"loc", "msg", "input"}``. ``input`` is left out, because it is user data."""
    match value:
        case str():
            return value
        case {"loc": [*place], **rest} if text := _text(rest):
            return f"{'.'.join(map(str, place))}: {text}" if place else text
        case dict():
            return _text(value)
        case list():
            return "; ".join(filter(None, (_message(item) for item in value[:3] if not isinstance(item, list))))
    return ""


def _names(document: dict[str, Any]) -> tuple[str, ...]:
    details = document.get("details")
    # Google's reasons come first, because its codes and statuses are general
    values = [each.get("reason") for each in details if isinstance(each, dict)] if isinstance(details, list) else []
    values += [document.get(member) for member in ("code", "type", "error_type", "error_code", "status", "reason")]
    if isinstance(about := document.get("metadata"), dict) and "flagged_input" in about:
        values.append("content_filter")  # OpenRouter's moderation, with status 403
    if document.get("param"):
        values.append("invalid_request_error")
    return tuple(re.sub(r"[\s.-]+", "_", str(value).strip().lower()) for value in values if value)


QUOTA = frozenset({
    "insufficient_quota", "billing_hard_limit_reached", "billing_hard_limit", "billing_not_active", "insufficient_balance",
    "insufficient_credits", "insufficient_funds", "payment_required", "402", "arrearage", "budget_exceeded", "exceeded_current_quota_error",
    "billing_error", "accountoverdueerror", "insufficient_user_quota", "pre_consume_token_quota_failed",
    "1113",  # Zhipu
})  # fmt: skip
"""Error codes that mean that the account's quota or credit is used up."""
_PER_MINUTE = "error-code#token-limit"
"""The end of a link in each message about DashScope's limit of tokens per minute, whose code is that of an account that is used up."""

INVALID_SCORES = "invalid_scores"
"""The error code of qreward's own reward server for a scorer that did not return one reward for each completion."""

_BAD_REQUEST = ("invalid_request_error", "bad_request", "bad_request_error", "badrequest", "badrequesterror")
_SERVER_ERROR = ("server_error", "internal_error", "internal_server_error", "internalservererror", "api_error", "internal")
_GENERAL = frozenset({"400", *_BAD_REQUEST, *_SERVER_ERROR})
"""Error codes that servers use for all kinds of errors. A further code is more exact."""

_NAMES = {
    400: (
        *_BAD_REQUEST, "invalid_argument", "invalid_value", "validation", "content_filter", "content_policy_violation",
        "context_length_exceeded", "exceed_context_size_error", "string_above_max_length", "unprocessable_entity_error", "tokenizer",
        "empty",
    ),
    401: (
        "invalid_api_key", "api_key_invalid", "incorrect_api_key", "authentication_error", "unauthorized", "unauthenticated",
        "no_db_connection",  # LiteLLM's proxy without a database, for every key except its own
    ),
    403: ("permission_error", "permission_denied", "permission_denied_error", "forbidden"),
    404: ("model_not_found", "not_found_error", "not_found", "deployment_not_found"),
    429: (
        "rate_limit_exceeded", "rate_limit_error", "rate_limited", "rate_limit", "user_rate_limit_exceeded", "too_many_requests",
        "resource_exhausted", "throttled", "throttling", "throttling_exception", "throttling_rate_quota", "tokens", "requests",
    ),
    500: (*_SERVER_ERROR, "backend"),
    503: (
        "overloaded", "overloaded_error", "server_overloaded", "engine_overloaded", "service_unavailable", "service_unavailable_error",
        "unavailable", "queue_overflow_error", "queue_full", "slow_down", "server_busy", "unhealthy",
        "capacity_exceeded",
    ),
    504: ("timeout", "timeout_error", "request_timeout", "gateway_timeout", "deadline_exceeded"),
}  # fmt: skip
_STATUS_OF = {name.replace("_", ""): status for status, names in _NAMES.items() for name in names} | {
    name.replace("_", ""): 402 for name in QUOTA
}

_SAYS_OVERLOAD = re.compile(
    r"(?i)(?:(?:error|sorry)[:,] )?(?:(?:the|this|our|your|you|we|is|are|has|have|been|currently|temporarily|model|server|service|engine"
    r"|system|endpoint|api|open|requests?|upstream|provider|pool) )*(?:overloaded\b|too many (?:concurrent )?requests"
    r"|server (?:is )?(?:too |currently )?busy\b|(?:rate|qps|rpm|tpm|requests?).{0,9}limit.{0,20}\b(?:exceeded|reached|hit)|rate.?limited\b"
    r"|queue is full|at (?:full )?capacity\b)"
)
"""The beginning of a message that means overload. Words further back may be those of the request, which servers repeat in messages."""
_SAYS_TOO_LONG = re.compile(
    r"(?i)maximum context length|context length is only|maximum prompt length is|range of input length should be"
    r"|longer than the (?:maximum model|model's context|maximum context|context) length|max_model_len|when context the overflows"
    r"|(?<!images )exceeds? (?:the )?(?:model's |maximum |available )?(?:maximum )?(?:context|model length|number of tokens)"
    r"|(?:prompt|input) length \(?\d+(?: tokens)?\)? (?:exceeds|is greater than)|tokens in the prompt cannot exceed"
    r"|exceeded model token limit|prompt exceeds max length|tokens \+ .max_new_tokens. must be <="
    r"|must have less than \d+ tokens|(?:prompt|input) is too long|input token count .{0,40}exceeds"
)
_SAYS_QUOTA = re.compile(r"(?i)(?:\S+(?::| -) ){0,4}(?:your credit balance is too low|you have reached your specified API usage limits)")
"""The beginning of a message of Anthropic's that means a used up account, perhaps after the names of errors that a gateway passes on."""
_SAYS_ACCOUNT = re.compile(r"(?i)user location is not supported|account \S{1,100} is suspended")
"""The beginning of a message that means that the account is suspended, or that its region is not served."""
_NO_PATH = "Unexpected endpoint or method"
"""The beginning of LM Studio's message, with status 200, for a path that it does not have."""
_SAYS_NO_MODEL = re.compile(
    r"(?i)(?:\S+(?::| -) ){0,4}(?:(?:invalid|unknown) model\b|no such model\b|no endpoints found\b|not found the model\b|model: \S+$"
    r"|\S{1,200} is not a valid model\b"
    r"|(?:the )?models?[ /](?:or endpoint )?(?:\S{1,200} )?(?:(?:does )?not exist|(?:was |is )?not found)\b)"
)
"""The beginning of a message that means an unknown model, perhaps after the names of errors that a gateway passes on."""
_NO_MODEL = frozenset({
    "model_not_found", "model_not_available", "deployment_not_found", "deploymentnotfound", "invalidendpointormodel_notfound",
    "1211",  # Zhipu
})  # fmt: skip
_LENGTH = re.compile(r"context length is (?:only )?(\d{1,9})\b")
_OUTPUT = re.compile(r"requested (\d{1,9}) output tokens|\b(\d{1,9}) in the completion")
_TOO_LONG = frozenset({"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded"})


def status_of(error_body: ErrorBody, answered: int = 400) -> int | None:
    if not QUOTA.isdisjoint(error_body.names) and not is_quota(error_body):
        return 429
    known = [(name, status) for name in error_body.names if (status := _status(name)) is not None]
    for name, status in known:
        if name not in _GENERAL and name != str(answered):
            return status
    if answered not in (200, 400, 500):
        return None
    if known:
        return known[0][1]
    if error_body.text.startswith(_NO_PATH):
        return 404
    return 503 if _SAYS_OVERLOAD.match(error_body.text) else 400 if is_too_long(error_body) else None


def _status(name: str) -> int | None:
    return _STATUS_OF.get(name.replace("_", "")) or (int(name) if re.fullmatch("[45][0-9][0-9]", name) else None)


def is_quota(error_body: ErrorBody) -> bool:
    named = not QUOTA.isdisjoint(error_body.names) and _PER_MINUTE not in error_body.text
    return named or _SAYS_QUOTA.match(error_body.text) is not None


def is_refused_account(error_body: ErrorBody) -> bool:
    return _SAYS_ACCOUNT.match(error_body.text) is not None


def is_unknown_model(error_body: ErrorBody) -> bool:
    return not _NO_MODEL.isdisjoint(error_body.names) or _SAYS_NO_MODEL.match(error_body.text) is not None


def is_too_much_output(error_body: ErrorBody) -> bool:
    """Return True if the requested output alone, without the input, fills the context that the message of vLLM or OpenAI names."""
    length, output = _LENGTH.search(error_body.text), _OUTPUT.search(error_body.text)
    return length is not None and output is not None and int(output[1] or output[2]) >= int(length[1])


def is_too_long(error_body: ErrorBody) -> bool:
    return not _TOO_LONG.isdisjoint(error_body.names) or _SAYS_TOO_LONG.search(error_body.text) is not None
