"""The meaning of ``finish_reason``: which completions count as complete.

A complete response ends with ``stop`` (``eos_token`` or ``stop_sequence`` in TGI), with a tool call, or without a reason, which some
servers leave out. With ``length`` it was cut off at its token limit; with ``content_filter`` a part was withheld; with ``abort``, ``error``
and similar reasons the server aborted it. A response with an unknown reason is not known to be complete, so it counts as incomplete.
"""

from __future__ import annotations

LENGTH = "length"
"""The response was cut off at the token limit of the request."""
ABORTED = frozenset({"abort", "error", "insufficient_system_resource"})
"""The server aborted the generation (the last reason is DeepSeek's). Another attempt may succeed."""

_WHOLE = frozenset({None, "stop", "eos_token", "stop_sequence", "tool_calls", "function_call"})
_SHOWN = 40  # characters of a reason that an error message shows
_MEANINGS = {
    LENGTH: "cut off at its token limit (raise max_tokens)",
    "content_filter": "a part withheld by the server's content filter",
    **dict.fromkeys(ABORTED, "given up by the server before its end"),
}


def ending_of(reason: object) -> str | None:
    """Return the reason as a string, or None if there is none. Servers also send ``""``, ``"null"``, or an object with a ``type``.

    Example:
        >>> ending_of("stop"), ending_of("null"), ending_of({"type": "abort"})
        ('stop', None, 'abort')
    """
    if isinstance(reason, dict):
        reason = reason.get("type", "unknown")
    return None if reason in (None, "", "null") else str(reason)


def is_whole(ending: str | None) -> bool:
    """Return whether the model itself ended the response, and nothing of it is missing."""
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
