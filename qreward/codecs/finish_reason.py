"""How a completion ended, by its ``finish_reason``: the one rule by which an answer counts as whole.

Whole answers end with ``stop`` (``eos_token`` and ``stop_sequence`` are what TGI calls it), with a call of a tool, or without a reason,
which some servers leave out. ``length`` was cut off at its token limit, ``content_filter`` had a part withheld, ``abort``, ``error`` and
their like were given up by the server. A reason that is not known says nothing of the sort, so such an answer is not whole either.
"""

from __future__ import annotations

CUT = "length"
"""The answer was cut off at its token limit, as the request asked."""
GIVEN_UP = frozenset({"abort", "error", "insufficient_system_resource"})
"""The server stopped before the model did (the last is DeepSeek's). Another attempt may come to its end."""

_WHOLE = frozenset({None, "stop", "eos_token", "stop_sequence", "tool_calls", "function_call"})
_UNSAID = (None, "", "null")
_SHOWN = 40
"""Characters of a reason that an error shows."""
_MEANINGS = {
    CUT: "cut off at its token limit (raise max_tokens)",
    "content_filter": "a part withheld by the server's content filter",
    **dict.fromkeys(GIVEN_UP, "given up by the server before its end"),
}


def ending_of(reason: object) -> str | None:
    """The reason as a text, None if the server gave none: some send ``""`` or ``"null"``, some an object with a ``type``.

    Example:
        >>> ending_of("stop"), ending_of("null"), ending_of({"type": "abort"})
        ('stop', None, 'abort')
    """
    if isinstance(reason, dict):
        reason = reason.get("type", "unknown")
    return None if reason in _UNSAID else str(reason)


def is_whole(ending: str | None) -> bool:
    """Whether the model itself ended the answer, and all of it is here.

    Example:
        >>> [is_whole(ending) for ending in ("stop", "tool_calls", None, "length", "content_filter", "abort", "odd")]
        [True, True, True, False, False, False, False]
    """
    return ending in _WHOLE


def described(ending: str | None) -> str:
    """What is wrong with an answer that ended so, for an error message.

    Example:
        >>> described("abort")
        "finish_reason 'abort', given up by the server before its end"
    """
    shown = str(ending)[:_SHOWN]
    meaning = _MEANINGS.get(shown, "which is neither 'stop' nor 'tool_calls'")
    return f"finish_reason {shown!r}, {meaning}"
