"""Messages on spans and in events. By default, messages are not recorded. Two standard environment variables turn the recording on:

- ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` is ``span_only``, ``event_only`` or ``span_and_event``.
- ``OTEL_INSTRUMENTATION_GENAI_EMIT_EVENT`` is ``true`` to emit an event for each call. The event contains messages only if the first
  variable is ``event_only`` or ``span_and_event``.

Texts are truncated, and API keys are removed. A second kind of event is emitted for each failed call. Events are log records. They are
discarded unless the program sets up a logger provider.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from opentelemetry import _logs as logs
from opentelemetry.context import Context

from qreward.engine.instrumentation import End
from qreward.scheduler.outcome import Answer
from qreward.scheduler.task import Task
from qreward.settings.api_key import ApiKey
from qreward.telemetry import names
from qreward.telemetry.attributes import Attributes, CallKind, ResponseMetadata, error_description, error_type
from qreward.transport.redaction import Secrets, secrets_of

CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
EVENT_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_EMIT_EVENT"
MAX_MESSAGES = 64
"""Maximum number of input messages of a call that are recorded."""
MAX_ENDPOINTS = 256
"""Maximum number of endpoints whose secrets are cached."""

Capture = Literal["no_content", "span_only", "event_only", "span_and_event"]


class Content:
    """Records messages on spans and in events.

    Args:
        capture: where messages are recorded.
        events: whether an event is emitted for each call, even if messages are not recorded in events.
        longest: maximum number of characters of one text that are recorded.
        provider: the logger provider; None for the global logger provider.
        dialect: version of the semantic conventions.

    Attributes:
        wanted: True if ``record`` has something to record for each call.
    """

    def __init__(self, capture: Capture, *, events: bool, longest: int, provider: Any, dialect: names.Dialect) -> None:
        self._on_span = capture in ("span_only", "span_and_event")
        self._on_event = capture in ("event_only", "span_and_event")
        self._events = events or self._on_event
        self.wanted = self._on_span or self._events
        self._longest = longest
        # Id of an endpoint -> the endpoint and its secrets. The reference to the endpoint prevents that its id is used again.
        self._secrets: dict[int, tuple[object, Secrets]] = {}
        self._logger = logs.get_logger(names.SCOPE, names.version(), provider, names.SCHEMA_URLS[dialect])

    def record(
        self, task: Task, end: End, metadata: ResponseMetadata, kind: CallKind, context: Context | None, attributes: Attributes
    ) -> None:
        """Record a call that ended. Depending on the settings, add its messages to the attributes of its span, and emit its event."""
        messages = self._messages(task, end, metadata, kind) if self._on_span or self._on_event else {}
        if self._events:
            self._emit(names.DETAILS_EVENT, {**kind.start, **attributes, **(messages if self._on_event else {})}, context)
        if self._on_span:
            attributes |= {name: json.dumps(value, ensure_ascii=False) for name, value in messages.items()}

    def record_exception(self, error: BaseException, context: Context | None) -> None:
        """Emit the event of a call that failed."""
        kind = type(error)
        attributes = {
            names.EXCEPTION_TYPE: f"{kind.__module__}.{kind.__qualname__}",
            names.EXCEPTION_MESSAGE: error_description(error),
            names.ERROR_TYPE: error_type(error),
        }
        self._emit(names.EXCEPTION_EVENT, attributes, context, logs.SeverityNumber.WARN)

    def _emit(self, name: str, attributes: Attributes, context: Context | None, severity: logs.SeverityNumber | None = None) -> None:
        text = None if severity is None else severity.name
        record = logs.LogRecord(event_name=name, context=context, severity_number=severity, severity_text=text, attributes=attributes)
        self._logger.emit(record)

    # messages

    def _messages(self, task: Task, end: End, metadata: ResponseMetadata, kind: CallKind) -> dict[str, Any]:
        secrets = self._secrets_of(task)
        inputs = getattr(task.payload, "inputs", None)
        found: dict[str, Any] = {}
        if isinstance(inputs, list | tuple) and inputs and all(isinstance(each, Mapping) for each in inputs):
            messages = [
                {"role": str(each.get("role", "")), "parts": list(self._parts(each.get("content"), secrets))}
                for each in inputs[:MAX_MESSAGES]
            ]
            system = [part for each in messages if each["role"] == "system" for part in each["parts"]]
            found[names.INPUT_MESSAGES] = [each for each in messages if each["role"] != "system"]
            if system:
                found[names.SYSTEM_INSTRUCTIONS] = system
        text = end.value.text() if isinstance(end, Answer) and kind.inference else ""
        if text:
            reason = metadata.reasons[0] if metadata.reasons else ""
            parts = list(self._parts(text, secrets))
            found[names.OUTPUT_MESSAGES] = [{"role": "assistant", "parts": parts, "finish_reason": reason}]
        return found

    def _parts(self, content: object, secrets: list[Secrets]) -> Iterable[dict[str, Any]]:
        for part in content if isinstance(content, list) else [content]:
            text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
            if isinstance(text, str):
                for each in secrets:
                    text = each.hide(text)
                yield {"type": "text", "content": text[: self._longest]}
            elif isinstance(part, Mapping):  # of an image or audio, only the type is recorded
                yield {"type": str(part.get("type", "unknown"))[:64]}

    def _secrets_of(self, task: Task) -> list[Secrets]:
        """Return the secrets that are removed from the texts of a call.

        These secrets are the values of the call's extra headers, and the secrets of all endpoints that may serve the call.
        """
        found = [Secrets().and_headers(getattr(task.payload, "headers", None))]
        for source in () if task.pool is None else task.pool.sources:
            endpoint: Any = source.handle
            if isinstance(getattr(endpoint, "api_key", None), ApiKey):  # its key changes
                found.append(secrets_of(endpoint))
                continue
            if id(endpoint) not in self._secrets:
                if len(self._secrets) >= MAX_ENDPOINTS:
                    self._secrets.clear()
                self._secrets[id(endpoint)] = endpoint, secrets_of(endpoint) if hasattr(endpoint, "api_key") else Secrets()
            found.append(self._secrets[id(endpoint)][1])
        return found
