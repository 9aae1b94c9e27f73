"""Turns a line of a bulk run's input into a request."""

from __future__ import annotations

from typing import Any

from qreward.bulk.budget import NOTHING
from qreward.bulk.inputs import InputLine
from qreward.bulk.settings import BulkSettings
from qreward.codecs.base import WireRequest
from qreward.codecs.chat import CHAT, passthrough
from qreward.codecs.embeddings import EMBEDDINGS
from qreward.errors import BadRequest, ConfigError
from qreward.judge.prompts import Prompt, check_columns, column_value
from qreward.options import check_params
from qreward.records import AttemptRecord
from qreward.spelling import did_you_mean

CHATS, EMBEDDED = "/v1/chat/completions", "/v1/embeddings"
BATCH_FIELDS = ("custom_id", "method", "url", "body")
IDS = ("custom_id", "id")
"""Fields of a line that can hold its identifier. If a line has both fields, ``custom_id`` counts."""


class Entry:
    """A line that is to be sent or was sent. ``content`` is its request or item, ``reserved`` the maximum cost of all its attempts."""

    __slots__ = ("_identifier", "attempts", "content", "key", "name", "place", "reserved", "started")

    def __init__(self, key: int, place: str = "", identifier: str = "") -> None:
        self.key, self.place, self._identifier = key, place, identifier
        self.name: str | None = None  # its identifier in the input
        self.reserved, self.started = NOTHING, False
        self.content: Any = None
        self.attempts: tuple[AttemptRecord, ...] = ()  # the failed attempts in provider batches

    @property
    def identifier(self) -> str:
        return self._identifier or f"qreward-{self.key:015x}"

    @property
    def custom_id(self) -> str:
        return self.identifier if self.name is None else self.name


class RequestReader:
    """Makes requests from lines, or items for a scorer. Raises ``ConfigError`` for a wrong template, ``params`` or ``columns``."""

    def __init__(self, settings: BulkSettings, *, is_scored: bool = False) -> None:
        check_params(settings.params)
        check_columns(settings.columns)
        self._model, self._params, self._system, self._columns = settings.model, settings.params, settings.system, settings.columns
        self._is_scored = is_scored
        text = settings.template
        self._template = None if text is None else Prompt(text, self._system, needed=(), known=None, what="template")
        if self._template is not None and not self._template.names:
            raise ConfigError("the template names no column; write {column} where its value goes")

    def read(self, line: InputLine, entry: Entry) -> None:
        """Put the identifier and the request or item of a line into its entry. Raises ``BadRequest``, which begins with the place."""
        try:
            fields = line.fields()
            found = [(dict.get if self._is_scored else dict.pop)(fields, name, None) for name in IDS]
            entry.name = next((str(value) for value in found if value is not None), None)
            entry.content = self._item(fields) if self._is_scored else self._request(fields)
        except (ValueError, BadRequest, ConfigError) as error:
            raise BadRequest(f"{line.place}: {error}") from None

    def _item(self, fields: dict[str, Any]) -> dict[str, Any]:
        others = {name: value for name, value in fields.items() if name not in self._columns.values()}
        for field, column in self._columns.items():
            try:
                others[field] = column_value(fields, column)
            except KeyError:
                there = ", ".join(map(repr, sorted(fields)))
                raise BadRequest(f"it has no {column!r}, which columns names; it has {there}") from None
        return others

    def _request(self, fields: dict[str, Any]) -> WireRequest:
        is_plain = "messages" in fields or "prompt" in fields
        if self._template is None and ("body" in fields or ("url" in fields and not is_plain)):
            return self._batch_line(fields)
        if self._template is not None:
            messages, fields = self._template.messages(fields, extra=True), {name: fields[name] for name in ("model",) if name in fields}
        elif is_plain:
            prompt = {"role": "user", "content": fields.pop("prompt", None)}
            messages = fields.pop("messages", None) or [prompt]
            messages = messages if self._system is None else [{"role": "system", "content": self._system}, *messages]
        else:
            hint = "give the line messages or prompt, or the run a template that names its columns"
            raise ValueError(f"it has {', '.join(map(repr, sorted(fields))) or 'no fields'}; {hint}")
        return self._call(CHATS, {"messages": messages, **fields})

    def _batch_line(self, fields: dict[str, Any]) -> WireRequest:
        if unknown := sorted(fields.keys() - {*BATCH_FIELDS}):
            raise ValueError(f"unknown field {unknown[0]!r}; {did_you_mean(unknown[0], BATCH_FIELDS)}")
        if str(fields.get("method", "POST")).upper() != "POST":
            raise ValueError(f"method is {fields['method']!r}; only POST is possible")
        url, body = fields.get("url", CHATS), fields.get("body")
        if not isinstance(url, str) or not url.startswith("/"):
            raise ValueError(f"url is {url!r}; it must be the route of the server, such as {CHATS!r}")
        if not isinstance(body, dict):
            raise ValueError(f"body is a {type(body).__name__}; it must be an object")
        return self._call(url, body)

    def _call(self, url: str, body: dict[str, Any]) -> WireRequest:
        params = {**self._params, **body}
        model = params.pop("model", None) or self._model
        if not isinstance(model, str):
            raise ValueError("it names no model; add one to the line, or set model= for the run")
        if params.get("stream"):
            raise ValueError("stream is true; a bulk run does not stream, so leave it out")
        if url == CHATS:
            messages = params.pop("messages", None)
            return WireRequest(CHAT, model, CHAT.validate(messages), params, None)
        if url == EMBEDDED:
            return WireRequest(EMBEDDINGS, model, EMBEDDINGS.validate(params.pop("input", None)), params, None)
        text = next((params[name] for name in ("input", "prompt", "query") if isinstance(params.get(name), str)), "")
        return WireRequest(passthrough(url), model, text, params, None)
