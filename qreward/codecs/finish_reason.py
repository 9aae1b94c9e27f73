"""The meaning of ``finish_reason``: which responses count as complete.

A response is complete if its reason is ``stop`` (``eos_token`` or ``stop_sequence`` in TGI) or a tool call. A response without a reason
also counts as complete, because some servers leave the reason out. All other responses count as incomplete:

- ``length`` means that the response was cut off at its token limit.
- ``content_filter`` means that the server withheld a part of the response.
- ``abort``, ``error`` and ``insufficient_system_resource`` mean that the server aborted the generation.
- A response with an unknown reason counts as incomplete.
"""

from __future__ import annotations

LENGTH = "length"
"""The ``finish_reason`` of a response that was cut off at the token limit of the request."""
ABORTED = frozenset({"abort", "error", "insufficient_system_resource"})
"""Values of ``finish_reason`` that mean that the server aborted the generation. Another attempt may succeed. DeepSeek sends
``insufficient_system_resource``."""

_WHOLE = frozenset({None, "stop", "eos_token", "stop_sequence", "tool_calls", "function_call"})
_SHOWN = 40  # maximum number of characters of a reason in an error message
_MEANINGS = {
    LENGTH: "cut off at its token limit (raise max_tokens)",
    "content_filter": "a part withheld by the server's content filter",
    **dict.fromkeys(ABORTED, "given up by the server before its end"),
}


def ending_of(reason: object) -> str | None:
    """Return a finish reason as a string, or None if there is no reason.

    Servers may also send ``""`` or ``"null"`` for no reason, or an object whose ``type`` is the reason.

    Example:
        >>> ending_of("stop"), ending_of("null"), ending_of({"type": "abort"})
        ('stop', None, 'abort')
    """
    if isinstance(reason, dict):
        reason = reason.get("type", "unknown")
    return None if reason in (None, "", "null") else str(reason)


def is_whole(ending: str | None) -> bool:
    """Return True if a response with this reason is complete."""
    return ending in _WHOLE


def described(ending: str | None) -> str:
    """Describe an incomplete response for an error message.

    Example:
        >>> described("abort")
        "finish_reason 'abort', given up by the server before its end"
    """
    shown = str(ending)[:_SHOWN]
    meaning = _MEANINGS.get(shown, "which is neither 'stop' nor 'tool_calls'")
    return f"finish_reason {shown!r}, {meaning}"
