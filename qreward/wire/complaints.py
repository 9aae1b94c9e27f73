"""What a server says is wrong, out of the many shapes in which servers say it. Decides nothing.

Shapes read: OpenAI and vLLM ``{"error": {"message", "type", "code"}}``, ``{"error": "text"}``, TEI ``{"error", "error_type"}`` and
``{"message", "code", "type"}``, SGLang ``{"object": "error", "message", "code"}``, FastAPI ``{"detail": ...}``, lists of one of these,
plain text and HTML.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from qreward.wire import jsonio
from qreward.wire.base import Malformed

_MARKUP = re.compile(r"(?is)<(script|style)\b.*?</\1\s*>|<!--.*?-->|<[^>]*>")
_LOOKED_AT = 8192  # characters; what is shown is far shorter


class Complaint(msgspec.Struct, frozen=True):
    """A server's own words.

    Attributes:
        text: what it says to people, on one line.
        names: what it says to programs (code, type, status), most telling first, in lower case with ``_``.
    """

    text: str
    names: tuple[str, ...] = ()


def read_complaint(body: bytes) -> Complaint:
    """The complaint of an error answer."""
    try:
        return complaint_of(jsonio.read_leniently(body))
    except Malformed:
        return Complaint(one_line(_MARKUP.sub(" ", body[:_LOOKED_AT].decode("utf-8", "replace"))))


def complaint_of(document: Any) -> Complaint:
    """The complaint in a JSON document, or in the ``error`` member of one."""
    if isinstance(document, list):
        return complaint_of(document[0]) if document else Complaint("")
    if not isinstance(document, dict):
        return Complaint("" if document is None else one_line(str(document)))
    inner = document.get("error")
    if isinstance(inner, dict | list) and inner:
        within = complaint_of(inner)
        return Complaint(within.text or _text(document), within.names + _names(document))
    return Complaint(_text(document), _names(document))


def one_line(text: str) -> str:
    """The text without line breaks and control characters, so that it cannot forge a line of a log."""
    text = text[:_LOOKED_AT]
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(text.split())


def _text(document: dict[str, Any]) -> str:
    for member in ("message", "error", "detail", "msg", "error_message", "title"):
        if said := _said(document.get(member)):
            return one_line(said)
    return ""


def _said(value: Any) -> str:
    """A text, or FastAPI's list of ``{"loc", "msg", "input"}``, of which the input is the user's and is left out."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return _text(value)
    if isinstance(value, list):
        return "; ".join(filter(None, map(_said_of_place, value[:3])))
    return ""


def _said_of_place(item: Any) -> str:
    if not isinstance(item, dict):
        return _said(item) if not isinstance(item, list) else ""
    place = item.get("loc")
    where = ".".join(map(str, place)) if isinstance(place, list) else ""
    said = _text(item)
    return f"{where}: {said}" if where and said else said


def _names(document: dict[str, Any]) -> tuple[str, ...]:
    values = (document.get(member) for member in ("code", "type", "error_type", "status"))
    return tuple(re.sub(r"[\s.-]+", "_", str(value).strip().lower()) for value in values if isinstance(value, str | int) and value != "")
