"""Who writes the text of an answer: the echo, the judge, or the user's own function. Knows messages only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qreward.errors import ConfigError
from qreward.server.loading import load_object
from qreward.testing.judge import judge
from qreward.testing.spec import Responder
from qreward.testing.text import echo_text

Write = Callable[[list[Any], bytes], str]
"""From messages and their digest to the text."""


def writer_of(responder: str | Responder) -> Write:
    """Find the function that a setting names. Raises ``ConfigError`` if it cannot be imported."""
    if responder == "echo":
        return lambda _messages, digest: echo_text(digest)
    function: Responder = judge if responder == "judge" else _import(responder) if isinstance(responder, str) else responder
    return lambda messages, _digest: str(function(messages))


def _import(path: str) -> Responder:
    found = load_object(path, "responder", "my_fakes:answer")
    if not callable(found):
        raise ConfigError(f"the responder {path!r} must be a function, not a {type(found).__name__}")
    return found  # type: ignore[no-any-return]
