"""Messages on spans and in events. Off by default; the standard environment variables turn it on.

``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT``  ``span_only``, ``event_only`` or ``span_and_event``
``OTEL_INSTRUMENTATION_GENAI_EMIT_EVENT``               ``true``: an event for each call, with content only if the other variable says so

Texts are truncated, and API keys are removed. A second kind of event is emitted for each failed call. Events are log records: they are
discarded unless the program sets up a logger provider.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from opentelemetry import _logs as logs
from opentelemetry.context import Context

from qreward.engine.instrumentation import End
from qreward.errors import ConfigError
from qreward.scheduler.outcome import Answer
from qreward.scheduler.state import Task
from qreward.telemetry import names
from qreward.telemetry.attributes import ResponseMetadata, error_type, said
from qreward.telemetry.spans import SCOPE, version
from qreward.transport.redaction import Secrets, secrets_of

if TYPE_CHECKING:
    from qreward.telemetry.spans import Live

CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
EVENT_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_EMIT_EVENT"
MOST_MESSAGES = 64
MOST_KNOWN = 256
"""The most input messages of a call that are recorded, and the most endpoints whose secrets are cached."""

Capture = Literal["no_content", "span_only", "event_only", "span_and_event"]
CAPTURES: tuple[Capture, ...] = ("no_content", "span_only", "event_only", "span_and_event")


def capture_of(text: str) -> Capture:
    """The setting for a value of the environment variable. An unknown value means ``no_content``."""
    lower = text.strip().lower()
    return next((capture for capture in CAPTURES if capture == lower), "no_content")


class Content:
    """Records messages on spans and in events.

    Args:
        capture: where messages are recorded.
        events: emit an event for each call even if messages are not recorded in events.
        longest: the most characters of one text that are recorded.
        provider: the logger provider; None for the global one.
        dialect: version of the semantic conventions.

    Attributes:
        wanted: True if ``tell`` has something to record for each call.

    Raises:
        ConfigError: ``capture`` is invalid.
    """

    def __init__(self, capture: Capture, *, events: bool, longest: int, provider: Any, dialect: names.Dialect) -> None:
        if capture not in CAPTURES:
            raise ConfigError(f"capture_content must be one of {', '.join(CAPTURES)}, not {capture!r}")
        self._on_span = capture in ("span_only", "span_and_event")
        self._on_event = capture in ("event_only", "span_and_event")
        self._events = events or self._on_event
        self.wanted = self._on_span or self._events
        self._longest = longest
        self._hider = _Hider()
        self._logger = logs.get_logger(SCOPE, version(), provider, names.SCHEMA_URLS[dialect])

    def tell(self, task: Task, end: End, facts: ResponseMetadata, live: Live, attributes: dict[str, Any]) -> None:
        """Record a call that ended: add its messages to the attributes of its span and emit its event, depending on the settings."""
        messages = self._messages(task, end, facts, live) if self._on_span or self._on_event else {}
        if self._events:
            told = {**live.kind.start, **attributes, **(messages if self._on_event else {})}
            self._emit(names.DETAILS_EVENT, told, live.context)
        if self._on_span:
            attributes |= {name: json.dumps(value, ensure_ascii=False) for name, value in messages.items()}

    def tell_exception(self, error: BaseException, context: Context | None) -> None:
        """Emit the event of a call that failed."""
        kind = type(error)
        told = {
            names.EXCEPTION_TYPE: f"{kind.__module__}.{kind.__qualname__}",
            names.EXCEPTION_MESSAGE: said(error),
            names.ERROR_TYPE: error_type(error),
        }
        self._emit(names.EXCEPTION_EVENT, told, context, logs.SeverityNumber.WARN)

    def _emit(self, name: str, attributes: dict[str, Any], context: Context | None, severity: logs.SeverityNumber | None = None) -> None:
        text = None if severity is None else severity.name
        record = logs.LogRecord(event_name=name, context=context, severity_number=severity, severity_text=text, attributes=attributes)
        self._logger.emit(record)

    # messages

    def _messages(self, task: Task, end: End, facts: ResponseMetadata, live: Live) -> dict[str, Any]:
        secrets = self._hider.secrets(task)
        inputs = getattr(task.payload, "inputs", None)
        found: dict[str, Any] = {}
        if isinstance(inputs, list | tuple) and inputs and all(isinstance(each, Mapping) for each in inputs):
            told = [self._message(each, secrets) for each in inputs[:MOST_MESSAGES]]
            system = [part for each in told if each["role"] == "system" for part in each["parts"]]
            found[names.INPUT_MESSAGES] = [each for each in told if each["role"] != "system"]
            if system:
                found[names.SYSTEM_INSTRUCTIONS] = system
        text = end.value.text() if isinstance(end, Answer) and live.kind.inference else ""
        if text:
            reason = facts.reasons[0] if facts.reasons else ""
            parts = [{"type": "text", "content": self._cut(text, secrets)}]
            found[names.OUTPUT_MESSAGES] = [{"role": "assistant", "parts": parts, "finish_reason": reason}]
        return found

    def _message(self, message: Mapping[str, Any], secrets: list[Secrets]) -> dict[str, Any]:
        return {"role": str(message.get("role", "")), "parts": list(self._parts(message.get("content"), secrets))}

    def _parts(self, content: object, secrets: list[Secrets]) -> Iterable[dict[str, Any]]:
        for part in content if isinstance(content, list) else [content]:
            text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
            if isinstance(text, str):
                yield {"type": "text", "content": self._cut(text, secrets)}
            elif isinstance(part, Mapping):  # an image or audio: only its type is recorded
                yield {"type": str(part.get("type", "unknown"))[:64]}

    def _cut(self, text: str, secrets: list[Secrets]) -> str:
        for each in secrets:
            text = each.hide(text)
        return text[: self._longest]


class _Hider:
    """Removes the API keys of all endpoints that may serve a call, and the values of the call's own headers."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[object, Secrets]] = {}

    def secrets(self, task: Task) -> list[Secrets]:
        """The secrets that must be removed from the texts of a call."""
        sources = () if task.pool is None else task.pool.sources
        return [Secrets().and_headers(getattr(task.payload, "headers", None)), *(self._of_handle(source.handle) for source in sources)]

    def _of_handle(self, handle: Any) -> Secrets:
        known = self._of.get(id(handle))
        if known is None:
            if len(self._of) >= MOST_KNOWN:
                self._of.clear()
            found = secrets_of(handle) if hasattr(handle, "api_key") else Secrets()
            known = self._of[id(handle)] = handle, found  # the reference keeps the id from being reused
        return known[1]
