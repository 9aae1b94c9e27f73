"""Results: one ``Result`` per item, one ``BatchResult`` per batch, their statistics, and why requests wait (``scheduler.why`` finds that).

A failed item is an error, never None or 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, islice
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, overload

from qreward.errors import QRewardError, RequestError
from qreward.records import AttemptRecord as AttemptRecord  # noqa: PLC0414 - part of a result
from qreward.records import Usage as Usage  # noqa: PLC0414

T = TypeVar("T")

_RAISE: Any = object()
"""The default of :meth:`BatchResult.scores`: failed items raise their errors."""
CAUSES = 3  # number of errors that the message of a ``BatchFailed`` names


class RouteState(NamedTuple):
    """The fields of ``Progress`` that the endpoints of a batch's routes determine: the requests in flight and how many may be, the
    endpoints out of service and all endpoints, the least and most seconds for the rest, and why nothing moves."""

    in_flight: int = 0
    window: int = 0
    down: int = 0
    endpoints: int = 0
    eta: tuple[float, float] | None = None
    why: str = ""


class Answered(Protocol):
    """A decoded response. ``build`` returns the object for the caller."""

    usage: Usage | None  # responses with generated text also have ``finish_reason: str | None``

    def build(self) -> Any: ...
    def text(self) -> str: ...


class Result(Generic[T]):
    """The outcome of one item: a response or an error.

    A chat completion succeeds if it is complete, was cut off at its token limit (``finish_reason`` is then ``"length"``), or ended for an
    unknown reason. One that the server aborted or filtered fails with :class:`~qreward.errors.InvalidResponse`.

    Attributes:
        index: index of the item in the batch, from 0.
        error: the error, or None if the item succeeded.
        endpoint: name of the endpoint that responded, or of the last attempt of a failed item, or None.
        latency: seconds of the successful attempt; 0.0 for a failed item. For a verdict, seconds from the first request of the item.
        queued: seconds in the queue before the first attempt; 0.0 for an item of a batch, whose time begins when an endpoint takes it.
        attempts: all attempts, the oldest first.
    """

    # no dataclass: its private fields would be part of its signature, of pydantic's models, and of ``asdict`` of what holds it
    __slots__ = ("_answer", "_extra", "_trail", "_value", "endpoint", "error", "index", "latency", "queued")

    def __init__(
        self,
        index: int,
        answer: Answered | None,
        error: QRewardError | None,
        endpoint: str | None,
        latency: float,
        queued: float,
        trail: tuple[AttemptRecord, ...] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.index, self.error, self.endpoint, self.latency, self.queued = index, error, endpoint, latency, queued
        self._answer, self._trail, self._extra = answer, trail, extra
        self._value: T | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def extra(self) -> Mapping[str, Any]:
        """The fields of an item that are not judged, such as an ``id``, in batches of judges and scorers; otherwise empty."""
        return {} if self._extra is None else self._extra

    @property
    def value(self) -> T:
        """The response object, such as an openai ``ChatCompletion``, built on first access. Raises the error of a failed item."""
        if self._value is None:
            self._value = self._answered().build()
        assert self._value is not None
        return self._value

    @property
    def text(self) -> str:
        """The text of the response; ``""`` for a response without text, such as a tool call. Raises the error of a failed item."""
        return self._answered().text()

    @property
    def body(self) -> bytes:
        """The JSON of the response; ``b""`` if the item shared its request. Raises the error of a failed item."""
        body: bytes = getattr(self._answered(), "body", b"")
        return body

    @property
    def finish_reason(self) -> str | None:
        """Why generation ended: ``"stop"``, ``"tool_calls"``, or ``"length"`` at the token limit; None if that is not known."""
        return getattr(self._answer, "finish_reason", None)

    @property
    def usage(self) -> Usage | None:
        """Tokens of the response; None if no server reported them. For a failed item of a judge, those of all its responses."""
        paid = self._answer if self._answer is not None else self.error
        return paid.usage if paid is not None else None

    @property
    def usage_is_estimated(self) -> bool:
        """True if several items shared a request; ``usage`` is then a share of it, in proportion to the size of the item."""
        return bool(getattr(self._answer, "estimated", False))

    @property
    def attempts(self) -> tuple[AttemptRecord, ...]:
        if self._answer is None or self.endpoint is None or (self._trail and self._trail[-1].outcome == "ok"):
            return self._trail
        return (*self._trail, successful(self._trail, self.endpoint, self.latency))

    @property
    def has_trail(self) -> bool:
        """True if an attempt failed, was rejected or was cancelled."""
        return bool(self._trail) and any(record.outcome != "ok" for record in self._trail)

    def _answered(self) -> Answered:
        if self._answer is None:
            assert self.error is not None
            raise self.error
        return self._answer

    def __repr__(self) -> str:
        how = "" if self.finish_reason in (None, "stop") else f" finish_reason={self.finish_reason!r}"
        what = f"ok{how}" if self.error is None else f"{type(self.error).__name__}: {self.error}"
        return f"<Result {self.index} {what} endpoint={self.endpoint!r} attempts={len(self.attempts)}>"


@dataclass(frozen=True, slots=True)
class EndpointState:
    """The current state of one endpoint.

    Attributes:
        in_flight: requests in flight.
        window, why_window: the largest number of requests that may be in flight now, and the reason for its last change.
        obstacle: the reason why no request can be sent to the endpoint now; ``ready`` if a request can be sent.
        ready_in: seconds until a request can be sent, 0.0 for now. None if the endpoint waits for an event, such as a response.
        sharing: the share of this process in limits that processes share; None if they are not shared.
    """

    in_flight: int
    window: int
    why_window: str
    obstacle: str
    ready_in: float | None
    sharing: str | None = None


@dataclass(frozen=True, slots=True)
class EndpointStats:
    """Counts and latencies of one endpoint.

    Attributes:
        sent: number of requests sent.
        answered: number of requests that succeeded. ``won`` is another name of this count.
        rejected: number of requests that the endpoint rejected because of a rate limit or overload.
        retried: number of requests that were sent again because their last attempt had failed, other than by a rate limit or overload.
        hedged: number of copies sent to this endpoint, of requests in flight at another.
        failed: number of requests that failed for another reason.
        cancelled: number of requests cancelled by the client or the caller.
        prompt_tokens, completion_tokens: tokens, as reported by the server.
        cached_tokens: prompt tokens that the server read from its prefix cache, as reported by the server.
        predicted_tokens: those that prefix affinity expected there; 0 in the statistics of a batch.
        p50, p95, p99: quantiles of the latency of successful attempts in seconds; None if no attempt succeeded.
        state: the current state of the endpoint; None in the statistics of a batch.
    """

    sent: int = 0
    answered: int = 0
    rejected: int = 0
    retried: int = 0
    hedged: int = 0
    failed: int = 0
    cancelled: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    predicted_tokens: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    state: EndpointState | None = None

    @property
    def won(self) -> int:
        """The same as ``answered``."""
        return self.answered


_COUNTS = tuple(field.name for field in fields(EndpointStats) if field.name not in ("p50", "p95", "p99", "state"))


def merged_stats(many: Iterable[Mapping[str, EndpointStats]]) -> dict[str, EndpointStats]:
    """Add the counts of each endpoint. One that occurs several times has no quantiles."""
    merged: dict[str, EndpointStats] = {}
    for name, stats in chain.from_iterable(each.items() for each in many):
        one = merged.get(name)
        merged[name] = stats if one is None else EndpointStats(**{each: getattr(one, each) + getattr(stats, each) for each in _COUNTS})
    return merged


ReasonCode = Literal[
    "ready", "running", "rate_limit", "token_limit", "concurrency_limit", "recovering", "cooldown", "out_of_service", "failing", "quota",
    "no_answer", "held_back", "input", "consumer", "budget", "paused", "marked_unhealthy", "removed", "no_endpoint", "event_loop",
]  # fmt: skip
"""Why work waits; ``docs/how-to/why-nothing-moves.md`` lists them. Of two endpoints that are expected to take a request at the same time,
the one whose code comes first is the reason."""

WAITING: tuple[ReasonCode, ...] = (
    "rate_limit", "token_limit", "concurrency_limit", "cooldown", "out_of_service", "failing", "quota", "no_answer", "paused",
)  # fmt: skip
"""The reasons that trainers log."""


@dataclass(frozen=True, slots=True)
class EndpointReason:
    """Why one endpoint takes no request now.

    Attributes:
        text: the reason with its numbers, such as ``gpu-0 is at its limit of 16 requests in flight``; ``code`` is a ``ReasonCode``.
        ready_in: seconds until the endpoint can take a request, 0.0 for now. None if an event must come first.
    """

    endpoint: str
    code: ReasonCode
    text: str
    ready_in: float | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why the work of one route waits. ``str`` returns the sentence.

    Attributes:
        route: pattern of the route; ``""`` if the reason concerns all routes.
        code, text: the binding reason: that of the endpoint that is expected to take a request first.
        waiting: items that are not in flight and have no result.
        endpoints: the endpoints, the binding one first.
    """

    route: str
    code: ReasonCode
    text: str
    waiting: int = 0
    in_flight: int = 0
    endpoints: tuple[EndpointReason, ...] = ()

    @property
    def is_stuck(self) -> bool:
        """True if work waits or is in flight, and something prevents it."""
        return self.code not in ("ready", "running")

    def __str__(self) -> str:
        return self.text


