"""Exceptions of the package, and suggestions for misspelt names.

Every message says what happened, where, and what to change. No message contains a key. Every "did you mean" of the package is made here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, ClassVar

from qreward.records import AttemptRecord, Usage


def page(path: str, anchor: str = "") -> str:
    """Return how a message names a page of the documentation, or the section of this heading. An installed package has no such files.

    Example:
        >>> page("reference/errors", "ratelimited")
        'documentation page reference/errors#ratelimited'
    """
    return f"documentation page {path}{f'#{anchor}' if anchor else ''}"


class QRewardError(Exception):
    """Base class of all exceptions that this package raises on purpose.

    Attributes:
        usage: tokens of responses that did not become a result, such as a judge's that could not be parsed; None if there are none.
        help_url: the section of the documentation about this class of errors: causes and remedies.
    """

    usage: Usage | None = None
    help_url: ClassVar[str] = page("reference/errors", "qrewarderror")

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__ in _DOCUMENTED:  # other classes, such as a user's own, have the section of their base class
            cls.help_url = page("reference/errors", cls.__name__.lower())


_DOCUMENTED = (__name__, "qreward.results")
"""The modules whose errors have sections of their own on the page of errors."""
Fault = tuple[tuple[str | int, ...], str]
"""One invalid setting: its path, such as ``("endpoints", 1, "limits")``, and a description of the fault."""


class ConfigError(QRewardError, ValueError):
    """The configuration or an argument is invalid. Raised before anything is sent. The message has one line for each of ``faults``."""

    faults: tuple[Fault, ...] = ()

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.add_note(f"See {self.help_url}")


class NoEndpoint(QRewardError):
    """No route matches the model, or all endpoints of the route were removed."""


class RequestError(QRewardError):
    """A request was attempted and failed.

    Attributes:
        endpoint: name of the endpoint of the last attempt, or None if no endpoint was reached.
        model: the requested model.
        status_code, request_id: HTTP status and ``x-request-id`` of the last response, or None.
        attempts: every attempt, oldest first.
    """

    def __init__(
        self,
        message: str,
        *,
        endpoint: str | None = None,
        model: str | None = None,
        status_code: int | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.endpoint = endpoint
        self.model = model
        self.status_code = status_code
        self.request_id = request_id
        self.attempts: tuple[AttemptRecord, ...] = ()


class RequestTimeout(RequestError, TimeoutError):
    """A time limit passed: either the limit of the whole request, which includes the time in the queue, or the limit of one attempt."""


class ConnectionFailed(RequestError):
    """No connection could be opened, or the connection broke before the response was complete."""


class RateLimited(RequestError):
    """The endpoint reported a rate limit or overload (429, 503, 529), or an exhausted quota (402, for example)."""


class ServerError(RequestError):
    """The endpoint failed while it processed the request (5xx except 503 and 529; also 408, 409, 424, 425 and 499)."""


class BadRequest(RequestError):
    """The request itself is wrong, and sending it again cannot help.

    The server refused it (400, 413, 422), or it was not sent. After 404, 405 and 410, ``base_url`` or the model's name is probably wrong.
    """


class AuthenticationFailed(RequestError):
    """The endpoint did not accept the API key (401, 403), or the proxy did not accept the user and password (407)."""


class InvalidResponse(RequestError):
    """The response is not valid (broken or empty JSON, or a redirect, for example), or the server did not complete it."""


class StreamInterrupted(RequestError):
    """A stream ended early after the caller received part of it, or a closed stream was read.

    Attributes:
        text: the text received before the stream ended. ``__cause__`` is the error that ended it.
    """

    def __init__(self, message: str, *, text: str = "", **details: Any) -> None:
        super().__init__(message, **details)
        self.text = text


class Rejected(QRewardError):
    """The client itself ended the request before an endpoint completed it."""


class QueueFull(Rejected):
    """The queue has reached its limit."""


class CircuitOpen(Rejected, RuntimeError):
    """Every endpoint of the route is marked unhealthy, or the circuit breaker of a scheduled function is open.

    It is also a ``RuntimeError``, as in QReward 0.1.7.
    """


class DeadlineExceeded(Rejected):
    """The deadline of the batch passed before this item had a result."""


class BudgetExceeded(Rejected):
    """The budget of a judge is spent, so the request was not sent."""


class BatchCancelled(Rejected):
    """An operator cancelled the batch before this item had a result."""


class ClientClosed(Rejected):
    """The client was closed before the request had a result."""


STOPPED = (BatchCancelled, ClientClosed, DeadlineExceeded)
"""The classes of errors of items that were not done when their batch or client ended."""


TYPO = 0.85
"""Minimum similarity (0 to 1) of a misspelling where unknown names are allowed: ``time_out`` is ``timeout``, ``store`` is not ``score``."""

_RETRIES = ("retries", "max_retries", "num_retries", "max_attempts")
SYNONYMS = {
    "max_concurrency": ("concurrency", "max_parallel_requests", "max_concurrent_requests", "max_workers"),
    "base_url": ("url", "api_base", "endpoint", "host", "address"),
    "api_key": ("key", "token"),
    "attempts": _RETRIES,
    "retry_times": _RETRIES,
}
"""Name of a setting -> names for it in other libraries, which are often not similar."""


_RETRY = "retries are a setting of the client: QRewardClient(..., retry=Retry(attempts=...)), which counts the first attempt too"
_OTHER_MODEL = "no call is repeated with another model; catch the error and call the other model, or use a Cascade of judges"
ELSEWHERE = {
    **dict.fromkeys(("retries", "num_retries", "max_retries", "retry_policy"), _RETRY),
    **dict.fromkeys(("fallbacks", "context_window_fallbacks", "content_policy_fallbacks"), _OTHER_MODEL),
    "mock_response": "responses are faked by servers: qreward.testing.FakeFleet([FakeEndpoint(..., responder=...)])",
    **dict.fromkeys(("request_timeout", "stream_timeout"), "the timeout of a call is timeout=, in seconds"),
    "api_key": "it belongs to the endpoint: Endpoint(base_url, api_key=...)",
    **dict.fromkeys(("api_base", "base_url"), "it belongs to the endpoint: Endpoint(base_url)"),
    "http_client": "it belongs to the endpoint: Endpoint(base_url, http_client=...)",
    "default_headers": "it belongs to the endpoint: Endpoint(base_url, headers={...})",
    "headers": "the headers of a call are extra_headers=",
    "custom_llm_provider": "every endpoint has the API that its kind names: Endpoint(base_url, kind=...)",
    "drop_params": "no parameter is dropped; leave out what the server does not take",
    "return_exceptions": "a batch never raises for an item: batch.errors has the errors, and batch.raise_for_errors() raises them",
    "reference": "it is an argument of a judge: Judge(client, model=...).score(prompt, response, reference=...)",
    "caching": "responses are not cached; a judge caches its verdicts: Judge(client, cache=...)",
}
"""Well-known argument of another library or place -> the part of an error message that says what to use here."""


def closest(name: object, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the known names that are most similar to ``name``, best first. Case is ignored."""
    by_case = {each.lower(): each for each in known}
    return [by_case[each] for each in difflib.get_close_matches(str(name).lower(), by_case, n=most, cutoff=cutoff)]


def meant(name: object, known: Iterable[str], *, cutoff: float = TYPO) -> str | None:
    """Return the known name that ``name`` stands for: itself, its synonym, or the most similar name; None if there is none."""
    names = list(known)
    if name in names:
        return str(name)
    synonym = next((ours for ours in names if name in SYNONYMS.get(ours, ())), None)
    return synonym or next(iter(closest(name, names, cutoff=cutoff)), None)


def did_you_mean(name: object, known: Iterable[str], *, cutoff: float = 0.6, otherwise: str = "valid names:") -> str:
    """Return the end of an error message about a wrong name: the closest valid name, or all valid names."""
    names = list(known)
    if ours := meant(name, names, cutoff=cutoff):
        return f"did you mean {ours!r}?"
    return f"{otherwise} {', '.join(map(repr, names)) or 'none'}"
