"""The reader of error bodies: in responses with an error status, in responses with status 2xx, and in events of a stream."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import WORDS, Malformed

LOOKED_AT = 8192  # maximum number of characters or bytes that are examined; messages show far fewer
_MARKUP = re.compile(r"(?is)<(script|style)\b.*?</\1\s*>|<!--.*?-->|<[^>]*>")
_EVENT = re.compile(rb"\s*(?:event:[^\n]*\n)?data:([^\n]*)")

QUOTA = frozenset(WORDS["status"]["402"])
"""Error codes that mean that the account's quota or credit is used up."""
_PER_MINUTE = "error-code#token-limit"
"""The end of a link in each message about DashScope's limit of tokens per minute, whose code is that of an account that is used up."""

INVALID_SCORES = "invalid_scores"
"""The error code of qreward's own reward server for a scorer that did not return one reward for each completion."""

_GENERAL = frozenset({"400", *WORDS["general"]["400"], *WORDS["general"]["500"]})
_STATUS_OF = {
    name.replace("_", ""): int(status) for kind in ("general", "status") for status, names in WORDS[kind].items() for name in names
}
_SAYS = {meaning: re.compile(text.replace("\n", ""), re.IGNORECASE) for meaning, text in WORDS["says"].items()}
_NO_PATH = "Unexpected endpoint or method"
"""The beginning of LM Studio's message, with status 200, for a path that it does not have."""
_LENGTH = re.compile(r"context length is (?:only )?(\d{1,9})\b")
_OUTPUT = re.compile(r"requested (\d{1,9}) output tokens|\b(\d{1,9}) in the completion")


# OpenAI, vLLM: {"error": {"message", "type", "code", "param"}}; others: {"error": "text"}, {"errors": [...]}, {"code", "msg"};
# TEI: {"error", "error_type"}; SGLang: {"object": "error", "message", "code"}; FastAPI: {"detail": ...}; lists, events, text, HTML;
# MiniMax: {"base_resp": {"status_code", "status_msg"}}, with the status code 0 in an answer


class ErrorBody(msgspec.Struct, frozen=True):
    """The message of an error and its codes."""

    text: str
    names: tuple[str, ...] = ()

    @staticmethod
    def read(body: bytes) -> ErrorBody:
        try:
            return ErrorBody.of(read_error(body))
        except Malformed:
            return ErrorBody(one_line(_MARKUP.sub(" ", body[:LOOKED_AT].decode("utf-8", "replace"))))

    @staticmethod
    def of(document: Any) -> ErrorBody:
        if isinstance(document, list):
            return ErrorBody.of(document[0]) if document else ErrorBody("")
        if not isinstance(document, dict):
            return ErrorBody("" if document is None else one_line(str(document)))
        inner = document.get("error") or document.get("errors") or _base_resp(document)
        if isinstance(inner, dict | list) and inner:
            within = ErrorBody.of(inner)
            return ErrorBody(within.text or _text(document), within.names + _names(document))
        return ErrorBody(_text(document), _names(document))

    def status(self, answered: int = 400) -> int | None:
        """Return the status that the codes mean, or else the message, of a response with the status ``answered``; None if neither does."""
        if not QUOTA.isdisjoint(self.names) and not self.is_quota():
            return 429
        known = [(name, status) for name in self.names if (status := _status(name)) is not None]
        for name, status in known:
            if name not in _GENERAL and name != str(answered):
                return status
        if answered not in (200, 400, 500):
            return None
        if known:
            return known[0][1]
        if self.text.startswith(_NO_PATH):
            return 404
        return 503 if _SAYS["overload"].match(self.text) else 400 if self.is_too_long() else None

    def is_quota(self) -> bool:
        named = not QUOTA.isdisjoint(self.names) and _PER_MINUTE not in self.text
        return named or _SAYS["used_up"].match(self.text) is not None

    def is_refused_account(self) -> bool:
        return _SAYS["no_account"].match(self.text) is not None

    def is_unknown_model(self) -> bool:
        return any(name in WORDS["codes"]["no_model"] for name in self.names) or _SAYS["no_model"].match(self.text) is not None

    def is_too_much_output(self) -> bool:
        """Return True if the requested output alone, without the input, is too long: it fills the context that vLLM or OpenAI names."""
        length, output = _LENGTH.search(self.text), _OUTPUT.search(self.text)
        filled = length is not None and output is not None and int(output[1] or output[2]) >= int(length[1])
        return filled or _SAYS["too_much_output"].match(self.text.lstrip("'\"`")) is not None

    def names_output(self) -> bool:
        return _SAYS["output"].search(self.text) is not None

    def exceeds_a_minute(self) -> bool:
        """Return True if the request has more tokens than the account may use in a minute or a day."""
        return _SAYS["too_large"].match(self.text) is not None

    def is_too_long(self) -> bool:
        return any(name in WORDS["codes"]["too_long"] for name in self.names) or _SAYS["too_long"].search(self.text) is not None


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
    if document.get("error") or document.get("object") == "error" or (_base_resp(document) and not document.get("choices")):
        return document
    if "choices" in document:
        return None
    codes = _names({name: document.get(name) for name in ("code", "status")})
    return document if document.get("errors") or document.get("error_code") or any(map(_status, codes)) else None


def _base_resp(document: dict[Any, Any]) -> dict[str, Any] | None:
    found = document.get("base_resp")
    return found if isinstance(found, dict) and type(code := found.get("status_code")) is int and code else None


def one_line(text: str) -> str:
    """Return the text without line breaks and control characters, so that it cannot forge a log line."""
    text = text[:LOOKED_AT]
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(text.split())


def _text(document: dict[Any, Any]) -> str:
    members = ("message", "error", "detail", "msg", "error_message", "error_msg", "status_msg", "title")
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
    values += [document.get(member) for member in ("code", "type", "error_type", "error_code", "status", "status_msg", "reason")]
    if isinstance(about := document.get("metadata"), dict) and "flagged_input" in about:
        values.append("content_filter")  # OpenRouter's moderation, with status 403
    if document.get("param"):
        values.append("invalid_request_error")
    return tuple(re.sub(r"[\s.-]+", "_", str(value).strip().lower()) for value in values if value)


def _status(name: str) -> int | None:
    return _STATUS_OF.get(name.replace("_", "")) or (int(name) if re.fullmatch("[45][0-9][0-9]", name) else None)
