"""What telemetry reads of an answer: its id, the model that gave it, why it ended, and tokens that the engine does not count.

Read from the bytes as they came, once, and only where somebody records it; never its content.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

LONGEST_BODY = 1 << 20
"""Bytes of an answer beyond which it is not read a second time, such as one full of vectors."""
LONGEST_TEXT = 256


class Facts(NamedTuple):
    """What an answer says of itself; None or empty where it says nothing."""

    id: str | None = None
    model: str | None = None
    reasons: tuple[str, ...] = ()
    fingerprint: str | None = None
    cached: int | None = None
    reasoning: int | None = None


NOTHING = Facts()


class _Prompt(msgspec.Struct, gc=False):
    cached_tokens: Any = None


class _Completion(msgspec.Struct, gc=False):
    reasoning_tokens: Any = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens_details: _Prompt | None = None
    completion_tokens_details: _Completion | None = None


class _Choice(msgspec.Struct, gc=False):
    finish_reason: Any = None


class _Seen(msgspec.Struct, gc=False):
    id: Any = None
    model: Any = None
    system_fingerprint: Any = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None


_DECODER = msgspec.json.Decoder(_Seen)


def facts_of(value: Any) -> Facts:
    """The facts of an answer's value; of a stream, those of its chunks put together."""
    body = getattr(value, "body", None)
    if type(body) is bytes:
        return _read(body)
    heads = getattr(value, "heads", None)
    return NOTHING if heads is None else _together([_read(each) for each in heads()])


def _read(body: bytes) -> Facts:
    if len(body) > LONGEST_BODY:
        return NOTHING
    try:
        seen = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NOTHING
    choices, usage, cached, reasoning = seen.choices or (), seen.usage, None, None
    if len(choices) == 1:
        reason = _text(choices[0].finish_reason)
        reasons: tuple[str, ...] = () if reason is None else (reason,)
    else:
        reasons = tuple(_text(choice.finish_reason) or "" for choice in choices)
    if usage is not None and usage.prompt_tokens_details is not None:
        cached = _count(usage.prompt_tokens_details.cached_tokens)
    if usage is not None and usage.completion_tokens_details is not None:
        reasoning = _count(usage.completion_tokens_details.reasoning_tokens)
    return Facts(_text(seen.id), _text(seen.model), reasons if any(reasons) else (), _text(seen.system_fingerprint), cached, reasoning)


def _together(all_facts: list[Facts]) -> Facts:
    """Of each fact the first that is known, of the reasons all."""

    def first(of: str) -> Any:
        return next((value for facts in all_facts if (value := getattr(facts, of)) is not None), None)

    reasons = tuple(reason for facts in all_facts for reason in facts.reasons if reason)
    return Facts(first("id"), first("model"), reasons, first("fingerprint"), first("cached"), first("reasoning"))


def _text(value: object) -> str | None:
    return value[:LONGEST_TEXT] if isinstance(value, str) and value else None


def _count(value: object) -> int | None:
    return value if type(value) is int else None
