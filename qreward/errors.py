"""The error tree. Every message says what happened, where, and what to change; no message holds a key.

This room knows nothing but words: no HTTP, no asyncio, no configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qreward.results import AttemptRecord, BatchResult, Usage


class QRewardError(Exception):
    """Base of everything this library raises on purpose.

    Attributes:
        usage: tokens of the answers that came although there is no result, such as those of a judge that could not be read; None if there
            were none, or no server told.
    """

    usage: Usage | None = None


Fault = tuple[tuple[str | int, ...], str]
"""One wrong setting: its path in the settings, such as ``("endpoints", 1, "limits")``, and what is wrong with it."""


class ConfigError(QRewardError, ValueError):
    """The configuration or an argument is wrong. Raised before anything is sent. The message has a line for each fault.

    Attributes:
        faults: what is wrong, where several settings were checked together; else empty.
    """

    faults: tuple[Fault, ...] = ()


class NoEndpoint(QRewardError):
    """No route matches the model, or the route has no endpoint left."""


class RequestError(QRewardError):
    """A request was tried and did not succeed.

    Attributes:
        endpoint: name of the endpoint that gave the last outcome, or None if none was reached.
        model: the model that was asked for.
        status_code: HTTP status of the last answer, or None if there was none.
        request_id: the server's ``x-request-id``, if it sent one.
        attempts: every attempt that was made, oldest first.
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

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class RequestTimeout(RequestError, TimeoutError):
    """The time budget ran out: of the task (queueing included) or of one attempt."""


class ConnectionFailed(RequestError):
    """No connection, or it broke before the answer was complete."""


class RateLimited(RequestError):
    """The endpoint said it is over a limit or overloaded (429, 503, 529)."""


class ServerError(RequestError):
    """The endpoint failed while it worked on the request (other 5xx)."""


class BadRequest(RequestError):
    """The request itself is wrong; sending it again cannot help (400, 413, 422, or refused before it was sent)."""


class AuthenticationFailed(RequestError):
    """The endpoint does not accept the key (401, 403)."""


class InvalidResponse(RequestError):
    """The endpoint answered with something that is not an answer (broken or empty JSON), or with one that is not whole."""


class StreamInterrupted(RequestError):
    """A stream broke off after part of it was given out, or it was read on after it had been left.

    Attributes:
        text: what had come until then. What broke it off is ``__cause__``.
    """

    def __init__(
        self,
        message: str,
        *,
        text: str = "",
        endpoint: str | None = None,
        model: str | None = None,
        status_code: int | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message, endpoint=endpoint, model=model, status_code=status_code, request_id=request_id)
        self.text = text


class Rejected(QRewardError):
    """The request was not tried to its end, by our own decision."""


class QueueFull(Rejected):
    """The queue is bounded and has no room."""


class CircuitOpen(Rejected):
    """Every endpoint of the route is out of service."""


class DeadlineExceeded(Rejected):
    """The deadline of the batch passed before this item was done."""


class ClientClosed(Rejected):
    """The client was closed before the request was done."""


class BatchInterrupted(QRewardError):
    """The input of a batch raised while it was read. What was already sent has been finished.

    Attributes:
        results: the results of all items read before the input failed. The input's own exception is ``__cause__``.
    """

    def __init__(self, message: str, results: BatchResult[object] | None = None) -> None:
        super().__init__(message)
        self.results = results


def _rebuild(cls: type[RequestError], args: tuple[str, ...], state: dict[str, object]) -> RequestError:
    error = cls(*args)
    error.__dict__.update(state)
    return error
