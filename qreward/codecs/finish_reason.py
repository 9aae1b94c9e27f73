"""The meaning of ``finish_reason``: which responses are complete."""

from __future__ import annotations

LENGTH = "length"
"""The ``finish_reason`` of a response that was cut off at the token limit of the request."""
ABORTED = frozenset({
    "abort", "aborted", "cancel", "canceled", "cancelled", "error", "error_limit", "error_toxic", "failed", "failure",
    "insufficient_system_resource", "internal_error", "malformed_function_call", "network_error", "server_error", "timeout",
    "unexpected_tool_call", "user_cancel",
})  # fmt: skip
"""Values of ``finish_reason`` that mean that the server aborted the generation. Another attempt may succeed."""
WITHHELD = frozenset({
    "blocked", "blocklist", "content_filter", "content_filtered", "content_policy", "guardrail_intervened", "image_safety", "moderation",
    "pause_turn", "prohibited_content", "recitation", "refusal", "safety", "sensitive", "spii",
})  # fmt: skip
"""Values of ``finish_reason`` that mean that the server withheld a part of the response."""

_WHOLE = frozenset({
    None, "complete", "completed", "end", "end_turn", "eos", "eos_token", "finished", "function_call", "normal", "stop", "stop_sequence",
    "stop_token", "tool_call", "tool_calls", "tool_use",
})  # fmt: skip
_CUT = frozenset({
    "length", "max_length", "max_new_tokens", "max_output_tokens", "max_tokens", "model_context_window_exceeded", "model_length",
    "token_limit",
})  # fmt: skip
_SHOWN = 40  # maximum number of characters of a reason in an error message
_MEANINGS = {
    LENGTH: "cut off at its token limit (raise max_tokens)",
    **dict.fromkeys(WITHHELD, "a part withheld by the server's content filter"),
    **dict.fromkeys(ABORTED, "given up by the server before its end"),
}


def ending_of(reason: object) -> str | None:
    """Return a finish reason in lower case, or None if there is no reason. Reasons that mean ``length`` become ``"length"``."""
    if isinstance(reason, dict):
        reason = reason.get("type", "unknown")
    if reason is None:
        return None
    ending = str(reason).strip().lower()
    return None if ending in ("", "null") else LENGTH if ending in _CUT else ending


def is_whole(ending: str | None) -> bool:
    return ending in _WHOLE


def is_failure(ending: str | None) -> bool:
    return ending in ABORTED or ending in WITHHELD


def described(ending: str | None) -> str:
    shown = str(ending)[:_SHOWN]
    meaning = _MEANINGS.get(shown, "which is not known to end a complete answer")
    return f"finish_reason {shown!r}, {meaning}"