class FleetStats(dict[str, EndpointStats]):
    """A dict from endpoint name to :class:`EndpointStats`. It prints as a table, with ``why`` requests wait below it."""

    why: tuple[Explanation, ...] = ()

    def __str__(self) -> str:
        return "\n".join((endpoints_table(self), *(why.text for why in self.why)))

    def _repr_html_(self) -> str:
        from qreward.render import stats_html  # noqa: PLC0415 - only notebooks draw

        return stats_html(self)


def endpoints_table(endpoints: Mapping[str, EndpointStats]) -> str:
    from qreward.render import text_table  # noqa: PLC0415 - only what is printed is drawn

    rows = []
    for name, stats in sorted(endpoints.items()):
        counts = {each: str(getattr(stats, each)) for each in ("sent", "answered", "rejected", "retried", "hedged", "failed")}
        times = {each: "-" if (time := getattr(stats, each)) is None else f"{time * 1000:.0f} ms" for each in ("p50", "p95")}
        rows.append({"endpoint": name, **counts, **times})
    return "\n".join(text_table(rows, ("endpoint",))) if rows else ""


@dataclass(frozen=True, slots=True)
class BatchStats:
    """Holds the statistics of a batch. ``print`` shows them as a table with one line per endpoint.

    Attributes:
        items, ok, failed: number of items, and of those that succeeded or failed.
        seconds: from the start of the batch to its last result.
        endpoints: endpoint name -> its statistics for this batch.
        cost: US dollars; see :attr:`BatchResult.cost`.
        decided_by: name of a stage of a cascade -> number of items whose verdict or error comes from this stage. Empty for other batches.
    """

    items: int = 0
    ok: int = 0
    failed: int = 0
    seconds: float = 0.0
    endpoints: Mapping[str, EndpointStats] = field(default_factory=dict)
    cost: float | None = None
    decided_by: Mapping[str, int] = field(default_factory=dict)

    @property
    def escalated(self) -> float:
        """The share (0 to 1) of items that went beyond the first stage of a cascade; 0.0 for batches without a cascade."""
        counts = list(self.decided_by.values())
        return sum(counts[1:]) / sum(counts) if any(counts) else 0.0

    def __str__(self) -> str:
        cost = "" if self.cost is None else f", ${self.cost:.4f}"
        summary = f"{self.items} items, {self.ok} ok, {self.failed} failed, {self.seconds:.2f} s{cost}"
        if cached := sum(stats.cached_tokens for stats in self.endpoints.values()):
            prompt = sum(stats.prompt_tokens for stats in self.endpoints.values())
            summary += f", prefix cache: {cached / max(prompt, 1):.0%} of prompt tokens"
        if decided := sum(self.decided_by.values()):
            summary += f", decided by {', '.join(f'{name} {count / decided:.0%}' for name, count in self.decided_by.items())}"
        return f"{summary}\n{endpoints_table(self.endpoints)}" if self.endpoints else summary


