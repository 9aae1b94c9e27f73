"""What telemetry says of an error: a word for ``error.type``, and a text that is the same for all errors of a class.

An error's own message never goes into a span: it may quote what a server said, and that may quote a prompt.
"""

from __future__ import annotations

from qreward.errors import (
    CircuitOpen,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidResponse,
    QueueFull,
    Rejected,
    RequestError,
    StreamInterrupted,
)

OTHER = "_OTHER"

_WORDS: tuple[tuple[type[BaseException], str], ...] = (
    (TimeoutError, "timeout"),
    (ConnectionFailed, "connection_error"),
    (InvalidResponse, "invalid_response"),
    (QueueFull, "queue_full"),
    (CircuitOpen, "circuit_open"),
    (DeadlineExceeded, "rejected"),
    (Rejected, "rejected"),
)


def error_type(error: BaseException) -> str:
    """The HTTP status if there was one, else a word, else the class of ours; ``_OTHER`` for what is not ours.

    Example:
        >>> from qreward.errors import RateLimited, RequestTimeout
        >>> error_type(RateLimited("no", status_code=429)), error_type(RequestTimeout("late")), error_type(KeyError("x"))
        ('429', 'timeout', '_OTHER')
    """
    if isinstance(error, StreamInterrupted) and isinstance(error.__cause__, RequestError):
        error = error.__cause__
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and status >= 300:
        return str(status)
    for kind, word in _WORDS:
        if isinstance(error, kind):
            return word
    kind = type(error)
    return f"{kind.__module__}.{kind.__name__}" if kind.__module__ == "qreward.errors" else OTHER


def said(error: BaseException) -> str:
    """What a class of errors means, in the words of its docstring."""
    kind = type(error)
    first = (kind.__doc__ or "").strip().partition("\n")[0] if kind.__module__ == "qreward.errors" else ""
    return f"{kind.__name__}: {first}" if first else kind.__name__


def rejection(error: BaseException) -> str:
    """Why a call ended that was never sent: ``full``, ``deadline``, ``closed``, or what else it was."""
    if isinstance(error, QueueFull):
        return "full"
    if isinstance(error, TimeoutError | DeadlineExceeded):
        return "deadline"
    return "closed" if type(error).__name__ == "ClientClosed" else error_type(error)
