"""Messages on the spans of calls, if the program asks for them. Texts are cut, and API keys are removed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from qreward.engine.instrumentation import End
from qreward.scheduler.outcome import Answer
from qreward.scheduler.task import Task
from qreward.telemetry.attributes import Attributes
from qreward.transport.redaction import Secrets, secrets_of

MAX_MESSAGES = 64
"""Maximum number of input messages of a call that are recorded."""


def messages_of(task: Task, end: End, reasons: tuple[str, ...], longest: int, *, with_output: bool) -> Attributes:
    """Return the messages of a call as attributes, each text with at most ``longest`` characters."""
    headers = Secrets().and_headers(getattr(task.payload, "headers", None))
    endpoints = [source.handle for source in (task.pool.sources if task.pool is not None else ())]
    secrets = [headers, *(secrets_of(each) for each in endpoints if hasattr(each, "api_key"))]  # type: ignore[arg-type]
    inputs, found = getattr(task.payload, "inputs", None), dict[str, Any]()
    if isinstance(inputs, list | tuple) and inputs and all(isinstance(each, Mapping) for each in inputs):
        messages = [
            {"role": str(each.get("role", "")), "parts": list(_parts(each.get("content"), secrets, longest))}
            for each in inputs[:MAX_MESSAGES]
        ]
        found["gen_ai.input.messages"] = [each for each in messages if each["role"] != "system"]
        if system := [part for each in messages if each["role"] == "system" for part in each["parts"]]:
            found["gen_ai.system_instructions"] = system
    if with_output and isinstance(end, Answer) and (text := end.value.text()):
        parts = list(_parts(text, secrets, longest))
        found["gen_ai.output.messages"] = [{"role": "assistant", "parts": parts, "finish_reason": reasons[0] if reasons else ""}]
    return {name: json.dumps(value, ensure_ascii=False) for name, value in found.items()}


def _parts(content: object, secrets: list[Secrets], longest: int) -> Iterator[dict[str, Any]]:
    for part in content if isinstance(content, list) else [content]:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
        if isinstance(text, str):
            for each in secrets:
                text = each.hide(text)
            yield {"type": "text", "content": text[:longest]}
        elif isinstance(part, Mapping):  # of an image or audio, only the type is recorded
            yield {"type": str(part.get("type", "unknown"))[:64]}