def dollars(price: tuple[float, float], prompt_tokens: int, completion_tokens: int) -> float:
    return (price[0] * prompt_tokens + price[1] * completion_tokens) / 1e6


class BatchResult(Sequence[Result[T]]):
    """The results of a batch, in the order of the input, and its ``stats``. A failed item is a ``Result`` with an error.

    Example:
        >>> batch = BatchResult([], BatchStats())
        >>> len(batch), batch.texts(), batch.errors
        (0, [], {})
    """

    def __init__(self, results: list[Result[T]], stats: BatchStats) -> None:
        self._results = results
        self.stats = stats

    @overload
    def __getitem__(self, index: int) -> Result[T]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Result[T]]: ...
    def __getitem__(self, index: int | slice) -> Result[T] | list[Result[T]]:
        return self._results[index]

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[Result[T]]:
        return iter(self._results)

    def values(self, default: Any = None) -> list[Any]:
        """Return the value of each item. The value of a failed item is ``default``."""
        return self._each(lambda result: result.value, default)

    def texts(self, default: Any = None) -> list[Any]:
        """Return the text of each item. The text of a failed item is ``default``."""
        return self._each(lambda result: result.text, default)

    def scores(self, default: Any = _RAISE) -> list[Any]:
        """Return the reward of each item as a float. The batch must come from a reward model (``batch_score``) or a judge.

        Args:
            default: the reward of a failed item, for example ``None`` or ``math.nan``. Without ``default``, a failed item raises.

        Raises:
            BatchFailed: items failed and no ``default`` was passed.
            TypeError: the values are not rewards. For example, the values of ``batch_chat_completion`` are not rewards.

        Example:
            >>> BatchResult([Result(0, None, QRewardError("no answer"), None, 0.0, 0.0)], BatchStats()).scores(default=None)
            [None]
        """
        if default is _RAISE:
            self.raise_for_errors()
        return self._each(lambda result: _score_of(result.value), default)

    def _each(self, read: Callable[[Result[T]], Any], default: Any) -> list[Any]:
        return [read(result) if result.ok else default for result in self._results]

    @property
    def errors(self) -> dict[int, QRewardError]:
        """A dict from the index of a failed item to its error."""
        return {result.index: result.error for result in self._results if result.error is not None}

    @property
    def cost(self) -> float | None:
        """US dollars for the responses that were used, from the tokens that servers reported. None if no endpoint has a price."""
        return self.stats.cost

    def priced(self, prices: Mapping[str, tuple[float, float]]) -> BatchResult[T]:
        """Set the cost in ``stats``. ``prices``: endpoint name -> US dollars for a million prompt tokens and completion tokens."""
        priced = ((prices[name], stats) for name, stats in self.stats.endpoints.items() if name in prices)
        cost = sum((dollars(price, stats.prompt_tokens, stats.completion_tokens) for price, stats in priced), 0.0)
        self.stats = replace(self.stats, cost=cost if prices else None)
        return self

    def raise_for_errors(self) -> BatchResult[T]:
        """Return this batch if no item failed; otherwise raise :class:`BatchFailed` with all errors."""
        if errors := self.errors:
            first = (f"item {index}: {type(error).__name__}: {error}".splitlines()[0] for index, error in islice(errors.items(), CAUSES))
            more = [f"and {len(errors) - CAUSES} more"] if len(errors) > CAUSES else []
            raise BatchFailed(f"{len(errors)} of {len(self)} items failed: {'; '.join([*first, *more])}", list(errors.values()))
        return self

    def __repr__(self) -> str:
        if not self and self.stats.items:
            return f"<BatchResult {self.stats.items} items, {self.stats.failed} failed, results not kept>"
        return f"<BatchResult {len(self)} items, {len(self.errors)} failed>"

    def _repr_html_(self) -> str:
        from qreward.render import batch_html  # noqa: PLC0415 - only notebooks draw

        return batch_html(self)


def _score_of(value: Any) -> float:
    score = value if isinstance(value, float) else getattr(value, "score", None)
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise TypeError(f"scores() needs the results of batch_score or of a judge; a {type(value).__name__} has no reward")
    return float(score)


def successful(trail: Sequence[AttemptRecord], endpoint: str, seconds: float) -> AttemptRecord:
    hedge = any(record.outcome == "cancelled" and not record.hedge for record in trail)
    return AttemptRecord(endpoint, "ok", seconds, hedge=hedge)


def with_trail(error: QRewardError, trail: tuple[AttemptRecord, ...]) -> QRewardError:
    if isinstance(error, RequestError):
        error.attempts = trail
    return error


class BatchFailed(QRewardError, ExceptionGroup[QRewardError]):
    """Items of a batch failed, and the caller asked for an exception. The message names the first errors.

    This error is also an ``ExceptionGroup``, so ``except*`` and ``split`` select errors by their class.

    Attributes:
        exceptions: the errors of all failed items, in the order of the input.
    """

    def derive(self, excs: Sequence[QRewardError]) -> BatchFailed:  # type: ignore[override]  # the errors of a batch are of this package
        """Return a group with some of the errors, as ``split`` and ``except*`` need it."""
        return BatchFailed(self.message, excs)


class BatchInterrupted(QRewardError):
    """The input of a batch, or its ``on_result`` function, raised an exception. Requests in flight were finished first.

    Attributes:
        results: the results of all items that were read before the exception.
        __cause__: the exception that the input or ``on_result`` raised.
    """

    def __init__(self, message: str, results: BatchResult[Any] | None = None) -> None:
        super().__init__(message)
        self.results = results
